// The bytes that stand where no kernel has written, and where none may write.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monoref::device {

/// A pattern whose every aligned 2, 4 or 8 bytes are a NaN (bf16, f16, f32, f64) and, as an
/// integer, a number far beyond any index. `variant` gives neighbours different bytes, so that a
/// copy out of one guard region into another shows.
class Poison {
 public:
  explicit constexpr Poison(std::size_t variant = 0)
      : low_(static_cast<std::uint8_t>(0xf1 + variant % 15)) {}

  /// Fills [begin, end).
  void fill(std::byte* begin, std::byte* end) const;
  /// The first byte in [begin, end) that is not as filled; `end` if there is none.
  const std::byte* first_difference(const std::byte* begin, const std::byte* end) const;

 private:
  /// Low byte at even addresses, 0x7f at odd ones.
  std::byte at(const std::byte* address) const {
    return (reinterpret_cast<std::uintptr_t>(address) & 1) == 0 ? std::byte{low_} : std::byte{0x7f};
  }
  std::uint64_t word() const { return (0x7f00U | low_) * std::uint64_t{0x0001000100010001}; }

  std::uint8_t low_;
};

}  // namespace monoref::device
