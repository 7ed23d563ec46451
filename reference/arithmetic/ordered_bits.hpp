// Numbers as integers that compare like them.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace monoref {

/// The bits of a number as a signed integer, those of a negative one xor 0x7fffffff: larger numbers
/// have larger integers (mono-decode section 5). -0 stands just below +0; what a NaN becomes is for
/// the caller to decide first.
constexpr std::int32_t ordered_bits(float number) {
  const auto bits = std::bit_cast<std::int32_t>(number);
  return bits < 0 ? bits ^ std::numeric_limits<std::int32_t>::max() : bits;
}

}  // namespace monoref
