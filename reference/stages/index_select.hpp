// Stage index_select: the best blocks of each row, and the page table to attend to them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"
#include "reference/rules/block_selection.hpp"

namespace monoref {

struct IndexSelectInput {
  View<const float, 3> score;               ///< [heads, rows, blocks], from index_score
  View<const std::int32_t, 2> block_table;  ///< [rows, width], physical block of each logical one
  View<const std::int32_t, 1> seq_lens;     ///< [rows], keys including this row's; may be <= 0
  std::int64_t pages_per_block = 8;         ///< pages of one side (K or V) of a block
  std::int64_t block_page_stride = 16;      ///< page ids a block spans: 8 dense, 16 interleaved
  BlockSelection selection{};
  Contract contract{};
};

struct IndexSelectOutput {
  View<std::int32_t, 3> topk_idx;             ///< [heads, rows, topk], best first, then -1
  View<std::int32_t, 3> sparse_block_table;   ///< [heads, rows, topk * pages_per_block], page ids
  View<std::int32_t, 2> sparse_context_lens;  ///< [heads, rows], keys
};

struct IndexSelectShape {
  std::array<std::int64_t, 3> topk_idx{};
  std::array<std::int64_t, 3> sparse_block_table{};
  std::array<std::int64_t, 2> sparse_context_lens{};
};

/// A block that may be selected, and what it is ranked by.
struct BlockCandidate {
  std::int32_t key = 0;
  std::int32_t block = 0;
  bool operator==(const BlockCandidate&) const = default;
};

/// A score as a sorting key: larger is better, as signed integers (mono-decode section 5). The bits
/// of the number, those of a negative one xor 0x7fffffff; -0 as +0 unless the contract orders them;
/// a NaN, whatever its bits, as INT_MIN, or as the number that the contract names.
std::int32_t sorting_key(float score, const Contract& contract);

/// The output shapes, after every check of the input.
///
/// Refuses: sizes that no selection can have; tables and lengths of other row counts than score;
/// a page stride below pages_per_block; a context of more than 8,192 blocks (bug case S17), of more
/// than the table has columns or, where scores decide, of more than score has; and a page id
/// outside int32.
IndexSelectShape index_select_shape(const IndexSelectInput& input);

/// Per head and row, which select independently (bug case S10), with n blocks of context
/// (mono-decode section 5):
///
///   n <= topk: all blocks, in ascending id; no score is read
///   otherwise: the topk best by (key, id). The key of block b is that of 1e29 if it is one of the
///   last local_blocks, else that of 1e30 if it is one of the first init_blocks, else that of its
///   score; equal keys rank by the contract's tie rule. Scores of pinned blocks are never read. A
///   score above 1e30 outranks pinned blocks.
///
/// Where the contract scores every block (`every_block`), short contexts are ranked like long ones.
///
/// `sparse_block_table`: blocks other than the last of the context in rank order in slots 0, 1,
/// ..., then the last one if selected. Slot s holds the pages block_table[row][b] *
/// block_page_stride + j; slots without a block hold 0. `sparse_context_lens`: with the last block
/// full blocks * block_size + its keys, else min(selected * block_size, context).
///
/// Refuses what the shape function refuses and outputs of other dims, before it writes anything.
void index_select(const IndexSelectInput& input, const IndexSelectOutput& output);

/// The candidates that one rank contributes under context parallelism: the topk best of its blocks,
/// best first, by the keys above, or by -id in a context that is taken whole. `index_select` is the
/// topk best of all ranks' candidates (`merge_candidates`), whatever the world.
std::vector<BlockCandidate> shard_candidates(const IndexSelectInput& input, std::int64_t head,
                                             std::int64_t row, const BlockShard& shard);
std::vector<BlockCandidate> merge_candidates(std::span<const BlockCandidate> candidates,
                                             std::int64_t topk, TopkTies ties);

}  // namespace monoref
