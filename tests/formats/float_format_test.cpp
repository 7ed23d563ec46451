// The definition of the formats: values, classes, neighbours, rounding at every midpoint, and the
// bug cases F02, F03, F04, F06, F16.
#include "reference/formats/float_format.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "reference/core/error.hpp"
#include "reference/formats/canonical_nan.hpp"
#include "tests/formats/nearest.hpp"

namespace monoref {
namespace {

using test::CodedValue;
using test::kAllFormats;
using test::kAllOverflows;
using test::magnitudes_and_next;

constexpr float kInf = std::numeric_limits<float>::infinity();

class EveryFormat : public testing::TestWithParam<const FloatFormat*> {};

INSTANTIATE_TEST_SUITE_P(Formats, EveryFormat, testing::ValuesIn(kAllFormats),
                         [](const auto& each) { return std::string(each.param->name); });

TEST_P(EveryFormat, DecodesEveryFiniteCodeToTheTextbookValue) {
  const FloatFormat& format = *GetParam();
  const auto magnitudes = magnitudes_and_next(format);
  for (std::uint32_t code = 0; code <= format.largest(); ++code) {
    EXPECT_EQ(decode(format, code), magnitudes[code].value) << code;
    if (code == 0 && !format.has_negative_zero()) continue;
    const float negative = decode(format, code | format.sign_bit());
    EXPECT_EQ(negative, -magnitudes[code].value) << code;
    EXPECT_TRUE(std::signbit(negative)) << code;
  }
}

TEST_P(EveryFormat, EveryCodeHasOneClassAndRoundTrips) {
  const FloatFormat& format = *GetParam();
  for (std::uint32_t code = 0; code < format.codes(); ++code) {
    const float value = decode(format, code);
    const FloatClass kind = classify(format, code);
    EXPECT_EQ(std::isnan(value), kind == FloatClass::kNan) << code;
    EXPECT_EQ(std::isinf(value), kind == FloatClass::kInfinite) << code;
    EXPECT_EQ(value == 0, kind == FloatClass::kZero) << code;
    const bool below_normal = std::fabs(value) < std::ldexp(1.0f, format.min_exponent());
    EXPECT_EQ(below_normal && value != 0, kind == FloatClass::kSubnormal) << code;
    if (kind == FloatClass::kNan) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(value), kCanonicalNanBits) << code;
    }
    const std::uint32_t again = encode(format, value, Overflow::kInfinity);
    EXPECT_EQ(again, kind == FloatClass::kNan ? format.canonical_nan() : code) << code;
  }
}

TEST_P(EveryFormat, RoundsEveryMidpointToEvenAndItsNeighboursToTheNearest) {
  const FloatFormat& format = *GetParam();
  const auto magnitudes = magnitudes_and_next(format);
  for (std::size_t i = 0; i + 1 < magnitudes.size(); ++i) {
    const double midpoint = (magnitudes[i].value + magnitudes[i + 1].value) / 2;
    const auto middle = static_cast<float>(midpoint);
    ASSERT_EQ(middle, midpoint) << "midpoints must be binary32 numbers for this test";
    for (const float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, kInf)})
      for (const float signed_value : {value, -value})
        for (const Overflow overflow : kAllOverflows)
          ASSERT_EQ(encode(format, signed_value, overflow),
                    test::expected_code(format, magnitudes, signed_value, overflow))
              << std::hexfloat << signed_value;
  }
}

TEST_P(EveryFormat, RoundsEveryBF16InputToTheNearest) {
  const FloatFormat& format = *GetParam();
  const auto magnitudes = magnitudes_and_next(format);
  for (std::uint32_t high = 0; high < 65536; ++high) {
    const auto value = std::bit_cast<float>(high << 16);
    for (const Overflow overflow : kAllOverflows)
      ASSERT_EQ(encode(format, value, overflow),
                test::expected_code(format, magnitudes, value, overflow))
          << std::hexfloat << value;
  }
}

TEST_P(EveryFormat, NumbersInOrderAscendAndNeighboursAreAdjacent) {
  const FloatFormat& format = *GetParam();
  const auto numbers = numbers_in_order(format);
  std::size_t nans = 0;
  for (std::uint32_t code = 0; code < format.codes(); ++code)
    nans += classify(format, code) == FloatClass::kNan ? 1 : 0;
  ASSERT_EQ(numbers.size() + nans, format.codes());
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
    const float here = decode(format, numbers[i]);
    const float next = decode(format, numbers[i + 1]);
    if (here == next) {  // the two zeros are one value
      EXPECT_EQ(here, 0.0f);
      EXPECT_TRUE(std::signbit(here) && !std::signbit(next));
      continue;
    }
    EXPECT_LT(here, next);
    const float up = decode(format, next_up(format, numbers[i]));
    const float down = decode(format, next_down(format, numbers[i + 1]));
    EXPECT_EQ(up, next) << numbers[i];
    EXPECT_EQ(down, here) << numbers[i + 1];
    EXPECT_EQ(std::signbit(up), next == 0 ? format.has_negative_zero() : std::signbit(next));
    EXPECT_EQ(ordinal(format, numbers[i]) + 1, ordinal(format, numbers[i + 1]));
  }
  EXPECT_EQ(next_up(format, numbers.back()), numbers.back());
  EXPECT_EQ(next_down(format, numbers.front()), numbers.front());
}

