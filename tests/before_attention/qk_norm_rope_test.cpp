#include "reference/stages/qk_norm_rope.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/before_attention/numbers.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

constexpr double kTinyEps = 0x1p-30;

/// One call's operands and results.
struct Heads {
  HeadShape shape;
  std::int64_t rows;
  std::int64_t table_rows = 4;
  double eps = kTinyEps;
  Codes qkv = Codes(size(rows * shape.row_width()), bf16(2));
  std::vector<std::int64_t> position = std::vector<std::int64_t>(size(rows), 0);
  Codes cos_sin = Codes(size(table_rows * shape.rotary_dim), 0);
  Codes q_gamma = Codes(size(shape.head_dim), 0);
  Codes k_gamma = q_gamma;
  Codes index_q_gamma = q_gamma;
  Codes index_k_gamma = q_gamma;
  Codes q{};
  Codes index_q{};
  std::vector<float> k{};
  std::vector<float> index_k{};

  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  QkNormRopeInput input() {
    return {
        View<const std::uint16_t, 2>(qkv.data(), {rows, shape.row_width()}, {shape.row_width(), 1}),
        row_view(position),
        View<const std::uint16_t, 2>(cos_sin.data(), {table_rows, shape.rotary_dim},
                                     {shape.rotary_dim, 1}),
        row_view(q_gamma),
        row_view(k_gamma),
        row_view(index_q_gamma),
        row_view(index_k_gamma),
        eps,
        shape};
  }
  template <class T>
  View<T, 3> output_view(std::vector<T>& values, std::int64_t heads, T poison) {
    values.assign(size(rows * heads * shape.head_dim), poison);
    return {
        values.data(), {rows, heads, shape.head_dim}, {heads * shape.head_dim, shape.head_dim, 1}};
  }
  QkNormRopeOutput output() {
    return {output_view<std::uint16_t>(q, shape.q_heads, 0x5A5A),
            output_view<float>(k, shape.kv_heads, -1.0f),
            output_view<std::uint16_t>(index_q, shape.index_q_heads, 0x5A5A),
            output_view<float>(index_k, 1, -1.0f)};
  }
  Heads& run() {
    const QkNormRopeOutput to = output();
    qk_norm_rope(input(), to);
    return *this;
  }
  std::string refusal() {
    return refusal_of([&] { qk_norm_rope_rows(input()); });
  }
  /// Sets head `head` (counted through the whole row) of a row.
  void set_head(std::int64_t row, std::int64_t head, const Codes& values) {
    std::copy(values.begin(), values.end(),
              qkv.begin() + row * shape.row_width() + head * shape.head_dim);
  }
  void set_table_row(std::int64_t at, const Codes& cos_then_sin) {
    std::copy(cos_then_sin.begin(), cos_then_sin.end(), cos_sin.begin() + at * shape.rotary_dim);
  }
};

constexpr HeadShape kSmall{
    .q_heads = 2, .kv_heads = 1, .index_q_heads = 1, .head_dim = 8, .rotary_dim = 4};

TEST(QkNormRope, HandComputedHeads) {
  // Every head is all 2: mean square 4, n = g + 1. A quarter turn: first' = -second, second' =
  // first, in the pairs (0, 2) and (1, 3).
  Heads heads{.shape = kSmall, .rows = 1};
  heads.position[0] = 3;
  heads.set_table_row(3, bf16s({0, 0, 1, 1}));
  heads.q_gamma = bf16s({0, 1, 2, 3, 4, 5, 6, 7});
  heads.k_gamma = bf16s({7, 6, 5, 4, 3, 2, 1, 0});
  heads.index_q_gamma = bf16s({-2, -3, 0, 1, 0, -1, 9, 1});
  heads.index_k_gamma = bf16s({15, 31, 63, 127, 0, -1, 0, 0});
  heads.run();
  const Codes q_head = bf16s({-3, -4, 1, 2, 5, 6, 7, 8});
  for (std::size_t d = 0; d < 8; ++d) {
    EXPECT_EQ(heads.q[d], q_head[d]) << "dim " << d;
    EXPECT_EQ(heads.q[8 + d], q_head[d]) << "dim " << d << ", the second head";
  }
  EXPECT_EQ(heads.k, (std::vector<float>{-6, -5, 8, 7, 4, 3, 2, 1}));
  EXPECT_EQ(heads.index_q, bf16s({-1, -2, -1, -2, 1, 0, 10, 2}));
  EXPECT_EQ(heads.index_k, (std::vector<float>{-64, -128, 16, 32, 1, 0, 1, 1}));
}

