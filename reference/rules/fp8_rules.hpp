// What a contract says about FP8, in the terms of the number formats.
#pragma once

#include <cstdint>

#include "reference/core/contract.hpp"
#include "reference/core/dtype.hpp"
#include "reference/formats/convert.hpp"
#include "reference/formats/float_format.hpp"

namespace monoref {

/// The FP8 of one contract (mono-decode section 8).
struct Fp8Rules {
  FloatFormat format;
  Overflow overflow;

  std::uint8_t encode(float value) const { return encode_fp8(format, value, overflow); }
  float decode(std::uint8_t code) const { return decode_fp8(format, code); }
};

Fp8Rules fp8_rules(const Contract& contract);

/// The element type of codes in the contract's encoding.
DType fp8_dtype(const Contract& contract);

/// What the largest element of a scaled row becomes: 448, 240 or 224. Refuses a maximum that the
/// encoding cannot hold: 448 is no number of E4M3FNUZ, and scaling to it would push the largest
/// elements of every row past 240 (bug case F02).
float fp8_maximum(const Contract& contract);

}  // namespace monoref
