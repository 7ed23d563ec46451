#include "reference/stages/qkv_projection.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/rules/weight_layouts.hpp"
#include "tests/before_attention/numbers.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

using Bytes = std::vector<std::uint8_t>;

// E4M3FN codes
constexpr std::uint8_t kOne = 0x38;
constexpr std::uint8_t kMax = 0x7E;  // 448
constexpr std::uint8_t kMinusMax = 0xFE;
constexpr std::uint8_t kTiny = 0x01;  // 2^-9
constexpr std::uint8_t kNan = 0x7F;

/// One call's operands; weights are written plain and shuffled before the call.
struct Projection {
  std::int64_t n;
  std::int64_t hidden;
  std::int64_t rows;
  Contract contract{};
  Bytes x8 = Bytes(static_cast<std::size_t>(n * hidden), 0);
  Bytes plain = Bytes(static_cast<std::size_t>(rows * hidden), 0);
  std::vector<float> x_scale = std::vector<float>(static_cast<std::size_t>(n), 1.0f);
  std::vector<float> w_scale = std::vector<float>(static_cast<std::size_t>(rows), 1.0f);
  Bytes shuffled{};

  std::uint8_t& x(std::int64_t token, std::int64_t k) {
    return x8[static_cast<std::size_t>(token * hidden + k)];
  }
  std::uint8_t& w(std::int64_t row, std::int64_t k) {
    return plain[static_cast<std::size_t>(row * hidden + k)];
  }
  QkvProjectionInput input() {
    shuffled = shuffle_weight(plain, {1, rows, hidden});
    return {View<const std::uint8_t, 2>(x8.data(), {n, hidden}, {hidden, 1}), row_view(x_scale),
            View<const std::uint8_t, 2>(shuffled.data(), {rows, hidden}, {hidden, 1}),
            row_view(w_scale), contract};
  }
  Codes run() {
    Codes out(static_cast<std::size_t>(n * rows), 0x5A5A);
    qkv_projection(input(), {View<std::uint16_t, 2>(out.data(), {n, rows}, {rows, 1})});
    return out;
  }
  Codes run_fast(Isa isa) {
    Codes out(static_cast<std::size_t>(n * rows), 0x5A5A);
    qkv_projection_fast(input(), {View<std::uint16_t, 2>(out.data(), {n, rows}, {rows, 1})}, isa);
    return out;
  }
};

TEST(QkvProjection, TheWalkThroughAChunk) {
  const ProjectionOrder order{128};
  const std::vector<std::int64_t> starts{0, 16, 32, 48, 8, 24, 40, 56};
  for (std::int64_t chunk = 0; chunk < 2; ++chunk)
    for (std::int64_t group = 0; group < 8; ++group)
      for (std::int64_t i = 0; i < 8; ++i)
        EXPECT_EQ(order.k(chunk * 64 + group * 8 + i),
                  chunk * 64 + starts[static_cast<std::size_t>(group)] + i);
}

TEST(QkvProjection, SlicesOfK) {
  struct {
    std::int64_t hidden, slice, slices;
  } const cases[] = {{6144, 768, 8}, {1024, 128, 8}, {512, 64, 8},
                     {448, 64, 7},   {256, 64, 4},   {64, 64, 1}};
  for (const auto& [hidden, slice, slices] : cases) {
    EXPECT_EQ(ProjectionOrder{hidden}.slice(), slice);
    EXPECT_EQ(ProjectionOrder{hidden}.slices(), slices);
  }
}

TEST(QkvProjection, OneHotTokensReadEveryWeight) {
  Projection projection{.n = 128, .hidden = 128, .rows = 32};
  for (std::int64_t k = 0; k < 128; ++k) {
    projection.x(k, k) = kOne;
    for (std::int64_t row = 0; row < 32; ++row) {
      // Powers of two 2^-6..2^8 by row, sign by k, and an eighth more for odd k / 2.
      const std::int64_t exponent = (row + k / 8) % 15 + 1;
      projection.w(row, k) =
          static_cast<std::uint8_t>(exponent << 3 | k / 2 % 2 | (k % 2 == 0 ? 0 : 0x80));
    }
  }
  const Codes out = projection.run();
  for (std::int64_t k = 0; k < 128; ++k)
    for (std::int64_t row = 0; row < 32; ++row) {
      const float magnitude =
          std::ldexp(k / 2 % 2 == 0 ? 1.0f : 1.125f, static_cast<int>((row + k / 8) % 15 + 1) - 7);
      ASSERT_EQ(out[static_cast<std::size_t>(k * 32 + row)],
                bf16(k % 2 == 0 ? magnitude : -magnitude))
          << "k " << k << ", row " << row;
    }
}

