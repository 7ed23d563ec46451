// auxiliary_state: see device/kernels/auxiliary_state.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct AuxiliaryState {
  const std::uint16_t* hidden;
  std::int64_t hidden_row_stride;
  const std::uint16_t* residual;  ///< or null
  std::int64_t residual_row_stride;
  std::uint16_t* out;
  std::int64_t out_row_stride, rows, width;

  static constexpr std::string_view kernel() { return "monoref_auxiliary_state"; }
  /// A thread has eight elements.
  Grid grid(int) const {
    const std::uint32_t threads = threads_for(width / 8);
    return {.blocks_x = blocks(rows),
            .blocks_y = blocks(parts(width / 8, threads)),
            .threads_x = threads};
  }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(hidden, hidden_row_stride, residual, residual_row_stride, out, out_row_stride, rows,
         narrow(width));
  }
};

}  // namespace monoref::device::launch
