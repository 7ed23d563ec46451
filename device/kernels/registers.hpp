// What decides how many registers a kernel takes: unrolling, hoisting, and where arguments are
// kept.
#pragma once

#include <cstdint>

#include "device/simt.hpp"

// Compilers have these pragmas under three names.
//   MONOREF_UNROLL       before a loop that must be unrolled: it indexes registers
//   MONOREF_KEEP_LOOP    before a loop that must stay a loop: its body is long
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

// MONOREF_RESIDENT_KERNEL(threads, blocks, name): a MONOREF_KERNEL of which a multiprocessor is to
// hold `blocks` blocks at once; left alone, the compiler for NVIDIA takes more registers than that
// allows.
#if defined(__CUDACC__)
#define MONOREF_RESIDENT_KERNEL(max_threads, blocks, name) \
  MONOREF_SIMT_LINKAGE __global__ __launch_bounds__(max_threads, blocks) void name
#else
#define MONOREF_RESIDENT_KERNEL(max_threads, blocks, name) MONOREF_KERNEL(max_threads, name)
#endif

namespace monoref::kernels {

/// Forces a value to be computed here and not at its use. In a long sequence of loads and fmas the
/// compiler for AMD sinks the fmas to the end, and runs out of registers for their operands.
MONOREF_DEVICE void compute_here([[maybe_unused]] float& value) {
#if defined(__HIP__)
  __asm__ volatile("" : "+v"(value));
#endif
}

/// Same for an integer: keeps the compiler from hoisting values that derive from a loop-invariant
/// integer, which would occupy registers throughout the loop.
MONOREF_DEVICE void compute_here([[maybe_unused]] std::int32_t& value) {
#if defined(__HIP__)
  __asm__ volatile("" : "+v"(value));
#elif defined(__CUDACC__)
  __asm__ volatile("" : "+r"(value));
#endif
}

/// Marks a value as wave-uniform. The compiler for AMD cannot prove that of values loaded from
/// shared memory, and would mask lanes at every branch and loop on them.
MONOREF_DEVICE std::int32_t same_in_wave(std::int32_t number) {
#if defined(__HIP__)
  return __builtin_amdgcn_readfirstlane(number);
#else
  return number;
#endif
}

/// Hides that a value of this thread does not change in a loop. Otherwise the compiler for AMD
/// hoists whatever derives from it, and runs out of registers.
MONOREF_DEVICE int in_this_turn(int number) {
#if defined(__HIP__)
  __asm__ volatile("" : "+v"(number));
#endif
  return number;
}

/// The arguments of a launch, on AMD copied to shared memory, `kept`; they must outlive the result.
/// A kernel that loops over its work needs all of them in each iteration; there they, and the
/// values that derive from them, would not fit into the scalar registers. (CUDA keeps them in
/// constant memory anyway.)
template <class Arguments>
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE const Arguments& kept_in_shared(
    [[maybe_unused]] Arguments* kept, const Arguments& arguments) {
#if defined(__HIP__)
  if (threadIdx.x == 0) *kept = arguments;
  __syncthreads();
  return *kept;
#else
  return arguments;
#endif
}

/// Marks a pointer from such arguments as one to global memory. Otherwise the compiler for AMD
/// emits flat loads, which wait for every kind of memory.
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
