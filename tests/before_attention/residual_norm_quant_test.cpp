#include "reference/stages/residual_norm_quant.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/arithmetic/bounded.hpp"
#include "reference/formats/float_format.hpp"
#include "tests/before_attention/numbers.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

/// So small that it disappears beside a mean square of 1.
constexpr double kTinyEps = 0x1p-30;
/// 1/448 rounded to binary32, written out: 1/448 = 0x1.249249...p-9.
constexpr float kOneOver448 = 0x1.24924ap-9f;
const std::uint16_t kBf16Nan = 0x7FC0;

/// One call's operands and results.
struct Norm {
  std::int64_t rows;
  Codes ar;
  Codes res;
  Codes gamma;
  double eps = kTinyEps;
  Contract contract{};
  Codes residual;
  std::vector<std::uint8_t> x8;
  std::vector<float> scale;

  /// `values` are the layer outputs; the residual is zero and every weight 1 unless set later.
  Norm(std::int64_t row_count, Codes values)
      : rows(row_count), ar(std::move(values)), res(ar.size(), 0), gamma(hidden(), 0) {}

  std::size_t hidden() const { return ar.size() / static_cast<std::size_t>(rows); }
  ResidualNormQuantInput input() {
    return {matrix_view<const std::uint16_t>(ar), matrix_view<const std::uint16_t>(res),
            View<const std::uint16_t, 1>(row_view(gamma)), eps, contract};
  }
  Norm& run() {
    residual.assign(ar.size(), 0x5A5A);
    x8.assign(ar.size(), 0x5A);
    scale.assign(static_cast<std::size_t>(rows), -1.0f);
    residual_norm_quant(input(), {testing::matrix_view(residual, rows),
                                  testing::matrix_view(x8, rows), row_view(scale)});
    return *this;
  }
  std::string refusal() {
    return refusal_of([&] { residual_norm_quant_shape(input()); });
  }

 private:
  template <class T>
  View<T, 2> matrix_view(Codes& values) {
    return testing::matrix_view(values, rows);
  }
};

Codes repeated(float value, std::size_t count) {
  return Codes(count, bf16(value));
}

TEST(ResidualNormQuant, HandComputedRow) {
  // Mean square 4, so rstd is 1/2 and y is (g + 1); the largest is 2, scaled to 448.
  Norm norm(1, repeated(2, 8));
  norm.gamma = bf16s({0, 1, -0.5, -0.75, -1, -2, -3, 0});
  norm.run();
  EXPECT_EQ(norm.residual, repeated(2, 8));
  EXPECT_EQ(bits(norm.scale[0]), bits(2 * kOneOver448));
  // 224, 448, 112, 56, 0, -224, -448, 224 in E4M3FN
  EXPECT_EQ(norm.x8, (std::vector<std::uint8_t>{0x76, 0x7E, 0x6E, 0x66, 0x00, 0xF6, 0xFE, 0x76}));
}

TEST(ResidualNormQuant, TheResidualIsTheRoundedSum) {
  // 1 + 2^-8 is half way between two BF16 numbers and goes to the even one; 1 + 3 * 2^-8 too.
  Norm norm(1, repeated(1, 8));
  norm.res = bf16s({0x1p-8f, 0x1.8p-7f, -1, 0, 1, 0x1p-20f, -0x1p-8f, 0x1p127f});
  norm.run();
  EXPECT_EQ(norm.residual,
            (Codes{0x3F80, 0x3F82, 0x0000, 0x3F80, 0x4000, 0x3F80, 0x3F7F, bf16(0x1p127f)}));
}

TEST(ResidualNormQuant, NormOfTheUnroundedOrOfTheRoundedSum) {
  Norm norm(1, repeated(1, 8));
  norm.res[0] = bf16(0x1p-9f);  // the sum rounds to 1
  norm.run();
  EXPECT_EQ(norm.residual, repeated(1, 8)) << "the stored residual does not depend on the choice";
  // (1 + 2^-9)^2 + 7 and an eighth of it are exact in binary32.
  const float rstd = 1.0f / std::sqrt(1.0f + 0x1p-11f + 0x1p-21f);
  EXPECT_EQ(bits(norm.scale[0]), bits((1.0f + 0x1p-9f) * rstd / 448.0f));
  norm.contract = Contract::parse("mono,norm_source=rounded");
  norm.run();
  EXPECT_EQ(norm.residual, repeated(1, 8));
  EXPECT_EQ(bits(norm.scale[0]), bits(kOneOver448)) << "every element is exactly 1";
}

