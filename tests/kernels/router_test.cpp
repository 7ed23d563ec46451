// The kernels of router and moe_route against plain loops over the specification's formulas
// (mono-decode section 7), on every way to launch them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "reference/arithmetic/portable.hpp"
#include "tests/kernels/bench.hpp"
#include "tests/kernels/number_model.hpp"

namespace monoref::device {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kLog2E = static_cast<float>(1.4426950408889634);
constexpr float kEps = 1e-6F;

/// One way to launch: wave, blocks in x and y, threads a block where a kernel leaves that open,
/// alignment of the buffers' bases.
struct Launch {
  int wave;
  u32 blocks, blocks_y, threads;
  std::size_t alignment;
};

class Router : public ::testing::TestWithParam<Launch> {};

std::string launch_name(const ::testing::TestParamInfo<Launch>& launch) {
  const Launch& l = launch.param;
  return "wave" + std::to_string(l.wave) + "_" + std::to_string(l.blocks) + "x" +
         std::to_string(l.blocks_y) + "_of_" + std::to_string(l.threads) + "_at_" +
         std::to_string(l.alignment);
}
INSTANTIATE_TEST_SUITE_P(Grids, Router,
                         ::testing::Values(Launch{64, 1, 1, 64, 16}, Launch{64, 7, 2, 256, 16},
                                           Launch{64, 3, 1, 192, 4}, Launch{32, 2, 1, 64, 16},
                                           Launch{32, 5, 3, 256, 4}),
                         launch_name);

template <class T>
T& at(std::vector<T>& values, i64 index) {
  return values.at(static_cast<std::size_t>(index));
}
template <class T>
const T& at(const std::vector<T>& values, i64 index) {
  return values.at(static_cast<std::size_t>(index));
}

std::vector<u32> stored(const std::vector<float>& values) {
  std::vector<u32> bits;
  for (const float value : values) bits.push_back(stored_bits(value));
  return bits;
}

/// v + v[lane xor 32], then 16, 8, 4, 2, 1.
float butterfly_of_64(std::vector<float> v) {
  for (std::size_t mask = 32; mask > 0; mask /= 2) {
    const std::vector<float> before = v;
    for (std::size_t i = 0; i < 64; ++i) v[i] = before[i] + before[i ^ mask];
  }
  return v[0];
}

// -------------------------------------------------------------------------------------------------

/// Rows for the norm, with gaps behind them.
struct NormCase {
  i64 rows;
  i32 hidden;
  bool rounded;
  i64 gap;
  std::vector<u16> sum, residual, gamma;

  i64 stride() const { return hidden + gap; }