/// 448 * 448 at `large`, -448 * 448 at `minus` and 2^-9 at `tiny`. The tiny product survives where
/// it is added after the two large ones have cancelled.
float sum_of_three(std::int64_t hidden, std::int64_t large, std::int64_t tiny, std::int64_t minus) {
  Projection projection{.n = 1, .hidden = hidden, .rows = 16};
  projection.x(0, large) = projection.x(0, minus) = kMax;
  projection.x(0, tiny) = kOne;
  projection.w(3, large) = kMax;
  projection.w(3, minus) = kMinusMax;
  projection.w(3, tiny) = kTiny;
  return testing::from_bf16(projection.run()[3]);
}

TEST(QkvProjection, AChunkIsWalkedInThePermutedOrder) {
  EXPECT_EQ(sum_of_three(64, 0, 8, 16), 0x1p-9f) << "8 comes after 16";
  EXPECT_EQ(sum_of_three(64, 0, 16, 8), 0.0f);
  EXPECT_EQ(sum_of_three(64, 48, 8, 24), 0.0f) << "48, 8, 24";
  EXPECT_EQ(sum_of_three(64, 0, 1, 2), 0.0f) << "ascending inside a group of eight";
  EXPECT_EQ(sum_of_three(64, 0, 2, 1), 0x1p-9f);
  EXPECT_EQ(sum_of_three(1024, 8, 64, 56), 0x1p-9f) << "a wave finishes a chunk before the next";
  EXPECT_EQ(sum_of_three(1024, 56, 64, 65), 0.0f);
}

TEST(QkvProjection, PartialsAreAddedInWaveOrder) {
  EXPECT_EQ(sum_of_three(512, 0, 64, 128), 0.0f);
  EXPECT_EQ(sum_of_three(512, 0, 128, 64), 0x1p-9f);
  EXPECT_EQ(sum_of_three(512, 128, 0, 64), 0.0f) << "0, 64, 128";
  EXPECT_EQ(sum_of_three(256, 0, 128, 192), 0.0f) << "fewer slices than waves";
}

TEST(QkvProjection, EachWaveStartsFromZero) {
  // Twice 2^-7 beside 448 * 448, whose last place is 2^-6: one chain over all of K would lose them
  // one by one, the second wave adds them to each other first.
  Projection projection{.n = 1, .hidden = 512, .rows = 16};
  constexpr std::uint8_t kSmall = 0x04;  // 2^-7
  projection.x(0, 0) = projection.x(0, 128) = kMax;
  projection.x(0, 64) = projection.x(0, 65) = kOne;
  projection.w(0, 0) = kMax;
  projection.w(0, 128) = kMinusMax;
  projection.w(0, 64) = projection.w(0, 65) = kSmall;
  EXPECT_EQ(testing::from_bf16(projection.run()[0]), 0x1p-6f);
}

TEST(QkvProjection, ScalesOfTokenThenOfRow) {
  Projection projection{.n = 2, .hidden = 64, .rows = 32};
  for (std::int64_t token = 0; token < 2; ++token) projection.x(token, 5) = kMax;
  for (std::int64_t row = 0; row < 32; ++row) projection.w(row, 5) = kMax;
  projection.x_scale = {0x1p-3f, 0x1p120f};
  for (std::size_t row = 0; row < 32; ++row)
    projection.w_scale[row] = std::ldexp(1.0f, -static_cast<int>(row) - 3);
  const Codes out = projection.run();
  for (std::size_t row = 0; row < 32; ++row) {
    EXPECT_EQ(out[row], bf16(std::ldexp(448.0f * 448.0f, -6 - static_cast<int>(row))));
    // dot * x_scale leaves the range before w_scale could bring it back.
    EXPECT_EQ(out[32 + row], 0x7F80);
  }
}

