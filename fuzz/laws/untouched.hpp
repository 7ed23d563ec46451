// The law of outputs that a stage writes in place: what nobody names keeps what it held.
#pragma once

#include "fuzz/laws/law.hpp"

namespace monoref::laws {

/// An output that starts as the input of its name, or as the one of `before`.
struct InPlace {
  std::string_view output;
  std::string_view before = {};
};

/// Of the whole storage of such outputs, padding included, only elements of the region change.
/// Outputs and inputs that a case does not have are passed over.
Property untouched(std::string name, std::string statement, std::vector<InPlace> outputs,
                   std::function<OutputRegion(const Case&)> may_change);

}  // namespace monoref::laws
