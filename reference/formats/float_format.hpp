// Small binary floating-point formats as data, and the definition of their conversions.
//
// Everything here is written to be read beside the format's description. `convert.hpp` holds the
// fast forms, which are equal to these on every input.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "reference/core/dtype.hpp"

namespace monoref {

/// Which codes of a format are not finite numbers.
enum class Specials : std::uint8_t {
  kIeee,        ///< exponent field all ones: Inf with a zero mantissa, NaN otherwise (E5M2, BF16)
  kNanAllOnes,  ///< "FN": only the two codes with every bit below the sign set are NaN; no Inf
  kNanNegativeZero,  ///< "FNUZ": the code of -0 is the only NaN; no -0 and no Inf
  kNone,             ///< every code is a finite number (E2M1)
};

/// What a conversion does with a magnitude that rounds past the largest finite number.
enum class Overflow : std::uint8_t {
  kSaturate,  ///< the largest finite number of that sign; an infinite input too
  kNan,       ///< NaN; an infinite input stays infinite where the format has Inf
  kInfinity,  ///< Inf where the format has it, NaN where it has none (what PyTorch's casts do)
};

enum class FloatClass : std::uint8_t { kZero, kSubnormal, kNormal, kInfinite, kNan };

/// A signed format of sign, exponent and mantissa fields, with subnormals.
struct FloatFormat {
  std::string_view name;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  Specials specials;

  /// The same encoding, whatever the name.
  constexpr bool operator==(const FloatFormat& other) const {
    return exponent_bits == other.exponent_bits && mantissa_bits == other.mantissa_bits &&
           bias == other.bias && specials == other.specials;
  }

  constexpr int bits() const { return 1 + exponent_bits + mantissa_bits; }
  constexpr std::uint32_t codes() const { return 1u << bits(); }
  constexpr std::uint32_t sign_bit() const { return 1u << (bits() - 1); }
  constexpr std::uint32_t magnitude_mask() const { return sign_bit() - 1; }
  /// Exponent of the smallest normal number, and of the subnormals' quantum before its mantissa.
  constexpr int min_exponent() const { return 1 - bias; }
  constexpr bool has_infinity() const { return specials == Specials::kIeee; }
  constexpr bool has_negative_zero() const { return specials != Specials::kNanNegativeZero; }
  constexpr bool has_nan() const { return specials != Specials::kNone; }
  /// Code of +Inf; only where `has_infinity`.
  constexpr std::uint32_t infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
  /// Code of the largest finite number: 448 in E4M3FN, 240 in E4M3FNUZ, 57344 in both E5M2.
  constexpr std::uint32_t largest() const {
    if (specials == Specials::kIeee) return infinity() - 1;
    return specials == Specials::kNanAllOnes ? magnitude_mask() - 1 : magnitude_mask();
  }
  /// The one NaN that conversions make (mono-decode section 10): 0x7FC0 in BF16, 0x7F in E4M3FN,
  /// 0x80 in FNUZ. The section names no code for E5M2; 0x7F is what every conversion in use makes.
  /// E2M1 has no NaN: a NaN becomes its largest number, which is ours to state and what NVIDIA's
  /// conversion does.
  constexpr std::uint32_t canonical_nan() const {
    if (specials == Specials::kNanNegativeZero) return sign_bit();
    if (specials == Specials::kNone) return largest();
    return bits() == 16 ? infinity() | 1u << (mantissa_bits - 1) : magnitude_mask();
  }
};

inline constexpr FloatFormat kBF16{"bfloat16", 8, 7, 127, Specials::kIeee};
inline constexpr FloatFormat kE4M3FN{"float8_e4m3fn", 4, 3, 7, Specials::kNanAllOnes};
inline constexpr FloatFormat kE4M3FNUZ{"float8_e4m3fnuz", 4, 3, 8, Specials::kNanNegativeZero};
inline constexpr FloatFormat kE5M2{"float8_e5m2", 5, 2, 15, Specials::kIeee};
inline constexpr FloatFormat kE5M2FNUZ{"float8_e5m2fnuz", 5, 2, 16, Specials::kNanNegativeZero};
inline constexpr FloatFormat kE2M1{"float4_e2m1", 2, 1, 1, Specials::kNone};

/// The format of a BF16 or FP8 element type; refuses every other type, E8M0 included (it has no
/// sign, no zero and no mantissa: see e8m0.hpp).
const FloatFormat& float_format(DType type);

/// What a code stands for. Bits above the format's are ignored.
FloatClass classify(const FloatFormat& format, std::uint32_t code);

/// The number a code stands for, exactly; every NaN as the canonical 0x7FC00000.
float decode(const FloatFormat& format, std::uint32_t code);

/// Rounds to nearest, ties to the even code; subnormals are kept; every NaN becomes the canonical
/// one; the sign of a number that rounds to zero is kept where the format has -0, and dropped in
/// FNUZ (bug case F04). One rounding from the exact argument: a float goes in unchanged. E2M1 has
/// neither Inf nor NaN and saturates whatever `overflow` says.
std::uint32_t encode(const FloatFormat& format, double value, Overflow overflow);

/// A code's place in value order: 0 for both zeros, negative below. The code must not be NaN.
int ordinal(const FloatFormat& format, std::uint32_t code);

/// The neighbouring value's code, as IEEE nextUp and nextDown: the two zeros count as one value,
/// the step from below into zero gives -0 where there is one. Inf, or the largest number where
/// there is no Inf, stays; NaN gives the canonical NaN.
std::uint32_t next_up(const FloatFormat& format, std::uint32_t code);
std::uint32_t next_down(const FloatFormat& format, std::uint32_t code);

/// Every code that is a number (Inf included), ascending by value, -0 before +0.
std::vector<std::uint32_t> numbers_in_order(const FloatFormat& format);

}  // namespace monoref
