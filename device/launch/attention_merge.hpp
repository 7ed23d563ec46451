// attention_merge: see device/kernels/attention_merge.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct AttentionMerge {
  const std::uint16_t* o;
  const float* m;
  const float* l;
  std::uint16_t* out;
  std::int64_t out_row_stride, rows, heads, head_dim, partitions;
  std::int32_t accumulate;

  static constexpr std::string_view kernel() { return "monoref_attention_merge"; }
  /// A thread makes eight numbers.
  Grid grid(int) const {
    return {.blocks_x = blocks(parts(rows * heads * head_dim / 8, 64)), .threads_x = 64};
  }
  static constexpr Legal legal(int wave) { return any_x(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(o, m, l, out, out_row_stride, rows, narrow(heads), narrow(head_dim), narrow(partitions),
         accumulate);
  }
};

}  // namespace monoref::device::launch
