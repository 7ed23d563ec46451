// Words of four E4M3 codes in inner loops, where a code is decoded once and multiplied many times.
//
// A code's fields, put where binary32 has its own, are a number too: the code's value times
// 2^(bias - 127), its field value. Multiplying it back would cost as much as an fma that uses it.
// Instead the other factor of every product, which is made once, carries 2^119. Products and sums
// are then the true ones times 1/2 (FN) or 1 (FNUZ). That is exact: E4M3 products are multiples of
// 2^-18 (2^-20) and a sum of a million of them is below 2^38, so every fma rounds just as it does
// on the true numbers, and the result needs one multiplication by a power of two.
#pragma once

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

constexpr std::int32_t kCarriedExponent = 119;

/// Four neighbouring numbers.
struct Four {
  float value[4];
};

MONOREF_DEVICE Four load_staged(const float* from) {
  return simt::bit_cast<Four>(simt::load16(from));
}
MONOREF_DEVICE void store_staged(float* to, const Four& numbers) {
  simt::store16(to, simt::bit_cast<simt::Vec16>(numbers));
}

/// The bits of `nan_marks` that count.
constexpr std::uint32_t kNanMarks = 0x80808080;

/// Marks of NaN among the codes of a word: a bit of kNanMarks if there is one; other bits are
/// arbitrary. The marks of many words are joined and tested once. A product with NaN is NaN, and
/// so is every sum that it enters. Loops over codes therefore take a NaN for the number that its
/// bits look like, without a branch between their loads and their fmas, and gather marks.
MONOREF_DEVICE std::uint32_t nan_marks(std::uint32_t word, const E4m3& format) {
  constexpr std::uint32_t kOnes = 0x01010101;
  const std::uint32_t zero_if_nan = (word ^ format.nan * kOnes) & format.nan_mask * kOnes;
  return (zero_if_nan - kOnes) & ~zero_if_nan;
}

/// Same for a vector of words: not 0 if there is a NaN.
MONOREF_DEVICE std::uint32_t nan_marks(const simt::Vec16& vector, const E4m3& format) {
  std::uint32_t marks = 0;
  for (const std::uint32_t word : vector.word) marks |= nan_marks(word, format);
  return marks & kNanMarks;
}

/// A sum, or NaN if codes that it holds were marked.
MONOREF_DEVICE float unless_nan(std::uint32_t marks, float sum) {
  return marks == 0 ? sum : simt::bit_cast<float>(kCanonicalNanBits);
}

/// The values of a word's codes times 2^(bias - 127), the first code being the low byte. A NaN
/// becomes the number that its bits look like.
MONOREF_DEVICE Four field_values(std::uint32_t word) {
  Four numbers;
  for (int i = 0; i < 4; ++i) {
    // Shifting the sign down with the code leaves it in place as well: one mask takes both.
    const auto top = static_cast<std::int32_t>(word << (24 - 8 * i));
    numbers.value[i] = simt::bit_cast<float>(static_cast<std::uint32_t>(top >> 4) & 0x87F00000);
  }
  return numbers;
}

/// The codes' values; of NaN as `field_values` says.
MONOREF_DEVICE Four true_values(std::uint32_t word, const E4m3& format) {
  const float scale = power_of_two(127 - format.bias);
  Four numbers = field_values(word);
  for (int i = 0; i < 4; ++i) numbers.value[i] *= scale;
  return numbers;
}

/// A code's value times 2^119: the other factor of a product with field values.
MONOREF_DEVICE float carried_value(std::uint32_t code, const E4m3& format) {
  return float_of_e4m3(code, format) * power_of_two(kCarriedExponent);
}

/// The codes of a word as `carried_value`s, NaN among them.
MONOREF_DEVICE Four carried_values(std::uint32_t word, const E4m3& format) {
  Four numbers;
  for (int i = 0; i < 4; ++i) numbers.value[i] = carried_value(word >> 8 * i & 0xFF, format);
  return numbers;
}

/// The true value of a sum of products of carried and field values.
MONOREF_DEVICE float true_sum(float sum, const E4m3& format) {
  return sum * power_of_two(127 - kCarriedExponent - format.bias);
}

}  // namespace
}  // namespace monoref::kernels
