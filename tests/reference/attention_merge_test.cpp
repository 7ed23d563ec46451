#include "reference/stages/attention_merge.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/arithmetic/portable.hpp"
#include "tests/reference/attention_data.hpp"

namespace monoref::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLog2E = 1.44269504088896340736f;

/// One row and head with one dim: (o, m, l) of each partition.
struct Part {
  float o;
  float m;
  float l = 1.0f;
};

PartialAttention parts(const std::vector<Part>& list) {
  const auto count = static_cast<std::int64_t>(list.size());
  PartialAttention made{Tensor(DType::kBFloat16, Layout::dense({1, count, 1, 1})),
                        Tensor(DType::kFloat32, Layout::dense({1, count, 1})),
                        Tensor(DType::kFloat32, Layout::dense({1, count, 1}))};
  for (std::int64_t i = 0; i < count; ++i) {
    const Part& part = list[static_cast<std::size_t>(i)];
    made.o.view<std::uint16_t, 4>()(0, i, 0, 0) = bf16_from_float(part.o);
    made.m.view<float, 3>()(0, i, 0) = part.m;
    made.l.view<float, 3>()(0, i, 0) = part.l;
  }
  return made;
}

float merge(const std::vector<Part>& list, const char* fields) {
  return merged(parts(list), Contract::parse(std::string("mono,") + fields)).front();
}

constexpr const char* kMono = "merge_sum=separate";

TEST(AttentionMerge, OnePartitionIsItself) {
  EXPECT_EQ(merge({{-3.25f, 17.0f, 5.0f}}, kMono), -3.25f);
}

TEST(AttentionMerge, WeightsAreMassesAtTheCommonMaximum) {
  EXPECT_EQ(merge({{1, 2, 3}, {5, 2, 1}}, kMono), 2.0f);  // 3/4 and 1/4
  // One unit of m is a factor e, not 2 (bug case T21): 1 : e.
  const float small = portable_exp2(-1.0f * kLog2E);
  const float sum = small + 1.0f;
  EXPECT_EQ(merge({{0, 0}, {1, 1}}, kMono), round_to_bf16(1.0f / sum));
  EXPECT_EQ(merge({{1, 0}, {0, 1}}, kMono), round_to_bf16(small / sum));
}

TEST(AttentionMerge, T21BasesOfLogSums) {
  // Log-sums 0 and 1: weights 1 : e in base e, 1 : 2 in base 2.
  EXPECT_EQ(merge({{0, 0}, {3, 1}}, "merge_weights=lse_base_2"), 2.0f);
  EXPECT_EQ(merge({{3, 0}, {0, 1}}, "merge_weights=lse_base_2"), 1.0f);
  const float small = portable_exp2(-1.0f * kLog2E);
  EXPECT_EQ(merge({{1, 0}, {0, 1}}, "merge_weights=lse_base_e"),
            round_to_bf16(small / (small + 1.0f)));
}

TEST(AttentionMerge, T21AnEmptyPartitionContributesNothing) {
  for (const char* weights : {"merge_weights=lse_base_2,empty_partial=skipped",
                              "merge_weights=lse_base_e,empty_partial=skipped",
                              "merge_weights=max_and_sum,empty_partial=skipped"}) {
    EXPECT_EQ(merge({{1, 0}, {kNan, -kInf, 0}}, weights), 1.0f) << weights;
    EXPECT_EQ(merge({{kNan, -kInf, 0}, {1, 0}}, weights), 1.0f) << weights;
    EXPECT_EQ(merge({{1, 0}, {kNan, std::numeric_limits<float>::lowest(), 0}}, weights), 1.0f);
    EXPECT_EQ(merge({{kNan, -kInf, 0}, {kNan, -kInf, 0}}, weights), 0.0f) << "S26: " << weights;
  }
  EXPECT_TRUE(std::isnan(merge({{1, 0}, {kNan, -kInf, 0}}, kMono)));
}

TEST(AttentionMerge, MaskedPartitionsVanishByArithmetic) {
  const Part masked{0, -3.4e38f, 256};
  EXPECT_EQ(merge({{1.5f, -100, 3}, masked, masked}, kMono), 1.5f);
  EXPECT_EQ(merge({{1.5f, -1e30f, 3}, masked}, kMono), 1.5f);
  EXPECT_EQ(merge({masked, masked}, kMono), 0.0f) << "S26: a row of nothing but masked keys";
}

TEST(AttentionMerge, OnePartitionMayDominate) {
  EXPECT_EQ(merge({{1, 0}, {-7, 1000}}, kMono), -7.0f);
  EXPECT_EQ(merge({{1, 0}, {-7, -1000}}, kMono), 1.0f);
}

TEST(AttentionMerge, ANanMaximumMakesTheHeadNan) {
  EXPECT_TRUE(std::isnan(merge({{1, 0}, {1, kNan}}, kMono)));
  EXPECT_TRUE(std::isnan(merge({{kNan, 0}, {1, 0}}, kMono)));
}

TEST(AttentionMerge, SumsGoInOrder) {
  // Unnormalised weights 1, 2^-24, 2^-24: from the first, each small one is lost; from the last
  // they are kept.
  const std::vector<Part> falling{{1, 0, 1}, {0, 0, 0x1p-24f}, {0, 0, 0x1p-24f}};
  const std::vector<Part> rising{{0, 0, 0x1p-24f}, {0, 0, 0x1p-24f}, {1, 0, 1}};
  EXPECT_EQ(merge(falling, kMono), 1.0f);
  // 1 / (1 + 2^-23) is below 1 and rounds to 1 in BF16; a factor that BF16 holds shows the order.
  EXPECT_EQ(merge(rising, kMono), round_to_bf16(1.0f / (1.0f + 0x1p-23f)));
}

TEST(AttentionMerge, ProductsAreRoundedUnlessFused) {
  // w = 1/3 each; 1/3 * 3 rounds to 1 in binary32, but f32(1/3) * 3 is 1 + 2^-25. With -1 added
  // first the fused sum keeps the difference.
  const std::vector<Part> list{{-3, 0}, {3, 0}, {0, 0}};
  EXPECT_EQ(merge(list, "merge_sum=separate"), 0.0f);
  EXPECT_EQ(merge(list, "merge_sum=fused"), 0x1p-25f);
}

TEST(AttentionMerge, RefusalsNameTheArgument) {
  PartialAttention made = parts({{1, 0}, {2, 0}});
  const auto refusal = [&](const Contract& contract) {
    return refusal_of([&] { merged(made, contract); });
  };
  made.m = Tensor(DType::kFloat32, Layout::dense({1, 3, 1}));
  EXPECT_EQ(refusal({}), "attention_merge: m has 3 in dimension 1, must have 2");
  made = parts({{1, 0}, {2, 0}});
  made.l = Tensor(DType::kFloat32, Layout::dense({1, 2, 2}));
  EXPECT_EQ(refusal({}), "attention_merge: l has 2 in dimension 2, must have 1");
  EXPECT_EQ(refusal(Contract::parse("mono,merge_weights=lse_base_2")), "") << "l is not read";
  made = parts({});
  EXPECT_EQ(refusal({}), "attention_merge: o has 0 partitions, must have at least 1");
}

}  // namespace
}  // namespace monoref::testing
