// The AMD code objects that the build has made.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace monoref::device {

/// Where the code objects lie: MONOREF_CODE_OBJECTS in the environment, else where they were built.
std::filesystem::path code_object_directory();

/// Every code object of a chip, <kernel file>.<chip>.co, in order; none if there is no directory.
std::vector<std::filesystem::path> code_objects_of(std::string_view chip);

}  // namespace monoref::device
