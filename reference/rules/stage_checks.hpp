// Checks that every integer stage makes on its arguments.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

#include "reference/core/error.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

inline constexpr std::int64_t kInt32Min = std::numeric_limits<std::int32_t>::min();
inline constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

/// True if a number computed in 64 bits is also the number that 32 bits can store.
constexpr bool fits_int32(std::int64_t value) {
  return kInt32Min <= value && value <= kInt32Max;
}

/// Refuses a view whose dims are not the ones the stage asks for. `argument` is "stage: name".
template <class T, std::size_t Rank>
void require_dims(std::string_view argument, const View<T, Rank>& view,
                  const std::array<std::int64_t, Rank>& dims) {
  for (std::size_t axis = 0; axis < Rank; ++axis)
    if (view.dim(axis) != dims[axis])
      refuse("{} has {} in dimension {}, must have {}", argument, view.dim(axis), axis, dims[axis]);
}

}  // namespace monoref