  NormCase(i64 row_count, i32 hidden_size, bool norm_rounded, i64 row_gap)
      : rows(row_count), hidden(hidden_size), rounded(norm_rounded), gap(row_gap) {
    Draws draws(static_cast<std::uint64_t>(hidden + gap));
    for (i64 i = 0; i < rows * stride(); ++i) {
      sum.push_back(encode_bf16(draws.number(-9, 2)));
      residual.push_back(encode_bf16(draws.number(-7, 3)));
    }
    for (i32 i = 0; i < hidden; ++i) {
      gamma.push_back(encode_bf16(draws.number(-5, -1)));
      at(sum, stride() + i) = static_cast<u16>(i % 2 << 15);  // zeros of both signs
      at(residual, stride() + i) = 0x8000;
    }
    at(sum, 2 * stride() + hidden / 2) = 0x7F80;
    at(residual, 2 * stride() + hidden / 2) = 0xFF80;  // a NaN
  }
};

struct NormOutputs {
  std::vector<u16> h_mid, xn;
  bool operator==(const NormOutputs&) const = default;
};

NormOutputs norm_model(const NormCase& c) {
  const auto size = static_cast<std::size_t>(c.rows * c.stride());
  NormOutputs out{std::vector<u16>(size, 0xAAAA), std::vector<u16>(size, 0xAAAA)};
  for (i64 row = 0; row < c.rows; ++row) {
    std::vector<float> v;
    for (i64 i = 0; i < c.hidden; ++i) {
      const i64 k = row * c.stride() + i;
      v.push_back(decode_bf16(at(c.sum, k)) + decode_bf16(at(c.residual, k)));
      at(out.h_mid, k) = encode_bf16(v.back());
      if (c.rounded) v.back() = decode_bf16(at(out.h_mid, k));
    }
    const i64 owned = c.hidden / 512;
    float total = 0.0F;
    for (i64 wave = 0; wave < 8; ++wave) {
      std::vector<float> lanes(64, 0.0F);
      for (i64 k = 0; k < 64 * owned; ++k) {
        const float value = at(v, wave * 64 * owned + k);
        at(lanes, k / owned) = std::fma(value, value, at(lanes, k / owned));
      }
      total = wave == 0 ? butterfly_of_64(lanes) : total + butterfly_of_64(lanes);
    }
    const float rstd = 1.0F / std::sqrt(total / static_cast<float>(c.hidden) + kEps);
    for (i64 i = 0; i < c.hidden; ++i)
      at(out.xn, row * c.stride() + i) =
          encode_bf16((at(v, i) * rstd) * (decode_bf16(at(c.gamma, i)) + 1.0F));
  }
  return out;
}

NormOutputs norm_kernel(const NormCase& c, const Launch& launch, u32 threads) {
  KernelBench bench(launch.wave, launch.alignment);
  const auto sum = bench.add(c.sum), residual = bench.add(c.residual), gamma = bench.add(c.gamma);
  const auto h_mid = bench.add(std::vector<u16>(c.sum.size(), 0xAAAA));
  const auto xn = bench.add(std::vector<u16>(c.sum.size(), 0xAAAA));
  bench.launch("monoref_router_norm", grid_of(launch.blocks, threads), sum, c.stride(), residual,
               c.stride(), gamma, h_mid, c.stride(), xn, c.stride(), c.rows, c.hidden, kEps,
               i32{c.rounded});
  return {bench.read<u16>(h_mid), bench.read<u16>(xn)};
}

TEST_P(Router, Norm) {
  for (const i32 hidden : {512, 1536, 6144, 8192})
    for (const bool rounded : {false, true})
      for (const i64 gap : {8, 3}) {
        const NormCase c(5, hidden, rounded, gap);
        EXPECT_EQ(norm_kernel(c, GetParam(), 512), norm_model(c)) << hidden << " gap " << gap;
      }
}

TEST_P(Router, NormInThePlaceOfTheResidual) {
  const NormCase c(3, 1024, false, 0);
  KernelBench bench(GetParam().wave, GetParam().alignment);
  const auto sum = bench.add(c.sum), residual = bench.add(c.residual), gamma = bench.add(c.gamma);
  const auto xn = bench.add(std::vector<u16>(c.sum.size(), 0xAAAA));
  bench.launch("monoref_router_norm", grid_of(2, 512), sum, c.stride(), residual, c.stride(), gamma,
               residual, c.stride(), xn, c.stride(), c.rows, c.hidden, kEps, i32{0});
  EXPECT_EQ((NormOutputs{bench.read<u16>(residual), bench.read<u16>(xn)}), norm_model(c));
}

TEST_P(Router, NormOfOtherSizesAndBlocksWritesNothing) {
  const auto expect_nothing = [&](const NormCase& c, u32 threads) {
    const NormOutputs got = norm_kernel(c, GetParam(), threads);
    EXPECT_EQ(got.h_mid, std::vector<u16>(c.sum.size(), 0xAAAA)) << c.hidden << " " << threads;
    EXPECT_EQ(got.xn, std::vector<u16>(c.sum.size(), 0xAAAA)) << c.hidden << " " << threads;
  };
  expect_nothing(NormCase(3, 520, false, 0), 512);
  expect_nothing(NormCase(3, 256, false, 0), 512);
  expect_nothing(NormCase(3, 8704, false, 0), 512);
  expect_nothing(NormCase(3, 512, false, 0), 448);
}

// -------------------------------------------------------------------------------------------------

/// Operands of the gate. Large products cancel, so that the order of the sum shows.
struct GateCase {
  i64 rows;
  i32 experts, hidden;
  i64 gap;
  std::vector<u16> xn;
  std::vector<float> gate;  ///< bf16 numbers if the case is one of bf16 weights

