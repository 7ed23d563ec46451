// token_rows: see device/kernels/token_rows.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct TokenRows {
  const std::int32_t* block_table;
  std::int64_t table_row_stride;
  const std::int32_t* seq_lens;
  std::int64_t seq_lens_stride;
  std::int32_t* rows_table;
  std::int64_t rows_table_stride;
  std::int32_t* rows_lens;
  std::int64_t rows, length_rows, width, q_len;

  static constexpr std::string_view kernel() { return "monoref_token_rows"; }
  Grid grid(int) const {
    return {.blocks_x = blocks(std::max(rows, length_rows)), .threads_x = threads_for(width / 4)};
  }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(block_table, table_row_stride, seq_lens, seq_lens_stride, rows_table, rows_table_stride,
         rows_lens, rows, length_rows, narrow(width), narrow(q_len));
  }
};

}  // namespace monoref::device::launch
