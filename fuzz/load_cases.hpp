// Cases from a file, whichever of the two formats it has.
#pragma once

#include <filesystem>
#include <vector>

#include "golden/case.hpp"

namespace monoref {

/// Reads a case file, or a recording whose cases the stages adopt. Throws FileError naming the
/// file, also where no stage adopts the recording.
std::vector<Case> load_cases(const std::filesystem::path& file);

}  // namespace monoref