  i64 stride() const { return hidden + gap; }

  GateCase(i64 row_count, i32 expert_count, i32 hidden_size, bool bf16_weights, i64 row_gap)
      : rows(row_count), experts(expert_count), hidden(hidden_size), gap(row_gap) {
    Draws draws(static_cast<std::uint64_t>(rows * hidden + gap));
    for (i64 i = 0; i < rows * stride(); ++i) xn.push_back(encode_bf16(draws.number(-4, 4)));
    for (i64 i = 0; i < experts * stride(); ++i) {
      const float weight = draws.number(-6, 6);
      gate.push_back(bf16_weights ? decode_bf16(encode_bf16(weight)) : weight);
    }
    at(gate, stride() + 9) = kInfinity;
    at(xn, (rows - 1) * stride() + hidden - 1) = 0x7FC1;
  }

  std::vector<u16> gate_codes() const {
    std::vector<u16> codes;
    for (const float weight : gate) codes.push_back(encode_bf16(weight));
    return codes;
  }
};

std::vector<u32> gate_model(const GateCase& c) {
  std::vector<float> logits;
  for (i64 row = 0; row < c.rows; ++row)
    for (i64 expert = 0; expert < c.experts; ++expert) {
      std::vector<float> lanes;
      for (i64 lane = 0; lane < 64; ++lane) {
        float a[4] = {};
        for (i64 i = 0; i < c.hidden / 512; ++i)
          for (i64 j = 0; j < 8; ++j) {
            const i64 k = (i * 64 + lane) * 8 + j;
            a[j / 2] = std::fma(at(c.gate, expert * c.stride() + k),
                                decode_bf16(at(c.xn, row * c.stride() + k)), a[j / 2]);
          }
        lanes.push_back((a[0] + a[1]) + (a[2] + a[3]));
      }
      logits.push_back(butterfly_of_64(lanes));
    }
  return stored(logits);
}

std::vector<u32> gate_kernel(const GateCase& c, bool bf16_weights, const Launch& launch) {
  KernelBench bench(launch.wave, launch.alignment);
  const auto xn = bench.add(c.xn);
  const auto gate = bf16_weights ? bench.add(c.gate_codes()) : bench.add(c.gate);
  const auto logits = bench.add(std::vector<u32>(static_cast<std::size_t>(c.rows * c.experts), 7));
  bench.launch(bf16_weights ? "monoref_router_gate" : "monoref_router_gate_f32",
               grid_of(launch.blocks, launch.threads, launch.blocks_y), xn, c.stride(), gate,
               c.stride(), logits, i64{c.experts}, c.rows, c.experts, c.hidden);
  return bench.read<u32>(logits);
}

TEST_P(Router, Gate) {
  for (const i64 rows : {1, 2, 3, 9, 21})
    for (const bool bf16_weights : {true, false}) {
      const GateCase c(rows, 5, rows == 9 ? 2560 : 1024, bf16_weights, rows == 3 ? 5 : 8);
      EXPECT_EQ(gate_kernel(c, bf16_weights, GetParam()), gate_model(c)) << rows;
    }
  const GateCase whole(2, 3, 6144, true, 0);
  EXPECT_EQ(gate_kernel(whole, true, GetParam()), gate_model(whole));
}

TEST_P(Router, GateOfOtherSizesAndBlocksWritesNothing) {
  const std::vector<u32> nothing(3 * 4, 7);
  EXPECT_EQ(gate_kernel(GateCase(3, 4, 520, true, 0), true, GetParam()), nothing);
  EXPECT_EQ(gate_kernel(GateCase(3, 4, 256, false, 0), false, GetParam()), nothing);
  Launch half = GetParam();
  half.threads = 96;
  EXPECT_EQ(gate_kernel(GateCase(3, 4, 512, true, 0), true, half), nothing);
}

// -------------------------------------------------------------------------------------------------

enum class Keys : i32 { kPacked = 0, kLowerId = 1, kHigherId = 2 };

/// Logits to be routed.
struct RouteCase {
  i64 rows = 1;
  i32 experts = 128, topk = 4;
  float scaling = 2.0F;
  bool renormalise = true, shared = true;
  float shared_weight = 1.0F;
  Keys keys = Keys::kPacked;
  bool nan_first = false, bf16_logits = true;
  std::vector<float> logits, bias;

