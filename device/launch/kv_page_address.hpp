// kv_page_address: see device/kernels/kv_page_address.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct KvPageAddress {
  const std::int64_t* slots;
  std::int64_t slot_stride;
  std::int64_t* k_offsets;
  std::int64_t* v_offsets;
  std::int64_t count, heads, head_dim, element_bytes, sides;

  static constexpr std::string_view kernel() { return "monoref_kv_page_address"; }
  Grid grid(int) const { return {.blocks_x = blocks(count), .threads_x = 64}; }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(slots, slot_stride, k_offsets, v_offsets, count, narrow(heads), narrow(head_dim),
         narrow(element_bytes), narrow(sides));
  }
};

}  // namespace monoref::device::launch
