// compressed_slot_mapping: see device/kernels/compressed_slot_mapping.hip.
#pragma once

#include "device/launch/cache_sharing.hpp"
#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct CompressedSlotMapping {
  const std::int32_t* query_start_loc;
  const std::int32_t* seq_lens;
  const std::int32_t* block_table;
  std::int64_t table_row_stride;
  std::int64_t* slot_mapping;
  std::int64_t requests, slot_count, width, storage_block_size;
  CacheSharing sharing;

  static constexpr std::string_view kernel() { return "monoref_compressed_slot_mapping"; }
  /// A block for each request, and one for the padding.
  Grid grid(int) const { return {.blocks_x = blocks(requests + 1), .threads_x = 64}; }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(query_start_loc, seq_lens, block_table, table_row_stride, slot_mapping, requests,
         slot_count, narrow(width), narrow(storage_block_size), narrow(sharing.compress_ratio),
         narrow(sharing.world), narrow(sharing.rank), narrow(sharing.interleave));
  }
};

}  // namespace monoref::device::launch
