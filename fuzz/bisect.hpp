// Where two computations of a case part: the first stage, the first element, and what led there.
#pragma once

#include <string>

#include "fuzz/stage.hpp"
#include "fuzz/verdict.hpp"

namespace monoref {

/// Describes the difference that decided a failed run, in lines: the stage of a chain that made the
/// output, the element with both values, and of every tensor and scalar that went into that stage
/// the values at the element's row. Empty if nothing failed.
std::string bisection_text(const Stage& stage, const Case& item, const CaseResult& result);

/// Runs the reference under the case's contract and under `other`, and describes in the same form
/// where the two part; or says that they do not. Refuses a contract that cannot take the case.
std::string contract_bisection_text(const Stage& stage, const Case& item, const Contract& other);

}  // namespace monoref
