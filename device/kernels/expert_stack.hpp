// Where the experts' weights lie: a stack of matrices in the layouts of shuffle_weight(16, 16) and
// shuffle_scale, with the shared expert in a matrix of its own or as the stack's last (mono-decode
// sections 7 and 9, upstream-semantics section 7.6).
#pragma once

#include <cstdint>

#include "device/kernels/mx_words.hpp"
#include "device/kernels/registers.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

constexpr int kStep = 128;       ///< k of a matrix-core step; all widths are multiples of it
constexpr int kTileRows = 16;    ///< rows whose 16-byte vectors of codes are consecutive
constexpr int kTileTokens = 16;  ///< tokens that share one read of the weights

/// Values of a kernel's `weights` parameter.
constexpr std::int32_t kWeightsMxfp8 = 0;
constexpr std::int32_t kWeightsMxfp4 = 1;

/// One expert's matrix [rows, k].
struct ExpertMatrix {
  const std::uint8_t* codes;   ///< null: there is no such expert
  const std::uint8_t* scales;  ///< of the whole stack that it belongs to
  std::int32_t first_row;      ///< its first row among those of the stack
  bool fp4;
};

/// The experts of a launch.
struct ExpertStack {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  const std::uint8_t* shared_codes;  ///< null: the shared expert is in the stack, or there is none
  const std::uint8_t* shared_scales;
  std::int32_t experts;   ///< of the stack
  std::int32_t n_routed;  ///< the shared expert's id
  std::int32_t rows;      ///< of one expert
  std::int32_t k;
  std::int32_t weights;
  std::int32_t e8m0_zero;

  MONOREF_MEMBER bool has_shared() const { return shared_codes != nullptr || experts > n_routed; }

  /// True if an id names an expert; takes any id.
  MONOREF_MEMBER bool names_expert(std::int32_t id) const {
    return id >= 0 && (id < n_routed || (id == n_routed && has_shared()));
  }

  /// Columns of the scales, padding included.
  MONOREF_MEMBER std::int32_t scale_columns() const {
    const std::int32_t blocks = k / kMxBlock;
    if (MONOREF_FAULT(mx_scale_padding_forgotten, "X01",
                      "scales are indexed by their unpadded count", .stages = {"expert_down"}))
      return blocks;
    return (blocks + 7) / 8 * 8;
  }

  /// The matrix of an id that names an expert.
  MONOREF_MEMBER ExpertMatrix matrix(std::int32_t id) const {
    if (id == n_routed && shared_codes != nullptr) return {shared_codes, shared_scales, 0, false};
    const bool fp4 = weights == kWeightsMxfp4;
    const std::int64_t bytes = std::int64_t{rows} * (fp4 ? k / 2 : k);
    return {codes + id * bytes, scales, id * rows, fp4};
  }

  /// True for sizes and options that the kernels serve.
  MONOREF_MEMBER bool is_valid() const {
    return k >= kStep && k % kStep == 0 && rows >= 1 && rows % 32 == 0 && n_routed >= 1 &&
           (experts == n_routed || (experts == n_routed + 1 && shared_codes == nullptr)) &&
           (weights == kWeightsMxfp8 || weights == kWeightsMxfp4) &&
           std::int64_t{experts} * rows <= INT32_MAX;
  }
};

/// Where a row of a matrix lies: 16 bytes of its codes, then 16 * kTileRows further on the next 16
/// of it; and the first of its scales.
struct MatrixRow {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  std::int32_t blocks;  ///< of the row, without the padding
  std::int32_t scale_columns;

  MONOREF_MEMBER static MatrixRow of(const ExpertStack& stack, const ExpertMatrix& matrix,
                                     std::int32_t row) {
    const std::int32_t row_bytes = matrix.fp4 ? stack.k / 2 : stack.k;
    const auto unsigned_row = static_cast<std::uint32_t>(row);
    std::int64_t at = std::int64_t{unsigned_row / kTileRows * kTileRows} * row_bytes +
                      unsigned_row % kTileRows * 16;
    if (MONOREF_FAULT(mx_weights_not_shuffled, "P07", "weights are read as if plain",
                      .stages = {"expert_up_gate"}))
      at = std::int64_t{row} * row_bytes;
    const std::int32_t columns = stack.scale_columns();
    return {in_global(matrix.codes + at),
            in_global(matrix.scales +
                      shuffled_scale_row(static_cast<std::uint32_t>(matrix.first_row + row),
                                         static_cast<std::uint32_t>(columns))),
            stack.k / kMxBlock, columns};
  }

  /// The 16 bytes of codes that lie `i` vectors behind byte `byte` of the row, a multiple of 16.
  MONOREF_MEMBER const std::uint8_t* vector(std::int32_t byte, int i) const {
    if (MONOREF_FAULT_AT(mx_weights_not_shuffled)) return codes + byte + 16 * i;
    return codes + std::int64_t{byte} * kTileRows + i * 16 * kTileRows;
  }

  MONOREF_MEMBER std::uint32_t scale(std::int32_t block) const {
    if (MONOREF_FAULT(mx_pad_column_read, "X01", "a column of padding is taken for a scale",
                      .stages = {"expert_down"}) &&
        block == blocks - 1 && blocks < scale_columns)
      block += 1;
    return scales[shuffled_scale_column(static_cast<std::uint32_t>(block))];
  }
};

}  // namespace
}  // namespace monoref::kernels
