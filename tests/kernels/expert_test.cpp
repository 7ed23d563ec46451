// The kernels of the experts against plain loops over the specification's formulas (mono-decode
// sections 7, 9 and 10, upstream-semantics sections 7.3, 7.4 and 7.6), on every way to launch them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "reference/arithmetic/portable.hpp"
#include "tests/kernels/bench.hpp"
#include "tests/kernels/number_model.hpp"

namespace monoref::device {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kLog2E = static_cast<float>(1.4426950408889634);

/// One way to launch: wave, and blocks in x and y.
struct Launch {
  int wave;
  u32 blocks_x, blocks_y;

  Grid grid(u32 threads) const { return grid_of(blocks_x, threads, blocks_y); }
};

class Experts : public ::testing::TestWithParam<Launch> {};

std::string launch_name(const ::testing::TestParamInfo<Launch>& launch) {
  return "wave" + std::to_string(launch.param.wave) + "_" + std::to_string(launch.param.blocks_x) +
         "x" + std::to_string(launch.param.blocks_y);
}
INSTANTIATE_TEST_SUITE_P(Grids, Experts,
                         ::testing::Values(Launch{64, 1, 1}, Launch{64, 5, 7}, Launch{32, 2, 3},
                                           Launch{32, 3, 128}),
                         launch_name);

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
// mx_quant

/// The rules for the scale byte in the order of the launch's numbers.
enum Rule { kA, kB, kC, kD, kE, kMono, kRoundDown, kEven, kCeil, kRoundUp, kRules };

/// The biased exponent of the first power of two that is not below u; of zero, 0.
int exponent_above(float u) {
  if (u == 0.0F) return 0;
  int exponent = 0;
  const float fraction = std::frexp(u, &exponent);
  return std::max(fraction == 0.5F ? exponent + 126 : exponent + 127, 1);
}

/// The biased exponent of the last power of two at which amax is at least `factor` times as large.
int exponent_from(float amax, double factor) {
  int exponent = 0;
  while (exponent < 255 && std::ldexp(factor, exponent - 126) <= static_cast<double>(amax))
    ++exponent;
  return exponent;
}

int scale_model(int rule, float amax) {
  const bool stops_at_254 = rule == kD || rule == kE || rule == kMono;
  const int last = stops_at_254 ? 254 : 255;
  if (!std::isfinite(amax)) return last;
  int byte = 0;
  switch (rule) {
    case kA:
      byte = exponent_above(std::max(amax, 1e-10F) * (1.0F / 448.0F));
      break;
    case kB:
      byte = exponent_from(amax, 0.75) - 8;
      break;
    case kC:
      byte = exponent_from(amax, 0.875) - 8;
      break;
    case kD: {
      const float quotient = std::max(amax, std::numeric_limits<float>::min()) / 448.0F;
      byte = static_cast<int>(std::ceil(std::log2(static_cast<double>(quotient)))) + 127;
      break;
    }
    case kE:
      byte = exponent_from(std::max(amax, 1e-30F), 1.0);
      break;
    case kMono:
      byte = std::max(exponent_above(amax * (1.0F / 448.0F)), 1);
      break;
    case kRoundDown:
      byte = exponent_from(amax, 1.0) - 8;
      break;
    case kEven:
      byte = exponent_from(amax, 0.96875);
      byte = byte == 255 ? 255 : byte - 8;
      break;
    case kCeil:
      byte = exponent_above(amax / 256.0F);
      break;
    default:
      byte = exponent_above(amax / 448.0F);
  }
  return std::clamp(byte, 0, last);
}

/// Codes and scale bytes of a tensor's blocks.
struct Quantised {
  std::vector<u8> codes, scales;
  bool operator==(const Quantised&) const = default;
};

Quantised quant_model(const std::vector<float>& x, int rule) {
  const E4m3Model format(false, true);
  Quantised out;
  for (std::size_t block = 0; block < x.size(); block += 32) {
    float amax = 0.0F;
    for (std::size_t i = block; i < block + 32; ++i)
      amax = std::isnan(amax) || std::isnan(x[i]) ? float_from_bits(kNanBits)
                                                  : std::max(amax, std::fabs(x[i]));
    const int byte = scale_model(rule, amax);
    const float factor = byte == 255 ? float_from_bits(kNanBits) : std::ldexp(1.0F, 127 - byte);
    for (std::size_t i = block; i < block + 32; ++i)
      out.codes.push_back(format.encode(std::clamp(x[i] * factor, -448.0F, 448.0F)));
    out.scales.push_back(static_cast<u8>(byte));
  }
  return out;
}

/// Rows of magnitudes at and around what the rules switch at, and of special numbers.
std::vector<float> quant_content(i64 count, bool bf16) {
  Draws draws(static_cast<std::uint64_t>(count));
  std::vector<float> x;
  const float edges[] = {1.0F, 1.5F, 1.75F, 1.875F, 1.9375F, 0x1.fffffep0F};
  for (i64 block = 0; block < count / 32; ++block) {
    const int exponent = block % 5 == 0 ? draws.below(254) - 126 : draws.below(12) - 6;
    const float top = std::ldexp(edges[draws.below(6)], exponent);
    for (int i = 0; i < 32; ++i) {
      float value = draws.number(exponent - 12, exponent - 1);
      if (i == block % 32) value = draws.below(2) == 0 ? top : -top;
      if (block % 7 == 3 && i == 5) value = std::nextafter(top, kInfinity);
      if (block % 11 == 2 && i == 30) value = block % 2 == 0 ? kInfinity : -kInfinity;
      if (block % 13 == 4 && i == 31) value = float_from_bits(0xFFC00001);
      if (block % 17 == 6) value = block % 2 == 0 ? -0.0F : 1e-44F;
      x.push_back(bf16 ? decode_bf16(encode_bf16(value)) : value);
    }
  }
  return x;
}

/// The kernel's answer for rows that lie `gap` elements apart.
template <class Element>
Quantised quant_kernel(const Launch& launch, const std::vector<Element>& x, i64 rows, i64 gap,
                       int rule) {
  KernelBench bench(launch.wave);
  const i64 width = static_cast<i64>(x.size()) / rows;
  std::vector<Element> apart;
  for (i64 i = 0; i < rows * width; ++i) {
    apart.push_back(at(x, i));
    if (i % width == width - 1) apart.insert(apart.end(), static_cast<std::size_t>(gap), Element{});
  }
  const auto in = bench.add(apart);
  const auto codes = bench.add(filled<u8>(rows * (width + gap), 0x55));
  const auto scales = bench.add(filled<u8>(rows * width / 32, 0x55));
  bench.launch(sizeof(Element) == 2 ? "monoref_mx_quant_bf16" : "monoref_mx_quant_f32",
               launch.grid(64), in, width + gap, codes, width + gap, scales, rows,
               static_cast<i32>(width), i32{rule});
  Quantised out;
  const auto stored = bench.read<u8>(codes);
  for (i64 i = 0; i < rows * (width + gap); ++i) {
    if (i % (width + gap) < width)
      out.codes.push_back(at(stored, i));
    else
      EXPECT_EQ(at(stored, i), 0x55);
  }
  out.scales = bench.read<u8>(scales);
  return out;
}

TEST_P(Experts, MxQuantOfBinary32) {
  for (const i64 gap : {0, 4, 5}) {
    const std::vector<float> x = quant_content(3 * 1056, false);
    for (int rule = 0; rule < kRules; ++rule)
      EXPECT_EQ(quant_kernel(GetParam(), x, 3, gap, rule), quant_model(x, rule)) << rule;
  }
}

TEST_P(Experts, MxQuantOfBf16) {
  for (const i64 gap : {0, 8, 3}) {
    const std::vector<float> x = quant_content(5 * 96, true);
    std::vector<u16> codes;
    for (const float value : x) codes.push_back(encode_bf16(value));
    for (int rule = 0; rule < kRules; ++rule)
      EXPECT_EQ(quant_kernel(GetParam(), codes, 5, gap, rule), quant_model(x, rule)) << rule;
  }
}

/// One block with this largest number, under every rule: the scale bytes.
std::vector<int> bytes_of(const Launch& launch, float amax) {
  std::vector<int> bytes;
  std::vector<float> x(32, 0.0F);
  x[17] = -amax;
  for (int rule = 0; rule < kRules; ++rule)
    bytes.push_back(quant_kernel(launch, x, 1, 0, rule).scales.at(0));
  return bytes;
}

TEST_P(Experts, MxScalesOfNamedMagnitudes) {
  // A, B, C, D, E, mono, round_down, even, ceil, round_up. Bug case X08: amax 960 clips at scale 2.
  EXPECT_EQ(bytes_of(GetParam(), 960.0F),
            (std::vector<int>{129, 129, 129, 129, 136, 129, 128, 128, 129, 129}));
  EXPECT_EQ(bytes_of(GetParam(), 448.0F),
            (std::vector<int>{127, 128, 128, 127, 135, 127, 127, 127, 128, 127}));
  EXPECT_EQ(bytes_of(GetParam(), 0.0F), (std::vector<int>{85, 0, 0, 0, 27, 1, 0, 0, 0, 0}));
  EXPECT_EQ(bytes_of(GetParam(), kInfinity),
            (std::vector<int>{255, 255, 255, 254, 254, 254, 255, 255, 255, 255}));
}

TEST_P(Experts, MxQuantOfRoundDownClamps) {
  std::vector<float> x(32, 1.0F);
  x[3] = -957.0F;  // bug case X08: scale 2, and 478.5 is beyond 448
  EXPECT_EQ(quant_kernel(GetParam(), x, 1, 0, kRoundDown).codes.at(3), 0xFE);
}

TEST_P(Experts, MxQuantIgnoresMisuse) {
  for (const auto& [width, rule] : {std::pair{48, 5}, {0, 5}, {-32, 5}, {32, -1}, {32, 10}}) {
    KernelBench bench(GetParam().wave);
    const auto x = bench.add(filled(64, 1.0F));
    const auto codes = bench.add(filled<u8>(64, 0x55)), scales = bench.add(filled<u8>(2, 0x55));
    bench.launch("monoref_mx_quant_f32", GetParam().grid(64), x, i64{64}, codes, i64{64}, scales,
                 i64{1}, i32{width}, i32{rule});
    EXPECT_EQ(bench.read<u8>(codes), filled<u8>(64, 0x55));
    EXPECT_EQ(bench.read<u8>(scales), filled<u8>(2, 0x55));
  }
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
// expert_up_gate

struct UpGateCase {
  Routing routing;
  i64 hidden, inter;
  bool zero_is_zero = false;
  float limit = 7.0F, alpha = 1.702F, beta = 1.0F;
  i64 x_gap = 0;
  std::vector<u8> x8, x_scale;  // [rows, hidden], [rows, hidden / 32]
  Stack w13;
  std::optional<Stack> shared_w13;

  UpGateCase(const Routing& the_routing, i64 the_hidden, i64 the_inter, bool fp4, bool wild)
      : routing(the_routing),
        hidden(the_hidden),
        inter(the_inter),
        w13(drawn_stack(routing.experts(), 2 * inter, hidden, fp4, wild, 1)) {
    Draws draws(2);
    for (i64 i = 0; i < routing.rows * hidden; ++i)
      x8.push_back(drawn_code(draws, false, wild && i < hidden));
    for (i64 i = 0; i < routing.rows * hidden / 32; ++i)
      x_scale.push_back(drawn_scale(draws, wild && i < hidden / 32));
    if (routing.shared == Routing::kSeparate)
      shared_w13 = drawn_stack(1, 2 * inter, hidden, false, wild, 3);
  }
};

/// The smaller or larger of two; NaN if one is.
float clamped_above(float x, float limit) {
  return x > limit ? limit : x;
}
float clamped_below(float x, float limit) {
  return x < limit ? limit : x;
}

float swiglu_model(const UpGateCase& c, float gate, float up) {
  const float limit = c.limit == 0.0F ? kInfinity : c.limit;
  const float g = clamped_above(gate, limit);
  const float u = clamped_below(clamped_above(up, limit), -limit);
  const float t = c.alpha * g;
  const float denominator = 1.0F + portable_exp2(t * -kLog2E);
  return (g * (1.0F / denominator)) * (u + c.beta);
}

/// A row of W13 times a token, both [hidden].
float up_gate_dot(const float* x, const float* weights, i64 hidden) {
  const i64 steps = hidden / 128, of_wave = (steps + 7) / 8 * 128;
  float total = 0.0F;
  for (i64 first = 0; first < hidden; first += of_wave) {
    float sum = 0.0F;
    for (i64 k = first; k < std::min(first + of_wave, hidden); ++k)
      sum = std::fma(x[k], weights[k], sum);
    total += sum;
  }
  return total;
}

std::vector<u16> up_gate_model(const UpGateCase& c) {
  std::vector<float> x;
  for (i64 i = 0; i < c.routing.rows * c.hidden; ++i)
    x.push_back(decode_e4m3(at(c.x8, i)) * decode_scale(at(c.x_scale, i / 32), c.zero_is_zero));
  const std::vector<float> routed = c.w13.values(c.zero_is_zero);
  std::vector<float> separate;
  if (c.shared_w13) separate = c.shared_w13->values(c.zero_is_zero);
  std::vector<u16> mid;
  for (i64 pair = 0; pair < c.routing.rows * c.routing.slots; ++pair) {
    const i32 id = at(c.routing.ids, pair);
    const bool is_separate = id == c.routing.n_routed && c.shared_w13;
    for (i64 i = 0; i < c.inter; ++i) {
      mid.push_back(0);
      if (!c.routing.names_expert(id)) continue;
      const float* expert =
          is_separate ? separate.data() : routed.data() + id * 2 * c.inter * c.hidden;
      const float* token = x.data() + pair / c.routing.slots * c.hidden;
      const float gate = up_gate_dot(token, expert + i * c.hidden, c.hidden);
      const float up = up_gate_dot(token, expert + (c.inter + i) * c.hidden, c.hidden);
      mid.back() = encode_bf16(swiglu_model(c, gate, up));
    }
  }
  return mid;
}

constexpr u16 kUntouched = 0x5555;

std::vector<u16> up_gate_kernel(const UpGateCase& c, const Launch& launch, u32 threads) {
  KernelBench bench(launch.wave);
  std::vector<u8> x8;
  for (i64 i = 0; i < c.routing.rows * c.hidden; ++i) {
    x8.push_back(at(c.x8, i));
    if (i % c.hidden == c.hidden - 1) x8.insert(x8.end(), static_cast<std::size_t>(c.x_gap), 0x7F);
  }
  const auto x = bench.add(x8), x_scale = bench.add(c.x_scale), ids = bench.add(c.routing.ids);
  const auto w13 = bench.add(c.w13.stored_codes()), s13 = bench.add(c.w13.stored_scales());
  const auto mid = bench.add(filled<u16>(c.routing.rows * c.routing.slots * c.inter, kUntouched));
  const auto run = [&](auto shared_w13, auto shared_s13) {
    bench.launch("monoref_expert_up_gate", launch.grid(threads), x, c.hidden + c.x_gap, x_scale,
                 ids, w13, s13, shared_w13, shared_s13, mid, c.routing.rows,
                 static_cast<i32>(c.routing.slots), static_cast<i32>(c.hidden),
                 static_cast<i32>(c.inter), static_cast<i32>(c.routing.experts()),
                 static_cast<i32>(c.routing.n_routed), i32{c.w13.fp4 ? 1 : 0},
                 i32{c.zero_is_zero ? 1 : 0}, c.limit, c.alpha, c.beta);
  };
  if (c.shared_w13)
    run(bench.add(c.shared_w13->stored_codes()), bench.add(c.shared_w13->stored_scales()));
  else
    run(static_cast<const u8*>(nullptr), static_cast<const u8*>(nullptr));
  return bench.read<u16>(mid);
}

/// Threads of a block: whole waves, and 16 for each slice of K.
u32 up_gate_threads(i64 hidden) {
  const i64 steps = hidden / 128, of_slice = (steps + 7) / 8;
  const i64 slices = (steps + of_slice - 1) / of_slice;
  return static_cast<u32>((slices * 16 + 63) / 64 * 64);
}

void expect_up_gate(const UpGateCase& c, const Launch& launch) {
  const std::vector<u16> expected = up_gate_model(c);
  EXPECT_EQ(up_gate_kernel(c, launch, up_gate_threads(c.hidden)), expected);
  EXPECT_EQ(up_gate_kernel(c, launch, 128), expected);
}

TEST_P(Experts, UpGateOfEveryShareOfTokens) {
  // 2, 8 and 10 steps: fewer slices than eight, eight, and five slices of two steps.
  for (const bool fp4 : {false, true}) {
    for (const i64 rows : {1, 3, 9})
      expect_up_gate({drawn_routing(rows, 3, 4, Routing::kSeparate, false), 256, 32, fp4, false},
                     GetParam());
    expect_up_gate({drawn_routing(2, 2, 3, Routing::kNone, false), 1024, 32, fp4, false},
                   GetParam());
    expect_up_gate({drawn_routing(2, 2, 2, Routing::kFused, false), 1280, 32, fp4, false},
                   GetParam());
  }
}

TEST_P(Experts, UpGateOfMoreTokensThanATileTakes) {
  for (const bool fp4 : {false, true})
    expect_up_gate({drawn_routing(37, 2, 2, Routing::kFused, false), 256, 32, fp4, false},
                   GetParam());
}

TEST_P(Experts, UpGateOfNansAndExtremeScales) {
  for (const bool fp4 : {false, true}) {
    for (const bool zero_is_zero : {false, true}) {
      UpGateCase c(drawn_routing(3, 3, 3, Routing::kSeparate, false), 512, 64, fp4, true);
      c.zero_is_zero = zero_is_zero;
      const std::vector<u16> expected = up_gate_model(c);
      EXPECT_NE(std::count(expected.begin(), expected.end(), u16{0x7FC0}), 0);
      EXPECT_LT(std::count(expected.begin(), expected.end(), u16{0x7FC0}),
                static_cast<i64>(expected.size()));
      expect_up_gate(c, GetParam());
    }
  }
}

TEST_P(Experts, UpGateOfIdsThatNameNoExpert) {
  // Bug case M15; and an id of the shared expert where there is none.
  for (const Routing::Shared shared : {Routing::kNone, Routing::kFused, Routing::kSeparate})
    expect_up_gate({drawn_routing(6, 3, 5, shared, true), 256, 32, true, false}, GetParam());
  UpGateCase c(drawn_routing(2, 2, 4, Routing::kNone, false), 256, 32, false, false);
  c.routing.ids = {4, 0, 1, 4};
  expect_up_gate(c, GetParam());
}

TEST_P(Experts, UpGateOfOtherParameters) {
  for (const float limit : {0.0F, kInfinity, 0.25F}) {
    UpGateCase c(drawn_routing(2, 2, 3, Routing::kFused, false), 256, 32, true, false);
    c.limit = limit;
    c.alpha = 0.875F;
    c.beta = -0.5F;
    expect_up_gate(c, GetParam());
    c.x_gap = 3;  // rows of codes that start on any byte
    expect_up_gate(c, GetParam());
  }
}

/// A case of one token and expert, whose first gate and up row are `gate` and `up`: one number a
/// step, +-2^n for whole n (see `power_code`); all else is zero.
UpGateCase hand_made(const std::vector<float>& gate, const std::vector<float>& up) {
  const i64 hidden = static_cast<i64>(gate.size()) * 128;
  UpGateCase c({1, 1, 1, Routing::kNone, {0}}, hidden, 32, false, false);
  std::fill(c.x8.begin(), c.x8.end(), u8{0x38});  // 1
  std::fill(c.x_scale.begin(), c.x_scale.end(), u8{127});
  std::fill(c.w13.codes.begin(), c.w13.codes.end(), u8{0});
  std::fill(c.w13.scales.begin(), c.w13.scales.end(), u8{127});
  const auto put = [&](i64 row, i64 k, float value) {
    if (value == 0.0F) return;
    at(c.w13.codes, row * hidden + k) = value < 0 ? 0xB8 : 0x38;
    at(c.w13.scales, row * (hidden / 32) + k / 32) =
        static_cast<u8>(127 + std::ilogb(std::fabs(value)));
  };
  for (std::size_t step = 0; step < gate.size(); ++step) {
    put(0, static_cast<i64>(step) * 128 + 37, gate[step]);
    put(32, static_cast<i64>(step) * 128 + 70, up[step]);
  }
  c.limit = kInfinity;
  c.alpha = 0.0F;  // the sigmoid is 1/2
  return c;
}

/// The first number of the case's only mid row.
float first_of_mid(const UpGateCase& c, const Launch& launch) {
  return decode_bf16(up_gate_kernel(c, launch, 128).at(0));
}

TEST_P(Experts, UpGateAddsItsWavesInOrder) {
  const float big = 0x1p25F;  // big + 1 is big
  // A wave has one number. With up 1 the gate is what comes out: 1/2 * (1 + 1) of it.
  const std::vector<float> one{1, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(first_of_mid(hand_made({big, 1, -big, 4, 0, 0, 0, 0}, one), GetParam()), 4.0F);
  EXPECT_EQ(first_of_mid(hand_made({big, -big, 1, 4, 0, 0, 0, 0}, one), GetParam()), 5.0F);
  EXPECT_EQ(first_of_mid(hand_made({4, 0, 0, 0, 0, big, 1, -big}, one), GetParam()), 4.0F);
  EXPECT_EQ(first_of_mid(hand_made(one, {big, 1, -big, 2, 0, 0, 0, 0}), GetParam()), 1.5F);
}

TEST_P(Experts, UpGateChainsNeighbouringSteps) {
  // 16 steps, two a wave. The second wave's -big - 1 is -big, so the gate is 8; it is 7 if -1 has a
  // wave of its own. With up 0 half of it comes out.
  const float big = 0x1p25F;
  std::vector<float> gate(16, 0.0F), up(16, 0.0F);
  gate[0] = big;
  gate[2] = -big;
  gate[3] = -1;
  gate[4] = 8;
  EXPECT_EQ(first_of_mid(hand_made(gate, up), GetParam()), 4.0F);
  std::swap(gate[3], gate[4]);
  EXPECT_EQ(first_of_mid(hand_made(gate, up), GetParam()), 3.5F);
}

TEST_P(Experts, UpGateReadsNamedWeights) {
  // Bug cases X06 and X07: byte 134 is 128, byte 0 is 2^-127, 255 is NaN.
  UpGateCase c = hand_made({1, 0}, {0, 0});
  at(c.w13.scales, 1) = 134;
  EXPECT_EQ(first_of_mid(c, GetParam()), 64.0F);
  at(c.w13.scales, 1) = 0;
  at(c.x_scale, 1) = 254;
  EXPECT_EQ(first_of_mid(c, GetParam()), 0.5F);
  c.zero_is_zero = true;
  EXPECT_EQ(first_of_mid(c, GetParam()), 0.0F);
  at(c.w13.scales, 1) = 255;
  EXPECT_TRUE(std::isnan(first_of_mid(c, GetParam())));
}

TEST_P(Experts, UpGateOfNamedGatesAndUps) {
  // Bug cases G01 and G02: (g, u) and the value, rounded to bf16 by hand.
  const auto value = [](float gate, float up, float limit) {
    UpGateCase c = hand_made({gate, 0}, {up, 0});
    c.limit = limit;
    c.alpha = 1.702F;
    return c;
  };
  const auto mid = [&](float gate, float up, float limit) {
    return first_of_mid(value(gate, up, limit), GetParam());
  };
  EXPECT_EQ(mid(1, 1, 7), 1.6953125F);  // 1.6916
  EXPECT_EQ(mid(16, 2, 7), 21.0F);      // 7 * sigmoid(11.9) * 3
  EXPECT_EQ(mid(2, -16, 7), -11.625F);  // 2 * sigmoid(3.404) * -6 = -11.614
  EXPECT_EQ(mid(32, 32, 8), 72.0F);
  EXPECT_EQ(mid(32, 32, 0), 1056.0F);  // 32 * 33
}

/// What a launch that must be ignored leaves behind.
void expect_up_gate_ignored(UpGateCase c, const Launch& launch, u32 threads) {
  const std::vector<u16> mid = up_gate_kernel(c, launch, threads);
  EXPECT_EQ(mid, filled(static_cast<i64>(mid.size()), kUntouched));
}

TEST_P(Experts, UpGateIgnoresMisuse) {
  const UpGateCase good = hand_made({1, 1, 1, 1}, {1, 1, 1, 1});
  UpGateCase long_rows = hand_made(std::vector<float>(8, 1.0F), std::vector<float>(8, 1.0F));
  expect_up_gate_ignored(long_rows, GetParam(), 64);  // 8 slices need 128
  expect_up_gate_ignored(good, GetParam(), 80);       // not whole waves
  for (const float limit : {-1.0F, float_from_bits(kNanBits)}) {
    UpGateCase c = good;
    c.limit = limit;
    expect_up_gate_ignored(c, GetParam(), 128);
  }
  UpGateCase odd = good;
  odd.hidden = 384;
  expect_up_gate_ignored(odd, GetParam(), 128);
  odd = good;
  odd.inter = 16;
  expect_up_gate_ignored(odd, GetParam(), 128);
  odd = good;
  odd.routing.n_routed = 3;  // and the stack says 3, but holds 1: nothing names expert 1 or 2
  odd.routing.shared = Routing::kFused;
  odd.routing.ids = {-5};
  EXPECT_EQ(up_gate_kernel(odd, GetParam(), 128), filled<u16>(32, 0));
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
  const auto run = [&](auto shared_w2, auto shared_s2) {
    bench.launch("monoref_expert_down", grid_of(launch.blocks_x, threads), mid8, mid_scale, ids,
                 weights, w2, s2, shared_w2, shared_s2, partial, c.routing.rows,
                 static_cast<i32>(c.routing.slots), static_cast<i32>(c.inter),
                 static_cast<i32>(c.hidden), static_cast<i32>(c.routing.experts()),
                 static_cast<i32>(c.routing.n_routed), i32{c.w2.fp4 ? 1 : 0},
                 i32{c.zero_is_zero ? 1 : 0}, c.wide_from, i32{c.scales_output ? 1 : 0}, c.scaling);
  };
  if (c.shared_w2)
    run(bench.add(c.shared_w2->stored_codes()), bench.add(c.shared_w2->stored_scales()));
  else
    run(static_cast<const u8*>(nullptr), static_cast<const u8*>(nullptr));
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
  EXPECT_EQ(first_of_partials(c, GetParam()), std::vector<float>{kInfinity});
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
