// Conversions between binary32 and the formats that tensors are stored in (mono-decode sections 8
// and 10): BF16 and the two E4M3 encodings of FP8. All round to nearest, ties to even, once. NaN is
// stored in its canonical form; where a format has a negative zero, the sign of zero counts.
//
//            bias  largest  quantum   NaN         codes of note
//   FN          7      448     2^-9   0x7F, 0xFF  0x80 is -0
//   FNUZ        8      240    2^-10   0x80        0x7F is 240; there is no -0
//
// Codes are worked out from the bits of the number, not with the chips' own conversions: those know
// one encoding each, and what gfx950's does on overflow is not settled.
#pragma once

#include <cstdint>

#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

/// Values of a kernel's `encoding` parameter.
constexpr std::int32_t kEncodingFn = 0;
constexpr std::int32_t kEncodingFnuz = 1;

/// Values of a kernel's `overflow` parameter: what becomes of numbers that round beyond the largest
/// (FN: above 464, FNUZ: from 248 on) and of infinities.
constexpr std::int32_t kOverflowNan = 0;
constexpr std::int32_t kOverflowSaturate = 1;

constexpr std::uint32_t kSignBit = 0x80000000;
constexpr std::uint32_t kInfinityBits = 0x7F800000;
constexpr std::uint32_t kCanonicalNanBits = 0x7FC00000;
constexpr std::uint16_t kCanonicalBf16Nan = 0x7FC0;

/// `x`, or the canonical NaN.
MONOREF_DEVICE float canonical(float x) {
  return x == x ? x : simt::bit_cast<float>(kCanonicalNanBits);
}

MONOREF_DEVICE float float_of_bf16(std::uint16_t code) {
  return simt::bit_cast<float>(std::uint32_t{code} << 16);
}

/// bf16(x). What rounds beyond the largest becomes an infinity.
MONOREF_DEVICE std::uint16_t bf16_of(float x) {
  const auto bits = simt::bit_cast<std::uint32_t>(x);
  if ((bits & ~kSignBit) > kInfinityBits) return kCanonicalBf16Nan;
  if (MONOREF_FAULT(bf16_truncated, "own", "BF16 cut off instead of rounded",
                    .stages = {"kv_cache_insert"}))
    return static_cast<std::uint16_t>(bits >> 16);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

MONOREF_DEVICE float rounded_to_bf16(float x) {
  return float_of_bf16(bf16_of(x));
}

/// Two bf16 as one word, the first in the low half.
MONOREF_DEVICE std::uint32_t bf16_pair(float first, float second) {
  return bf16_of(first) | std::uint32_t{bf16_of(second)} << 16;
}

/// One E4M3 format as numbers, so that kernels serve both without a branch.
struct E4m3 {
  std::int32_t bias;
  std::uint32_t largest;   ///< code of the largest number
  std::uint32_t nan;       ///< the canonical NaN
  std::uint32_t nan_mask;  ///< a code is NaN if these bits of it are those of `nan`
  bool has_negative_zero;
  bool saturates;
};

/// The format that the parameters of a kernel name.
MONOREF_DEVICE E4m3 e4m3_format(std::int32_t encoding, std::int32_t overflow) {
  bool saturates = overflow == kOverflowSaturate;
  if (MONOREF_FAULT(e4m3_clamp_missing, "F16", "saturation missing", .stages = {"kv_cache_insert"}))
    saturates = false;
  if (MONOREF_FAULT(e4m3_clamp_extra, "F16", "saturation where the contract has NaN",
                    .stages = {"kv_cache_insert"}))
    saturates = true;
  if (encoding == kEncodingFnuz &&
      !MONOREF_FAULT(e4m3_fnuz_as_fn, "F01", "FNUZ encoded as FN", .stages = {"kv_cache_insert"}))
    return {8, 0x7F, 0x80, 0xFF, false, saturates};
  return {7, 0x7E, 0x7F, 0x7F, true, saturates};
}

/// The code whose value is nearest to a magnitude, given as the bits of a number that is not NaN,
/// were the format without an upper end.
MONOREF_DEVICE std::uint32_t e4m3_magnitude(std::uint32_t magnitude, const E4m3& format) {
  if (magnitude < static_cast<std::uint32_t>(128 - format.bias) << 23) {
    if (MONOREF_FAULT(e4m3_subnormals_flushed, "F16", "subnormal codes flushed to zero",
                      .stages = {"kv_cache_insert"}))
      return 0;
    // Below the smallest normal number codes count quanta. The last place of the anchor is one
    // quantum, so that the addition does the rounding, once.
    const std::uint32_t anchor = static_cast<std::uint32_t>(148 - format.bias) << 23;
    const float sum = simt::bit_cast<float>(magnitude) + simt::bit_cast<float>(anchor);
    return simt::bit_cast<std::uint32_t>(sum) - anchor;
  }
  const std::uint32_t last_place =
      MONOREF_FAULT(e4m3_ties_away, "F03", "ties away from zero", .stages = {"kv_cache_insert"})
          ? 1
          : magnitude >> 20 & 1;
  const std::uint32_t rounded = (magnitude + 0x7FFFF + last_place) >> 20;
  return rounded - (static_cast<std::uint32_t>(127 - format.bias) << 3);
}

/// e4m3(x).
MONOREF_DEVICE std::uint8_t e4m3_of(float x, const E4m3& format) {
  if (MONOREF_FAULT(e4m3_through_bf16, "F06", "numbers rounded to BF16 before they are encoded",
                    .stages = {"kv_cache_insert"}))
    x = rounded_to_bf16(x);
  const auto bits = simt::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 24 & 0x80;
  const std::uint32_t magnitude = bits & ~kSignBit;
  if (magnitude > kInfinityBits) return static_cast<std::uint8_t>(format.nan);
  std::uint32_t code = e4m3_magnitude(magnitude, format);
  if (MONOREF_FAULT(e4m3_top_binade_lost, "F03", "the top binade collapses to the largest number",
                    .stages = {"kv_cache_insert"}) &&
      code >= 0x78)
    code = format.largest;
  if (code > format.largest) {
    if (!format.saturates) return static_cast<std::uint8_t>(format.nan);
    code = format.largest;
  }
  if (code == 0 && !format.has_negative_zero &&
      !MONOREF_FAULT(e4m3_negative_zero_is_nan, "F04", "small negatives become the FNUZ NaN",
                     .stages = {"kv_cache_insert"}))
    return 0;
  return static_cast<std::uint8_t>(code | sign);
}

/// The value of a code, which binary32 holds exactly.
MONOREF_DEVICE float float_of_e4m3(std::uint32_t code, const E4m3& format) {
  // The code's fields put where those of a binary32 are make a number that is too small by the
  // difference of the biases. A code without exponent becomes a subnormal: the product is exact.
  const float scale = simt::bit_cast<float>(static_cast<std::uint32_t>(254 - format.bias) << 23);
  const float value = simt::bit_cast<float>((code & 0x80) << 24 | (code & 0x7F) << 20) * scale;
  return (code & format.nan_mask) == format.nan ? simt::bit_cast<float>(kCanonicalNanBits) : value;
}

/// Four codes as one word, the first in the low byte.
MONOREF_DEVICE std::uint32_t e4m3_quad(const float* x, const E4m3& format) {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= std::uint32_t{e4m3_of(x[i], format)} << 8 * i;
  return word;
}

}  // namespace
}  // namespace monoref::kernels
