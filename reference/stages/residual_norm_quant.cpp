#include "reference/stages/residual_norm_quant.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "reference/arithmetic/minmax.hpp"
#include "reference/arithmetic/portable.hpp"
#include "reference/arithmetic/reduce.hpp"
#include "reference/rules/fp8_rules.hpp"
#include "reference/rules/rms.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

using Row = std::vector<float>;

/// The sums of a row before and after rounding, steps 1 of the stage; stores the residual.
Row add_residual(const ResidualNormQuantInput& input, const ResidualNormQuantOutput& output,
                 std::int64_t row) {
  const bool rounded = input.contract.norm_source == NormSource::kRounded;
  Row sums(static_cast<std::size_t>(input.ar.dim(1)));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const float acc = float_from_bf16(input.ar(row, i)) + float_from_bf16(input.res(row, i));
    output.residual(row, i) = bf16_from_float(acc);
    sums[i] = rounded ? round_to_bf16(acc) : acc;
  }
  return sums;
}

float sum_of_squares(std::span<const float> row) {
  const TwoLevelOrder& order = input_norm_order();
  std::vector<float> threads;
  for (std::size_t first = 0; first < row.size(); first += kNormElementsPerThread) {
    const std::size_t count = std::min<std::size_t>(kNormElementsPerThread, row.size() - first);
    const auto own = row.subspan(first, count);
    threads.push_back(fma_chain(own, own, 0.0f));
  }
  const std::size_t warps = (threads.size() + order.wave_lanes - 1) / order.wave_lanes;
  threads.resize(warps * order.wave_lanes, 0.0f);
  return two_level_sum(threads, order);
}

float scale_of(std::span<const float> row, float maximum) {
  float amax = 0.0f;
  for (const float value : row) amax = nan_max(amax, std::fabs(value));
  return amax == 0.0f ? 1.0f : portable_div(amax, maximum);
}

}  // namespace

std::vector<float> input_norm(std::span<const float> sums,
                              const View<const std::uint16_t, 1>& gamma, float eps) {
  const auto hidden = static_cast<std::int64_t>(sums.size());
  const float rstd = reciprocal_rms(sum_of_squares(sums), hidden, eps);
  std::vector<float> y(sums.size());
  for (std::size_t i = 0; i < y.size(); ++i)
    y[i] = (sums[i] * rstd) * (float_from_bf16(gamma(i)) + 1.0f);
  return y;
}

std::array<std::int64_t, 2> residual_norm_quant_shape(const ResidualNormQuantInput& input) {
  const std::array<std::int64_t, 2> dims{input.ar.dim(0), input.ar.dim(1)};
  if (dims[1] < kNormElementsPerThread || dims[1] > kNormMaxHidden ||
      dims[1] % kNormElementsPerThread != 0)
    refuse("residual_norm_quant: hidden is {}, must be a multiple of {} up to {}", dims[1],
           kNormElementsPerThread, kNormMaxHidden);
  require_dims("residual_norm_quant: res", input.res, dims);
  require_dims("residual_norm_quant: gamma", input.gamma, {dims[1]});
  static_cast<void>(checked_eps("residual_norm_quant", input.eps));
  static_cast<void>(fp8_maximum(input.contract));
  return dims;
}

void residual_norm_quant(const ResidualNormQuantInput& input,
                         const ResidualNormQuantOutput& output) {
  const auto dims = residual_norm_quant_shape(input);
  require_dims("residual_norm_quant: output residual", output.residual, dims);
  require_dims("residual_norm_quant: output x8", output.x8, dims);
  require_dims("residual_norm_quant: output x_scale", output.x_scale, {dims[0]});
  const Fp8Rules fp8 = fp8_rules(input.contract);
  const float maximum = fp8_maximum(input.contract);
  const float eps = checked_eps("residual_norm_quant", input.eps);
  for (std::int64_t row = 0; row < dims[0]; ++row) {
    const Row y = input_norm(add_residual(input, output, row), input.gamma, eps);
    const float scale = scale_of(y, maximum);
    output.x_scale(row) = scale;
    for (std::size_t i = 0; i < y.size(); ++i) output.x8(row, i) = fp8.encode(y[i] / scale);
  }
}

}  // namespace monoref
