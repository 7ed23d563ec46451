// Norms whose results are BF16 hide the last places of their sum of squares; these elements do not.
#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "reference/formats/convert.hpp"
#include "tests/before_attention/numbers.hpp"

namespace monoref::testing {

/// An element of a row before its norm, and its weight less 1, both BF16.
struct NormElement {
  std::uint16_t v;
  std::uint16_t gamma;
};

/// The normalised element of a row of 6144 whose squares add up to a given number.
inline std::uint16_t normalised(NormElement element, float sum_of_squares, double eps) {
  const float root = 1.0f / std::sqrt(sum_of_squares / 6144.0f + static_cast<float>(eps));
  return bf16_from_float((from_bf16(element.v) * root) * (from_bf16(element.gamma) + 1.0f));
}

/// An element whose result lies next to a boundary of BF16, so that it differs between two sums of
/// squares which differ in their last places. It is so small that its own square vanishes beside 1.
inline NormElement telling_apart(float sum, float other, double eps) {
  for (std::uint16_t v = 0x2B80; v < 0x2C00; ++v)  // 2^-40 to 2^-39
    for (std::uint16_t gamma = 0x3C00; gamma < 0x4000; ++gamma)
      if (normalised({v, gamma}, sum, eps) != normalised({v, gamma}, other, eps)) return {v, gamma};
  throw std::logic_error("no element tells the two sums apart");
}

}  // namespace monoref::testing
