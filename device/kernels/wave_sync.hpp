// A barrier for one wave.
#pragma once

#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

/// A barrier for the live lanes of a wave: what one wrote to shared memory before it, the others
/// see after it.
#if defined(__HIP__)
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE void wave_sync() {
  // Lanes run in lockstep, and their accesses to shared memory stay in order: only the compiler has
  // to be kept from moving them.
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
#elif defined(__CUDACC__)
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE void wave_sync() {
  __syncwarp();
}
#else
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE void wave_sync(
    const simt::host::Site& site = simt::host::Site::current()) {
  simt::ballot(true, site);
}
#endif

}  // namespace
}  // namespace monoref::kernels
