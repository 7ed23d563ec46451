// The portable functions: special values, correct rounding, the error of exp2, NaN in min and max.
#include "reference/arithmetic/portable.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "reference/arithmetic/minmax.hpp"
#include "reference/core/error.hpp"
#include "tests/arithmetic/ulps.hpp"

namespace monoref {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();

std::uint32_t bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

#define EXPECT_BITS(actual, expected) EXPECT_EQ(bits(actual), bits(expected))

TEST(Portable, EveryNanIsCanonical) {
  const float odd_nan = std::bit_cast<float>(0xFFA00001u);
  for (const float value :
       {portable_rcp(odd_nan), portable_rsq(odd_nan), portable_exp2(odd_nan), portable_rsq(-1.0f),
        portable_div(odd_nan, 1.0f), portable_div(0.0f, 0.0f), portable_div(kInf, -kInf),
        portable_fma(0.0f, kInf, 1.0f), portable_fma(1.0f, odd_nan, 1.0f), nan_max(odd_nan, 1.0f),
        nan_max(1.0f, odd_nan), nan_min(odd_nan, 1.0f), nan_min(1.0f, odd_nan),
        nan_clamp(odd_nan, 0.0f, 1.0f), canonical(odd_nan)})
    EXPECT_EQ(bits(value), kCanonicalNanBits);
}

TEST(Portable, RcpAndRsqAtTheEnds) {
  EXPECT_BITS(portable_rcp(0.0f), kInf);
  EXPECT_BITS(portable_rcp(-0.0f), -kInf);
  EXPECT_BITS(portable_rcp(kInf), 0.0f);
  EXPECT_BITS(portable_rcp(-kInf), -0.0f);
  EXPECT_BITS(portable_rcp(0x1p-128f), kInf) << "2^128 is past binary32";
  EXPECT_BITS(portable_rcp(0x1p-127f), 0x1p127f) << "a subnormal argument is kept";
  EXPECT_BITS(portable_rcp(0x1p127f), 0x1p-127f) << "a subnormal result is kept";
  EXPECT_BITS(portable_rcp(kMax), 0x1p-128f);
  EXPECT_BITS(portable_rsq(0.0f), kInf);
  EXPECT_BITS(portable_rsq(-0.0f), -kInf);
  EXPECT_BITS(portable_rsq(kInf), 0.0f);
  EXPECT_BITS(portable_rsq(0x1p-148f), 0x1p74f) << "a subnormal argument is kept";
  EXPECT_BITS(portable_rsq(4.0f), 0.5f);
}

TEST(Portable, DivisionKeepsSubnormals) {
  EXPECT_BITS(portable_div(0x1p-149f, 1.0f), 0x1p-149f);
  EXPECT_BITS(portable_div(0x1p-126f, 2.0f), 0x1p-127f);
  EXPECT_BITS(portable_div(0x1p-149f, 2.0f), 0.0f) << "a tie, to even";
  EXPECT_BITS(portable_div(3 * 0x1p-149f, 2.0f), 0x1p-148f) << "a tie, to even";
  EXPECT_BITS(portable_div(1.0f, -0.0f), -kInf);
  EXPECT_BITS(portable_div(-0.0f, 5.0f), -0.0f);
}

TEST(Portable, FmaRoundsOnce) {
  // (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 exactly; a product rounded first would give 0.
  EXPECT_BITS(portable_fma(1 + 0x1p-12f, 1 + 0x1p-12f, -(1 + 0x1p-11f)), 0x1p-24f);
  EXPECT_BITS(portable_fma(0x1p-75f, 0x1p-74f, 0.0f), 0x1p-149f);
}

TEST(Portable, Exp2AtTheEnds) {
  EXPECT_BITS(portable_exp2(0.0f), 1.0f);
  EXPECT_BITS(portable_exp2(-0.0f), 1.0f);
  EXPECT_BITS(portable_exp2(0x1p-149f), 1.0f);
  EXPECT_BITS(portable_exp2(kInf), kInf);
  EXPECT_BITS(portable_exp2(128.0f), kInf);
  EXPECT_TRUE(std::isfinite(portable_exp2(std::nextafter(128.0f, 0.0f))));
  EXPECT_BITS(portable_exp2(kMax), kInf);
  EXPECT_BITS(portable_exp2(-kInf), 0.0f);
  EXPECT_BITS(portable_exp2(-150.0f), 0.0f) << "a tie of 0 and 2^-149, to even";
  EXPECT_BITS(portable_exp2(-149.0f), 0x1p-149f);
  EXPECT_BITS(portable_exp2(-kMax), 0.0f);
  for (int n = -149; n <= 127; ++n)
    EXPECT_BITS(portable_exp2(static_cast<float>(n)), std::ldexp(1.0f, n)) << n;
}

TEST(Portable, Exp2IsWithinOneUlp) {
  double worst = 0;
  // An odd step over all bit patterns, then every float around the places where n changes.
  for (std::uint64_t pattern = 0; pattern < std::uint64_t{1} << 32; pattern += 1021) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(pattern));
    if (std::isnan(x)) continue;
    worst = std::max(worst, test::ulps(portable_exp2(x), std::exp2(static_cast<double>(x))));
  }
  for (int twice = -300; twice <= 256; ++twice) {
    float x = static_cast<float>(twice) / 2;
    for (int i = 0; i < 200; ++i) x = std::nextafter(x, -kInf);
    for (int i = 0; i < 400; ++i, x = std::nextafter(x, kInf))
      worst = std::max(worst, test::ulps(portable_exp2(x), std::exp2(static_cast<double>(x))));
  }
  EXPECT_LE(worst, 1.0);
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(Portable, Exp2OfRowsHasTheSameBitsAtEveryLevel) {
  std::vector<float> x;
  for (std::uint64_t pattern = 0; pattern < std::uint64_t{1} << 32; pattern += 4093)
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(pattern)));
  std::vector<float> y(x.size());
  for (const Isa isa : available_isas()) {
    portable_exp2(x, y, isa);
    std::size_t different = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      different += bits(y[i]) == bits(portable_exp2(x[i])) ? 0 : 1;
    EXPECT_EQ(different, 0u) << isa_name(isa);
  }
  EXPECT_THROW(portable_exp2(x, std::span(y).first(1)), Refusal);
}

TEST(Portable, Exp2IsMonotoneOnASample) {
  float last = 0;
  for (float x = -150; x < 128; x += 0x1p-10f) {
    const float y = portable_exp2(x);
    EXPECT_LE(last, y) << x;
    last = y;
  }
}

TEST(MinMax, OrdersZerosAndNumbers) {
  EXPECT_BITS(nan_max(-0.0f, 0.0f), 0.0f);
  EXPECT_BITS(nan_max(0.0f, -0.0f), 0.0f);
  EXPECT_BITS(nan_max(-0.0f, -0.0f), -0.0f);
  EXPECT_BITS(nan_min(-0.0f, 0.0f), -0.0f);
  EXPECT_BITS(nan_min(0.0f, -0.0f), -0.0f);
  EXPECT_BITS(nan_min(0.0f, 0.0f), 0.0f);
  EXPECT_BITS(nan_max(-kInf, -3.0f), -3.0f);
  EXPECT_BITS(nan_min(kInf, 3.0f), 3.0f);
  EXPECT_BITS(nan_clamp(9.0f, -7.0f, 7.0f), 7.0f);
  EXPECT_BITS(nan_clamp(-9.0f, -7.0f, 7.0f), -7.0f);
  EXPECT_BITS(nan_clamp(0.5f, -7.0f, kInf), 0.5f);
}

}  // namespace
}  // namespace monoref
