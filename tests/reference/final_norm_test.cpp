#include "reference/stages/final_norm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/before_attention/numbers.hpp"
#include "tests/reference/square_sum.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

/// So small that it disappears beside a mean square of 1.
constexpr double kTinyEps = 0x1p-30;

/// One call's operands, and its result after `run`. Without more said, no residual and weights
/// of 1.
struct Norm {
  Codes ar;
  std::int64_t rows = 1;
  Codes res = Codes(ar.size(), 0);
  Codes gamma = Codes(ar.size() / static_cast<std::size_t>(rows), 0);
  double eps = kTinyEps;
  Codes out = Codes(ar.size(), 0x5A5A);

  FinalNormInput input() {
    return {matrix_view(ar, rows), matrix_view(res, rows), row_view(gamma), eps};
  }
  Norm& run() {
    final_norm(input(), {matrix_view(out, rows)});
    return *this;
  }
  std::string refusal() {
    return refusal_of([&] { final_norm_shape(input()); });
  }
};

TEST(FinalNorm, HandComputedRow) {
  // The sums are 2, their mean square 4, so the root is 1/2 and the result gamma + 1.
  Norm norm{.ar = Codes(8, bf16(1.5f)), .res = Codes(8, bf16(0.5f))};
  norm.gamma = bf16s({0, 1, -0.5f, -0.75f, -1, -2, -3, 0.25f});
  EXPECT_EQ(norm.run().out, bf16s({1, 2, 0.5f, 0.25f, 0, -1, -2, 1.25f}));
}

TEST(FinalNorm, OfTheUnroundedSum) {
  // 1 + 2^-9 would round to 1. Times 1 + 3/4 * 2^-8 it lies above the middle between 1 and its BF16
  // neighbour; 1 does not. The root is 1 but for some 2^-11.
  Norm norm{.ar = Codes(64, bf16(1))};
  norm.res[0] = bf16(0x1p-9f);
  norm.gamma[0] = norm.gamma[1] = bf16(0x1.8p-9f);
  norm.run();
  EXPECT_EQ(norm.out[0], bf16(1.0078125f));
  EXPECT_EQ(norm.out[1], bf16(1));
}

TEST(FinalNorm, EpsIsInsideTheRoot) {
  Norm norm{.ar = Codes(8, bf16(0x1p-10f))};
  norm.eps = 0x1.8p-19;  // 3 * 2^-20; with the mean square 2^-20 the root is 2^-9
  EXPECT_EQ(norm.run().out, Codes(8, bf16(0.5f)));
}

TEST(FinalNorm, SquaresAreAddedAsInTheInputNorm) {
  // Each of the 24 warps of 32 threads of 8 has a one, the first has 4096, whose square is 2^24.
  // Offsets 16 and 8 bring it 1 each, which is lost; 4 brings 3, and 2^24 + 3 goes to 2^24 + 4; 2
  // brings 6 and 1 brings 12. One after the other, all would be lost.
  constexpr float kSum = 0x1p24f + 22;
  const NormElement small = telling_apart(kSum, 0x1p24f, kTinyEps);
  Norm norm{.ar = Codes(6144, small.v), .gamma = Codes(6144, small.gamma)};
  for (std::size_t warp = 0; warp < 24; ++warp) norm.ar[256 * warp] = bf16(warp == 0 ? 4096 : 1);
  norm.run();
  for (std::size_t i = 0; i < 6144; ++i)
    ASSERT_EQ(norm.out[i], normalised({norm.ar[i], small.gamma}, kSum, kTinyEps)) << i;
}

TEST(FinalNorm, NanAndInfinityStayInTheirRow) {
  const float infinity = std::numeric_limits<float>::infinity();
  Norm norm{.ar = Codes(32, bf16(1)), .rows = 4};
  norm.ar[3] = 0xFFC5;
  norm.ar[8] = bf16(infinity);  // the root is infinite, 1 / it is zero, and Inf * 0 is NaN
  norm.ar[16] = bf16(infinity);
  norm.res[16] = bf16(-infinity);
  norm.run();
  Codes second(8, 0);
  second[0] = 0x7FC0;
  EXPECT_EQ(Codes(norm.out.begin(), norm.out.begin() + 8), Codes(8, 0x7FC0));
  EXPECT_EQ(Codes(norm.out.begin() + 8, norm.out.begin() + 16), second);
  EXPECT_EQ(Codes(norm.out.begin() + 16, norm.out.begin() + 24), Codes(8, 0x7FC0));
  EXPECT_EQ(Codes(norm.out.begin() + 24, norm.out.end()), Codes(8, bf16(1)));
}

TEST(FinalNorm, Refusals) {
  EXPECT_EQ((Norm{.ar = Codes(12, 0)}.refusal()),
            "final_norm: hidden is 12, must be a multiple of 8 up to 8192");
  EXPECT_EQ((Norm{.ar = Codes(8200, 0)}.refusal()),
            "final_norm: hidden is 8200, must be a multiple of 8 up to 8192");
  EXPECT_EQ((Norm{.ar = Codes(8192, 0)}.refusal()), "");
  Norm norm{.ar = Codes(16, 0), .rows = 2};
  norm.gamma.push_back(0);
  EXPECT_EQ(norm.refusal(), "final_norm: gamma has 9 in dimension 0, must have 8");
  norm.gamma.pop_back();
  norm.res.resize(32);
  EXPECT_EQ(norm.refusal(), "final_norm: res has 16 in dimension 1, must have 8");
  norm.res.resize(16);
  norm.eps = 0;
  EXPECT_EQ(norm.refusal(), "final_norm: eps is 0, must be above 0 and finite in binary32");
  norm.eps = 1;
  Codes out(24, 0x5A5A);
  EXPECT_EQ(refusal_of([&] { final_norm(norm.input(), {matrix_view(out, 3)}); }),
            "final_norm: output out has 3 in dimension 0, must have 2");
  EXPECT_EQ(out, Codes(24, 0x5A5A)) << "nothing is written before a refusal";
}

}  // namespace
}  // namespace monoref::testing
