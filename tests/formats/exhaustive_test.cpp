// Nightly: the fast conversions against their definition on all 2^32 floats.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "reference/formats/convert.hpp"
#include "tests/formats/nearest.hpp"

namespace monoref {
namespace {

constexpr std::size_t kRow = 1 << 16;

/// Calls `check(values)` for every row of 2^16 consecutive bit patterns.
template <class Check>
void for_all_floats(Check check) {
#pragma omp parallel for schedule(dynamic, 64)
  for (std::uint32_t high = 0; high < 65536; ++high) {
    std::vector<float> values(kRow);
    for (std::uint32_t low = 0; low < kRow; ++low)
      values[low] = std::bit_cast<float>(high << 16 | low);
    check(values);
  }
}

class EveryFp8 : public testing::TestWithParam<const FloatFormat*> {};

INSTANTIATE_TEST_SUITE_P(Formats, EveryFp8, testing::ValuesIn(test::kAllFp8),
                         [](const auto& each) { return std::string(each.param->name); });

TEST_P(EveryFp8, EncodesAllFloats) {
  const FloatFormat& format = *GetParam();
  std::size_t different = 0;
  for_all_floats([&](const std::vector<float>& values) {
    std::vector<std::uint8_t> codes(kRow);
    std::size_t wrong = 0;
    for (const Overflow overflow : test::kAllOverflows) {
      std::vector<std::uint8_t> expected(kRow);
      for (std::size_t i = 0; i < kRow; ++i)
        expected[i] = static_cast<std::uint8_t>(encode(format, values[i], overflow));
      for (const Isa isa : available_isas()) {
        encode_fp8(format, values, codes, overflow, isa);
        wrong += codes != expected ? 1 : 0;
      }
    }
#pragma omp atomic
    different += wrong;
  });
  EXPECT_EQ(different, 0u) << "rows that differ";
}

TEST(ExhaustiveBF16, EncodesAllFloats) {
  std::size_t different = 0;
  for_all_floats([&](const std::vector<float>& values) {
    std::vector<std::uint16_t> expected(kRow);
    for (std::size_t i = 0; i < kRow; ++i)
      expected[i] = static_cast<std::uint16_t>(encode(kBF16, values[i], Overflow::kInfinity));
    std::vector<std::uint16_t> codes(kRow);
    std::size_t wrong = 0;
    for (const Isa isa : available_isas()) {
      encode_bf16(values, codes, isa);
      wrong += codes != expected ? 1 : 0;
    }
#pragma omp atomic
    different += wrong;
  });
  EXPECT_EQ(different, 0u) << "rows that differ";
}

}  // namespace
}  // namespace monoref
