// Kernels that break the strict rule, each in one way. The host executor must say which.
#include "device/simt.hpp"

/// Threads below `split` meet at one barrier, the others at another.
MONOREF_KERNEL(1024, monoref_test_two_barriers)(std::uint32_t split) {
  if (threadIdx.x < split)
    __syncthreads();
  else
    __syncthreads();
}
MONOREF_REGISTER(monoref_test_two_barriers);

/// Threads below `split` pass a barrier more than the others before all meet.
MONOREF_KERNEL(1024, monoref_test_barrier_in_branch)(std::uint32_t split) {
  if (threadIdx.x < split) __syncthreads();
  __syncthreads();
}
MONOREF_REGISTER(monoref_test_barrier_in_branch);

/// Lane 5 of every wave waits at the barrier while the others shuffle.
MONOREF_KERNEL(1024, monoref_test_missing_lane)(std::int32_t* out) {
  std::int32_t value = simt::lane();
  if (simt::lane() != 5) value = simt::shuffle_xor(value, 1);
  __syncthreads();
  out[threadIdx.x] = value;
}
MONOREF_REGISTER(monoref_test_missing_lane);

/// Even and odd lanes vote in different places.
MONOREF_KERNEL(64, monoref_test_two_ballots)(std::uint64_t* out) {
  out[threadIdx.x] = simt::lane() % 2 == 0 ? simt::ballot(true) : simt::ballot(false);
}
MONOREF_REGISTER(monoref_test_two_ballots);

/// Lane 5 returns; the others read from it.
MONOREF_KERNEL(64, monoref_test_exited_lane)(std::int32_t* out) {
  if (simt::lane() == 5) return;
  out[threadIdx.x] = simt::shuffle(simt::lane(), 5);
}
MONOREF_REGISTER(monoref_test_exited_lane);

/// All lanes read from `source`, whatever it is.
MONOREF_KERNEL(64, monoref_test_shuffle_from)(std::int32_t source, std::int32_t* out) {
  out[threadIdx.x] = simt::shuffle(simt::lane(), source);
}
MONOREF_REGISTER(monoref_test_shuffle_from);

/// out[i] = i / divisor.
MONOREF_KERNEL(64, monoref_test_divide)(std::int32_t divisor, std::int32_t* out) {
  out[threadIdx.x] = static_cast<std::int32_t>(threadIdx.x) / divisor;
}
MONOREF_REGISTER(monoref_test_divide);

/// One thread writes 24 at byte `index` of a shared array of 100 bytes.
MONOREF_KERNEL(64, monoref_test_shared_store)(std::int64_t index) {
  MONOREF_SHARED(std::uint8_t, table, 100);
  std::uint8_t* volatile at = table;  // keeps the compiler from seeing the end of the array
  if (threadIdx.x == 0) at[index] = 24;
}
MONOREF_REGISTER(monoref_test_shared_store);

/// out[0] = byte `index` of the dynamic shared memory; before that, out[1] = what it was poisoned
/// with.
MONOREF_KERNEL(64, monoref_test_dynamic_load)(std::int64_t index, std::uint8_t* out) {
  MONOREF_DYNAMIC_SHARED(std::uint8_t, bytes);
  if (threadIdx.x == 0) out[0] = bytes[index];
}
MONOREF_REGISTER(monoref_test_dynamic_load);

/// Asks for 64 KiB of static shared memory.
MONOREF_KERNEL(64, monoref_test_much_shared)(std::uint32_t* out) {
  MONOREF_SHARED(std::uint32_t, table, 16 * 1024);
  table[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = table[63 - threadIdx.x];
}
MONOREF_REGISTER(monoref_test_much_shared);

/// Adds 1 to 8 a level: a frame of 1 KiB each, `depth` frames deep.
[[gnu::noinline]] static std::uint32_t descend(std::uint32_t depth) {
  volatile std::uint32_t frame[256];
  frame[depth % 256] = depth % 8 + 1;
  const std::uint32_t below = depth == 0 ? 0 : descend(depth - 1);
  return below + frame[depth % 256];
}

MONOREF_KERNEL(64, monoref_test_recursion)(std::uint32_t depth, std::uint32_t* out) {
  out[threadIdx.x] = descend(depth);
}
MONOREF_REGISTER(monoref_test_recursion);
