// Kernels on NVIDIA GPUs: included by device/simt.hpp only. A small subset of the HIP names over
// CUDA, which has most of them already.
//
// Flags that the text relies on: -fmad=false; nvcc's defaults -ftz=false, -prec-div=true and
// -prec-sqrt=true stay.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "device/simt/fault_hash.hpp"
#include "device/simt/types.hpp"

#ifndef MONOREF_SIMT_FAULTS
#define MONOREF_SIMT_FAULTS 0
#endif

#if MONOREF_SIMT_FAULTS
#define MONOREF_SIMT_VARIANT cuda_faults
#else
#define MONOREF_SIMT_VARIANT cuda_wave32
#endif

namespace monoref::simt::cuda {

/// Enters a kernel of this program for the nvidia backend. `active_fault` is the device variable
/// that its text asks for the fault in force; null in a build without faults.
void register_kernel(std::string_view name, const void* function, const void* active_fault);

struct Registrar {
  Registrar(std::string_view name, const void* function, const void* active_fault) {
    register_kernel(name, function, active_fault);
  }
};

}  // namespace monoref::simt::cuda

#define MONOREF_SIMT_JOIN_(a, b) a##b
#define MONOREF_SIMT_JOIN(a, b) MONOREF_SIMT_JOIN_(a, b)

