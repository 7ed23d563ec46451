#include "reference/rules/swiglu.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "reference/formats/convert.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref {
namespace {

using testing::refusal_of;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr SwigluRule kModel{};

/// Rounded to BF16, which hides the last places of exp2; the expected numbers come from the formula
/// in double, none of them near a tie.
std::uint16_t bf16(float gate, float up, const SwigluRule& rule = kModel) {
  return bf16_from_float(swiglu(gate, up, rule));
}

// G01: one pair for each parameter.
TEST(Swiglu, AlphaAndBetaTakePart) {
  EXPECT_EQ(bf16(1, 1), 0x3FD9) << "1.69159; plain SiLU would give 0.7311";
  EXPECT_EQ(bf16(1, 1, {7, 1, 0}), 0x3F3B) << "that plain SiLU, 0.73106";
  EXPECT_EQ(bf16(0.5f, 0.25f), 0x3EE0) << "0.437986";
}

TEST(Swiglu, TheGateIsClampedFromAboveOnly) {
  EXPECT_EQ(bf16(10, 3), 0x41E0) << "27.9998: 7 * sigmoid(11.914) * 4";
  EXPECT_EQ(bf16(-10, 3), 0xB5DA) << "-1.62318e-6; at -7 it would be -1.8749e-4";
  EXPECT_EQ(bf16(-7, 3), 0xB945);
}

TEST(Swiglu, UpIsClampedOnBothSides) {
  EXPECT_EQ(bf16(2, 9), 0x4178) << "15.4853, as for 7";
  EXPECT_EQ(bf16(2, -9), 0xC13A) << "-11.6140, as for -7";
  EXPECT_EQ(bf16(2, 7), bf16(2, 9));
  EXPECT_EQ(bf16(2, -7), bf16(2, -9));
  EXPECT_NE(bf16(2, 6), bf16(2, 9));
}

// G02: the limit is read, whatever it is.
TEST(Swiglu, TheLimitIsAParameter) {
  EXPECT_EQ(bf16(20, 20, {10, 1, 0}), 0x42C8) << "99.9955: 10 * sigmoid(10) * 10";
  EXPECT_EQ(bf16(20, 20, {kInfinity, 1, 0}), 0x43C8) << "400.0 without a clamp";
  EXPECT_EQ(bf16(8, 9, {0.5f, 1.702f, 1}), 0x3F07) << "0.525583";
}

TEST(Swiglu, EveryProductIsRounded) {
  // alpha 0 makes the exponential 1 and the reciprocal 1/2: the rest is exact by hand.
  EXPECT_EQ(swiglu(3, 4, {kInfinity, 0, 1}), 7.5f);
  // (g / 2) * (u + 1) with u + 1 = 2^24: the addition is rounded by itself, up = 2^24 - 1 + 1.
  EXPECT_EQ(swiglu(2, 16777215, {kInfinity, 0, 1}), 16777216.0f);
  EXPECT_EQ(swiglu(2, 16777216, {kInfinity, 0, 1}), 16777216.0f) << "2^24 + 1 is no binary32";
}

TEST(Swiglu, NanAndInfinityFollowTheFormula) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  EXPECT_EQ(bits(swiglu(nan, 1, kModel)), 0x7FC00000u) << "the clamp lets it through";
  EXPECT_EQ(bits(swiglu(1, nan, kModel)), 0x7FC00000u);
  EXPECT_EQ(bits(swiglu(-kInfinity, 1, kModel)), 0x7FC00000u) << "-Inf * (1 / Inf)";
  EXPECT_EQ(swiglu(kInfinity, 1, kModel), swiglu(7, 1, kModel));
  EXPECT_EQ(swiglu(1, kInfinity, kModel), swiglu(1, 7, kModel));
  EXPECT_EQ(swiglu(kInfinity, 1, {kInfinity, 1.702f, 1}), kInfinity);
  EXPECT_EQ(bits(swiglu(-200, 1, kModel)), 0x80000000u) << "exp2 overflows, its reciprocal is 0";
  EXPECT_EQ(bits(swiglu(-0.0f, 1, kModel)), 0x80000000u);
}

// G04: 0 is refused, or is no clamp, by the contract; anything below is refused.
TEST(Swiglu, ALimitOfZeroIsAChoice) {
  const auto refusal = [](double limit, std::string_view contract) {
    return refusal_of([&] { swiglu_rule("experts", limit, 1.702, 1, Contract::parse(contract)); });
  };
  EXPECT_EQ(refusal(0, "mono"), "experts: limit is 0, must be above 0 in binary32");
  EXPECT_EQ(refusal(-7, "mono"), "experts: limit is -7, must be above 0 in binary32");
  EXPECT_EQ(refusal(std::nan(""), "mono"), "experts: limit is nan, must be above 0 in binary32");
  EXPECT_EQ(refusal(-7, "mono,swiglu_limit_zero=no_clamp"),
            "experts: limit is -7, must be above 0 in binary32");
  EXPECT_EQ(refusal(kInfinity, "mono"), "");
  const Contract no_clamp = Contract::parse("mono,swiglu_limit_zero=no_clamp");
  for (const double zero : {0.0, -0.0})
    EXPECT_EQ(bf16(20, 20, swiglu_rule("experts", zero, 1, 0, no_clamp)), 0x43C8)
        << "unclamped, and not all zeros";
}

TEST(Swiglu, TheOtherParametersMustBeNumbers) {
  EXPECT_EQ(refusal_of([] { swiglu_rule("experts", 7, 1e300, 1, {}); }),
            "experts: alpha is 1e+300, must be finite in binary32");
  EXPECT_EQ(refusal_of([] { swiglu_rule("experts", 7, std::nan(""), 1, {}); }),
            "experts: alpha is nan, must be finite in binary32");
  EXPECT_EQ(refusal_of([] { swiglu_rule("experts", 7, 1, -kInfinity, {}); }),
            "experts: beta is -inf, must be finite in binary32");
}

}  // namespace
}  // namespace monoref
