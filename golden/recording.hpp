// Recordings: inputs and outputs of other implementations, format `recorded-cases/1`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "golden/case.hpp"
#include "golden/isolation.hpp"
#include "golden/tree.hpp"

namespace monoref {

inline constexpr std::string_view kRecordingFormat = "recorded-cases/1";

/// One recorded run. Scalars keep their kind; booleans are the integers 0 and 1. Tensors are dense
/// and have the type of the original tensor, whatever integers their bits were stored as. Scalars
/// and tensors are in ascending order of their names.
struct RecordedCase {
  std::string title;  ///< the group's name: case_0000, ...
  std::vector<NamedScalar> scalars;
  std::vector<NamedTensor> inputs;
  std::vector<NamedTensor> outputs;

  /// The value of a scalar; refuses a missing one or one of another kind, naming it.
  std::int64_t integer(std::string_view key) const;
  double real(std::string_view key) const;
  const std::string& word(std::string_view key) const;
  /// The scalar, or null.
  const Scalar* find_scalar(std::string_view key) const;
  /// A tensor; refuses a missing one, naming it. The find forms return null instead.
  const Tensor& input(std::string_view key) const;
  const Tensor& output(std::string_view key) const;
  const Tensor* find_input(std::string_view key) const;
  const Tensor* find_output(std::string_view key) const;
};

/// A file of recorded runs of one stage (the name is the recorder's).
struct Recording {
  std::string stage;
  std::string source;  ///< what produced the outputs
  std::string device;
  std::string torch;
  std::string triton;
  std::vector<RecordedCase> cases;  ///< ascending by title
};

/// Reads a recording. Throws FileError. Reading happens in a process of its own, see
/// golden/isolation.hpp; a malformed file of any kind ends in one message.
Recording read_recording(const std::filesystem::path& path, const ReadLimits& limits = {});

/// The meaning of a tree in this format; throws ContentError.
Recording recording_from_tree(const TreeGroup& root);

}  // namespace monoref
