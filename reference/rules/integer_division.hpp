// Division of integers with the rounding stated: the metadata formulas divide numbers that can be
// negative, where C++ rounds toward zero and the original's host code rounds down.
#pragma once

#include <cstdint>

namespace monoref {

/// The largest integer not above value / divisor; divisor > 0.
constexpr std::int64_t floor_divide(std::int64_t value, std::int64_t divisor) {
  const std::int64_t quotient = value / divisor;
  return value % divisor < 0 ? quotient - 1 : quotient;
}

/// The smallest integer not below value / divisor; divisor > 0.
constexpr std::int64_t ceil_divide(std::int64_t value, std::int64_t divisor) {
  const std::int64_t quotient = value / divisor;
  return value % divisor > 0 ? quotient + 1 : quotient;
}

}  // namespace monoref
