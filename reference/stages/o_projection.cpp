#include "reference/stages/o_projection.hpp"

#include <algorithm>
#include <vector>

#include "reference/arithmetic/reduce.hpp"
#include "reference/rules/fp8_rules.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/rules/weight_layouts.hpp"

namespace monoref {
namespace {

std::uint16_t finish(std::span<const float> partials, float a_scale, float w_scale) {
  const float dot = sum_in_order(partials, SumStart::kZero);
  return bf16_from_float((dot * a_scale) * w_scale);
}

/// One row of the plain weight as numbers.
std::vector<float> plain_row(const OProjectionInput& input, const FloatFormat& format,
                             std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(input.weight.dim(1)));
  for (std::size_t k = 0; k < values.size(); ++k)
    values[k] = decode(format, input.weight.data()[shuffled_weight_offset(
                                   row, static_cast<std::int64_t>(k), input.weight.dim(1))]);
  return values;
}

std::vector<float> token_row(const OProjectionInput& input, const FloatFormat& format,
                             std::int64_t token) {
  std::vector<float> values(static_cast<std::size_t>(input.a8.dim(1)));
  for (std::size_t k = 0; k < values.size(); ++k) values[k] = decode(format, input.a8(token, k));
  return values;
}

std::vector<float> wave_partials(std::span<const float> a, std::span<const float> w) {
  const std::size_t quarter = a.size() / kOProjectionWaves;
  std::vector<float> partials;
  for (std::size_t k = 0; k < a.size(); k += quarter)
    partials.push_back(fma_chain(a.subspan(k, quarter), w.subspan(k, quarter), 0.0f));
  return partials;
}

}  // namespace

std::array<std::int64_t, 2> o_projection_shape(const OProjectionInput& input) {
  const std::int64_t n = input.a8.dim(0);
  const std::int64_t width = input.a8.dim(1);
  const std::int64_t hidden = input.weight.dim(0);
  constexpr std::int64_t kAllWaves = kOProjectionWaves * kOProjectionStep;
  if (width < kAllWaves || width % kAllWaves != 0)
    refuse("o_projection: width is {}, must be a multiple of {}", width, kAllWaves);
  if (hidden % 16 != 0)
    refuse("o_projection: weight has {} rows, must be a multiple of 16", hidden);
  require_dims("o_projection: weight", input.weight, {hidden, width});
  if (input.weight.stride(0) != width || input.weight.stride(1) != 1)
    refuse("o_projection: weight has strides {} and {}, must be dense, {} and 1",
           input.weight.stride(0), input.weight.stride(1), width);
  require_dims("o_projection: a_scale", input.a_scale, {n});
  require_dims("o_projection: w_scale", input.w_scale, {hidden});
  return {n, hidden};
}

void o_projection(const OProjectionInput& input, const OProjectionOutput& output) {
  require_dims("o_projection: output out", output.out, o_projection_shape(input));
  const FloatFormat& format = float_format(fp8_dtype(input.contract));
  for (std::int64_t row = 0; row < output.out.dim(1); ++row) {
    const std::vector<float> w = plain_row(input, format, row);
    for (std::int64_t token = 0; token < output.out.dim(0); ++token)
      output.out(token, row) = finish(wave_partials(token_row(input, format, token), w),
                                      input.a_scale(token), input.w_scale(row));
  }
}

}  // namespace monoref
