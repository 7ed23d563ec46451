// A kernel of nothing but barriers: what `monoref bench` measures the executor with.
#include "device/simt.hpp"

/// Every block adds the indices of its threads around a ring, one place a round, with a barrier
/// after each: after `rounds` rounds a thread has the sum of `rounds` consecutive indices modulo
/// the block.
///
/// totals [blocks, threads] uint32, written whole. Launch: any grid, blocks of one dimension;
/// dynamic shared memory of two uint32 a thread.
MONOREF_KERNEL(1024, monoref_executor_barriers)(std::uint32_t rounds, std::uint32_t* totals) {
  MONOREF_DYNAMIC_SHARED(std::uint32_t, ring);
  const std::uint32_t me = threadIdx.x;
  const std::uint32_t next = me + 1 == blockDim.x ? 0 : me + 1;
  std::uint32_t passing = me;
  std::uint32_t total = 0;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    total += passing;
    // Two halves in turn: a thread that is ahead writes where nobody reads in this round.
    std::uint32_t* const half = ring + (round % 2) * blockDim.x;
    half[me] = passing;
    __syncthreads();
    passing = half[next];
  }
  const std::uint64_t block =
      (std::uint64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  totals[block * blockDim.x + me] = total;
}
MONOREF_REGISTER(monoref_executor_barriers);
