// router: see device/kernels/router.hip.
#pragma once

#include <type_traits>

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct RouterNorm {
  const std::uint16_t* sum;
  std::int64_t sum_row_stride;
  const std::uint16_t* residual;
  std::int64_t residual_row_stride;
  const std::uint16_t* gamma;
  std::uint16_t* h_mid;
  std::int64_t h_mid_row_stride;
  std::uint16_t* xn;
  std::int64_t xn_row_stride, rows, hidden;
  float eps;
  std::int32_t norm_input;

  static constexpr std::uint32_t kThreads = 512;

  static constexpr std::string_view kernel() { return "monoref_router_norm"; }
  Grid grid(int) const { return {.blocks_x = blocks(rows), .threads_x = kThreads}; }
  static constexpr Legal legal(int) {
    return {{1, kMostBlocks}, {1, 1}, {1, 1}, {kThreads, kThreads}, kThreads};
  }
  template <class Take>
  void pass(const Take& take) const {
    take(sum, sum_row_stride, residual, residual_row_stride, gamma, h_mid, h_mid_row_stride, xn,
         xn_row_stride, rows, narrow(hidden), eps, norm_input);
  }
};

/// Weight: float, or uint16 for bf16.
template <class Weight>
struct RouterGate {
  const std::uint16_t* xn;
  std::int64_t xn_row_stride;
  const Weight* gate;
  std::int64_t gate_row_stride;
  float* logits;
  std::int64_t logits_row_stride, rows, n_routed, hidden;

  static constexpr std::string_view kernel() {
    static_assert(std::is_same_v<Weight, float> || std::is_same_v<Weight, std::uint16_t>);
    return std::is_same_v<Weight, float> ? "monoref_router_gate_f32" : "monoref_router_gate";
  }
  /// 64 threads have four rows.
  Grid grid(int) const {
    const std::uint32_t threads = threads_for(parts(rows, 4) * 64);
    return {.blocks_x = blocks(n_routed),
            .blocks_y = blocks(parts(rows, threads / 16)),
            .threads_x = threads};
  }
  static constexpr Legal legal(int) {
    return {{1, kMostBlocks}, {1, kMostBlocks}, {1, 1}, {64, 256}, 64};
  }
  template <class Take>
  void pass(const Take& take) const {
    take(xn, xn_row_stride, gate, gate_row_stride, logits, logits_row_stride, rows,
         narrow(n_routed), narrow(hidden));
  }
};

}  // namespace monoref::device::launch
