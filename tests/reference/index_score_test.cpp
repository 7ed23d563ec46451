#include "reference/stages/index_score.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "reference/formats/convert.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::uint32_t kNotWritten = 0x5A5A5A5A;

Tensor bf16s(Numbers dims, const std::vector<float>& values) {
  std::vector<std::uint16_t> codes;
  for (const float value : values) codes.push_back(bf16_from_float(value));
  return Tensor::of(DType::kBFloat16, std::move(dims), codes);
}

/// Owned inputs: one key dimension unless a test says otherwise, so that a key is a number.
struct Scoring {
  Tensor index_q;
  Tensor index_cache;
  Tensor block_table;
  Tensor seq_lens;
  std::int64_t q_len = 1;
  double sm_scale = 1.0;
  BlockSelection selection{.block_size = 4, .topk = 1, .init_blocks = 0, .local_blocks = 1};
  BlockShard shard{};
  Contract contract{};

  IndexScoreInput input() const {
    return {index_q.view<std::uint16_t, 3>(),
            index_cache,
            reading<2>(block_table),
            reading<1>(seq_lens),
            q_len,
            sm_scale,
            selection,
            shard,
            contract};
  }
  template <class Run>
  Tensor output(Run run) const {
    const auto dims = index_score_shape(input());
    Tensor score = poisoned(DType::kFloat32, Layout::dense({dims[0], dims[1], dims[2]}));
    run(input(), IndexScoreOutput{score.view<float, 3>()});
    return score;
  }
  Tensor score() const {
    return output([](const auto& in, const auto& out) { index_score(in, out); });
  }
  std::string refusal() const {
    return refusal_of([&] { index_score_shape(input()); });
  }
};

std::vector<float> floats(const Tensor& tensor) {
  std::vector<float> all;
  for (const std::int64_t bits : values(tensor))
    all.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  return all;
}

float at(const Tensor& score, std::int64_t head, std::int64_t row, std::int64_t block) {
  return score.view<float, 3>()(head, row, block);
}

std::uint32_t bits_of(const Tensor& score, std::int64_t head, std::int64_t row,
                      std::int64_t block) {
  return std::bit_cast<std::uint32_t>(at(score, head, row, block));
}

/// Three blocks of four keys in physical blocks 2, 0, 1; the request has 10 keys.
Scoring three_blocks() {
  return {.index_q = bf16s({1, 1, 1}, {2}),
          .index_cache = bf16s({3, 4, 1}, {-1, -2, -3, -4,      // logical block 1
                                           100, 100, 100, 100,  // logical block 2
                                           1, 5, 3, 4}),        // logical block 0
          .block_table = ints({1, 3}, {2, 0, 1}),
          .seq_lens = ints({1}, {10})};
}

TEST(IndexScore, TheBestKeyOfABlockScaledOnce) {
  const Tensor score = three_blocks().score();
  EXPECT_EQ(at(score, 0, 0, 0), 10.0f * kLog2E);
  EXPECT_EQ(at(score, 0, 0, 1), -2.0f * kLog2E);
  EXPECT_EQ(bits_of(score, 0, 0, 2), kNotWritten) << "the local block is pinned";
}

TEST(IndexScore, TheScaleIsAProductOfTwoBinary32Numbers) {
  Scoring scoring = three_blocks();
  scoring.sm_scale = 0.1;
  EXPECT_EQ(at(scoring.score(), 0, 0, 0), 10.0f * (0.1f * kLog2E));
}

TEST(IndexScore, ShortContextsAndPinnedBlocksAreNeverRead) {
  Scoring scoring = three_blocks();
  scoring.selection.topk = 3;
  scoring.block_table = ints({1, 3}, {-1, 99, 1 << 30});
  for (std::int64_t block = 0; block < 3; ++block)
    EXPECT_EQ(bits_of(scoring.score(), 0, 0, block), kNotWritten);
  scoring.selection = {.block_size = 4, .topk = 1, .init_blocks = 1, .local_blocks = 1};
  scoring.block_table = ints({1, 3}, {-1, 0, 1 << 30});
  const Tensor score = scoring.score();
  EXPECT_EQ(bits_of(score, 0, 0, 0), kNotWritten);
  EXPECT_EQ(at(score, 0, 0, 1), -2.0f * kLog2E);
  EXPECT_EQ(bits_of(score, 0, 0, 2), kNotWritten);
}

