#include "reference/model/sparse_attention.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "reference/arithmetic/attention_bounds.hpp"
#include "reference/arithmetic/code_range.hpp"
#include "reference/rules/attention_tile.hpp"
#include "reference/stages/sparse_block_table.hpp"
#include "tests/reference/attention_data.hpp"

namespace monoref::testing {
namespace {

/// A selection over the caches of `Attention`; its own tables are not used.
struct Selected {
  Attention attention;
  Tensor topk_idx;
  Tensor block_table;
  Tensor seq_lens;
  std::int64_t q_len = 1;
  std::int64_t compute_units = 256;

  SparseAttentionInput input() const {
    return {attention.q.view<std::uint16_t, 3>(),
            reading<3>(topk_idx),
            reading<2>(block_table),
            reading<1>(seq_lens),
            q_len,
            attention.caches(),
            attention.sm_scale,
            compute_units,
            attention.contract};
  }
  std::vector<float> run() const {
    const auto dims = sparse_attention_shape(input());
    Tensor out = poisoned(DType::kBFloat16, Layout::dense({dims[0], dims[1], dims[2]}));
    sparse_attention(input(), {out.view<std::uint16_t, 3>()});
    std::vector<float> all;
    for (const std::int64_t code : values(out))
      all.push_back(float_from_bf16(static_cast<std::uint16_t>(code)));
    return all;
  }
  std::string refusal() const {
    return refusal_of([&] { sparse_attention_shape(input()); });
  }
};

/// One request of one row that selects `ids` of `blocks` blocks in place.
Selected select(const char* contract, const Numbers& ids, std::int64_t blocks, std::int64_t length,
                std::int64_t heads = 1) {
  Selected made{.attention = Attention::zeros(Contract::parse(contract), 1, heads, blocks)};
  made.topk_idx = ints({1, 1, static_cast<std::int64_t>(ids.size())}, ids);
  made.block_table = ints({1, blocks}, counting(0, blocks));
  made.seq_lens = ints({1}, {length});
  return made;
}

/// Random numbers in queries and caches; no NaN.
void randomise(Attention& attention, std::uint64_t seed) {
  Random random(seed);
  for (std::int64_t row = 0; row < attention.q.dim(0); ++row)
    for (std::int64_t head = 0; head < attention.q.dim(1); ++head)
      for (std::int64_t d = 0; d < attention.q.dim(2); ++d)
        attention.set_q(row, head, d, static_cast<float>(random.between(-512, 512)) / 256.0f);
  for (const Extent& extent : attention.k_cache.layout().extents)
    for (std::byte& byte : attention.k_cache.bytes(extent))
      byte = static_cast<std::byte>(random.between(0, 0x47) | (random.between(0, 1) * 0x80));
}

TEST(SparseAttention, PartitionsAreTheStagesOneAfterAnother) {
  Selected selected = select("mono", {3, 0, 4}, 5, 4 * 128 + 9, 3);
  selected.block_table = ints({1, 5}, {2, 4, 0, 3, 1});
  randomise(selected.attention, 1);
  const SparseBlockTableDecodeInput table{reading<3>(selected.topk_idx),
                                          reading<2>(selected.block_table),
                                          reading<1>(selected.seq_lens),
                                          1,
                                          16,
                                          {}};
  Tensor pages = poisoned(DType::kInt32, Layout::dense({1, 24}));
  Tensor context = poisoned(DType::kInt32, Layout::dense({1}));
  sparse_block_table_decode(table,
                            {pages.view<std::int32_t, 2>(), context.view<std::int32_t, 1>()});
  Attention attention = selected.attention;
  attention.table = Tensor(DType::kInt32, Layout::dense({1, 1, 24}));
  attention.table.set_image(pages.image());
  attention.contexts = Tensor(DType::kInt32, Layout::dense({1, 1}));
  attention.contexts.set_image(context.image());
  EXPECT_EQ(selected.run(), merged(partial(attention), attention.contract));
}

TEST(SparseAttention, F07ValuesOfOneGiveOneInEveryPreset) {
  for (const char* contract : {"mono", "aiter-gluon", "vllm-triton"})
    for (const std::int64_t length : {1, 17, 128, 129, 255, 256, 257, 513, 640}) {
      const std::int64_t blocks = (length + 127) / 128;
      Numbers ids = counting(0, blocks);
      std::swap(ids.front(), ids.back());  // the tail first, as vLLM's selector emits it
      Selected selected = select(contract, ids, 5, length);
      selected.attention.fill_v(1.0f);
      for (const float out : selected.run()) EXPECT_EQ(out, 1.0f) << contract << ", " << length;
    }
}

TEST(SparseAttention, F10ScalesApplyOnceInEveryPreset) {
  for (const char* contract : {"mono", "aiter-gluon", "vllm-triton"}) {
    Selected selected = select(contract, {0}, 2, 2);
    selected.attention.k_scale = {0.5f};
    selected.attention.v_scale = {4.0f};
    selected.attention.sm_scale = 0.25;
    selected.attention.set_q(0, 0, 0, 64.0f);  // scores 0 and 64 * 0.5 * 4 / 4 = 32
    selected.attention.set_k({1, 0, 0}, 4.0f);
    selected.attention.set_v({0, 0, 0}, 100.0f);
    selected.attention.set_v({1, 0, 0}, 3.0f);
    EXPECT_EQ(selected.run()[0], 12.0f) << contract;
  }
}

TEST(SparseAttention, F09OnlyTheGluonKernelReadsValuesPastTheContext) {
  for (const char* contract : {"mono", "aiter-gluon", "vllm-triton"}) {
    Selected selected = select(contract, {0}, 2, 17);
    selected.attention.fill_v(1.0f);
    selected.attention.set_v_code({20, 0, 3}, 0x7F);
    const std::vector<float> out = selected.run();
    EXPECT_EQ(out[2], 1.0f);
    EXPECT_EQ(std::isnan(out[3]), std::string(contract) == "aiter-gluon") << contract;
  }
}

TEST(SparseAttention, S26ARowWithoutTokensIsZeroOrItsFirstKey) {
  for (const char* contract : {"mono", "aiter-gluon", "vllm-triton"}) {
    Selected selected = select(contract, {0, -1}, 2, 0);
    selected.attention.fill_v(7.0f);
    const float expected = std::string(contract) == "mono" ? 7.0f : 0.0f;
    for (const float out : selected.run()) EXPECT_EQ(out, expected) << contract;
  }
}

TEST(SparseAttention, S26EmptyRowsAreWrittenWhereverTheyStand) {
  for (const Numbers& lengths : {Numbers{0, 17}, Numbers{17, 0, 5}, Numbers{17, 0}, Numbers{0}}) {
    const auto rows = static_cast<std::int64_t>(lengths.size());
    for (const char* contract : {"mono", "aiter-gluon", "vllm-triton"}) {
      Selected selected{.attention = Attention::zeros(Contract::parse(contract), rows, 1, 2)};
      selected.attention.fill_v(7.0f);
      Numbers ids, table;
      for (const std::int64_t length : lengths) {
        ids.push_back(length == 0 ? -1 : 0);
        table.push_back(1);
      }
      if (std::string(contract) == "mono") ids = Numbers(lengths.size(), 0);
      selected.topk_idx = ints({1, rows, 1}, ids);
      selected.block_table = ints({rows, 1}, table);
      selected.seq_lens = ints({rows}, lengths);
      const std::vector<float> out = selected.run();
      for (std::size_t i = 0; i < out.size(); ++i) {
        const bool has_keys = lengths[i / 16] > 0 || std::string(contract) == "mono";
        EXPECT_EQ(out[i], has_keys ? 7.0f : 0.0f) << contract << ", row " << i / 16;
      }
    }
  }
}

/// Caches of BF16 that hold `code` wherever none of the first `context` keys of blocks 2, 3, .. is.
Attention bf16_caches(Attention attention, std::int64_t context, std::uint16_t code) {
  attention.shape.element_size = 2;
  const Layout layout =
      Layout::dense({attention.shape.blocks, attention.shape.block_page_stride(), 1, 2 * 16 * 8});
  attention.k_cache = Tensor(DType::kBFloat16, layout);
  attention.v_cache = Tensor(DType::kBFloat16, layout);
  for (Tensor* cache : {&attention.k_cache, &attention.v_cache}) {
    auto* codes = reinterpret_cast<std::uint16_t*>(cache->base());
    std::fill(codes, codes + cache->layout().elements(), code);
  }
  Tensor& v_side = attention.interleaved() ? attention.k_cache : attention.v_cache;
  Random random(9);
  for (std::int64_t key = 0; key < context; ++key)
    for (std::int64_t d = 0; d < 16; ++d) {
      const KvElement element{2 * 128 + key, 0, d};
      const auto number = [&] {
        return bf16_from_float(static_cast<float>(random.between(-512, 512)) / 256.0f);
      };
      const std::uint16_t k = number(), v = number();
      std::memcpy(attention.k_cache.base() + k_byte(attention.shape, element), &k, 2);
      std::memcpy(
          v_side.base() + attention.shape.v_view_offset() + v_byte(attention.shape, element), &v,
          2);
    }
  return attention;
}

TEST(SparseAttention, S06F09WhatBf16CachesHoldElsewhereChangesNoBit) {
  for (const std::int64_t context : {1, 17, 130, 200}) {
    Selected selected = select("vllm-triton", {0, 1}, 5, context, 2);
    selected.topk_idx = ints({1, 1, 2}, context > 128 ? Numbers{1, 0} : Numbers{0, -1});
    selected.block_table = ints({1, 2}, {2, 3});
    randomise(selected.attention, 4);
    const Attention plain = selected.attention;
    selected.attention = bf16_caches(plain, context, 0);
    const std::vector<float> expected = selected.run();
    // NaN, Inf, -Inf and 3e38 in the tail of the last page, page 0 and blocks not selected.
    for (const std::uint16_t code : {0x7FC0, 0x7F80, 0xFF80, 0x7F62}) {
      selected.attention = bf16_caches(plain, context, code);
      EXPECT_EQ(selected.run(), expected) << context << " keys, code " << code;
    }
  }
}

TEST(SparseAttention, SplitsFollowTheNumberOfRows) {
  // One machine of 4 units and one row: 8 splits of 640 / 8 = 80 keys; with 8 rows one split. The
  // mass of a split is rounded to BF16 with its o, so that the dealing shows.
  Selected selected = select("aiter-gluon", {0, 1, 2, 3, 4}, 5, 640);
  randomise(selected.attention, 5);
  selected.compute_units = 4;
  const std::vector<float> eight = selected.run();
  selected.compute_units = 1;  // two splits
  const std::vector<float> two = selected.run();
  EXPECT_NE(eight, two);
  selected.attention.fill_v(0.0f);
  EXPECT_EQ(selected.run(), std::vector<float>(16, 0.0f));
}

TEST(SparseAttention, ATileThatTwoSplitsShareIsMaskedInBoth) {
  // 8 splits of 40 keys: keys 40 to 79 are split 1's, in the tile that split 0 walks too.
  Selected selected = select("aiter-gluon", {0, 1, 2}, 3, 320);
  for (std::int64_t key = 0; key < 320; ++key)
    selected.attention.set_v({key, 0, 0}, key / 40 % 2 == 0 ? 1.0f : 0.0f);
  EXPECT_EQ(selected.run()[0], 0.5f);
}

/// The range of every element of a one-row selection.
std::vector<Bounded> bounds(const Selected& selected) {
  const SparseAttentionInput input = selected.input();
  const AttendedKeys keys = attended_keys(input, 0);
  const float factor = static_cast<float>(input.sm_scale) * kLog2E;
  std::vector<Bounded> all;
  for (std::int64_t head = 0; head < input.q.dim(1); ++head) {
    std::vector<float> q;
    for (std::int64_t d = 0; d < input.q.dim(2); ++d)
      q.push_back(float_from_bf16(input.q(0, head, d)));
    const auto range = attention_bound({q, keys.k, keys.v, Bounded::exactly(factor), 16});
    all.insert(all.end(), range.begin(), range.end());
  }
  return all;
}

std::size_t outside(const std::vector<float>& out, const std::vector<Bounded>& ranges) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < out.size(); ++i)
    count +=
        code_range(ranges[i], kBF16, Overflow::kInfinity).admits(bf16_from_float(out[i])) ? 0u : 1u;
  return count;
}

