// The experts' weights as the fast matrix products take them: decoded, 16 rows side by side.
#pragma once

#include "reference/fast/isa.hpp"
#include "reference/fast/panel_product.hpp"
#include "reference/rules/expert_weights.hpp"

namespace monoref {

/// Floats of one step of 16 rows.
inline constexpr std::size_t kExpertPanel = kExpertStep * kPanelLanes;

/// The numbers of `read_weights` for k first_k .. first_k + 127 of rows first_row .. first_row +
/// 15, as [128][16 rows]; NaN may be any NaN. first_row must be a multiple of 16, first_k of 128.
void decode_expert_panel(const ExpertMatrix& matrix, std::int64_t first_row, std::int64_t first_k,
                         E8M0Zero zero, float* panel, Isa isa);

/// Columns for the panel product, in tiles of kPanelColumns: [tile][k][column of the tile], zeros
/// where there are no more.
class ColumnTiles {
 public:
  ColumnTiles() = default;
  ColumnTiles(std::size_t columns, std::size_t depth)
      : depth_(depth),
        tiles_((columns + kPanelColumns - 1) / kPanelColumns),
        values_(tiles_ * depth * kPanelColumns, 0.0f) {}

  std::size_t tiles() const { return tiles_; }
  float& at(std::size_t column, std::size_t k) {
    return values_[(column / kPanelColumns * depth_ + k) * kPanelColumns + column % kPanelColumns];
  }
  const float* tile(std::size_t tile, std::size_t k) const {
    return values_.data() + (tile * depth_ + k) * kPanelColumns;
  }

 private:
  std::size_t depth_ = 0;
  std::size_t tiles_ = 0;
  std::vector<float> values_;
};

/// Multiply-adds below which a product stays on one thread: starting others costs more.
inline constexpr std::int64_t kParallelWork = std::int64_t{1} << 22;

}  // namespace monoref
