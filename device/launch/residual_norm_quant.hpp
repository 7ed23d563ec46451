// residual_norm_quant: see device/kernels/residual_norm_quant.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct ResidualNormQuant {
  const std::uint16_t* ar;
  std::int64_t ar_row_stride, ar_stride;
  const std::uint16_t* residual;
  std::int64_t residual_row_stride, residual_stride;
  const std::uint16_t* gamma;
  std::int64_t gamma_stride;
  std::uint16_t* residual_out;
  std::int64_t residual_out_row_stride;
  std::uint8_t* x8;
  std::int64_t x8_row_stride;
  float* x_scale;
  std::int64_t rows, hidden;
  float eps;
  std::int32_t norm_input, fp8_max, encoding, overflow;

  static constexpr std::string_view kernel() { return "monoref_residual_norm_quant"; }
  Grid grid(int wave) const { return grid_of_rows(rows, hidden, wave); }
  Legal legal(int wave) const { return legal_of_rows(hidden, wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(ar, ar_row_stride, ar_stride, residual, residual_row_stride, residual_stride, gamma,
         gamma_stride, residual_out, residual_out_row_stride, x8, x8_row_stride, x_scale, rows,
         narrow(hidden), eps, norm_input, fp8_max, encoding, overflow);
  }
};

}  // namespace monoref::device::launch
