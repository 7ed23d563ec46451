// MX blocks: the ten scale rules, bug cases X08 and F18, and what blocks round-trip.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/core/error.hpp"
#include "reference/formats/mx_block.hpp"

namespace monoref {
namespace {

constexpr std::array kAllRules{MxScaleRule::kA,      MxScaleRule::kB,         MxScaleRule::kC,
                               MxScaleRule::kD,      MxScaleRule::kE,         MxScaleRule::kMono,
                               MxScaleRule::kEven,   MxScaleRule::kRoundDown, MxScaleRule::kCeil,
                               MxScaleRule::kRoundUp};
constexpr float kInf = std::numeric_limits<float>::infinity();

int fp8_scale(MxScaleRule rule, float amax) {
  return mx_scale(rule, MxElement::kFp8, amax);
}
int fp4_scale(MxScaleRule rule, float amax) {
  return mx_scale(rule, MxElement::kFp4, amax);
}

// Bug case X08: one block, amax 960 = 1.875 * 2^9, and four different scales for it.
TEST(BugCase, X08RulesDisagreeOnOneBlock) {
  EXPECT_EQ(fp8_scale(MxScaleRule::kRoundDown, 960), 127 + 1);
  EXPECT_EQ(fp8_scale(MxScaleRule::kEven, 960), 127 + 1);  // switches at 1.9375
  EXPECT_EQ(fp8_scale(MxScaleRule::kEven, 0x1.Fp9f), 127 + 2);
  EXPECT_EQ(fp8_scale(MxScaleRule::kRoundUp, 960), 127 + 2);
  EXPECT_EQ(fp8_scale(MxScaleRule::kE, 960), 127 + 9);
  EXPECT_EQ(fp4_scale(MxScaleRule::kEven, 7), 127 + 1);  // 7 = 1.75 * 4 switches
  EXPECT_EQ(fp4_scale(MxScaleRule::kRoundDown, 7), 127);
  EXPECT_EQ(fp4_scale(MxScaleRule::kRoundUp, 7), 127 + 1);
  std::vector<float> values(32, 0.0f);
  values[3] = 957;
  values[9] = 960;
  std::vector<std::uint8_t> codes(32), scales(1);
  std::vector<float> back(32);
  mx_quantize(MxElement::kFp8, MxScaleRule::kRoundDown, Overflow::kSaturate, values, codes, scales);
  mx_dequantize(MxElement::kFp8, E8M0Zero::kSmallest, Subnormals::kKeep, codes, scales, back);
  EXPECT_EQ(back[3], 896.0f);
  mx_quantize(MxElement::kFp8, MxScaleRule::kRoundUp, Overflow::kNan, values, codes, scales);
  mx_dequantize(MxElement::kFp8, E8M0Zero::kSmallest, Subnormals::kKeep, codes, scales, back);
  EXPECT_EQ(back[3], 960.0f);
  EXPECT_EQ(back[9], 960.0f);
}

struct SwitchPoint {
  MxScaleRule rule;
  double mantissa;  ///< the first significand of a binade that gets the higher byte
  bool including;   ///< whether that one itself does
};

// Where in a binade each rule goes to the next byte, for the significands 1, 1.5, 1.75 and 1.999 of
// the bug case and around the rule's own point.
TEST(BugCase, X08EachRuleSwitchesAtItsPoint) {
  const SwitchPoint fp8[] = {
      {MxScaleRule::kA, 1.75, false},       {MxScaleRule::kB, 1.5, true},
      {MxScaleRule::kC, 1.75, true},        {MxScaleRule::kD, 1.75, false},
      {MxScaleRule::kMono, 1.75, false},    {MxScaleRule::kEven, 1.9375, true},
      {MxScaleRule::kRoundUp, 1.75, false}, {MxScaleRule::kCeil, 1.0, false},
  };
  for (const SwitchPoint& point : fp8)
    for (const int exponent : {-20, -1, 0, 7, 8, 9, 60}) {
      const auto at = static_cast<float>(std::ldexp(point.mantissa, exponent));
      const int low = exponent - 8 + 127;
      EXPECT_EQ(fp8_scale(point.rule, at), point.including ? low + 1 : low)
          << static_cast<int>(point.rule) << " at " << at;
      EXPECT_EQ(fp8_scale(point.rule, std::nextafter(at, kInf)), low + 1)
          << static_cast<int>(point.rule) << " above " << at;
      if (point.mantissa > 1) {
        EXPECT_EQ(fp8_scale(point.rule, std::nextafter(at, 0.0f)), low)
            << static_cast<int>(point.rule) << " below " << at;
      }
    }
}

struct OffsetRow {
  MxScaleRule rule;
  std::array<int, 4> fp8;  ///< byte - 127 - n for amax = 2^n times 1, 1.5, 1.75 and 1.999
  std::array<int, 4> fp4;
};

TEST(BugCase, X08EveryRuleAtTheSignificandsOfTheReport) {
  const OffsetRow rows[] = {
      {MxScaleRule::kA, {-8, -8, -8, -7}, {-2, -2, -1, -1}},
      {MxScaleRule::kB, {-8, -7, -7, -7}, {-2, -1, -1, -1}},
      {MxScaleRule::kC, {-8, -8, -7, -7}, {-2, -2, -1, -1}},
      {MxScaleRule::kD, {-8, -8, -8, -7}, {-2, -2, -1, -1}},
      {MxScaleRule::kE, {0, 0, 0, 0}, {0, 0, 0, 0}},
      {MxScaleRule::kMono, {-8, -8, -8, -7}, {-2, -2, -1, -1}},
      {MxScaleRule::kRoundDown, {-8, -8, -8, -8}, {-2, -2, -2, -2}},
      {MxScaleRule::kEven, {-8, -8, -8, -7}, {-2, -2, -1, -1}},
      {MxScaleRule::kCeil, {-8, -7, -7, -7}, {-2, -1, -1, -1}},
      {MxScaleRule::kRoundUp, {-8, -8, -8, -7}, {-2, -2, -1, -1}},
  };
  const double significands[] = {1.0, 1.5, 1.75, 1.999};
  for (const OffsetRow& row : rows)
    for (const int n : {-30, -3, 0, 2, 9, 77})
      for (std::size_t i = 0; i < 4; ++i) {
        const auto amax = static_cast<float>(std::ldexp(significands[i], n));
        EXPECT_EQ(fp8_scale(row.rule, amax), 127 + n + row.fp8[i])
            << static_cast<int>(row.rule) << " " << amax;
        EXPECT_EQ(fp4_scale(row.rule, amax), 127 + n + row.fp4[i])
            << static_cast<int>(row.rule) << " " << amax;
      }
}

// A rule that looks at amax / max (or a bound of it) never lets an element pass the largest number.
TEST(BugCase, X08RoundingUpNeverClips) {
  for (const MxScaleRule rule :
       {MxScaleRule::kA, MxScaleRule::kB, MxScaleRule::kC, MxScaleRule::kD, MxScaleRule::kE,
        MxScaleRule::kMono, MxScaleRule::kCeil, MxScaleRule::kRoundUp})
    for (std::uint32_t bits = 0x2F000000u; bits < 0x7F000000u; bits += 0x000F1234u) {
      const auto amax = std::bit_cast<float>(bits);
      const std::uint8_t fp8 = mx_scale(rule, MxElement::kFp8, amax);
      EXPECT_LE(amax * inverse_e8m0(fp8), 448.0f) << static_cast<int>(rule) << " " << amax;
      if (rule == MxScaleRule::kC) continue;  // switches at 1.75, past the largest of E2M1
      const std::uint8_t fp4 = mx_scale(rule, MxElement::kFp4, amax);
      EXPECT_LE(amax * inverse_e8m0(fp4), 6.0f) << static_cast<int>(rule) << " " << amax;
    }
}

// Bug case F18: a zero block between two others. Zero codes and a finite positive scale; the bytes
// are stated here rule by rule.
TEST(BugCase, F18ZeroBlockHasZeroCodesAndAFiniteScale) {
  const std::pair<MxScaleRule, int> fp8_bytes[] = {
      {MxScaleRule::kA, 85},      {MxScaleRule::kB, 0},    {MxScaleRule::kC, 0},
      {MxScaleRule::kD, 0},       {MxScaleRule::kE, 27},   {MxScaleRule::kMono, 1},
      {MxScaleRule::kEven, 0},    {MxScaleRule::kCeil, 0}, {MxScaleRule::kRoundDown, 0},
      {MxScaleRule::kRoundUp, 0},
  };
  EXPECT_EQ(fp4_scale(MxScaleRule::kA, 0), 92);
  for (const auto& [rule, byte] : fp8_bytes)
    for (const MxElement element : {MxElement::kFp8, MxElement::kFp4}) {
      std::vector<float> values(96, 0.0f);
      for (std::size_t i = 0; i < 32; ++i) {
        values[i] = static_cast<float>(i) - 20;
        values[64 + i] = 0x1p-140f * static_cast<float>(i % 3);  // a subnormal block
      }
      std::vector<std::uint8_t> codes(mx_code_bytes(element, 96), 0xEE), scales(3, 0xEE);
      mx_quantize(element, rule, Overflow::kNan, values, codes, scales);
      if (element == MxElement::kFp8) {
        EXPECT_EQ(scales[1], byte) << static_cast<int>(rule);
      }
      std::vector<float> back(96, kInf);
      mx_dequantize(element, E8M0Zero::kSmallest, Subnormals::kKeep, codes, scales, back);
      for (std::size_t i = 32; i < 64; ++i) EXPECT_EQ(std::bit_cast<std::uint32_t>(back[i]), 0u);
      for (const std::uint8_t scale : scales) {
        const float value = decode_e8m0(scale, E8M0Zero::kSmallest);
        EXPECT_TRUE(std::isfinite(value) && value > 0);
      }
      for (const float value : back) EXPECT_TRUE(std::isfinite(value));
    }
}

TEST(MxScale, NonFiniteBlocks) {
  for (const MxScaleRule rule : kAllRules) {
    const bool clamps =
        rule == MxScaleRule::kD || rule == MxScaleRule::kE || rule == MxScaleRule::kMono;
    for (const float amax : {kInf, std::numeric_limits<float>::quiet_NaN()})
      EXPECT_EQ(fp8_scale(rule, amax), clamps ? 254 : 255) << static_cast<int>(rule);
    const int largest = fp8_scale(rule, std::numeric_limits<float>::max());
    if (rule == MxScaleRule::kEven)
      EXPECT_EQ(largest, 255) << "its raise passes the last exponent";
    else
      EXPECT_LE(largest, 254) << static_cast<int>(rule);
  }
}

// mono-decode section 10: a NaN sets the exponent byte to 254 and stays NaN in its own element.
TEST(MxBlock, NanStaysInItsElementUnderMono) {
  std::vector<float> values(32, 1.0f);
  values[5] = std::numeric_limits<float>::quiet_NaN();
  values[6] = kInf;
  std::vector<std::uint8_t> codes(32), scales(1);
  mx_quantize(MxElement::kFp8, MxScaleRule::kMono, Overflow::kSaturate, values, codes, scales);
  EXPECT_EQ(scales[0], 254);
  for (std::size_t i = 0; i < 32; ++i)
    EXPECT_EQ(codes[i], i == 5 ? 0x7F : i == 6 ? 0x7E : 0x00) << i;
}

TEST(MxBlock, EvenElementIsTheLowNibble) {
  EXPECT_EQ(pack_fp4(0x2, 0xF), 0xF2);
  EXPECT_EQ(even_fp4(0xF2), 0x2u);
  EXPECT_EQ(odd_fp4(0xF2), 0xFu);
  std::vector<float> values(32);
  for (std::size_t i = 0; i < 32; ++i) values[i] = i % 2 == 0 ? 1.0f : -6.0f;
  std::vector<std::uint8_t> codes(16), scales(1);
  mx_quantize(MxElement::kFp4, MxScaleRule::kRoundUp, Overflow::kSaturate, values, codes, scales);
  EXPECT_EQ(scales[0], 127);
  for (const std::uint8_t code : codes) EXPECT_EQ(code, 0xF2);
}

TEST(MxBlock, RefusesSizesThatDoNotFit) {
  std::vector<float> values(33);
  std::vector<std::uint8_t> codes(33), scales(1);
  const auto quantize = [&](std::size_t n, std::size_t c, std::size_t s) {
    values.resize(n);
    codes.resize(c);
    scales.resize(s);
    mx_quantize(MxElement::kFp8, MxScaleRule::kA, Overflow::kNan, values, codes, scales);
  };
  EXPECT_THROW(quantize(33, 33, 1), Refusal);
  EXPECT_THROW(quantize(64, 32, 2), Refusal);
  EXPECT_THROW(quantize(64, 64, 1), Refusal);
  EXPECT_NO_THROW(quantize(64, 64, 2));
}

}  // namespace
}  // namespace monoref
