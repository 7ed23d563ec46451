// Numbers of the tests before attention: exact BF16 constants, rows and views of them.
#pragma once

#include <bit>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "reference/core/tensor.hpp"

namespace monoref::testing {

/// The BF16 code of a number that BF16 holds exactly; anything else is a mistake in the test.
inline std::uint16_t bf16(float exact) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(exact);
  if ((bits & 0xFFFF) != 0) throw std::logic_error("a test calls a number BF16 that is not");
  return static_cast<std::uint16_t>(bits >> 16);
}

inline float from_bf16(std::uint16_t code) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
}

inline std::uint32_t bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

using Codes = std::vector<std::uint16_t>;

inline Codes bf16s(const std::vector<float>& exact) {
  Codes codes;
  for (const float value : exact) codes.push_back(bf16(value));
  return codes;
}

/// Dense views of a vector.
template <class T>
View<T, 1> row_view(std::vector<T>& values) {
  return {values.data(), {static_cast<std::int64_t>(values.size())}, {1}};
}
template <class T>
View<T, 2> matrix_view(std::vector<T>& values, std::int64_t rows) {
  const std::int64_t columns = rows == 0 ? 0 : static_cast<std::int64_t>(values.size()) / rows;
  return {values.data(), {rows, columns}, {columns, 1}};
}

/// The same matrix with its elements in other places: element (row, column) lies at row *
/// row_step + column * column_step. `storage` keeps it.
template <class T>
View<T, 2> scattered(const std::vector<T>& values, std::int64_t rows, std::int64_t row_step,
                     std::int64_t column_step, std::vector<T>& storage) {
  const std::int64_t columns = static_cast<std::int64_t>(values.size()) / rows;
  storage.assign(static_cast<std::size_t>((rows - 1) * row_step + (columns - 1) * column_step + 1),
                 static_cast<T>(0x7FC1));  // a NaN in BF16: whoever reads a gap shows it
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      storage[static_cast<std::size_t>(row * row_step + column * column_step)] =
          values[static_cast<std::size_t>(row * columns + column)];
  return {storage.data(), {rows, columns}, {row_step, column_step}};
}

}  // namespace monoref::testing
