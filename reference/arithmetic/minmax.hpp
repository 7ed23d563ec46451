// Maximum and minimum that let NaN through (mono-decode section 10).
#pragma once

#include "reference/formats/canonical_nan.hpp"

namespace monoref {

/// The larger number; NaN, in its canonical form, if either is NaN; +0 is larger than -0.
constexpr float nan_max(float a, float b) {
  if (a != a || b != b) return kCanonicalNan;
  if (a == 0 && b == 0) return std::bit_cast<std::uint32_t>(a) == 0 ? a : b;
  return a < b ? b : a;
}

/// The smaller number; NaN, in its canonical form, if either is NaN; -0 is smaller than +0.
constexpr float nan_min(float a, float b) {
  if (a != a || b != b) return kCanonicalNan;
  if (a == 0 && b == 0) return std::bit_cast<std::uint32_t>(a) == 0 ? b : a;
  return b < a ? b : a;
}

/// max(low, min(value, high)), NaN kept.
constexpr float nan_clamp(float value, float low, float high) {
  return nan_max(low, nan_min(value, high));
}

}  // namespace monoref
