#include "reference/stages/index_select.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <set>

#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int32_t kLowest = std::numeric_limits<std::int32_t>::min();

/// Owned inputs. Blocks hold one key and one page unless a test says otherwise, so that a length is
/// a number of blocks and a page is a block.
struct Selecting {
  std::vector<float> scores;
  Numbers score_dims;
  Tensor block_table;
  Tensor seq_lens;
  std::int64_t pages_per_block = 1;
  std::int64_t block_page_stride = 1;
  BlockSelection selection{.block_size = 1, .topk = 2, .init_blocks = 0, .local_blocks = 0};
  Contract contract{};

  Tensor score() const { return Tensor::of(DType::kFloat32, score_dims, scores); }

  template <class Use>
  auto with_input(Use use) const {
    const Tensor owned = score();
    return use(IndexSelectInput{owned.view<float, 3>(), reading<2>(block_table),
                                reading<1>(seq_lens), pages_per_block, block_page_stride, selection,
                                contract});
  }
  struct Result {
    Numbers topk;
    Numbers table;
    Numbers contexts;
  };
  Result select() const {
    return with_input([](const IndexSelectInput& input) {
      const IndexSelectShape shape = index_select_shape(input);
      const auto& [heads, rows, topk] = shape.topk_idx;
      Tensor ids = poisoned(DType::kInt32, Layout::dense({heads, rows, topk}));
      Tensor table =
          poisoned(DType::kInt32, Layout::dense({heads, rows, shape.sparse_block_table[2]}));
      Tensor contexts = poisoned(DType::kInt32, Layout::dense({heads, rows}));
      index_select(input, {ids.view<std::int32_t, 3>(), table.view<std::int32_t, 3>(),
                           contexts.view<std::int32_t, 2>()});
      return Result{values(ids), values(table), values(contexts)};
    });
  }
  std::string refusal() const {
    return with_input([](const IndexSelectInput& input) {
      return refusal_of([&] { index_select_shape(input); });
    });
  }
};

/// One head and one row whose table maps block b to page 100 + b.
Selecting one_row(std::vector<float> scores, std::int64_t topk) {
  const auto blocks = static_cast<std::int64_t>(scores.size());
  Selecting selecting{.scores = std::move(scores),
                      .score_dims = {1, 1, blocks},
                      .block_table = ints({1, blocks}, counting(100, blocks)),
                      .seq_lens = ints({1}, {blocks})};
  selecting.selection.topk = topk;
  return selecting;
}

TEST(IndexSelect, TheBestInOrderAndThePagesBehindThem) {
  const auto result = one_row({3, 9, -1, 7, 8}, 3).select();
  EXPECT_EQ(result.topk, (Numbers{1, 4, 3}));
  EXPECT_EQ(result.table, (Numbers{101, 103, 104})) << "the last block of the context comes last";
  EXPECT_EQ(result.contexts, (Numbers{3}));
}

TEST(IndexSelect, S14EqualScoresRankByTheTieRule) {
  Selecting selecting = one_row(std::vector<float>(4096, 0.0f), 16);
  EXPECT_EQ(selecting.select().topk, [] {
    Numbers ids = counting(4080, 16);
    std::reverse(ids.begin(), ids.end());
    return ids;
  }());
  selecting.contract.topk_ties = TopkTies::kLowerId;
  EXPECT_EQ(selecting.select().topk, counting(0, 16));
}

TEST(IndexSelect, S12PlateausLoseNoWinnerAndRepeatNone) {
  // 40 distinct winners among 8,152 zeros, and near-ties that differ in their last bits only.
  for (const TopkTies ties : {TopkTies::kHigherId, TopkTies::kLowerId}) {
    std::vector<float> scores(8192, 0.0f);
    for (std::size_t i = 0; i < 40; ++i)
      scores[i * 200 + 107] = std::bit_cast<float>(0x3F800000u + static_cast<std::uint32_t>(i));
    Selecting selecting = one_row(scores, 64);
    selecting.contract.topk_ties = ties;
    const Numbers ids = selecting.select().topk;
    for (std::size_t rank = 0; rank < 40; ++rank)
      EXPECT_EQ(ids[rank], static_cast<std::int64_t>(39 - rank) * 200 + 107);
    EXPECT_EQ(std::set<std::int64_t>(ids.begin(), ids.end()).size(), 64u);
    for (std::size_t rank = 40; rank < 64; ++rank)
      EXPECT_EQ(ids[rank], ties == TopkTies::kHigherId ? 8191 - static_cast<std::int64_t>(rank - 40)
                                                       : static_cast<std::int64_t>(rank - 40));
  }
}

