// Meeting the threads of one's wave only.
#pragma once

#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

/// Waits until all live lanes of the wave are here: what they wrote to shared memory before is seen
/// after it by the others. All live lanes of the wave come here.
#if defined(__HIP__)
MONOREF_DEVICE void wave_sync() {
  // The lanes go together, and their accesses to shared memory stay in order: it is the compiler
  // that must not move them.
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
#elif defined(__CUDACC__)
MONOREF_DEVICE void wave_sync() {
  __syncwarp();
}
#else
MONOREF_DEVICE void wave_sync(const simt::host::Site& site = simt::host::Site::current()) {
  simt::ballot(true, site);
}
#endif

}  // namespace
}  // namespace monoref::kernels