TEST(IndexScore, RowsOfARequestShareTheBlocksOfItsLastRowAndKeepTheirOwnLimit) {
  // Lengths 4 to 6: the last row has two blocks, the first row none of block 1's keys.
  Scoring scoring{.index_q = bf16s({3, 1, 1}, {1, 1, 1}),
                  .index_cache = bf16s({2, 4, 1}, {1, 2, 3, 4, 50, 60, 70, 80}),
                  .block_table = ints({3, 2}, {0, 1, 0, 1, 0, 1}),
                  .seq_lens = ints({3}, {4, 5, 6}),
                  .q_len = 3};
  scoring.selection.local_blocks = 0;
  const Tensor score = scoring.score();
  EXPECT_EQ(floats(score), (std::vector<float>{4 * kLog2E, -kInf, 4 * kLog2E, 50 * kLog2E,
                                               4 * kLog2E, 60 * kLog2E}));
}

TEST(IndexScore, TheTableRowIsThatOfTheRequestsLastRow) {
  Scoring scoring{.index_q = bf16s({2, 1, 1}, {1, 1}),
                  .index_cache = bf16s({2, 4, 1}, {1, 2, 3, 4, 5, 6, 7, 8}),
                  .block_table = ints({2, 2}, {-7, -7, 1, 0}),
                  .seq_lens = ints({2}, {7, 8}),
                  .q_len = 2};
  const Tensor score = scoring.score();
  EXPECT_EQ(at(score, 0, 0, 0), 8 * kLog2E);
  EXPECT_EQ(at(score, 0, 1, 0), 8 * kLog2E);
}

TEST(IndexScore, HeadsScoreByTheirOwnQuery) {
  Scoring scoring = three_blocks();
  scoring.index_q = bf16s({1, 2, 1}, {2, -1});
  const Tensor score = scoring.score();
  EXPECT_EQ(at(score, 0, 0, 1), -2.0f * kLog2E);
  EXPECT_EQ(at(score, 1, 0, 0), -1.0f * kLog2E);
  EXPECT_EQ(at(score, 1, 0, 1), 4.0f * kLog2E);
}

TEST(IndexScore, ANanKeyWinsOnlyIfItIsCausal) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Scoring scoring = three_blocks();
  scoring.selection.local_blocks = 0;
  scoring.index_cache = bf16s({3, 4, 1}, {-1, nan, -3, -4, 1, 2, nan, nan, 1, 5, 3, 4});
  const Tensor score = scoring.score();
  EXPECT_EQ(bits_of(score, 0, 0, 0), std::bit_cast<std::uint32_t>(10.0f * kLog2E));
  EXPECT_EQ(bits_of(score, 0, 0, 1), 0x7FC00000u);
  EXPECT_EQ(bits_of(score, 0, 0, 2), std::bit_cast<std::uint32_t>(4.0f * kLog2E));
}

TEST(IndexScore, S17TheLastOf8192BlocksIsScoredAndOneMoreIsRefused) {
  Scoring scoring{.index_q = bf16s({1, 1, 1}, {1}),
                  .index_cache = bf16s({2, 1, 1}, {3, 9}),
                  .block_table = ints({1, 8193}, Numbers(8193, 0)),
                  .seq_lens = ints({1}, {8192})};
  scoring.selection = {.block_size = 1, .topk = 16, .init_blocks = 0, .local_blocks = 0};
  scoring.block_table.view<std::int32_t, 2>()(0, 8191) = 1;
  EXPECT_EQ(at(scoring.score(), 0, 0, 8191), 9 * kLog2E);
  scoring.seq_lens = ints({1}, {8193});
  EXPECT_EQ(scoring.refusal(), "index_score: the context of row 0 has 8193 blocks, limit 8192");
}

TEST(IndexScore, F01TheCacheIsReadInTheFormatOfTheContract) {
  Scoring scoring = three_blocks();
  // 0x38 is 1 in E4M3FN and 0.5 in FNUZ; 0x80 is -0 or NaN.
  const std::vector<std::uint8_t> codes{0x38, 0x38, 0x38, 0x38, 0, 0, 0, 0, 0x80, 0x38, 0, 0};
  scoring.index_cache = Tensor::of(DType::kFloat8E4M3FN, {3, 4, 1}, codes);
  EXPECT_EQ(at(scoring.score(), 0, 0, 0), 2.0f * kLog2E);
  EXPECT_EQ(at(scoring.score(), 0, 0, 1), 2.0f * kLog2E);
  scoring.index_cache = Tensor::of(DType::kFloat8E4M3FNUZ, {3, 4, 1}, codes);
  EXPECT_EQ(scoring.refusal(),  // F15
            "index_score: index_cache is float8_e4m3fnuz, must be bfloat16 or float8_e4m3fn");
  scoring.contract.fp8_encoding = Fp8Encoding::kFnuz;
  EXPECT_EQ(bits_of(scoring.score(), 0, 0, 0), 0x7FC00000u);
  EXPECT_EQ(at(scoring.score(), 0, 0, 1), 1.0f * kLog2E);
}

