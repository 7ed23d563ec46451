// What scoring and selecting blocks have in common: the sizes of a selection and the blocks of a
// row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "reference/core/contract.hpp"
#include "reference/core/error.hpp"
#include "reference/rules/integer_division.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {

/// Blocks of the longest context (mono-decode section 1): 2^20 keys. Bug case S17: a limit below
/// that loses the end of long contexts silently.
inline constexpr std::int64_t kMaxSelectableBlocks = 8192;

/// The sizes of a selection. Which blocks are pinned depends on the row: the first `init_blocks`
/// and the last `local_blocks` of its context.
struct BlockSelection {
  std::int64_t block_size = 128;  ///< keys a block
  std::int64_t topk = 16;         ///< blocks selected a row
  std::int64_t init_blocks = 0;
  std::int64_t local_blocks = 1;

  bool operator==(const BlockSelection&) const = default;

  /// Blocks that hold the first `context` keys.
  std::int64_t blocks(std::int64_t context) const { return ceil_divide(context, block_size); }
  bool is_init(std::int64_t block) const { return block < init_blocks; }
  bool is_local(std::int64_t block, std::int64_t blocks) const {
    return block >= blocks - local_blocks;
  }
  /// Whether a context of so many blocks is selected from, or taken whole.
  bool selects(std::int64_t blocks) const { return blocks > topk; }
};

/// One rank's share of the blocks under context parallelism: block b belongs to rank b mod world
/// (mono-decode section 4), in requests of more than `from_blocks` blocks, by their last row.
struct BlockShard {
  std::int64_t world = 1;
  std::int64_t rank = 0;
  std::int64_t from_blocks = 0;

  bool owns(std::int64_t block) const { return block % world == rank; }
};

/// Whether ranks share the blocks of a request: more than 288 of them with 4 index heads, more than
/// 512 with one (mono-decode section 10). `blocks` are those of the request's last row, so that all
/// its rows agree. The selection is the same either way.
constexpr bool uses_context_parallel_index(std::int64_t blocks, std::int64_t index_heads) {
  return blocks > (index_heads == 1 ? 512 : 288);
}

/// Keys that a row attends to, from its length, which may be negative (padding).
inline std::int64_t context_of(std::int64_t seq_len, EmptyRow rule) {
  return std::max<std::int64_t>(seq_len, rule == EmptyRow::kContext1 ? 1 : 0);
}

/// Refuses sizes that no selection can have. `stage` names the caller.
inline void check_block_selection(std::string_view stage, const BlockSelection& selection) {
  if (selection.block_size < 1)
    refuse("{}: block_size is {}, must be at least 1", stage, selection.block_size);
  if (selection.topk < 1 || selection.topk > 64)
    refuse("{}: topk is {}, must be 1 to 64", stage, selection.topk);
  for (const auto& [name, pinned] : {std::pair{"init_blocks", selection.init_blocks},
                                     std::pair{"local_blocks", selection.local_blocks}})
    if (pinned < 0 || pinned > kInt32Max)
      refuse("{}: {} is {}, must be 0 to {}", stage, name, pinned, kInt32Max);
}

}  // namespace monoref
