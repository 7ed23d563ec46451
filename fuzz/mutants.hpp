// The harness tested: kernels with one planted fault each must be found by the ordinary generators.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "fuzz/campaign.hpp"

namespace monoref {

enum class MutantFate : std::uint8_t {
  kKilled,
  kSurvived,  ///< all of its cases were judged in vain
  kNotTried,  ///< the run ended before they were
};

struct MutantResult {
  const Stage* stage = nullptr;
  const Mutant* mutant = nullptr;
  MutantFate fate = MutantFate::kNotTried;
  std::uint64_t cases = 0;            ///< judged until it died, or in vain
  Verdict verdict = Verdict::kExact;  ///< of the killing case
  int wave = 0;                       ///< of the kernels that gave it away
  std::string repro;                  ///< shrunken
  Summary judged;                     ///< of the cases; how many each runner computed
};

/// Tries one mutant on `cases` draws of an ordinary campaign, or fewer if it dies before. `runners`
/// have planted faults and take turns, on cases with and without properties alike. `stop` is asked
/// before every case.
MutantResult try_mutant(const Stage& stage, const Mutant& mutant, std::span<Runner* const> runners,
                        std::uint64_t seed, std::uint64_t cases, const std::function<bool()>& stop);

}  // namespace monoref
