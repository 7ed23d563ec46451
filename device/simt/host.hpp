// Kernels on the CPU: included by device/simt.hpp only. The executor behind these declarations is
// device/backends/host_executor.cpp.
//
// One text is compiled up to four times into one program. MONOREF_SIMT_WAVE (64 or 32) and
// MONOREF_SIMT_FAULTS (0 or 1) select the variant; everything that depends on them lives in an
// inline namespace named after it, so that no two variants share a symbol.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string_view>
#include <type_traits>
#include <utility>

#include "device/fault.hpp"
#include "device/simt/fault_hash.hpp"
#include "device/simt/types.hpp"

#ifndef MONOREF_SIMT_WAVE
#define MONOREF_SIMT_WAVE 64
#endif
#ifndef MONOREF_SIMT_FAULTS
#define MONOREF_SIMT_FAULTS 0
#endif

#if MONOREF_SIMT_FAULTS
#define MONOREF_SIMT_VARIANT MONOREF_SIMT_JOIN(host_faults, MONOREF_SIMT_WAVE)
#elif MONOREF_SIMT_WAVE == 64
#define MONOREF_SIMT_VARIANT host_wave64
#else
#define MONOREF_SIMT_VARIANT host_wave32
#endif

namespace monoref::simt::host {

/// Where in a kernel's text a thread meets others. Two threads meet if the places are the same.
using Site = std::source_location;

struct Index3 {
  std::uint32_t x = 0, y = 0, z = 0;
};

/// One compiled kernel of one variant.
struct KernelEntry {
  std::string_view name;
  int wave;
  bool with_faults;
  std::uint32_t max_threads;
  const std::uint32_t* argument_sizes;
  std::uint32_t argument_count;
  /// Runs the kernel for the current thread; arguments point to values aligned to 16 bytes.
  void (*run)(const void* const* arguments);
};

/// Enters a kernel. Two of one name and variant, or a limit that no block can have, end the program
/// with a message.
void register_kernel(KernelEntry entry);

/// Waits until all live threads of the block are at `site`.
void barrier(const Site& site);
/// Meets the live lanes of the wave at `site`, each with a value, and returns that of `source`.
std::uint64_t shuffle_bits(std::uint64_t value, int source, const Site& site);
/// Meets the live lanes of the wave at `site`, and returns one bit a lane.
std::uint64_t ballot_bits(bool predicate, const Site& site);
/// Lets other threads run.
void relax();
/// The shared array that belongs to `key`, the same address for all threads of the block.
void* shared_array(const void* key, const char* name, std::size_t bytes);
/// Ends the launch with a verdict: an access of `bytes` at an address that is no multiple of it.
[[noreturn]] void misaligned(const void* address, std::size_t bytes);

/// Whether this CPU multiplies and adds in one instruction.
extern const bool has_fma_instruction;

/// Hash of the fault in force; 0 for none.
extern constinit std::uint64_t active_fault;

/// The dynamic shared memory of the block whose thread runs.
extern constinit thread_local void* dynamic_shared_memory [[gnu::tls_model("initial-exec")]];
extern constinit thread_local std::uint32_t linear_thread_index [[gnu::tls_model("initial-exec")]];

/// Calls `kernel` with arguments taken from untyped memory.
template <auto kernel>
struct Invoker;

template <class... Args, void (*kernel)(Args...)>
struct Invoker<kernel> {
  static_assert((std::is_trivially_copyable_v<Args> && ...), "kernel parameters are plain values");
  static_assert(((alignof(Args) <= 16) && ...), "kernel parameters are aligned to at most 16");
  static constexpr std::array<std::uint32_t, sizeof...(Args)> kSizes{sizeof(Args)...};

  static void run([[maybe_unused]] const void* const* arguments) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      kernel(*static_cast<const Args*>(arguments[I])...);
    }(std::index_sequence_for<Args...>{});
  }
};

/// Registers `kernel` of the variant being compiled when the program starts.
template <auto kernel, int wave, bool with_faults>
struct Registrar {
  Registrar(std::string_view name, std::uint32_t max_threads) {
    register_kernel({name, wave, with_faults, max_threads, Invoker<kernel>::kSizes.data(),
                     static_cast<std::uint32_t>(Invoker<kernel>::kSizes.size()),
                     &Invoker<kernel>::run});
  }
};

}  // namespace monoref::simt::host

extern constinit thread_local monoref::simt::host::Index3 threadIdx
    [[gnu::tls_model("initial-exec")]];
extern constinit thread_local monoref::simt::host::Index3 blockIdx
    [[gnu::tls_model("initial-exec")]];
extern constinit thread_local monoref::simt::host::Index3 blockDim
    [[gnu::tls_model("initial-exec")]];
extern constinit thread_local monoref::simt::host::Index3 gridDim
    [[gnu::tls_model("initial-exec")]];

/// The barrier of the block, under its HIP name.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
inline void __syncthreads(const std::source_location& site = std::source_location::current()) {
  monoref::simt::host::barrier(site);
}

// NOLINTBEGIN(bugprone-macro-parentheses): the arguments are types and names.
#define MONOREF_SIMT_JOIN_(a, b) a##b
#define MONOREF_SIMT_JOIN(a, b) MONOREF_SIMT_JOIN_(a, b)

#define MONOREF_DEVICE [[maybe_unused]] static inline
#define MONOREF_MEMBER
#define MONOREF_BLOCK_COLLECTIVE
#define MONOREF_WAVE_COLLECTIVE
#define MONOREF_KERNEL(max_threads, name)                                    \
  static constexpr ::std::uint32_t monoref_max_threads_##name = max_threads; \
  static void name
