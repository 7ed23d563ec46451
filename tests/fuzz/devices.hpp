// Stages of ranks on several devices: what is asked of pretended devices and of real ones.
#pragma once

#include <gtest/gtest.h>

#include "fuzz/campaign.hpp"

namespace monoref {

/// Judges the first cases of a stage that `choose(params, index)` has set and takes, as a campaign
/// does: every fourth with its properties, and with `reused` after another one in the same buffers.
/// All must be right. Returns how many were.
template <class Choose>
int judge_draws(std::string_view name, Runner& runner, int cases, bool reused, Choose choose) {
  constexpr std::uint64_t kSeed = 20;
  const Stage& stage = find_stage(name);
  const std::vector<Runner*> runners{&runner};
  int right = 0;
  for (std::uint64_t index = 0; right < cases; ++index) {
    Draw draw = draw_case(stage, kSeed, index, std::nullopt);
    if (!choose(draw.params, index)) continue;
    const bool deep = right % 4 == 0;
    const auto earlier = deep && reused ? std::optional(Companion{kSeed, index}) : std::nullopt;
    const CaseResult result = judge_draw(draw, earlier, runners, deep);
    if (is_failure(result.verdict())) {
      ADD_FAILURE() << result.line << ": " << result.decisive()->message
                    << (result.decisive()->first_difference
                            ? result.decisive()->first_difference->text()
                            : "");
      break;
    }
    ++right;
  }
  return right;
}

}  // namespace monoref
