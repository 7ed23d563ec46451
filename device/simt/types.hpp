// The types that cross-lane operations and atomics take, on every target.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace monoref::simt {

/// What a lane hands to another.
template <class T>
concept LaneValue = std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

/// What atomics and flags are.
template <class T>
concept AtomicWord = std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

/// What atomic_add adds.
template <class T>
concept AtomicSum = std::same_as<T, std::int32_t> || std::same_as<T, std::uint32_t> ||
                    std::same_as<T, std::uint64_t> || std::same_as<T, float>;

}  // namespace monoref::simt
