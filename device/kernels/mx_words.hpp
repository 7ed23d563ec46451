// MX operands in inner loops: codes of E4M3FN or packed E2M1, of which 32 neighbours in k share one
// E8M0 scale (mono-decode sections 7 and 10, upstream-semantics section 7.4).
//
// An operand is its code times its scale, one binary32 product. As in e4m3_words.hpp, a code's
// fields put where binary32 has its own are a number, the code's value times a power of two, and
// the factor that applies the scale compensates for that power:
//
//             field value        power of the factor   fields that are binary32 subnormals
//   E4M3FN    value * 2^-120     scale byte - 7        codes without exponent
//   E2M1      value * 2^-126     scale byte - 1        +-0.5
//
// A field value is exact, so field * factor is rounded as value * scale is: not at all, unless the
// result is subnormal or too large. A power above 127 is split into two factors, of which the first
// cannot round or overflow.
#pragma once

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/e4m3_words.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/registers.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

constexpr int kMxBlock = 32;  ///< values that share a scale

/// Values of a kernel's `e8m0_zero` parameter: what scale byte 0 stands for.
constexpr std::int32_t kE8m0ZeroSmallest = 0;  ///< 2^-127
constexpr std::int32_t kE8m0ZeroZero = 1;      ///< 0

constexpr std::uint32_t kE8m0Nan = 255;

/// The exponent byte of 1 over the power of two in field values, as a scale byte.
template <bool fp4>
constexpr std::int32_t kFieldPower = fp4 ? 1 : 7;

/// True for scales that one factor applies and that need no special case: all but extreme ones,
/// which no model has.
template <bool fp4>
MONOREF_DEVICE bool is_plain_scale(std::uint32_t byte, std::int32_t e8m0_zero) {
  const bool zero = byte == 0 && (e8m0_zero == kE8m0ZeroZero ||
                                  MONOREF_FAULT(mx_byte_0_as_0, "X07", "scale byte 0 is zero",
                                                .stages = {"expert_up_gate"}));
  return byte <= 127 + kFieldPower<fp4> && !zero;
}

/// What field values are multiplied by under a plain scale.
template <bool fp4>
MONOREF_DEVICE float plain_factor(std::uint32_t byte) {
  return simt::bit_cast<float>((byte + 127 - kFieldPower<fp4>) << 23);
}

/// What field values are multiplied by, one after the other, under any scale; NaN for byte 255.
struct MxFactor {
  float first, second;
};

template <bool fp4>
MONOREF_DEVICE MxFactor mx_factor(std::uint32_t byte, std::int32_t e8m0_zero) {
  if (byte == kE8m0Nan) {
    const float nan =
        simt::bit_cast<float>(MONOREF_FAULT(mx_byte_255_as_inf, "X06", "scale byte 255 is Inf",
                                            .stages = {"expert_up_gate"})
                                  ? kInfinityBits
                                  : kCanonicalNanBits);
    return {nan, nan};
  }
  if (is_plain_scale<fp4>(byte, e8m0_zero)) return {plain_factor<fp4>(byte), 1.0F};
  if (byte == 0) return {0.0F, 1.0F};
  const std::int32_t power = static_cast<std::int32_t>(byte) - kFieldPower<fp4>;
  return {power_of_two(127), power_of_two(power - 127)};
}

/// The field value of E2M1 code `i` of a word, counted from its low end.
MONOREF_DEVICE float fp4_field(std::uint32_t word, int i) {
  if (MONOREF_FAULT(mx_nibbles_swapped, "own", "the high nibble is the even element",
                    .stages = {"expert_up_gate"}))
    i ^= 1;
  // Shifting the sign down with the code leaves it in place as well: one mask takes both.
  const auto top = static_cast<std::int32_t>(word << (28 - 4 * i));
  return simt::bit_cast<float>(static_cast<std::uint32_t>(top >> 6) & 0x81C00000);
}

/// The field value of E4M3FN code `i` of a word; of a NaN code, not NaN.
MONOREF_DEVICE float fp8_field(std::uint32_t word, int i) {
  const auto top = static_cast<std::int32_t>(word << (24 - 8 * i));
  return simt::bit_cast<float>(static_cast<std::uint32_t>(top >> 4) & 0x87F00000);
}

