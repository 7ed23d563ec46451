// Kernels whose results are known: what every backend must do right.
#include "device/simt.hpp"

namespace {

/// The value that thread `i` of the tests contributes to sums.
struct Contribution {
  std::int32_t factor, offset;
  MONOREF_MEMBER std::int32_t of(int i) const { return factor * i + offset; }
};

}  // namespace

template <class T>
MONOREF_DEVICE T wave_sum(T value) {
  for (int distance = simt::kWave / 2; distance > 0; distance /= 2)
    value += simt::shuffle_xor(value, distance);
  return value;
}

/// sums[block] = the sum over the block's threads t of factor * (block * threads + t) + offset. The
/// waves' sums meet in shared memory, and only the first wave goes on to add them. Whole waves.
MONOREF_KERNEL(1024, monoref_test_two_level_sum)(Contribution contribution, std::int32_t* sums) {
  MONOREF_SHARED(std::int32_t, partial, 1024 / simt::kWave);
  const int thread = simt::linear_thread();
  const int block = static_cast<int>(blockIdx.x);
  const int threads = static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
  const std::int32_t sum = wave_sum(contribution.of(block * threads + thread));
  if (simt::lane() == 0) partial[simt::wave()] = sum;
  __syncthreads();
  if (simt::wave() != 0) return;
  const int waves = threads / simt::kWave;
  const std::int32_t total = wave_sum(simt::lane() < waves ? partial[simt::lane()] : 0);
  if (thread == 0) sums[block] = total;
}
MONOREF_REGISTER(monoref_test_two_level_sum);

/// One wave; row r of moved [6, wave] holds, a lane each: shuffle from the lane mirrored, xor 3, up
/// 2, down 5, xor 16 of a 64-bit value's high half, and the number of lanes below whose value is
/// odd. ballots [3] = ballot of odd values; any(value > 1000); all(value <= 1000).
MONOREF_KERNEL(64, monoref_test_lane_moves)(const std::int32_t* values, std::int32_t* moved,
                                            std::uint64_t* ballots) {
  const int lane = simt::lane();
  const std::int32_t value = values[lane];
  std::int32_t* const row = moved + lane;
  row[0 * simt::kWave] = simt::shuffle(value, simt::kWave - 1 - lane);
  row[1 * simt::kWave] = simt::shuffle_xor(value, 3);
  row[2 * simt::kWave] = simt::shuffle_up(value, 2);
  row[3 * simt::kWave] = simt::shuffle_down(value, 5);
  const auto wide = static_cast<std::int64_t>(value) << 32;
  row[4 * simt::kWave] = static_cast<std::int32_t>(simt::shuffle_xor(wide, 16) >> 32);
  const std::uint64_t odd = simt::ballot(value % 2 != 0);
  const std::uint64_t below = odd & ((std::uint64_t{1} << lane) - 1);
  row[5 * simt::kWave] = __builtin_popcountll(below);
  const bool some = simt::any(value > 1000);
  const bool every = simt::all(value <= 1000);
  if (lane != 0) return;
  ballots[0] = odd;
  ballots[1] = some ? 1 : 0;
  ballots[2] = every ? 1 : 0;
}
MONOREF_REGISTER(monoref_test_lane_moves);

/// Threads from `keep` on return at once; the others meet twice and sum their indices.
MONOREF_KERNEL(1024, monoref_test_barrier_after_exit)(std::uint32_t keep, std::uint32_t* sums) {
  MONOREF_DYNAMIC_SHARED(std::uint32_t, seen);
  if (threadIdx.x >= keep) return;
  seen[threadIdx.x] = threadIdx.x;
  __syncthreads();
  std::uint32_t sum = 0;
  for (std::uint32_t i = 0; i < keep; ++i) sum += seen[i];
  __syncthreads();
  sums[threadIdx.x] = sum;
}
MONOREF_REGISTER(monoref_test_barrier_after_exit);

/// Every thread of the grid, n in number, adds 1 to counts[0] and counts[1], 0.5 to half[0], and
/// puts its number into extremes [min, max]; ticket[i] = a number of its own from 0 to n - 1 (by
/// compare and exchange on counts[2]).
MONOREF_KERNEL(1024, monoref_test_atomics)(std::uint32_t* counts, std::uint64_t* wide, float* half,
                                           std::int32_t* extremes, std::uint32_t* tickets) {
  const std::uint32_t number = blockIdx.x * blockDim.x + threadIdx.x;
  simt::atomic_add(counts, 1U);
  simt::atomic_add(wide, std::uint64_t{1} << 32);
  simt::atomic_add(half, 0.5F);
  simt::atomic_min(extremes, -static_cast<std::int32_t>(number));
  simt::atomic_max(extremes + 1, static_cast<std::int32_t>(number));
  std::uint32_t expected = 0;
  for (;;) {
    const std::uint32_t found = simt::atomic_compare_exchange(counts + 1, expected, expected + 1);
    if (found == expected) break;
    expected = found;
  }
  tickets[number] = expected;
}
MONOREF_REGISTER(monoref_test_atomics);

/// Each thread fills 16 KiB of its own, meets the others, and reads it back: sums[i] = the sum over
/// k < 4096 of (i xor k).
MONOREF_KERNEL(256, monoref_test_local_array)(std::uint32_t* sums) {
  volatile std::uint32_t local[4096];
  for (std::uint32_t k = 0; k < 4096; ++k) local[k] = threadIdx.x ^ k;
  __syncthreads();
  std::uint32_t sum = 0;
  for (std::uint32_t k = 0; k < 4096; ++k) sum += local[k];
  sums[threadIdx.x] = sum;
}
MONOREF_REGISTER(monoref_test_local_array);

