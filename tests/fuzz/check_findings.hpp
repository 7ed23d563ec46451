// Whether `monoref check` kept its word about one file, whatever was in it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/fuzz/case_mutations.hpp"
#include "tests/fuzz/watched_process.hpp"

namespace monoref::testing {

/// What is too much for a small file.
constexpr double kMostSeconds = 20;
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

struct CheckOutcome {
  /// exact, allowed, wrong, refused, crashed or hung; "unreadable" for a file that was declined
  /// before any case was; empty if the program did not say.
  std::string verdict;
  /// Everything that it must not do, each in one line that begins with its kind.
  std::vector<std::string> findings;
};

/// Judges a run of `check --json json FILE` by how it ended, by its last line, its JSON and what
/// its refusals say. Whether a refusal names all it should is read from its words:
///   stage and case  stand in the case's line, or the message names the file;
///   argument        a name of the case, of a field of the contract, of a place in the file, or a
///                   subject of a sentence behind the stage's name ("router: hidden is ...");
///   value           a digit, a quoted text, or nan or inf;
///   limit           a word that sets one (must, limit, not one of, is missing, ...), or what
///                   another argument has.
CheckOutcome judge_check(const CaseMutant& mutant, const std::filesystem::path& file,
                         const std::filesystem::path& json, const ProcessRun& run);

}  // namespace monoref::testing
