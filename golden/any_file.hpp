// A file of either format, told apart by what it says of itself.
#pragma once

#include <filesystem>
#include <variant>
#include <vector>

#include "golden/case_file.hpp"
#include "golden/recording.hpp"

namespace monoref {

using AnyFile = std::variant<std::vector<Case>, Recording>;

/// Reads a file of cases or a recording, by the attribute `format`. Throws FileError; see
/// `read_cases` and `read_recording`.
AnyFile read_any(const std::filesystem::path& path, const ReadLimits& limits = {});

}  // namespace monoref
