// The kernels at the end of a step against plain loops over the specification's formulas
// (mono-decode sections 2, 3 and 10): the final norm, the auxiliary states, the step counter.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/bench.hpp"
#include "tests/kernels/number_model.hpp"

namespace monoref::device {
namespace {

using u16 = std::uint16_t;

constexpr float kEps = 1e-6F;
constexpr u16 kPoison = 0xAAAA;

/// One way to launch: wave, blocks in x and y, threads a block, alignment of the buffers' bases.
struct Launch {
  int wave;
  std::uint32_t blocks, blocks_y, threads;
  std::size_t alignment;
};

class StepEnd : public ::testing::TestWithParam<Launch> {};

std::string launch_name(const ::testing::TestParamInfo<Launch>& launch) {
  const Launch& l = launch.param;
  return "wave" + std::to_string(l.wave) + "_" + std::to_string(l.blocks) + "x" +
         std::to_string(l.blocks_y) + "_of_" + std::to_string(l.threads) + "_at_" +
         std::to_string(l.alignment);
}
INSTANTIATE_TEST_SUITE_P(Grids, StepEnd,
                         ::testing::Values(Launch{64, 1, 1, 1024, 16}, Launch{64, 3, 2, 832, 2},
                                           Launch{32, 9, 1, 768, 8}, Launch{32, 2, 3, 1024, 16}),
                         launch_name);

template <class T>
T& at(std::vector<T>& values, i64 index) {
  return values.at(static_cast<std::size_t>(index));
}
template <class T>
const T& at(const std::vector<T>& values, i64 index) {
  return values.at(static_cast<std::size_t>(index));
}

/// Rows of hidden states and of residuals, with gaps behind them.
struct Rows {
  i64 rows;
  i32 width;
  i64 gap;
  std::vector<u16> hidden, residual, gamma;

  i64 stride() const { return width + gap; }
  std::vector<u16> poison() const { return std::vector<u16>(hidden.size(), kPoison); }

