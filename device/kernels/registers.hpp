// What decides how many registers a kernel takes: how far loops are taken apart, when results are
// computed, and where arguments wait.
#pragma once

#include <cstdint>

#include "device/simt.hpp"

// Compilers have these pragmas under three names.
//   MONOREF_UNROLL       before a loop that must come apart: it indexes registers
//   MONOREF_KEEP_LOOP    before a loop that must not: its body is long already
#if defined(__CUDACC__)
#define MONOREF_UNROLL _Pragma("unroll")
#define MONOREF_KEEP_LOOP _Pragma("unroll 1")
#elif defined(__clang__)
#define MONOREF_UNROLL _Pragma("clang loop unroll(full)")
#define MONOREF_KEEP_LOOP _Pragma("clang loop unroll(disable)")
#else
#define MONOREF_UNROLL
#define MONOREF_KEEP_LOOP
#endif

// MONOREF_RESIDENT_KERNEL(threads, blocks): MONOREF_KERNEL of which a multiprocessor is to hold so
// many blocks; by itself the compiler for NVIDIA would take more registers than that leaves.
#if defined(__CUDACC__)
#define MONOREF_RESIDENT_KERNEL(max_threads, blocks) \
  extern "C" __global__ __launch_bounds__(max_threads, blocks) void
#else
#define MONOREF_RESIDENT_KERNEL(max_threads, blocks) MONOREF_KERNEL(max_threads)
#endif

namespace monoref::kernels {

/// Has the value computed here, and not where it is needed. Of a long run of loads and fmas, the
/// compiler for AMD puts off the fmas to the end, and runs out of registers for what they wait
/// with.
MONOREF_DEVICE void compute_here([[maybe_unused]] float& value) {
#if defined(__HIP__)
  __asm__ volatile("" : "+v"(value));
#endif
}

/// The same for an integer. Of one that does not change in a loop, what is worked out from it is
/// not worked out before the loop, to be kept there.
MONOREF_DEVICE void compute_here([[maybe_unused]] std::int32_t& value) {
#if defined(__HIP__)
  __asm__ volatile("" : "+v"(value));
#elif defined(__CUDACC__)
  __asm__ volatile("" : "+r"(value));
#endif
}

/// A number that all lanes of the wave have, known to be that. Of what comes from shared memory the
/// compiler for AMD cannot tell, and keeps a mask of lanes for every branch and loop on it.
MONOREF_DEVICE std::int32_t same_in_wave(std::int32_t number) {
#if defined(__HIP__)
  return __builtin_amdgcn_readfirstlane(number);
#else
  return number;
#endif
}

/// A number of this thread that has to be worked with anew in each turn of a loop. Otherwise the
/// compiler for AMD takes whatever follows from it out of the loop, and runs out of registers.
MONOREF_DEVICE int in_this_turn(int number) {
#if defined(__HIP__)
  __asm__ volatile("" : "+v"(number));
#endif
  return number;
}

/// The arguments of a launch, which outlive the result; on AMD moved to shared memory, `kept`. A
/// kernel that loops over its work needs all of them again in each turn; there, they and what is
/// worked out from them would not fit into the scalar registers. (CUDA has them in constant memory
/// anyway.) All threads of the block come here.
template <class Arguments>
MONOREF_DEVICE const Arguments& kept_in_shared([[maybe_unused]] Arguments* kept,
                                               const Arguments& arguments) {
#if defined(__HIP__)
  if (threadIdx.x == 0) *kept = arguments;
  __syncthreads();
  return *kept;
#else
  return arguments;
#endif
}

/// A pointer out of such arguments, known to point to global memory. Without that the compiler for
/// AMD takes loads that serve all memories and wait for all of them.
template <class T>
MONOREF_DEVICE T* in_global(T* pointer) {
#if defined(__HIP__)
  auto* global = (__attribute__((address_space(1))) T*)pointer;
  __asm__("" : "+v"(global));  // or the two casts would undo each other
  return (T*)global;
#else
  return pointer;
#endif
}

}  // namespace monoref::kernels
