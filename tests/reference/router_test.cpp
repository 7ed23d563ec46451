#include "reference/stages/router.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tests/before_attention/numbers.hpp"
#include "tests/reference/square_sum.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
/// So small that it disappears beside a mean square of 1.
constexpr double kTinyEps = 0x1p-30;

/// One call's operands, and its results after `run`. Rows start as ones without a residual, so that
/// xn is 1; gates start as zeros.
struct Routing {
  std::int64_t rows;
  std::int64_t hidden;
  std::int64_t experts;
  Codes sum = Codes(static_cast<std::size_t>(rows * hidden), bf16(1));
  Codes residual = Codes(sum.size(), 0);
  Codes gamma = Codes(static_cast<std::size_t>(hidden), 0);
  Tensor gate{DType::kBFloat16, Layout::dense({experts, hidden})};
  double eps = kTinyEps;
  Contract contract{};
  Codes h_mid = Codes(sum.size(), 0x5A5A);
  Codes xn = Codes(sum.size(), 0x5A5A);
  std::vector<float> logits = std::vector<float>(static_cast<std::size_t>(rows * experts), -1.0f);

  RouterInput input() {
    return {
        matrix_view(sum, rows), matrix_view(residual, rows), row_view(gamma), gate, eps, contract};
  }
  Routing& run() {
    router(input(), {matrix_view(h_mid, rows), matrix_view(xn, rows), matrix_view(logits, rows)});
    return *this;
  }
  std::string refusal() {
    return refusal_of([&] { router_shape(input()); });
  }
  void weight(std::int64_t expert, std::int64_t element, float value) {
    gate.view<std::uint16_t, 2>()(expert, element) = bf16(value);
  }
};

TEST(Router, HandComputedRow) {
  // v is 2 everywhere, its mean square 4, so rstd is 1/2 and xn is gamma + 1.
  Routing routing{.rows = 1, .hidden = 512, .experts = 2};
  routing.residual.assign(512, bf16(1));
  routing.gamma[3] = bf16(1);
  routing.gamma[511] = bf16(-3);
  for (std::int64_t i = 0; i < 512; ++i) routing.weight(0, i, 0.5f);
  routing.weight(1, 3, 4);
  routing.weight(1, 511, 0.25f);
  routing.run();
  EXPECT_EQ(routing.h_mid, Codes(512, bf16(2)));
  Codes xn(512, bf16(1));
  xn[3] = bf16(2);
  xn[511] = bf16(-2);
  EXPECT_EQ(routing.xn, xn);
  EXPECT_EQ(routing.logits[0], 0.5f * (510 + 2 - 2));
  EXPECT_EQ(routing.logits[1], 2 * 4 - 2 * 0.25f);
}

TEST(Router, HMidIsTheRoundedSum) {
  // 1 + 2^-8 is half way between two BF16 numbers and goes to the even one; 1 + 3 * 2^-8 too.
  Routing routing{.rows = 1, .hidden = 512, .experts = 1};
  routing.residual[0] = bf16(0x1p-8f);
  routing.residual[1] = bf16(0x1.8p-7f);
  routing.residual[2] = bf16(-1);
  routing.run();
  EXPECT_EQ(routing.h_mid[0], bf16(1));
  EXPECT_EQ(routing.h_mid[1], bf16(1.015625f));
  EXPECT_EQ(routing.h_mid[2], 0);
}

TEST(Router, TheNormTakesTheUnroundedSumOrTheRoundedOne) {
  // v[0] is 1 + 2^-9, which rounds to 1. Times 1 + 3/4 * 2^-8 the former lies above the middle
  // between 1 and its BF16 neighbour, the latter below. The root is 1 but for some 2^-18.
  Routing routing{.rows = 1, .hidden = 512, .experts = 1};
  routing.residual[0] = bf16(0x1p-9f);
  routing.gamma[0] = bf16(0x1.8p-9f);
  routing.run();
  EXPECT_EQ(routing.h_mid[0], bf16(1));
  EXPECT_EQ(routing.xn[0], bf16(1.0078125f));
  routing.contract = Contract::parse("mono,norm_source=rounded");
  routing.run();
  EXPECT_EQ(routing.h_mid[0], bf16(1));
  EXPECT_EQ(routing.xn[0], bf16(1));
}

TEST(Router, EpsIsInsideTheRoot) {
  Routing routing{.rows = 1, .hidden = 512, .experts = 1};
  routing.sum.assign(512, bf16(0x1p-10f));
  routing.eps = 0x1.8p-19;  // 3 * 2^-20; with the mean square 2^-20 the root is 2^-9
  EXPECT_EQ(routing.run().xn, Codes(512, bf16(0.5f)));
}

struct Place {
  std::size_t element;
  float value;
};

/// Runs a row that holds these numbers and next to nothing else, and looks at everything else for
/// the sum of its squares: `sum`, and not `other`, which another order would give.
void expect_sum_of_squares(const std::vector<Place>& places, float sum, float other) {
  const NormElement small = telling_apart(sum, other, kTinyEps);
  Routing routing{.rows = 1, .hidden = 6144, .experts = 1};
  routing.sum.assign(6144, small.v);
  routing.gamma.assign(6144, small.gamma);
  for (const Place& place : places) routing.sum[place.element] = bf16(place.value);
  routing.run();
  for (std::size_t i = 0; i < 6144; ++i)
    ASSERT_EQ(routing.xn[i], normalised({routing.sum[i], small.gamma}, sum, kTinyEps)) << i;
}

