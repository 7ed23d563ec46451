// An independent second definition of a format: its values from the textbook formula, and rounding
// as a search for the nearest of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/formats/float_format.hpp"

namespace monoref::test {

struct CodedValue {
  double value;
  std::uint32_t code;
};

/// All finite magnitudes of a format, ascending, followed by the first one that would come after
/// the largest if the exponent range went on.
inline std::vector<CodedValue> magnitudes_and_next(const FloatFormat& format) {
  std::vector<CodedValue> list;
  for (std::uint32_t code = 0; code <= format.largest() + 1; ++code) {
    const std::uint32_t mantissa = code % (1u << format.mantissa_bits);
    const std::uint32_t exponent = code / (1u << format.mantissa_bits);
    const double fraction = mantissa / std::exp2(format.mantissa_bits);
    list.push_back({exponent == 0
                        ? fraction * std::exp2(1.0 - format.bias)
                        : (1.0 + fraction) * std::exp2(static_cast<double>(exponent) - format.bias),
                    code});
  }
  return list;
}

/// The code of the nearest entry of `magnitudes`, of the even one if two are equally near. A
/// magnitude past the last entry gives the last entry.
inline std::uint32_t nearest(const std::vector<CodedValue>& magnitudes, double magnitude) {
  const auto above = std::lower_bound(magnitudes.begin(), magnitudes.end(), magnitude,
                                      [](const CodedValue& v, double m) { return v.value < m; });
  if (above == magnitudes.begin()) return above->code;
  const auto below = above - 1;
  if (above == magnitudes.end()) return below->code;
  const double to_above = above->value - magnitude;
  const double to_below = magnitude - below->value;
  if (to_above == to_below) return above->code % 2 == 0 ? above->code : below->code;
  return to_above < to_below ? above->code : below->code;
}

/// What an encoding must give, by the search.
inline std::uint32_t expected_code(const FloatFormat& format,
                                   const std::vector<CodedValue>& magnitudes, double value,
                                   Overflow overflow) {
  if (std::isnan(value)) return format.canonical_nan();
  const std::uint32_t sign = std::signbit(value) ? 1u << (format.bits() - 1) : 0;
  const std::uint32_t code = nearest(magnitudes, std::fabs(value));
  if (code <= format.largest())
    return code == 0 && format.specials == Specials::kNanNegativeZero ? 0 : sign | code;
  if (overflow == Overflow::kSaturate || format.specials == Specials::kNone)
    return sign | format.largest();
  const bool infinity = overflow == Overflow::kInfinity || std::isinf(value);
  if (infinity && format.specials == Specials::kIeee) return sign | format.infinity();
  return format.canonical_nan();
}

inline constexpr Overflow kAllOverflows[] = {Overflow::kSaturate, Overflow::kNan,
                                             Overflow::kInfinity};
inline constexpr const FloatFormat* kAllFp8[] = {&kE4M3FN, &kE4M3FNUZ, &kE5M2, &kE5M2FNUZ};
inline constexpr const FloatFormat* kAllFormats[] = {&kBF16, &kE4M3FN,   &kE4M3FNUZ,
                                                     &kE5M2, &kE5M2FNUZ, &kE2M1};

}  // namespace monoref::test
