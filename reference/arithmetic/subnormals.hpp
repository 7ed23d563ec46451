// What becomes of subnormal binary32 numbers (mono-decode section 8, "f32 denormals").
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace monoref {

enum class Subnormals : std::uint8_t {
  kKeep,   ///< IEEE: the portable contract
  kFlush,  ///< a subnormal becomes zero of its sign
};

/// `value`, or zero of its sign in place of a subnormal if `rule` flushes.
inline float flushed(float value, Subnormals rule) {
  const bool subnormal = std::fabs(value) < std::numeric_limits<float>::min();
  return rule == Subnormals::kFlush && subnormal ? std::copysign(0.0f, value) : value;
}

}  // namespace monoref
