// Nightly: the portable functions on all 2^32 floats.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "reference/arithmetic/portable.hpp"
#include "tests/arithmetic/ulps.hpp"

namespace monoref {
namespace {

/// The largest `error(x)` over all floats that are not NaN.
template <class Error>
double worst_over_all_floats(Error error) {
  double worst = 0;
#pragma omp parallel for schedule(dynamic, 64) reduction(max : worst)
  for (std::uint32_t high = 0; high < 65536; ++high)
    for (std::uint32_t low = 0; low < 65536; ++low) {
      const auto x = std::bit_cast<float>(high << 16 | low);
      if (!std::isnan(x)) worst = std::max(worst, error(x));
    }
  return worst;
}

TEST(ExhaustivePortable, Exp2IsWithinOneUlp) {
  const double worst = worst_over_all_floats(
      [](float x) { return test::ulps(portable_exp2(x), std::exp2(static_cast<double>(x))); });
  EXPECT_LE(worst, 1.0);
  RecordProperty("worst_ulps", std::to_string(worst));
}

// A quotient rounded to 53 bits, more than twice 24 plus one, and then to binary32 is the correctly
// rounded quotient where that is normal. Where it is subnormal, half an ulp is what can be asked.
TEST(ExhaustivePortable, RcpIsCorrectlyRounded) {
  const double worst = worst_over_all_floats([](float x) {
    const double exact = 1.0 / static_cast<double>(x);
    if (std::fabs(exact) < 0x1p-126) return test::ulps(portable_rcp(x), exact);
    return same_float(portable_rcp(x), static_cast<float>(exact)) ? 0.0 : 1.0;
  });
  EXPECT_LE(worst, 0.5);
}

// Half an ulp from the division. The root's half ulp is a relative error of at most 2^-24, which
// moves the result by at most 2^-24 of itself: less than one ulp.
TEST(ExhaustivePortable, RsqIsTwoRoundings) {
  const double worst = worst_over_all_floats([](float x) {
    if (std::signbit(x)) {
      const float expected = x == 0 ? -HUGE_VALF : kCanonicalNan;
      return same_float(portable_rsq(x), expected) ? 0.0 : 2.0;
    }
    return test::ulps(portable_rsq(x), 1.0 / std::sqrt(static_cast<double>(x)));
  });
  EXPECT_LT(worst, 1.5);
  RecordProperty("worst_ulps", std::to_string(worst));
}

}  // namespace
}  // namespace monoref
