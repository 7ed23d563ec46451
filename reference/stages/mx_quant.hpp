// Stage mx_quant: rows to MXFP8, 32 elements a scale.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

struct MxQuantInput {
  const Tensor& x;  ///< [rows, width], BF16 or binary32, any strides
  Contract contract{};
};

struct MxQuantOutput {
  View<std::uint8_t, 2> codes;   ///< [rows, width] E4M3FN
  View<std::uint8_t, 2> scales;  ///< [rows, width / 32] E8M0; a code stands for code * scale
};

/// The dims [rows, width] of the codes. Refuses an x of another rank or type, and a width that is
/// not a multiple of 32, or 0.
std::array<std::int64_t, 2> mx_quant_shape(const MxQuantInput& input);

/// Per block of 32 neighbouring elements of a row (mono-decode section 7, upstream-semantics
/// section 7.4):
///
///   amax  = max |x[i]|, NaN if any is;  e = the byte of the contract's mx_rule for amax
///   codes = e4m3(clamp(x[i] * 2^(127 - e), -448, 448)), one binary32 product; NaN stays NaN
///
/// Codes are E4M3FN whatever the contract's FP8 encoding. Byte 255, which some rules give for Inf
/// and NaN, makes every code of its block NaN; the rules that stop at 254 leave a NaN in its own
/// element (mono-decode section 10). Byte 0 divides by 2^-127, whatever it is read as later.
///
/// Refuses what the shape function refuses and outputs of other dims, before it writes anything.
void mx_quant(const MxQuantInput& input, const MxQuantOutput& output);

}  // namespace monoref
