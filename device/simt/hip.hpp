// Kernels on AMD GPUs: included by device/simt.hpp only. Written against the compiler's builtins,
// so that a code object can be built where no ROCm is installed.
//
// Flags that the text relies on: -ffp-contract=off, -fhip-fp32-correctly-rounded-divide-sqrt,
// -fno-gpu-flush-denormals-to-zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/simt/types.hpp"

#define MONOREF_SIMT_VARIANT hip_wave64

#define MONOREF_DEVICE [[maybe_unused]] static inline __attribute__((device))
#define MONOREF_MEMBER __attribute__((device))
#define MONOREF_BLOCK_COLLECTIVE __attribute__((convergent))
#define MONOREF_WAVE_COLLECTIVE __attribute__((convergent))
#define MONOREF_KERNEL(max_threads, name) \
  extern "C" __attribute__((global))      \
  __attribute__((amdgpu_flat_work_group_size(1, max_threads))) void name
#define MONOREF_REGISTER(name) static_assert(true, #name)
#define MONOREF_SHARED(type, name, count) \
  __attribute__((shared)) __attribute__((aligned(16))) type name[count]
#define MONOREF_DYNAMIC_SHARED(type, name)                             \
  extern __attribute__((shared))                                       \
  __attribute__((aligned(16))) unsigned char monoref_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(monoref_dynamic_shared)
#define MONOREF_FAULT(name, bug_case, what, ...) false
#define MONOREF_FAULT_AT(name) false
#define MONOREF_FAULT_ELSEWHERE(name, bug_case, what, ...) static_assert(true)

namespace monoref::simt::hip {

// Coordinates read like HIP's: threadIdx.x is a property that calls a builtin.
#define MONOREF_SIMT_COORDINATE(axis, expression)            \
  __declspec(property(get = get_##axis)) std::uint32_t axis; \
  MONOREF_MEMBER static inline std::uint32_t get_##axis() {  \
    return expression;                                       \
  }

struct ThreadIndex {
  MONOREF_SIMT_COORDINATE(x, __builtin_amdgcn_workitem_id_x())
  MONOREF_SIMT_COORDINATE(y, __builtin_amdgcn_workitem_id_y())
  MONOREF_SIMT_COORDINATE(z, __builtin_amdgcn_workitem_id_z())
};

struct BlockIndex {
  MONOREF_SIMT_COORDINATE(x, __builtin_amdgcn_workgroup_id_x())
  MONOREF_SIMT_COORDINATE(y, __builtin_amdgcn_workgroup_id_y())
  MONOREF_SIMT_COORDINATE(z, __builtin_amdgcn_workgroup_id_z())
};

struct BlockSize {
  MONOREF_SIMT_COORDINATE(x, __builtin_amdgcn_workgroup_size_x())
  MONOREF_SIMT_COORDINATE(y, __builtin_amdgcn_workgroup_size_y())
  MONOREF_SIMT_COORDINATE(z, __builtin_amdgcn_workgroup_size_z())
};

/// The block counts are the first three words of the implicit arguments (code object version 5 on).
MONOREF_MEMBER inline std::uint32_t block_count(int axis) {
  using Word = const __attribute__((address_space(4))) std::uint32_t;
  return ((Word*)__builtin_amdgcn_implicitarg_ptr())[axis];
}

struct GridSize {
  MONOREF_SIMT_COORDINATE(x, block_count(0))
  MONOREF_SIMT_COORDINATE(y, block_count(1))
  MONOREF_SIMT_COORDINATE(z, block_count(2))
};

#undef MONOREF_SIMT_COORDINATE

}  // namespace monoref::simt::hip

extern const __attribute__((device))
__attribute__((weak)) monoref::simt::hip::ThreadIndex threadIdx;
extern const __attribute__((device)) __attribute__((weak)) monoref::simt::hip::BlockIndex blockIdx;
extern const __attribute__((device)) __attribute__((weak)) monoref::simt::hip::BlockSize blockDim;
extern const __attribute__((device)) __attribute__((weak)) monoref::simt::hip::GridSize gridDim;

/// The barrier of the block; shared and global writes before it are seen after it.
MONOREF_MEMBER inline void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

namespace monoref::simt {
inline namespace MONOREF_SIMT_VARIANT {

constexpr int kWave = 64;

MONOREF_MEMBER inline int linear_thread() {
  return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

MONOREF_MEMBER inline int lane() {
  return static_cast<int>(__builtin_amdgcn_mbcnt_hi(~0U, __builtin_amdgcn_mbcnt_lo(~0U, 0U)));
}

MONOREF_MEMBER inline void demand_aligned(const void*, std::size_t) {}

template <LaneValue T>
MONOREF_MEMBER inline T shuffle(T value, int source) {
  if constexpr (sizeof(T) == 4) {
    const int bits = __builtin_amdgcn_ds_bpermute(source * 4, __builtin_bit_cast(int, value));
    return __builtin_bit_cast(T, bits);
  } else {
    struct Halves {
      int low, high;
    };
    const auto halves = __builtin_bit_cast(Halves, value);
    const Halves moved{__builtin_amdgcn_ds_bpermute(source * 4, halves.low),
                       __builtin_amdgcn_ds_bpermute(source * 4, halves.high)};
    return __builtin_bit_cast(T, moved);
  }
}

MONOREF_MEMBER inline std::uint64_t ballot(bool predicate) {
  return __builtin_amdgcn_ballot_w64(predicate);
}

template <AtomicSum T>
MONOREF_MEMBER inline T atomic_add(T* at, T value) {
  return __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

template <AtomicWord T>
MONOREF_MEMBER inline T atomic_max(T* at, T value) {
  return __hip_atomic_fetch_max(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

template <AtomicWord T>
MONOREF_MEMBER inline T atomic_min(T* at, T value) {
  return __hip_atomic_fetch_min(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

template <AtomicWord T>
MONOREF_MEMBER inline T atomic_exchange(T* at, T value) {
  return __hip_atomic_exchange(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

template <AtomicWord T>
MONOREF_MEMBER inline T atomic_compare_exchange(T* at, T expected, T value) {
  __hip_atomic_compare_exchange_strong(at, &expected, value, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  return expected;
}

template <AtomicWord T>
MONOREF_MEMBER inline T load_acquire(const T* at) {
  return __hip_atomic_load(at, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}

template <AtomicWord T>
MONOREF_MEMBER inline void store_release(T* at, T value) {
  __hip_atomic_store(at, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}

MONOREF_MEMBER inline void relax() {
  __builtin_amdgcn_s_sleep(1);
}
MONOREF_MEMBER inline float fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
MONOREF_MEMBER inline float sqrt_rn(float x) {
  return __builtin_sqrtf(x);
}

}  // namespace MONOREF_SIMT_VARIANT
}  // namespace monoref::simt

#include "device/simt/gpu_lanes.hpp"
