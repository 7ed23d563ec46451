// The loop of a fuzz run: draw, judge, shrink, keep.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fuzz/coverage.hpp"
#include "fuzz/generator.hpp"
#include "fuzz/runner.hpp"

namespace monoref {

/// A failure after shrinking.
struct Finding {
  CaseResult result;     ///< of the shrunken case
  std::string original;  ///< the line it was shrunk from
  int shrink_tries = 0;
  std::filesystem::path saved;  ///< empty if not saved
  std::string not_saved;        ///< why it could not be
};

struct CampaignOptions {
  std::vector<const Stage*> stages;
  std::vector<Runner*> runners;
  bool in_turn = false;              ///< a case is run by one of them: see `runner_of`
  std::optional<Contract> contract;  ///< none: each stage's contracts in turn
  std::uint64_t seed = 1;
  std::optional<std::uint64_t> cases;  ///< over all stages and shards together
  std::optional<double> seconds;
  std::uint64_t shard = 0, shards = 1;  ///< this run takes the cases that `shard_of` deals to it
  std::filesystem::path corpus;         ///< empty: findings are printed only
  int most_findings = 10;               ///< stop after so many different ones
  /// Asked between cases; true ends the campaign and leaves what was just found unshrunken.
  std::function<bool()> stop = [] { return false; };
  /// Told of a failure that is new before it is shrunk, and of the finding that comes of it.
  std::function<void(const CaseResult&)> failing = [](const CaseResult&) {};
  std::function<void(const Finding&)> found = [](const Finding&) {};
};

struct StageReport {
  const Stage* stage;
  Summary summary;
  Coverage coverage;
  double seconds = 0;
};

struct CampaignReport {
  std::vector<StageReport> stages;
  std::vector<Finding> findings;
  Summary summary() const;
};

/// Whether a stage's case of this index also has its properties checked and its buffers reused:
/// every fourth, of each of the `contracts` that its cases have in turn.
bool is_deep(std::uint64_t index, std::uint64_t contracts);

/// Which of `runners` a stage's case of this index is for, where they take turns: of each contract,
/// deep or not, any number of runners get cases in turn.
std::size_t runner_of(std::uint64_t index, std::uint64_t contracts, std::size_t runners);

/// Which of `shards` a stage's case of this index belongs to. Of each stage and contract, deep or
/// not, any number of shards get cases in turn, each as many as any other; which one begins changes
/// without a period, so that no choice that goes by the index stays with one shard.
std::uint64_t shard_of(std::uint64_t stage, std::uint64_t index, std::uint64_t contracts,
                       std::uint64_t shards);

/// What a caller may show while the campaign runs; called after every case.
struct CampaignProgress {
  std::uint64_t done = 0;
  double seconds = 0;
  std::size_t findings = 0;
};

/// Runs a campaign. Cases go to the stages in turn, whatever the shards are; deep ones also have
/// their stage's properties checked and are run as the second step through the buffers of another
/// case of their stage.
CampaignReport run_campaign(const CampaignOptions& options,
                            const std::function<void(const CampaignProgress&)>& progress,
                            const std::function<void(const CaseResult&)>& each);

/// Shrinks a failing draw within the budget: the shrunken case fails for the same runner, verdict
/// and output. `earlier` is the companion it was judged with, if any.
Finding shrink_finding(const Draw& draw, const std::optional<Companion>& earlier,
                       const CaseResult& failure, const std::vector<Runner*>& runners,
                       const ShrinkBudget& budget);

/// Judges a draw with everything there is: properties, and `earlier` if given.
CaseResult judge_draw(const Draw& draw, const std::optional<Companion>& earlier,
                      const std::vector<Runner*>& runners, bool properties,
                      const JudgeSteps& steps = {});

/// Rebuilds the case that a repro line names and judges it with everything there is.
CaseResult judge_line(const CaseLine& line, const std::vector<Runner*>& runners,
                      const JudgeSteps& steps = {});

/// Judges a case that was saved with its inputs by these, and not by what its line gives today.
/// `earlier` is what the line says, as far as this program still understands it.
CaseResult judge_saved(const Case& item, const std::vector<Runner*>& runners,
                       const JudgeSteps& steps = {});

}  // namespace monoref
