// Operations on the bits of numbers that several tables share. Rounding is that of the thread.
#pragma once

#include <cmath>
#include <cstdint>

#include "device/backends/gfx/vector.hpp"

namespace monoref::device::gfx {

using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
using u16 = std::uint16_t;
using i16 = std::int16_t;

constexpr i32 as_signed(u32 value) {
  return static_cast<i32>(value);
}
constexpr i64 as_signed(u64 value) {
  return static_cast<i64>(value);
}

inline u32 add_float(u32 a, u32 b) {
  const float r = as_float(a) + as_float(b);
  return r != r ? nan_of(a, b) : as_bits(r);
}
inline u32 sub_float(u32 a, u32 b) {
  const float r = as_float(a) - as_float(b);
  return r != r ? nan_of(a, b) : as_bits(r);
}
inline u32 mul_float(u32 a, u32 b) {
  const float r = as_float(a) * as_float(b);
  return r != r ? nan_of(a, b) : as_bits(r);
}
inline u32 fma_float(u32 a, u32 b, u32 c) {
  const float r = __builtin_fmaf(as_float(a), as_float(b), as_float(c));
  return r != r ? nan_of(a, b, c) : as_bits(r);
}

/// A place in the order of binary32 as a number: -0 lies below +0.
inline i32 order_of(u32 bits) {
  const i32 value = as_signed(bits);
  return value < 0 ? value ^ 0x7fffffff : value;
}
inline bool is_nan(u32 bits) {
  return (bits & 0x7fffffffU) > 0x7f800000U;
}
/// The smaller number; a NaN only where both are.
inline u32 min_float(u32 a, u32 b) {
  const u32 less = order_of(a) < order_of(b) ? a : b;
  return is_nan(a) ? (is_nan(b) ? a | kQuiet : b) : is_nan(b) ? a : less;
}
inline u32 max_float(u32 a, u32 b) {
  const u32 more = order_of(a) < order_of(b) ? b : a;
  return is_nan(a) ? (is_nan(b) ? a | kQuiet : b) : is_nan(b) ? a : more;
}

inline bool is_signalling(u32 bits) {
  return is_nan(bits) && (bits & kQuiet) == 0;
}
/// What IEEE mode makes of that: a signalling NaN is the result, made quiet.
inline u32 min_float_ieee(u32 a, u32 b) {
  const u32 other = is_signalling(b) ? b | kQuiet : min_float(a, b);
  return is_signalling(a) ? a | kQuiet : other;
}
inline u32 max_float_ieee(u32 a, u32 b) {
  const u32 other = is_signalling(b) ? b | kQuiet : max_float(a, b);
  return is_signalling(a) ? a | kQuiet : other;
}

/// The same, where one NaN makes the result one.
inline u32 minimum_float(u32 a, u32 b) {
  return is_nan(a) || is_nan(b) ? nan_of(a, b) : order_of(a) < order_of(b) ? a : b;
}
inline u32 maximum_float(u32 a, u32 b) {
  return is_nan(a) || is_nan(b) ? nan_of(a, b) : order_of(a) < order_of(b) ? b : a;
}

/// Toward zero, to the nearest end where it does not fit, 0 for NaN.
inline i32 to_i32(float x) {
  if (x != x) return 0;
  if (x >= 0x1p31F) return std::numeric_limits<i32>::max();
  return x < -0x1p31F ? std::numeric_limits<i32>::min() : static_cast<i32>(x);
}
inline u32 to_u32(float x) {
  if (!(x > 0)) return 0;
  return x >= 0x1p32F ? ~0U : static_cast<u32>(static_cast<i64>(x));
}

/// The number of leading bits that a class of binary32 has in v_cmp_class.
u32 class_of(u32 bits);

// Functions within the documented ulp, here correctly rounded, with subnormals read and written as
// zero whatever MODE says.
u32 reciprocal(u32 x);
u32 reciprocal_root(u32 x);
u32 root(u32 x);
u32 exp2_of(u32 x);
u32 log2_of(u32 x);
/// Of an angle in revolutions.
u32 sin_of(u32 x);
u32 cos_of(u32 x);

u32 scale_by(u32 x, i32 exponent);  ///< ldexp
u32 round_even(u32 x);

}  // namespace monoref::device::gfx
