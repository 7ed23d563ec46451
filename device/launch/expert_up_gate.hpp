// expert_up_gate: see device/kernels/expert_up_gate.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct ExpertUpGate {
  const std::uint8_t* x8;
  std::int64_t x8_row_stride;
  const std::uint8_t* x_scale;
  const std::int32_t* topk_ids;
  const std::uint8_t* w13;
  const std::uint8_t* s13;
  const std::uint8_t* shared_w13;  ///< or null
  const std::uint8_t* shared_s13;
  std::uint16_t* mid;
  std::int64_t rows, slots, hidden, inter, experts, n_routed;
  std::int32_t weights, e8m0_zero;
  float limit, alpha, beta;

  static constexpr std::string_view kernel() { return "monoref_expert_up_gate"; }
  /// 16 threads for each of up to 8 slices of steps of 128.
  std::uint32_t least_threads(int wave) const {
    return waves_for(16 * std::min<std::int64_t>(hidden / 128, 8), wave, 128);
  }
  Grid grid(int wave) const {
    return {.blocks_x = blocks(inter / 16),
            .blocks_y = blocks(rows * slots),
            .threads_x = least_threads(wave)};
  }
  Legal legal(int wave) const {
    Legal legal = any_xy(wave, 128);
    legal.threads.least = least_threads(wave);
    return legal;
  }
  template <class Take>
  void pass(const Take& take) const {
    take(x8, x8_row_stride, x_scale, topk_ids, On16{w13}, s13, On16{shared_w13}, shared_s13, mid,
         rows, narrow(slots), narrow(hidden), narrow(inter), narrow(experts), narrow(n_routed),
         weights, e8m0_zero, limit, alpha, beta);
  }
};

}  // namespace monoref::device::launch
