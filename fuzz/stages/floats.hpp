// Numbers that floating-point stages are tried with, and tensors of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "fuzz/params.hpp"
#include "fuzz/random.hpp"
#include "golden/case.hpp"
#include "reference/core/tensor.hpp"
#include "reference/formats/float_format.hpp"

namespace monoref {

/// What numbers look like; the words of `floats_dimension`.
enum class Floats : std::uint8_t {
  kOrdinary,  ///< both signs, 2^-6 to 2^6, every mantissa bit
  kWide,      ///< any finite number
  kTies,      ///< half way between neighbours of an E4M3 format
  kNearTies,  ///< next to those: what a second rounding gets wrong
  kOverflow,  ///< around 240, 448 and what still rounds to them, and far beyond
  kTiny,      ///< around half of the smallest E4M3 numbers, zeros of both signs, subnormals
  kSpecial,   ///< NaN of several bits, infinities, zeros and extremes between ordinary numbers
  kZero,
};
Dimension floats_dimension(std::string_view name, std::string_view meaning);

/// One number.
float draw_float(Floats kind, CounterRandom& random);
/// The same as a BF16 code: cut off, so that ties stay ties and their neighbours become BF16's.
std::uint16_t draw_bf16(Floats kind, CounterRandom& random);

/// A tensor of any layout whose elements come from `draw`, in row-major order, as bits; storage
/// between them is poison. Types of up to 4 bytes.
Tensor drawn_tensor(DType type, Layout layout, const std::function<std::uint32_t()>& draw);

/// Rows of `width` elements `step` apart, and `gap` more elements between rows.
Layout gapped_rows(std::int64_t rows, std::int64_t width, std::int64_t step, std::int64_t gap);

/// An FP8 code; NaN only if asked for.
std::uint8_t draw_code(const FloatFormat& format, bool with_nan, CounterRandom& random);

/// Replaces an input of a case that is being built or varied.
void replace_input(Case& item, std::string_view name, Tensor tensor);

}  // namespace monoref