TEST(IndexScore, EmptyRowsFollowTheContract) {
  Scoring scoring = three_blocks();
  scoring.selection = {.block_size = 4, .topk = 1, .init_blocks = 0, .local_blocks = 0};
  scoring.contract = Contract::parse("vllm-triton");
  scoring.seq_lens = ints({1}, {0});
  EXPECT_EQ(bits_of(scoring.score(), 0, 0, 0), kNotWritten);
  scoring.contract.empty_row = EmptyRow::kContext1;
  EXPECT_EQ(at(scoring.score(), 0, 0, 0), 2.0f) << "key 0 alone, unscaled";
}

TEST(IndexScore, EveryBlockOfTheRowHasAScoreWhereTheContractSaysSo) {
  Scoring scoring = three_blocks();
  scoring.contract = Contract::parse("vllm-triton");
  scoring.selection = {.block_size = 4, .topk = 16, .init_blocks = 1, .local_blocks = 1};
  EXPECT_EQ(floats(scoring.score()), (std::vector<float>{1e30f, -2.0f, 1e29f}));
  scoring.seq_lens = ints({1}, {4});
  EXPECT_EQ(at(scoring.score(), 0, 0, 0), 1e29f) << "local wins over init";
  EXPECT_EQ(bits_of(scoring.score(), 0, 0, 1), kNotWritten);
}

TEST(IndexScore, ShardsTogetherScoreWhatOneRankDoes) {
  Scoring scoring{.index_q = bf16s({1, 1, 1}, {1}),
                  .index_cache = bf16s({9, 1, 1}, {4, 8, 1, 7, 2, 9, 3, 6, 5}),
                  .block_table = ints({1, 9}, counting(0, 9)),
                  .seq_lens = ints({1}, {9})};
  scoring.selection.block_size = 1;
  const Tensor whole = scoring.score();
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    scoring.shard = {.world = 4, .rank = rank};
    const Tensor part = scoring.score();
    for (std::int64_t block = 0; block < 9; ++block)
      EXPECT_EQ(bits_of(part, 0, 0, block),
                block % 4 == rank ? bits_of(whole, 0, 0, block) : kNotWritten);
    scoring.shard.from_blocks = 9;
    EXPECT_EQ(values(scoring.score()), values(whole)) << "not long enough";
  }
}

TEST(IndexScore, RanksShareLongContextsOnly) {
  EXPECT_FALSE(uses_context_parallel_index(288, 4));
  EXPECT_TRUE(uses_context_parallel_index(289, 4));
  EXPECT_FALSE(uses_context_parallel_index(512, 1));
  EXPECT_TRUE(uses_context_parallel_index(513, 1));
}

/// Requests of random lengths over permuted blocks, random codes (NaN among them).
Scoring random_scoring(std::uint64_t seed, std::int64_t q_len, std::int64_t heads,
                       std::int64_t block_size, std::int64_t dim, bool fp8) {
  Random random(seed);
  const std::int64_t requests = random.between(1, 3);
  const std::int64_t width = random.between(2, 9);
  const std::int64_t rows = requests * q_len;
  Numbers q;
  for (std::int64_t i = 0; i < rows * heads * dim; ++i)
    q.push_back(random.between(0, 60) == 0
                    ? 0x7FC0
                    : 0x3C00 + random.between(0, 0x3FF) + 0x8000 * random.between(0, 1));
  const DType type = fp8 ? DType::kFloat8E4M3FN : DType::kBFloat16;
  const Layout cache = Layout::strided({width * requests, block_size, dim},
                                       {block_size * (dim + 3) + 5, dim + 3, 1});
  Numbers keys;
  for (std::int64_t i = 0; i < cache.elements(); ++i)
    keys.push_back(fp8 ? random.between(0, 255)
                       : 0x3C00 + random.between(0, 0x3FF) + 0x8000 * random.between(0, 1));
  Numbers table;
  Numbers lens;
  for (std::int64_t request = 0; request < requests; ++request) {
    const std::int64_t length = random.between(-1, width * block_size);
    for (std::int64_t token = 0; token < q_len; ++token) {
      lens.push_back(length - (q_len - 1 - token));
      for (std::int64_t block = 0; block < width; ++block)
        table.push_back((block * 7 + 3) % width + request * width);
    }
  }
  Scoring scoring{.index_q = filled(DType::kBFloat16, Layout::dense({rows, heads, dim}), q),
                  .index_cache = filled(type, cache, keys),
                  .block_table = ints({rows, width}, table),
                  .seq_lens = ints({rows}, lens),
                  .q_len = q_len};
  scoring.selection = {.block_size = block_size,
                       .topk = random.between(1, 3),
                       .init_blocks = random.between(0, 2),
                       .local_blocks = random.between(0, 2)};
  if (random.between(0, 1) == 0) scoring.contract = Contract::parse("vllm-triton");
  return scoring;
}

