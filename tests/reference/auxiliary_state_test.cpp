#include "reference/stages/auxiliary_state.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tests/before_attention/numbers.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(AuxiliaryState, OneBf16Addition) {
  // 1 + 2^-8 is half way between two BF16 numbers and goes to the even one; 1 + 3 * 2^-8 too.
  Codes hidden = bf16s({1, 1, -0.0f, 0, kInf, 3});
  Codes residual = bf16s({0x1p-8f, 0x1.8p-7f, -0.0f, -0.0f, -kInf, -3});
  Codes state(6, 0x5A5A);
  auxiliary_state({matrix_view(hidden, 2), View<const std::uint16_t, 2>(matrix_view(residual, 2))},
                  {matrix_view(state, 2)});
  EXPECT_EQ(state, (Codes{bf16(1), bf16(1.015625f), 0x8000, 0, 0x7FC0, 0}));
}

TEST(AuxiliaryState, WithoutAResidualTheBitsOfHidden) {
  Codes hidden{0x8000, 0xFFC5, 0x7F81, bf16(-2)};
  Codes state(4, 0x5A5A);
  auxiliary_state({matrix_view(hidden, 1), std::nullopt}, {matrix_view(state, 1)});
  EXPECT_EQ(state, hidden) << "-0 and the bits of NaN too";
}

TEST(AuxiliaryState, Refusals) {
  Codes hidden(6);
  Codes residual(4);
  Codes state(6, 0x5A5A);
  EXPECT_EQ(refusal_of([&] {
              auxiliary_state(
                  {matrix_view(hidden, 2), View<const std::uint16_t, 2>(matrix_view(residual, 2))},
                  {matrix_view(state, 2)});
            }),
            "auxiliary_state: residual has 2 in dimension 1, must have 3");
  EXPECT_EQ(refusal_of([&] {
              auxiliary_state({matrix_view(hidden, 2), std::nullopt}, {matrix_view(state, 3)});
            }),
            "auxiliary_state: output state has 3 in dimension 0, must have 2");
  EXPECT_EQ(state, Codes(6, 0x5A5A)) << "nothing is written before a refusal";
}

}  // namespace
}  // namespace monoref::testing