TEST(ResidualNormQuant, EpsIsInsideTheRoot) {
  Norm norm(1, repeated(0x1p-10f, 8));
  norm.eps = 0x1.8p-19;  // 3 * 2^-20; with the mean square 2^-20 the root is 2^-9
  norm.run();
  EXPECT_EQ(bits(norm.scale[0]), bits(0.5f * kOneOver448));
}

/// The scale of a row of ones with one 4096, whose sum of squares is `sum`.
float scale_of_outlier(float sum, std::size_t hidden) {
  const float rstd = 1.0f / std::sqrt(sum / static_cast<float>(hidden));
  return 4096.0f * rstd / 448.0f;
}

TEST(ResidualNormQuant, SumOfSquaresInTheStatedOrder) {
  // 4096^2 = 2^24, where binary32 steps by 2. First in its thread, the seven ones after it are
  // lost one by one; last, it meets 7 and the sum 2^24 + 7 goes to 2^24 + 8. The other threads'
  // eights come as 8, 16, 32, 64 and 128 out of the butterfly and are kept.
  struct {
    std::size_t place;
    float sum;
  } const one_warp[] = {
      {0, 0x1p24f + 248}, {7, 0x1p24f + 256}, {std::size_t{8} * 31, 0x1p24f + 248}};
  for (const auto& [place, sum] : one_warp) {
    Norm norm(1, repeated(1, 256));
    norm.ar[place] = bf16(4096);
    EXPECT_EQ(bits(norm.run().scale[0]), bits(scale_of_outlier(sum, 256))) << "place " << place;
  }
  // 24 warps: the outlier's warp, then 256, 512, 1024 and so on from the others: 23 of 256.
  Norm norm(1, repeated(1, 6144));
  norm.ar[std::size_t{3} * 256] = bf16(4096);
  EXPECT_EQ(bits(norm.run().scale[0]), bits(scale_of_outlier(0x1p24f + 248 + 23 * 256, 6144)));
  // Fewer threads than a warp has: 8 of them, the rest count zero.
  Norm narrow(1, repeated(1, 64));
  narrow.ar[7] = bf16(4096);
  EXPECT_EQ(bits(narrow.run().scale[0]), bits(scale_of_outlier(0x1p24f + 8 + 56, 64)));
}

TEST(ResidualNormQuant, N02TheSumIsNotAccumulatedInBf16) {
  Norm norm(1, Codes(4096, 0x3DCD));  // 0.1 rounded to BF16
  norm.ar[1234] = bf16(300);
  norm.run();
  std::vector<Bounded> squares;
  for (const std::uint16_t code : norm.ar)
    squares.push_back(square(Bounded::exactly(testing::from_bf16(code)), kCorrectRounding));
  const Bounded mean =
      divide(sum(squares, kCorrectRounding), Bounded::exactly(4096), kCorrectRounding);
  const Bounded rms =
      square_root(add(mean, Bounded::exactly(kTinyEps), kCorrectRounding), kCorrectRounding);
  const Bounded rstd = divide(Bounded::exactly(1), rms, kCorrectRounding);
  const Bounded amax = multiply(Bounded::exactly(300), rstd, kCorrectRounding);
  const Bounded scale = divide(amax, Bounded::exactly(448), kCorrectRounding);
  EXPECT_TRUE(scale.admits(norm.scale[0]));
  // In BF16, 300^2 = 90000 becomes 90112 and swallows every 0.01 after it.
  EXPECT_FALSE(scale.admits(static_cast<float>(300.0 / std::sqrt(90112.0 / 4096) / 448.0)));
}

