// Dot products under profiles: recordings of an H200, the portable chain, and the registry.
#include "reference/arithmetic/dot_profile.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "reference/core/error.hpp"
#include "reference/formats/canonical_nan.hpp"
#include "reference/formats/convert.hpp"
#include "tests/formats/recorded_tensors.hpp"

namespace monoref {
namespace {

struct Counts {
  std::size_t dots = 0;
  std::size_t different = 0;
  std::size_t nans = 0;
};

/// Runs `dot` on every output of a recorded case: d[tile, row, column] = a[tile, row] . b[tile,
/// column]
/// + c[tile, row, column].
template <class Code, class Dot>
void check_case(const RecordedCase& each, Dot dot, Counts& counts) {
  const Tensor& a_tensor = each.input("a");
  const auto a = test::elements<Code>(a_tensor);
  const auto b = test::elements<Code>(each.input("b"));
  const auto c = test::elements<float>(each.input("c"));
  const auto d = test::elements<float>(each.output("d"));
  const auto rows = static_cast<std::size_t>(a_tensor.dim(1));
  const auto k = static_cast<std::size_t>(a_tensor.dim(2));
  constexpr std::size_t kColumns = 8;
  for (std::size_t i = 0; i < d.size(); ++i) {
    const std::size_t tile = i / (rows * kColumns);
    const std::size_t row = i / kColumns % rows;
    const std::size_t column = i % kColumns;
    const std::span<const Code> x(&a[(tile * rows + row) * k], k);
    const std::span<const Code> y(&b[(tile * kColumns + column) * k], k);
    ++counts.dots;
    counts.nans += std::isnan(d[i]) ? 1 : 0;
    counts.different += same_float(dot(x, y, c[i]), d[i]) ? 0 : 1;
  }
}

// The three profiles are three different answers (matrix-cores sections 1 and 4): a profile under
// another's name would be noticed.
TEST(DotProfile, ProfilesDisagreeOnRecordedE4M3) {
  const Recording recording = test::recorded("hopper_wgmma");
  for (const std::string name : {"portable", "hopper-mma"}) {
    Counts counts;
    for (const RecordedCase& each : recording.cases)
      if (each.word("format") == "e4m3")
        check_case<std::uint8_t>(
            each, [&](auto a, auto b, float c) { return dot_e4m3(dot_profile(name), a, b, c); },
            counts);
    EXPECT_EQ(counts.dots, 102400u);
    EXPECT_GT(counts.different, counts.dots / 4) << name;
  }
}

std::vector<std::uint16_t> bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> codes(values.size());
  encode_bf16(values, codes);
  return codes;
}

TEST(DotProfile, PortableIsTheChainInAscendingK) {
  const DotProfile& portable = dot_profile("portable");
  const auto ones = bf16({1, 1, 1});
  const auto rising = bf16({0x1p-24f, 0x1p-24f, 1});
  const auto falling = bf16({1, 0x1p-24f, 0x1p-24f});
  EXPECT_EQ(dot_bf16(portable, ones, rising, 0.0f), 1 + 0x1p-23f);
  EXPECT_EQ(dot_bf16(portable, ones, falling, 0.0f), 1.0f);
  const std::uint8_t codes[] = {0x38, 0xB8, 0x01};  // 1, -1, 2^-9
  EXPECT_EQ(dot_e4m3(portable, codes, codes, 0.5f), 0.5f + 1 + 1 + 0x1p-18f);
  EXPECT_EQ(dot_bf16(portable, {}, {}, -3.0f), -3.0f);
}

TEST(DotProfile, NanIsCanonicalAndInfFollowsIeee) {
  for (const DotProfile* profile : dot_profiles()) {
    std::vector<std::uint16_t> a(32, 0x3F80), b(32, 0x3F80);
    a[3] = 0x7F80;
    EXPECT_EQ(dot_bf16(*profile, a, b, 0.0f), std::numeric_limits<float>::infinity());
    b[3] = 0;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(dot_bf16(*profile, a, b, 0.0f)), kCanonicalNanBits);
    b[3] = 0x3F80;
    a[20] = 0xFF80;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(dot_bf16(*profile, a, b, 0.0f)), kCanonicalNanBits);
    std::vector<std::uint8_t> x(64, 0x38);
    x[40] = 0xFF;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(dot_e4m3(*profile, x, x, 0.0f)), kCanonicalNanBits);
  }
}

// Every operation of the instructions is exact on small integers, so the profiles agree with an
// integer sum, over any number of steps.
TEST(DotProfile, ProfilesAgreeOnSmallIntegers) {
  for (const std::string name : {"portable", "hopper-mma", "hopper-wgmma"}) {
    std::vector<std::uint16_t> a(96), b(96);
    std::vector<std::uint8_t> x(96), y(96);
    int sum = 5;
    for (std::size_t k = 0; k < 96; ++k) {
      const int p = static_cast<int>(k * 7 % 5) - 2;
      const int q = static_cast<int>(k * 11 % 7) - 3;
      sum += p * q;
      a[k] = bf16_from_float(static_cast<float>(p));
      b[k] = bf16_from_float(static_cast<float>(q));
      x[k] = encode_fp8(kE4M3FN, static_cast<float>(p), Overflow::kNan);
      y[k] = encode_fp8(kE4M3FN, static_cast<float>(q), Overflow::kNan);
    }
    EXPECT_EQ(dot_bf16(dot_profile(name), a, b, 5.0f), static_cast<float>(sum)) << name;
    EXPECT_EQ(dot_e4m3(dot_profile(name), x, y, 5.0f), static_cast<float>(sum)) << name;
  }
}

TEST(DotProfile, HopperRefusesPartialSteps) {
  const std::vector<std::uint16_t> a(24);
  const std::vector<std::uint8_t> x(48);
  EXPECT_THROW(dot_bf16(dot_profile("hopper-mma"), a, a, 0.0f), Refusal);
  EXPECT_THROW(dot_e4m3(dot_profile("hopper-wgmma"), x, x, 0.0f), Refusal);
  EXPECT_THROW(dot_bf16(dot_profile("portable"), a, std::span(a).first(3), 0.0f), Refusal);
}

TEST(DotProfile, AnotherProfileCanBePluggedIn) {
  const DotProfile& portable = dot_profile("portable");
  DotProfile negated = portable;
  negated.name = "test-negated";
  negated.provisional = true;
  negated.bf16 = [](std::span<const std::uint16_t> a, std::span<const std::uint16_t> b, float c) {
    return -dot_bf16(dot_profile("portable"), a, b, c);
  };
  add_dot_profile(negated);
  const auto two = bf16({2});
  EXPECT_EQ(dot_bf16(dot_profile("test-negated"), two, two, 0.0f), -4.0f);
  EXPECT_EQ(&portable, &dot_profile("portable")) << "references survive additions";
  EXPECT_THROW(add_dot_profile(negated), Refusal);
  negated.name = "test-broken";
  negated.e4m3 = nullptr;
  EXPECT_THROW(add_dot_profile(negated), Refusal);
  EXPECT_THROW(dot_profile("test-broken"), Refusal);
}

}  // namespace
}  // namespace monoref