TEST(Router, AThreadOwnsTwelveNeighbours) {
  // 4096^2 = 2^24, where binary32 steps by 2. First in its thread, the eleven ones after it are
  // lost one by one; last, it meets 11 and the sum 2^24 + 11 goes to 2^24 + 12.
  std::vector<Place> first;
  std::vector<Place> last;
  for (std::size_t i = 0; i < 12; ++i) {
    first.push_back({12 * 77 + i, i == 0 ? 4096.0f : 1.0f});
    last.push_back({12 * 77 + i, i == 11 ? 4096.0f : 1.0f});
  }
  expect_sum_of_squares(first, 0x1p24f, 0x1p24f + 12);
  expect_sum_of_squares(last, 0x1p24f + 12, 0x1p24f);
}

TEST(Router, LanesAreAddedByAButterflyFrom32) {
  // Each lane of the first wave has a one, lane 0 has 4096. Offset 32 brings it 1, which is lost,
  // then 2, 4, 8, 16 and 32: 62. One by one, all would be lost.
  std::vector<Place> all;
  for (std::size_t lane = 0; lane < 64; ++lane) all.push_back({12 * lane, lane == 0 ? 4096.0f : 1});
  expect_sum_of_squares(all, 0x1p24f + 62, 0x1p24f);
  // Lanes 0 and 32 are added to each other first, lanes 0 and 1 last. 5408^2 lies above 2^24 too,
  // and the inverse roots of it and of the next number differ.
  constexpr float kSquare = 5408.0f * 5408.0f;
  expect_sum_of_squares({{12 * 1, 5408}, {12 * 0, 1}, {12 * 32, 1}}, kSquare + 2, kSquare);
  expect_sum_of_squares({{12 * 32, 5408}, {12 * 0, 1}, {12 * 1, 1}}, kSquare, kSquare + 2);
}

TEST(Router, WavesAreAddedInOrder) {
  // First, seven ones are lost one by one; last, it meets 7, and 2^24 + 7 is half way to 2^24 + 8.
  std::vector<Place> first;
  std::vector<Place> last;
  for (std::size_t wave = 0; wave < 8; ++wave) {
    first.push_back({768 * wave + 5, wave == 0 ? 4096.0f : 1.0f});
    last.push_back({768 * wave + 5, wave == 7 ? 4096.0f : 1.0f});
  }
  expect_sum_of_squares(first, 0x1p24f, 0x1p24f + 8);
  expect_sum_of_squares(last, 0x1p24f + 8, 0x1p24f);
}

TEST(Router, APairIsAddedLowThenHighAndStepsOf512InOrder) {
  // Lane 0, pair 0: elements 0, 1, 512, 513.
  Routing routing{.rows = 1, .hidden = 1024, .experts = 2};
  routing.weight(0, 0, 0x1p24f);
  routing.weight(0, 1, 1);
  routing.weight(0, 512, -0x1p24f);
  routing.weight(0, 513, 1);
  routing.weight(1, 0, 1);
  routing.weight(1, 1, 0x1p24f);
  routing.weight(1, 512, 1);
  routing.weight(1, 513, -0x1p24f);
  routing.run();
  EXPECT_EQ(routing.logits[0], 1.0f) << "lows before highs would give 2";
  EXPECT_EQ(routing.logits[1], 0.0f) << "lows before highs would give 2, highs first 1";
}

TEST(Router, PairsAreAddedByTwos) {
  // (1 + 2^24) + (1 - 2^24): the first one is lost, the second is not. In order it would be 0,
  // (acc0 + acc2) + (acc1 + acc3) would be 2. Elements 8 * 9 on are lane 9.
  Routing routing{.rows = 1, .hidden = 512, .experts = 1};
  const float accumulators[] = {1, 0x1p24f, 1, -0x1p24f};
  for (std::int64_t pair = 0; pair < 4; ++pair)
    routing.weight(0, 8 * 9 + 2 * pair, accumulators[pair]);
  EXPECT_EQ(routing.run().logits[0], 1.0f);
}

TEST(Router, LanesOfALogitAreAddedByAButterflyFrom32) {
  // Lane 0 meets lane 32 first and loses its one, then lane 16. From 1 upwards it would be 1.
  Routing routing{.rows = 1, .hidden = 512, .experts = 2};
  routing.weight(0, 0, 0x1p24f);
  routing.weight(0, 8 * 32, 1);
  routing.weight(0, 8 * 16, -0x1p24f);
  // Lane 1 meets lane 0 last: the ones of lanes 0 and 2 are together by then.
  routing.weight(1, 8 * 1, 0x1p24f);
  routing.weight(1, 8 * 0, 1);
  routing.weight(1, 8 * 2, 1);
  routing.run();
  EXPECT_EQ(routing.logits[0], 0.0f);
  EXPECT_EQ(routing.logits[1], 0x1p24f + 2);
}

