// E8M0: a byte that stands for the power of two 2^(byte - 127). No sign, no zero, no mantissa.
#pragma once

#include <cstdint>

#include "reference/formats/float_format.hpp"

namespace monoref {

inline constexpr std::uint8_t kE8M0Nan = 255;
inline constexpr std::uint8_t kE8M0Largest = 254;

/// What byte 0 stands for. The OCP format and PyTorch say 2^-127; shifting the byte into a binary32
/// exponent, as FlyDSL does, gives 0 (upstream-semantics section 7.4, bug case X07).
enum class E8M0Zero : std::uint8_t { kSmallest, kZero };

/// The number a byte stands for; 255 is NaN (bug case X06: 134 is 128, whatever 255 is).
float decode_e8m0(std::uint8_t code, E8M0Zero zero);

/// The nearest power of two, by distance, a tie to the even byte. Zero gives byte 0, the nearest
/// there is; a negative number gives NaN. Past 1.5 * 2^127 and for Inf: 254 if `overflow`
/// saturates, else NaN. Block scales are not made by this but by the rules of mx_scale.hpp.
std::uint8_t encode_e8m0(double value, Overflow overflow);

/// Every byte is a normal number or NaN.
FloatClass classify_e8m0(std::uint8_t code);

/// The neighbouring power of two; the ends and NaN stay.
std::uint8_t next_up_e8m0(std::uint8_t code);
std::uint8_t next_down_e8m0(std::uint8_t code);

}  // namespace monoref
