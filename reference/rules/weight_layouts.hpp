// The orders in which weights and their block scales lie in memory (mono-decode sections 7 and 9,
// upstream-semantics section 7.6). All of them permute bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace monoref {

/// A stack of row-major byte matrices, one an expert. For packed MXFP4 a row's bytes hold two
/// values each; for scales a byte is the E8M0 scale of 32 values.
struct ByteMatrix {
  std::int64_t experts = 1;
  std::int64_t rows = 0;     ///< of one expert
  std::int64_t columns = 0;  ///< bytes of a row

  std::int64_t bytes() const { return experts * rows * columns; }
};

/// Where byte `column` of row `row` of a matrix [rows, columns] goes under `shuffle_weight(16,16)`:
/// view [N/16, 16n, K/32, 2, 16B] ordered (N/16, K/32, 2, 16n, 16B).
constexpr std::int64_t shuffled_weight_offset(std::int64_t row, std::int64_t column,
                                              std::int64_t columns) {
  return row / 16 * (16 * columns) + column / 32 * 512 + column % 32 / 16 * 256 + row % 16 * 16 +
         column % 16;
}

/// Where the scale at (row, column) goes under `shuffle_scale`: view [m/32, 2, 16, n/8, 2, 4]
/// permuted (0, 3, 5, 2, 4, 1).
constexpr std::int64_t shuffled_scale_offset(std::int64_t row, std::int64_t column,
                                             std::int64_t columns) {
  return row / 32 * (32 * columns) + column / 8 * 256 + column % 4 * 64 + row % 16 * 4 +
         column % 8 / 4 * 2 + row % 32 / 16;
}

/// The row that a row of W13 (gate rows, then as many up rows) takes in the interleaved form:
/// groups of 16 gate rows and 16 up rows alternate.
constexpr std::int64_t interleaved_gate_up_row(std::int64_t row, std::int64_t rows) {
  const std::int64_t half = rows / 2;
  return row % half / 16 * 32 + row / half * 16 + row % 16;
}

/// Permutes a whole stack; `unshuffle_*` are the inverses. Each refuses a size that is not the
/// shape's, rows that are not a multiple of 16 (32 for scales and for the interleaved forms) and
/// columns that are not a multiple of 32 (64 for interleaved weights, 8 for scales).
std::vector<std::uint8_t> shuffle_weight(std::span<const std::uint8_t> weight,
                                         const ByteMatrix& shape);
std::vector<std::uint8_t> unshuffle_weight(std::span<const std::uint8_t> shuffled,
                                           const ByteMatrix& shape);
/// W13 [E, gate rows then up rows, K] to [E, I/16, gate/up, K/64, 4, 16n, 16B].
std::vector<std::uint8_t> shuffle_weight_gate_up(std::span<const std::uint8_t> weight,
                                                 const ByteMatrix& shape);
std::vector<std::uint8_t> unshuffle_weight_gate_up(std::span<const std::uint8_t> shuffled,
                                                   const ByteMatrix& shape);
std::vector<std::uint8_t> shuffle_scale(std::span<const std::uint8_t> scale,
                                        const ByteMatrix& shape);
std::vector<std::uint8_t> unshuffle_scale(std::span<const std::uint8_t> shuffled,
                                          const ByteMatrix& shape);
/// Scales of W13: [E, 2, N1, 16, K1, 2, 4] ordered (E, N1, K1, 4, 16, 2 K, 2 N).
std::vector<std::uint8_t> shuffle_scale_gate_up(std::span<const std::uint8_t> scale,
                                                const ByteMatrix& shape);
std::vector<std::uint8_t> unshuffle_scale_gate_up(std::span<const std::uint8_t> shuffled,
                                                  const ByteMatrix& shape);

/// What pads a scale matrix: the scale 1.
inline constexpr std::uint8_t kScalePad = 0x7F;

/// The shape that AITER pads a scale matrix to before shuffling: all rows of the stack to a
/// multiple of 256, columns to a multiple of 8. The result counts as one expert.
ByteMatrix padded_scale_shape(const ByteMatrix& shape);
/// The scales in that shape, the rest filled with kScalePad.
std::vector<std::uint8_t> pad_scale(std::span<const std::uint8_t> scale, const ByteMatrix& shape);

}  // namespace monoref
