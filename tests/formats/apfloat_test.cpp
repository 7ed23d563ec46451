// The definition of the formats against an independent implementation, llvm::APFloat. Built only
// where the LLVM development package is installed.
#include <gtest/gtest.h>
#include <llvm/ADT/APFloat.h>

#include <bit>
#include <cmath>

#include "reference/formats/e8m0.hpp"
#include "reference/formats/float_format.hpp"
#include "tests/formats/nearest.hpp"

namespace monoref {
namespace {

/// Bit patterns spaced by an odd step over the whole of binary32: 10.7 million of them.
constexpr std::uint32_t kStep = 401;
constexpr std::uint64_t kPatterns = (std::uint64_t{1} << 32) / kStep;

struct Oracle {
  const FloatFormat* format;
  const llvm::fltSemantics& (*semantics)();
};

const Oracle kOracles[] = {
    {&kBF16, llvm::APFloat::BFloat},
    {&kE4M3FN, llvm::APFloat::Float8E4M3FN},
    {&kE4M3FNUZ, llvm::APFloat::Float8E4M3FNUZ},
    {&kE5M2, llvm::APFloat::Float8E5M2},
    {&kE5M2FNUZ, llvm::APFloat::Float8E5M2FNUZ},
    {&kE2M1, llvm::APFloat::Float4E2M1FN},
};

std::uint32_t convert(const llvm::fltSemantics& semantics, float value) {
  llvm::APFloat converted(value);
  bool lost = false;
  converted.convert(semantics, llvm::APFloat::rmNearestTiesToEven, &lost);
  return static_cast<std::uint32_t>(converted.bitcastToAPInt().getZExtValue());
}

class AgainstApFloat : public testing::TestWithParam<Oracle> {};

INSTANTIATE_TEST_SUITE_P(Formats, AgainstApFloat, testing::ValuesIn(kOracles),
                         [](const auto& each) { return std::string(each.param.format->name); });

TEST_P(AgainstApFloat, ConvertsTenMillionFloats) {
  const FloatFormat& format = *GetParam().format;
  const llvm::fltSemantics& semantics = GetParam().semantics();
  std::size_t different = 0;
  for (std::uint64_t i = 0; i < kPatterns; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(i * kStep));
    if (std::isnan(value) && !format.has_nan()) continue;  // APFloat has no answer either
    std::uint32_t expected = convert(semantics, value);
    if (classify(format, expected) == FloatClass::kNan) expected = format.canonical_nan();
    different += encode(format, value, Overflow::kInfinity) != expected ? 1 : 0;
  }
  EXPECT_EQ(different, 0u) << "of " << kPatterns;
}

TEST_P(AgainstApFloat, DecodesEveryCode) {
  const FloatFormat& format = *GetParam().format;
  const llvm::fltSemantics& semantics = GetParam().semantics();
  for (std::uint32_t code = 0; code < format.codes(); ++code) {
    const llvm::APFloat value(semantics, llvm::APInt(static_cast<unsigned>(format.bits()), code));
    const float ours = decode(format, code);
    if (value.isNaN()) {
      EXPECT_TRUE(std::isnan(ours)) << code;
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(value.convertToFloat()),
                std::bit_cast<std::uint32_t>(ours))
          << code;
    }
  }
}

TEST(AgainstApFloatE8M0, ConvertsPositiveFloatsInRange) {
  std::size_t different = 0;
  for (std::uint32_t bits = 0x00400000u; bits < 0x7F400000u; bits += kStep) {
    const auto value = std::bit_cast<float>(bits);
    different +=
        encode_e8m0(value, Overflow::kNan) != convert(llvm::APFloat::Float8E8M0FNU(), value) ? 1
                                                                                             : 0;
  }
  EXPECT_EQ(different, 0u);
}

}  // namespace
}  // namespace monoref
