// mx_quant: rows to MXFP8, 32 neighbouring numbers sharing one E8M0 scale.
//
// Source of the rule: mono-decode section 7 (MXFP8 activations), upstream-semantics section 7.4.
//
//   amax   the largest magnitude of the block (NaN: one of its numbers is)
//   scale  a byte e, by the rule that the launch names
//   code   e4m3(clamp(x * 2^(127 - e), +-448)); NaN stays NaN, and e = 255 makes all codes NaN
//
// Work. Four neighbouring lanes share a block, eight numbers each, and reduce their maxima across
// lanes. A row is read once.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/kernels/vector_access.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr int kVector = 8;
constexpr int kBlock = 32;
constexpr int kBlockLanes = kBlock / kVector;

/// The rules for the byte, as the launch names them: letters are those of upstream-semantics
/// section 7.4, the last four the modes of AITER's torch functions.
enum Rule : std::int32_t {
  kRuleA,
  kRuleB,
  kRuleC,
  kRuleD,
  kRuleE,
  kRuleMono,
  kRuleRoundDown,
  kRuleEven,
  kRuleCeil,
  kRuleRoundUp,
  kRules,
};

constexpr float kLargest = 448.0F;
constexpr std::int32_t kLargestExponent = 8;  ///< of 448 = 1.75 * 2^8
constexpr std::int32_t kNanByte = 255;

/// Exponent field of a magnitude.
MONOREF_DEVICE std::int32_t exponent_of(float x) {
  return static_cast<std::int32_t>(simt::bit_cast<std::uint32_t>(x) >> 23);
}

/// Exponent field of a magnitude rounded up to a power of two; subnormals go to the first normal.
MONOREF_DEVICE std::int32_t exponent_above(float x) {
  const bool between = (simt::bit_cast<std::uint32_t>(x) & 0x7FFFFF) != 0;
  if (MONOREF_FAULT(mxq_floor_for_ceil, "X08", "the scale is rounded down")) return exponent_of(x);
  return exponent_of(x) + (between ? 1 : 0);
}

/// Exponent field of a magnitude after an addition to its bits, which moves the switch between two
/// exponents below the power of two.
MONOREF_DEVICE std::int32_t exponent_raised(float x, std::uint32_t raise) {
  return exponent_of(simt::bit_cast<float>(simt::bit_cast<std::uint32_t>(x) + raise));
}

/// ceil(log2(x)) + 127 of a magnitude, 0 where that is below: half of the first normal number and
/// less.
MONOREF_DEVICE std::int32_t log2_above(float x) {
  return simt::bit_cast<std::uint32_t>(x) <= 0x400000 ? 0 : exponent_above(x);
}

/// The byte of a finite amax before it is clamped.
MONOREF_DEVICE std::int32_t exponent_by_rule(std::int32_t rule, float amax) {
  constexpr float kInverse = 1.0F / kLargest;
  if (MONOREF_FAULT(mxq_switch_at_1_75, "X08", "the scale switches at 1.75 times a power of two") &&
      rule == kRuleMono)
    rule = kRuleC;
  switch (rule) {
    case kRuleA:
      return exponent_above((amax > 1e-10F ? amax : 1e-10F) * kInverse);
    case kRuleB:
      return exponent_raised(amax, 0x400000) - kLargestExponent;
    case kRuleC:
      return exponent_raised(amax, 0x200000) - kLargestExponent;
    case kRuleD:
      return log2_above((amax > 0x1p-126F ? amax : 0x1p-126F) / kLargest);
    case kRuleE:
      return exponent_of(amax > 1e-30F ? amax : 1e-30F);
    case kRuleRoundDown:
      return exponent_of(amax) - kLargestExponent;
    case kRuleEven: {
      const std::int32_t raised = exponent_raised(amax, 0x80000);
      return raised == kNanByte ? kNanByte : raised - kLargestExponent;
    }
    case kRuleCeil:
      return exponent_above(amax * power_of_two(-kLargestExponent));
    case kRuleRoundUp:
      return exponent_above(amax / kLargest);
    default:
      return exponent_above(amax * kInverse);
  }
}

/// The scale byte of a block with this amax. Rules D, E and mono stop at 254, the last number; the
/// others give 255, NaN, for an infinite or NaN amax.
MONOREF_DEVICE std::int32_t scale_byte(std::int32_t rule, float amax) {
  const bool of_numbers = rule == kRuleD || rule == kRuleE || rule == kRuleMono;
  const std::int32_t last = of_numbers ? kNanByte - 1 : kNanByte;
  const std::int32_t first =
      rule == kRuleMono &&
              !MONOREF_FAULT(mxq_byte_0_allowed, "X07", "the scale byte is not clamped to 1")
          ? 1
          : 0;
  if (!(amax < simt::bit_cast<float>(kInfinityBits))) return last;
  const std::int32_t exponent = exponent_by_rule(rule, amax);
  if (exponent < first) return first;
  return exponent < last ? exponent : last;
}

/// 2^(127 - byte); NaN for byte 255.
MONOREF_DEVICE float inverse_of_scale(std::int32_t byte) {
  if (byte == kNanByte) return simt::bit_cast<float>(kCanonicalNanBits);
  if (byte == kNanByte - 1) return 0x1p-127F;
  return power_of_two(127 - byte);
}

