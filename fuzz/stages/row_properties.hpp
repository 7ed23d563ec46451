// Properties of stages that work row by row.
#pragma once

#include <string_view>
#include <vector>

#include "fuzz/stage.hpp"

namespace monoref {

/// Every output's rows (axis 0) come in reversed order if those of `inputs` do, and are otherwise
/// the same bits. The first of `inputs` says how many rows there are.
Property row_independence(std::vector<std::string_view> inputs);

/// What must hold of any FP8 row whose scale is a normal number: nothing is NaN, and the largest
/// code is the contract's maximum. A row of zeros has codes of zero and `scale_of_zeros` (bug cases
/// F02, F18). `codes` is [rows, elements], `scales` [rows].
Property rows_fill_the_range(std::string_view codes, std::string_view scales, float scale_of_zeros);

}  // namespace monoref