TEST(QkNormRope, PositionsPickTheirRowOfTheTable) {
  Heads heads{.shape = kSmall, .rows = 4};
  heads.position = {2, 0, 3, 2};
  for (std::int64_t at = 0; at < 4; ++at)
    heads.set_table_row(at, bf16s({static_cast<float>(at + 1), 1, 0, 0}));
  heads.run();
  for (std::size_t row = 0; row < 4; ++row)
    EXPECT_EQ(heads.k[row * 8], static_cast<float>(heads.position[row] + 1));
}

TEST(QkNormRope, N04PairsAreHalvesNotNeighbours) {
  // x = 0..7 turned by a quarter: halves give (-4 .. 0 ..), neighbours would give (-1, 0, -3, 2
  // ..).
  Heads heads{
      .shape = {.q_heads = 1, .kv_heads = 1, .index_q_heads = 1, .head_dim = 8, .rotary_dim = 8},
      .rows = 1};
  heads.position[0] = 1;
  heads.set_table_row(1, bf16s({0, 0, 0, 0, 1, 1, 1, 1}));
  heads.k_gamma = bf16s({-1, 0, 1, 2, 3, 4, 5, 6});
  heads.run();
  EXPECT_EQ(heads.k, (std::vector<float>{-4, -5, -6, -7, 0, 1, 2, 3}));
}

/// A random head of ordinary numbers and a rotation of the model's shape at position 5.
Heads model_heads(std::uint64_t seed, std::int64_t rotary_dim) {
  Random random(seed);
  Heads heads{.shape = {.q_heads = 2, .kv_heads = 1, .index_q_heads = 1, .rotary_dim = rotary_dim},
              .rows = 1,
              .table_rows = 6,
              .eps = 1e-6};
  const auto fill = [&](Codes& codes, std::int64_t low, std::int64_t high) {
    for (std::uint16_t& code : codes)
      code = static_cast<std::uint16_t>(random.between(low, high) + 0x8000 * random.between(0, 1));
  };
  fill(heads.qkv, 0x3C00, 0x4180);
  fill(heads.k_gamma, 0x3C00, 0x3F00);
  fill(heads.q_gamma, 0x3C00, 0x3F00);
  fill(heads.cos_sin, 0x3C00, 0x3F80);
  heads.position[0] = 5;
  return heads;
}

TEST(QkNormRope, N05OnlyTheRotaryDimsTurn) {
  Heads turned = model_heads(1, 64).run();
  Heads plain = model_heads(1, 0).run();  // draws the same head: the table comes last
  for (std::size_t d = 64; d < 128; ++d) {
    EXPECT_EQ(bits(turned.k[d]), bits(plain.k[d])) << "dim " << d;
    EXPECT_EQ(turned.q[d], plain.q[d]);
  }
  std::size_t changed = 0;
  for (std::size_t d = 0; d < 64; ++d) changed += turned.k[d] != plain.k[d] ? 1 : 0;
  EXPECT_EQ(changed, 64u);
}

