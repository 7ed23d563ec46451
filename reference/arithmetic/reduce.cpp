#include "reference/arithmetic/reduce.hpp"

#include <bit>
#include <cmath>

#include "reference/arithmetic/minmax.hpp"
#include "reference/core/error.hpp"
#include "reference/fast/isa.hpp"
#include "reference/formats/canonical_nan.hpp"

namespace monoref {
namespace {

template <class Combine>
float butterfly(std::span<const float> lanes, std::span<const int> offsets, Combine combine) {
  if (!std::has_single_bit(lanes.size()))
    refuse("butterfly: {} lanes, must be a power of two", lanes.size());
  std::vector<float> before(lanes.begin(), lanes.end());
  std::vector<float> after(lanes.size());
  for (const int offset : offsets) {
    if (offset < 1 || static_cast<std::size_t>(offset) >= lanes.size())
      refuse("butterfly: offset is {}, must be in [1, {})", offset, lanes.size());
    for (std::size_t lane = 0; lane < lanes.size(); ++lane)
      after[lane] = combine(before[lane], before[lane ^ static_cast<std::size_t>(offset)]);
    before.swap(after);
  }
  return canonical(before[0]);
}

float sum_of_waves(std::vector<float> waves, const TwoLevelOrder& order) {
  if (order.waves == WaveOrder::kInOrder) return sum_in_order(waves, order.start);
  if (waves.size() > order.second_lanes)
    refuse("two-level sum: {} waves, the second level has {} lanes", waves.size(),
           order.second_lanes);
  waves.resize(order.second_lanes, 0.0f);
  return butterfly_sum(waves, order.second_offsets);
}

}  // namespace

float sum_in_order(std::span<const float> terms, SumStart start) {
  if (terms.empty()) return 0.0f;
  float sum = start == SumStart::kZero ? 0.0f + terms[0] : terms[0];
  for (const float term : terms.subspan(1)) sum += term;
  return canonical(sum);
}

float fma_chain(std::span<const float> a, std::span<const float> b, float start) {
  if (a.size() != b.size())
    refuse("fma chain: lengths are {} and {}, must be equal", a.size(), b.size());
  float sum = start;
  float* const result = &sum;
  // Only for the hardware's fma instead of a call; the bits are those of std::fma anywhere.
  run_on(best_isa(), [=]() MONOREF_INLINE_BODY {
    float acc = *result;
    for (std::size_t k = 0; k < a.size(); ++k) acc = std::fma(a[k], b[k], acc);
    *result = acc;
  });
  return canonical(sum);
}

float butterfly_sum(std::span<const float> lanes, std::span<const int> offsets) {
  return butterfly(lanes, offsets, [](float a, float b) { return a + b; });
}

float butterfly_max(std::span<const float> lanes, std::span<const int> offsets) {
  return butterfly(lanes, offsets, nan_max);
}

std::vector<int> halving_offsets(int from) {
  std::vector<int> offsets;
  for (int offset = from; offset >= 1; offset /= 2) offsets.push_back(offset);
  return offsets;
}

float two_level_sum(std::span<const float> threads, const TwoLevelOrder& order) {
  if (threads.empty() || order.wave_lanes == 0 || threads.size() % order.wave_lanes != 0)
    refuse("two-level sum: {} threads, must be whole waves of {}", threads.size(),
           order.wave_lanes);
  std::vector<float> waves;
  for (std::size_t first = 0; first < threads.size(); first += order.wave_lanes)
    waves.push_back(butterfly_sum(threads.subspan(first, order.wave_lanes), order.lane_offsets));
  return sum_of_waves(std::move(waves), order);
}

float two_level_sum_of_squares(std::span<const float> row, std::size_t per_thread,
                               const TwoLevelOrder& order) {
  if (per_thread == 0 || row.size() % per_thread != 0)
    refuse("sum of squares: {} elements, must be whole threads of {}", row.size(), per_thread);
  std::vector<float> threads;
  for (std::size_t first = 0; first < row.size(); first += per_thread) {
    const auto own = row.subspan(first, per_thread);
    threads.push_back(fma_chain(own, own, 0.0f));
  }
  return two_level_sum(threads, order);
}

const TwoLevelOrder& input_norm_order() {
  static const TwoLevelOrder order{.wave_lanes = 32,
                                   .lane_offsets = halving_offsets(16),
                                   .waves = WaveOrder::kButterfly,
                                   .start = SumStart::kFirstTerm,
                                   .second_lanes = 32,
                                   .second_offsets = halving_offsets(16)};
  return order;
}

const TwoLevelOrder& router_norm_order() {
  static const TwoLevelOrder order{.wave_lanes = 64,
                                   .lane_offsets = halving_offsets(32),
                                   .waves = WaveOrder::kInOrder,
                                   .start = SumStart::kFirstTerm,
                                   .second_lanes = 0,
                                   .second_offsets = {}};
  return order;
}

const TwoLevelOrder& partition_sum_order() {
  static const TwoLevelOrder order{.wave_lanes = 16,
                                   .lane_offsets = halving_offsets(8),
                                   .waves = WaveOrder::kInOrder,
                                   .start = SumStart::kFirstTerm,
                                   .second_lanes = 0,
                                   .second_offsets = {}};
  return order;
}

}  // namespace monoref
