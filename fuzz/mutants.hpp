// The harness tested: kernels with one planted fault each must be found by the ordinary generators.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fuzz/campaign.hpp"

namespace monoref {

struct MutantResult {
  const Stage* stage = nullptr;
  const Mutant* mutant = nullptr;
  bool killed = false;
  std::uint64_t cases = 0;  ///< judged until it died, or in vain
  double seconds = 0;
  Verdict verdict = Verdict::kExact;  ///< of the killing case
  std::string repro;                  ///< shrunken
};

/// Tries one mutant for at most `seconds`, with the draws of an ordinary campaign.
MutantResult try_mutant(const Stage& stage, const Mutant& mutant, Runner& runner,
                        std::uint64_t seed, double seconds);

}  // namespace monoref