TEST(Router, GateOfBinary32IsNotRounded) {
  Routing routing{.rows = 1, .hidden = 512, .experts = 1};
  routing.contract = Contract::parse("mono,gate_weights=f32");
  routing.gate = Tensor(DType::kFloat32, Layout::dense({1, 512}));
  routing.gamma[1] = bf16(0x1p-7f);  // xn[1] = 1 + 2^-7
  auto gate = routing.gate.view<float, 2>();
  // (1 + 2^-7)(1 + 2^-23) needs 31 bits. The fma rounds it together with -1, where it fits.
  gate(0, 0) = -1.0f;
  gate(0, 1) = 1 + 0x1p-23f;
  routing.run();
  EXPECT_EQ(routing.xn[1], bf16(1 + 0x1p-7f));
  EXPECT_EQ(bits(routing.logits[0]), bits(0x1p-7f + 0x1p-23f + 0x1p-30f));
}

TEST(Router, RowsAndExpertsAreIndependentAndNanStaysInItsRow) {
  Routing routing{.rows = 3, .hidden = 512, .experts = 3};
  routing.sum[512 + 7] = 0xFFC5;
  for (std::int64_t i = 0; i < 512; ++i) routing.weight(1, i, 1);
  routing.gate.view<std::uint16_t, 2>()(2, 100) = bf16(kInf);
  routing.run();
  const std::vector<std::uint32_t> expected{
      0, bits(512), bits(kInf), 0x7FC00000, 0x7FC00000, 0x7FC00000, 0, bits(512), bits(kInf)};
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(bits(routing.logits[i]), expected[i]) << i;
  EXPECT_EQ(routing.h_mid[512 + 7], 0x7FC0);
  EXPECT_EQ(routing.h_mid[512 + 8], bf16(1));
  EXPECT_EQ(Codes(routing.xn.begin() + 512, routing.xn.begin() + 1024), Codes(512, 0x7FC0));
  EXPECT_EQ(Codes(routing.xn.begin(), routing.xn.begin() + 512), Codes(512, bf16(1)));
}

TEST(Router, GateOfAnyStrides) {
  Routing dense{.rows = 1, .hidden = 512, .experts = 2};
  Routing strided = dense;
  strided.gate = poisoned(DType::kBFloat16, Layout::strided({2, 512}, {1, 3}));
  for (std::int64_t i = 0; i < 512; ++i)
    for (std::int64_t expert = 0; expert < 2; ++expert) {
      const auto value = static_cast<float>(i % 7 - 3 * expert);
      dense.weight(expert, i, value);
      strided.weight(expert, i, value);
    }
  EXPECT_EQ(dense.run().logits, strided.run().logits);
  EXPECT_NE(dense.logits[0], dense.logits[1]);
}

TEST(Router, Refusals) {
  const auto sized = [](std::int64_t hidden, std::int64_t experts) {
    return Routing{.rows = 1, .hidden = hidden, .experts = experts}.refusal();
  };
  EXPECT_EQ(sized(500, 1), "router: hidden is 500, must be a multiple of 512 up to 8192");
  EXPECT_EQ(sized(0, 1), "router: hidden is 0, must be a multiple of 512 up to 8192");
  EXPECT_EQ(sized(8704, 1), "router: hidden is 8704, must be a multiple of 512 up to 8192");
  EXPECT_EQ(sized(512, 0), "router: gate has 0 experts, must have 1 to 1024");
  EXPECT_EQ(sized(512, 1025), "router: gate has 1025 experts, must have 1 to 1024");
  EXPECT_EQ(sized(8192, 1024), "");
  Routing routing{.rows = 2, .hidden = 512, .experts = 1};
  routing.gamma.pop_back();
  EXPECT_EQ(routing.refusal(), "router: gamma has 511 in dimension 0, must have 512");
  routing.gamma.push_back(0);
  routing.gate = Tensor(DType::kFloat32, Layout::dense({1, 512}));
  EXPECT_EQ(routing.refusal(), "router: gate is float32, must be bfloat16");
  routing.gate = Tensor(DType::kBFloat16, Layout::dense({512}));
  EXPECT_EQ(routing.refusal(), "router: gate has 1 dimensions, must have 2");
  routing.gate = Tensor(DType::kBFloat16, Layout::dense({1, 1024}));
  EXPECT_EQ(routing.refusal(), "router: gate has 1024 in dimension 1, must have 512");
  routing.gate = Tensor(DType::kBFloat16, Layout::dense({1, 512}));
  routing.eps = 0;
  EXPECT_EQ(routing.refusal(), "router: eps is 0, must be above 0 and finite in binary32");
  routing.eps = kTinyEps;
  routing.logits.resize(4);
  EXPECT_EQ(refusal_of([&] { routing.run(); }),
            "router: output logits has 2 in dimension 1, must have 1");
  EXPECT_EQ(routing.h_mid, Codes(1024, 0x5A5A)) << "nothing is written before a refusal";
}

}  // namespace
}  // namespace monoref::testing