MONOREF_DEVICE bool fp8_is_nan(std::uint32_t word, int i) {
  return (word >> 8 * i & 0x7F) == 0x7F;
}

/// Adds to `carries` a bit for each NaN among four E4M3FN codes: only then adding 1 to a code's low
/// seven bits carries into the eighth. `no_fp8_nan` reads what has been added.
MONOREF_DEVICE void add_fp8_nans(std::uint32_t word, std::uint32_t& carries) {
  carries |= (word & 0x7F7F7F7F) + 0x01010101;
}
MONOREF_DEVICE bool no_fp8_nan(std::uint32_t carries) {
  return (carries & 0x80808080) == 0;
}

/// Codes of a word.
template <bool fp4>
constexpr int kWordCodes = fp4 ? 8 : 4;
/// Codes of a vector of 16 bytes.
template <bool fp4>
constexpr int kVectorCodes = 4 * kWordCodes<fp4>;

/// The operands of a word of codes that are not NaN, under a plain scale.
template <bool fp4>
MONOREF_DEVICE void plain_operands(std::uint32_t word, float factor,
                                   float (&values)[kWordCodes<fp4>]) {
  MONOREF_UNROLL
  for (int i = 0; i < kWordCodes<fp4>; ++i)
    values[i] = (fp4 ? fp4_field(word, i) : fp8_field(word, i)) * factor;
}

/// The operand of an E4M3FN code under any scale.
MONOREF_DEVICE float fp8_operand(std::uint32_t code, const MxFactor& factor) {
  if (fp8_is_nan(code, 0)) return simt::bit_cast<float>(kCanonicalNanBits);
  return fp8_field(code, 0) * factor.first * factor.second;
}

/// The operands of any word of codes under any scale.
template <bool fp4>
MONOREF_DEVICE void operands(std::uint32_t word, const MxFactor& factor,
                             float (&values)[kWordCodes<fp4>]) {
  plain_operands<fp4>(word, factor.first, values);
  MONOREF_UNROLL
  for (int i = 0; i < kWordCodes<fp4>; ++i) {
    values[i] *= factor.second;
    if (!fp4 && fp8_is_nan(word, i)) values[i] = simt::bit_cast<float>(kCanonicalNanBits);
  }
}

/// Decodes 16 E4M3FN codes of one block into operands, at a multiple of 16 bytes.
MONOREF_DEVICE void stage_mx_vector(const simt::Vec16& codes, std::uint32_t scale,
                                    std::int32_t e8m0_zero, float* to) {
  const MxFactor factor = mx_factor<false>(scale, e8m0_zero);
  MONOREF_UNROLL
  for (int i = 0; i < 4; ++i) {
    Four numbers;
    operands<false>(codes.word[i], factor, numbers.value);
    store_staged(to + 4 * i, numbers);
  }
}

/// Where the scales of a row begin under shuffle_scale, and how far from there that of a block is:
/// view [rows / 32, 2, 16, columns / 8, 2, 4] permuted (0, 3, 5, 2, 4, 1); `columns` a multiple of
/// 8. Unsigned, so that the divisions are shifts.
MONOREF_DEVICE std::uint64_t shuffled_scale_row(std::uint32_t row, std::uint32_t columns) {
  if (MONOREF_FAULT(mx_scales_not_shuffled, "X05", "scales are read as if plain",
                    .stages = {"expert_up_gate"}))
    return std::uint64_t{row} * columns;
  if (MONOREF_FAULT(mx_scale_of_other_tile, "X05", "a tile has the scales of its neighbour",
                    .stages = {"expert_up_gate"}))
    row ^= 16;
  return std::uint64_t{row / 32 * 32} * columns + (row % 16 * 4 + row % 32 / 16);
}
MONOREF_DEVICE std::uint32_t shuffled_scale_column(std::uint32_t block) {
  if (MONOREF_FAULT_AT(mx_scales_not_shuffled)) return block;
  if (MONOREF_FAULT(mx_scale_halves_swapped, "X05", "the halves of a group of scales are swapped",
                    .stages = {"expert_up_gate"}))
    block ^= 4;
  return block / 8 * 256 + block % 4 * 64 + block % 8 / 4 * 2;
}

}  // namespace
}  // namespace monoref::kernels