/// Numbers first .. first + 7 of a row.
MONOREF_DEVICE void load_vector(const std::uint16_t* row, std::int64_t first,
                                float (&values)[kVector]) {
  load_eight({row, 1}, first, values);
}
MONOREF_DEVICE void load_vector(const float* row, std::int64_t first, float (&values)[kVector]) {
  const float* from = row + first;
  if (aligned16(from)) {
    for (int i = 0; i < 2; ++i) {
      const simt::Vec16 four = simt::load16(from + 4 * i);
      for (int j = 0; j < 4; ++j) values[4 * i + j] = simt::bit_cast<float>(four.word[j]);
    }
    return;
  }
  for (int i = 0; i < kVector; ++i) values[i] = from[i];
}

/// The largest magnitude of a block, of which this lane has eight numbers.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE float amax_of_block(const float (&values)[kVector]) {
  float amax = 0.0F;
  for (const float value : values) {
    if (MONOREF_FAULT(mxq_nan_lost, "own", "a NaN does not reach its code or the scale") &&
        value != value)
      continue;
    amax = max_or_nan(amax, MONOREF_FAULT(mxq_amax_signed, "own",
                                          "the largest number instead of the largest magnitude")
                                ? value
                                : magnitude_of(value));
  }
  for (int mask = 1; mask < kBlockLanes; mask *= 2)
    amax = max_or_nan(amax, simt::shuffle_xor(amax, mask));
  if (MONOREF_FAULT(mxq_amax_of_neighbour, "own", "a block has its neighbour's scale"))
    amax = simt::shuffle_xor(amax, kBlockLanes);
  return amax;
}

/// The arguments of a launch.
template <class Element>
struct Quantisation {
  const Element* x;
  std::int64_t x_row_stride;
  std::uint8_t* codes;
  std::int64_t codes_row_stride;
  std::uint8_t* scales;
  std::int64_t rows;
  std::int32_t width;
  std::int32_t rule;
};

/// This thread's eight numbers of a row, from `first` on; a thread behind the row only takes part
/// in the exchange.
template <class Element>
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE void quantise_vector(const Quantisation<Element>& q,
                                                            std::int64_t row, std::int64_t first) {
  const bool exists = first < q.width;
  float values[kVector] = {};
  if (exists) load_vector(q.x + row * q.x_row_stride, first, values);
  const std::int32_t byte = scale_byte(q.rule, amax_of_block(values));
  if (!exists) return;
  const float factor = inverse_of_scale(byte);
  for (float& value : values) value *= factor;
  const E4m3 format = e4m3_format(
      kEncodingFn, MONOREF_FAULT(mxq_clamp_missing, "F16", "elements past 448 are not clamped")
                       ? kOverflowNan
                       : kOverflowSaturate);
  store_eight_e4m3(q.codes + row * q.codes_row_stride + first, values, format);
  if (first % kBlock == 0)
    q.scales[row * (q.width / kBlock) + first / kBlock] = static_cast<std::uint8_t>(byte);
}

template <class Element>
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE void quantise(const Quantisation<Element>& q) {
  if (q.width < kBlock || q.width % kBlock != 0 || q.rule < 0 || q.rule >= kRules) return;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x * kVector;
  const std::int64_t block = std::int64_t{blockIdx.x} * blockDim.x * kVector;
  for (std::int64_t row = blockIdx.y; row < q.rows; row += gridDim.y)
    for (std::int64_t first = block; first < q.width; first += step)
      quantise_vector(q, row, first + kVector * static_cast<std::int64_t>(threadIdx.x));
}

}  // namespace

// Inputs   x bf16 or f32 [rows, width], rows x_row_stride elements apart, innermost stride 1
// Outputs  codes E4M3FN [rows, width], rows codes_row_stride bytes apart, innermost stride 1
//          scales E8M0 [rows, width / 32], dense
// Sizes    width a multiple of 32
// Options  rule 0 to 9: A, B, C, D, E, mono, round_down, even, ceil, round_up (upstream-semantics
//          section 7.4)
// Launch   any grid; x goes over the columns, y over rows. Any block of whole waves in one
//          dimension: a thread has 8 numbers at a time, so width / 8 threads suffice.
// Misuse   Other widths and rules write nothing.
MONOREF_KERNEL(1024, monoref_mx_quant_bf16)(const std::uint16_t* x, std::int64_t x_row_stride,
                                            std::uint8_t* codes, std::int64_t codes_row_stride,
                                            std::uint8_t* scales, std::int64_t rows,
                                            std::int32_t width, std::int32_t rule) {
  quantise<std::uint16_t>({x, x_row_stride, codes, codes_row_stride, scales, rows, width, rule});
}
MONOREF_REGISTER(monoref_mx_quant_bf16);

MONOREF_KERNEL(1024, monoref_mx_quant_f32)(const float* x, std::int64_t x_row_stride,
                                           std::uint8_t* codes, std::int64_t codes_row_stride,
                                           std::uint8_t* scales, std::int64_t rows,
                                           std::int32_t width, std::int32_t rule) {
  quantise<float>({x, x_row_stride, codes, codes_row_stride, scales, rows, width, rule});
}
MONOREF_REGISTER(monoref_mx_quant_f32);

}  // namespace monoref::kernels
