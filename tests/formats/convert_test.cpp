// The fast conversions against their definition, at every instruction-set level of this machine.
#include "reference/formats/convert.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <vector>

#include "reference/core/error.hpp"
#include "tests/formats/nearest.hpp"

namespace monoref {
namespace {

using test::kAllFp8;
using test::kAllOverflows;

/// Floats with these bit patterns: first, first + step, ...
std::vector<float> floats(std::uint32_t first, std::uint32_t step, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = std::bit_cast<float>(first + static_cast<std::uint32_t>(i) * step);
  return values;
}

void expect_fp8_rows_equal_definition(const std::vector<float>& values) {
  std::vector<std::uint8_t> codes(values.size());
  for (const FloatFormat* format : kAllFp8)
    for (const Overflow overflow : kAllOverflows) {
      std::vector<std::uint8_t> expected(values.size());
      for (std::size_t i = 0; i < values.size(); ++i)
        expected[i] = static_cast<std::uint8_t>(encode(*format, values[i], overflow));
      for (const Isa isa : available_isas()) {
        encode_fp8(*format, values, codes, overflow, isa);
        EXPECT_EQ(codes, expected) << format->name << " on " << isa_name(isa);
      }
    }
}

TEST(Convert, EncodesEveryBF16Value) {
  expect_fp8_rows_equal_definition(floats(0, 1u << 16, 65536));
}

TEST(Convert, EncodesADenseSampleOfFloats) {
  // An odd step visits every low-order pattern; 2^32 / 4093 is 1.05 million values.
  expect_fp8_rows_equal_definition(floats(7, 4093, 1049344));
}

TEST(Convert, EncodesEveryMidpointAndItsNeighbours) {
  std::vector<float> values;
  for (const FloatFormat* format : kAllFp8) {
    const auto magnitudes = test::magnitudes_and_next(*format);
    for (std::size_t i = 0; i + 1 < magnitudes.size(); ++i) {
      const auto middle = static_cast<float>((magnitudes[i].value + magnitudes[i + 1].value) / 2);
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(middle);
      for (const std::uint32_t near : {bits - 1, bits, bits + 1})
        for (const std::uint32_t sign : {0u, 0x80000000u})
          values.push_back(std::bit_cast<float>(near | sign));
    }
  }
  expect_fp8_rows_equal_definition(values);
}

TEST(Convert, OddLengthsAndSingleValuesAgreeWithRows) {
  const std::vector<float> values = floats(0x3F000001u, 0x00012345u, 67);
  for (std::size_t count = 0; count <= values.size(); ++count) {
    const std::span<const float> row(values.data(), count);
    for (const Isa isa : available_isas()) {
      std::vector<std::uint8_t> codes(count + 1, 0xA5);
      encode_fp8(kE4M3FN, row, std::span(codes).first(count), Overflow::kNan, isa);
      for (std::size_t i = 0; i < count; ++i)
        EXPECT_EQ(codes[i], encode_fp8(kE4M3FN, values[i], Overflow::kNan));
      EXPECT_EQ(codes[count], 0xA5) << "nothing is written behind the row";
    }
  }
}

TEST(Convert, TablesHoldTheDefinition) {
  for (const FloatFormat* format : kAllFp8) {
    std::vector<std::uint8_t> codes(256);
    std::vector<float> values(256);
    for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::uint8_t>(i);
    decode_fp8(*format, codes, values);
    for (std::uint32_t code = 0; code < 256; ++code) {
      const std::uint32_t expected = std::bit_cast<std::uint32_t>(decode(*format, code));
      EXPECT_EQ(std::bit_cast<std::uint32_t>(values[code]), expected);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(decode_fp8(*format, codes[code])), expected);
    }
  }
  for (std::uint32_t code = 0; code < 256; ++code)
    EXPECT_EQ(decode_table(kE2M1)[code], decode(kE2M1, code & 15u));
  EXPECT_THROW(decode_table(kBF16), Refusal);
}

TEST(Convert, BF16EqualsTheDefinition) {
  std::vector<std::uint16_t> codes(65536);
  std::vector<float> values(65536);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
  const std::vector<float> sample = floats(3, 4093, 1049344);
  std::vector<std::uint16_t> encoded(sample.size());
  for (const Isa isa : available_isas()) {
    decode_bf16(codes, values, isa);
    for (std::uint32_t code = 0; code < 65536; ++code)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(values[code]),
                std::bit_cast<std::uint32_t>(decode(kBF16, code)));
    encode_bf16(sample, encoded, isa);
    for (std::size_t i = 0; i < sample.size(); ++i)
      ASSERT_EQ(encoded[i], encode(kBF16, sample[i], Overflow::kInfinity)) << sample[i];
  }
}

TEST(Convert, RefusesSizesThatDiffer) {
  const std::vector<float> values(3);
  std::vector<std::uint8_t> codes(4);
  EXPECT_THROW(encode_fp8(kE4M3FN, values, codes, Overflow::kNan), Refusal);
  EXPECT_THROW(encode_fp8(kBF16, 1.0f, Overflow::kNan), Refusal);
}

TEST(Isa, LevelsAscendFromTheBaseline) {
  EXPECT_EQ(available_isas().front(), Isa::kBaseline);
  EXPECT_EQ(available_isas().back(), best_isa());
  for (const Isa isa : available_isas()) {
    int calls = 0;
    run_on(isa, [&calls]() MONOREF_INLINE_BODY { ++calls; });
    EXPECT_EQ(calls, 1) << isa_name(isa);
  }
}

}  // namespace
}  // namespace monoref