  i64 slots() const { return topk + (shared ? 1 : 0); }
};

struct Routes {
  std::vector<i32> ids;
  std::vector<u32> weights;
  bool operator==(const Routes&) const = default;
};

float sigmoid(const RouteCase& c, float logit) {
  if (c.bf16_logits) logit = decode_bf16(encode_bf16(logit));
  return 1.0F / (1.0F + portable_exp2(-logit * kLog2E));
}

/// Whether expert a with key x comes before expert b with key y.
bool comes_before(const RouteCase& c, float x, i32 a, float y, i32 b) {
  const bool lower_first = c.keys != Keys::kHigherId;
  const bool by_id = lower_first ? a < b : a > b;
  if (std::isnan(x) || std::isnan(y)) {
    if (std::isnan(x) && std::isnan(y)) return by_id;
    return std::isnan(x) == c.nan_first;
  }
  if (c.keys == Keys::kPacked) {
    // What is left of the integer of a key without its low 7 bits; smaller ones of negative keys
    // are those of larger magnitude.
    const auto steps = [](float key) {
      const auto magnitude = static_cast<i64>(std::bit_cast<u32>(std::fabs(key)));
      return std::signbit(key) && key != 0.0F ? (-magnitude - 1) >> 7 : magnitude >> 7;
    };
    return steps(x) != steps(y) ? steps(x) > steps(y) : by_id;
  }
  return x != y ? x > y : by_id;
}

float pairwise_sum(std::vector<float> v) {
  v.resize(std::bit_ceil(v.size()), 0.0F);
  while (v.size() > 1) {
    for (std::size_t i = 0; i < v.size() / 2; ++i) v[i] = v[2 * i] + v[2 * i + 1];
    v.resize(v.size() / 2);
  }
  return v[0];
}

Routes route_model(const RouteCase& c) {
  Routes routes;
  for (i64 row = 0; row < c.rows; ++row) {
    std::vector<float> scores, keys, selected;
    for (i64 e = 0; e < c.experts; ++e) {
      scores.push_back(sigmoid(c, at(c.logits, row * c.experts + e)));
      keys.push_back(scores.back() + at(c.bias, e));
    }
    std::vector<i32> order(static_cast<std::size_t>(c.experts));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](i32 a, i32 b) { return comes_before(c, at(keys, a), a, at(keys, b), b); });
    for (i64 slot = 0; slot < c.topk; ++slot) selected.push_back(at(scores, at(order, slot)));
    const float sum = pairwise_sum(selected);
    const float floored = std::isnan(sum) || sum > 1e-20F ? sum : 1e-20F;
    const float factor = c.renormalise ? c.scaling / floored : c.scaling;
    for (i64 slot = 0; slot < c.topk; ++slot) {
      routes.ids.push_back(at(order, slot));
      routes.weights.push_back(stored_bits(at(selected, slot) * factor));
    }
    if (!c.shared) continue;
    routes.ids.push_back(c.experts);
    routes.weights.push_back(stored_bits(c.shared_weight));
  }
  return routes;
}

Routes route_kernel(const RouteCase& c, const Launch& launch) {
  KernelBench bench(launch.wave, launch.alignment);
  const auto logits = bench.add(c.logits), bias = bench.add(c.bias);
  const auto size = static_cast<std::size_t>(c.rows * c.slots());
  const auto ids = bench.add(std::vector<i32>(size, -7));
  const auto weights = bench.add(std::vector<u32>(size, 7));
  bench.launch("monoref_moe_route", grid_of(launch.blocks, launch.threads), logits, i64{c.experts},
               bias, ids, c.slots(), weights, c.slots(), c.rows, c.experts, c.topk, c.scaling,
               i32{c.renormalise}, i32{c.shared}, c.shared_weight, static_cast<i32>(c.keys),
               i32{c.nan_first}, i32{c.bf16_logits});
  return {bench.read<i32>(ids), bench.read<u32>(weights)};
}

