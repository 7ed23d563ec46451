// step_counter: see device/kernels/step_counter.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct StepCounter {
  std::int32_t* counter;
  std::int64_t wanted_blocks = 1;  ///< one thread counts, however many there are

  static constexpr std::string_view kernel() { return "monoref_step_counter"; }
  Grid grid(int wave) const {
    return {.blocks_x = blocks(wanted_blocks), .threads_x = static_cast<std::uint32_t>(wave)};
  }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(counter);
  }
};

}  // namespace monoref::device::launch