TEST(ResidualNormQuant, F18ZeroRowBetweenTwoOthers) {
  Codes values = repeated(1, 24);
  for (std::size_t i = 8; i < 16; ++i) values[i] = bf16(i % 2 == 0 ? 0.0f : -0.0f);
  Norm norm(3, values);
  norm.run();
  EXPECT_EQ(bits(norm.scale[1]), bits(1.0f)) << "the stored scale of a zero row";
  for (std::size_t i = 8; i < 16; ++i) EXPECT_EQ(norm.x8[i], 0) << "-0 + 0 is +0";
  for (const std::size_t row : {0, 2}) {
    EXPECT_EQ(bits(norm.scale[row]), bits(kOneOver448));
    EXPECT_EQ(norm.x8[row * 8], 0x7E);
  }
  // A weight of zero everywhere gives a zero row too, now of both signs.
  Norm weightless(1, bf16s({1, -1, 1, -1, 1, -1, 1, -1}));
  weightless.gamma = repeated(-1, 8);
  weightless.run();
  EXPECT_EQ(bits(weightless.scale[0]), bits(1.0f));
  EXPECT_EQ(weightless.x8, (std::vector<std::uint8_t>{0, 0x80, 0, 0x80, 0, 0x80, 0, 0x80}));
  weightless.contract = Contract::parse("mono,fp8_encoding=e4m3fnuz,fp8_max=240");
  EXPECT_EQ(weightless.run().x8, std::vector<std::uint8_t>(8, 0)) << "FNUZ has no -0";
}

TEST(ResidualNormQuant, F18OneElementThatIsNotZero) {
  Norm norm(1, repeated(0, 8));
  norm.ar[5] = bf16(-4);  // mean square 2, so y is -4 / sqrt(2)
  norm.run();
  EXPECT_EQ(bits(norm.scale[0]), bits(4.0f * (1.0f / std::sqrt(2.0f)) / 448.0f));
  EXPECT_EQ(norm.x8, (std::vector<std::uint8_t>{0, 0, 0, 0, 0, 0xFE, 0, 0}));
}

TEST(ResidualNormQuant, F16SubnormalRowsOverflowByTheContract) {
  // With eps 1 the root is 1 and with g + 1 = 2^-8 y is 2^-141 and 2^-140, 256 and 512 units of
  // the last place. The scale 512/448 units rounds to one unit: 512 does not fit FP8.
  Norm norm(1, repeated(0x1p-133f, 8));
  norm.ar[2] = bf16(-0x1p-132f);
  norm.gamma = repeated(-0.99609375f, 8);
  norm.eps = 1;
  norm.run();
  EXPECT_EQ(bits(norm.scale[0]), 1u);
  EXPECT_EQ(norm.x8[0], 0x78);
  EXPECT_EQ(norm.x8[2], 0x7F);
  norm.contract = Contract::parse("mono,fp8_overflow=saturate");
  EXPECT_EQ(norm.run().x8[2], 0xFE);
  EXPECT_EQ(bits(norm.scale[0]), 1u);
}

TEST(ResidualNormQuant, F16AScaleThatRoundsToZero) {
  Norm norm(1, repeated(0x1p-133f, 8));
  norm.ar[1] = 0;
  norm.gamma = repeated(-0.99609375f, 8);
  norm.eps = 4;  // y is 128 units, a 448th of it less than half a unit
  norm.run();
  EXPECT_EQ(bits(norm.scale[0]), 0u);
  EXPECT_EQ(norm.x8[0], 0x7F) << "infinite";
  EXPECT_EQ(norm.x8[1], 0x7F) << "0 / 0";
  norm.contract = Contract::parse("mono,fp8_overflow=saturate");
  norm.run();
  EXPECT_EQ(norm.x8[0], 0x7E);
  EXPECT_EQ(norm.x8[1], 0x7F) << "saturation keeps NaN";
}

