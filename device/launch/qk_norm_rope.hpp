// qk_norm_rope: see device/kernels/qk_norm_rope.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct QkNormRope {
  const std::uint16_t* qkv;
  std::int64_t qkv_row_stride, qkv_stride;
  const std::int64_t* positions;
  const std::uint16_t* cos_sin;
  std::int64_t cos_sin_row_stride, table_rows;
  const std::uint16_t* q_gamma;
  const std::uint16_t* k_gamma;
  const std::uint16_t* index_q_gamma;
  const std::uint16_t* index_k_gamma;
  std::uint16_t* q;
  std::int64_t q_row_stride;
  std::uint16_t* index_q;
  std::int64_t index_q_row_stride;
  float* k;
  std::int64_t k_row_stride;
  float* index_k;
  std::int64_t index_k_row_stride;
  std::int64_t tokens, q_heads, kv_heads, index_heads, head_dim, rotary_dim;
  float eps;

  static constexpr std::string_view kernel() { return "monoref_qk_norm_rope"; }
  /// 32 threads have a head.
  Grid grid(int) const {
    constexpr std::uint32_t kThreads = 128;
    const std::int64_t heads = tokens * (q_heads + kv_heads + index_heads + 1);
    return {.blocks_x = blocks(parts(heads * 32, kThreads)), .threads_x = kThreads};
  }
  static constexpr Legal legal(int wave) { return any_x(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(qkv, qkv_row_stride, qkv_stride, positions, cos_sin, cos_sin_row_stride, table_rows,
         q_gamma, k_gamma, index_q_gamma, index_k_gamma, q, q_row_stride, index_q,
         index_q_row_stride, k, k_row_stride, index_k, index_k_row_stride, tokens, narrow(q_heads),
         narrow(kv_heads), narrow(index_heads), narrow(head_dim), narrow(rotary_dim), eps);
  }
};

}  // namespace monoref::device::launch
