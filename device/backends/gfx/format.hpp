// The small number formats of registers and memory: binary16, bfloat16, FP8, FP4.
#pragma once

#include "device/backends/gfx/number.hpp"

namespace monoref::device::gfx {

/// What a format has beyond finite numbers.
enum class Specials : std::uint8_t {
  kInfinityAndNan,  ///< all exponent bits set, as in IEEE 754
  kLastIsNan,       ///< all bits but the sign set
  kOneNan,          ///< the pattern of -0, which there is not
  kNone,
};

/// A format of sign, exponent and fraction, in the lowest bits of a word.
struct Format {
  unsigned exponent_bits, fraction_bits;
  i32 bias;
  Specials specials;

  constexpr unsigned bits() const { return 1 + exponent_bits + fraction_bits; }
  constexpr u32 sign() const { return 1U << (exponent_bits + fraction_bits); }
  /// The largest finite number.
  constexpr u32 largest() const {
    const u32 all = sign() - 1;
    return specials == Specials::kInfinityAndNan ? all - (1U << fraction_bits)
           : specials == Specials::kLastIsNan    ? all - 1
                                                 : all;
  }
};

constexpr Format kBinary16{5, 10, 15, Specials::kInfinityAndNan};
constexpr Format kBfloat16{8, 7, 127, Specials::kInfinityAndNan};
constexpr Format kE4M3{4, 3, 7, Specials::kLastIsNan};        ///< OCP: gfx950
constexpr Format kE5M2{5, 2, 15, Specials::kInfinityAndNan};  ///< OCP: gfx950
constexpr Format kE4M3Fnuz{4, 3, 8, Specials::kOneNan};       ///< gfx942
constexpr Format kE5M2Fnuz{5, 2, 16, Specials::kOneNan};      ///< gfx942
constexpr Format kE2M1{2, 1, 1, Specials::kNone};

constexpr double kNanValue = std::numeric_limits<double>::quiet_NaN();

/// What a finite number becomes that a format has not: infinity, or NaN where there is none, or
/// the largest.
enum class Overflow : std::uint8_t { kSpecial, kSaturate };

/// The same number as binary32, which holds all of them. NaNs become quiet.
u32 widen(const Format& format, u32 bits);
/// A number rounded to the nearest, ties to even. NaNs keep what fits of their payload and become
/// quiet. `value` is exact: products and sums of small formats are made in binary64.
u32 narrow(const Format& format, double value, Overflow overflow = Overflow::kSpecial);
/// The same of binary32.
u32 narrow(const Format& format, u32 value, Overflow overflow = Overflow::kSpecial);
/// Rounded toward zero; what is too large becomes the largest.
u32 cut(const Format& format, u32 value);

/// a + b with what rounding to binary64 loses kept in the last bit, so that a second rounding to a
/// format of 51 bits or fewer is right.
double sum_to_odd(double a, double b);

/// 2 to the power that the exponent field of a binary32 says, which is how scales of conversions
/// are read; NaN where all its bits are set.
double power_of_scale(u32 scale);

}  // namespace monoref::device::gfx
