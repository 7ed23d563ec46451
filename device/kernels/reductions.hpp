// Sums and maxima over threads in the orders that the specification states (mono-decode section 3).
// Those orders speak of groups of 32 lanes. A group is half a wave of 64 or a whole wave of 32, and
// an exchange with lane xor 1 .. 16 never leaves it, so that the bits do not depend on the wave.
#pragma once

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

constexpr int kGroupLanes = 32;
constexpr int kMaxGroups = 1024 / kGroupLanes;  // of a block

MONOREF_DEVICE int group_of_block() {
  return simt::linear_thread() / kGroupLanes;
}
MONOREF_DEVICE int groups_of_block() {
  return static_cast<int>(blockDim.x) / kGroupLanes;
}
MONOREF_DEVICE int lane_of_group() {
  return simt::linear_thread() % kGroupLanes;
}

/// Butterfly of a group: v = v + v[lane xor 16], then 8, 4, 2, 1. All lanes of a group get the same
/// bits, since a + b and b + a are the same.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE float group_sum(float v) {
  for (int mask = kGroupLanes / 2; mask > 0; mask /= 2) v += simt::shuffle_xor(v, mask);
  return v;
}

/// The largest value of a group; NaN if there is one.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE float group_max(float v) {
  for (int mask = kGroupLanes / 2; mask > 0; mask /= 2)
    v = max_or_nan(v, simt::shuffle_xor(v, mask));
  return v;
}

/// The two-level sum of a block: the butterfly of each group, then the butterfly of the groups'
/// sums, in group order, with zeros behind them. The block has whole waves and one dimension. Every
/// thread gets the sum. `sums` is shared, kMaxGroups numbers; another barrier must lie between two
/// uses of it.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE float block_sum(float v, float* sums) {
  const float of_group = group_sum(v);
  const int lane = lane_of_group();
  if (lane == 0) sums[group_of_block()] = of_group;
  __syncthreads();
  const float padding = MONOREF_FAULT(block_sum_padding_not_zero, "own",
                                      "lanes past the last warp's sum are not zero",
                                      .stages = {"residual_norm_quant"})
                            ? sums[0]
                            : 0.0F;
  return group_sum(lane < groups_of_block() ? sums[lane] : padding);
}

/// The largest value of a block; NaN if there is one. Terms as for `block_sum`, `v` not negative.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE float block_max(float v, float* largest) {
  const float of_group = group_max(v);
  const int lane = lane_of_group();
  if (lane == 0) largest[group_of_block()] = of_group;
  __syncthreads();
  return group_max(lane < groups_of_block() ? largest[lane] : 0.0F);
}

}  // namespace
}  // namespace monoref::kernels
