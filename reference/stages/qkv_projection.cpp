#include "reference/stages/qkv_projection.hpp"

#include <algorithm>
#include <cmath>

#include "reference/arithmetic/reduce.hpp"
#include "reference/rules/fp8_rules.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/rules/weight_layouts.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kGroupRows = 16;  ///< rows that the weight layout keeps together

/// One partial sum a slice to one stored value.
std::uint16_t finish(std::span<const float> partials, float x_scale, float w_scale) {
  const float dot = sum_in_order(partials, SumStart::kZero);
  return bf16_from_float((dot * x_scale) * w_scale);
}

/// The number at row r and k of the plain weight.
float plain_weight(const QkvProjectionInput& input, const FloatFormat& format, std::int64_t row,
                   std::int64_t k) {
  return decode(format, input.weight.data()[shuffled_weight_offset(row, k, input.weight.dim(1))]);
}

void check_output(const QkvProjectionInput& input, const QkvProjectionOutput& output) {
  require_dims("qkv_projection: output qkv", output.qkv, qkv_projection_shape(input));
}

}  // namespace

std::int64_t ProjectionOrder::slice() const {
  return std::max(kChunk, hidden / kWaves);
}

std::int64_t ProjectionOrder::k(std::int64_t i) const {
  const std::int64_t group = i % kChunk / 8;  // place of the group of eight in its chunk
  const std::int64_t source = group < 4 ? 2 * group : 2 * (group - 4) + 1;
  return i / kChunk * kChunk + source * 8 + i % 8;
}

std::array<std::int64_t, 2> qkv_projection_shape(const QkvProjectionInput& input) {
  const std::int64_t n = input.x8.dim(0);
  const std::int64_t hidden = input.x8.dim(1);
  const std::int64_t rows = input.weight.dim(0);
  constexpr std::int64_t kAllWaves = ProjectionOrder::kWaves * ProjectionOrder::kChunk;
  const std::int64_t step = hidden > kAllWaves ? kAllWaves : ProjectionOrder::kChunk;
  if (hidden < step || hidden % step != 0)
    refuse("qkv_projection: hidden is {}, must be a multiple of {}", hidden, step);
  if (rows % kGroupRows != 0)
    refuse("qkv_projection: weight has {} rows, must be a multiple of {}", rows, kGroupRows);
  require_dims("qkv_projection: weight", input.weight, {rows, hidden});
  if (input.weight.stride(0) != hidden || input.weight.stride(1) != 1)
    refuse("qkv_projection: weight has strides {} and {}, must be dense, {} and 1",
           input.weight.stride(0), input.weight.stride(1), hidden);
  require_dims("qkv_projection: x_scale", input.x_scale, {n});
  require_dims("qkv_projection: w_scale", input.w_scale, {rows});
  return {n, rows};
}

void qkv_projection(const QkvProjectionInput& input, const QkvProjectionOutput& output) {
  check_output(input, output);
  const FloatFormat& format = float_format(fp8_dtype(input.contract));
  const ProjectionOrder order{input.x8.dim(1)};
  for (std::int64_t token = 0; token < output.qkv.dim(0); ++token)
    for (std::int64_t row = 0; row < output.qkv.dim(1); ++row) {
      std::vector<float> partials(static_cast<std::size_t>(order.slices()), 0.0f);
      for (std::int64_t i = 0; i < order.hidden; ++i) {
        const std::int64_t k = order.k(i);
        float& acc = partials[static_cast<std::size_t>(i / order.slice())];
        acc =
            std::fma(decode(format, input.x8(token, k)), plain_weight(input, format, row, k), acc);
      }
      output.qkv(token, row) = finish(partials, input.x_scale(token), input.w_scale(row));
    }
}

}  // namespace monoref