TEST(ResidualNormQuant, F02ScaleIsAmaxByTheMaximumInForce) {
  struct {
    const char* contract;
    float maximum;
    float scale_of_1;
  } const rules[] = {{"mono", 448, kOneOver448},
                     {"mono,fp8_max=240", 240, 0x1.111112p-8f},
                     {"mono,fp8_max=224", 224, 2 * kOneOver448},
                     {"mono,fp8_encoding=e4m3fnuz,fp8_max=240", 240, 0x1.111112p-8f},
                     {"mono,fp8_encoding=e4m3fnuz,fp8_max=224", 224, 2 * kOneOver448}};
  for (const auto& rule : rules) {
    SCOPED_TRACE(rule.contract);
    Norm ones(1, repeated(1, 8));
    ones.contract = Contract::parse(rule.contract);
    EXPECT_EQ(bits(ones.run().scale[0]), bits(rule.scale_of_1));
    Random random(7);
    Codes values;
    for (int i = 0; i < 64 * 40; ++i)
      values.push_back(static_cast<std::uint16_t>(random.between(0x3C00, 0x4400) +
                                                  0x8000 * random.between(0, 1)));
    Norm norm(40, values);
    norm.contract = ones.contract;
    norm.run();
    const bool fnuz = norm.contract.fp8_encoding == Fp8Encoding::kFnuz;
    const FloatFormat& format = fnuz ? kE4M3FNUZ : kE4M3FN;
    for (std::size_t row = 0; row < 40; ++row) {
      float largest = 0;
      for (std::size_t i = 0; i < 64; ++i) {
        const std::uint8_t code = norm.x8[row * 64 + i];
        ASSERT_NE(classify(format, code), FloatClass::kNan);
        largest = std::max(largest, std::fabs(decode(format, code)));
      }
      EXPECT_EQ(largest, rule.maximum);
    }
  }
  Norm norm(1, repeated(1, 8));
  norm.contract = Contract::parse("mono,fp8_encoding=e4m3fnuz");
  EXPECT_EQ(norm.refusal(),
            "contract: fp8_max is 448, limit 240, the largest number of float8_e4m3fnuz");
}

TEST(ResidualNormQuant, F03TheTopBinadeKeepsItsValues) {
  Norm fn(1, bf16s({448, 288, 256, -256, 240, 128, 64, 320}));
  EXPECT_EQ(fn.run().x8,
            (std::vector<std::uint8_t>{0x7E, 0x79, 0x78, 0xF8, 0x77, 0x70, 0x68, 0x7A}));
  Norm fnuz(1, bf16s({240, 144, 128, -128, 224, 112, 32, 160}));
  fnuz.contract = Contract::parse("mono,fp8_encoding=e4m3fnuz,fp8_max=240");
  EXPECT_EQ(fnuz.run().x8,
            (std::vector<std::uint8_t>{0x7F, 0x79, 0x78, 0xF8, 0x7E, 0x76, 0x68, 0x7A}));
}

TEST(ResidualNormQuant, F04SmallNegativesInFnuz) {
  Norm norm(1, bf16s({240, -0x1p-11f, 0x1p-11f, -0x1p-20f, -0.0f, -0x1p-9f, -0x1p-10f, 0}));
  norm.contract = Contract::parse("mono,fp8_encoding=e4m3fnuz,fp8_max=240");
  // The quantum is 2^-10 here; half of it, 2^-11, goes to the even zero.
  EXPECT_EQ(norm.run().x8, (std::vector<std::uint8_t>{0x7F, 0, 0, 0, 0, 0x82, 0x81, 0}));
}

TEST(ResidualNormQuant, NanAndInfinityStayInTheirRow) {
  const float infinity = std::numeric_limits<float>::infinity();
  Norm norm(4, repeated(1, 32));
  norm.ar[3] = 0xFFC5;           // row 0: a NaN with a sign and a payload
  norm.ar[8] = bf16(infinity);   // row 1: the root is infinite, 1 / it is zero
  norm.ar[16] = bf16(infinity);  // row 2: Inf - Inf
  norm.res[16] = bf16(-infinity);
  norm.run();
  EXPECT_EQ(norm.residual[3], kBf16Nan);
  EXPECT_EQ(norm.residual[16], kBf16Nan);
  EXPECT_EQ(norm.residual[8], bf16(infinity));
  for (const std::size_t row : {0, 1, 2}) {
    EXPECT_EQ(bits(norm.scale[row]), 0x7FC00000u);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(norm.x8[row * 8 + i], 0x7F);
  }
  EXPECT_EQ(bits(norm.scale[3]), bits(kOneOver448));
  EXPECT_EQ(norm.x8[24], 0x7E);
  norm.contract = Contract::parse("mono,fp8_encoding=e4m3fnuz,fp8_max=240");
  norm.run();
  for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(norm.x8[i], 0x80);
}

