// expert_down: see device/kernels/expert_down.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct ExpertDown {
  const std::uint8_t* mid8;
  const std::uint8_t* mid_scale;
  const std::int32_t* topk_ids;
  const float* topk_weights;
  const std::uint8_t* w2;
  const std::uint8_t* s2;
  const std::uint8_t* shared_w2;  ///< or null
  const std::uint8_t* shared_s2;
  std::uint16_t* partial;
  std::int64_t rows, slots, inter, hidden, experts, n_routed;
  std::int32_t weights, e8m0_zero;
  std::int64_t wide_from;  ///< any number of rows
  std::int32_t routed_scaling;
  float scaling;

  static constexpr std::string_view kernel() { return "monoref_expert_down"; }
  /// A tile has 16 rows of the weights and 16 tokens.
  Grid grid(int) const {
    return {.blocks_x = blocks(hidden / 16 * std::max<std::int64_t>(parts(rows, 16), 1)),
            .threads_x = 128};
  }
  static constexpr Legal legal(int) { return {{1, kMostBlocks}, {1, 1}, {1, 1}, {64, 128}, 64}; }
  template <class Take>
  void pass(const Take& take) const {
    constexpr std::int64_t kNever = std::numeric_limits<std::int32_t>::max();
    take(On16{mid8}, mid_scale, topk_ids, topk_weights, On16{w2}, s2, On16{shared_w2}, shared_s2,
         partial, rows, narrow(slots), narrow(inter), narrow(hidden), narrow(experts),
         narrow(n_routed), weights, e8m0_zero, narrow(std::min(wide_from, kNever)), routed_scaling,
         scaling);
  }
};

}  // namespace monoref::device::launch
