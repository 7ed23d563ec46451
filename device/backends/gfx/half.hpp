// How entries of 16-bit instructions read their sources and write their results.
#pragma once

#include "device/backends/gfx/format.hpp"

namespace monoref::device::gfx {

/// Throws Unsupported unless MODE asks for what is implemented of 16-bit arithmetic.
void check_half_mode(const Wave& w);

/// 16 bits of source `n`, the half that `high` says, and for numbers with their signs and flushed
/// where MODE says so.
const u32* half_row(Wave& w, const Inst& i, unsigned n, bool high, Lanes& space);
const u32* half_number_row(Wave& w, const Inst& i, unsigned n, bool high, bool negative,
                           bool absolute, Lanes& space);

/// What a half of the destination's register keeps.
enum class Rest : std::uint8_t {
  kZero,  ///< the upper half becomes zero
  kKeep,  ///< what op_sel does not choose stays
};
/// Writes a row of 16 bits a lane.
void write_half_row(Wave& w, const Inst& i, Lanes& row, Rest rest);
/// The same of binary16 results: output modifier, clamp and flushing first.
void write_half_number_row(Wave& w, const Inst& i, Lanes& row, Rest rest);
/// What clamp, overflow mode and flushing make of binary16 results.
void finish_half_numbers(const Wave& w, const Inst& i, Lanes& row);

// Arithmetic on binary16, whose sources and results are bits.
inline double half_value(u32 bits) {
  return as_float(widen(kBinary16, bits));
}
inline bool is_half_nan(u32 bits) {
  return (bits & 0x7fff) > 0x7c00;
}
constexpr u32 kHalfQuiet = 0x200;
/// A number rounded; a NaN that is none of the sources' is the default one.
inline u32 half_result(double value, u32 a, u32 b, u32 c = 0) {
  if (value == value) return narrow(kBinary16, value);
  if (is_half_nan(a)) return a | kHalfQuiet;
  if (is_half_nan(b)) return b | kHalfQuiet;
  return is_half_nan(c) ? c | kHalfQuiet : 0x7e00;
}
inline u32 add_half(u32 a, u32 b) {
  return half_result(half_value(a) + half_value(b), a, b);
}
inline u32 sub_half(u32 a, u32 b) {
  return half_result(half_value(a) - half_value(b), a, b);
}
inline u32 mul_half(u32 a, u32 b) {
  return half_result(half_value(a) * half_value(b), a, b);
}
inline u32 fma_half(u32 a, u32 b, u32 c) {
  return half_result(sum_to_odd(half_value(a) * half_value(b), half_value(c)), a, b, c);
}
/// A place in the order of binary16: -0 lies below +0.
inline i32 half_order(u32 bits) {
  const i32 magnitude = static_cast<i32>(bits & 0x7fff);
  return (bits & 0x8000) != 0 ? -1 - magnitude : magnitude;
}
/// The smaller or larger number; a NaN only where both are.
inline u32 min_half(u32 a, u32 b) {
  if (is_half_nan(a)) return is_half_nan(b) ? a | kHalfQuiet : b;
  return is_half_nan(b) || half_order(a) < half_order(b) ? a : b;
}
inline u32 max_half(u32 a, u32 b) {
  if (is_half_nan(a)) return is_half_nan(b) ? a | kHalfQuiet : b;
  return is_half_nan(b) || half_order(a) > half_order(b) ? a : b;
}
/// The same, where one NaN makes the result one.
inline u32 minimum_half(u32 a, u32 b) {
  if (is_half_nan(a) || is_half_nan(b)) return half_result(kNanValue, a, b);
  return half_order(a) < half_order(b) ? a : b;
}
inline u32 maximum_half(u32 a, u32 b) {
  if (is_half_nan(a) || is_half_nan(b)) return half_result(kNanValue, a, b);
  return half_order(a) > half_order(b) ? a : b;
}

}  // namespace monoref::device::gfx
