// Prefix sums over the lanes of a wave.
#pragma once

#include <cstdint>

#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

/// Inclusive prefix sum of one number a lane over the wave.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE std::uint32_t wave_inclusive_sum(std::uint32_t value) {
  for (int distance = 1; distance < simt::kWave; distance *= 2) {
    const std::uint32_t below = simt::shuffle_up(value, distance);
    if (simt::lane() >= distance) value += below;
  }
  return value;
}

}  // namespace
}  // namespace monoref::kernels