#define MONOREF_DEVICE [[maybe_unused]] static inline __device__
#define MONOREF_MEMBER __device__
#define MONOREF_BLOCK_COLLECTIVE
#define MONOREF_WAVE_COLLECTIVE
#if MONOREF_SIMT_FAULTS
// Of two builds of a text in one program, one must keep its symbols to itself.
#define MONOREF_SIMT_LINKAGE static
#define MONOREF_SIMT_ACTIVE_FAULT (&::monoref::simt::MONOREF_SIMT_VARIANT::active_fault)
#define MONOREF_FAULT(name, bug_case, what, ...) MONOREF_FAULT_AT(name)
#define MONOREF_FAULT_AT(name)                            \
  (::monoref::simt::MONOREF_SIMT_VARIANT::active_fault == \
   ::std::integral_constant<::std::uint64_t, ::monoref::simt::fault_hash(#name)>::value)
#else
#define MONOREF_SIMT_LINKAGE extern "C"
#define MONOREF_SIMT_ACTIVE_FAULT nullptr
#define MONOREF_FAULT(name, bug_case, what, ...) false
#define MONOREF_FAULT_AT(name) false
#endif
#define MONOREF_FAULT_ELSEWHERE(name, bug_case, what, ...) static_assert(true)
#define MONOREF_KERNEL(max_threads, name) \
  MONOREF_SIMT_LINKAGE __global__ __launch_bounds__(max_threads) void name
#define MONOREF_REGISTER(name)                                                                   \
  static const ::monoref::simt::cuda::Registrar MONOREF_SIMT_JOIN(monoref_registrar_, __LINE__)( \
      #name, reinterpret_cast<const void*>(&name), MONOREF_SIMT_ACTIVE_FAULT)
#define MONOREF_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define MONOREF_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char monoref_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(monoref_dynamic_shared)

namespace monoref::simt {
inline namespace MONOREF_SIMT_VARIANT {

#if MONOREF_SIMT_FAULTS
/// fault_hash of the fault in force, 0 for none. The nvidia backend sets it.
static __constant__ std::uint64_t active_fault;
#endif

constexpr int kWave = 32;

// Every cross-lane operation names all lanes: lanes that have exited do not count for the hardware,
// and the strict rule brings all others.
constexpr unsigned kAllLanes = 0xffffffffU;

MONOREF_MEMBER inline int linear_thread() {
  return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

MONOREF_MEMBER inline int lane() {
  return linear_thread() % kWave;
}

MONOREF_MEMBER inline void demand_aligned(const void*, std::size_t) {}

template <class T>
using ShuffleBits = std::conditional_t<sizeof(T) == 4, unsigned, unsigned long long>;

template <LaneValue T>
MONOREF_MEMBER inline T shuffle(T value, int source) {
  const auto bits = __builtin_bit_cast(ShuffleBits<T>, value);
  return __builtin_bit_cast(T, __shfl_sync(kAllLanes, bits, source));
}

MONOREF_MEMBER inline std::uint64_t ballot(bool predicate) {
  return __ballot_sync(kAllLanes, predicate);
}

/// The type of the same meaning that CUDA's atomics are declared for.
template <class T>
using AtomicType =
    std::conditional_t<sizeof(T) == 4, T,
                       std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>>;

template <class T>
MONOREF_MEMBER inline AtomicType<T>* atomic_pointer(T* at) {
  return reinterpret_cast<AtomicType<T>*>(at);
}

template <AtomicSum T>
MONOREF_MEMBER inline T atomic_add(T* at, T value) {
  return static_cast<T>(atomicAdd(atomic_pointer(at), static_cast<AtomicType<T>>(value)));
}

template <AtomicWord T>
MONOREF_MEMBER inline T atomic_max(T* at, T value) {
  return static_cast<T>(atomicMax(atomic_pointer(at), static_cast<AtomicType<T>>(value)));
}

template <AtomicWord T>
MONOREF_MEMBER inline T atomic_min(T* at, T value) {
  return static_cast<T>(atomicMin(atomic_pointer(at), static_cast<AtomicType<T>>(value)));
}

template <AtomicWord T>
MONOREF_MEMBER inline T atomic_exchange(T* at, T value) {
  using Bits = ShuffleBits<T>;
  return static_cast<T>(atomicExch(reinterpret_cast<Bits*>(at), static_cast<Bits>(value)));
}

template <AtomicWord T>
MONOREF_MEMBER inline T atomic_compare_exchange(T* at, T expected, T value) {
  using Bits = ShuffleBits<T>;
  return static_cast<T>(atomicCAS(reinterpret_cast<Bits*>(at), static_cast<Bits>(expected),
                                  static_cast<Bits>(value)));
}

template <AtomicWord T>
MONOREF_MEMBER inline T load_acquire(const T* at) {
  ShuffleBits<T> bits;
  if (MONOREF_FAULT_AT(flags_ordered_on_one_device)) {
    if constexpr (sizeof(T) == 4)
      asm volatile("ld.acquire.gpu.b32 %0, [%1];" : "=r"(bits) : "l"(at) : "memory");
    else
      asm volatile("ld.acquire.gpu.b64 %0, [%1];" : "=l"(bits) : "l"(at) : "memory");
    return static_cast<T>(bits);
  }
  if constexpr (sizeof(T) == 4)
    asm volatile("ld.acquire.sys.b32 %0, [%1];" : "=r"(bits) : "l"(at) : "memory");
  else
    asm volatile("ld.acquire.sys.b64 %0, [%1];" : "=l"(bits) : "l"(at) : "memory");
  return static_cast<T>(bits);
}

template <AtomicWord T>
MONOREF_MEMBER inline void store_release(T* at, T value) {
  const auto bits = static_cast<ShuffleBits<T>>(value);
  if (MONOREF_FAULT_AT(flags_stored_plainly)) {
    *at = value;
    return;
  }
  if (MONOREF_FAULT_AT(flags_ordered_on_one_device)) {
    if constexpr (sizeof(T) == 4)
      asm volatile("st.release.gpu.b32 [%0], %1;" : : "l"(at), "r"(bits) : "memory");
    else
      asm volatile("st.release.gpu.b64 [%0], %1;" : : "l"(at), "l"(bits) : "memory");
    return;
  }
  if constexpr (sizeof(T) == 4)
    asm volatile("st.release.sys.b32 [%0], %1;" : : "l"(at), "r"(bits) : "memory");
  else
    asm volatile("st.release.sys.b64 [%0], %1;" : : "l"(at), "l"(bits) : "memory");
}

MONOREF_MEMBER inline void relax() {
  __nanosleep(100);
}
MONOREF_MEMBER inline float fma(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
MONOREF_MEMBER inline float sqrt_rn(float x) {
  return __fsqrt_rn(x);
}

}  // namespace MONOREF_SIMT_VARIANT
}  // namespace monoref::simt

#include "device/simt/gpu_lanes.hpp"
