// Damage to the meaning of cases, under a valid seal: what the reader of files cannot know to be
// wrong, and a stage must refuse or compute rightly.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "golden/tree.hpp"

namespace monoref::testing {

/// A file of one case, made from a golden one.
struct CaseMutant {
  TreeGroup root;                    ///< sealed
  std::string stage;                 ///< that of the golden case
  std::vector<std::string> changes;  ///< what was done, in words
  /// What a message about the case may call its argument: the names of its inputs, scalars and
  /// outputs, before and after the changes.
  std::vector<std::string> names;
  /// The stored outputs were left in, or a defect is claimed: the reference itself may be told
  /// wrong.
  bool claims_results = false;
};

/// The golden cases of one stage that are small enough to make thousands of files of.
struct GoldenStage {
  std::string name;
  std::vector<TreeGroup> cases;
};

/// The golden cases of `FOLDER/*.h5`, in the order of the file names. Throws FileError.
std::vector<GoldenStage> load_golden(const std::filesystem::path& folder);

/// The mutant `number` of a seed: a pure function of both and of the golden files. Consecutive
/// numbers go through the stages in turn.
CaseMutant make_mutant(const std::vector<GoldenStage>& golden, std::uint64_t seed,
                       std::uint64_t number);

/// The kinds of damage that there are; the first word of each change is one of them.
std::vector<std::string_view> mutation_kinds();

}  // namespace monoref::testing
