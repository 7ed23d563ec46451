// page16_rebase: see device/kernels/page16_rebase.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct Page16RebaseTable {
  const std::int32_t* block_table;
  std::int64_t table_row_stride;
  std::int32_t* rebased;
  std::int64_t rebased_row_stride, rows, width, sides;

  static constexpr std::string_view kernel() { return "monoref_page16_rebase_table"; }
  Grid grid(int) const { return {.blocks_x = blocks(rows), .threads_x = threads_for(width)}; }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(block_table, table_row_stride, rebased, rebased_row_stride, rows, narrow(width),
         narrow(sides));
  }
};

struct Page16RebaseSlots {
  const std::int64_t* slots;
  std::int64_t slot_stride;
  std::int64_t* rebased;
  std::int64_t count, sides;

  static constexpr std::string_view kernel() { return "monoref_page16_rebase_slots"; }
  Grid grid(int) const { return {.blocks_x = blocks(parts(count, 2 * 64)), .threads_x = 64}; }
  static constexpr Legal legal(int wave) { return any_x(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(slots, slot_stride, rebased, count, narrow(sides));
  }
};

}  // namespace monoref::device::launch
