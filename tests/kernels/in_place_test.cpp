// Norms that write where they read: what the fuzzer, whose buffers are apart, never asks of them.
#include <algorithm>

#include "device/launch/final_norm.hpp"
#include "device/launch/router.hpp"
#include "tests/kernels/bench.hpp"

namespace monoref::device {
namespace {

constexpr i64 kRows = 3;
constexpr i64 kHidden = 1024;
using Row = std::vector<std::uint16_t>;

/// BF16 numbers of both signs from 2^-16 on, other ones for every `seed`.
Row numbers(i64 count, std::uint32_t seed) {
  Row made(static_cast<std::size_t>(count));
  std::generate(made.begin(), made.end(), [&seed] {
    seed = seed * 1664525U + 1013904223U;
    return static_cast<std::uint16_t>((seed >> 16 & 0x87FF) + 0x3780);
  });
  return made;
}

class InPlace : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Waves, InPlace, ::testing::Values(64, 32),
                         [](const auto& wave) { return "wave" + std::to_string(wave.param); });

TEST_P(InPlace, FinalNormOverTheHiddenStates) {
  const auto normed = [](bool in_place) {
    KernelBench bench(GetParam());
    const auto hidden = bench.add(numbers(kRows * kHidden, 1));
    const auto residual = bench.add(numbers(kRows * kHidden, 2));
    const auto gamma = bench.add(numbers(kHidden, 3));
    const auto apart = bench.add(Row(kRows * kHidden, 0xAAAA));
    const auto out = in_place ? hidden : apart;
    bench.run(launch::FinalNorm{.hidden_states = bench.at<const std::uint16_t>(hidden),
                                .hidden_row_stride = kHidden,
                                .residual = bench.at<const std::uint16_t>(residual),
                                .residual_row_stride = kHidden,
                                .gamma = bench.at<const std::uint16_t>(gamma),
                                .out = bench.at<std::uint16_t>(out),
                                .out_row_stride = kHidden,
                                .rows = kRows,
                                .hidden = kHidden,
                                .eps = 1e-6F},
              {.blocks_x = 2});
    return bench.read<std::uint16_t>(out);
  };
  const Row apart = normed(false);
  EXPECT_NE(apart, Row(kRows * kHidden, 0xAAAA));
  EXPECT_EQ(normed(true), apart);
}

TEST_P(InPlace, RouterNormOverTheResidual) {
  const auto normed = [](bool in_place) {
    KernelBench bench(GetParam());
    const auto sum = bench.add(numbers(kRows * kHidden, 4));
    const auto residual = bench.add(numbers(kRows * kHidden, 5));
    const auto gamma = bench.add(numbers(kHidden, 6));
    const auto apart = bench.add(Row(kRows * kHidden, 0xAAAA));
    const auto xn = bench.add(Row(kRows * kHidden, 0xAAAA));
    const auto h_mid = in_place ? residual : apart;
    bench.run(launch::RouterNorm{.sum = bench.at<const std::uint16_t>(sum),
                                 .sum_row_stride = kHidden,
                                 .residual = bench.at<const std::uint16_t>(residual),
                                 .residual_row_stride = kHidden,
                                 .gamma = bench.at<const std::uint16_t>(gamma),
                                 .h_mid = bench.at<std::uint16_t>(h_mid),
                                 .h_mid_row_stride = kHidden,
                                 .xn = bench.at<std::uint16_t>(xn),
                                 .xn_row_stride = kHidden,
                                 .rows = kRows,
                                 .hidden = kHidden,
                                 .eps = 1e-6F,
                                 .norm_input = 0},
              {.blocks_x = 2});
    return std::pair(bench.read<std::uint16_t>(h_mid), bench.read<std::uint16_t>(xn));
  };
  const auto apart = normed(false);
  EXPECT_NE(apart.second, Row(kRows * kHidden, 0xAAAA));
  EXPECT_EQ(normed(true), apart);
}

}  // namespace
}  // namespace monoref::device
