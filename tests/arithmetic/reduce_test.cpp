// Ordered reductions: that the order written is the order done.
#include "reference/arithmetic/reduce.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "reference/core/error.hpp"
#include "reference/formats/canonical_nan.hpp"

namespace monoref {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Values of mixed size and sign for which every order of addition tends to give its own bits.
std::vector<float> uneven(std::size_t count) {
  std::vector<float> values(count);
  std::uint32_t state = 12345;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = std::ldexp(static_cast<float>(state >> 8) - 8388608.0f,
                       -20 - static_cast<int>(state >> 28));
  }
  return values;
}

/// Lane 0 of a butterfly by halving offsets, as a recursion: the offset that comes last joins the
/// even lanes with the odd ones.
float halving_tree(const std::vector<float>& lanes, std::size_t first, std::size_t stride) {
  if (stride == lanes.size()) return lanes[first];
  return halving_tree(lanes, first, stride * 2) + halving_tree(lanes, first + stride, stride * 2);
}

TEST(Reduce, SumInOrderAddsLeftToRight) {
  const float terms[] = {1.0f, 0x1p-24f, 0x1p-24f};
  EXPECT_EQ(sum_in_order(terms, SumStart::kFirstTerm), 1.0f);
  const float reversed[] = {0x1p-24f, 0x1p-24f, 1.0f};
  EXPECT_EQ(sum_in_order(reversed, SumStart::kFirstTerm), 1.0f + 0x1p-23f);
}

TEST(Reduce, TheStartDecidesTheSignOfZero) {
  const float terms[] = {-0.0f, -0.0f};
  EXPECT_FALSE(std::signbit(sum_in_order(terms, SumStart::kZero)));
  EXPECT_TRUE(std::signbit(sum_in_order(terms, SumStart::kFirstTerm)));
  EXPECT_FALSE(std::signbit(sum_in_order({}, SumStart::kFirstTerm)));
}

TEST(Reduce, FmaChainRoundsOncePerTerm) {
  const float a[] = {1 + 0x1p-12f, 1.0f};
  const float b[] = {1 + 0x1p-12f, -(1 + 0x1p-11f)};
  // The first product needs 25 bits and is rounded to 1 + 2^-11, a tie to even; the rest cancels
  // it.
  EXPECT_EQ(fma_chain(a, b, 0.0f), 0.0f);
  const float reversed_a[] = {1.0f, 1 + 0x1p-12f};
  const float reversed_b[] = {-(1 + 0x1p-11f), 1 + 0x1p-12f};
  EXPECT_EQ(fma_chain(reversed_a, reversed_b, 0.0f), 0x1p-24f);
  EXPECT_THROW(fma_chain(a, std::span(b).first(1), 0.0f), Refusal);
}

TEST(Reduce, ButterflyIsATreeThatStartsWithTheFirstOffset) {
  for (const int lanes : {2, 4, 16, 32, 64}) {
    const std::vector<float> values = uneven(static_cast<std::size_t>(lanes));
    EXPECT_EQ(butterfly_sum(values, halving_offsets(lanes / 2)), halving_tree(values, 0, 1));
  }
  const std::vector<float> values = uneven(8);
  const int rising[] = {1, 2, 4};
  EXPECT_EQ(butterfly_sum(values, rising), ((values[0] + values[1]) + (values[2] + values[3])) +
                                               ((values[4] + values[5]) + (values[6] + values[7])));
}

TEST(Reduce, HalvingOffsets) {
  EXPECT_EQ(halving_offsets(16), (std::vector<int>{16, 8, 4, 2, 1}));
  EXPECT_EQ(halving_offsets(1), (std::vector<int>{1}));
}

TEST(Reduce, ButterflyMaxLetsNanThrough) {
  std::vector<float> values = uneven(16);
  values[11] = kInf;
  EXPECT_EQ(butterfly_max(values, halving_offsets(8)), kInf);
  values[3] = std::bit_cast<float>(0xFFC00001u);
  const float result = butterfly_max(values, halving_offsets(8));
  EXPECT_EQ(std::bit_cast<std::uint32_t>(result), kCanonicalNanBits);
}

TEST(Reduce, RefusesOrdersThatDoNotFit) {
  const std::vector<float> values = uneven(12);
  EXPECT_THROW(butterfly_sum(values, halving_offsets(4)), Refusal);
  const int outside[] = {8};
  EXPECT_THROW(butterfly_sum(std::span(values).first(8), outside), Refusal);
  const int zero[] = {0};
  EXPECT_THROW(butterfly_sum(std::span(values).first(8), zero), Refusal);
  EXPECT_THROW(two_level_sum(std::span(values).first(8), input_norm_order()), Refusal);
  EXPECT_THROW(two_level_sum({}, input_norm_order()), Refusal);
  EXPECT_THROW(two_level_sum(uneven(33 * 32), input_norm_order()), Refusal);
  EXPECT_THROW(two_level_sum_of_squares(values, 5, input_norm_order()), Refusal);
}

// mono-decode section 3.2 spelled out for a hidden size of 6144: 768 threads of 8, 24 warps of 32,
// the warp sums padded to 32 with zeros.
TEST(Reduce, InputNormOrderOfAFullRow) {
  const std::vector<float> row = uneven(6144);
  std::vector<float> warps(32, 0.0f);
  for (std::size_t warp = 0; warp < 24; ++warp) {
    std::vector<float> lanes(32);
    for (std::size_t lane = 0; lane < 32; ++lane)
      for (std::size_t i = 0; i < 8; ++i) {
        const float x = row[(warp * 32 + lane) * 8 + i];
        lanes[lane] = std::fma(x, x, lanes[lane]);
      }
    warps[warp] = halving_tree(lanes, 0, 1);
  }
  EXPECT_EQ(two_level_sum_of_squares(row, 8, input_norm_order()), halving_tree(warps, 0, 1));
}

// Section 7 for the router: 512 threads of 12, eight waves of 64, their sums in order.
TEST(Reduce, RouterNormOrderOfAFullRow) {
  const std::vector<float> row = uneven(6144);
  float sum = 0;
  for (std::size_t wave = 0; wave < 8; ++wave) {
    std::vector<float> lanes(64);
    for (std::size_t lane = 0; lane < 64; ++lane)
      for (std::size_t i = 0; i < 12; ++i) {
        const float x = row[(wave * 64 + lane) * 12 + i];
        lanes[lane] = std::fma(x, x, lanes[lane]);
      }
    const float own = halving_tree(lanes, 0, 1);
    sum = wave == 0 ? own : sum + own;
  }
  EXPECT_EQ(two_level_sum_of_squares(row, 12, router_norm_order()), sum);
}

// Section 6 for a partition: eight waves of 16 lanes, each lane already (0 + p[i]) + p[16 + i].
TEST(Reduce, PartitionSumOrder) {
  const std::vector<float> p = uneven(256);
  std::vector<float> lanes;
  float sum = 0;
  for (std::size_t wave = 0; wave < 8; ++wave) {
    std::vector<float> own(16);
    for (std::size_t i = 0; i < 16; ++i) {
      const float pair[] = {p[wave * 32 + i], p[wave * 32 + 16 + i]};
      own[i] = sum_in_order(pair, SumStart::kZero);
      EXPECT_EQ(own[i], (0.0f + pair[0]) + pair[1]);
    }
    lanes.insert(lanes.end(), own.begin(), own.end());
    const float value = halving_tree(own, 0, 1);
    sum = wave == 0 ? value : sum + value;
  }
  EXPECT_EQ(two_level_sum(lanes, partition_sum_order()), sum);
}

}  // namespace
}  // namespace monoref
