// What a stage can take from a case that somebody else made: cases also come from files.
#pragma once

#include <cstdint>
#include <string>

#include "fuzz/stage.hpp"

namespace monoref {

/// Most elements between two rows of an output. It bounds what a case can make us allocate.
inline constexpr std::int64_t kMaxRowGap = 256;

/// Refuses inputs that are not what `stage.inputs` says: one that is missing, that the stage does
/// not know, of another type or rank, whose elements lie otherwise, or with 2^31 and more of them
/// along an axis. The message names stage, input, what it is and what it must be.
void check_inputs(const Stage& stage, const Case& item);

/// The stage with `check_inputs` before its `outputs`; as it is if it lists no inputs.
Stage with_checked_inputs(Stage stage);

/// An integer parameter of a case. Refuses one outside `low` to `high`.
std::int64_t ranged_parameter(const Case& item, const std::string& key, std::int64_t low,
                              std::int64_t high);
/// An integer parameter of a case that a kernel takes in 32 bits. Refuses others.
std::int32_t int32_parameter(const Case& item, const std::string& key);
/// A parameter that is 0 or 1. Refuses others.
bool flag_parameter(const Case& item, const std::string& key);
/// Elements between the rows of an output, 0 if the case does not say. Refuses negative gaps and
/// those beyond kMaxRowGap.
std::int64_t row_gap(const Case& item, const std::string& key);

}  // namespace monoref