TEST(SparseAttention, ChunksStayInsideTheirBoundHoweverTheyAreDealt) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Selected selected = select("vllm-triton", {4, 1, 3, 0}, 5, 4 * 128 + 77, 4);
    randomise(selected.attention, seed);
    selected.attention.k_scale = {0.3f};
    selected.attention.v_scale = {1.7f};
    const std::vector<Bounded> ranges = bounds(selected);
    EXPECT_EQ(outside(selected.run(), ranges), 0u) << seed;
    selected.topk_idx = ints({1, 1, 4}, {0, 3, 4, 1});
    EXPECT_EQ(outside(selected.run(), ranges), 0u) << seed << ", another order";
    selected.topk_idx = ints({1, 1, 6}, {0, 3, 4, 1, 2, -1});
    selected.seq_lens = ints({1}, {4 * 128 + 77});
    EXPECT_GT(outside(selected.run(), ranges), 30u) << seed << ", a block more";
  }
}

TEST(SparseAttention, TheBoundSeesOneKeyTooManyAndAScaleTooFew) {
  Selected selected = select("vllm-triton", {0}, 2, 40, 4);
  randomise(selected.attention, 3);
  selected.attention.v_scale = {1.0f};
  const std::vector<Bounded> ranges = bounds(selected);
  EXPECT_EQ(outside(selected.run(), ranges), 0u);
  Selected longer = selected;
  longer.seq_lens = ints({1}, {41});
  EXPECT_GT(outside(longer.run(), ranges), 32u) << "more than half";
  Selected scaled = selected;
  scaled.attention.v_scale = {1.0625f};
  EXPECT_GT(outside(scaled.run(), ranges), 32u) << "more than half";
}

