// qkv_projection: see device/kernels/qkv_projection.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct QkvProjection {
  const std::uint8_t* x8;
  std::int64_t x8_row_stride;
  const float* x_scale;
  const std::uint8_t* weights;
  const float* w_scale;
  std::uint16_t* out;
  std::int64_t out_row_stride, tokens, rows, hidden;
  std::int32_t encoding;

  static constexpr std::string_view kernel() { return "monoref_qkv_projection"; }
  /// A tile of 16 rows x 8 tokens; 16 threads for each of up to 8 slices of chunks of 64.
  Grid grid(int) const {
    const std::int64_t chunks = hidden / 64;
    const std::int64_t slices = chunks == 0 ? 1 : parts(chunks, parts(chunks, 8));
    return {.blocks_x = blocks(rows / 16),
            .blocks_y = blocks(parts(tokens, 8)),
            .threads_x = static_cast<std::uint32_t>(16 * slices)};
  }
  static constexpr Legal legal(int) {
    return {{1, kMostBlocks}, {1, kMostBlocks}, {1, 1}, {16, 128}, 16};
  }
  template <class Take>
  void pass(const Take& take) const {
    take(x8, x8_row_stride, x_scale, On16{weights}, w_scale, out, out_row_stride, tokens,
         narrow(rows), narrow(hidden), encoding);
  }
};

}  // namespace monoref::device::launch
