// Moving rows of elements, 16 bytes at a time where the addresses allow it.
#pragma once

#include <cstdint>

#include "device/simt.hpp"

namespace monoref::kernels {

/// True if a 16-byte access at `address` is aligned.
MONOREF_DEVICE bool aligned16(const void* address) {
  return (reinterpret_cast<std::uintptr_t>(address) & 15) == 0;
}

/// Loads or stores two neighbouring 64-bit numbers at a 16-byte aligned address.
MONOREF_DEVICE void load_pair(const std::int64_t* from, std::int64_t* first, std::int64_t* second) {
  const simt::Vec16 bits = simt::load16(from);
  *first = static_cast<std::int64_t>(bits.word[0] | std::uint64_t{bits.word[1]} << 32);
  *second = static_cast<std::int64_t>(bits.word[2] | std::uint64_t{bits.word[3]} << 32);
}
MONOREF_DEVICE void store_pair(std::int64_t* to, std::int64_t first, std::int64_t second) {
  const auto a = static_cast<std::uint64_t>(first);
  const auto b = static_cast<std::uint64_t>(second);
  simt::store16(to, {{static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32),
                      static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32)}});
}

/// Copies `count` elements from one row to another, shared among `step` threads of which this one
/// is number `first`. Neighbouring threads touch neighbouring memory. Whole 16-byte units go as
/// such if both rows start on one; the rest, or else everything, goes element by element. The rows
/// do not overlap. No element at or behind `count` is read or written.
template <class Element>
MONOREF_DEVICE void copy_row(const Element* from, Element* to, std::int64_t count,
                             std::int64_t first, std::int64_t step) {
  constexpr std::int64_t kUnit = 16 / sizeof(Element);
  const std::int64_t units = aligned16(from) && aligned16(to) ? count / kUnit : 0;
  for (std::int64_t i = first; i < units; i += step)
    simt::store16(to + i * kUnit, simt::load16(from + i * kUnit));
  for (std::int64_t i = units * kUnit + first; i < count; i += step) to[i] = from[i];
}

/// Sets `count` elements of a row to `value`, shared among threads as in `copy_row`. Whole 16-byte
/// units inside the row go as such, wherever the row starts.
MONOREF_DEVICE void fill_row(std::int32_t* to, std::int64_t count, std::int32_t value,
                             std::int64_t first, std::int64_t step) {
  const auto address = reinterpret_cast<std::uintptr_t>(to);
  const auto to_next_unit = static_cast<std::int64_t>((16 - address % 16) % 16 / 4);
  const std::int64_t head = to_next_unit < count ? to_next_unit : count;
  const std::int64_t units = (count - head) / 4;
  const auto word = static_cast<std::uint32_t>(value);
  for (std::int64_t i = first; i < head; i += step) to[i] = value;
  for (std::int64_t i = first; i < units; i += step)
    simt::store16(to + head + 4 * i, {{word, word, word, word}});
  for (std::int64_t i = head + 4 * units + first; i < count; i += step) to[i] = value;
}

}  // namespace monoref::kernels
