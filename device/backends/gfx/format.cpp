#include "device/backends/gfx/format.hpp"

#include <algorithm>

namespace monoref::device::gfx {
namespace {

enum class Rounding : std::uint8_t { kNearestEven, kTowardZero };

u32 not_a_number(const Format& format, double value) {
  const u32 sign = std::signbit(value) ? format.sign() : 0;
  switch (format.specials) {
    case Specials::kInfinityAndNan: {
      const u64 fraction = std::bit_cast<u64>(value) & ((u64{1} << 52) - 1);
      const u32 kept = static_cast<u32>(fraction >> (52 - format.fraction_bits));
      const u32 quiet = 1U << (format.fraction_bits - 1);
      return sign | (format.largest() + 1) | kept | quiet;
    }
    case Specials::kLastIsNan:
      return sign | (format.sign() - 1);
    case Specials::kOneNan:
      return format.sign();
    default:
      return sign | format.largest();
  }
}

u32 too_large(const Format& format, bool negative, Overflow overflow) {
  const u32 sign = negative ? format.sign() : 0;
  if (overflow == Overflow::kSaturate || format.specials == Specials::kNone)
    return sign | format.largest();
  if (format.specials == Specials::kOneNan) return format.sign();
  return sign | (format.largest() + 1);
}

u32 rounded(const Format& format, double value, Overflow overflow, Rounding rounding) {
  if (value != value) return not_a_number(format, value);
  const bool negative = std::signbit(value);
  const double magnitude = std::abs(value);
  if (std::isinf(magnitude)) return too_large(format, negative, overflow);
  const u32 sign = negative ? format.sign() : 0;
  if (magnitude == 0) return format.specials == Specials::kOneNan ? 0 : sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude lies in [0.5, 1) times 2^exponent
  const i32 last = std::max(exponent - 1, 1 - format.bias) - static_cast<i32>(format.fraction_bits);
  if (exponent > format.bias + 2) return too_large(format, negative, overflow);
  const double scaled = std::ldexp(magnitude, -last);  // below 2^(fraction_bits + 1)
  auto whole = static_cast<u32>(scaled);
  const double rest = scaled - whole;
  if (rounding == Rounding::kNearestEven && (rest > 0.5 || (rest == 0.5 && (whole & 1) != 0)))
    ++whole;
  // A whole number that reached the next power of two carries into the exponent.
  const u32 exponents_below =
      static_cast<u32>(last + static_cast<i32>(format.fraction_bits) + format.bias - 1);
  const u32 bits = (exponents_below << format.fraction_bits) + whole;
  if (bits > format.largest()) return too_large(format, negative, overflow);
  return bits == 0 && format.specials == Specials::kOneNan ? 0 : sign | bits;
}

}  // namespace

u32 widen(const Format& format, u32 bits) {
  const u32 sign = (bits & format.sign()) != 0 ? 0x80000000U : 0;
  const u32 magnitude = bits & (format.sign() - 1);
  if (format.specials == Specials::kOneNan && sign != 0 && magnitude == 0) return kNan;
  if (format.specials == Specials::kLastIsNan && magnitude == format.sign() - 1) return sign | kNan;
  const u32 fraction = magnitude & ((1U << format.fraction_bits) - 1);
  if (format.specials == Specials::kInfinityAndNan && magnitude > format.largest())
    return sign | 0x7f800000U |
           (fraction == 0 ? 0 : fraction << (23 - format.fraction_bits) | kQuiet);
  const u32 exponent = magnitude >> format.fraction_bits;
  const auto whole =
      static_cast<float>(exponent == 0 ? fraction : fraction | 1U << format.fraction_bits);
  const i32 power = static_cast<i32>(std::max(exponent, 1U)) - format.bias -
                    static_cast<i32>(format.fraction_bits);
  return sign | as_bits(std::ldexp(whole, power));
}

u32 narrow(const Format& format, double value, Overflow overflow) {
  return rounded(format, value, overflow, Rounding::kNearestEven);
}
u32 narrow(const Format& format, u32 value, Overflow overflow) {
  return narrow(format, static_cast<double>(as_float(value)), overflow);
}
u32 cut(const Format& format, u32 value) {
  const float x = as_float(value);
  const Overflow overflow = std::isinf(x) ? Overflow::kSpecial : Overflow::kSaturate;
  return rounded(format, x, overflow, Rounding::kTowardZero);
}

double sum_to_odd(double a, double b) {
  const double sum = a + b;
  if (!std::isfinite(sum)) return sum;
  const double back = sum - a;
  const double lost = (a - (sum - back)) + (b - back);
  auto bits = std::bit_cast<u64>(sum);
  if (lost == 0 || (bits & 1) != 0) return sum;
  const bool away = (lost > 0) == (sum > 0);
  bits += away ? 1 : ~u64{0};
  return as_double(bits);
}

double power_of_scale(u32 scale) {
  const u32 exponent = scale >> 23 & 0xff;
  return exponent == 0xff ? std::numeric_limits<double>::quiet_NaN()
                          : std::ldexp(1.0, static_cast<int>(exponent) - 127);
}

}  // namespace monoref::device::gfx
