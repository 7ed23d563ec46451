// Stage row_quant: the merged attention of a row to FP8 with one scale.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

struct RowQuantInput {
  View<const std::uint16_t, 2> a;  ///< [n, width] BF16, any strides
  Contract contract{};
};

struct RowQuantOutput {
  View<std::uint8_t, 2> a8;  ///< [n, width] codes of the contract's FP8
  View<float, 1> a_scale;    ///< [n] binary32; a code stands for code * scale
};

/// The dims [n, width] of the codes. Refuses a row without elements, and the contract if its FP8
/// maximum is none of its encoding.
std::array<std::int64_t, 2> row_quant_shape(const RowQuantInput& input);

/// Per row, in binary32 (mono-decode sections 6 and 10):
///
///   amax = max |a[i]|, NaN if any is;  scale = amax * f32(1/448)
///   a8[i] = fp8(a[i] * (1 / scale)), the reciprocal correctly rounded
///
/// A row of zeros has scale 0 and codes of +0, whatever the signs of its zeros: the one exception,
/// since 1 / 0 would make it NaN (bug case F18). 448 is the contract's FP8 maximum. Conversion does
/// not clamp unless the contract saturates. Where 1 / scale is infinite (amax below 448 * 2^-128)
/// every element is infinite or NaN before its conversion. A NaN makes the row's scale and all its
/// codes NaN.
///
/// Refuses what the shape function refuses and outputs of other dims, before it writes anything.
void row_quant(const RowQuantInput& input, const RowQuantOutput& output);

}  // namespace monoref
