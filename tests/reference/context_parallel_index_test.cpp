// Scores and selection together under context parallelism (mono-decode sections 4 and 5): four
// ranks that score their own blocks, exchange candidates and merge them find what one rank finds.
#include <gtest/gtest.h>

#include "reference/formats/convert.hpp"
#include "reference/stages/index_score.hpp"
#include "reference/stages/index_select.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

constexpr std::int64_t kWorld = 4;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kQueryLength = 3;

/// One request whose blocks hold two keys of two dims.
struct Step {
  Tensor index_q;
  Tensor index_cache;
  Tensor block_table;
  Tensor seq_lens;
  BlockSelection selection{.block_size = 2, .topk = 16, .init_blocks = 1, .local_blocks = 1};

  Step(std::uint64_t seed, std::int64_t blocks) {
    Random random(seed);
    const auto numbers = [&](std::int64_t count) {  // few of them, so that scores tie
      Numbers codes;
      for (std::int64_t i = 0; i < count; ++i)
        codes.push_back(bf16_from_float(static_cast<float>(random.between(-12, 12))));
      return codes;
    };
    index_q = filled(DType::kBFloat16, Layout::dense({kQueryLength, kHeads, 2}),
                     numbers(kQueryLength * kHeads * 2));
    index_cache = filled(DType::kBFloat16, Layout::dense({blocks, 2, 2}), numbers(blocks * 4));
    Numbers table, lengths;
    const std::int64_t last = 2 * blocks - random.between(0, 1);
    for (std::int64_t row = 0; row < kQueryLength; ++row) {
      const Numbers ids = counting(0, blocks);
      table.insert(table.end(), ids.begin(), ids.end());
      lengths.push_back(last - (kQueryLength - 1 - row));
    }
    block_table = ints({kQueryLength, blocks}, table);
    seq_lens = ints({kQueryLength}, lengths);
  }

  /// Scores by one rank; what others score stays poison.
  Tensor scores(const BlockShard& shard) const {
    const IndexScoreInput input{.index_q = index_q.view<std::uint16_t, 3>(),
                                .index_cache = index_cache,
                                .block_table = reading<2>(block_table),
                                .seq_lens = reading<1>(seq_lens),
                                .q_len = kQueryLength,
                                .selection = selection,
                                .shard = shard};
    const auto dims = index_score_shape(input);
    Tensor score = poisoned(DType::kFloat32, Layout::dense({dims[0], dims[1], dims[2]}));
    index_score(input, {score.view<float, 3>()});
    return score;
  }
  IndexSelectInput selecting(const Tensor& score) const {
    return {.score = score.view<float, 3>(),
            .block_table = reading<2>(block_table),
            .seq_lens = reading<1>(seq_lens),
            .pages_per_block = 1,
            .block_page_stride = 1,
            .selection = selection};
  }
  /// Ids of every head and row.
  Numbers whole() const {
    const Tensor score = scores({});
    const IndexSelectInput input = selecting(score);
    const auto [heads, rows, topk] = index_select_shape(input).topk_idx;
    Tensor ids = poisoned(DType::kInt32, Layout::dense({heads, rows, topk}));
    Tensor pages = poisoned(DType::kInt32, Layout::dense({heads, rows, topk}));
    Tensor contexts = poisoned(DType::kInt32, Layout::dense({heads, rows}));
    index_select(input, {ids.view<std::int32_t, 3>(), pages.view<std::int32_t, 3>(),
                         contexts.view<std::int32_t, 2>()});
    return values(ids);
  }
  Numbers merged() const {
    std::vector<Tensor> scores_of_rank;
    for (std::int64_t rank = 0; rank < kWorld; ++rank)
      scores_of_rank.push_back(scores({.world = kWorld, .rank = rank}));
    Numbers ids;
    for (std::int64_t head = 0; head < kHeads; ++head)
      for (std::int64_t row = 0; row < kQueryLength; ++row) {
        std::vector<BlockCandidate> all;
        for (std::int64_t rank = 0; rank < kWorld; ++rank) {
          const auto own =
              shard_candidates(selecting(scores_of_rank[static_cast<std::size_t>(rank)]), head, row,
                               {.world = kWorld, .rank = rank});
          all.insert(all.end(), own.begin(), own.end());
        }
        for (const BlockCandidate& best :
             merge_candidates(all, selection.topk, Contract{}.topk_ties))
          ids.push_back(best.block);
      }
    return ids;
  }
};

TEST(ContextParallelIndex, FourRanksSelectWhatOneDoesForEveryRow) {
  for (std::uint64_t seed = 0; seed < 8; ++seed)
    for (const std::int64_t blocks : {18, 288, 289, 301}) {
      const Step step(seed, blocks);
      EXPECT_EQ(step.merged(), step.whole()) << "seed " << seed << ", " << blocks << " blocks";
    }
}

}  // namespace
}  // namespace monoref::testing
