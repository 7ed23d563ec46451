// E8M0 bytes: every value, bug cases X06 and X07, rounding between powers of two.
#include "reference/formats/e8m0.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/arithmetic/subnormals.hpp"
#include "reference/formats/mx_block.hpp"

namespace monoref {
namespace {

// Bug case X06: NaN is the byte 255, not the value 128.
TEST(BugCase, X06OnlyByte255IsNan) {
  EXPECT_EQ(decode_e8m0(134, E8M0Zero::kSmallest), 128.0f);
  EXPECT_TRUE(std::isnan(decode_e8m0(255, E8M0Zero::kSmallest)));
  for (int code = 0; code < 255; ++code) {
    const float value = decode_e8m0(static_cast<std::uint8_t>(code), E8M0Zero::kSmallest);
    EXPECT_EQ(value, std::exp2(static_cast<double>(code) - 127)) << code;
    EXPECT_EQ(encode_e8m0(value, Overflow::kNan), code);
    EXPECT_EQ(classify_e8m0(static_cast<std::uint8_t>(code)), FloatClass::kNormal);
    EXPECT_EQ(value * inverse_e8m0(static_cast<std::uint8_t>(code)), 1.0f);
  }
  EXPECT_EQ(classify_e8m0(255), FloatClass::kNan);
  EXPECT_TRUE(std::isnan(inverse_e8m0(255)));
}

// Bug case X07: the ends of the range, times 1 and times the elements 0.5 and 6 for all bytes; what
// a subnormal product becomes is a choice.
TEST(BugCase, X07EndsOfTheRangeTimesElements) {
  EXPECT_EQ(decode_e8m0(0, E8M0Zero::kSmallest), 0x1p-127f);
  EXPECT_EQ(decode_e8m0(0, E8M0Zero::kZero), 0.0f);
  EXPECT_EQ(decode_e8m0(1, E8M0Zero::kZero), 0x1p-126f);
  EXPECT_EQ(decode_e8m0(254, E8M0Zero::kSmallest), 0x1p127f);
  const std::uint32_t elements[] = {0x1, 0x2, 0x7};  // 0.5, 1 and 6
  std::vector<std::uint8_t> codes(16);
  for (int i = 0; i < 16; ++i)
    codes[static_cast<std::size_t>(i)] = pack_fp4(elements[i % 3], elements[(i + 1) % 3]);
  for (int byte = 0; byte < 256; ++byte)
    for (const Subnormals rule : {Subnormals::kKeep, Subnormals::kFlush}) {
      const std::uint8_t scales[] = {static_cast<std::uint8_t>(byte)};
      std::vector<float> values(32);
      mx_dequantize(MxElement::kFp4, E8M0Zero::kSmallest, rule, codes, scales, values);
      for (std::size_t i = 0; i < 32; ++i) {
        const std::size_t element = i / 2 + i % 2;
        const double product = (element % 3 == 0   ? 0.5
                                : element % 3 == 1 ? 1.0
                                                   : 6.0) *
                               std::exp2(byte - 127.0);
        if (byte == 255) {
          EXPECT_TRUE(std::isnan(values[i]));
        } else if (rule == Subnormals::kFlush && (product < 0x1p-126 || byte == 0)) {
          EXPECT_EQ(values[i], 0.0f);
        } else if (product > std::numeric_limits<float>::max()) {
          EXPECT_TRUE(std::isinf(values[i]));
        } else {
          EXPECT_EQ(values[i], product);
        }
      }
    }
}

TEST(E8M0, RoundsToTheNearestPowerAndTiesToTheEvenByte) {
  for (int code = 0; code < 254; ++code) {
    const double below = std::exp2(code - 127.0);
    const double midpoint = 1.5 * below;
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(encode_e8m0(midpoint, Overflow::kNan), even) << code;
    EXPECT_EQ(encode_e8m0(std::nextafter(midpoint, 0.0), Overflow::kNan), code);
    EXPECT_EQ(encode_e8m0(std::nextafter(midpoint, 1e300), Overflow::kNan), code + 1);
  }
}

TEST(E8M0, EndsOfTheEncoding) {
  EXPECT_EQ(encode_e8m0(0.0, Overflow::kNan), 0);
  EXPECT_EQ(encode_e8m0(-0.0, Overflow::kNan), 0);
  EXPECT_EQ(encode_e8m0(0x1p-149, Overflow::kNan), 0);
  EXPECT_EQ(encode_e8m0(-1.0, Overflow::kSaturate), kE8M0Nan);
  EXPECT_EQ(encode_e8m0(std::nan(""), Overflow::kSaturate), kE8M0Nan);
  EXPECT_EQ(encode_e8m0(0x1.8p127, Overflow::kNan), 254) << "a tie, and 254 is even";
  EXPECT_EQ(encode_e8m0(0x1.800002p127, Overflow::kNan), kE8M0Nan);
  EXPECT_EQ(encode_e8m0(0x1.800002p127, Overflow::kSaturate), 254);
  EXPECT_EQ(encode_e8m0(HUGE_VAL, Overflow::kSaturate), 254);
  EXPECT_EQ(encode_e8m0(HUGE_VAL, Overflow::kInfinity), kE8M0Nan);
}

TEST(E8M0, Neighbours) {
  for (int code = 0; code < 254; ++code) {
    EXPECT_EQ(next_up_e8m0(static_cast<std::uint8_t>(code)), code + 1);
    EXPECT_EQ(next_down_e8m0(static_cast<std::uint8_t>(code + 1)), code);
  }
  EXPECT_EQ(next_down_e8m0(0), 0);
  EXPECT_EQ(next_up_e8m0(254), 254);
  EXPECT_EQ(next_up_e8m0(255), 255);
  EXPECT_EQ(next_down_e8m0(255), 255);
}

TEST(Subnormals, FlushKeepsSignAndNormals) {
  EXPECT_EQ(flushed(0x1p-127f, Subnormals::kKeep), 0x1p-127f);
  EXPECT_EQ(flushed(0x1p-126f, Subnormals::kFlush), 0x1p-126f);
  EXPECT_EQ(flushed(0x1.fffffcp-127f, Subnormals::kFlush), 0.0f);
  EXPECT_TRUE(std::signbit(flushed(-0x1p-149f, Subnormals::kFlush)));
  EXPECT_TRUE(std::isnan(flushed(std::nanf(""), Subnormals::kFlush)));
}

}  // namespace
}  // namespace monoref
