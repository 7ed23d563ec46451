#include "reference/stages/o_projection.hpp"

#include <gtest/gtest.h>

#include "reference/formats/convert.hpp"
#include "reference/rules/weight_layouts.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

/// Owned inputs; weights are set by row and k of the plain matrix.
struct Projection {
  Tensor a8;
  Tensor a_scale;
  Tensor weight;
  Tensor w_scale;
  Contract contract{};

  static Projection zeros(std::int64_t tokens, std::int64_t width, std::int64_t hidden) {
    Projection made{Tensor(DType::kUInt8, Layout::dense({tokens, width})),
                    Tensor(DType::kFloat32, Layout::dense({tokens})),
                    Tensor(DType::kUInt8, Layout::dense({hidden, width})),
                    Tensor(DType::kFloat32, Layout::dense({hidden}))};
    made.a8.fill_bytes(std::byte{0});
    made.weight.fill_bytes(std::byte{0});
    for (std::int64_t i = 0; i < tokens; ++i) made.a_scale.view<float, 1>()(i) = 1.0f;
    for (std::int64_t i = 0; i < hidden; ++i) made.w_scale.view<float, 1>()(i) = 1.0f;
    return made;
  }
  void set_a(std::int64_t token, std::int64_t k, float value) {
    a8.view<std::uint8_t, 2>()(token, k) = encode_fp8(kE4M3FN, value, Overflow::kNan);
  }
  void set_w(std::int64_t row, std::int64_t k, float value) {
    weight.base()[shuffled_weight_offset(row, k, weight.dim(1))] =
        std::byte{encode_fp8(kE4M3FN, value, Overflow::kNan)};
  }
  OProjectionInput input() const {
    return {a8.view<std::uint8_t, 2>(), a_scale.view<float, 1>(), weight.view<std::uint8_t, 2>(),
            w_scale.view<float, 1>(), contract};
  }
  template <class Run>
  Numbers bits(Run run) const {
    const auto dims = o_projection_shape(input());
    Tensor out = poisoned(DType::kBFloat16, Layout::dense({dims[0], dims[1]}));
    run(input(), OProjectionOutput{out.view<std::uint16_t, 2>()});
    return values(out);
  }
  Numbers bits() const {
    return bits([](const auto& in, const auto& out) { o_projection(in, out); });
  }
  float out(std::size_t at) const {
    return float_from_bf16(static_cast<std::uint16_t>(bits()[at]));
  }
};

TEST(OProjection, OneElementFindsItsWeightAndItsScales) {
  Projection projection = Projection::zeros(2, 512, 32);
  projection.set_a(1, 300, 3.0f);
  projection.set_w(21, 300, -0.5f);
  projection.a_scale.view<float, 1>()(1) = 4.0f;
  projection.w_scale.view<float, 1>()(21) = 0.25f;
  const Numbers bits = projection.bits();
  for (std::int64_t at = 0; at < 64; ++at)
    EXPECT_EQ(bits[static_cast<std::size_t>(at)], at == 32 + 21 ? bf16_from_float(-1.5f) : 0) << at;
}

TEST(OProjection, TheScaleOfTheRowComesAfterThatOfTheToken) {
  // (1 * 2^-100) * 2^-40 underflows to a subnormal of binary32 before the row's 2^100 could help.
  Projection projection = Projection::zeros(1, 512, 16);
  projection.set_a(0, 0, 1.0f);
  projection.set_w(0, 0, 1.0f);
  projection.a_scale.view<float, 1>()(0) = 0x1.8p-149f;
  projection.w_scale.view<float, 1>()(0) = 0x1p100f;
  EXPECT_EQ(projection.out(0), 0x1p-48f) << "2^-148 * 2^100";
}

