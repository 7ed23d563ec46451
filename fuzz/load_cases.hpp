// Cases from a file, whichever of the two formats it has.
#pragma once

#include <cstddef>
#include <filesystem>
#include <vector>

#include "fuzz/judges/judge.hpp"
#include "fuzz/stage.hpp"
#include "golden/any_file.hpp"

namespace monoref {

/// A file that has been read, whichever of the two formats it has. Its cases are made one at a
/// time: one that a stage cannot adopt says nothing about the others.
class CaseFile {
 public:
  /// Throws FileError naming the file.
  explicit CaseFile(const std::filesystem::path& path);

  /// How a recording is judged that no stage adopts as cases of its own; null for everything else.
  const RecordingJudge* judge() const { return judge_; }
  /// Whether a stage takes the cases as its own.
  bool has_cases() const;
  /// Throws FileError if nobody can judge the file: a recording that no stage adopts.
  void require_judgeable() const;
  std::size_t size() const;
  /// Bytes of all tensors of the file.
  std::size_t bytes() const;

  /// What is known of a case before anything is computed: stage, title and contract.
  CaseResult header(std::size_t index) const;
  /// Hands the case out, once. Throws Refusal if the stage cannot adopt it.
  Case take(std::size_t index);
  /// The recorded case, for `judge`.
  const RecordedCase& recorded(std::size_t index) const;

 private:
  const Recording* recording() const { return std::get_if<Recording>(&content_); }

  std::filesystem::path path_;
  AnyFile content_;
  const RecordingJudge* judge_ = nullptr;
  const Stage* adopter_ = nullptr;
};

/// All cases of a file that holds or gives cases. Throws FileError naming the file, also where no
/// stage adopts the recording.
std::vector<Case> load_cases(const std::filesystem::path& file);

}  // namespace monoref
