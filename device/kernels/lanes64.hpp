// Sums over 64 lanes, in the order that the specification states for its waves of 64 (mono-decode
// section 7), on machines with waves of 64 and of 32 alike. Such a logical wave is 64 neighbouring
// threads of the block: one wave, or two, which then exchange through shared memory.
#pragma once

#include <cstdint>

#include "device/kernels/reductions.hpp"
#include "device/kernels/registers.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

constexpr int kLanes64 = 64;

/// This thread's place among its 64, and which 64 of the block they are.
MONOREF_DEVICE int lane_of_64() {
  return simt::linear_thread() % kLanes64;
}
MONOREF_DEVICE int wave_of_64() {
  return simt::linear_thread() / kLanes64;
}

/// Butterfly of 64 lanes for `count` sums at once: v = v + v[lane xor 32], then 16, 8, 4, 2, 1. All
/// lanes get the same bits. For blocks of a multiple of 64 threads in one dimension. `exchange` is
/// shared, count * threads numbers; another barrier must lie between two uses of it.
template <int count>
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void sums_of_64([[maybe_unused]] float* exchange,
                                                        float (&v)[count]) {
  if constexpr (simt::kWave == kLanes64) {
    MONOREF_UNROLL
    for (int i = 0; i < count; ++i) {
      if (MONOREF_FAULT(lanes64_ascending, "own", "64 lanes are added from the nearest on",
                        .stages = {"router"})) {
        for (int mask = 1; mask < kLanes64; mask *= 2) v[i] += simt::shuffle_xor(v[i], mask);
        continue;
      }
      v[i] += simt::shuffle_xor(v[i], kLanes64 / 2);
    }
    if (MONOREF_FAULT_AT(lanes64_ascending)) return;
  } else {
    const int threads = static_cast<int>(blockDim.x);
    const int thread = simt::linear_thread();
    MONOREF_UNROLL
    for (int i = 0; i < count; ++i) exchange[i * threads + thread] = v[i];
    __syncthreads();
    MONOREF_UNROLL
    for (int i = 0; i < count; ++i) v[i] += exchange[i * threads + (thread ^ kLanes64 / 2)];
  }
  MONOREF_UNROLL
  for (int i = 0; i < count; ++i) v[i] = group_sum(v[i]);
}

}  // namespace
}  // namespace monoref::kernels
