// o_projection: see device/kernels/o_projection.hip.
#pragma once

#include <bit>

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct OProjection {
  const std::uint8_t* x8;
  std::int64_t x8_row_stride;
  const float* x_scale;
  const std::uint8_t* weights;
  const float* w_scale;
  std::uint16_t* out;
  std::int64_t out_row_stride, tokens, rows, width;
  std::int32_t encoding;

  static constexpr std::string_view kernel() { return "monoref_o_projection"; }
  /// Tokens of a block's tile: 8 for each 64 threads.
  static constexpr std::int64_t tile(std::uint32_t threads) { return threads / 8; }
  Grid grid(int) const {
    const std::uint32_t threads = tokens > 8 ? 128 : 64;
    return {.blocks_x = blocks(rows / 16),
            .blocks_y = blocks(parts(tokens, tile(threads))),
            .threads_x = threads};
  }
  static constexpr Legal legal(int) {
    return {{1, kMostBlocks}, {1, kMostBlocks}, {1, 1}, {64, 128}, 64};
  }
  std::uint32_t shared_bytes(std::uint32_t threads) const {
    const auto held = std::clamp<std::int64_t>(tokens, 1, tile(threads));
    return 2112 * std::bit_ceil(static_cast<std::uint32_t>(held));
  }
  template <class Take>
  void pass(const Take& take) const {
    take(x8, x8_row_stride, x_scale, On16{weights}, w_scale, out, out_row_stride, tokens,
         narrow(rows), narrow(width), encoding);
  }
};

}  // namespace monoref::device::launch
