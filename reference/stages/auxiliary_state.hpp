// Stage auxiliary_state: the hidden state between two layers, for those who ask for it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "reference/core/tensor.hpp"

namespace monoref {

struct AuxiliaryStateInput {
  View<const std::uint16_t, 2> hidden;  ///< [rows, hidden] BF16
  /// [rows, hidden] BF16; nothing before the first layer, which has no residual yet
  std::optional<View<const std::uint16_t, 2>> residual;
};

struct AuxiliaryStateOutput {
  View<std::uint16_t, 2> state;  ///< [rows, hidden] BF16
};

/// The dims [rows, hidden] of the output. Refuses a residual of other dims.
std::array<std::int64_t, 2> auxiliary_state_shape(const AuxiliaryStateInput& input);

/// state = bf16(hidden + residual), one BF16 addition; without a residual the bits of hidden, those
/// of a NaN too (mono-decode sections 2 and 10). Refuses what the shape function refuses and an
/// output of other dims, before it writes anything.
void auxiliary_state(const AuxiliaryStateInput& input, const AuxiliaryStateOutput& output);

}  // namespace monoref