TEST(QkvProjection, OneRoundingToBf16) {
  // 256 + 1 is half way between 256 and 258; 256 + 1 + 2^-9 is above.
  Projection projection{.n = 2, .hidden = 64, .rows = 16};
  for (std::int64_t token = 0; token < 2; ++token) {
    projection.x(token, 0) = kOne;
    projection.w(0, 0) = 0x78;  // 256
    projection.x(token, 1) = kOne;
    projection.w(0, 1) = kOne;
  }
  projection.x(1, 2) = kOne;
  projection.w(0, 2) = kTiny;
  const Codes out = projection.run();
  EXPECT_EQ(out[0], bf16(256));
  EXPECT_EQ(out[16], bf16(258));
}

TEST(QkvProjection, F15CodesAreOfTheContractsEncoding) {
  Projection projection{.n = 1, .hidden = 64, .rows = 16};
  projection.x(0, 9) = 0x40;
  projection.w(0, 9) = 0x40;
  projection.w(1, 9) = 0x80;
  EXPECT_EQ(projection.run()[0], bf16(4)) << "2 * 2";
  EXPECT_EQ(projection.run()[1], 0x0000) << "2 * -0, and 0 + -0 is +0";
  projection.contract = Contract::parse("mono,fp8_encoding=e4m3fnuz");
  EXPECT_EQ(projection.run()[0], bf16(1)) << "1 * 1";
  EXPECT_EQ(projection.run()[1], 0x7FC0) << "0x80 is NaN";
}

TEST(QkvProjection, NanAndInfinity) {
  Projection projection{.n = 3, .hidden = 64, .rows = 32};
  for (std::int64_t token = 0; token < 3; ++token) projection.x(token, 0) = kOne;
  for (std::int64_t row = 0; row < 32; ++row) projection.w(row, 0) = kOne;
  projection.w(17, 33) = kNan;
  projection.x(1, 60) = 0xFF;
  projection.x_scale[2] = std::numeric_limits<float>::infinity();
  projection.w_scale[4] = 0;
  const Codes out = projection.run();
  EXPECT_EQ(out[0], bf16(1));
  EXPECT_EQ(out[17], 0x7FC0) << "a NaN weight, even times zero";
  EXPECT_EQ(out[16], bf16(1));
  EXPECT_EQ(out[32 + 4], 0x7FC0);
  EXPECT_EQ(out[64], 0x7F80);
  EXPECT_EQ(out[64 + 4], 0x7FC0) << "Inf * 0";
}

/// Every code, NaN now and then; scales of any size.
Projection random_projection(std::int64_t n, std::int64_t hidden, std::int64_t rows,
                             std::uint64_t seed) {
  Random random(seed);
  Projection made{.n = n, .hidden = hidden, .rows = rows};
  const std::int64_t nan_every = random.between(0, 1) == 0 ? 1 : 97;
  const auto code = [&] {
    const auto drawn = static_cast<std::uint8_t>(random.between(0, 255));
    const bool nan = (drawn & 0x7F) == 0x7F;
    return nan && random.between(1, nan_every * 40) > 1 ? kTiny : drawn;
  };
  for (std::uint8_t& x : made.x8) x = code();
  for (std::uint8_t& w : made.plain) w = code();
  for (float& scale : made.x_scale)
    scale = std::ldexp(1.0f + 0.1f * static_cast<float>(random.between(0, 9)),
                       static_cast<int>(random.between(-20, 5)));
  for (float& scale : made.w_scale)
    scale = std::ldexp(1.0f + 0.1f * static_cast<float>(random.between(0, 9)),
                       static_cast<int>(random.between(-150, 120)));
  return made;
}

TEST(QkvProjection, TheFastFormIsTheDefinition) {
  std::uint64_t seed = 0;
  for (const std::int64_t hidden : {64, 128, 192, 448, 512, 1024, 1536})
    for (const std::int64_t n : {0, 1, 7, 8, 9, 16, 17})
      for (const std::int64_t rows : {16, 48}) {
        Projection projection = random_projection(n, hidden, rows, ++seed);
        if (seed % 3 == 0) projection.contract = Contract::parse("mono,fp8_encoding=e4m3fnuz");
        const Codes definition = projection.run();
        for (const Isa isa : available_isas())
          ASSERT_EQ(projection.run_fast(isa), definition)
              << isa_name(isa) << ", seed " << seed << ", n " << n << ", hidden " << hidden;
      }
}