TEST(QkNormRope, RotationRoundsOneProductAndFusesTheOther) {
  Heads heads = model_heads(2, 64).run();
  const Heads plain = model_heads(2, 0).run();
  std::size_t fused_differs = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    const float a = plain.k[i];
    const float b = plain.k[32 + i];
    const float cos = from_bf16(heads.cos_sin[5 * 64 + i]);
    const float sin = from_bf16(heads.cos_sin[5 * 64 + 32 + i]);
    // Products of binary32 and BF16 are exact in long double, and so are these sums: their terms
    // span fewer than 64 bits, which the exponents drawn above see to.
    const auto exact = [](float n, float c, float rounded) {
      return static_cast<float>(static_cast<long double>(n) * c + rounded);
    };
    EXPECT_EQ(bits(heads.k[i]), bits(exact(a, cos, -(b * sin)))) << "dim " << i;
    EXPECT_EQ(bits(heads.k[32 + i]), bits(exact(b, cos, a * sin))) << "dim " << 32 + i;
    fused_differs += heads.k[i] != a * cos - b * sin ? 1 : 0;
  }
  EXPECT_GT(fused_differs, 0u) << "the case cannot tell a fused product from a rounded one";
}

TEST(QkNormRope, QueriesAreRoundedOnceKeysAreNot) {
  // All n are 1; dim 2 becomes 1 + 2^-8, half way between two BF16 numbers.
  Heads heads{.shape = kSmall, .rows = 1};
  heads.set_table_row(0, bf16s({1, 1, 0x1p-8f, 0}));
  heads.run();
  EXPECT_EQ(heads.k[2], 1 + 0x1p-8f);
  EXPECT_EQ(heads.q[2], bf16(1)) << "a tie goes to the even code";
  heads.q_gamma[2] = heads.k_gamma[2] = bf16(0x1p-8f);  // n[2] = 1 + 2^-8, plus n[0] * 2^-8
  heads.run();
  EXPECT_EQ(heads.k[2], 1 + 0x1p-7f);
  EXPECT_EQ(heads.q[2], bf16(1 + 0x1p-7f)) << "rounding after the norm would give 1 + 2^-8, then 1";
}

TEST(QkNormRope, SumOfSquaresInTheStatedOrder) {
  // As in the input norm: 4096 beside ones; a lane owns 4 dims. First in its lane it swallows the
  // three ones after it; last it meets 3 and 2^24 + 3 goes to 2^24 + 4. The other 31 lanes bring
  // 4, 8, 16, 32 and 64 out of the butterfly.
  struct {
    std::size_t place;
    float sum;
  } const cases[] = {{0, 0x1p24f + 124}, {3, 0x1p24f + 128}, {4 * 31, 0x1p24f + 124}};
  for (const auto& [place, sum] : cases) {
    Heads heads{.shape = {.q_heads = 1, .kv_heads = 1, .index_q_heads = 1, .rotary_dim = 0},
                .rows = 1};
    Codes head(128, bf16(1));
    head[place] = bf16(4096);
    heads.set_head(0, 1, head);
    heads.run();
    const float rr = 1.0f / std::sqrt(sum / 128.0f);
    EXPECT_EQ(bits(heads.k[place]), bits(4096.0f * rr)) << "place " << place;
    EXPECT_EQ(bits(heads.k[1]), bits(rr));
  }
}

TEST(QkNormRope, EpsIsInsideTheRootAndZeroHeadsAreZero) {
  Heads heads{.shape = kSmall, .rows = 1, .eps = 0x1.8p-19};
  heads.set_head(0, 2, Codes(8, bf16(0x1p-10f)));  // k: mean square 2^-20, the root is 2^-9
  heads.set_head(0, 0, Codes(8, 0));
  heads.set_table_row(0, bf16s({1, 1, 0, 0}));
  heads.run();
  EXPECT_EQ(heads.k, std::vector<float>(8, 0.5f));
  for (std::size_t d = 0; d < 8; ++d) EXPECT_EQ(heads.q[d] & 0x7FFF, 0);
}