/// One row: `logits` for the first experts, `rest` for the others; no bias.
RouteCase route_row(i32 experts, i32 topk, const std::vector<float>& logits, float rest) {
  RouteCase c;
  c.experts = experts;
  c.topk = topk;
  c.logits = logits;
  c.logits.resize(static_cast<std::size_t>(experts), rest);
  c.bias.assign(static_cast<std::size_t>(experts), 0.0F);
  return c;
}

/// Rows of which some have plateaus, near ties, saturated and special logits.
RouteCase route_rows(i32 experts, i32 topk, int options) {
  RouteCase c;
  c.rows = 9;
  c.experts = experts;
  c.topk = topk;
  c.renormalise = (options & 1) == 0;
  c.shared = (options & 2) == 0;
  c.nan_first = (options & 4) != 0;
  c.bf16_logits = (options & 8) == 0;
  c.scaling = (options & 16) == 0 ? 2.0F : 1.37F;
  c.shared_weight = (options & 16) == 0 ? 1.0F : 0.73F;
  Draws draws(static_cast<std::uint64_t>(experts * 100 + topk * 37 + options));
  for (i64 row = 0; row < c.rows; ++row)
    for (i64 e = 0; e < experts; ++e) {
      float logit = draws.number(-3, 1);
      if (row == 1) logit = 0.5F + static_cast<float>(draws.below(8)) * 0x1p-12F;
      if (row == 2) logit = draws.below(3) == 0 ? 1.0F : -1.0F;
      if (row == 3) logit = std::vector<float>{-100.0F, -50.0F, 20.0F, 200.0F}[draws.bits() % 4];
      if (row == 4) logit = draws.below(4) == 0 ? float_from_bits(0xFFC12345) : logit;
      if (row == 5) logit = float_from_bits(kNanBits);
      if (row == 6) logit = draws.below(2) == 0 ? kInfinity : -kInfinity;
      c.logits.push_back(logit);
    }
  for (i64 e = 0; e < experts; ++e)
    c.bias.push_back(draws.number(options % 3 == 0 ? -12 : -3, options % 3 == 1 ? 3 : -1));
  if (options % 5 == 1) at(c.bias, experts / 2) = float_from_bits(kNanBits);
  if (options % 5 == 2) at(c.bias, experts / 3) = -kInfinity;
  return c;
}

TEST_P(Router, Routes) {
  for (int options = 0; options < 32; ++options)
    for (const Keys keys : {Keys::kPacked, Keys::kLowerId, Keys::kHigherId}) {
      for (const i32 experts : {8, 100, 128}) {
        RouteCase c = route_rows(experts, 1 + options % 8, options);
        c.keys = keys;
        EXPECT_EQ(route_kernel(c, GetParam()), route_model(c)) << experts << " " << options;
      }
      if (keys == Keys::kPacked || options % 4 != 0) continue;
      for (const i32 experts : {129, 256, 1024}) {
        RouteCase c = route_rows(experts, 8, options);
        c.keys = keys;
        EXPECT_EQ(route_kernel(c, GetParam()), route_model(c)) << experts << " " << options;
      }
    }
}

/// The floats that bits stand for.
std::vector<float> numbers(const std::vector<u32>& bits) {
  std::vector<float> values;
  for (const u32 word : bits) values.push_back(float_from_bits(word));
  return values;
}

TEST_P(Router, WeightsOfUnderflowingScoresAreZero) {
  // Bug case M01: sigmoid(-200) is 0, and the bias alone selects.
  RouteCase c = route_row(8, 2, {}, -200.0F);
  at(c.bias, 5) = 3.0F;
  at(c.bias, 2) = 2.0F;
  const Routes got = route_kernel(c, GetParam());
  EXPECT_EQ(got.ids, (std::vector<i32>{5, 2, 8}));
  EXPECT_EQ(numbers(got.weights), (std::vector<float>{0.0F, 0.0F, 1.0F}));
}

TEST_P(Router, WeightsDoNotGoThroughTheBias) {
  // Bug case M02: scores of 1e-7 next to a bias of 12.
  RouteCase c = route_row(8, 2, {-16.125F, -16.125F}, -30.0F);
  c.scaling = 1.0F;
  at(c.bias, 0) = at(c.bias, 1) = 12.0F;
  const Routes got = route_kernel(c, GetParam());
  EXPECT_EQ(got.ids, (std::vector<i32>{0, 1, 8}));
  EXPECT_EQ(numbers(got.weights), (std::vector<float>{0.5F, 0.5F, 1.0F}));
}

