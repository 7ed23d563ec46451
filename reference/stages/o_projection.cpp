#include "reference/stages/o_projection.hpp"

#include <algorithm>
#include <vector>

#include "reference/arithmetic/reduce.hpp"
#include "reference/fast/panel_product.hpp"
#include "reference/rules/fp8_rules.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/rules/weight_layouts.hpp"

namespace monoref {
namespace {

static_assert(kPanelLanes == 16, "a panel holds one group of 16 rows of the weight layout");

std::uint16_t finish(std::span<const float> partials, float a_scale, float w_scale) {
  const float dot = sum_in_order(partials, SumStart::kZero);
  return bf16_from_float((dot * a_scale) * w_scale);
}

void check_output(const OProjectionInput& input, const OProjectionOutput& output) {
  require_dims("o_projection: output out", output.out, o_projection_shape(input));
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
  check_output(input, output);
  const FloatFormat& format = float_format(fp8_dtype(input.contract));
  for (std::int64_t row = 0; row < output.out.dim(1); ++row) {
    const std::vector<float> w = plain_row(input, format, row);
    for (std::int64_t token = 0; token < output.out.dim(0); ++token)
      output.out(token, row) = finish(wave_partials(token_row(input, format, token), w),
                                      input.a_scale(token), input.w_scale(row));
  }
}

namespace {

/// Tokens as columns: [tile][k][kPanelColumns], padded with zeros.
std::vector<float> token_columns(const OProjectionInput& input, const float* table) {
  const auto tokens = static_cast<std::size_t>(input.a8.dim(0));
  const auto width = static_cast<std::size_t>(input.a8.dim(1));
  std::vector<float> columns((tokens + kPanelColumns - 1) / kPanelColumns * width * kPanelColumns,
                             0.0f);
  for (std::size_t token = 0; token < tokens; ++token)
    for (std::size_t k = 0; k < width; ++k)
      columns[(token / kPanelColumns * width + k) * kPanelColumns + token % kPanelColumns] =
          table[input.a8(token, k)];
  return columns;
}

/// 16 rows of the weight as a panel [k][row].
void fill_panel(const OProjectionInput& input, const float* table, std::int64_t first_row,
                std::vector<float>& panel) {
  const std::int64_t width = input.weight.dim(1);
  for (std::int64_t k = 0; k < width; ++k)
    for (std::int64_t row = 0; row < 16; ++row)
      panel[static_cast<std::size_t>(k * 16 + row)] =
          table[input.weight.data()[shuffled_weight_offset(first_row + row, k, width)]];
}

}  // namespace

void o_projection_fast(const OProjectionInput& input, const OProjectionOutput& output, Isa isa) {
  check_output(input, output);
  const float* table = decode_table(float_format(fp8_dtype(input.contract))).data();
  const PanelProduct product = panel_product_for(isa);
  const auto width = static_cast<std::size_t>(input.a8.dim(1));
  const auto tokens = static_cast<std::size_t>(input.a8.dim(0));
  const std::size_t quarter = width / kOProjectionWaves;
  constexpr std::size_t kTile = kPanelColumns * kPanelLanes;
  const std::vector<float> columns = token_columns(input, table);
  std::vector<float> panel(width * kPanelLanes);
  for (std::int64_t first_row = 0; first_row < output.out.dim(1); first_row += 16) {
    fill_panel(input, table, first_row, panel);
    for (std::size_t tile = 0; tile < tokens; tile += kPanelColumns) {
      float waves[kOProjectionWaves][kTile] = {};
      for (std::size_t wave = 0; wave < kOProjectionWaves; ++wave)
        product(panel.data() + wave * quarter * kPanelLanes,
                columns.data() + tile * width + wave * quarter * kPanelColumns, quarter,
                waves[wave]);
      for (std::size_t at = 0; at < std::min(kPanelColumns, tokens - tile) * kPanelLanes; ++at) {
        const std::size_t token = tile + at / kPanelLanes;
        const std::int64_t row = first_row + static_cast<std::int64_t>(at % kPanelLanes);
        const float partials[] = {waves[0][at], waves[1][at], waves[2][at], waves[3][at]};
        output.out(token, row) = finish(partials, input.a_scale(token), input.w_scale(row));
      }
    }
  }
}

}  // namespace monoref
