// Stage final_norm: the model's own norm after the last layer.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/tensor.hpp"

namespace monoref {

struct FinalNormInput {
  View<const std::uint16_t, 2> ar;   ///< [rows, hidden] BF16, the reduced output of the last layer
  View<const std::uint16_t, 2> res;  ///< [rows, hidden] BF16, the residual it returned
  View<const std::uint16_t, 1> gamma;  ///< [hidden] BF16; the weight is gamma + 1
  double eps = 1e-6;                   ///< rounded to binary32 once
};

struct FinalNormOutput {
  View<std::uint16_t, 2> out;  ///< [rows, hidden] BF16
};

/// The dims [rows, hidden] of the output. Refuses hidden that is not a multiple of 8 up to 8192; a
/// residual or gamma of other dims; and an eps that is not above 0 and finite in binary32.
std::array<std::int64_t, 2> final_norm_shape(const FinalNormInput& input);

/// Per row, in binary32 (mono-decode sections 2 and 10, upstream-semantics section 3.1): the Gemma
/// RMSNorm in the order of the input norm, see residual_norm_quant,
///
///   acc[i] = ar[i] + res[i];  out[i] = bf16((acc[i] * rsq(ss / hidden + eps)) * (gamma[i] + 1))
///
/// with ss over the unrounded sums. This module is the model's and no part of the mono kernels, so
/// no choice of theirs applies to it. A NaN in a row makes the row NaN.
///
/// Refuses what the shape function refuses and an output of other dims, before it writes anything.
void final_norm(const FinalNormInput& input, const FinalNormOutput& output);

}  // namespace monoref
