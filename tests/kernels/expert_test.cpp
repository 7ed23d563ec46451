// A witness of its own for the kernel whose order of sums is the hardest: expert_down against plain
// loops over the specification's formulas (mono-decode sections 7, 9 and 10, upstream-semantics
// section 7.6). All other kernels are held against the reference by the fuzzer alone, which draws
// the grids too.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "device/launch/expert_down.hpp"
#include "tests/kernels/bench.hpp"
#include "tests/kernels/number_model.hpp"

namespace monoref::device {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;

constexpr u16 kUntouched = 0x5555;

/// One way to launch: wave, and blocks.
struct Launch {
  int wave;
  u32 blocks;
};

class Experts : public ::testing::TestWithParam<Launch> {};

INSTANTIATE_TEST_SUITE_P(Grids, Experts, ::testing::Values(Launch{64, 5}, Launch{32, 2}),
                         [](const auto& launch) {
                           return "wave" + std::to_string(launch.param.wave) + "_" +
                                  std::to_string(launch.param.blocks);
                         });

template <class T>
T& at(std::vector<T>& values, i64 index) {
  return values.at(static_cast<std::size_t>(index));
}
template <class T>
const T& at(const std::vector<T>& values, i64 index) {
  return values.at(static_cast<std::size_t>(index));
}

/// `count` elements of `value`.
template <class T>
std::vector<T> filled(i64 count, T value) {
  return std::vector<T>(static_cast<std::size_t>(count), value);
}

/// 2^(byte - 127), or what else a scale byte stands for.
float decode_scale(u8 byte, bool zero_is_zero) {
  if (byte == 255) return float_from_bits(kNanBits);
  if (byte == 0 && zero_is_zero) return 0.0F;
  return std::ldexp(1.0F, byte - 127);
}

/// E4M3FN, which MX codes of eight bits are.
float decode_e4m3(int code) {
  static const E4m3Model format(false, false);
  return format.decode(code);
}

float decode_e2m1(int code) {
  constexpr float kMagnitudes[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  return (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}
// ---------------------------------------------------------------------------------------------
// Weights

/// shuffle_weight(16, 16): view [N / 16, 16, K / 32, 2, 16] permuted to (0, 2, 3, 1, 4).
std::vector<u8> shuffled_codes(const std::vector<u8>& plain, i64 rows, i64 row_bytes) {
  std::vector<u8> out;
  for (i64 tile = 0; tile < rows / 16; ++tile)
    for (i64 group = 0; group < row_bytes / 32; ++group)
      for (i64 half = 0; half < 2; ++half)
        for (i64 row = 0; row < 16; ++row)
          for (i64 byte = 0; byte < 16; ++byte)
            out.push_back(at(plain, (tile * 16 + row) * row_bytes + group * 32 + half * 16 + byte));
  return out;
}

/// shuffle_scale: view [rows / 32, 2, 16, columns / 8, 2, 4] permuted to (0, 3, 5, 2, 4, 1).
std::vector<u8> shuffled_scales(const std::vector<u8>& plain, i64 rows, i64 columns) {
  std::vector<u8> out;
  for (i64 tile = 0; tile < rows / 32; ++tile)
    for (i64 group = 0; group < columns / 8; ++group)
      for (i64 column = 0; column < 4; ++column)
        for (i64 row = 0; row < 16; ++row)
          for (i64 half = 0; half < 2; ++half)
            for (i64 upper = 0; upper < 2; ++upper)
              out.push_back(at(
                  plain, (tile * 32 + upper * 16 + row) * columns + group * 8 + half * 4 + column));
  return out;
}

/// A stack of experts: plain codes and scales, from which the layouts are made.
struct Stack {
  i64 experts, rows, k;
  bool fp4;
  std::vector<u8> codes, scales;  // [experts, rows, row_bytes()], [experts, rows, k / 32]

  i64 row_bytes() const { return fp4 ? k / 2 : k; }
  i64 scale_columns() const { return (k / 32 + 7) / 8 * 8; }

  /// The weights themselves, [experts, rows, k].
  std::vector<float> values(bool zero_is_zero) const {
    std::vector<float> out;
    for (i64 i = 0; i < experts * rows * k; ++i) {
      const float scale = decode_scale(at(scales, i / 32), zero_is_zero);
      if (fp4)
        out.push_back(decode_e2m1(at(codes, i / 2) >> (i % 2 == 0 ? 0 : 4) & 0xF) * scale);
      else
        out.push_back(decode_e4m3(at(codes, i)) * scale);
    }
    return out;
  }

  std::vector<u8> stored_codes() const {
    std::vector<u8> out;
    for (i64 e = 0; e < experts; ++e) {
      const auto first = codes.begin() + e * rows * row_bytes();
      const auto one = shuffled_codes({first, first + rows * row_bytes()}, rows, row_bytes());
      out.insert(out.end(), one.begin(), one.end());
    }
    return out;
  }

  /// With 0xFF, NaN, in the columns of padding (bug case X01).
  std::vector<u8> stored_scales() const {
    std::vector<u8> padded;
    for (i64 row = 0; row < experts * rows; ++row)
      for (i64 column = 0; column < scale_columns(); ++column)
        padded.push_back(column < k / 32 ? at(scales, row * (k / 32) + column) : u8{0xFF});
    return shuffled_scales(padded, experts * rows, scale_columns());
  }
};

/// Codes and scales of which no two neighbours are alike. `wild`: some are NaN or extreme.
u8 drawn_code(Draws& draws, bool fp4, bool wild) {
  const auto code = static_cast<u8>(draws.below(256));
  if (fp4 || (code & 0x7F) != 0x7F) return code;
  return wild && draws.below(200) == 0 ? code : u8{0x3C};
}
u8 drawn_scale(Draws& draws, bool wild) {
  constexpr u8 kWild[] = {0, 1, 254, 255, 134, 247, 2};
  if (wild && draws.below(300) == 0) return kWild[draws.below(7)];
  return static_cast<u8>(114 + draws.below(17));
}

Stack drawn_stack(i64 experts, i64 rows, i64 k, bool fp4, bool wild, u32 seed) {
  Draws draws(seed);
  Stack stack{experts, rows, k, fp4, {}, {}};
  for (i64 i = 0; i < experts * rows * stack.row_bytes(); ++i)
    stack.codes.push_back(drawn_code(draws, fp4, wild));
  for (i64 i = 0; i < experts * rows * (k / 32); ++i)
    stack.scales.push_back(drawn_scale(draws, wild));
  return stack;
}

/// The experts of a step, and who is routed to them.
struct Routing {
  enum Shared { kNone, kFused, kSeparate };

  i64 rows, slots;
  i64 n_routed;
  Shared shared;
  std::vector<i32> ids;  // [rows, slots]

  i64 experts() const { return n_routed + (shared == kFused ? 1 : 0); }
  bool names_expert(i32 id) const { return id >= 0 && id < n_routed + (shared == kNone ? 0 : 1); }
};

/// Distinct experts a row, the shared one last if there is one; `bad`: some ids name no expert.
Routing drawn_routing(i64 rows, i64 slots, i64 n_routed, Routing::Shared shared, bool bad) {
  Draws draws(static_cast<std::uint64_t>(rows * 64 + slots));
  Routing routing{rows, slots, n_routed, shared, {}};
  const i32 kBad[] = {-1, static_cast<i32>(n_routed + 1), 1 << 30, std::numeric_limits<i32>::min(),
                      std::numeric_limits<i32>::max()};
  for (i64 row = 0; row < rows; ++row) {
    std::set<i32> taken;
    for (i64 slot = 0; slot < slots; ++slot) {
      i32 id = static_cast<i32>(n_routed);
      if (shared == Routing::kNone || slot < slots - 1) do
          id = draws.below(static_cast<int>(n_routed));
        while (!taken.insert(id).second);
      if (bad && draws.below(4) == 0) id = kBad[draws.below(5)];
      routing.ids.push_back(id);
    }
  }
  return routing;
}
// ---------------------------------------------------------------------------------------------
// expert_down

struct DownCase {
  Routing routing;
  i64 hidden, inter;
  bool zero_is_zero = false;
  i32 wide_from = 5;
  bool scales_output = false;
  float scaling = 2.0F;
  std::vector<u8> mid8, mid_scale;  // [rows, slots, inter], [rows, slots, inter / 32]
  std::vector<float> weights;       // [rows, slots]
  Stack w2;
  std::optional<Stack> shared_w2;

  DownCase(const Routing& the_routing, i64 the_hidden, i64 the_inter, bool fp4, bool wild)
      : routing(the_routing),
        hidden(the_hidden),
        inter(the_inter),
        w2(drawn_stack(routing.experts(), hidden, inter, fp4, wild, 4)) {
    Draws draws(5);
    for (i64 i = 0; i < pairs() * inter; ++i) mid8.push_back(drawn_code(draws, false, wild));
    for (i64 i = 0; i < pairs() * inter / 32; ++i) mid_scale.push_back(drawn_scale(draws, wild));
    for (i64 pair = 0; pair < pairs(); ++pair)
      weights.push_back(is_shared(pair) ? 1.0F : std::fabs(draws.number(-4, 0)));
    if (routing.shared == Routing::kSeparate)
      shared_w2 = drawn_stack(1, hidden, inter, false, wild, 6);
  }

  i64 pairs() const { return routing.rows * routing.slots; }
  i64 steps() const { return inter / 128; }
  /// True if a pair is the shared expert's: it stands in the last slot.
  bool is_shared(i64 pair) const {
    return routing.shared != Routing::kNone && at(routing.ids, pair) == routing.n_routed &&
           pair % routing.slots == routing.slots - 1;
  }
  /// The expert of a pair, or none.
  std::optional<i32> expert(i64 pair) const {
    const i32 id = at(routing.ids, pair);
    if (id == routing.n_routed ? !is_shared(pair) : !routing.names_expert(id)) return std::nullopt;
    return id;
  }
};

/// The case's operands as numbers.
struct DownNumbers {
  const DownCase& c;
  std::vector<float> mid, routed, separate;

  explicit DownNumbers(const DownCase& the_case)
      : c(the_case), routed(c.w2.values(c.zero_is_zero)) {
    for (i64 i = 0; i < c.pairs() * c.inter; ++i)
      mid.push_back(decode_e4m3(at(c.mid8, i)) *
                    decode_scale(at(c.mid_scale, i / 32), c.zero_is_zero));
    if (c.shared_w2) separate = c.shared_w2->values(c.zero_is_zero);
  }

  /// A step of a row of an expert's W2 times that of a pair, or of zeros.
  float dot(i32 expert, i64 row, i64 step, std::optional<i64> pair) const {
    const bool is_separate = expert == c.routing.n_routed && c.shared_w2;
    const float* w = is_separate ? separate.data() : routed.data() + expert * c.hidden * c.inter;
    w += row * c.inter + step * 128;
    float sum = 0.0F;
    for (i64 k = 0; k < 128; ++k)
      sum = std::fma(pair ? at(mid, *pair * c.inter + step * 128 + k) : 0.0F, w[k], sum);
    return sum;
  }
};

/// Accumulators of a row: the waves' for routed experts, then for the shared one.
struct WaveSums {
  float routed[4] = {}, shared[4] = {};

  float total(const DownCase& c) const {
    float sum = 0.0F, shared_sum = 0.0F;
    for (const float part : routed) sum += part;
    if (!c.scales_output) {
      for (const float part : shared) sum += part;
      return sum;
    }
    for (const float part : shared) shared_sum += part;
    return sum * c.scaling + shared_sum;
  }
};

/// Adds `count` units to four waves, unit j to wave j mod 4; every wave gets as many as the first,
/// with the last unit once more, at weight 0, for those that do not exist.
template <class Unit>
void add_narrow(i64 count, float (&waves)[4], const Unit& unit) {
  for (i64 j = 0; j < (count + 3) / 4 * 4; ++j) {
    const std::optional<std::pair<float, float>> product = unit(std::min(j, count - 1));
    if (product) waves[j % 4] += product->first * (j < count ? product->second : 0.0F);
  }
}

WaveSums narrow_sums(const DownNumbers& n, i64 token, i64 row) {
  const DownCase& c = n.c;
  const i64 first = token * c.routing.slots, last = first + c.routing.slots - 1;
  const i64 routed_slots = c.routing.slots - (c.is_shared(last) ? 1 : 0);
  const auto unit = [&](i64 pair, i64 step) -> std::optional<std::pair<float, float>> {
    if (!c.expert(pair)) return std::nullopt;
    return std::pair{n.dot(*c.expert(pair), row, step, pair), at(c.weights, pair)};
  };
  WaveSums sums;
  add_narrow(routed_slots * c.steps(), sums.routed,
             [&](i64 j) { return unit(first + j / c.steps(), j % c.steps()); });
  if (c.is_shared(last)) add_narrow(c.steps(), sums.shared, [&](i64 j) { return unit(last, j); });
  return sums;
}

WaveSums wide_sums(const DownNumbers& n, i64 token, i64 row) {
  const DownCase& c = n.c;
  std::set<i32> experts;
  for (i64 pair = 0; pair < c.pairs(); ++pair)
    if (c.expert(pair)) experts.insert(*c.expert(pair));
  WaveSums sums;
  i64 j = 0;
  for (const i32 expert : experts) {
    std::optional<i64> routed;
    for (i64 slot = 0; slot < c.routing.slots; ++slot)
      if (c.expert(token * c.routing.slots + slot) == expert)
        routed = token * c.routing.slots + slot;
    for (i64 step = 0; step < c.steps(); ++step, ++j) {
      const bool apart = c.scales_output && expert == c.routing.n_routed;
      const float weight = routed ? at(c.weights, *routed) : 0.0F;
      (apart ? sums.shared : sums.routed)[j % 4] += n.dot(expert, row, step, routed) * weight;
    }
  }
  return sums;
}

std::vector<u16> down_model(const DownCase& c) {
  const DownNumbers numbers(c);
  std::vector<u16> partial;
  for (i64 token = 0; token < c.routing.rows; ++token)
    for (i64 row = 0; row < c.hidden; ++row)
      partial.push_back(
          encode_bf16((c.routing.rows >= c.wide_from ? wide_sums(numbers, token, row)
                                                     : narrow_sums(numbers, token, row))
                          .total(c)));
  return partial;
}

std::vector<u16> down_kernel(const DownCase& c, const Launch& launch, u32 threads) {
  KernelBench bench(launch.wave);
  const auto mid8 = bench.add(c.mid8), mid_scale = bench.add(c.mid_scale);
  const auto ids = bench.add(c.routing.ids), weights = bench.add(c.weights);
  const auto w2 = bench.add(c.w2.stored_codes()), s2 = bench.add(c.w2.stored_scales());
  const auto partial = bench.add(filled<u16>(c.routing.rows * c.hidden, kUntouched));
  std::optional<KernelBench::Buffer> shared_w2, shared_s2;
  if (c.shared_w2) {
    shared_w2 = bench.add(c.shared_w2->stored_codes());
    shared_s2 = bench.add(c.shared_w2->stored_scales());
  }
  const auto bytes = [&](std::optional<KernelBench::Buffer> buffer) {
    return buffer ? bench.at<const u8>(*buffer) : nullptr;
  };
  bench.run_on(grid_of(launch.blocks, threads),
               launch::ExpertDown{.mid8 = bytes(mid8),
                                  .mid_scale = bytes(mid_scale),
                                  .topk_ids = bench.at<const i32>(ids),
                                  .topk_weights = bench.at<const float>(weights),
                                  .w2 = bytes(w2),
                                  .s2 = bytes(s2),
                                  .shared_w2 = bytes(shared_w2),
                                  .shared_s2 = bytes(shared_s2),
                                  .partial = bench.at<u16>(partial),
                                  .rows = c.routing.rows,
                                  .slots = c.routing.slots,
                                  .inter = c.inter,
                                  .hidden = c.hidden,
                                  .experts = c.routing.experts(),
                                  .n_routed = c.routing.n_routed,
                                  .weights = c.w2.fp4,
                                  .e8m0_zero = c.zero_is_zero,
                                  .wide_from = c.wide_from,
                                  .routed_scaling = c.scales_output,
                                  .scaling = c.scaling});
  return bench.read<u16>(partial);
}

void expect_down(const DownCase& c, const Launch& launch) {
  const std::vector<u16> expected = down_model(c);
  for (const u32 threads : {64U, 128U})
    EXPECT_EQ(down_kernel(c, launch, threads), expected) << threads << " threads";
}

TEST_P(Experts, DownNarrow) {
  // Steps that fill the waves and steps that do not: padding in the routed units, in the shared
  // expert's, and in both.
  for (const bool fp4 : {false, true}) {
    for (const i64 inter : {128, 384, 512})
      expect_down({drawn_routing(3, 4, 6, Routing::kSeparate, false), 32, inter, fp4, false},
                  GetParam());
    expect_down({drawn_routing(1, 5, 8, Routing::kFused, false), 64, 768, fp4, false}, GetParam());
    expect_down({drawn_routing(4, 3, 6, Routing::kNone, false), 32, 256, fp4, false}, GetParam());
  }
}

TEST_P(Experts, DownWide) {
  for (const bool fp4 : {false, true}) {
    for (const i64 inter : {128, 384, 512})
      expect_down({drawn_routing(6, 4, 7, Routing::kSeparate, false), 32, inter, fp4, false},
                  GetParam());
    expect_down({drawn_routing(16, 5, 5, Routing::kFused, false), 32, 768, fp4, false}, GetParam());
    expect_down({drawn_routing(5, 3, 6, Routing::kNone, false), 64, 256, fp4, false}, GetParam());
  }
}

TEST_P(Experts, DownOfMoreTokensThanATileTakes) {
  for (const i32 wide_from : {5, 100}) {
    DownCase c(drawn_routing(35, 3, 9, Routing::kSeparate, false), 32, 256, true, false);
    c.wide_from = wide_from;
    expect_down(c, GetParam());
  }
}

TEST_P(Experts, DownWithTheFactorOnTheOutput) {
  // Bug cases M11 and M12: once on the routed part, and not on the shared one.
  for (const i64 rows : {2, 6}) {
    for (const Routing::Shared shared : {Routing::kNone, Routing::kFused, Routing::kSeparate}) {
      DownCase c(drawn_routing(rows, 3, 5, shared, false), 32, 384, true, false);
      c.scales_output = true;
      c.scaling = 2.5F;
      expect_down(c, GetParam());
    }
  }
}

TEST_P(Experts, DownOfIdsThatNameNoExpert) {
  for (const i64 rows : {3, 9})
    for (const Routing::Shared shared : {Routing::kNone, Routing::kFused, Routing::kSeparate})
      expect_down({drawn_routing(rows, 4, 6, shared, true), 32, 128, true, false}, GetParam());
}

TEST_P(Experts, DownOfNansAndExtremeScales) {
  for (const i64 rows : {2, 6}) {
    for (const bool fp4 : {false, true}) {
      for (const bool zero_is_zero : {false, true}) {
        DownCase c(drawn_routing(rows, 3, 5, Routing::kSeparate, false), 64, 256, fp4, true);
        c.zero_is_zero = zero_is_zero;
        const std::vector<u16> expected = down_model(c);
        EXPECT_NE(std::count(expected.begin(), expected.end(), u16{0x7FC0}), 0);
        EXPECT_LT(std::count(expected.begin(), expected.end(), u16{0x7FC0}),
                  static_cast<i64>(expected.size()));
        expect_down(c, GetParam());
      }
    }
  }
}

/// A case of 32 weight rows whose mid is 1 in the first column of every step and else 0. Unit
/// (expert, step) has the value `values[expert][step]`, +-2^n, in row 0 of the weights.
DownCase hand_made_down(const Routing& routing, const std::vector<std::vector<float>>& values) {
  const auto steps = static_cast<i64>(values.at(0).size());
  DownCase c(routing, 32, steps * 128, false, false);
  for (i64 i = 0; i < c.pairs() * c.inter; ++i) at(c.mid8, i) = i % 128 == 0 ? 0x38 : 0;
  std::fill(c.mid_scale.begin(), c.mid_scale.end(), u8{127});
  std::fill(c.weights.begin(), c.weights.end(), 1.0F);
  std::fill(c.w2.codes.begin(), c.w2.codes.end(), u8{0});
  std::fill(c.w2.scales.begin(), c.w2.scales.end(), u8{127});
  for (std::size_t expert = 0; expert < values.size(); ++expert) {
    for (i64 step = 0; step < steps; ++step) {
      const float value = at(values[expert], step);
      if (value == 0.0F) continue;
      const i64 row = static_cast<i64>(expert) * 32;
      at(c.w2.codes, row * c.inter + step * 128) = value < 0 ? 0xB8 : 0x38;
      at(c.w2.scales, row * (c.inter / 32) + step * 4) =
          static_cast<u8>(127 + std::ilogb(std::fabs(value)));
    }
  }
  return c;
}

/// What comes out of row 0 of the weights for each token.
std::vector<float> first_of_partials(const DownCase& c, const Launch& launch) {
  const std::vector<u16> partial = down_kernel(c, launch, 128);
  std::vector<float> out;
  for (i64 token = 0; token < c.routing.rows; ++token)
    out.push_back(decode_bf16(at(partial, token * 32)));
  return out;
}

TEST_P(Experts, DownNarrowGoesBySlot) {
  // big + 1 is big. Two experts of one step: units 0 and 1, a wave each, so the order is that of
  // the slots, whatever the ids. 1 + big - big: 0; -big + big + 1: 1, the third expert last.
  const float big = 0x1p25F;
  const std::vector<std::vector<float>> values{{1}, {big}, {-big}};
  DownCase c = hand_made_down({3, 3, 3, Routing::kNone, {0, 1, 2, 2, 1, 0, 1, 0, 2}}, values);
  EXPECT_EQ(first_of_partials(c, GetParam()), (std::vector<float>{0.0F, 1.0F, 0.0F}));
}

TEST_P(Experts, DownNarrowDealsUnitsInTurn) {
  // One expert of six steps: waves {0, 4}, {1, 5}, {2}, {3}. Steps 0 and 4 meet first: big - big,
  // then 1 from step 1; in natural order 1 would be lost in big before.
  const float big = 0x1p25F;
  EXPECT_EQ(
      first_of_partials(hand_made_down({1, 1, 1, Routing::kNone, {0}}, {{big, 1, 0, 0, -big, 0}}),
                        GetParam()),
      std::vector<float>{1.0F});
  EXPECT_EQ(
      first_of_partials(hand_made_down({1, 1, 1, Routing::kNone, {0}}, {{big, 1, -big, 0, 0, 0}}),
                        GetParam()),
      std::vector<float>{0.0F});
}

TEST_P(Experts, DownNarrowAddsTheSharedExpertBehind) {
  // Routed 1 in wave 3, shared big and -big in waves 0 and 1: (1 + big) - big is 0, and 1 if the
  // shared expert shared the routed accumulators.
  const float big = 0x1p25F;
  const std::vector<std::vector<float>> values{{0, 0, 0, 1}, {big, -big, 0, 0}};
  EXPECT_EQ(
      first_of_partials(hand_made_down({1, 2, 1, Routing::kFused, {0, 1}}, values), GetParam()),
      std::vector<float>{0.0F});
  // In the wide form it does.
  DownCase c = hand_made_down({1, 2, 1, Routing::kFused, {0, 1}}, values);
  c.wide_from = 1;
  EXPECT_EQ(first_of_partials(c, GetParam()), std::vector<float>{1.0F});
}

TEST_P(Experts, DownWideGoesByExpert) {
  // As in DownNarrowGoesBySlot, but the order is that of the ids for all tokens: 1 + big - big.
  const float big = 0x1p25F;
  DownCase c =
      hand_made_down({3, 3, 3, Routing::kNone, {0, 1, 2, 2, 1, 0, 1, 0, 2}}, {{1}, {big}, {-big}});
  c.wide_from = 3;
  EXPECT_EQ(first_of_partials(c, GetParam()), (std::vector<float>{0.0F, 0.0F, 0.0F}));
}

TEST_P(Experts, DownWideCountsTheExpertsOfOtherTokens) {
  // Experts of two steps each. Token 0 has experts 1 and 2. If token 1 has them too, they are units
  // 0 to 3, a wave each: (big + 1) - big is 0. If token 1 has expert 0, they are units 2 to 5, so
  // that expert 2 is in waves 0 and 1, before expert 1: (-big + big) + 1.
  const float big = 0x1p25F;
  DownCase c =
      hand_made_down({2, 2, 3, Routing::kNone, {1, 2, 1, 2}}, {{0, 0}, {big, 1}, {-big, 0}});
  c.wide_from = 2;
  EXPECT_EQ(first_of_partials(c, GetParam()), (std::vector<float>{0.0F, 0.0F}));
  c.routing.ids = {1, 2, 0, 2};
  EXPECT_EQ(first_of_partials(c, GetParam()).at(0), 1.0F);
}

TEST_P(Experts, DownWideReachesTokensThatAreNotRouted) {
  // A scale byte 0xFF in expert 0, which token 1 does not have (mono-decode section 10).
  DownCase c = hand_made_down({2, 1, 2, Routing::kNone, {0, 1}}, {{1}, {1}});
  at(c.w2.scales, 3) = 255;
  c.wide_from = 2;
  for (const float partial : first_of_partials(c, GetParam())) EXPECT_TRUE(std::isnan(partial));
  c.wide_from = 3;
  EXPECT_TRUE(std::isnan(first_of_partials(c, GetParam()).at(0)));
  EXPECT_EQ(first_of_partials(c, GetParam()).at(1), 1.0F);
}

TEST_P(Experts, DownPadsWithTheLastUnit) {
  // An infinite last unit makes its wave infinite, and the padding of the others NaN: Inf * 0.
  DownCase c = hand_made_down({1, 1, 1, Routing::kNone, {0}}, {{1, 1}});
  at(c.w2.codes, 128) = 0x40;  // 2 * 2^127
  at(c.w2.scales, 4) = 254;
  EXPECT_TRUE(std::isnan(first_of_partials(c, GetParam()).at(0)));
  c.wide_from = 1;  // no padding there
  EXPECT_EQ(first_of_partials(c, GetParam()),
            std::vector<float>{std::numeric_limits<float>::infinity()});
}

TEST_P(Experts, DownOfTheSharedExpertAlone) {
  // Bug case M14: the shared expert counts where the routed weights are 0; M11 and M12: a factor on
  // the output is not its.
  DownCase c = hand_made_down({1, 2, 1, Routing::kFused, {0, 1}}, {{64}, {4}});
  c.weights = {0.0F, 1.0F};
  EXPECT_EQ(first_of_partials(c, GetParam()), std::vector<float>{4.0F});
  c.weights = {0.25F, 1.0F};
  EXPECT_EQ(first_of_partials(c, GetParam()), std::vector<float>{20.0F});
  c.scales_output = true;
  c.scaling = 3.0F;
  EXPECT_EQ(first_of_partials(c, GetParam()), std::vector<float>{52.0F});
}

TEST_P(Experts, DownRoundsProductsBeforeItAddsThem) {
  // Units 0 and 4, of wave 0: -(1 + 2^-22), then (1 + 2^-23) * (1 + 2^-23), which is 1 + 2^-22 once
  // rounded: 0 is left. If it was fused with the addition, 2^-46 would be.
  DownCase c = hand_made_down({1, 2, 2, Routing::kNone, {1, 0}}, {{1, 0, 0, 0}, {-1, 0, 0, 0}});
  const i64 of_expert_1 = 32;
  at(c.w2.codes, 32) = 0x38;  // the second summand of a dot is in the block behind the first
  at(c.w2.scales, 1) = 127 - 23;
  at(c.w2.codes, of_expert_1 * c.inter + 32) = 0xB8;
  at(c.w2.scales, of_expert_1 * (c.inter / 32) + 1) = 127 - 22;
  for (i64 slot = 0; slot < 2; ++slot) at(c.mid8, slot * c.inter + 32) = 0x38;
  c.weights = {1.0F, 1.0F + 0x1p-23F};
  EXPECT_EQ(first_of_partials(c, GetParam()), std::vector<float>{0.0F});
}

void expect_down_ignored(const DownCase& c, const Launch& launch, u32 threads) {
  const std::vector<u16> partial = down_kernel(c, launch, threads);
  EXPECT_EQ(partial, filled(static_cast<i64>(partial.size()), kUntouched));
}

TEST_P(Experts, DownIgnoresMisuse) {
  const DownCase good = hand_made_down({1, 2, 2, Routing::kNone, {0, 1}}, {{1}, {1}});
  for (const u32 threads : {32U, 96U}) expect_down_ignored(good, GetParam(), threads);
  DownCase odd = good;
  odd.inter = 64;
  expect_down_ignored(odd, GetParam(), 64);
  odd = good;
  odd.hidden = 16;
  expect_down_ignored(odd, GetParam(), 64);
  odd = good;
  odd.routing.n_routed = 1025;
  expect_down_ignored(odd, GetParam(), 64);
  odd = good;
  odd.routing.slots = 17;
  expect_down_ignored(odd, GetParam(), 64);
}

}  // namespace
}  // namespace monoref::device
