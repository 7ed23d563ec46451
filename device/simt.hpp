// The only header a kernel sees. One kernel text, three kinds of machine:
//
//   host   g++ -x c++; for waves of 64 and of 32, each without and with the planted faults
//   HIP    clang -x hip for gfx942 and gfx950, waves of 64
//   CUDA   nvcc -x cu for sm_90, waves of 32; once as shipped, once with the planted faults
//
// A kernel file reads
//
//   #include "device/simt.hpp"
//
//   MONOREF_KERNEL(256, monoref_scale)(const float* in, float* out, std::int64_t n) { ... }
//   MONOREF_REGISTER(monoref_scale);
//
// and may use threadIdx, blockIdx, blockDim, gridDim and __syncthreads() as in HIP, and what this
// header gives it in namespace simt. Kernel names start with monoref_ (they are C symbols on GPUs),
// parameters are trivially copyable values, 256 is the most threads that a block may have, and
// MONOREF_REGISTER stands anywhere behind its kernel.
//
// Functions that kernels call are written `MONOREF_DEVICE int f(int x)`, templates as
// `template <class T> MONOREF_DEVICE T f(T x)`. A class with member functions lives in an unnamed
// namespace, its members marked MONOREF_MEMBER. Both rules serve the same end: several variants
// of a text are linked into one program, so nothing in it may have external linkage.
//
// The strict rule, which the host executor enforces and every kernel must obey:
//   * a barrier is reached, at one and the same place in the text, by all live threads of the
//   block;
//   * a cross-lane operation is reached likewise by all live lanes of the wave;
//   * no lane reads from a lane that has exited;
//   * a loop that waits for another thread calls simt::relax() in its body.
// A live thread is one that has not returned from the kernel. A function with a barrier in it says
// so behind MONOREF_DEVICE: MONOREF_BLOCK_COLLECTIVE, all live threads of the block call it; one
// with cross-lane operations: MONOREF_WAVE_COLLECTIVE, all live lanes of the wave do.
//
// Numbers: IEEE binary32, subnormals kept, no contraction. `/` and simt::sqrt_rn are correctly
// rounded, and multiply and add are fused only where simt::fma is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__HIP__)
#include "device/simt/hip.hpp"
#elif defined(__CUDACC__)
#include "device/simt/cuda.hpp"
#else
#include "device/simt/host.hpp"
#endif

// Each target header defines, besides the macros:
//
// clang-format off
//   constexpr int kWave                        lanes of a wave
//   int lane()                                 index in the wave, over the linear thread index
//   int linear_thread()                        x + blockDim.x * (y + blockDim.y * z)
//   T shuffle(T v, int source)                 v of lane `source`, 0 <= source < kWave
//   T shuffle_xor(T v, int mask)               v of lane() ^ mask, 0 <= mask < kWave
//   T shuffle_up(T v, int n)                   v of lane() - n; a lane's own v where there is none
//   T shuffle_down(T v, int n)                 v of lane() + n; likewise
//   std::uint64_t ballot(bool p)               bit i: lane i is live and its p holds
//   bool any(bool p), bool all(bool p)         over the live lanes of the wave
//   T atomic_add(T* at, T v)                   int32, uint32, uint64, float
//   T atomic_max(T* at, T v), atomic_min       int32, uint32, int64, uint64
//   T atomic_exchange(T* at, T v)              int32, uint32, int64, uint64
//   T atomic_compare_exchange(T* at, T expected, T v)    likewise
//   T load_acquire(const T* at)                4 or 8 bytes, visible to all blocks and ranks
//   void store_release(T* at, T v)             likewise
//   void relax()                               body of a loop that waits for another thread
//   float fma(float a, float b, float c)       one rounding
//   float sqrt_rn(float x)                     correctly rounded
//   void demand_aligned(const void* p, n)      host: a crash verdict where p is not a multiple of n
// clang-format on
//
// shuffle* take trivially copyable T of 4 or 8 bytes. Atomics work on global and on shared memory,
// return the value found, and order nothing but themselves.
//
//   MONOREF_SHARED(type, name, count);         type name[count] in the block's shared memory
//   MONOREF_DYNAMIC_SHARED(type, name);        type* name, the launch's dynamic shared memory
//   MONOREF_FAULT(name, bug_case, what)        a condition: false in every shipped build; in the
//                                              variant with faults true while that fault is
//                                              active. Declares it, see device/fault.hpp
//   MONOREF_FAULT_AT(name)                     the same where a declared fault stands again
//   MONOREF_FAULT_ELSEWHERE(name, bug_case, what);    declares a fault that a target header holds
//
// Shared memory is aligned to 16 bytes, and its content is undefined (on the host: poisoned) when
// the block starts.
namespace monoref::simt {
inline namespace MONOREF_SIMT_VARIANT {

/// Index of the thread's wave in its block.
MONOREF_MEMBER inline int wave() {
  return linear_thread() / kWave;
}

/// The bits of `from` as a value of another type of the same size.
template <class To, class From>
MONOREF_MEMBER inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

/// 16 bytes that move in one load or store.
struct alignas(16) Vec16 {
  std::uint32_t word[4];
};

/// Loads 16 bytes. `from` is a multiple of 16.
MONOREF_MEMBER inline Vec16 load16(const void* from) {
  demand_aligned(from, 16);
  return *static_cast<const Vec16*>(from);
}

/// Stores 16 bytes. `to` is a multiple of 16.
MONOREF_MEMBER inline void store16(void* to, Vec16 value) {
  demand_aligned(to, 16);
#if defined(__HIP__)
  // As a vector: the compiler takes a store of a struct apart and joins the words as it likes.
  using Words = std::uint32_t __attribute__((vector_size(16), may_alias));
  *static_cast<Words*>(to) = __builtin_bit_cast(Words, value);
#else
  *static_cast<Vec16*>(to) = value;
#endif
}

}  // namespace MONOREF_SIMT_VARIANT
}  // namespace monoref::simt

namespace simt = monoref::simt;
