#include "reference/arithmetic/code_range.hpp"

#include <algorithm>
#include <cmath>

namespace monoref {
namespace {

/// One end of a range after rounding.
struct End {
  int place;       ///< ordinal; of the largest number if the end overflows to NaN
  bool overflows;  ///< to NaN
};

End rounded_end(double value, const FloatFormat& format, Overflow overflow) {
  const std::uint32_t code = encode(format, value, overflow);
  if (classify(format, code) != FloatClass::kNan) return {ordinal(format, code), false};
  return {ordinal(format, encode(format, value, Overflow::kSaturate)), true};
}

/// Under the NaN rule numbers past the largest give NaN even where Inf itself would be kept.
bool reaches_past_numbers(const Bounded& value, Overflow overflow) {
  return overflow == Overflow::kNan && (std::isinf(value.low) || std::isinf(value.high)) &&
         value.low != value.high;
}

}  // namespace

bool CodeRange::admits(std::uint32_t code) const {
  if (classify(*format, code) == FloatClass::kNan) return may_be_nan;
  const int place = ordinal(*format, code);
  if (place < first || place > last) return false;
  if (place != 0) return true;
  return (code & format->sign_bit()) != 0 ? negative_zero : positive_zero;
}

int CodeRange::size() const {
  return std::max(last - first + 1, 0) + (may_be_nan && format->has_nan() ? 1 : 0);
}

CodeRange code_range(const Bounded& value, const FloatFormat& format, Overflow overflow) {
  CodeRange range;
  range.format = &format;
  range.may_be_nan = value.may_be_nan;
  if (value.has_numbers()) {
    const End low = rounded_end(value.low, format, overflow);
    const End high = rounded_end(value.high, format, overflow);
    range.may_be_nan = range.may_be_nan || low.overflows || high.overflows ||
                       reaches_past_numbers(value, overflow);
    // A range that starts past the largest number has no code for it, and gives NaN in its place.
    range.first = low.overflows && low.place > 0 ? low.place + 1 : low.place;
    range.last = high.overflows && high.place < 0 ? high.place - 1 : high.place;
    range.negative_zero = value.low <= 0;
    range.positive_zero = value.high >= 0 || !format.has_negative_zero();
  }
  if (value.may_be_nan && !format.has_nan()) {  // a NaN becomes the largest number
    const auto largest = static_cast<int>(format.largest());
    range.first = range.first > range.last ? largest : range.first;
    range.last = largest;
  }
  return range;
}

Bounded rounded_to(const Bounded& value, const FloatFormat& format, Overflow overflow) {
  const CodeRange range = code_range(value, format, overflow);
  if (range.first > range.last) return Bounded::only_nan();
  const auto number = [&](int place) {
    const auto magnitude = static_cast<std::uint32_t>(std::abs(place));
    return static_cast<double>(
        decode(format, place < 0 ? magnitude | format.sign_bit() : magnitude));
  };
  return {number(range.first), number(range.last), range.may_be_nan && format.has_nan()};
}

}  // namespace monoref
