// What a proven range becomes when it is rounded to a small format: a run of neighbouring codes.
#pragma once

#include <cstdint>

#include "reference/arithmetic/bounded.hpp"
#include "reference/formats/float_format.hpp"

namespace monoref {

/// All codes that rounding some number of a range can give.
struct CodeRange {
  const FloatFormat* format = nullptr;
  int first = 0;  ///< ordinals (see `ordinal`); first > last: no numbers
  int last = -1;
  bool may_be_nan = false;
  /// Whether a zero may carry that sign; a range that ends at zero may give both.
  bool positive_zero = true;
  bool negative_zero = true;

  /// Could this code be the result? Any NaN code counts as NaN.
  bool admits(std::uint32_t code) const;
  /// Number of codes admitted, NaN counting as one, and so do the two zeros.
  int size() const;
};

/// The codes of `value` rounded once to `format` by the rules of `encode`. Rounding is monotone, so
/// the ends of the range give the ends of the run.
CodeRange code_range(const Bounded& value, const FloatFormat& format, Overflow overflow);

/// The range of numbers after that rounding, for a computation that goes on with the rounded value.
Bounded rounded_to(const Bounded& value, const FloatFormat& format, Overflow overflow);

}  // namespace monoref
