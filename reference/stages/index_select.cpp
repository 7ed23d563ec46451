#include "reference/stages/index_select.hpp"

#include <algorithm>
#include <limits>

#include "reference/arithmetic/ordered_bits.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/stages/index_score.hpp"

namespace monoref {
namespace {

std::int64_t context(const IndexSelectInput& input, std::int64_t row) {
  return context_of(input.seq_lens(row), input.contract.empty_row);
}

std::int64_t blocks(const IndexSelectInput& input, std::int64_t row) {
  return input.selection.blocks(context(input, row));
}

/// Whether scores decide the order of a row's blocks.
bool ranks_by_score(const IndexSelectInput& input, std::int64_t row) {
  return input.contract.index_scores == IndexScores::kEveryBlock ||
         input.selection.selects(blocks(input, row));
}

float score_to_rank(const IndexSelectInput& input, std::int64_t head, std::int64_t row,
                    std::int64_t block) {
  if (input.selection.is_local(block, blocks(input, row))) return kLocalScore;
  if (input.selection.is_init(block)) return kInitScore;
  return input.score(head, row, block);
}

/// Whether scores outside the pinned blocks are needed for this row.
bool reads_scores(const IndexSelectInput& input, std::int64_t row) {
  return ranks_by_score(input, row) &&
         input.selection.init_blocks + input.selection.local_blocks < blocks(input, row);
}

std::int64_t first_page(const IndexSelectInput& input, std::int64_t row, std::int64_t block) {
  return input.block_table(row, block) * input.block_page_stride;
}

void check_sizes(const IndexSelectInput& input, std::int64_t row) {
  const std::int64_t count = blocks(input, row);
  if (count > kMaxSelectableBlocks)
    refuse("index_select: the context of row {} has {} blocks, limit {}", row, count,
           kMaxSelectableBlocks);
  if (count > input.block_table.dim(1))
    refuse(
        "index_select: the context of row {} has {} blocks, must have at most {}, the columns of "
        "block_table",
        row, count, input.block_table.dim(1));
  if (reads_scores(input, row) && count - input.selection.local_blocks > input.score.dim(2))
    refuse(
        "index_select: the context of row {} has {} blocks, must have at most {}, those of score",
        row, count, input.score.dim(2));
}

/// What a block is ranked by: its id, first come first, where no score decides.
std::int32_t key_of(const IndexSelectInput& input, std::int64_t head, std::int64_t row,
                    std::int64_t block) {
  if (!ranks_by_score(input, row)) return static_cast<std::int32_t>(-block);
  return sorting_key(score_to_rank(input, head, row, block), input.contract);
}

/// All blocks of a shard with their keys.
std::vector<BlockCandidate> keyed_blocks(const IndexSelectInput& input, std::int64_t head,
                                         std::int64_t row, const BlockShard& shard) {
  std::vector<BlockCandidate> all;
  const std::int64_t count = blocks(input, row);
  all.reserve(static_cast<std::size_t>(count / shard.world + 1));
  for (std::int64_t block = shard.rank; block < count; block += shard.world)
    all.push_back({key_of(input, head, row, block), static_cast<std::int32_t>(block)});
  return all;
}

/// The selected blocks of a row, best first.
std::vector<std::int32_t> select(const IndexSelectInput& input, std::int64_t head,
                                 std::int64_t row) {
  std::vector<std::int32_t> selected;
  for (const BlockCandidate& best : shard_candidates(input, head, row, BlockShard{}))
    selected.push_back(best.block);
  return selected;
}

/// The only check that looks at the block table: blocks that are not selected may have any entry.
void check_pages(const IndexSelectInput& input, std::int64_t head, std::int64_t row) {
  for (const std::int32_t block : select(input, head, row)) {
    const std::int64_t page = first_page(input, row, block);
    if (!fits_int32(page) || !fits_int32(page + input.pages_per_block - 1))
      refuse(
          "index_select: block_table[{}][{}] is {}, times page stride {} its pages must not leave"
          " int32",
          row, block, input.block_table(row, block), input.block_page_stride);
  }
}

/// The table's order: as ranked, the last block of the context last.
std::vector<std::int32_t> tail_last(std::vector<std::int32_t> selected, std::int64_t tail) {
  std::stable_partition(selected.begin(), selected.end(),
                        [&](std::int32_t block) { return block != tail; });
  return selected;
}

void write_table(const IndexSelectInput& input, const IndexSelectOutput& output, std::int64_t head,
                 std::int64_t row, const std::vector<std::int32_t>& slots) {
  for (std::int64_t slot = 0; slot < input.selection.topk; ++slot)
    for (std::int64_t page = 0; page < input.pages_per_block; ++page) {
      const bool used = slot < static_cast<std::int64_t>(slots.size());
      output.sparse_block_table(head, row, slot * input.pages_per_block + page) =
          used ? static_cast<std::int32_t>(
                     first_page(input, row, slots[static_cast<std::size_t>(slot)]) + page)
               : 0;
    }
}

std::int64_t selected_context(const IndexSelectInput& input, std::int64_t row,
                              const std::vector<std::int32_t>& slots) {
  const auto count = static_cast<std::int64_t>(slots.size());
  const std::int64_t size = input.selection.block_size;
  const std::int64_t tail = blocks(input, row) - 1;
  if (count == 0) return 0;
  if (slots.back() != tail) return std::min(count * size, context(input, row));
  return (count - 1) * size + context(input, row) - tail * size;
}

void write_row(const IndexSelectInput& input, const IndexSelectOutput& output, std::int64_t head,
               std::int64_t row) {
  const std::vector<std::int32_t> ranked = select(input, head, row);
  for (std::int64_t rank = 0; rank < input.selection.topk; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    output.topk_idx(head, row, rank) = at < ranked.size() ? ranked[at] : -1;
  }
  const std::vector<std::int32_t> slots = tail_last(ranked, blocks(input, row) - 1);
  write_table(input, output, head, row, slots);
  output.sparse_context_lens(head, row) =
      static_cast<std::int32_t>(selected_context(input, row, slots));
}

}  // namespace

std::int32_t sorting_key(float score, const Contract& contract) {
  if (score != score) {
    if (contract.nan_score == NanScore::kLowest) return std::numeric_limits<std::int32_t>::min();
    score = contract.nan_score == NanScore::kMinusInf ? -std::numeric_limits<float>::infinity()
                                                      : -1e30f;
  }
  if (score == 0 && contract.zero_score == ZeroScore::kEqual) score = 0.0f;
  return ordered_bits(score);
}

IndexSelectShape index_select_shape(const IndexSelectInput& input) {
  check_block_selection("index_select", input.selection);
  const std::int64_t heads = input.score.dim(0);
  const std::int64_t rows = input.score.dim(1);
  if (input.pages_per_block < 1 || input.pages_per_block > input.selection.block_size)
    refuse("index_select: pages_per_block is {}, must be 1 to block_size {}", input.pages_per_block,
           input.selection.block_size);
  if (input.block_page_stride < input.pages_per_block || input.block_page_stride > kInt32Max)
    refuse("index_select: block_page_stride is {}, must be {} to {}", input.block_page_stride,
           input.pages_per_block, kInt32Max);
  require_dims("index_select: block_table", input.block_table, {rows, input.block_table.dim(1)});
  require_dims("index_select: seq_lens", input.seq_lens, {rows});
  for (std::int64_t row = 0; row < rows; ++row) check_sizes(input, row);
  for (std::int64_t head = 0; head < heads; ++head)
    for (std::int64_t row = 0; row < rows; ++row) check_pages(input, head, row);
  const std::int64_t topk = input.selection.topk;
  return {{heads, rows, topk}, {heads, rows, topk * input.pages_per_block}, {heads, rows}};
}

void index_select(const IndexSelectInput& input, const IndexSelectOutput& output) {
  const IndexSelectShape shape = index_select_shape(input);
  require_dims("index_select: output topk_idx", output.topk_idx, shape.topk_idx);
  require_dims("index_select: output sparse_block_table", output.sparse_block_table,
               shape.sparse_block_table);
  require_dims("index_select: output sparse_context_lens", output.sparse_context_lens,
               shape.sparse_context_lens);
  for (std::int64_t head = 0; head < shape.topk_idx[0]; ++head)
    for (std::int64_t row = 0; row < shape.topk_idx[1]; ++row) write_row(input, output, head, row);
}

std::vector<BlockCandidate> shard_candidates(const IndexSelectInput& input, std::int64_t head,
                                             std::int64_t row, const BlockShard& shard) {
  return merge_candidates(keyed_blocks(input, head, row, shard), input.selection.topk,
                          input.contract.topk_ties);
}

std::vector<BlockCandidate> merge_candidates(std::span<const BlockCandidate> candidates,
                                             std::int64_t topk, TopkTies ties) {
  std::vector<BlockCandidate> best(candidates.begin(), candidates.end());
  const auto ranks_before = [&](const BlockCandidate& a, const BlockCandidate& b) {
    if (a.key != b.key) return a.key > b.key;
    return ties == TopkTies::kHigherId ? a.block > b.block : a.block < b.block;
  };
  const auto kept = std::min(static_cast<std::size_t>(topk), best.size());
  std::partial_sort(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(kept), best.end(),
                    ranks_before);
  best.resize(kept);
  return best;
}

}  // namespace monoref
