// The scalar functions of the portable contract (mono-decode section 8): sequences of IEEE binary32
// operations, so that x86, AMD and NVIDIA give the same bits. Results are canonical in NaN;
// subnormal arguments and results are kept.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "reference/fast/isa.hpp"
#include "reference/formats/canonical_nan.hpp"

namespace monoref {

/// a / b, correctly rounded.
inline float portable_div(float a, float b) {
  return canonical(a / b);
}

/// 1 / x, correctly rounded. rcp(+-0) = +-Inf, rcp(+-Inf) = +-0; a subnormal x below 2^-128 gives
/// Inf, an x above 2^126 a subnormal.
inline float portable_rcp(float x) {
  return canonical(1.0f / x);
}

/// 1 / sqrt(x), two roundings. rsq(+-0) = +-Inf, rsq(+Inf) = +0, NaN below zero.
inline float portable_rsq(float x) {
  return canonical(1.0f / std::sqrt(x));
}

/// a * b + c with one rounding.
inline float portable_fma(float a, float b, float c) {
  return canonical(std::fma(a, b, c));
}

/// Coefficients c1..c6 of 2^r = 1 + r (c1 + r (c2 + r (c3 + r (c4 + r (c5 + r c6))))) for |r| <=
/// 1/2. Fitted to the smallest largest relative error with each coefficient rounded to binary32 in
/// turn, which leaves 2^-28.3; the operations below add the rest.
inline constexpr std::array<float, 6> kExp2Coefficients{0x1.62e430p-1f,  0x1.ebfbdcp-3f,
                                                        0x1.c6af7cp-5f,  0x1.3b2de0p-7f,
                                                        0x1.5f082ep-10f, 0x1.416b52p-13f};

/// 2^x within 1 ulp (0.88 over all floats), by this sequence and no other:
///
///   x is NaN: the canonical NaN;  x >= 128: +Inf;  x <= -150: +0
///   n = (x + 12582912) - 12582912          two additions: x to the nearest integer, ties to even
///   r = x - n                              exact, |r| <= 1/2
///   q = c6;  q = fma(q, r, c5);  ...;  q = fma(q, r, c1)
///   p = fma(q, r, 1)
///   h = floor(n / 2)                       integers from here
///   result = (p * 2^h) * 2^(n - h)
///
/// The first product is exact; the second rounds only where the result is subnormal. Two factors
/// reach n = 128 and the subnormals without a case of their own.
[[gnu::always_inline]] inline float portable_exp2(float x) {
  constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: the sum's last place is 1
  const bool in_range = x > -150.0f && x < 128.0f;
  // Outside the range the sequence runs on 0, so that its conversion to an integer stays defined.
  const float argument = in_range ? x : 0.0f;
  const float shifted = argument + kToInteger;
  const float r = argument - (shifted - kToInteger);
  const int n = static_cast<int>(std::bit_cast<std::uint32_t>(shifted) -
                                 std::bit_cast<std::uint32_t>(kToInteger));
  float q = kExp2Coefficients[5];
  for (std::size_t i = 5; i-- > 0;) q = std::fma(q, r, kExp2Coefficients[i]);
  const float p = std::fma(q, r, 1.0f);
  const int half = n >> 1;
  const auto power = [](int exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
  };
  const float inside = (p * power(half)) * power(n - half);
  const float outside = x > 0 ? std::numeric_limits<float>::infinity() : 0.0f;
  return x != x ? kCanonicalNan : in_range ? inside : outside;
}

/// 2^x of a row, bit for bit the same and faster. Refuses sizes that differ; ranges must be the
/// same or not overlap.
void portable_exp2(std::span<const float> x, std::span<float> y, Isa isa = best_isa());

}  // namespace monoref