#define MONOREF_REGISTER(name)                                            \
  static const ::monoref::simt::host::Registrar<&name, MONOREF_SIMT_WAVE, \
                                                MONOREF_SIMT_FAULTS != 0> \
  MONOREF_SIMT_JOIN(monoref_registrar_, __LINE__) {                       \
    #name, monoref_max_threads_##name                                     \
  }

// The key is a variable of its own for each declaration; only its address matters.
#define MONOREF_SHARED(type, name, count)                                     \
  static_assert(::std::is_trivially_copyable_v<type> && alignof(type) <= 16); \
  static char monoref_shared_key_##name = 0;                                  \
  auto& name = *static_cast<::std::add_pointer_t<type[count]>>(               \
      ::monoref::simt::host::shared_array(&monoref_shared_key_##name, #name, sizeof(type[count])))
#define MONOREF_DYNAMIC_SHARED(type, name)                                    \
  static_assert(::std::is_trivially_copyable_v<type> && alignof(type) <= 16); \
  type* const name = static_cast<type*>(::monoref::simt::host::dynamic_shared_memory)

// NOLINTEND(bugprone-macro-parentheses)

#if MONOREF_SIMT_FAULTS
#define MONOREF_IS_ACTIVE_(name)          \
  (::monoref::simt::host::active_fault == \
   ::std::integral_constant<::std::uint64_t, ::monoref::simt::fault_hash(#name)>::value)
#define MONOREF_FAULT(name, ...) \
  (static_cast<void>(MONOREF_FAULT_NAME(name, __VA_ARGS__)), MONOREF_IS_ACTIVE_(name))
#define MONOREF_FAULT_AT(name) \
  (static_cast<void>(MONOREF_FAULT_NAME_AT(name)), MONOREF_IS_ACTIVE_(name))
#define MONOREF_FAULT_ELSEWHERE(name, ...)                            \
  [[maybe_unused]] static const ::std::string_view MONOREF_SIMT_JOIN( \
      monoref_elsewhere_, __LINE__) = MONOREF_FAULT_NAME(name, __VA_ARGS__)
#else
#define MONOREF_FAULT(name, bug_case, what, ...) false
#define MONOREF_FAULT_AT(name) false
#define MONOREF_FAULT_ELSEWHERE(name, bug_case, what, ...) static_assert(true)
#endif

namespace monoref::simt {
inline namespace MONOREF_SIMT_VARIANT {

constexpr int kWave = MONOREF_SIMT_WAVE;

inline int linear_thread() {
  return static_cast<int>(host::linear_thread_index);
}
inline int lane() {
  return linear_thread() % kWave;
}

inline void demand_aligned(const void* address, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) host::misaligned(address, bytes);
}

template <LaneValue T>
T shuffle(T value, int source, const host::Site& site = host::Site::current()) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  const auto bits = host::shuffle_bits(__builtin_bit_cast(Bits, value), source, site);
  return __builtin_bit_cast(T, static_cast<Bits>(bits));
}

template <LaneValue T>
T shuffle_xor(T value, int mask, const host::Site& site = host::Site::current()) {
  return shuffle(value, lane() ^ mask, site);
}

template <LaneValue T>
T shuffle_up(T value, int distance, const host::Site& site = host::Site::current()) {
  const int source = lane() - distance;
  return shuffle(value, source < 0 ? lane() : source, site);
}

template <LaneValue T>
T shuffle_down(T value, int distance, const host::Site& site = host::Site::current()) {
  const int source = lane() + distance;
  return shuffle(value, source >= kWave ? lane() : source, site);
}

inline std::uint64_t ballot(bool predicate, const host::Site& site = host::Site::current()) {
  return host::ballot_bits(predicate, site);
}

inline bool any(bool predicate, const host::Site& site = host::Site::current()) {
  return host::ballot_bits(predicate, site) != 0;
}

inline bool all(bool predicate, const host::Site& site = host::Site::current()) {
  return host::ballot_bits(!predicate, site) == 0;
}

template <AtomicWord T>
T atomic_compare_exchange(T* at, T expected, T value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

template <AtomicWord T>
T atomic_exchange(T* at, T value) {
  return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);
}

/// Replaces *at by update(*at) in one step, and returns what was there.
template <class T, class Update>
T atomic_update(T* at, Update update) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  auto* bits = reinterpret_cast<Bits*>(at);
  Bits found = __atomic_load_n(bits, __ATOMIC_RELAXED);
  for (;;) {
    const T old = __builtin_bit_cast(T, found);
    if (__atomic_compare_exchange_n(bits, &found, __builtin_bit_cast(Bits, update(old)), false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return old;
  }
}

template <AtomicSum T>
T atomic_add(T* at, T value) {
  if constexpr (std::is_same_v<T, float>)
    return atomic_update(at, [value](float old) { return old + value; });
  else
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

template <AtomicWord T>
T atomic_max(T* at, T value) {
  return atomic_update(at, [value](T old) { return old < value ? value : old; });
}

template <AtomicWord T>
T atomic_min(T* at, T value) {
  return atomic_update(at, [value](T old) { return value < old ? value : old; });
}

template <AtomicWord T>
T load_acquire(const T* at) {
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

template <AtomicWord T>
void store_release(T* at, T value) {
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

inline void relax() {
  host::relax();
}
/// The build must run on CPUs without the instruction, but kernels do little else: a call of the C
/// library for each would take a quarter of their time.
inline float fma(float a, float b, float c) {
#if defined(__x86_64__) && !defined(__FMA__)
  if (__builtin_expect(host::has_fma_instruction, 1)) {
    __asm__("vfmadd231ss %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
  }
#endif
  return __builtin_fmaf(a, b, c);
}
inline float sqrt_rn(float x) {
  return __builtin_sqrtf(x);
}

}  // namespace MONOREF_SIMT_VARIANT
}  // namespace monoref::simt
