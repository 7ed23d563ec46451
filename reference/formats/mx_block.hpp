// MX blocks: 32 elements that share one E8M0 scale.
#pragma once

#include <cstdint>
#include <span>

#include "reference/arithmetic/subnormals.hpp"
#include "reference/formats/e8m0.hpp"
#include "reference/formats/float_format.hpp"
#include "reference/formats/mx_scale.hpp"

namespace monoref {

inline constexpr std::size_t kMxBlock = 32;

/// Two E2M1 codes in a byte: the even element in the low nibble (mono-decode section 10).
constexpr std::uint8_t pack_fp4(std::uint32_t even, std::uint32_t odd) {
  return static_cast<std::uint8_t>((even & 0xFu) | (odd & 0xFu) << 4);
}
constexpr std::uint32_t even_fp4(std::uint8_t packed) {
  return packed & 0xFu;
}
constexpr std::uint32_t odd_fp4(std::uint8_t packed) {
  return packed >> 4;
}

/// Bytes that hold `values` elements.
constexpr std::size_t mx_code_bytes(MxElement element, std::size_t values) {
  return element == MxElement::kFp8 ? values : values / 2;
}

/// Quantises consecutive blocks of 32: `values` [32 n] to `codes` [32 n bytes of E4M3FN, or 16 n
/// bytes of packed E2M1] and `scales` [n]. Per block: amax by a NaN-propagating maximum of
/// magnitudes, the byte e by `rule`, then each element encode(x * 2^(127-e)), where the product is
/// one binary32 multiplication by a power of two. A scale of 255 makes every element NaN, which in
/// E2M1 is its largest number. `overflow` decides what happens past 448; mono clamps (kSaturate);
/// E2M1 always saturates. Refuses sizes that do not fit each other. Source: upstream-semantics
/// section 7.4, mono-decode section 7.
void mx_quantize(MxElement element, MxScaleRule rule, Overflow overflow,
                 std::span<const float> values, std::span<std::uint8_t> codes,
                 std::span<std::uint8_t> scales);

/// The inverse: `values[i]` = element * scale, one binary32 multiplication. It is exact unless it
/// leaves the binary32 range (then Inf) or is subnormal (then rounded, or flushed if `subnormals`
/// says so).
void mx_dequantize(MxElement element, E8M0Zero zero, Subnormals subnormals,
                   std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales,
                   std::span<float> values);

/// 2^(127 - code), what elements are multiplied by when a block is quantised; NaN for 255.
float inverse_e8m0(std::uint8_t code);

}  // namespace monoref