TEST(OProjection, WavesOwnQuartersAndAreAddedInOrder) {
  // Quarter sums 2^24, 1, 1, -2^24: only that order gives 0.
  Projection projection = Projection::zeros(1, 1024, 16);
  for (std::int64_t k = 0; k < 256; ++k) {
    projection.set_a(0, k, 256.0f);
    projection.set_w(0, k, 256.0f);
    projection.set_a(0, 768 + k, 256.0f);
    projection.set_w(0, 768 + k, -256.0f);
  }
  for (const std::int64_t k : {256, 767}) {
    projection.set_a(0, k, 1.0f);
    projection.set_w(0, k, 1.0f);
  }
  EXPECT_EQ(projection.out(0), 0.0f);
  projection.set_a(0, 767, 0.0f);  // both ones in the second quarter: one sum of 2
  projection.set_a(0, 257, 1.0f);
  projection.set_w(0, 257, 1.0f);
  EXPECT_EQ(projection.out(0), 2.0f);
}

TEST(OProjection, NanCodesAndScalesTakePart) {
  Projection projection = Projection::zeros(2, 512, 16);
  projection.a8.view<std::uint8_t, 2>()(0, 7) = 0x7F;
  const Numbers bits = projection.bits();
  for (std::size_t row = 0; row < 16; ++row) {
    EXPECT_EQ(bits[row], 0x7FC0);
    EXPECT_EQ(bits[16 + row], 0);
  }
}

TEST(OProjection, TheFastFormIsTheDefinition) {
  Random random(5);
  for (const std::int64_t tokens : {0, 1, 3, 8, 9, 16}) {
    Projection projection = Projection::zeros(tokens, tokens % 2 == 0 ? 512 : 1024, 48);
    for (Tensor* codes : {&projection.a8, &projection.weight})
      for (const Extent& extent : codes->layout().extents)
        for (std::byte& byte : codes->bytes(extent)) {
          const std::int64_t code = random.between(0, 255);
          byte =
              static_cast<std::byte>((code & 0x7F) == 0x7F && random.between(0, 20) > 0 ? 0 : code);
        }
    for (std::int64_t i = 0; i < tokens; ++i)
      projection.a_scale.view<float, 1>()(i) = 1.0f / static_cast<float>(random.between(1, 99));
    for (std::int64_t i = 0; i < 48; ++i)
      projection.w_scale.view<float, 1>()(i) = 1.0f / static_cast<float>(random.between(1, 99));
    const Numbers expected = projection.bits();
    for (const Isa isa : available_isas())
      EXPECT_EQ(projection.bits(
                    [&](const auto& in, const auto& out) { o_projection_fast(in, out, isa); }),
                expected)
          << tokens << " tokens, " << isa_name(isa);
  }
}

TEST(OProjection, RefusalsNameTheArgument) {
  const auto refusal = [](std::int64_t tokens, std::int64_t width, std::int64_t hidden,
                          auto change) {
    Projection projection = Projection::zeros(tokens, width, hidden);
    change(projection);
    return refusal_of([&] { o_projection_shape(projection.input()); });
  };
  const auto nothing = [](Projection&) {};
  EXPECT_EQ(refusal(1, 256, 16, nothing), "o_projection: width is 256, must be a multiple of 512");
  EXPECT_EQ(refusal(1, 640, 16, nothing), "o_projection: width is 640, must be a multiple of 512");
  EXPECT_EQ(refusal(1, 512, 24, nothing),
            "o_projection: weight has 24 rows, must be a multiple of 16");
  EXPECT_EQ(
      refusal(1, 512, 16,
              [](Projection& p) { p.weight = Tensor(DType::kUInt8, Layout::dense({16, 1024})); }),
      "o_projection: weight has 1024 in dimension 1, must have 512");
  EXPECT_EQ(refusal(1, 512, 16,
                    [](Projection& p) {
                      p.weight = Tensor(DType::kUInt8, Layout::strided({16, 512}, {600, 1}));
                    }),
            "o_projection: weight has strides 600 and 1, must be dense, 512 and 1");
  EXPECT_EQ(refusal(2, 512, 16,
                    [](Projection& p) { p.a_scale = Tensor(DType::kFloat32, Layout::dense({1})); }),
            "o_projection: a_scale has 1 in dimension 0, must have 2");
  EXPECT_EQ(
      refusal(1, 512, 16,
              [](Projection& p) { p.w_scale = Tensor(DType::kFloat32, Layout::dense({17})); }),
      "o_projection: w_scale has 17 in dimension 0, must have 16");
}

}  // namespace
}  // namespace monoref::testing
