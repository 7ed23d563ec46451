#include "reference/stages/row_quant.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "reference/formats/convert.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

struct Quantised {
  Numbers codes;
  float scale;
};

Quantised quantise(const std::vector<float>& row, const char* fields = "fp8_max=448") {
  std::vector<std::uint16_t> bits;
  for (const float value : row) bits.push_back(bf16_from_float(value));
  const Tensor a = Tensor::of(DType::kBFloat16, {1, static_cast<std::int64_t>(row.size())}, bits);
  const RowQuantInput input{a.view<std::uint16_t, 2>(),
                            Contract::parse(std::string("mono,") + fields)};
  const auto dims = row_quant_shape(input);
  Tensor codes = poisoned(DType::kUInt8, Layout::dense({dims[0], dims[1]}));
  Tensor scale = poisoned(DType::kFloat32, Layout::dense({dims[0]}));
  row_quant(input, {codes.view<std::uint8_t, 2>(), scale.view<float, 1>()});
  return {values(codes), scale.view<float, 1>()(0)};
}

TEST(RowQuant, TheLargestElementBecomesTheLargestCode) {
  const Quantised result = quantise({-448, 1, 0, -0.0f, 224});
  EXPECT_EQ(result.scale, 448.0f * (1.0f / 448.0f));
  EXPECT_EQ(result.codes, (Numbers{0xFE, 0x38, 0x00, 0x80, 0x76}));
}

TEST(RowQuant, TheScaleIsAProductWithTheInverseNotAQuotient) {
  // 1.046875 * f32(1/448) and 1.046875 / 448 differ in the last place.
  const float amax = 1.046875f;
  ASSERT_NE(amax * (1.0f / 448.0f), amax / 448.0f);
  EXPECT_EQ(quantise({amax}).scale, amax * (1.0f / 448.0f));
}

TEST(RowQuant, F18ARowOfZerosHasScaleZeroAndCodesOfZero) {
  const Quantised result = quantise({0.0f, -0.0f, 0.0f});
  EXPECT_EQ(std::bit_cast<std::uint32_t>(result.scale), 0u);
  EXPECT_EQ(result.codes, (Numbers{0, 0, 0}));
}

TEST(RowQuant, ANanMakesTheRowNan) {
  const Quantised result = quantise({1.0f, std::numeric_limits<float>::quiet_NaN(), 2.0f});
  EXPECT_EQ(std::bit_cast<std::uint32_t>(result.scale), 0x7FC00000u);
  EXPECT_EQ(result.codes, (Numbers{0x7F, 0x7F, 0x7F}));
}

TEST(RowQuant, ElementsAreMultipliedByTheInverseOfTheScale) {
  // A scale that has no finite inverse: division would give 448, and 0 for 0.
  const Quantised result = quantise({0x1p-126f, 0.0f});
  EXPECT_GT(result.scale, 0.0f);
  EXPECT_EQ(result.codes, (Numbers{0x7F, 0x7F})) << "Inf past the largest code, and 0 * Inf";
  EXPECT_EQ(quantise({0x1p-126f, 0.0f}, "fp8_overflow=saturate").codes, (Numbers{0x7E, 0x7F}));
}

TEST(RowQuant, F02TheMaximumIsThatOfTheContract) {
  const Quantised fnuz = quantise({-2, 1}, "fp8_encoding=e4m3fnuz,fp8_max=240");
  EXPECT_EQ(fnuz.scale, 2.0f * (1.0f / 240.0f));
  EXPECT_EQ(fnuz.codes, (Numbers{0xFF, 0x77}));
  EXPECT_EQ(quantise({-2, 1}, "fp8_encoding=e4m3fnuz,fp8_max=224").scale, 2.0f * (1.0f / 224.0f));
  EXPECT_EQ(refusal_of([] { quantise({1}, "fp8_encoding=e4m3fnuz"); }),
            "contract: fp8_max is 448, limit 240, the largest number of float8_e4m3fnuz");
}

TEST(RowQuant, ARowWithoutElementsIsRefused) {
  EXPECT_EQ(refusal_of([] { quantise({}); }),
            "row_quant: a has 0 elements a row, must be at least 1");
}

}  // namespace
}  // namespace monoref::testing
