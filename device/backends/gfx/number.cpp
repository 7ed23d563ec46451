#include "device/backends/gfx/number.hpp"

#include <numbers>

namespace monoref::device::gfx {
namespace {

u32 flushed(u32 x) {
  return (x & 0x7f800000U) == 0 ? x & 0x80000000U : x;
}

/// F in extended precision, rounded once to binary32.
template <class F>
u32 function(u32 x, F f) {
  const u32 bits = flushed(x);
  if (is_nan(bits)) return bits | kQuiet;
  const auto result = static_cast<float>(f(static_cast<long double>(as_float(bits))));
  return result != result ? kNan : flushed(as_bits(result));
}

/// The angle of a number of revolutions, of which the whole ones do not count.
long double angle(long double revolutions) {
  return (revolutions - std::trunc(revolutions)) * 2 * std::numbers::pi_v<long double>;
}

}  // namespace

u32 class_of(u32 bits) {
  const bool negative = bits >> 31 != 0;
  const u32 exponent = bits >> 23 & 0xff;
  const u32 fraction = bits & 0x7fffff;
  if (exponent == 0xff && fraction != 0) return (bits & kQuiet) != 0 ? 2 : 1;
  if (exponent == 0xff) return negative ? 1U << 2 : 1U << 9;
  if (exponent != 0) return negative ? 1U << 3 : 1U << 8;
  if (fraction != 0) return negative ? 1U << 4 : 1U << 7;
  return negative ? 1U << 5 : 1U << 6;
}

u32 reciprocal(u32 x) {
  return function(x, [](long double v) { return 1 / v; });
}
u32 reciprocal_root(u32 x) {
  return function(x, [](long double v) { return 1 / std::sqrt(v); });
}
u32 root(u32 x) {
  return function(x, [](long double v) { return std::sqrt(v); });
}
u32 exp2_of(u32 x) {
  return function(x, [](long double v) { return std::exp2(v); });
}
u32 log2_of(u32 x) {
  return function(x, [](long double v) { return std::log2(v); });
}
u32 sin_of(u32 x) {
  return function(x, [](long double v) { return std::sin(angle(v)); });
}
u32 cos_of(u32 x) {
  return function(x, [](long double v) { return std::cos(angle(v)); });
}

u32 scale_by(u32 x, i32 exponent) {
  if (is_nan(x)) return x | kQuiet;
  return as_bits(std::ldexp(as_float(x), exponent));
}
u32 round_even(u32 x) {
  if (is_nan(x)) return x | kQuiet;
  const float r = as_float(x);
  const float whole =
      std::abs(r) < 0x1p23F ? std::copysign((std::abs(r) + 0x1p23F) - 0x1p23F, r) : r;
  return as_bits(whole);
}

}  // namespace monoref::device::gfx
