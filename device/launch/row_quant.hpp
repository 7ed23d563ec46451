// row_quant: see device/kernels/row_quant.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct RowQuant {
  const std::uint16_t* x;
  std::int64_t x_row_stride;
  std::uint8_t* x8;
  std::int64_t x8_row_stride;
  float* scale;
  std::int64_t rows, width;
  float largest;
  std::int32_t encoding, overflow;

  static constexpr std::string_view kernel() { return "monoref_row_quant"; }
  /// A thread has eight numbers of the block's row at a time.
  Grid grid(int wave) const {
    return {.blocks_x = blocks(rows), .threads_x = waves_for(width / 8, wave, 256)};
  }
  static constexpr Legal legal(int wave) { return any_x(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(x, x_row_stride, x8, x8_row_stride, scale, rows, narrow(width), largest, encoding,
         overflow);
  }
};

}  // namespace monoref::device::launch
