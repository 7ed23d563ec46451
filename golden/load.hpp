// From a path to a tree, with every failure as a FileError.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "golden/isolation.hpp"
#include "golden/tree.hpp"

namespace monoref {

/// Reads the file at `path`, whose format must be one of `formats`, with the HDF5 library in a
/// process of its own. Throws FileError, also if the library crashes or exceeds the limits.
TreeGroup load_tree(const std::filesystem::path& path, std::span<const std::string_view> formats,
                    const ReadLimits& limits);

}  // namespace monoref
