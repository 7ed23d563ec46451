// Bounds of single operations and of sums, and sets of codes: ends, exactness, special values.
#include "reference/arithmetic/bounded.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/arithmetic/code_range.hpp"
#include "reference/core/error.hpp"
#include "reference/formats/convert.hpp"
#include "tests/formats/recorded_tensors.hpp"

namespace monoref {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr Rounding kExactOps = kCorrectRounding;

Bounded exactly(double value) {
  return Bounded::exactly(value);
}

void expect_only(const Bounded& bound, float value) {
  EXPECT_EQ(bound.low, value);
  EXPECT_EQ(bound.high, value);
  EXPECT_FALSE(bound.may_be_nan);
  EXPECT_EQ(bound.radius(), 0.0);
}

TEST(Bounded, RepresentableResultsStayExact) {
  expect_only(add(exactly(1), exactly(0x1p-23), kExactOps), 1 + 0x1p-23f);
  expect_only(multiply(exactly(-3), exactly(0.5), kExactOps), -1.5f);
  expect_only(divide(exactly(3), exactly(4), kExactOps), 0.75f);
  expect_only(square_root(exactly(2.25), kExactOps), 1.5f);
  expect_only(reciprocal(exactly(8), kExactOps), 0.125f);
  expect_only(subtract(exactly(5), exactly(7), kExactOps), -2.0f);
  expect_only(square(exactly(-3), kExactOps), 9.0f);
}

// The interval of one rounded operation holds the exact number and both floats around it that
// rounding could choose, and nothing beyond.
TEST(Bounded, OneRoundingReachesToTheNearestFloatOnly) {
  const Bounded third = divide(exactly(1), exactly(3), kExactOps);
  EXPECT_TRUE(third.admits(1.0f / 3.0f));
  EXPECT_FALSE(third.admits(std::nextafter(1.0f / 3.0f, 0.0f)));
  EXPECT_FALSE(third.admits(std::nextafter(1.0f / 3.0f, 1.0f)));
  const Bounded approximate = divide(exactly(1), exactly(3), Rounding{2.0, false});
  float value = 1.0f / 3.0f;
  for (int steps = 0; steps < 2; ++steps) {
    EXPECT_TRUE(approximate.admits(value)) << steps;
    value = std::nextafter(value, 1.0f);
  }
  for (int steps = 0; steps < 2; ++steps) value = std::nextafter(value, 1.0f);
  EXPECT_FALSE(approximate.admits(value));
}

// A result just below a power of two may come from an exact value just above it, where an ulp is
// twice as large.
TEST(Bounded, WidensAcrossAPowerOfTwoByTheLargerUlp) {
  const Bounded across = add(Bounded::between(1 - 0x1p-24, 1), exactly(0), Rounding{2.0, false});
  EXPECT_LE(across.low, 1 - 0x1p-22);
  EXPECT_LE(1 + 0x1p-22, across.high);
}

TEST(Bounded, IntervalsPropagate) {
  const Bounded x = Bounded::between(-2, 3);
  const Bounded y = Bounded::between(4, 5);
  const Bounded product = multiply(x, y, kExactOps);
  EXPECT_EQ(product.low, -10);
  EXPECT_EQ(product.high, 15);
  EXPECT_EQ(square(x, kExactOps).low, 0);
  EXPECT_EQ(square(x, kExactOps).high, 9);
  EXPECT_EQ(absolute(x).low, 0);
  EXPECT_EQ(absolute(x).high, 3);
  EXPECT_EQ(maximum(x, exactly(1)).low, 1);
  EXPECT_EQ(minimum(x, exactly(1)).high, 1);
  EXPECT_EQ(clamp(x, -1, 2).low, -1);
  EXPECT_EQ(clamp(x, -1, 2).high, 2);
  EXPECT_EQ(either(x, y).low, -2);
  EXPECT_EQ(either(x, y).high, 5);
  EXPECT_EQ(x.middle(), 0.5);
  EXPECT_GE(x.radius(), 2.5);
  const Bounded two = exp2(Bounded::between(0.5, 1), kExactOps);
  EXPECT_TRUE(two.admits(static_cast<float>(std::exp2(0.5))) && two.admits(2.0f));
  EXPECT_FALSE(two.admits(std::nextafter(2.0f, 3.0f)));
}

TEST(Bounded, DivisionByAnIntervalThatReachesZero) {
  const Bounded positive = divide(exactly(6), Bounded::between(0, 2), kExactOps);
  EXPECT_EQ(positive.low, 3);
  EXPECT_EQ(positive.high, kInf);
  EXPECT_FALSE(positive.may_be_nan);
  const Bounded negative = divide(exactly(6), Bounded::between(-2, 0), kExactOps);
  EXPECT_EQ(negative.low, -kInf);
  EXPECT_EQ(negative.high, -3);
  const Bounded across = divide(exactly(6), Bounded::between(-2, 2), kExactOps);
  EXPECT_TRUE(across.admits(-kInf) && across.admits(kInf) && across.admits(0.0f));
  EXPECT_TRUE(divide(exactly(0), exactly(0), kExactOps).may_be_nan);
  EXPECT_FALSE(divide(exactly(1), exactly(0), kExactOps).may_be_nan);
  const Bounded by_inf = divide(exactly(1), exactly(kInf), kExactOps);
  EXPECT_TRUE(by_inf.admits(0.0f));
  EXPECT_FALSE(by_inf.admits(0x1p-149f));
}

TEST(Bounded, NanAndInfinity) {
  for (const Bounded& bound :
       {add(exactly(kNan), exactly(1), kExactOps), multiply(exactly(1), exactly(kNan), kExactOps),
        square_root(exactly(-1), kExactOps), exp2(exactly(kNan), kExactOps),
        maximum(exactly(kNan), exactly(1)), reciprocal_square_root(exactly(-4), kExactOps)}) {
    EXPECT_TRUE(bound.admits(kNan));
    EXPECT_FALSE(bound.has_numbers());
    EXPECT_FALSE(bound.admits(1.0f));
  }
  EXPECT_TRUE(add(exactly(kInf), exactly(-kInf), kExactOps).may_be_nan);
  EXPECT_TRUE(multiply(exactly(0), exactly(kInf), kExactOps).may_be_nan);
  const Bounded some_root = square_root(Bounded::between(-1, 4), kExactOps);
  EXPECT_TRUE(some_root.admits(kNan) && some_root.admits(2.0f) && some_root.admits(0.0f));
  EXPECT_FALSE(exactly(1).admits(kNan));
}

TEST(Bounded, OverflowAdmitsInf) {
  const Bounded past = multiply(exactly(kMax), exactly(2), kExactOps);
  EXPECT_TRUE(past.admits(kInf));
  EXPECT_FALSE(past.admits(kMax)) << "rounding to nearest leaves no other answer";
  EXPECT_TRUE(multiply(exactly(kMax), exactly(2), Rounding{1.0, false}).admits(kMax))
      << "rounding toward zero does";
  const Bounded near = multiply(exactly(kMax), exactly(1 + 0x1p-30), kExactOps);
  EXPECT_TRUE(near.admits(kMax));
  EXPECT_FALSE(near.admits(kInf));
  EXPECT_TRUE(exp2(exactly(128), kApproximateExp2).admits(kInf));
  EXPECT_TRUE(exp2(exactly(128), kApproximateExp2).admits(kMax));
  EXPECT_FALSE(exp2(exactly(127.5), kApproximateExp2).admits(kInf));
}

// An implementation may flush subnormals; whether it does is an argument.
TEST(Bounded, FlushingIsAChoice) {
  const Bounded kept = multiply(exactly(0x1p-100), exactly(0x1p-40), kCorrectRounding);
  EXPECT_TRUE(kept.admits(0x1p-140f));
  EXPECT_FALSE(kept.admits(0.0f));
  const Bounded flushed = multiply(exactly(0x1p-100), exactly(0x1p-40), kCorrectRoundingOrFlush);
  EXPECT_TRUE(flushed.admits(0x1p-140f) && flushed.admits(0.0f));
  EXPECT_FALSE(flushed.admits(0x1p-139f));
  const Bounded of_subnormal = reciprocal(exactly(0x1p-127), kApproximateRcp);
  EXPECT_TRUE(of_subnormal.admits(kInf) && of_subnormal.admits(0x1p127f));
  EXPECT_FALSE(reciprocal(exactly(0x1p-127), kCorrectRounding).admits(kInf));
  EXPECT_TRUE(reciprocal(exactly(0x1p127), kApproximateRcp).admits(0.0f));
}

TEST(Bounded, SumsOfOneTermAndZerosAreExact) {
  const std::vector<Bounded> terms{exactly(0), exactly(0.1f), exactly(0)};
  expect_only(sum(terms, kCorrectRounding), 0.1f);
  const float a[] = {3.0f, 0.0f, 5.0f};
  const float b[] = {0.25f, 7.0f, 0.0f};
  expect_only(dot(a, b, 0.0f, kCorrectRounding), 0.75f);
  EXPECT_EQ(sum({}, kCorrectRounding).low, 0);
  EXPECT_TRUE(sum({}, kCorrectRounding).admits(-0.0f)) << "the sign of a zero is not bounded";
}

TEST(Bounded, SumsOfIntervalsReachBothEnds) {
  const std::vector<Bounded> terms{Bounded::between(-1, 2), Bounded::between(0.25, 5),
                                   Bounded::between(-8, -7)};
  const Bounded total = sum(terms, kCorrectRounding);
  EXPECT_LE(total.low, -8.75);
  EXPECT_LE(0.0, total.high);
  EXPECT_TRUE(total.admits(-8.75f) && total.admits(0.0f));
  EXPECT_LT(total.radius(), (0.0 + 8.75) / 2 + 3 * 15 * 0x1p-24);
}

TEST(Bounded, SumsThatMayOverflowAdmitAnything) {
  const float a[] = {kMax, kMax, -kMax};
  const float ones[] = {1, 1, 1};
  const Bounded total = dot(a, ones, 0.0f, kCorrectRounding);
  EXPECT_TRUE(total.admits(kMax) && total.admits(kInf) && total.admits(kNan));
  const float nan[] = {kNan, 1, 1};
  EXPECT_FALSE(dot(nan, ones, 0.0f, kCorrectRounding).has_numbers());
  EXPECT_FALSE(dot(ones, ones, kNan, kCorrectRounding).has_numbers());
  EXPECT_THROW(dot(a, std::span(ones).first(2), 0.0f, kCorrectRounding), Refusal);
}

TEST(CodeRange, OneCodeAwayFromMidpointsAndTwoAcrossOne) {
  const CodeRange one = code_range(Bounded::between(1.01, 1.02), kE4M3FN, Overflow::kNan);
  EXPECT_EQ(one.size(), 1);
  EXPECT_TRUE(one.admits(0x38));
  EXPECT_FALSE(one.admits(0x39));
  const CodeRange two = code_range(Bounded::between(1.0624, 1.0626), kE4M3FN, Overflow::kNan);
  EXPECT_EQ(two.size(), 2);
  EXPECT_TRUE(two.admits(0x38) && two.admits(0x39));
  EXPECT_FALSE(two.admits(0x37) || two.admits(0x3A) || two.admits(0xB8));
  // Exactly at the midpoint only the even code, and one double below it as well.
  EXPECT_TRUE(code_range(exactly(1.0625), kE4M3FN, Overflow::kNan).admits(0x38));
  EXPECT_FALSE(code_range(exactly(1.0625), kE4M3FN, Overflow::kNan).admits(0x39));
  const CodeRange bf16 = code_range(Bounded::between(-1.0, -1.0 - 0x1p-8), kBF16, Overflow::kNan);
  EXPECT_TRUE(bf16.admits(0xBF80));
  EXPECT_FALSE(bf16.admits(0xBF81)) << "the tie goes to even";
  EXPECT_TRUE(code_range(exactly(-1.0 - 0x1p-8 - 0x1p-40), kBF16, Overflow::kNan).admits(0xBF81));
}

TEST(CodeRange, SignsOfZero) {
  const CodeRange tiny = code_range(Bounded::between(1e-9, 2e-9), kE4M3FN, Overflow::kNan);
  EXPECT_TRUE(tiny.admits(0x00));
  EXPECT_FALSE(tiny.admits(0x80));
  const CodeRange negative = code_range(Bounded::between(-2e-9, -1e-9), kE4M3FN, Overflow::kNan);
  EXPECT_TRUE(negative.admits(0x80));
  EXPECT_FALSE(negative.admits(0x00));
  const CodeRange fnuz = code_range(Bounded::between(-2e-9, -1e-9), kE4M3FNUZ, Overflow::kNan);
  EXPECT_TRUE(fnuz.admits(0x00));
  EXPECT_FALSE(fnuz.admits(0x80)) << "0x80 is NaN there";
  const CodeRange zero = code_range(exactly(0), kBF16, Overflow::kNan);
  EXPECT_TRUE(zero.admits(0x0000) && zero.admits(0x8000));
}

TEST(CodeRange, OverflowByTheDeclaredRule) {
  const Bounded around = Bounded::between(460, 470);  // the tie is at 464
  const CodeRange nan = code_range(around, kE4M3FN, Overflow::kNan);
  EXPECT_TRUE(nan.admits(0x7E) && nan.admits(0x7F) && nan.admits(0xFF));
  EXPECT_FALSE(nan.admits(0x7D));
  const CodeRange saturated = code_range(around, kE4M3FN, Overflow::kSaturate);
  EXPECT_TRUE(saturated.admits(0x7E));
  EXPECT_FALSE(saturated.admits(0x7F));
  const CodeRange past = code_range(Bounded::between(500, 600), kE4M3FN, Overflow::kNan);
  EXPECT_TRUE(past.admits(0x7F));
  EXPECT_FALSE(past.admits(0x7E));
  EXPECT_EQ(past.size(), 1);
  const CodeRange below = code_range(Bounded::between(-600, -500), kE4M3FN, Overflow::kNan);
  EXPECT_FALSE(below.admits(0xFE));
  EXPECT_TRUE(below.admits(0x7F));
  const CodeRange inf = code_range(Bounded::between(5e4, 1e6), kE5M2, Overflow::kInfinity);
  EXPECT_TRUE(inf.admits(0x7B) && inf.admits(0x7C));
  EXPECT_FALSE(inf.admits(0x7F));
  const CodeRange to_inf = code_range(Bounded::between(5e4, kInf), kE5M2, Overflow::kNan);
  EXPECT_TRUE(to_inf.admits(0x7B) && to_inf.admits(0x7C) && to_inf.admits(0x7F));
}

TEST(CodeRange, NanAndFormatsWithoutIt) {
  const CodeRange only = code_range(Bounded::only_nan(), kBF16, Overflow::kNan);
  EXPECT_TRUE(only.admits(0x7FC0) && only.admits(0xFFFF));
  EXPECT_FALSE(only.admits(0x0000) || only.admits(0x3F80));
  EXPECT_EQ(only.size(), 1);
  const CodeRange fp4 = code_range(Bounded::only_nan(), kE2M1, Overflow::kSaturate);
  EXPECT_TRUE(fp4.admits(0x7));
  EXPECT_EQ(fp4.size(), 1);
}

TEST(CodeRange, RoundedRangesHoldDecodedEnds) {
  const Bounded rounded = rounded_to(Bounded::between(1.0624, 1.19), kE4M3FN, Overflow::kNan);
  EXPECT_EQ(rounded.low, 1.0);
  EXPECT_EQ(rounded.high, 1.25);
  EXPECT_FALSE(rounded.may_be_nan);
  EXPECT_TRUE(rounded_to(Bounded::between(400, 470), kE4M3FN, Overflow::kNan).may_be_nan);
  EXPECT_FALSE(rounded_to(Bounded::between(500, 600), kE4M3FN, Overflow::kNan).has_numbers());
  expect_only(rounded_to(exactly(-3.01), kBF16, Overflow::kNan), -3.015625f);
}

// A brute-force check of the run of codes: every code that some double inside gives is admitted,
// and the first and last admitted ones are given by some double inside.
TEST(CodeRange, IsExactlyTheSetOfRoundings) {
  for (double low = -20; low < 20; low += 0.37)
    for (const double width : {0.0, 0.01, 0.3, 2.0}) {
      const Bounded bound = Bounded::between(low, low + width);
      const CodeRange range = code_range(bound, kE4M3FN, Overflow::kNan);
      std::vector<bool> given(256, false);
      constexpr int kSteps = 400;
      for (int i = 0; i <= kSteps; ++i) {
        const double value = i == kSteps ? bound.high : low + width * i / kSteps;
        given[encode(kE4M3FN, value, Overflow::kNan)] = true;
      }
      for (std::uint32_t code = 0; code < 256; ++code) {
        if (given[code]) {
          EXPECT_TRUE(range.admits(code)) << low << " " << width << " " << code;
        }
      }
      EXPECT_TRUE(given[encode(kE4M3FN, bound.low, Overflow::kNan)]);
      EXPECT_EQ(range.first, ordinal(kE4M3FN, encode(kE4M3FN, bound.low, Overflow::kNan)));
      EXPECT_EQ(range.last, ordinal(kE4M3FN, encode(kE4M3FN, bound.high, Overflow::kNan)));
    }
}

struct FunctionCounts {
  std::size_t outside = 0;
  std::size_t outside_half_ulp = 0;
};

template <class Function>
FunctionCounts count_outside(const RecordedCase& each, const std::string& output,
                             const Rounding& rounding, Function function) {
  const auto x = test::elements<float>(each.input("x"));
  const auto y = test::elements<float>(each.output(output));
  FunctionCounts counts;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Bounded argument = Bounded::exactly(x[i]);
    counts.outside += function(argument, rounding).admits(y[i]) ? 0 : 1;
    counts.outside_half_ulp += function(argument, kCorrectRoundingOrFlush).admits(y[i]) ? 0 : 1;
  }
  return counts;
}

// The approximate instructions of an H200 stay inside their stated errors, and the bound would
// notice if the statement were wrong: claimed to be correctly rounded, hundreds of results are
// outside.
TEST(Recorded, ApproximateGpuFunctions) {
  const Recording recording = test::recorded("gpu_functions");
  const RecordedCase& each = recording.cases.at(0);
  const auto exp2_counts = count_outside(each, "ex2_approx", kApproximateExp2, exp2);
  const auto rcp_counts = count_outside(each, "rcp_approx", kApproximateRcp, reciprocal);
  const auto rsq_counts =
      count_outside(each, "rsqrt_approx", kApproximateRsq, reciprocal_square_root);
  for (const FunctionCounts& counts : {exp2_counts, rcp_counts, rsq_counts}) {
    EXPECT_EQ(counts.outside, 0u);
    EXPECT_GT(counts.outside_half_ulp, 100u);
  }
  EXPECT_EQ(count_outside(each, "rcp_rn", kCorrectRounding, reciprocal).outside, 0u);
  EXPECT_EQ(count_outside(each, "sqrt_rn", kCorrectRounding, square_root).outside, 0u);
}

}  // namespace
}  // namespace monoref
