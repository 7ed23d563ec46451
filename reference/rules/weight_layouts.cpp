#include "reference/rules/weight_layouts.hpp"

#include <algorithm>
#include <string_view>

#include "reference/core/error.hpp"

namespace monoref {
namespace {

/// The steps that rows and columns come in.
struct Granule {
  std::int64_t rows;
  std::int64_t columns;
};

constexpr Granule kWeight{16, 32};
constexpr Granule kWeightGateUp{32, 64};
constexpr Granule kScale{32, 8};

enum class Direction { kShuffle, kUnshuffle };

void check(std::string_view name, std::size_t bytes, const ByteMatrix& shape, Granule granule) {
  if (shape.experts < 0 || shape.rows < 0 || shape.rows % granule.rows != 0)
    refuse("{}: shape has {} experts of {} rows, rows must be a multiple of {}", name,
           shape.experts, shape.rows, granule.rows);
  if (shape.columns < 0 || shape.columns % granule.columns != 0)
    refuse("{}: shape has {} columns, must be a multiple of {}", name, shape.columns,
           granule.columns);
  if (static_cast<std::int64_t>(bytes) != shape.bytes())
    refuse("{}: has {} bytes, must have {} as its shape has", name, bytes, shape.bytes());
}

/// Moves every byte between its row-major place and `offset(row, column)` inside its expert.
template <class Offset>
std::vector<std::uint8_t> permute(std::span<const std::uint8_t> from, const ByteMatrix& shape,
                                  Direction direction, Offset offset) {
  std::vector<std::uint8_t> to(from.size());
  std::int64_t plain = 0;
  for (std::int64_t expert = 0; expert < shape.experts; ++expert)
    for (std::int64_t row = 0; row < shape.rows; ++row)
      for (std::int64_t column = 0; column < shape.columns; ++column, ++plain) {
        const std::int64_t shuffled = expert * shape.rows * shape.columns + offset(row, column);
        const bool forward = direction == Direction::kShuffle;
        to[static_cast<std::size_t>(forward ? shuffled : plain)] =
            from[static_cast<std::size_t>(forward ? plain : shuffled)];
      }
  return to;
}

std::vector<std::uint8_t> permute_weight(std::span<const std::uint8_t> from,
                                         const ByteMatrix& shape, Direction direction) {
  check("shuffle_weight", from.size(), shape, kWeight);
  return permute(from, shape, direction, [&](std::int64_t row, std::int64_t column) {
    return shuffled_weight_offset(row, column, shape.columns);
  });
}

std::vector<std::uint8_t> permute_weight_gate_up(std::span<const std::uint8_t> from,
                                                 const ByteMatrix& shape, Direction direction) {
  check("shuffle_weight_gate_up", from.size(), shape, kWeightGateUp);
  return permute(from, shape, direction, [&](std::int64_t row, std::int64_t column) {
    return shuffled_weight_offset(interleaved_gate_up_row(row, shape.rows), column, shape.columns);
  });
}

std::vector<std::uint8_t> permute_scale(std::span<const std::uint8_t> from, const ByteMatrix& shape,
                                        Direction direction) {
  check("shuffle_scale", from.size(), shape, kScale);
  return permute(from, shape, direction, [&](std::int64_t row, std::int64_t column) {
    return shuffled_scale_offset(row, column, shape.columns);
  });
}

std::vector<std::uint8_t> permute_scale_gate_up(std::span<const std::uint8_t> from,
                                                const ByteMatrix& shape, Direction direction) {
  check("shuffle_scale_gate_up", from.size(), shape, kScale);
  return permute(from, shape, direction, [&](std::int64_t row, std::int64_t column) {
    return shuffled_scale_offset(interleaved_gate_up_row(row, shape.rows), column, shape.columns);
  });
}

std::int64_t rounded_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace

std::vector<std::uint8_t> shuffle_weight(std::span<const std::uint8_t> weight,
                                         const ByteMatrix& shape) {
  return permute_weight(weight, shape, Direction::kShuffle);
}

std::vector<std::uint8_t> unshuffle_weight(std::span<const std::uint8_t> shuffled,
                                           const ByteMatrix& shape) {
  return permute_weight(shuffled, shape, Direction::kUnshuffle);
}

std::vector<std::uint8_t> shuffle_weight_gate_up(std::span<const std::uint8_t> weight,
                                                 const ByteMatrix& shape) {
  return permute_weight_gate_up(weight, shape, Direction::kShuffle);
}

std::vector<std::uint8_t> unshuffle_weight_gate_up(std::span<const std::uint8_t> shuffled,
                                                   const ByteMatrix& shape) {
  return permute_weight_gate_up(shuffled, shape, Direction::kUnshuffle);
}

std::vector<std::uint8_t> shuffle_scale(std::span<const std::uint8_t> scale,
                                        const ByteMatrix& shape) {
  return permute_scale(scale, shape, Direction::kShuffle);
}

std::vector<std::uint8_t> unshuffle_scale(std::span<const std::uint8_t> shuffled,
                                          const ByteMatrix& shape) {
  return permute_scale(shuffled, shape, Direction::kUnshuffle);
}

std::vector<std::uint8_t> shuffle_scale_gate_up(std::span<const std::uint8_t> scale,
                                                const ByteMatrix& shape) {
  return permute_scale_gate_up(scale, shape, Direction::kShuffle);
}

std::vector<std::uint8_t> unshuffle_scale_gate_up(std::span<const std::uint8_t> shuffled,
                                                  const ByteMatrix& shape) {
  return permute_scale_gate_up(shuffled, shape, Direction::kUnshuffle);
}

ByteMatrix padded_scale_shape(const ByteMatrix& shape) {
  return {1, rounded_up(shape.experts * shape.rows, 256), rounded_up(shape.columns, 8)};
}

std::vector<std::uint8_t> pad_scale(std::span<const std::uint8_t> scale, const ByteMatrix& shape) {
  check("pad_scale", scale.size(), shape, {1, 1});
  const ByteMatrix padded = padded_scale_shape(shape);
  std::vector<std::uint8_t> all(static_cast<std::size_t>(padded.bytes()), kScalePad);
  for (std::int64_t row = 0; row < shape.experts * shape.rows; ++row)
    std::copy_n(scale.begin() + row * shape.columns, shape.columns,
                all.begin() + row * padded.columns);
  return all;
}

}  // namespace monoref
