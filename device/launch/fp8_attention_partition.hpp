// fp8_attention_partition: see device/kernels/fp8_attention_partition.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct Fp8AttentionPartition {
  const std::uint16_t* q;
  std::int64_t q_row_stride, q_head_stride;
  const std::uint8_t* k_cache;
  const std::uint8_t* v_cache;
  std::int64_t pages;
  const std::int32_t* page_table;
  std::int64_t table_row_stride, table_head_stride;
  const std::int32_t* context_lens;
  std::int64_t context_row_stride, context_head_stride;
  const float* k_scale;  ///< null: 1
  const float* v_scale;
  std::int64_t scale_stride;
  std::uint16_t* o;
  float* m;
  float* l;
  std::int64_t rows, kv_heads, group, head_dim, partitions, sides;
  float sm_scale, largest;
  std::int32_t masked_values, encoding, overflow;

  static constexpr std::uint32_t kThreads = 256;

  static constexpr std::string_view kernel() { return "monoref_fp8_attention_partition"; }
  Grid grid(int) const {
    return {.blocks_x = blocks(partitions),
            .blocks_y = blocks(rows),
            .blocks_z = blocks(kv_heads),
            .threads_x = kThreads};
  }
  static constexpr Legal legal(int) {
    constexpr Range kAny{1, kMostBlocks};
    return {kAny, kAny, kAny, {kThreads, kThreads}, kThreads};
  }
  template <class Take>
  void pass(const Take& take) const {
    take(q, q_row_stride, q_head_stride, On16{k_cache}, On16{v_cache}, pages, page_table,
         table_row_stride, table_head_stride, context_lens, context_row_stride, context_head_stride,
         k_scale, v_scale, scale_stride, o, m, l, rows, narrow(kv_heads), narrow(group),
         narrow(head_dim), narrow(partitions), narrow(sides), sm_scale, largest, masked_values,
         encoding, overflow);
  }
};

}  // namespace monoref::device::launch
