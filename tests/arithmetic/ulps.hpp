// Error of a binary32 result in units of its last place.
#pragma once

#include <algorithm>
#include <cmath>

namespace monoref::test {

/// |result - exact| in ulps of binary32 at `exact`: 2^-23 of its binade, 2^-149 below the normals.
/// An exact value that rounds past binary32 and an infinite result agree.
inline double ulps(float result, double exact) {
  if (std::isinf(result) && std::fabs(exact) >= 0x1.ffffffp127 &&
      std::signbit(result) == std::signbit(exact))
    return 0;
  if (result == exact) return 0;
  const int exponent = exact == 0 ? -126 : std::max(std::ilogb(exact), -126);
  return std::fabs(result - exact) / std::ldexp(1.0, exponent - 23);
}

}  // namespace monoref::test