TEST(IndexSelect, S17TheBestBlockMayBeAnyOf8192) {
  for (const std::size_t blocks : {512u, 513u, 4096u, 4097u, 8192u}) {
    std::vector<float> scores(blocks, 1.0f);
    scores.back() = 2.0f;
    EXPECT_EQ(one_row(scores, 1).select().topk, (Numbers{static_cast<std::int64_t>(blocks) - 1}));
  }
  EXPECT_EQ(one_row(std::vector<float>(8193, 1.0f), 1).refusal(),
            "index_select: the context of row 0 has 8193 blocks, limit 8192");
}

TEST(IndexSelect, SortingKeysFollowTheNumbersAndNanIsLowest) {
  const Contract mono;
  const std::vector<float> ascending{-kInf,  -1e30f, -1.0f, -1e-40f, 0.0f,
                                     1e-40f, 1.0f,   1e29f, 1e30f,   kInf};
  EXPECT_EQ(sorting_key(kNan, mono), kLowest);
  EXPECT_EQ(sorting_key(-kNan, mono), kLowest);
  EXPECT_EQ(sorting_key(-0.0f, mono), 0);
  EXPECT_EQ(sorting_key(1.0f, mono), 0x3F800000);
  EXPECT_EQ(sorting_key(-1.0f, mono), static_cast<std::int32_t>(0xBF800000 ^ 0x7FFFFFFF));
  std::int32_t previous = kLowest;
  for (const float score : ascending) {
    EXPECT_GT(sorting_key(score, mono), previous) << score;
    previous = sorting_key(score, mono);
  }
}

TEST(IndexSelect, OtherSelectorsRankNanAndZerosElsewhere) {
  const Contract aiter = Contract::parse("aiter-gluon");
  const Contract vllm = Contract::parse("vllm-triton");
  EXPECT_EQ(sorting_key(kNan, aiter), sorting_key(-kInf, aiter));
  EXPECT_LT(sorting_key(-0.0f, aiter), sorting_key(0.0f, aiter));
  EXPECT_EQ(sorting_key(kNan, vllm), sorting_key(-1e30f, vllm));
  EXPECT_EQ(sorting_key(-0.0f, vllm), sorting_key(0.0f, vllm));
}

TEST(IndexSelect, NegativeZeroTiesWithZero) {
  EXPECT_EQ(one_row({-0.0f, 0.0f, -0.0f}, 2).select().topk, (Numbers{2, 1}));
}

TEST(IndexSelect, NanRanksBelowMinusInfinity) {
  EXPECT_EQ(one_row({kNan, -kInf, kNan, -kInf}, 3).select().topk, (Numbers{3, 1, 2}));
}

TEST(IndexSelect, PinnedBlocksWinWhateverTheirSlotsHold) {
  Selecting selecting = one_row({kNan, 5, 1e28f, 4, kNan}, 3);
  selecting.selection.init_blocks = 1;
  selecting.selection.local_blocks = 1;
  EXPECT_EQ(selecting.select().topk, (Numbers{0, 4, 2})) << "init is 1e30, local 1e29";
  EXPECT_EQ(selecting.select().table, (Numbers{100, 102, 104}));
}

TEST(IndexSelect, LocalWinsOverInit) {
  // Both pinned blocks are local; block 0 would be first as an init block.
  Selecting selecting = one_row({0, 0, 0}, 2);
  selecting.selection.init_blocks = 2;
  selecting.selection.local_blocks = 2;
  EXPECT_EQ(selecting.select().topk, (Numbers{0, 2})) << "keys 1e30, 1e29, 1e29, ties to higher";
}

TEST(IndexSelect, AnInfiniteScoreOutranksPinnedBlocksAndMayPushOutTheTail) {
  Selecting selecting = one_row({kInf, kInf, 0, 0}, 2);
  selecting.selection = {.block_size = 10, .topk = 2, .init_blocks = 0, .local_blocks = 1};
  selecting.seq_lens = ints({1}, {33});
  const auto result = selecting.select();
  EXPECT_EQ(result.topk, (Numbers{1, 0}));
  EXPECT_EQ(result.table, (Numbers{101, 100}));
  EXPECT_EQ(result.contexts, (Numbers{20})) << "whole blocks, without the tail's 3 keys";
}

