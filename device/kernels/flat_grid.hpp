// Numbering threads and waves through a whole launch, and lanes in a wave.
#pragma once

#include <cstdint>

#include "device/simt.hpp"

namespace monoref::kernels {

/// This thread's number in a one-dimensional grid, and how many threads there are.
MONOREF_DEVICE std::int64_t thread_of_grid() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
MONOREF_DEVICE std::int64_t threads_of_grid() {
  return std::int64_t{gridDim.x} * blockDim.x;
}

/// This thread's number along x within its block row y, and how many there are: for kernels that
/// give each x of the grid a row, and its columns to all threads of all y.
MONOREF_DEVICE std::int64_t column_of_grid() {
  return std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
}
MONOREF_DEVICE std::int64_t columns_of_grid() {
  return std::int64_t{gridDim.y} * blockDim.x;
}

/// This wave's number in a one-dimensional grid of whole waves, and how many waves there are.
MONOREF_DEVICE std::int64_t wave_of_grid() {
  return std::int64_t{blockIdx.x} * (blockDim.x / simt::kWave) + simt::wave();
}
MONOREF_DEVICE std::int64_t waves_of_grid() {
  return std::int64_t{gridDim.x} * (blockDim.x / simt::kWave);
}

/// How many lanes a ballot names, and the lanes of a wave below this one.
MONOREF_DEVICE std::int32_t lanes_of(std::uint64_t ballot) {
  return __builtin_popcountll(ballot);
}
MONOREF_DEVICE std::uint64_t lanes_below() {
  return (std::uint64_t{1} << simt::lane()) - 1;
}

}  // namespace monoref::kernels