TEST(ResidualNormQuant, N01AnyStrides) {
  Random random(3);
  Codes ar;
  Codes res;
  Codes gamma;
  for (int i = 0; i < 5 * 40; ++i) {
    ar.push_back(static_cast<std::uint16_t>(random.between(0x3E00, 0x4200)));
    res.push_back(static_cast<std::uint16_t>(random.between(0xBE00, 0xC200)));
  }
  for (int i = 0; i < 40; ++i)
    gamma.push_back(static_cast<std::uint16_t>(random.between(0x3D00, 0x3F80)));
  Norm dense(5, ar);
  dense.res = res;
  dense.gamma = gamma;
  dense.run();
  struct {
    std::int64_t row_step, column_step;
  } const layouts[] = {{1, 5}, {80, 2}, {47, 1}, {1, 7}};
  for (const auto& [row_step, column_step] : layouts) {
    Codes ar_storage;
    Codes res_storage;
    Codes gamma_storage;
    std::vector<std::uint8_t> x8_storage(1000, 0x5A);
    Codes residual(200);
    std::vector<float> scale(5);
    const View<std::uint8_t, 2> x8{x8_storage.data(), {5, 40}, {row_step, column_step}};
    const View<std::uint16_t, 2> gamma_view = scattered(gamma, 1, 0, column_step, gamma_storage);
    residual_norm_quant(
        {scattered(ar, 5, row_step, column_step, ar_storage),
         scattered(res, 5, column_step == 1 ? 1 : 40, column_step == 1 ? 5 : 1, res_storage),
         View<const std::uint16_t, 1>(gamma_view.data(), {40}, {column_step}),
         kTinyEps,
         {}},
        {matrix_view(residual, 5), x8, row_view(scale)});
    EXPECT_EQ(residual, dense.residual);
    EXPECT_EQ(scale, dense.scale);
    for (std::int64_t row = 0; row < 5; ++row)
      for (std::int64_t i = 0; i < 40; ++i)
        ASSERT_EQ(x8(row, i), dense.x8[static_cast<std::size_t>(row * 40 + i)]);
  }
}

TEST(ResidualNormQuant, NoRows) {
  Norm norm(1, repeated(1, 8));
  const View<const std::uint16_t, 2> none(norm.ar.data(), {0, 8}, {8, 1});
  const View<const std::uint16_t, 1> gamma = row_view(norm.gamma);
  EXPECT_EQ(residual_norm_quant_shape({none, none, gamma, 1e-6, {}}),
            (std::array<std::int64_t, 2>{0, 8}));
}

TEST(ResidualNormQuant, Refusals) {
  const auto of = [](std::size_t hidden) { return Norm(1, repeated(1, hidden)).refusal(); };
  EXPECT_EQ(of(4), "residual_norm_quant: hidden is 4, must be a multiple of 8 up to 8192");
  EXPECT_EQ(of(12), "residual_norm_quant: hidden is 12, must be a multiple of 8 up to 8192");
  EXPECT_EQ(of(8200), "residual_norm_quant: hidden is 8200, must be a multiple of 8 up to 8192");
  EXPECT_EQ(of(8192), "");
  Norm norm(2, repeated(1, 16));
  norm.gamma.push_back(0);
  EXPECT_EQ(norm.refusal(), "residual_norm_quant: gamma has 9 in dimension 0, must have 8");
  norm.gamma.pop_back();
  norm.res.resize(32);
  EXPECT_EQ(norm.refusal(), "residual_norm_quant: res has 16 in dimension 1, must have 8");
  norm.res.resize(16);
  for (const double eps : {0.0, -1e-6, 1e-60, 1e60, std::nan("")}) {
    norm.eps = eps;
    EXPECT_NE(norm.refusal().find("eps is"), std::string::npos) << eps;
    EXPECT_NE(norm.refusal().find("must be above 0 and finite in binary32"), std::string::npos);
  }
  norm.eps = 1e-6;
  Codes residual(16, 0x5A5A);
  std::vector<std::uint8_t> x8(16, 0x5A);
  std::vector<float> scale(3, -1.0f);
  EXPECT_EQ(refusal_of([&] {
              residual_norm_quant(norm.input(),
                                  {matrix_view(residual, 2), matrix_view(x8, 2), row_view(scale)});
            }),
            "residual_norm_quant: output x_scale has 3 in dimension 0, must have 2");
  EXPECT_EQ(residual, Codes(16, 0x5A5A)) << "nothing is written before a refusal";
  EXPECT_EQ(x8, std::vector<std::uint8_t>(16, 0x5A));
}

}  // namespace
}  // namespace monoref::testing
