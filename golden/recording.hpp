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

/// An extent that a recording may choose.
inline constexpr std::int64_t kAnyExtent = -1;

/// What a recorded tensor must be before anybody looks at its elements.
struct RecordedShape {
  std::vector<DType> types;        ///< one of these
  std::vector<std::int64_t> dims;  ///< kAnyExtent where any will do
};

/// One recorded run. Scalars keep their kind; booleans are the integers 0 and 1. Tensors are dense
/// and have the type of the original tensor, whatever integers their bits were stored as. Scalars
/// and tensors are in ascending order of their names.
///
/// A recording is somebody's file. What is used as an index, a size or a bound of a loop is asked
/// for with its limits, and what is out of them is refused: "recording KIND, CASE: input NAME is
/// VALUE, must be LIMIT".
struct RecordedCase {
  std::string title;  ///< the group's name: case_0000, ...
  std::string kind;   ///< the recording's `stage`
  std::vector<NamedScalar> scalars;
  std::vector<NamedTensor> inputs;
  std::vector<NamedTensor> outputs;

  /// The value of a scalar; refuses a missing one or one of another kind.
  std::int64_t integer(std::string_view key) const;
  double real(std::string_view key) const;
  /// The same inside low .. high; NaN is outside.
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  double real(std::string_view key, double low, double high) const;
  const std::string& word(std::string_view key) const;
  /// The scalar, or null.
  const Scalar* find_scalar(std::string_view key) const;
  /// A tensor; refuses a missing one. The find forms return null instead.
  const Tensor& input(std::string_view key) const;
  const Tensor& output(std::string_view key) const;
  const Tensor* find_input(std::string_view key) const;
  const Tensor* find_output(std::string_view key) const;
  /// A tensor of one of the types and of the dims.
  const Tensor& input(std::string_view key, const RecordedShape& shape) const;
  const Tensor& output(std::string_view key, const RecordedShape& shape) const;
  /// The same of int32 or int64, every element of it inside low .. high: they will be indices.
  const Tensor& indices(std::string_view key, const RecordedShape& shape, std::int64_t low,
                        std::int64_t high) const;
  /// What refusals begin with: "recording KIND, CASE: WHAT".
  std::string place(std::string_view what) const;
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
