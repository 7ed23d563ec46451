// index_cache_insert: see device/kernels/index_cache_insert.hip.
#pragma once

#include <type_traits>

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

/// Element: uint8, uint16 or uint32; Slot: int32 or int64.
template <class Element, class Slot>
struct IndexCacheInsert {
  const Element* keys;
  std::int64_t key_row_stride, key_dim_stride, key_rows;
  const Slot* slots;
  std::int64_t slot_stride, slot_count;
  Element* cache;
  std::int64_t cache_block_stride, cache_token_stride, capacity, block_size, dim;

  static constexpr std::string_view kernel() {
    constexpr bool kNarrow = std::is_same_v<Slot, std::int32_t>;
    static_assert(kNarrow || std::is_same_v<Slot, std::int64_t>);
    if constexpr (std::is_same_v<Element, std::uint8_t>)
      return kNarrow ? "monoref_index_cache_insert_b8_s32" : "monoref_index_cache_insert_b8_s64";
    else if constexpr (std::is_same_v<Element, std::uint16_t>)
      return kNarrow ? "monoref_index_cache_insert_b16_s32" : "monoref_index_cache_insert_b16_s64";
    else if constexpr (std::is_same_v<Element, std::uint32_t>)
      return kNarrow ? "monoref_index_cache_insert_b32_s32" : "monoref_index_cache_insert_b32_s64";
  }
  /// Up to a wave shares a row.
  Grid grid(int wave) const {
    constexpr std::int64_t kThreads = 64;
    const std::int64_t per_row = std::clamp<std::int64_t>(dim, 1, wave);
    return {.blocks_x = blocks(parts(key_rows * per_row, kThreads)), .threads_x = kThreads};
  }
  static constexpr Legal legal(int wave) { return any_x(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(keys, key_row_stride, key_dim_stride, key_rows, slots, slot_stride, slot_count, cache,
         cache_block_stride, cache_token_stride, capacity, narrow(block_size), narrow(dim));
  }
};

}  // namespace monoref::device::launch
