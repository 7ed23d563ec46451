// Cases from a file, whichever of the two formats it has.
#pragma once

#include <filesystem>
#include <vector>

#include "fuzz/judges/judge.hpp"
#include "golden/any_file.hpp"

namespace monoref {

/// Reads a case file, or a recording whose cases the stages adopt. Throws FileError naming the
/// file, also where no stage adopts the recording.
std::vector<Case> load_cases(const std::filesystem::path& file);

/// How a recording is judged that no stage adopts as cases of its own; null for everything else.
const RecordingJudge* judge_of(const AnyFile& content);
/// False for a recording that no stage adopts.
bool has_cases(const AnyFile& content);
/// The same for content that is already read.
std::vector<Case> cases_of(AnyFile content, const std::filesystem::path& file);

}  // namespace monoref
