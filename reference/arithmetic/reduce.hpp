// Sums and maxima whose order is an argument. Bits depend on the order, so a stage says which one
// it has instead of looping by itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace monoref {

/// Where an ordered sum starts. It decides the sign of a zero sum, and nothing else.
enum class SumStart : std::uint8_t {
  kZero,       ///< 0.0 + x0 + x1 + ...
  kFirstTerm,  ///< x0 + x1 + ...; no terms give +0
};

/// Left to right, one rounding per addition.
float sum_in_order(std::span<const float> terms, SumStart start);

/// acc = fma(a[k], b[k], acc) for ascending k from `start`. Refuses lengths that differ. With
/// values widened from BF16 or FP8 this is the portable dot product.
float fma_chain(std::span<const float> a, std::span<const float> b, float start);

/// v = v + v[lane xor offset] in all lanes at once, for each offset in turn; the value of lane 0.
/// Addition commutes, so every lane ends with that value where the offsets cover all lanes. Refuses
/// a lane count that is not a power of two and an offset outside [1, lanes).
float butterfly_sum(std::span<const float> lanes, std::span<const int> offsets);

/// The same with the NaN-propagating maximum.
float butterfly_max(std::span<const float> lanes, std::span<const int> offsets);

/// from, from/2, ..., 1: the offsets of a butterfly over 2 * from lanes.
std::vector<int> halving_offsets(int from);

/// How the sums of waves (or warps) are put together.
enum class WaveOrder : std::uint8_t {
  kButterfly,  ///< padded with zeros to `second_lanes`, then a butterfly with `second_offsets`
  kInOrder,    ///< wave 0, 1, 2, ... from `start`
};

/// A sum over the threads of a block: a butterfly inside every wave, then the waves.
struct TwoLevelOrder {
  std::size_t wave_lanes = 0;
  std::vector<int> lane_offsets;
  WaveOrder waves = WaveOrder::kInOrder;
  SumStart start = SumStart::kFirstTerm;  ///< kInOrder only
  std::size_t second_lanes = 0;           ///< kButterfly only
  std::vector<int> second_offsets;        ///< kButterfly only
};

/// Sum of one value per thread. Refuses a thread count that is not whole waves, no threads at all,
/// and more waves than `second_lanes`.
float two_level_sum(std::span<const float> threads, const TwoLevelOrder& order);

/// Sum of squares of a row: thread t owns `per_thread` consecutive elements and runs an fma chain
/// from 0 over them; then `order`. Refuses a row that is not whole threads.
float two_level_sum_of_squares(std::span<const float> row, std::size_t per_thread,
                               const TwoLevelOrder& order);

/// mono-decode section 3.2, input norm: 32 lanes by 16, 8, 4, 2, 1, and the same over up to 32 warp
/// sums. A thread owns 8 elements (upstream: 768 threads).
const TwoLevelOrder& input_norm_order();
/// Section 7, router norm: 64 lanes by 32, ..., 1, then waves in order from wave 0's sum. A thread
/// owns 12 elements (upstream: 512 threads).
const TwoLevelOrder& router_norm_order();
/// Section 6, a partition's sum of p: 16 lanes by 8, 4, 2, 1, then waves in order from wave 0's
/// value.
const TwoLevelOrder& partition_sum_order();

}  // namespace monoref