TEST(IndexSelect, AnUnselectedTailOfTheModelMeans2048Keys) {
  std::vector<float> scores(20, 1.0f);
  scores[19] = -1.0f;
  Selecting selecting = one_row(scores, 16);
  selecting.selection.block_size = 128;
  selecting.seq_lens = ints({1}, {19 * 128 + 1});
  EXPECT_EQ(selecting.select().contexts, (Numbers{2048}));
  selecting.selection.local_blocks = 1;
  EXPECT_EQ(selecting.select().contexts, (Numbers{15 * 128 + 1}));
}

TEST(IndexSelect, ShortContextsKeepEveryBlockInOrderAndReadNoScore) {
  Selecting selecting = one_row({kNan, 7, 9}, 4);
  selecting.score_dims = {1, 1, 0};
  selecting.scores = {};
  selecting.selection.block_size = 128;
  selecting.pages_per_block = 2;
  selecting.block_page_stride = 4;
  selecting.seq_lens = ints({1}, {257});
  const auto result = selecting.select();
  EXPECT_EQ(result.topk, (Numbers{0, 1, 2, -1}));
  EXPECT_EQ(result.table, (Numbers{400, 401, 404, 405, 408, 409, 0, 0}));
  EXPECT_EQ(result.contexts, (Numbers{257}));
}

TEST(IndexSelect, EveryShortContextOfTheModelIsItsOwnContext) {
  for (std::int64_t length = -2; length <= 600; ++length) {
    Selecting selecting = one_row(std::vector<float>(5), 16);
    selecting.selection.block_size = 128;
    selecting.seq_lens = ints({1}, {length});
    EXPECT_EQ(selecting.select().contexts, (Numbers{std::max<std::int64_t>(length, 1)}));
    selecting.contract.empty_row = EmptyRow::kContext0;
    EXPECT_EQ(selecting.select().contexts, (Numbers{std::max<std::int64_t>(length, 0)}));
  }
}

TEST(IndexSelect, ARowWithoutTokensHasNoPagesWhereTheContractSaysSo) {
  Selecting selecting = one_row({1, 2, 3}, 2);
  selecting.seq_lens = ints({1}, {0});
  EXPECT_EQ(selecting.select().topk, (Numbers{0, -1})) << "key 0 of the first block";
  EXPECT_EQ(selecting.select().table, (Numbers{100, 0}));
  selecting.contract.empty_row = EmptyRow::kContext0;
  const auto result = selecting.select();
  EXPECT_EQ(result.topk, (Numbers{-1, -1}));
  EXPECT_EQ(result.table, (Numbers{0, 0}));
  EXPECT_EQ(result.contexts, (Numbers{0}));
}

TEST(IndexSelect, S10HeadsSelectForThemselves) {
  Selecting selecting = one_row({1, 0, 0, 0, 0, 1}, 1);
  selecting.score_dims = {2, 1, 3};
  selecting.block_table = ints({1, 3}, {5, 6, 7});
  selecting.seq_lens = ints({1}, {3});
  EXPECT_EQ(selecting.select().topk, (Numbers{0, 2}));
  EXPECT_EQ(selecting.select().table, (Numbers{5, 7}));
}

TEST(IndexSelect, S04SelectionsAreFoundByHeadThenRowAlsoWhereBothAreAsMany) {
  for (const std::int64_t rows : {2, 3}) {
    Selecting selecting;
    const std::int64_t heads = 2;
    selecting.score_dims = {heads, rows, 7};
    Numbers expected;
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t best = head * rows + row;  // of seven blocks: a unique id a (head, row)
        for (std::int64_t block = 0; block < 7; ++block)
          selecting.scores.push_back(block == best ? 1.0f : 0.0f);
        expected.push_back(best);
      }
    selecting.block_table = ints({rows, 7}, Numbers(static_cast<std::size_t>(rows) * 7, 0));
    selecting.seq_lens = ints({rows}, Numbers(static_cast<std::size_t>(rows), 7));
    selecting.selection.topk = 1;
    EXPECT_EQ(selecting.select().topk, expected);
  }
}

