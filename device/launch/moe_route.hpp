// moe_route: see device/kernels/moe_route.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct MoeRoute {
  const float* logits;
  std::int64_t logits_row_stride;
  const float* bias;
  std::int32_t* ids;
  std::int64_t ids_row_stride;
  float* weights;
  std::int64_t weights_row_stride, rows, n_routed, top_k;
  float scaling;
  std::int32_t renormalise, shared;
  float shared_weight;
  std::int32_t keys, nan_key, logits_bf16;

  static constexpr std::string_view kernel() { return "monoref_moe_route"; }
  /// A wave has a row.
  Grid grid(int wave) const {
    const std::uint32_t threads = waves_for(rows * wave, wave, 256);
    return {.blocks_x = blocks(parts(rows * wave, threads)), .threads_x = threads};
  }
  static constexpr Legal legal(int wave) { return any_x(wave, 256); }
  template <class Take>
  void pass(const Take& take) const {
    take(logits, logits_row_stride, bias, ids, ids_row_stride, weights, weights_row_stride, rows,
         narrow(n_routed), narrow(top_k), scaling, renormalise, shared, shared_weight, keys,
         nan_key, logits_bf16);
  }
};

}  // namespace monoref::device::launch