TEST(SparseAttention, NoKeysOrNumbersThatAreNotFiniteGiveNoBound) {
  const float one = 1.0f;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Bounded> none = attention_bound({{&one, 1}, {}, {}, Bounded::exactly(1)});
  EXPECT_TRUE(none[0].admits(nan) && none[0].admits(3e38f));
  const std::vector<Bounded> odd =
      attention_bound({{&nan, 1}, {&one, 1}, {&one, 1}, Bounded::exactly(1)});
  EXPECT_TRUE(odd[0].admits(nan) && odd[0].admits(-3e38f));
}

TEST(SparseAttention, RefusalsNameTheArgument) {
  Selected selected = select("mono", {0}, 2, 100);
  selected.attention.contract.attention_operands = AttentionOperands::kBf16;
  EXPECT_EQ(selected.refusal(), "sparse_attention: attention_operands must be fp8");
  selected = select("vllm-triton", {0}, 2, 100);
  selected.attention.contract.attention_operands = AttentionOperands::kFp8;
  EXPECT_EQ(selected.refusal(), "sparse_attention: attention_operands must be bf16");
  selected = select("vllm-triton", {0, 2}, 2, 200);
  EXPECT_EQ(selected.refusal(),
            "sparse_attention: topk_idx of row 0 holds block 2, must be 0 to 1");
  selected = select("vllm-triton", {1, -1}, 2, 200);
  EXPECT_EQ(selected.refusal(),
            "sparse_attention: topk_idx of row 0 holds block -1, must be 0 to 1");
  selected = select("aiter-gluon", {0}, 2, 100);
  selected.compute_units = 0;
  EXPECT_EQ(selected.refusal(), "sparse_attention: compute_units is 0, must be at least 1");
  selected = select("mono", {0}, 2, 100);
  selected.block_table = ints({1, 2}, {9, 0});
  EXPECT_EQ(selected.refusal(),
            "sparse_attention: sparse_block_table[0][0][0] is 144, must be 0 to 31");
  selected = select("mono", {0}, 2, 100);
  selected.attention.q = poisoned(DType::kBFloat16, Layout::dense({2, 1, 16}));
  EXPECT_EQ(selected.refusal(), "sparse_attention: q has 2 in dimension 0, must have 1");
  selected = select("mono", {0}, 2, 100);
  selected.attention = Attention::zeros(Contract{}, 1, 2, 2, 2);
  EXPECT_EQ(selected.refusal(), "sparse_attention: k_cache has 2 kv heads, must have 1");
}

}  // namespace
}  // namespace monoref::testing
