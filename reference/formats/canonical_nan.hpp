// The one NaN of the contract (mono-decode section 10).
#pragma once

#include <bit>
#include <cstdint>

namespace monoref {

inline constexpr std::uint32_t kCanonicalNanBits = 0x7FC00000u;
inline constexpr float kCanonicalNan = std::bit_cast<float>(kCanonicalNanBits);

/// `value`, or the canonical NaN in place of any NaN. Hardware disagrees on the bits of the NaN an
/// operation makes (x86 0xFFC00000, Hopper 0x7FFFFFFF), so a NaN passes through here before it is
/// stored and before a sorting key is formed from it.
constexpr float canonical(float value) {
  return value == value ? value : kCanonicalNan;
}

/// True if both have the same bits, or both are NaN. The sign of zero counts.
constexpr bool same_float(float a, float b) {
  return std::bit_cast<std::uint32_t>(canonical(a)) == std::bit_cast<std::uint32_t>(canonical(b));
}

}  // namespace monoref