TEST(IndexScore, TheFastFormIsTheDefinition) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Scoring scoring =
        random_scoring(seed, 1 + static_cast<std::int64_t>(seed % 4),
                       seed % 3 == 0 ? 4 : 1 + static_cast<std::int64_t>(seed % 3),
                       seed % 2 == 0 ? 128 : 20, seed % 5 == 0 ? 128 : 24, seed % 7 != 0);
    const Numbers expected = values(scoring.score());
    for (const Isa isa : available_isas())
      EXPECT_EQ(values(scoring.output(
                    [&](const auto& in, const auto& out) { index_score_fast(in, out, isa); })),
                expected)
          << "seed " << seed << ", " << isa_name(isa);
  }
}

TEST(IndexScore, RefusalsNameTheArgument) {
  const auto with = [](auto change) {
    Scoring scoring = three_blocks();
    change(scoring);
    return scoring.refusal();
  };
  EXPECT_EQ(with([](Scoring& s) { s.q_len = 0; }), "index_score: q_len is 0, must be at least 1");
  EXPECT_EQ(with([](Scoring& s) { s.q_len = 2; }),
            "index_score: index_q has 1 rows, must be a multiple of q_len 2");
  EXPECT_EQ(with([](Scoring& s) { s.selection.block_size = 0; }),
            "index_score: block_size is 0, must be at least 1");
  EXPECT_EQ(with([](Scoring& s) { s.selection.topk = 65; }),
            "index_score: topk is 65, must be 1 to 64");
  EXPECT_EQ(with([](Scoring& s) { s.selection.init_blocks = -1; }),
            "index_score: init_blocks is -1, must be 0 to 2147483647");
  EXPECT_EQ(with([](Scoring& s) { s.selection.local_blocks = -1; }),
            "index_score: local_blocks is -1, must be 0 to 2147483647");
  EXPECT_EQ(with([](Scoring& s) { s.shard.world = 0; }),
            "index_score: world is 0, must be at least 1");
  EXPECT_EQ(with([](Scoring& s) { s.shard = {.world = 4, .rank = 4}; }),
            "index_score: rank is 4, must be 0 to 3");
  EXPECT_EQ(with([](Scoring& s) { s.sm_scale = kInf; }),
            "index_score: sm_scale is inf, must be finite in binary32");
  EXPECT_EQ(with([](Scoring& s) { s.index_cache = bf16s({12, 1}, std::vector<float>(12)); }),
            "index_score: index_cache has rank 2, must be 3");
  EXPECT_EQ(with([](Scoring& s) { s.selection.block_size = 3; }),
            "index_score: index_cache has blocks of 4 keys, must have 3");
  EXPECT_EQ(with([](Scoring& s) { s.index_q = bf16s({1, 1, 2}, {1, 2}); }),
            "index_score: index_cache has keys of 1 dims, must have 2 as index_q has");
  EXPECT_EQ(with([](Scoring& s) {
              s.index_cache = poisoned(DType::kBFloat16, Layout::strided({3, 4, 1}, {8, 2, 2}));
            }),
            "index_score: index_cache has 2 elements from dim to dim, must have 1");
  EXPECT_EQ(with([](Scoring& s) { s.seq_lens = ints({1}, {13}); }),
            "index_score: the context of row 0 has 4 blocks, must have at most 3, the columns of "
            "block_table");
  EXPECT_EQ(with([](Scoring& s) { s.block_table = ints({1, 3}, {2, -1, 1}); }),
            "index_score: block_table[0][1] is -1, must be 0 or more and below 3, the blocks of "
            "index_cache");
  EXPECT_EQ(with([](Scoring& s) { s.block_table = ints({1, 3}, {3, 0, 1}); }),
            "index_score: block_table[0][0] is 3, must be 0 or more and below 3, the blocks of "
            "index_cache");
  EXPECT_EQ(with([](Scoring& s) {
              Layout layout = Layout::dense({3, 4, 1});
              layout.extents = {{0, 4}, {4, 4}};
              s.index_cache = poisoned(DType::kBFloat16, layout);
            }),
            "index_score: key 0 of block 2 of index_cache is elements 8 to 8, must lie in one run "
            "of its storage, elements 0 to 3, 4 to 7");
  EXPECT_EQ(
      with([](Scoring& s) {
        s.index_q = bf16s({2, 1, 1}, {1, 1});
        s.block_table = ints({2, 3}, {2, 0, 1, 2, 0, 1});
        s.seq_lens = ints({2}, {10, 10});
        s.q_len = 2;
      }),
      "index_score: seq_lens[0] is 10, must be 9, 1 less than that of its request's last row");
}

}  // namespace
}  // namespace monoref::testing
