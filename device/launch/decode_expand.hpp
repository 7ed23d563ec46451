// decode_expand: see device/kernels/decode_expand.hip.
#pragma once

#include "device/launch/cache_sharing.hpp"
#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct DecodeExpand {
  const std::int32_t* seq_lens;
  std::int64_t seq_lens_stride;
  const std::int32_t* block_table = nullptr;  ///< null: the table stays as it is
  std::int64_t table_row_stride = 0;
  std::int32_t* expanded_table = nullptr;
  std::int64_t expanded_row_stride = 0;
  std::int32_t* decode_seq_lens;
  std::int32_t* decode_lens = nullptr;  ///< null: not wanted
  std::int64_t requests;
  std::int64_t live_rows;    ///< of decode_seq_lens that have a length
  std::int64_t length_rows;  ///< of decode_seq_lens, the zeroed tail included
  std::int64_t width = 0, expanded_width = 0, max_decode_len = 1;
  CacheSharing sharing;
  std::int64_t length_limit = -1;  ///< tokens; negative: lengths stay as they are

  static constexpr std::string_view kernel() { return "monoref_decode_expand_uniform"; }
  Grid grid(int) const {
    return {.blocks_x = blocks(requests * max_decode_len), .threads_x = threads_for(width / 4)};
  }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(seq_lens, seq_lens_stride, block_table, table_row_stride, expanded_table,
         expanded_row_stride, decode_seq_lens, decode_lens, requests, live_rows, length_rows,
         narrow(width), narrow(expanded_width), narrow(max_decode_len),
         narrow(sharing.compress_ratio), narrow(sharing.world), narrow(sharing.rank),
         narrow(sharing.interleave), narrow(length_limit));
  }
};

}  // namespace monoref::device::launch
