// The fast form of the projection. Lanes are rows of the weight: a chunk of 64 k of 16 rows is
// decoded into a panel [k][row] in walking order, and every token's chain takes one step a k with
// all 16 rows at once.
#include <algorithm>
#include <vector>

#include "reference/fast/panel_product.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/fp8_rules.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/stages/qkv_projection.hpp"

namespace monoref {
namespace {

constexpr std::size_t kRows = kPanelLanes;  ///< 16, of a group of the weight layout
constexpr std::size_t kTokens = kPanelColumns;
constexpr std::size_t kChunk = ProjectionOrder::kChunk;

/// Decoded operands of one call, tokens padded to whole tiles with zeros.
struct Operands {
  std::size_t hidden = 0;
  std::size_t tiles = 0;
  std::size_t slice = 0;
  std::vector<float> x;  ///< [tile][place in the walk][token of the tile]
  const std::uint8_t* weight = nullptr;
  const float* table = nullptr;  ///< value of each code
};

/// [16 rows] of every token, of one slice or of the whole dot.
using Sums = std::vector<float>;

Operands decode_operands(const QkvProjectionInput& input) {
  const ProjectionOrder order{input.x8.dim(1)};
  const auto tokens = static_cast<std::size_t>(input.x8.dim(0));
  Operands made;
  made.hidden = static_cast<std::size_t>(order.hidden);
  made.tiles = (tokens + kTokens - 1) / kTokens;
  made.slice = static_cast<std::size_t>(order.slice());
  made.weight = input.weight.data();
  made.table = decode_table(float_format(fp8_dtype(input.contract))).data();
  made.x.assign(made.tiles * made.hidden * kTokens, 0.0f);
  for (std::size_t token = 0; token < tokens; ++token) {
    float* tile = made.x.data() + token / kTokens * made.hidden * kTokens + token % kTokens;
    for (std::size_t i = 0; i < made.hidden; ++i)
      tile[i * kTokens] = made.table[input.x8(token, order.k(static_cast<std::int64_t>(i)))];
  }
  return made;
}

/// 64 k of 16 rows: in memory two pairs of halves, each [16 rows][16 bytes]; a half holds two
/// groups of eight, and the walk takes the first of every half, then the second.
void decode_panel(const std::uint8_t* chunk, const float* table, float* panel) {
  for (std::size_t half = 0; half < 4; ++half)
    for (std::size_t row = 0; row < kRows; ++row) {
      const std::uint8_t* bytes = chunk + half * 256 + row * 16;
      for (std::size_t i = 0; i < 8; ++i) {
        panel[(half * 8 + i) * kRows + row] = table[bytes[i]];
        panel[(32 + half * 8 + i) * kRows + row] = table[bytes[8 + i]];
      }
    }
}

/// The dots of one group of 16 rows with every token: slices in order from 0.
void multiply_group(const Operands& operands, std::size_t group, PanelProduct product,
                    Sums& partial, Sums& total) {
  const std::uint8_t* weight = operands.weight + group * kRows * operands.hidden;
  float panel[kChunk * kRows];
  std::fill(total.begin(), total.end(), 0.0f);
  for (std::size_t first = 0; first < operands.hidden; first += operands.slice) {
    std::fill(partial.begin(), partial.end(), 0.0f);
    for (std::size_t k = first; k < first + operands.slice; k += kChunk) {
      decode_panel(weight + k * kRows, operands.table, panel);
      for (std::size_t tile = 0; tile < operands.tiles; ++tile)
        product(panel, operands.x.data() + (tile * operands.hidden + k) * kTokens, kChunk,
                partial.data() + tile * kTokens * kRows);
    }
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += partial[i];
  }
}

void store(const QkvProjectionInput& input, const QkvProjectionOutput& output, std::size_t group,
           const Sums& total) {
  for (std::int64_t token = 0; token < output.qkv.dim(0); ++token)
    for (std::size_t row = 0; row < kRows; ++row) {
      const std::size_t to = group * kRows + row;
      const float dot = total[static_cast<std::size_t>(token) * kRows + row];
      output.qkv(token, to) = bf16_from_float((dot * input.x_scale(token)) * input.w_scale(to));
    }
}

}  // namespace

void qkv_projection_fast(const QkvProjectionInput& input, const QkvProjectionOutput& output,
                         Isa isa) {
  require_dims("qkv_projection: output qkv", output.qkv, qkv_projection_shape(input));
  const Operands operands = decode_operands(input);
  const PanelProduct product = panel_product_for(isa);
  Sums partial(operands.tiles * kTokens * kRows);
  Sums total(partial.size());
  const auto groups = static_cast<std::size_t>(output.qkv.dim(1)) / kRows;
  for (std::size_t group = 0; group < groups; ++group) {
    multiply_group(operands, group, product, partial, total);
    store(input, output, group, total);
  }
}

}  // namespace monoref
