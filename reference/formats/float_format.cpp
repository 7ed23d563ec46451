#include "reference/formats/float_format.hpp"

#include <algorithm>
#include <cmath>

#include "reference/core/error.hpp"
#include "reference/formats/canonical_nan.hpp"

namespace monoref {
namespace {

std::uint32_t exponent_field(const FloatFormat& format, std::uint32_t code) {
  return (code & format.magnitude_mask()) >> format.mantissa_bits;
}

std::uint32_t mantissa_field(const FloatFormat& format, std::uint32_t code) {
  return code & ((1u << format.mantissa_bits) - 1);
}

bool is_negative(const FloatFormat& format, std::uint32_t code) {
  return (code & format.sign_bit()) != 0;
}

/// What an overflowing conversion gives. `infinite` tells an infinite input from a large one.
std::uint32_t overflowed(const FloatFormat& format, std::uint32_t sign, bool infinite,
                         Overflow overflow) {
  if (overflow == Overflow::kSaturate || !format.has_nan()) return sign | format.largest();
  const bool wants_infinity = overflow == Overflow::kInfinity || infinite;
  return wants_infinity && format.has_infinity() ? sign | format.infinity()
                                                 : format.canonical_nan();
}

}  // namespace

const FloatFormat& float_format(DType type) {
  switch (type) {
    case DType::kBFloat16:
      return kBF16;
    case DType::kFloat8E4M3FN:
      return kE4M3FN;
    case DType::kFloat8E4M3FNUZ:
      return kE4M3FNUZ;
    case DType::kFloat8E5M2:
      return kE5M2;
    case DType::kFloat8E5M2FNUZ:
      return kE5M2FNUZ;
    default:
      refuse("formats: element type is {}, must be bfloat16 or an FP8 type", dtype_name(type));
  }
}

FloatClass classify(const FloatFormat& format, std::uint32_t code) {
  const std::uint32_t magnitude = code & format.magnitude_mask();
  if (format.specials == Specials::kNanNegativeZero && magnitude == 0 && is_negative(format, code))
    return FloatClass::kNan;
  if (format.specials == Specials::kNanAllOnes && magnitude == format.magnitude_mask())
    return FloatClass::kNan;
  if (format.specials == Specials::kIeee && magnitude >= format.infinity())
    return magnitude == format.infinity() ? FloatClass::kInfinite : FloatClass::kNan;
  if (magnitude == 0) return FloatClass::kZero;
  return exponent_field(format, code) == 0 ? FloatClass::kSubnormal : FloatClass::kNormal;
}

float decode(const FloatFormat& format, std::uint32_t code) {
  const FloatClass kind = classify(format, code);
  if (kind == FloatClass::kNan) return kCanonicalNan;
  const float sign = is_negative(format, code) ? -1.0f : 1.0f;
  if (kind == FloatClass::kInfinite) return sign * HUGE_VALF;
  const bool normal = kind == FloatClass::kNormal;
  const int exponent =
      normal ? static_cast<int>(exponent_field(format, code)) - format.bias : format.min_exponent();
  const std::uint32_t hidden = normal ? 1u << format.mantissa_bits : 0;
  const auto significand = static_cast<float>(hidden | mantissa_field(format, code));
  return sign * std::ldexp(significand, exponent - format.mantissa_bits);
}

std::uint32_t encode(const FloatFormat& format, double value, Overflow overflow) {
  if (std::isnan(value)) return format.canonical_nan();
  const std::uint32_t sign = std::signbit(value) ? format.sign_bit() : 0;
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return overflowed(format, sign, true, overflow);
  const int exponent = magnitude == 0 ? format.min_exponent()
                                      : std::max(std::ilogb(magnitude), format.min_exponent());
  // No rule of this project sees a magnitude beyond binary32; cutting it keeps the shift below
  // small.
  if (exponent > 128) return overflowed(format, sign, false, overflow);
  // Scaling by a power of two is exact, so this is the conversion's one rounding.
  const double steps = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  // Steps that carry into the next binade give its first code by the same sum.
  const std::uint32_t code =
      static_cast<std::uint32_t>(steps) +
      (static_cast<std::uint32_t>(exponent - format.min_exponent()) << format.mantissa_bits);
  if (code > format.largest()) return overflowed(format, sign, false, overflow);
  return code == 0 && !format.has_negative_zero() ? 0 : sign | code;
}

int ordinal(const FloatFormat& format, std::uint32_t code) {
  const auto magnitude = static_cast<int>(code & format.magnitude_mask());
  return is_negative(format, code) ? -magnitude : magnitude;
}

std::uint32_t next_up(const FloatFormat& format, std::uint32_t code) {
  if (classify(format, code) == FloatClass::kNan) return format.canonical_nan();
  const auto end = static_cast<int>(format.has_infinity() ? format.infinity() : format.largest());
  const int next = std::min(ordinal(format, code) + 1, end);
  if (next > 0) return static_cast<std::uint32_t>(next);
  if (next < 0) return format.sign_bit() | static_cast<std::uint32_t>(-next);
  return format.has_negative_zero() ? format.sign_bit() : 0;
}

std::uint32_t next_down(const FloatFormat& format, std::uint32_t code) {
  if (classify(format, code) == FloatClass::kNan) return format.canonical_nan();
  const auto end = static_cast<int>(format.has_infinity() ? format.infinity() : format.largest());
  const int next = std::max(ordinal(format, code) - 1, -end);
  return next >= 0 ? static_cast<std::uint32_t>(next)
                   : format.sign_bit() | static_cast<std::uint32_t>(-next);
}

std::vector<std::uint32_t> numbers_in_order(const FloatFormat& format) {
  std::vector<std::uint32_t> codes;
  for (std::uint32_t magnitude = format.magnitude_mask() + 1; magnitude-- > 0;)
    codes.push_back(format.sign_bit() | magnitude);
  for (std::uint32_t magnitude = 0; magnitude <= format.magnitude_mask(); ++magnitude)
    codes.push_back(magnitude);
  std::erase_if(codes,
                [&](std::uint32_t code) { return classify(format, code) == FloatClass::kNan; });
  return codes;
}

}  // namespace monoref
