// The functions of the portable contract as kernels compute them (mono-decode section 8): IEEE
// binary32 operations only, none of the chips' approximations, so that the bits are the same
// everywhere. Subnormals are kept. A NaN result is some NaN; whoever stores it makes it canonical.
#pragma once

#include <cstdint>

#include "device/kernels/number_formats.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

/// log2 e, with which powers of e become powers of 2.
constexpr float kLog2E = 1.4426950408889634F;

/// 1 / x, one rounding.
MONOREF_DEVICE float rcp(float x) {
  return 1.0F / x;
}

/// 1 / sqrt(x), two roundings.
MONOREF_DEVICE float rsq(float x) {
  return 1.0F / simt::sqrt_rn(x);
}

/// |x|.
MONOREF_DEVICE float magnitude_of(float x) {
  return simt::bit_cast<float>(simt::bit_cast<std::uint32_t>(x) & ~kSignBit);
}

/// The larger of two numbers; NaN if one of them is.
MONOREF_DEVICE float max_or_nan(float a, float b) {
  return a != a || a > b ? a : b;
}

/// 2^n for -126 <= n <= 127.
MONOREF_DEVICE float power_of_two(std::int32_t n) {
  return simt::bit_cast<float>(static_cast<std::uint32_t>(n + 127) << 23);
}

/// 2^x within 1 ulp, by the stated sequence: x = n + r with n the nearest integer (ties to even),
/// a polynomial of degree 6 in r as a chain of fmas, and the scaling by 2^n in two factors, of
/// which only the second can round (where the result is subnormal).
MONOREF_DEVICE float exp2_portable(float x) {
  if (x != x) return simt::bit_cast<float>(kCanonicalNanBits);
  if (x >= 128.0F) return simt::bit_cast<float>(kInfinityBits);
  if (x <= -150.0F) return 0.0F;
  // 1.5 * 2^23: numbers of this size have a last place of 1, so the sum is rounded to an integer.
  constexpr float kIntegers = 12582912.0F;
  const float n = (x + kIntegers) - kIntegers;
  const float r = x - n;
  float p = 0x1.416b52p-13F;
  p = simt::fma(p, r, 0x1.5f082ep-10F);
  p = simt::fma(p, r, 0x1.3b2de0p-7F);
  p = simt::fma(p, r, 0x1.c6af7cp-5F);
  p = simt::fma(p, r, 0x1.ebfbdcp-3F);
  p = simt::fma(p, r, 0x1.62e430p-1F);
  p = simt::fma(p, r, 1.0F);
  const auto exponent = static_cast<std::int32_t>(n);
  const std::int32_t half = exponent >> 1;
  return (p * power_of_two(half)) * power_of_two(exponent - half);
}

}  // namespace
}  // namespace monoref::kernels
