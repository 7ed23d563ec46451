// step_counter: counts the decode steps of a runner.
//
// Source of the rule: mono-decode section 2: the counter grows by one a step.

#include <cstdint>

#include "device/simt.hpp"

namespace monoref::kernels {

// In and out  counter int32 [1]; after 2^31 - 1 comes -2^31
// Launch      one thread counts, whatever the grid and the block are.
MONOREF_KERNEL(1024, monoref_step_counter)(std::int32_t* counter) {
  if (blockIdx.x != 0 || blockIdx.y != 0 || blockIdx.z != 0 || simt::linear_thread() != 0) return;
  const std::uint32_t step =
      MONOREF_FAULT(step_counter_not_advanced, "own", "the counter stays") ? 0 : 1;
  *counter = static_cast<std::int32_t>(static_cast<std::uint32_t>(*counter) + step);
}
MONOREF_REGISTER(monoref_step_counter);

}  // namespace monoref::kernels
