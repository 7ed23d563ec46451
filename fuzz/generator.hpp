// RapidCheck chooses and shrinks the dimensions of a case; everything else follows from the seed.
#pragma once

#include <functional>

#include "fuzz/stage.hpp"

namespace monoref {

/// A point in a campaign: which stage, contract, dimensions and seed.
struct Draw {
  const Stage* stage;
  Contract contract;
  Params params;
  std::uint64_t seed;
};

/// Case number `index` of a campaign. Depends on (campaign seed, stage, index) alone, so that
/// shards and repeated runs see the same cases. `fixed`, if given, replaces the stage's rotating
/// contracts.
Draw draw_case(const Stage& stage, std::uint64_t campaign_seed, std::uint64_t index,
               const std::optional<Contract>& fixed);

struct ShrinkBudget {
  int tries = 600;
  double seconds = 5.0;
  std::function<bool()> stop = [] { return false; };  ///< true ends it with the best so far
};

struct Shrunken {
  Params params;
  int tries = 0;  ///< candidates evaluated
};

/// Walks RapidCheck's shrinks of `failing` greedily: the first candidate that still fails is taken
/// and shrunk in turn, until none fails or the budget is spent.
Shrunken shrink(const Params& failing, const std::function<bool(const Params&)>& still_fails,
                const ShrinkBudget& budget);

}  // namespace monoref
