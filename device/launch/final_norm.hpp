// final_norm: see device/kernels/final_norm.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct FinalNorm {
  const std::uint16_t* hidden_states;
  std::int64_t hidden_row_stride;
  const std::uint16_t* residual;
  std::int64_t residual_row_stride;
  const std::uint16_t* gamma;
  std::uint16_t* out;
  std::int64_t out_row_stride, rows, hidden;
  float eps;

  static constexpr std::string_view kernel() { return "monoref_final_norm"; }
  Grid grid(int wave) const { return grid_of_rows(rows, hidden, wave); }
  Legal legal(int wave) const { return legal_of_rows(hidden, wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(hidden_states, hidden_row_stride, residual, residual_row_stride, gamma, out,
         out_row_stride, rows, narrow(hidden), eps);
  }
};

}  // namespace monoref::device::launch