  Rows(i64 row_count, i32 row_width, i64 row_gap)
      : rows(row_count), width(row_width), gap(row_gap) {
    Draws draws(static_cast<std::uint64_t>(width + gap));
    for (i64 i = 0; i < rows * stride(); ++i) {
      hidden.push_back(encode_bf16(draws.number(-9, 2)));
      residual.push_back(encode_bf16(draws.number(-7, 3)));
    }
    for (i32 i = 0; i < width; ++i) {
      gamma.push_back(encode_bf16(draws.number(-5, -1)));
      at(hidden, stride() + i) = static_cast<u16>(i % 2 << 15);  // zeros of both signs
      at(residual, stride() + i) = 0x8000;
      at(hidden, 2 * stride() + i) = static_cast<u16>(i % 5);  // subnormals
      at(residual, 2 * stride() + i) = 0;
    }
    at(hidden, 3 * stride() + width / 2) = 0x7F80;
    at(residual, 3 * stride() + width / 2) = 0xFF80;  // a NaN
  }
};

/// v + v[lane xor 16], then 8, 4, 2, 1, over 32 numbers.
float butterfly(std::vector<float> v) {
  v.resize(32, 0.0F);
  for (std::size_t mask = 16; mask > 0; mask /= 2) {
    const std::vector<float> before = v;
    for (std::size_t i = 0; i < 32; ++i) v[i] = before[i] + before[i ^ mask];
  }
  return v[0];
}

std::vector<u16> norm_model(const Rows& r) {
  std::vector<u16> out = r.poison();
  for (i64 row = 0; row < r.rows; ++row) {
    std::vector<float> acc, threads, groups;
    for (i64 i = row * r.stride(); i < row * r.stride() + r.width; ++i)
      acc.push_back(decode_bf16(at(r.hidden, i)) + decode_bf16(at(r.residual, i)));
    for (i64 i = 0; i < r.width; ++i) {
      if (i % 8 == 0) threads.push_back(0.0F);
      threads.back() = std::fma(at(acc, i), at(acc, i), threads.back());
    }
    for (std::size_t t = 0; t < threads.size(); t += 32) {
      const std::size_t end = std::min(t + 32, threads.size());
      groups.push_back(butterfly({threads.begin() + static_cast<std::ptrdiff_t>(t),
                                  threads.begin() + static_cast<std::ptrdiff_t>(end)}));
    }
    const float mean = butterfly(groups) / static_cast<float>(r.width);
    const float rstd = 1.0F / std::sqrt(mean + kEps);
    for (i64 i = 0; i < r.width; ++i)
      at(out, row * r.stride() + i) =
          encode_bf16((at(acc, i) * rstd) * (decode_bf16(at(r.gamma, i)) + 1.0F));
  }
  return out;
}

std::vector<u16> norm_kernel(const Rows& r, const Launch& launch, std::uint32_t threads) {
  KernelBench bench(launch.wave, launch.alignment);
  const auto hidden = bench.add(r.hidden), residual = bench.add(r.residual);
  const auto gamma = bench.add(r.gamma), out = bench.add(r.poison());
  bench.launch("monoref_final_norm", grid_of(launch.blocks, threads), hidden, r.stride(), residual,
               r.stride(), gamma, out, r.stride(), r.rows, r.width, kEps);
  return bench.read<u16>(out);
}

TEST_P(StepEnd, FinalNorm) {
  // 1032: 129 logical threads, one of them alone in its group. 6144: the model's row.
  for (const i32 width : {8, 256, 1032, 6144})
    for (const i64 gap : {8, 3}) {
      const Rows r(6, width, gap);
      EXPECT_EQ(norm_kernel(r, GetParam(), GetParam().threads), norm_model(r)) << width;
    }
}

TEST_P(StepEnd, FinalNormOfOtherSizesAndBlocksWritesNothing) {
  for (const Rows& r : {Rows(4, 1036, 0), Rows(4, 8200, 0)})
    EXPECT_EQ(norm_kernel(r, GetParam(), 1024), r.poison()) << r.width;
  const Rows right(4, 1032, 0);
  EXPECT_EQ(norm_kernel(right, GetParam(), 128), right.poison());
  EXPECT_EQ(norm_kernel(right, GetParam(), 208), right.poison());
}

TEST_P(StepEnd, FinalNormInThePlaceOfTheHiddenStates) {
  const Rows r(5, 256, 0);
  KernelBench bench(GetParam().wave, GetParam().alignment);
  const auto hidden = bench.add(r.hidden), residual = bench.add(r.residual);
  const auto gamma = bench.add(r.gamma);
  bench.launch("monoref_final_norm", grid_of(2, 64), hidden, r.stride(), residual, r.stride(),
               gamma, hidden, r.stride(), r.rows, r.width, kEps);
  EXPECT_EQ(bench.read<u16>(hidden), norm_model(r));
}

std::vector<u16> state_kernel(const Rows& r, bool with_residual, const Launch& launch) {
  KernelBench bench(launch.wave, launch.alignment);
  const auto hidden = bench.add(r.hidden), residual = bench.add(r.residual);
  const auto out = bench.add(r.poison());
  const void* from = with_residual ? bench.address(residual) : nullptr;
  bench.launch("monoref_auxiliary_state", grid_of(launch.blocks, launch.threads, launch.blocks_y),
               hidden, r.stride(), from, r.stride(), out, r.stride(), r.rows, r.width);
  return bench.read<u16>(out);
}

TEST_P(StepEnd, AuxiliaryState) {
  for (const i32 width : {1, 8, 61, 1032, 6144})
    for (const i64 gap : {8, 3}) {
      const Rows r(6, width, gap);
      std::vector<u16> sums = r.poison(), copies = r.poison();
      for (i64 i = 0; i < r.rows * r.stride(); ++i) {
        if (i % r.stride() >= r.width) continue;
        at(sums, i) = encode_bf16(decode_bf16(at(r.hidden, i)) + decode_bf16(at(r.residual, i)));
        at(copies, i) = at(r.hidden, i);
      }
      EXPECT_EQ(state_kernel(r, true, GetParam()), sums) << width;
      EXPECT_EQ(state_kernel(r, false, GetParam()), copies) << width;
    }
}

TEST_P(StepEnd, StepCounter) {
  constexpr i32 kLast = std::numeric_limits<i32>::max();
  KernelBench bench(GetParam().wave, 4);
  const auto counter = bench.add<i32>({kLast - 1});
  for (const i32 expected : {kLast, -kLast - 1, -kLast}) {
    bench.launch("monoref_step_counter",
                 grid_of(GetParam().blocks, GetParam().threads, GetParam().blocks_y), counter);
    EXPECT_EQ(bench.read<i32>(counter), std::vector<i32>{expected});
  }
}

}  // namespace
}  // namespace monoref::device
