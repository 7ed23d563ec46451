// Vectors of four and eight numbers of a row, moved as one where the row allows it.
#pragma once

#include <cstdint>

#include "device/kernels/number_formats.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

/// A row of elements: where it starts, and how many elements lie from one to the next.
template <class Element>
struct Row {
  Element* data;
  std::int64_t stride;

  MONOREF_MEMBER Element& operator[](std::int64_t i) const { return data[i * stride]; }
};

/// True if an 8-byte access at `address` is aligned.
MONOREF_DEVICE bool aligned8(const void* address) {
  return (reinterpret_cast<std::uintptr_t>(address) & 7) == 0;
}

/// Loads or stores 8 bytes. The address is a multiple of 8.
MONOREF_DEVICE std::uint64_t load8(const void* from) {
  simt::demand_aligned(from, 8);
  std::uint64_t bits;
  __builtin_memcpy(&bits, __builtin_assume_aligned(from, 8), 8);
  return bits;
}
MONOREF_DEVICE void store8(void* to, std::uint32_t low, std::uint32_t high) {
  simt::demand_aligned(to, 8);
  const std::uint64_t bits = low | std::uint64_t{high} << 32;
  __builtin_memcpy(__builtin_assume_aligned(to, 8), &bits, 8);
}

/// The two bf16 of a word, the first in the low half.
MONOREF_DEVICE void split_bf16_pair(std::uint32_t word, float* values) {
  values[0] = float_of_bf16(static_cast<std::uint16_t>(word));
  values[1] = float_of_bf16(static_cast<std::uint16_t>(word >> 16));
}

/// Elements first .. first + 7 of a row of bf16: one load of 16 bytes, if the row is dense and the
/// vector starts on a multiple of 16.
MONOREF_DEVICE void load_eight(const Row<const std::uint16_t>& row, std::int64_t first,
                               float (&values)[8]) {
  if (row.stride == 1 && aligned16(row.data + first)) {
    const simt::Vec16 vector = simt::load16(row.data + first);
    for (int i = 0; i < 4; ++i) split_bf16_pair(vector.word[i], values + 2 * i);
    return;
  }
  for (int i = 0; i < 8; ++i) values[i] = float_of_bf16(row[first + i]);
}

/// Elements first .. first + 3 of a row of bf16: one load of 8 bytes where possible.
MONOREF_DEVICE void load_four(const Row<const std::uint16_t>& row, std::int64_t first,
                              float (&values)[4]) {
  if (row.stride == 1 && aligned8(row.data + first)) {
    const std::uint64_t vector = load8(row.data + first);
    split_bf16_pair(static_cast<std::uint32_t>(vector), values);
    split_bf16_pair(static_cast<std::uint32_t>(vector >> 32), values + 2);
    return;
  }
  for (int i = 0; i < 4; ++i) values[i] = float_of_bf16(row[first + i]);
}

/// Stores bf16(values) as one vector of 16 or 8 bytes where the address allows it.
MONOREF_DEVICE void store_eight_bf16(std::uint16_t* to, const float (&values)[8]) {
  if (aligned16(to)) {
    simt::store16(to, {{bf16_pair(values[0], values[1]), bf16_pair(values[2], values[3]),
                        bf16_pair(values[4], values[5]), bf16_pair(values[6], values[7])}});
    return;
  }
  for (int i = 0; i < 8; ++i) to[i] = bf16_of(values[i]);
}
MONOREF_DEVICE void store_four_bf16(std::uint16_t* to, const float (&values)[4]) {
  if (aligned8(to)) {
    store8(to, bf16_pair(values[0], values[1]), bf16_pair(values[2], values[3]));
    return;
  }
  for (int i = 0; i < 4; ++i) to[i] = bf16_of(values[i]);
}

/// Stores e4m3(values) as one vector of 8 bytes where the address allows it.
MONOREF_DEVICE void store_eight_e4m3(std::uint8_t* to, const float (&values)[8],
                                     const E4m3& format) {
  if (aligned8(to)) {
    store8(to, e4m3_quad(values, format), e4m3_quad(values + 4, format));
    return;
  }
  for (int i = 0; i < 8; ++i) to[i] = e4m3_of(values[i], format);
}

/// Stores four f32, NaN made canonical, as one vector of 16 bytes where the address allows it.
MONOREF_DEVICE void store_four_f32(float* to, const float (&values)[4]) {
  if (aligned16(to)) {
    simt::Vec16 vector;
    for (int i = 0; i < 4; ++i)
      vector.word[i] = simt::bit_cast<std::uint32_t>(canonical(values[i]));
    simt::store16(to, vector);
    return;
  }
  for (int i = 0; i < 4; ++i) to[i] = canonical(values[i]);
}

}  // namespace
}  // namespace monoref::kernels
