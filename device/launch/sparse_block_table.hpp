// sparse_block_table: see device/kernels/sparse_block_table.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

/// What both kernels take.
struct SparseTableRows {
  const std::int32_t* topk_idx;
  std::int64_t topk_row_stride, topk_id_stride;
  const std::int32_t* block_table;
  std::int64_t table_row_stride;
  std::int32_t* sparse_table;
  std::int64_t sparse_row_stride;
  std::int32_t* context_lens;
  std::int64_t total_q, requests, topk, width, page_stride;

  /// A wave makes one row at a time.
  Grid grid(int wave) const {
    constexpr std::uint32_t kThreads = 256;
    return {.blocks_x = blocks(parts(total_q, kThreads / wave)), .threads_x = kThreads};
  }
  static constexpr Legal legal(int wave) { return any_x(wave); }
};

/// Rows are the queries of requests in order, q_len each.
struct SparseBlockTableDecode {
  SparseTableRows rows;
  const std::int32_t* seq_lens;
  std::int64_t seq_lens_stride, q_len;

  static constexpr std::string_view kernel() { return "monoref_sparse_block_table_decode"; }
  Grid grid(int wave) const { return rows.grid(wave); }
  static constexpr Legal legal(int wave) { return SparseTableRows::legal(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(rows.topk_idx, rows.topk_row_stride, rows.topk_id_stride, rows.block_table,
         rows.table_row_stride, seq_lens, seq_lens_stride, rows.sparse_table,
         rows.sparse_row_stride, rows.context_lens, rows.total_q, rows.requests, narrow(rows.topk),
         narrow(rows.width), narrow(q_len), narrow(rows.page_stride));
  }
};

/// Each row with a request and a position.
struct SparseBlockTablePrefill {
  SparseTableRows rows;
  const std::int32_t* query_req_id;
  std::int64_t req_id_stride;
  const std::int32_t* query_abs_pos;
  std::int64_t abs_pos_stride;

  static constexpr std::string_view kernel() { return "monoref_sparse_block_table_prefill"; }
  Grid grid(int wave) const { return rows.grid(wave); }
  static constexpr Legal legal(int wave) { return SparseTableRows::legal(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(rows.topk_idx, rows.topk_row_stride, rows.topk_id_stride, rows.block_table,
         rows.table_row_stride, query_req_id, req_id_stride, query_abs_pos, abs_pos_stride,
         rows.sparse_table, rows.sparse_row_stride, rows.context_lens, rows.total_q, rows.requests,
         narrow(rows.topk), narrow(rows.width), narrow(rows.page_stride));
  }
};

}  // namespace monoref::device::launch
