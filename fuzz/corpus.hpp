// Findings kept on disk: case files that are replayed before anything new is tried.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "golden/case.hpp"

namespace monoref {

/// The case files of a corpus folder in name order; empty if the folder does not exist.
std::vector<std::filesystem::path> corpus_files(const std::filesystem::path& folder);

/// Writes one finding as a case file of its own, named after stage and content, creating the folder
/// if needed. Returns the path. The same finding twice is one file.
std::filesystem::path save_finding(const std::filesystem::path& folder, const Case& finding);

}  // namespace monoref
