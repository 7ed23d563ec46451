// The fast form of the projection: lanes are rows of the weight, and every token's chain takes one
// step a k with 16 of them at once.
#include <algorithm>
#include <vector>

#include "reference/fast/panel_product.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/fp8_rules.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/rules/weight_layouts.hpp"
#include "reference/stages/o_projection.hpp"

namespace monoref {
namespace {

static_assert(kPanelLanes == 16, "a panel holds one group of 16 rows of the weight layout");

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
  require_dims("o_projection: output out", output.out, o_projection_shape(input));
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
        float dot = 0;
        for (const auto& wave : waves) dot += wave[at];
        output.out(token, row) = bf16_from_float((dot * input.a_scale(token)) * input.w_scale(row));
      }
    }
  }
}

}  // namespace monoref
