// The law of a fast form: it is its definition, bit for bit.
#pragma once

#include "fuzz/laws/law.hpp"

namespace monoref::laws {

/// A definition that is judged against a stage's fast form.
struct Definition {
  /// As of the stage: the layout of the outputs, and what they start as.
  std::vector<OutputSpec> (*outputs)(const Case&);
  /// Computes as the stage's `reference` does, by the definition.
  void (*define)(const Case&, Outputs&);
  /// Multiply-adds that the definition takes for a case.
  std::int64_t (*work)(const Case&);
};

/// Multiply-adds of a case that the definition is always asked about: some milliseconds.
inline constexpr std::int64_t kSmallWork = 1 << 19;

/// Cases of more work are taken by chance, the chance being `kSmallWork` to their work: what a
/// case costs on average stays the same, and whether it is taken depends on its seed alone.
bool is_sampled(std::uint64_t seed, std::int64_t work);

Property definition(Definition about);

}  // namespace monoref::laws
