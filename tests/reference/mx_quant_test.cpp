#include "reference/stages/mx_quant.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "reference/formats/convert.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

struct Quantised {
  Numbers codes;
  Numbers scales;
};

Quantised quantise(const Tensor& x, MxScaleRule rule = MxScaleRule::kMono) {
  Contract contract;
  contract.mx_rule = rule;
  const auto dims = mx_quant_shape({x, contract});
  Tensor codes = poisoned(DType::kFloat8E4M3FN, Layout::dense({dims[0], dims[1]}));
  Tensor scales = poisoned(DType::kUInt8, Layout::dense({dims[0], dims[1] / 32}));
  mx_quant({x, contract}, {codes.view<std::uint8_t, 2>(), scales.view<std::uint8_t, 2>()});
  return {values(codes), values(scales)};
}

/// One row of zeros with these numbers in front.
Tensor row_of(std::vector<float> numbers, std::int64_t width = 32) {
  numbers.resize(static_cast<std::size_t>(width), 0.0f);
  return Tensor::of(DType::kFloat32, {1, width}, numbers);
}

// X08: amax at 2^8 times 1, 1.5, 1.75 and 1.999, and the trigger 960 = 1.875 * 2^9. Bytes by hand
// from the rules' definitions; 127 is the scale 1.
TEST(MxQuant, EveryRuleHasItsOwnScale) {
  struct Expected {
    MxScaleRule rule;
    Numbers bytes;
  };
  const Expected table[] = {
      {MxScaleRule::kA, {127, 127, 127, 128, 129}},
      {MxScaleRule::kB, {127, 128, 128, 128, 129}},
      {MxScaleRule::kC, {127, 127, 128, 128, 129}},
      {MxScaleRule::kD, {127, 127, 127, 128, 129}},
      {MxScaleRule::kE, {135, 135, 135, 135, 136}},
      {MxScaleRule::kMono, {127, 127, 127, 128, 129}},
      {MxScaleRule::kRoundDown, {127, 127, 127, 127, 128}},
      {MxScaleRule::kEven, {127, 127, 127, 128, 128}},
      {MxScaleRule::kCeil, {127, 128, 128, 128, 129}},
      {MxScaleRule::kRoundUp, {127, 127, 127, 128, 129}},
  };
  const Tensor x = [] {
    std::vector<float> blocks;
    for (const float amax : {256.0f, 384.0f, 448.0f, 511.744f, 960.0f}) {
      blocks.push_back(-1.0f);
      blocks.push_back(-amax);
      blocks.resize((blocks.size() + 31) / 32 * 32, 0.5f);
    }
    return Tensor::of(DType::kFloat32, {1, 160}, blocks);
  }();
  for (const Expected& expected : table)
    EXPECT_EQ(quantise(x, expected.rule).scales, expected.bytes)
        << "rule " << static_cast<int>(expected.rule);
}

TEST(MxQuant, TheRuleDecidesWhatTheLargestElementBecomes) {
  // X08: 957 under scale 2 is past 448 and is clamped; under scale 4 it is 239.25, which E4M3
  // rounds to 240.
  const Tensor x = row_of({957.0f, -957.0f});
  const auto largest = [&](MxScaleRule rule) {
    const Quantised got = quantise(x, rule);
    return decode(kE4M3FN, static_cast<std::uint32_t>(got.codes[0])) *
           std::ldexp(1.0f, static_cast<int>(got.scales[0]) - 127);
  };
  EXPECT_EQ(largest(MxScaleRule::kRoundDown), 896.0f);
  for (const MxScaleRule rule : {MxScaleRule::kA, MxScaleRule::kC, MxScaleRule::kRoundUp,
                                 MxScaleRule::kCeil, MxScaleRule::kMono})
    EXPECT_EQ(largest(rule), 960.0f) << static_cast<int>(rule);
  EXPECT_EQ(quantise(x, MxScaleRule::kRoundDown).codes[1], 0xFE) << "-448";
}

