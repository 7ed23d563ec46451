// Fast conversions between binary32 and the small formats: tables for decoding, and a branch-free
// encoding that compilers vectorise. Equal to `decode` and `encode` of float_format.hpp on every
// input.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "reference/fast/isa.hpp"
#include "reference/formats/canonical_nan.hpp"
#include "reference/formats/float_format.hpp"

namespace monoref {

/// The value of each of the 256 codes of an FP8 format, a NaN as the canonical one. Refuses BF16;
/// the 16 codes of E2M1 repeat, so that either nibble of a byte finds its value after a shift.
const std::array<float, 256>& decode_table(const FloatFormat& format);

/// BF16 to binary32: exact, a NaN becomes the canonical one.
constexpr float float_from_bf16(std::uint16_t code) {
  return canonical(std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16));
}

/// Binary32 to BF16: to nearest even; past the largest number Inf; a NaN becomes 0x7FC0.
constexpr std::uint16_t bf16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  // The half below the kept bits, one less where the kept part is even: a carry is the rounding up.
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return value == value ? static_cast<std::uint16_t>(rounded) : std::uint16_t{0x7FC0};
}

/// Binary32 rounded to a BF16 number and widened again.
constexpr float round_to_bf16(float value) {
  return float_from_bf16(bf16_from_float(value));
}

/// One value of an FP8 format by its table, and one value encoded by the rules of `encode`.
inline float decode_fp8(const FloatFormat& format, std::uint8_t code) {
  return decode_table(format)[code];
}
std::uint8_t encode_fp8(const FloatFormat& format, float value, Overflow overflow);

/// Whole rows. Sizes must agree (refused otherwise); ranges must not overlap. `isa` is for tests
/// and measurements, one of `available_isas`.
void decode_fp8(const FloatFormat& format, std::span<const std::uint8_t> codes,
                std::span<float> values);
void encode_fp8(const FloatFormat& format, std::span<const float> values,
                std::span<std::uint8_t> codes, Overflow overflow, Isa isa = best_isa());
void decode_bf16(std::span<const std::uint16_t> codes, std::span<float> values,
                 Isa isa = best_isa());
void encode_bf16(std::span<const float> values, std::span<std::uint16_t> codes,
                 Isa isa = best_isa());

}  // namespace monoref