TEST(QkvProjection, TheFastFormIsTheDefinitionAtFullWidth) {
  Projection projection = random_projection(16, 6144, 32, 99);
  const Codes definition = projection.run();
  for (const Isa isa : available_isas()) EXPECT_EQ(projection.run_fast(isa), definition);
}

TEST(QkvProjection, N01StridedTokensAndScales) {
  Projection projection = random_projection(5, 128, 16, 5);
  const Codes definition = projection.run();
  const QkvProjectionInput dense = projection.input();
  Bytes storage;
  std::vector<float> scales(13, std::nanf(""));
  for (std::size_t i = 0; i < 5; ++i) scales[3 * i] = projection.x_scale[i];
  for (const auto& [row_step, column_step] : {std::pair{131, 1}, {1, 5}, {300, 2}}) {
    QkvProjectionInput input = dense;
    input.x8 = scattered(projection.x8, 5, row_step, column_step, storage);
    input.x_scale = {scales.data(), {5}, {3}};
    Codes out(16 * 5, 0x5A5A);
    qkv_projection(input, {View<std::uint16_t, 2>(out.data(), {5, 16}, {1, 5})});
    Codes fast(16 * 5, 0x5A5A);
    qkv_projection_fast(input, {View<std::uint16_t, 2>(fast.data(), {5, 16}, {1, 5})});
    EXPECT_EQ(fast, out);
    for (std::size_t token = 0; token < 5; ++token)
      for (std::size_t row = 0; row < 16; ++row)
        ASSERT_EQ(out[row * 5 + token], definition[token * 16 + row]);
  }
}

TEST(QkvProjection, Refusals) {
  const auto of = [](Projection projection) {
    return refusal_of([&] { qkv_projection_shape(projection.input()); });
  };
  EXPECT_EQ(of({.n = 1, .hidden = 32, .rows = 16}),
            "qkv_projection: hidden is 32, must be a multiple of 64");
  EXPECT_EQ(of({.n = 1, .hidden = 96, .rows = 16}),
            "qkv_projection: hidden is 96, must be a multiple of 64");
  EXPECT_EQ(of({.n = 1, .hidden = 576, .rows = 16}),
            "qkv_projection: hidden is 576, must be a multiple of 512");
  EXPECT_EQ(of({.n = 0, .hidden = 512, .rows = 0}), "");

  Projection projection{.n = 2, .hidden = 64, .rows = 32};
  QkvProjectionInput input = projection.input();
  const auto refusal = [&] { return refusal_of([&] { qkv_projection_shape(input); }); };
  input.weight = {projection.shuffled.data(), {24, 64}, {64, 1}};
  EXPECT_EQ(refusal(), "qkv_projection: weight has 24 rows, must be a multiple of 16");
  input.weight = {projection.shuffled.data(), {32, 32}, {64, 1}};
  EXPECT_EQ(refusal(), "qkv_projection: weight has 32 in dimension 1, must have 64");
  input.weight = {projection.shuffled.data(), {16, 64}, {128, 1}};
  EXPECT_EQ(refusal(), "qkv_projection: weight has strides 128 and 1, must be dense, 64 and 1");
  input = projection.input();
  projection.x_scale.push_back(1);
  input.x_scale = row_view(projection.x_scale);
  EXPECT_EQ(refusal(), "qkv_projection: x_scale has 3 in dimension 0, must have 2");
  input = projection.input();
  input.x_scale = {projection.x_scale.data(), {2}, {1}};
  projection.w_scale.pop_back();
  input.w_scale = row_view(projection.w_scale);
  EXPECT_EQ(refusal(), "qkv_projection: w_scale has 31 in dimension 0, must have 32");
  projection.w_scale.push_back(1);
  input.w_scale = row_view(projection.w_scale);
  Codes out(64, 0x5A5A);
  const QkvProjectionOutput output{matrix_view(out, 4)};
  const std::string message = "qkv_projection: output qkv has 4 in dimension 0, must have 2";
  EXPECT_EQ(refusal_of([&] { qkv_projection(input, output); }), message);
  EXPECT_EQ(refusal_of([&] { qkv_projection_fast(input, output); }), message);
  EXPECT_EQ(out, Codes(64, 0x5A5A));
}

}  // namespace
}  // namespace monoref::testing
