// Comparing two sets of outputs, bit for bit.
#pragma once

#include <span>

#include "fuzz/stage.hpp"
#include "fuzz/verdict.hpp"

namespace monoref {

/// What unwritten output memory holds. The reference's own outputs start with another pattern, so
/// that an element which neither side writes still shows as a difference.
inline constexpr std::byte kOutputPoison{0xA5};
inline constexpr std::byte kReferencePoison{0x5A};

/// Lays out tensors for `specs`: copies of their input, or poison. With kReferencePoison the
/// elements start as that, and padding between them as kOutputPoison, which nobody may touch.
Outputs make_outputs(const Case& item, std::span<const OutputSpec> specs, std::byte poison);

/// Compares stored bytes where both sides have the same layout (padding included), and elements by
/// coordinates elsewhere. Any NaN equals any NaN if `any_nan` is set: for results from elsewhere.
/// `specified` has an entry per output, null for "everywhere".
void compare_outputs(std::span<const OutputSpec> specs, std::span<const Tensor* const> expected,
                     std::span<const Tensor* const> specified, std::span<const Tensor* const> got,
                     bool any_nan, RunResult& result);

/// Copies the elements (not the padding) of one tensor to another of the same dims and type.
void copy_elements(const Tensor& from, Tensor& to);

/// Reads one element as text: the number, and the bits where they say more.
std::string element_text(const Tensor& tensor, std::int64_t storage_offset);

}  // namespace monoref
