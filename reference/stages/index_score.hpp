// Stage index_score: how well each block of a request's context answers its query rows.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"
#include "reference/fast/isa.hpp"
#include "reference/rules/block_selection.hpp"

namespace monoref {

/// Scores of pinned blocks where every block has one, and keys of pinned blocks in the selection.
inline constexpr float kInitScore = 1e30f;
inline constexpr float kLocalScore = 1e29f;

/// One row a query token, as in StepTables: request i owns rows i * q_len and following, whose
/// tables are the same and whose lengths count up by one.
struct IndexScoreInput {
  View<const std::uint16_t, 3> index_q;     ///< [rows, heads, dim] BF16, any strides
  const Tensor& index_cache;                ///< [blocks, block_size, dim], FP8 or BF16, unit scale
  View<const std::int32_t, 2> block_table;  ///< [rows, width], physical block of each logical one
  View<const std::int32_t, 1> seq_lens;     ///< [rows], keys including this row's; may be <= 0
  std::int64_t q_len = 1;                   ///< query rows a request
  double sm_scale = 0.08838834764831845;    ///< rounded to binary32 once
  BlockSelection selection{};
  BlockShard shard{};
  Contract contract{};
};

struct IndexScoreOutput {
  View<float, 3> score;  ///< [heads, rows, width] binary32
};

/// The dims [heads, rows, width] of the output, after every check of the input.
///
/// Refuses: a q_len below 1 and rows that are not whole requests; lengths inside a request that do
/// not count up by one; sizes that no selection can have; a shard whose rank is outside 0..world-1;
/// a scale that is not finite; an index cache of another rank, block size, dim, or type than BF16
/// and the contract's FP8 (bug case F15), or whose last stride is not 1; a context of more blocks
/// than the table has columns, or than 8,192 (bug case S17); and a block to be scored that the
/// cache or its storage does not have.
std::array<std::int64_t, 3> index_score_shape(const IndexScoreInput& input);

/// Whether the stage gives this row a score for this block. Other elements are never written.
bool is_scored(const IndexScoreInput& input, std::int64_t row, std::int64_t block);

/// The definition (mono-decode section 4). A row sees the keys below its context, max(length, 1) or
/// max(length, 0) by the contract's empty-row rule; block b holds the keys from b * block_size on,
/// in physical block block_table[last row of the request][b].
///
///   score = max over the block's keys below the row's context of dot(index_q[row][head], key)
///   dot   = an fma chain from 0 over ascending dims, keys decoded to numbers
///
/// The maximum of no keys is -Inf, NaN wins, and +0 is larger than -0.
///
/// Selectable blocks (the contract's default): only if the request's last row has more than topk
/// blocks, and then for every row of the request the blocks from init_blocks to that row's
/// `blocks - local_blocks`, exclusive. The maximum is multiplied by f32(sm_scale) * f32(log2 e).
/// No key of any other block is read. Every block: each block of the row's own context, unscaled;
/// init blocks hold 1e30 and local ones, which win, 1e29. Under a shard, only blocks of its rank.
///
/// Refuses what the shape function refuses and an output of other dims, before it writes anything.
void index_score(const IndexScoreInput& input, const IndexScoreOutput& output);

/// Bit for bit the same, vectorised across keys and query rows: each chain stays sequential.
void index_score_fast(const IndexScoreInput& input, const IndexScoreOutput& output,
                      Isa isa = best_isa());

}  // namespace monoref