TEST(QkNormRope, ValuesAreNotReadAndNanStaysInItsHead) {
  Heads heads{.shape = kSmall, .rows = 2};
  for (std::int64_t at = 0; at < 4; ++at) heads.set_table_row(at, bf16s({1, 1, 0, 0}));
  heads.run();
  const Heads clean = heads;
  for (std::int64_t row = 0; row < 2; ++row) heads.set_head(row, 3, Codes(8, 0x7FC1));  // v
  heads.run();
  EXPECT_EQ(heads.q, clean.q);
  EXPECT_EQ(heads.k, clean.k);
  EXPECT_EQ(heads.index_q, clean.index_q);
  EXPECT_EQ(heads.index_k, clean.index_k);
  heads.qkv[8 + 5] = 0xFFC5;  // row 0, second q head
  heads.qkv[static_cast<std::size_t>(kSmall.row_width()) + 16 + 7] = 0x7F80;  // row 1, k: Inf
  heads.run();
  for (std::size_t d = 0; d < 8; ++d) {
    EXPECT_EQ(heads.q[d], clean.q[d]);
    EXPECT_EQ(heads.q[8 + d], 0x7FC0) << "through the sum of squares";
    EXPECT_EQ(heads.q[16 + d], clean.q[16 + d]);
    EXPECT_EQ(heads.k[d], clean.k[d]);
    // Inf * (1 / Inf) is NaN, and where it is not rotated, everything else is finite * 0.
    EXPECT_EQ(bits(heads.k[8 + d]), d == 7 ? 0x7FC00000u : 0u);
  }
  EXPECT_EQ(heads.index_k, clean.index_k);
}

TEST(QkNormRope, N01StridedProjection) {
  Heads heads = model_heads(4, 64);
  heads.run();
  const std::int64_t width = heads.shape.row_width();
  for (const std::int64_t step : {1, 2, 3}) {
    Codes storage;
    const View<const std::uint16_t, 2> strided = scattered(heads.qkv, 1, 0, step, storage);
    Heads other = heads;
    QkNormRopeInput input = other.input();
    input.qkv = {strided.data(), {1, width}, {7, step}};
    const QkNormRopeOutput output = other.output();
    qk_norm_rope(input, output);
    EXPECT_EQ(other.q, heads.q);
    EXPECT_EQ(other.k, heads.k);
    EXPECT_EQ(other.index_k, heads.index_k);
  }
}

TEST(QkNormRope, N07PositionsPastTheTableAreRefused) {
  Heads heads{.shape = kSmall, .rows = 2};
  heads.position = {0, 3};
  EXPECT_EQ(heads.refusal(), "");
  for (const std::int64_t position : {std::int64_t{4}, std::int64_t{-1}, std::int64_t{1} << 32}) {
    heads.position[1] = position;
    EXPECT_EQ(heads.refusal(), "qk_norm_rope: position[1] is " + std::to_string(position) +
                                   ", must be 0 to 3, the table's end");
  }
  const QkNormRopeOutput output = heads.output();
  EXPECT_NE(refusal_of([&] { qk_norm_rope(heads.input(), output); }), "");
  EXPECT_EQ(heads.q, Codes(2 * 16, 0x5A5A)) << "the good row is not written either";
}

TEST(QkNormRope, PositionsUpToTwoToTheTwentieth) {
  constexpr std::int64_t table_rows = std::int64_t{1} << 20;
  Heads heads{.shape = kSmall, .rows = 2};
  Tensor table(DType::kBFloat16,
               Layout{{table_rows, 4}, {4, 1}, {{0, 4}, {4 * (table_rows - 1), 4}}});
  const auto view = table.view<std::uint16_t, 2>();
  for (std::int64_t i = 0; i < 4; ++i) {
    view(0, i) = bf16(i < 2 ? 1.0f : 0.0f);
    view(table_rows - 1, i) = bf16(i < 2 ? 0.0f : 1.0f);
  }
  heads.position = {table_rows - 1, 0};
  QkNormRopeInput input = heads.input();
  input.cos_sin = view;
  const QkNormRopeOutput output = heads.output();
  qk_norm_rope(input, output);
  EXPECT_EQ(heads.k[0], -1.0f);
  EXPECT_EQ(heads.k[8], 1.0f);
}

