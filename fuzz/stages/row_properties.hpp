// Properties of stages that work row by row.
#pragma once

#include <string_view>

#include "fuzz/stage.hpp"

namespace monoref {

/// What must hold of any FP8 row whose scale is a normal number: nothing is NaN, and the largest
/// code is the contract's maximum. A row of zeros has codes of zero and `scale_of_zeros` (bug cases
/// F02, F18). `codes` is [rows, elements], `scales` [rows].
Property rows_fill_the_range(std::string_view codes, std::string_view scales, float scale_of_zeros);

}  // namespace monoref
