// index_select: see device/kernels/index_select.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

/// What all three kernels choose from and how; rows have `heads` selections each.
struct Selection {
  const std::int32_t* seq_lens;
  std::int64_t seq_lens_stride;
  std::int64_t rows, heads, q_len, topk;
  std::int32_t tables_of, tie;

  Grid grid(std::uint32_t threads) const {
    return {.blocks_x = blocks(rows), .blocks_y = blocks(heads), .threads_x = threads};
  }
  /// For rows of so many blocks.
  static constexpr std::uint32_t threads(std::int64_t width) {
    return width > 2048 ? 1024 : width > 512 ? 256 : 64;
  }
};

/// Scores in columns of block ids.
struct BlockScores {
  const float* data;
  std::int64_t row_stride, head_stride, init_blocks, local_blocks;
};

/// What two of the kernels make of a selection.
struct SelectedPages {
  const std::int32_t* block_table;
  std::int64_t table_row_stride, width;
  std::int32_t* topk_idx;  ///< or null
  std::int64_t topk_row_stride, topk_head_stride;
  std::int32_t* page_table;
  std::int64_t page_row_stride, page_head_stride;
  std::int32_t* context_lens;
  std::int64_t context_row_stride, context_head_stride, page_stride;
};

struct IndexSelect {
  Selection of;
  BlockScores scores;
  SelectedPages pages;

  static constexpr std::string_view kernel() { return "monoref_index_select"; }
  Grid grid(int) const { return of.grid(Selection::threads(pages.width)); }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(scores.data, scores.row_stride, scores.head_stride, pages.block_table,
         pages.table_row_stride, of.seq_lens, of.seq_lens_stride, pages.topk_idx,
         pages.topk_row_stride, pages.topk_head_stride, pages.page_table, pages.page_row_stride,
         pages.page_head_stride, pages.context_lens, pages.context_row_stride,
         pages.context_head_stride, of.rows, narrow(of.heads), narrow(pages.width),
         narrow(of.q_len), narrow(of.topk), narrow(scores.init_blocks), narrow(scores.local_blocks),
         narrow(pages.page_stride), of.tables_of, of.tie);
  }
};

/// What one of `world` ranks brings to the selection.
struct IndexCandidates {
  Selection of;
  BlockScores scores;
  std::int64_t width;  ///< blocks of a row at most: for the default grid
  std::int64_t* candidates;
  std::int64_t candidate_row_stride, candidate_head_stride, world, rank;

  static constexpr std::string_view kernel() { return "monoref_index_candidates"; }
  Grid grid(int) const { return of.grid(Selection::threads(width)); }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(scores.data, scores.row_stride, scores.head_stride, of.seq_lens, of.seq_lens_stride,
         candidates, candidate_row_stride, candidate_head_stride, of.rows, narrow(of.heads),
         narrow(of.q_len), narrow(of.topk), narrow(scores.init_blocks), narrow(scores.local_blocks),
         narrow(world), narrow(rank), of.tables_of, of.tie);
  }
};

/// The selection from all ranks' candidates.
struct IndexMerge {
  Selection of;
  const std::int64_t* candidates;
  std::int64_t candidate_rank_stride, candidate_row_stride, candidate_head_stride, world;
  SelectedPages pages;

  static constexpr std::string_view kernel() { return "monoref_index_merge"; }
  Grid grid(int) const { return of.grid(threads_for(world * of.topk, 1024)); }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(candidates, candidate_rank_stride, candidate_row_stride, candidate_head_stride,
         pages.block_table, pages.table_row_stride, of.seq_lens, of.seq_lens_stride, pages.topk_idx,
         pages.topk_row_stride, pages.topk_head_stride, pages.page_table, pages.page_row_stride,
         pages.page_head_stride, pages.context_lens, pages.context_row_stride,
         pages.context_head_stride, of.rows, narrow(of.heads), narrow(pages.width),
         narrow(of.q_len), narrow(of.topk), narrow(world), narrow(pages.page_stride), of.tables_of,
         of.tie);
  }
};

}  // namespace monoref::device::launch