TEST(MxQuant, BlocksAndRowsHaveScalesOfTheirOwn) {
  // 0x43E0 is 448 in BF16, 0x3F80 is 1, 0xBF00 is -0.5, all in one code times their scale.
  std::vector<std::uint16_t> codes(128, 0);
  codes[31] = 0x43E0;
  codes[32] = 0x3F80;
  codes[64 + 5] = 0xBF00;
  const Quantised got = quantise(Tensor::of(DType::kBFloat16, {2, 64}, codes));
  // 1/448 lies in (2^-9, 2^-8), 0.5/448 in (2^-10, 2^-9): rounded up, 2^-8 and 2^-9. 0 gives 1.
  EXPECT_EQ(got.scales, (Numbers{127, 119, 118, 1}));
  Numbers expected(128, 0);
  expected[31] = 0x7E;
  expected[32] = 0x78;      // 1 / 2^-8 = 256
  expected[64 + 5] = 0xF8;  // -0.5 / 2^-9 = -256
  EXPECT_EQ(got.codes, expected);
}

TEST(MxQuant, StridedRowsAreFollowed) {
  std::vector<float> numbers(64, 0.0f);
  numbers[3] = 1.0f;
  numbers[32 + 3] = 4.0f;
  Tensor strided = poisoned(DType::kFloat32, Layout::strided({2, 32}, {70, 2}));
  for (std::int64_t i = 0; i < 64; ++i)
    strided.view<float, 2>()(i / 32, i % 32) = numbers[static_cast<std::size_t>(i)];
  const Quantised got = quantise(strided);
  EXPECT_EQ(got.scales, (Numbers{119, 121}));
  EXPECT_EQ(got.codes[3], 0x78);
  EXPECT_EQ(got.codes[32 + 3], 0x78);
}

TEST(MxQuant, ZerosKeepTheirSign) {
  const Quantised got = quantise(row_of({0.0f, -0.0f}));
  EXPECT_EQ(got.scales, Numbers{1}) << "mono clamps to 1";
  EXPECT_EQ(got.codes[0], 0x00);
  EXPECT_EQ(got.codes[1], 0x80);
}

TEST(MxQuant, ANanStaysInItsElementWhereTheScaleStopsAt254) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = row_of({1.0f, nan, std::numeric_limits<float>::infinity(), -0x1p120f}, 64);
  const Quantised mono = quantise(x);
  EXPECT_EQ(mono.scales, (Numbers{254, 1}));
  EXPECT_EQ(mono.codes[0], 0x00) << "1 * 2^-127 is far below the smallest code";
  EXPECT_EQ(mono.codes[1], 0x7F);
  EXPECT_EQ(mono.codes[2], 0x7E) << "an infinity is clamped";
  EXPECT_EQ(mono.codes[3], 0x84) << "-2^120 * 2^-127 = -2^-7, 4 of the smallest codes";
  const Quantised a = quantise(x, MxScaleRule::kA);
  EXPECT_EQ(a.scales[0], 255);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(a.codes[i], 0x7F) << i;
  EXPECT_EQ(a.codes[32], 0x00) << "the next block is its own";
}

TEST(MxQuant, RefusalsNameTheArgument) {
  const auto refusal = [](const Tensor& x) { return refusal_of([&] { mx_quant_shape({x, {}}); }); };
  EXPECT_EQ(refusal(Tensor(DType::kBFloat16, Layout::dense({2, 48}))),
            "mx_quant: x has 48 elements a row, must be a multiple of 32");
  EXPECT_EQ(refusal(Tensor(DType::kUInt8, Layout::dense({2, 32}))),
            "mx_quant: x is uint8, must be bfloat16 or float32");
  EXPECT_EQ(refusal(Tensor(DType::kBFloat16, Layout::dense({2, 1, 32}))),
            "mx_quant: x has rank 3, must be 2");
  const Tensor x(DType::kFloat32, Layout::dense({2, 64}));
  Tensor codes(DType::kUInt8, Layout::dense({2, 64}));
  Tensor scales(DType::kUInt8, Layout::dense({2, 1}));
  EXPECT_EQ(refusal_of([&] {
              mx_quant({x, {}}, {codes.view<std::uint8_t, 2>(), scales.view<std::uint8_t, 2>()});
            }),
            "mx_quant: output scales has 1 in dimension 1, must have 2");
}

}  // namespace
}  // namespace monoref::testing