TEST(IndexSelect, EveryBlockContractsRankShortContextsToo) {
  Selecting selecting = one_row({1, 3, 2}, 4);
  selecting.contract = Contract::parse("vllm-triton");
  EXPECT_EQ(selecting.select().topk, (Numbers{1, 2, 0, -1}));
}

TEST(IndexSelect, TableEntriesOutsideTheSelectionMayHoldAnything) {
  Selecting selecting = one_row({3, 9, -1, 7}, 2);
  selecting.block_page_stride = 16;
  selecting.block_table = ints({1, 4}, {1 << 30, 1, -(1 << 30), 3});
  EXPECT_EQ(selecting.select().table, (Numbers{16, 48}));
}

TEST(IndexSelect, RanksThatShareTheBlocksFindTheSameSelection) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const std::int64_t blocks = random.between(1, 700);
    std::vector<float> scores;
    const std::int64_t levels = random.between(1, 50);
    for (std::int64_t i = 0; i < blocks; ++i) {
      const std::int64_t level = random.between(-levels, levels);
      scores.push_back(level == levels ? kNan : static_cast<float>(level));
    }
    Selecting selecting = one_row(scores, random.between(1, 20));
    selecting.selection.init_blocks = random.between(0, 2);
    selecting.selection.local_blocks = random.between(0, 2);
    if (seed % 2 == 1) selecting.contract.topk_ties = TopkTies::kLowerId;
    Numbers whole = selecting.select().topk;
    std::erase(whole, -1);
    for (const std::int64_t world : {2, 4, 8}) {
      const Numbers merged = selecting.with_input([&](const IndexSelectInput& input) {
        std::vector<BlockCandidate> all;
        for (std::int64_t rank = world; rank-- > 0;) {
          const auto own = shard_candidates(input, 0, 0, {.world = world, .rank = rank});
          for (const BlockCandidate& candidate : own) EXPECT_EQ(candidate.block % world, rank);
          all.insert(all.end(), own.begin(), own.end());
        }
        Numbers ids;
        for (const BlockCandidate& best :
             merge_candidates(all, input.selection.topk, input.contract.topk_ties))
          ids.push_back(best.block);
        return ids;
      });
      EXPECT_EQ(merged, whole) << "seed " << seed << ", world " << world;
    }
  }
}

TEST(IndexSelect, RefusalsNameTheArgument) {
  const auto with = [](auto change) {
    Selecting selecting = one_row({3, 9, 1}, 2);
    change(selecting);
    return selecting.refusal();
  };
  EXPECT_EQ(with([](Selecting& s) { s.selection.topk = 0; }),
            "index_select: topk is 0, must be 1 to 64");
  EXPECT_EQ(with([](Selecting& s) { s.pages_per_block = 2; }),
            "index_select: pages_per_block is 2, must be 1 to block_size 1");
  EXPECT_EQ(with([](Selecting& s) { s.block_page_stride = 0; }),
            "index_select: block_page_stride is 0, must be 1 to 2147483647");
  EXPECT_EQ(with([](Selecting& s) { s.block_table = ints({2, 3}, {0, 0, 0, 0, 0, 0}); }),
            "index_select: block_table has 2 in dimension 0, must have 1");
  EXPECT_EQ(with([](Selecting& s) { s.seq_lens = ints({2}, {1, 1}); }),
            "index_select: seq_lens has 2 in dimension 0, must have 1");
  EXPECT_EQ(with([](Selecting& s) { s.block_table = ints({1, 2}, {0, 1}); }),
            "index_select: the context of row 0 has 3 blocks, must have at most 2, the columns of "
            "block_table");
  EXPECT_EQ(with([](Selecting& s) {
              s.scores = {3, 9};
              s.score_dims = {1, 1, 2};
            }),
            "index_select: the context of row 0 has 3 blocks, must have at most 2, those of score");
  EXPECT_EQ(with([](Selecting& s) {
              s.block_table = ints({1, 3}, {1 << 27, 1, 1});
              s.block_page_stride = 16;
            }),
            "index_select: block_table[0][0] is 134217728, times page stride 16 its pages must not "
            "leave int32");
}

}  // namespace
}  // namespace monoref::testing
