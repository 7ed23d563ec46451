// mx_quant: see device/kernels/mx_quant.hip.
#pragma once

#include <type_traits>

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

/// Element: float, or uint16 for bf16.
template <class Element>
struct MxQuant {
  const Element* x;
  std::int64_t x_row_stride;
  std::uint8_t* codes;
  std::int64_t codes_row_stride;
  std::uint8_t* scales;
  std::int64_t rows, width;
  std::int32_t rule;

  static constexpr std::string_view kernel() {
    static_assert(std::is_same_v<Element, float> || std::is_same_v<Element, std::uint16_t>);
    return std::is_same_v<Element, float> ? "monoref_mx_quant_f32" : "monoref_mx_quant_bf16";
  }
  /// A thread has eight numbers.
  Grid grid(int wave) const {
    const std::uint32_t threads = waves_for(width / 8, wave, 256);
    return {.blocks_x = blocks(parts(width / 8, threads)),
            .blocks_y = blocks(rows),
            .threads_x = threads};
  }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(x, x_row_stride, codes, codes_row_stride, scales, rows, narrow(width), rule);
  }
};

}  // namespace monoref::device::launch
