// A case: the inputs of one run of one stage, and what is known about its outputs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

/// A scalar parameter of a case. Its meaning and unit are the stage's.
using Scalar = std::variant<std::int64_t, double, std::string>;

struct NamedScalar {
  std::string name;
  Scalar value;
};

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

/// An output that is known from outside: recorded from an implementation, or stored as golden.
struct ExpectedOutput {
  std::string name;
  Tensor tensor;
  /// Same dims, uint8: 1 where the output is specified, 0 where its source left memory unwritten.
  std::optional<Tensor> specified;
};

/// Where a case came from; free text, kept with it in files.
struct Provenance {
  std::string origin;  ///< "generated", "recorded", "finding", "bug case P10", ...
  std::string source;  ///< program, version, device
};

/// Inputs of one run of one stage. `line` is the one-line form that regenerates it, empty if the
/// case was recorded or made by hand.
struct Case {
  std::string stage;
  std::string title;  ///< unique within a file
  Contract contract;
  std::uint64_t seed = 0;
  std::uint32_t generator_version = 0;  ///< 0: not generated
  std::string line;
  Provenance provenance;
  std::vector<NamedScalar> scalars;
  std::vector<NamedTensor> inputs;
  std::vector<ExpectedOutput> expected;

  /// The value of a scalar; refuses a missing one or one of another kind, naming it.
  std::int64_t integer(const std::string& key) const;
  std::int64_t integer_or(const std::string& key, std::int64_t otherwise) const;
  double real(const std::string& key) const;
  const std::string& word(const std::string& key) const;
  /// An input tensor; `input` refuses a missing one, naming it; `find_input` returns null.
  const Tensor& input(const std::string& key) const;
  const Tensor* find_input(const std::string& key) const;
  const ExpectedOutput* find_expected(const std::string& key) const;
};

}  // namespace monoref
