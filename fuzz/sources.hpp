// Where the rules of stages are written down.
#pragma once

#include <string_view>
#include <vector>

namespace monoref {

/// The files, from the top of the tree, that a stage's `source` cites: each once, in the order in
/// which they are named. tests/spec follows the citations themselves.
std::vector<std::string_view> specification_files(std::string_view source);

}  // namespace monoref