/// at[index] = value, by one thread.
MONOREF_KERNEL(64, monoref_test_store)(std::uint8_t* at, std::int64_t index, std::uint32_t value) {
  if (threadIdx.x == 0) at[index] = static_cast<std::uint8_t>(value);
}
MONOREF_REGISTER(monoref_test_store);

/// out[0] = from[index], by one thread.
MONOREF_KERNEL(64, monoref_test_load)(const std::uint8_t* from, std::int64_t index,
                                      std::uint8_t* out) {
  if (threadIdx.x == 0) out[0] = from[index];
}
MONOREF_REGISTER(monoref_test_load);

/// Waits, without letting anyone else run, until flag[0] is not 0.
MONOREF_KERNEL(64, monoref_test_spin)(const std::uint32_t* flag) {
  while (simt::load_acquire(flag) == 0) {
  }
}
MONOREF_REGISTER(monoref_test_spin);

/// The same in the way the rule demands.
MONOREF_KERNEL(1024, monoref_test_spin_relaxed)(const std::uint32_t* flag) {
  while (simt::load_acquire(flag) == 0) simt::relax();
}
MONOREF_REGISTER(monoref_test_spin_relaxed);

/// A token goes round the blocks of a cooperative launch `laps` times. Block b waits until
/// mailboxes[b] holds the lap, adds its number to the token, and gives it to the next block.
/// mailboxes [blocks] uint32, zero; token [1] uint64, zero; received [blocks] = the token as b
/// found it in its last lap.
MONOREF_KERNEL(256, monoref_test_mailboxes)(std::uint32_t laps, std::uint32_t* mailboxes,
                                            std::uint64_t* token, std::uint64_t* received) {
  const std::uint32_t block = blockIdx.x;
  for (std::uint32_t lap = 1; lap <= laps; ++lap) {
    if (threadIdx.x == 0) {
      const bool starts = block == 0 && lap == 1;
      while (!starts && simt::load_acquire(mailboxes + block) != lap) simt::relax();
      received[block] = *token;
      *token += block;
      const std::uint32_t next = block + 1 == gridDim.x ? 0 : block + 1;
      simt::store_release(mailboxes + next, next == 0 ? lap + 1 : lap);
    }
    __syncthreads();
  }
}
MONOREF_REGISTER(monoref_test_mailboxes);

/// Raises a flag of another launch, and waits until its own is raised.
MONOREF_KERNEL(64, monoref_test_meet)(const std::uint32_t* own, std::uint32_t* peer) {
  if (threadIdx.x != 0) return;
  simt::store_release(peer, 1U);
  while (simt::load_acquire(own) == 0) simt::relax();
}
MONOREF_REGISTER(monoref_test_meet);

/// Thread 0 waits for a flag that the block's last thread sets: relax() must let it begin.
MONOREF_KERNEL(1024, monoref_test_wait_in_block)(std::uint32_t* flag, std::uint32_t* done) {
  if (threadIdx.x == 0) {
    while (simt::load_acquire(flag) == 0) simt::relax();
    *done = 1;
  }
  if (threadIdx.x == blockDim.x - 1) simt::store_release(flag, 1U);
}
MONOREF_REGISTER(monoref_test_wait_in_block);

/// results [4, n] = x / y, sqrt(x), fma(x, y, x), x * y + x as two roundings.
MONOREF_KERNEL(256, monoref_test_arithmetic)(const float* x, const float* y, float* results,
                                             std::int64_t n) {
  const auto i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  results[i] = x[i] / y[i];
  results[n + i] = simt::sqrt_rn(x[i]);
  results[2 * n + i] = simt::fma(x[i], y[i], x[i]);
  results[3 * n + i] = x[i] * y[i] + x[i];
}
MONOREF_REGISTER(monoref_test_arithmetic);

/// to[i] = from[i], 16 bytes a thread.
MONOREF_KERNEL(256, monoref_test_copy16)(const std::uint32_t* from, std::uint32_t* to) {
  simt::store16(to + std::size_t{4} * threadIdx.x,
                simt::load16(from + std::size_t{4} * threadIdx.x));
}
MONOREF_REGISTER(monoref_test_copy16);

/// coordinates [blocks, threads, 12] = threadIdx, blockIdx, blockDim, gridDim.
MONOREF_KERNEL(64, monoref_test_coordinates)(std::uint32_t* coordinates) {
  const std::size_t block =
      (std::size_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const std::size_t threads = std::size_t{blockDim.x} * blockDim.y * blockDim.z;
  std::uint32_t* const out =
      coordinates + (block * threads + static_cast<std::size_t>(simt::linear_thread())) * 12;
  out[0] = threadIdx.x, out[1] = threadIdx.y, out[2] = threadIdx.z;
  out[3] = blockIdx.x, out[4] = blockIdx.y, out[5] = blockIdx.z;
  out[6] = blockDim.x, out[7] = blockDim.y, out[8] = blockDim.z;
  out[9] = gridDim.x, out[10] = gridDim.y, out[11] = gridDim.z;
}
MONOREF_REGISTER(monoref_test_coordinates);

/// out[0] = 2 while the fault test_fault is active in a build with faults, else 1.
MONOREF_KERNEL(64, monoref_test_fault)(std::uint32_t* out) {
  if (threadIdx.x == 0) out[0] = MONOREF_FAULT(test_fault, "own", "the kernel gives 2") ? 2 : 1;
}
MONOREF_REGISTER(monoref_test_fault);