TEST_P(Router, RowsOfNanHaveDistinctIdsInRange) {
  // Bug case M04.
  for (const Keys keys : {Keys::kPacked, Keys::kLowerId, Keys::kHigherId})
    for (const bool first : {false, true}) {
      RouteCase c = route_row(8, 8, {}, float_from_bits(kNanBits));
      c.keys = keys;
      c.nan_first = first;
      c.shared = false;
      std::vector<i32> ids = route_kernel(c, GetParam()).ids;
      if (keys == Keys::kHigherId) std::reverse(ids.begin(), ids.end());
      EXPECT_EQ(ids, (std::vector<i32>{0, 1, 2, 3, 4, 5, 6, 7}));
    }
}

TEST_P(Router, NanBiasIsNotSelected) {
  // Bug case M05.
  RouteCase c = route_row(8, 7, {}, 0.25F);
  at(c.bias, 3) = float_from_bits(kNanBits);
  EXPECT_EQ(route_kernel(c, GetParam()).ids, (std::vector<i32>{0, 1, 2, 4, 5, 6, 7, 8}));
}

TEST_P(Router, RenormaliseAndScalingAreIndependent) {
  // Bug cases M07, M11, M12: scores of 1 and 1/2, a factor of 2.5, each flag by itself.
  RouteCase c = route_row(8, 2, {200.0F, 0.0F}, -200.0F);
  c.shared_weight = 0.75F;
  for (const float scaling : {1.0F, 2.5F})
    for (const bool renormalise : {false, true}) {
      c.scaling = scaling;
      c.renormalise = renormalise;
      const float factor = renormalise ? scaling / 1.5F : scaling;
      const Routes got = route_kernel(c, GetParam());
      EXPECT_EQ(got.ids, (std::vector<i32>{0, 1, 8}));
      EXPECT_EQ(numbers(got.weights), (std::vector<float>{factor, 0.5F * factor, 0.75F}));
    }
}

TEST_P(Router, NearTiesGoToTheLowerExpertWithPackedKeysOnly) {
  // 0.5 + 5 * 2^-24 and 0.5 differ below the 7 bits that the expert takes.
  RouteCase c = route_row(128, 2, {}, 0.0F);
  at(c.bias, 90) = 5 * 0x1p-24F;
  EXPECT_EQ(route_kernel(c, GetParam()).ids, (std::vector<i32>{0, 1, 128}));
  c.keys = Keys::kLowerId;
  EXPECT_EQ(route_kernel(c, GetParam()).ids, (std::vector<i32>{90, 0, 128}));
  c.keys = Keys::kHigherId;
  EXPECT_EQ(route_kernel(c, GetParam()).ids, (std::vector<i32>{90, 127, 128}));
}

TEST_P(Router, RoutesOfOtherSizesAndBlocksAreNotWritten) {
  const auto expect_nothing = [&](const RouteCase& c, const Launch& launch) {
    const Routes got = route_kernel(c, launch);
    EXPECT_EQ(got.ids, std::vector<i32>(got.ids.size(), -7));
    EXPECT_EQ(got.weights, std::vector<u32>(got.weights.size(), 7));
  };
  const RouteCase right = route_row(128, 4, {}, 0.0F);
  for (const i32 topk : {0, 9}) {
    RouteCase c = right;
    c.topk = topk;
    expect_nothing(c, GetParam());
  }
  expect_nothing(route_row(3, 4, {}, 0.0F), GetParam());
  expect_nothing(route_row(129, 4, {}, 0.0F), GetParam());
  RouteCase many = route_row(1025, 4, {}, 0.0F);
  many.keys = Keys::kLowerId;
  expect_nothing(many, GetParam());
  RouteCase unknown = right;
  unknown.keys = static_cast<Keys>(3);
  expect_nothing(unknown, GetParam());
  Launch partial = GetParam();
  partial.threads = 48;
  expect_nothing(right, partial);
}

}  // namespace
}  // namespace monoref::device