TEST(Formats, NextOfNanIsTheCanonicalNan) {
  EXPECT_EQ(next_up(kE4M3FN, 0xFF), 0x7Fu);
  EXPECT_EQ(next_down(kE4M3FNUZ, 0x80), 0x80u);
  EXPECT_EQ(next_up(kBF16, 0xFFFF), 0x7FC0u);
}

TEST(Formats, LandmarksOfEachFormat) {
  EXPECT_EQ(decode(kE4M3FN, kE4M3FN.largest()), 448.0f);
  EXPECT_EQ(decode(kE4M3FNUZ, kE4M3FNUZ.largest()), 240.0f);
  EXPECT_EQ(decode(kE5M2, kE5M2.largest()), 57344.0f);
  EXPECT_EQ(decode(kE5M2FNUZ, kE5M2FNUZ.largest()), 57344.0f);
  EXPECT_EQ(decode(kE2M1, kE2M1.largest()), 6.0f);
  EXPECT_EQ(decode(kBF16, kBF16.largest()), 0x1.FEp127f);
  EXPECT_EQ(decode(kE4M3FN, 1), 0x1p-9f);
  EXPECT_EQ(decode(kE4M3FN, 8), 0x1p-6f);
  EXPECT_EQ(kBF16.canonical_nan(), 0x7FC0u);
  EXPECT_EQ(kE4M3FN.canonical_nan(), 0x7Fu);
  EXPECT_EQ(kE4M3FNUZ.canonical_nan(), 0x80u);
  EXPECT_EQ(kE5M2FNUZ.canonical_nan(), 0x80u);
  const float fp4[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (std::uint32_t code = 0; code < 8; ++code) {
    EXPECT_EQ(decode(kE2M1, code), fp4[code]);
    EXPECT_EQ(decode(kE2M1, code | 8), -fp4[code]);
  }
}

TEST(Formats, ElementTypesNameTheirFormat) {
  for (const DType type : {DType::kBFloat16, DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ,
                           DType::kFloat8E5M2, DType::kFloat8E5M2FNUZ})
    EXPECT_EQ(float_format(type).name, dtype_name(type));
  EXPECT_THROW(float_format(DType::kFloat8E8M0), Refusal);
  EXPECT_THROW(float_format(DType::kFloat32), Refusal);
}

TEST(Formats, ConvertsFromDoubleInOneRounding) {
  // Through binary32 this lands on the midpoint 1.0625 of E4M3 and then goes down to even.
  const double above_midpoint = 1.0625 + 0x1p-40;
  EXPECT_EQ(decode(kE4M3FN, encode(kE4M3FN, above_midpoint, Overflow::kNan)), 1.125f);
  EXPECT_EQ(encode(kBF16, 1e300, Overflow::kInfinity), 0x7F80u);
  EXPECT_EQ(encode(kBF16, -1e300, Overflow::kSaturate), 0xFF7Fu);
  EXPECT_EQ(encode(kBF16, 5e-324, Overflow::kInfinity), 0u);
}

// Bug case F02: the maximum used for scaling belongs to the encoding of the cache. 448 in a FNUZ
// cache is past the end; with the format's own maximum nothing is, and no NaN byte appears.
TEST(BugCase, F02MaximumOfTheEncodingInForce) {
  EXPECT_EQ(encode(kE4M3FNUZ, 448.0f, Overflow::kNan), 0x80u);
  EXPECT_EQ(encode(kE4M3FNUZ, 448.0f, Overflow::kSaturate), 0x7Fu);
  struct Policy {
    const FloatFormat& format;
    float max;
  };
  for (const Policy& policy : {Policy{kE4M3FN, 448}, Policy{kE4M3FN, 240}, Policy{kE4M3FNUZ, 240},
                               Policy{kE4M3FNUZ, 224}}) {
    const float amax = 448.0f;
    const float scale = amax / policy.max;
    for (int i = -448; i <= 448; ++i) {
      const auto code = encode(policy.format, static_cast<float>(i) / scale, Overflow::kNan);
      EXPECT_NE(classify(policy.format, code), FloatClass::kNan) << i;
      EXPECT_LE(std::fabs(decode(policy.format, code)), policy.max) << i;
    }
  }
}

// Bug case F03: the top binade is made of numbers, not of overflow.
TEST(BugCase, F03TopBinadeIsDistinct) {
  for (const Overflow overflow : kAllOverflows) {
    EXPECT_EQ(encode(kE4M3FNUZ, 128.0f, overflow), 0x78u);
    EXPECT_EQ(encode(kE4M3FNUZ, 144.0f, overflow), 0x79u);
    EXPECT_EQ(encode(kE4M3FNUZ, 200.0f, overflow), 0x7Cu);  // tie of 192 and 208: even
    EXPECT_EQ(encode(kE4M3FNUZ, 224.0f, overflow), 0x7Eu);
    EXPECT_EQ(encode(kE4M3FN, 256.0f, overflow), 0x78u);
    EXPECT_EQ(encode(kE4M3FN, 288.0f, overflow), 0x79u);
    EXPECT_EQ(encode(kE4M3FN, 448.0f, overflow), 0x7Eu);
  }
}

// Bug case F04: a negative number that rounds to zero must not become 0x80, the NaN of FNUZ.
TEST(BugCase, F04SmallNegativesInFnuzAreZero) {
  for (const FloatFormat* format : {&kE4M3FNUZ, &kE5M2FNUZ}) {
    const float half_smallest = decode(*format, 1) / 2;
    for (const float value : {-0.0f, -0x1p-149f, -half_smallest, -half_smallest / 2})
      EXPECT_EQ(encode(*format, value, Overflow::kNan), 0u) << format->name << value;
    EXPECT_EQ(encode(*format, std::nextafter(-half_smallest, -1.0f), Overflow::kNan), 0x81u);
  }
  EXPECT_EQ(encode(kE4M3FNUZ, -1e-7f, Overflow::kNan), 0u);
  EXPECT_EQ(encode(kE4M3FNUZ, -0x1p-11f, Overflow::kNan), 0u);
  EXPECT_EQ(encode(kE4M3FN, -1e-7f, Overflow::kNan), 0x80u) << "E4M3FN keeps the sign of zero";
}

// Bug case F06: a conversion in two steps, through FP16, rounds the wrong way above a midpoint.
TEST(BugCase, F06OneRounding) {
  const float value = 1.0625f * (1 + 0x1p-13f);
  EXPECT_EQ(decode(kE4M3FN, encode(kE4M3FN, value, Overflow::kSaturate)), 1.125f);
  EXPECT_EQ(decode(kE4M3FN, encode(kE4M3FN, 1.0625f, Overflow::kSaturate)), 1.0f);
}

// Bug case F16: what the top of E4M3FN gives under each declared rule.
TEST(BugCase, F16OverflowFollowsTheDeclaredRule) {
  struct Row {
    float value;
    std::uint32_t saturate, nan, infinity;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Row rows[] = {
      {448.0f, 0x7E, 0x7E, 0x7E},   {464.0f, 0x7E, 0x7E, 0x7E},  {464.0001f, 0x7E, 0x7F, 0x7F},
      {465.0f, 0x7E, 0x7F, 0x7F},   {1000.0f, 0x7E, 0x7F, 0x7F}, {kInf, 0x7E, 0x7F, 0x7F},
      {-1000.0f, 0xFE, 0x7F, 0x7F}, {-kInf, 0xFE, 0x7F, 0x7F},   {nan, 0x7F, 0x7F, 0x7F},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(encode(kE4M3FN, row.value, Overflow::kSaturate), row.saturate) << row.value;
    EXPECT_EQ(encode(kE4M3FN, row.value, Overflow::kNan), row.nan) << row.value;
    EXPECT_EQ(encode(kE4M3FN, row.value, Overflow::kInfinity), row.infinity) << row.value;
  }
  EXPECT_EQ(encode(kE5M2, 61440.0f, Overflow::kInfinity), 0x7Cu);  // tie: even is past the end
  EXPECT_EQ(encode(kE5M2, 61440.0f, Overflow::kNan), 0x7Fu);
  EXPECT_EQ(encode(kE5M2, -61440.0f, Overflow::kSaturate), 0xFBu);
  EXPECT_EQ(encode(kE5M2, -kInf, Overflow::kNan), 0xFCu) << "an infinite input is representable";
  EXPECT_EQ(encode(kE5M2, -kInf, Overflow::kSaturate), 0xFBu);
}

}  // namespace
}  // namespace monoref