TEST(QkNormRope, ShapeRefusals) {
  const auto of = [](HeadShape shape) { return refusal_of([&] { shape.validate(); }); };
  EXPECT_EQ(of({}), "");
  EXPECT_EQ(of({.q_heads = 0}), "qk_norm_rope: q_heads is 0, must be 1 to 1024");
  EXPECT_EQ(of({.kv_heads = 2000}), "qk_norm_rope: kv_heads is 2000, must be 1 to 1024");
  EXPECT_EQ(of({.index_q_heads = -1}), "qk_norm_rope: index_q_heads is -1, must be 1 to 1024");
  EXPECT_EQ(of({.head_dim = 132}), "qk_norm_rope: head_dim is 132, must be 4 to 128");
  EXPECT_EQ(of({.head_dim = 66}), "qk_norm_rope: head_dim is 66, must be a multiple of 4");
  EXPECT_EQ(of({.head_dim = 64, .rotary_dim = 66}),
            "qk_norm_rope: rotary_dim is 66, must be 0 to 64");
  EXPECT_EQ(of({.rotary_dim = 33}), "qk_norm_rope: rotary_dim is 33, must be a multiple of 2");
}

TEST(QkNormRope, ArgumentRefusals) {
  Heads heads{.shape = kSmall, .rows = 2};
  const auto refused = [&](auto change) {
    QkNormRopeInput input = heads.input();
    change(input);
    return refusal_of([&] { qk_norm_rope_rows(input); });
  };
  Codes odd(9, 0);
  const View<const std::uint16_t, 1> wrong = row_view(odd);
  EXPECT_EQ(refused([](auto& in) { in.shape.q_heads = 3; }),
            "qk_norm_rope: qkv has 48 in dimension 1, must have 56");
  EXPECT_EQ(refused([&](auto& in) { in.position = {heads.position.data(), {1}, {1}}; }),
            "qk_norm_rope: position has 1 in dimension 0, must have 2");
  EXPECT_EQ(refused([&](auto& in) { in.cos_sin = {heads.cos_sin.data(), {2, 8}, {8, 1}}; }),
            "qk_norm_rope: cos_sin has 8 in dimension 1, must have 4");
  EXPECT_EQ(refused([&](auto& in) { in.q_gamma = wrong; }),
            "qk_norm_rope: q_gamma has 9 in dimension 0, must have 8");
  EXPECT_EQ(refused([&](auto& in) { in.k_gamma = wrong; }),
            "qk_norm_rope: k_gamma has 9 in dimension 0, must have 8");
  EXPECT_EQ(refused([&](auto& in) { in.index_q_gamma = wrong; }),
            "qk_norm_rope: index_q_gamma has 9 in dimension 0, must have 8");
  EXPECT_EQ(refused([&](auto& in) { in.index_k_gamma = wrong; }),
            "qk_norm_rope: index_k_gamma has 9 in dimension 0, must have 8");
  EXPECT_EQ(refused([](auto& in) { in.eps = 0; }),
            "qk_norm_rope: eps is 0, must be above 0 and finite in binary32");
  QkNormRopeOutput output = heads.output();
  output.index_k = output.k;
  output.k = {heads.k.data(), {2, 2, 4}, {8, 4, 1}};
  EXPECT_EQ(refusal_of([&] { qk_norm_rope(heads.input(), output); }),
            "qk_norm_rope: output k has 2 in dimension 1, must have 1");
  EXPECT_EQ(heads.q, Codes(2 * 16, 0x5A5A));
}

}  // namespace
}  // namespace monoref::testing
