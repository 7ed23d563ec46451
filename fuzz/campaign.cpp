#include "fuzz/campaign.hpp"

#include <algorithm>
#include <chrono>
#include <set>

#include "fuzz/corpus.hpp"
#include "fuzz/random.hpp"

namespace monoref {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Properties and reused buffers cost several runs; every fourth case of a contract pays for them.
constexpr std::uint64_t kDeepEvery = 4;

/// Every try that hangs takes its whole time.
constexpr int kHungTries = 3;

/// A companion for the reused-buffers step: another case of the same stage and contract.
Case companion_of(const Draw& draw, const Companion& companion) {
  const Draw other = draw_case(*draw.stage, ~companion.seed, companion.index, draw.contract);
  return build_case(*other.stage, other.params, other.contract, other.seed);
}

bool can_be_evaluated(const Stage& stage, const Case& item) {
  try {
    run_reference(stage, item, stage.outputs(item));
    return true;
  } catch (const Refusal&) {
    return false;
  }
}

/// The companion that a saved case was found with, if its line names one and this program still
/// draws as the line says.
std::optional<Case> saved_companion(const Stage& stage, const Case& item) {
  if (item.generator_version != stage.generator_version) return std::nullopt;
  try {
    const CaseLine line = parse_line(item.line);
    if (!line.earlier) return std::nullopt;
    return companion_of({&stage, item.contract, Params(stage.dimensions), line.seed},
                        *line.earlier);
  } catch (const Refusal&) {
    return std::nullopt;
  }
}

/// Writes a finding into the corpus. That it cannot be written is said of it, and stops nothing.
void save(const std::filesystem::path& corpus, Finding& finding) {
  if (corpus.empty()) return;
  try {
    Case item = build_case(parse_line(finding.result.line));
    item.line = finding.result.line;
    item.title = "finding";
    item.provenance.origin = "finding";
    finding.saved = save_finding(corpus, item);
  } catch (const std::exception& error) {
    finding.not_saved = error.what();
  }
}

/// What makes two failures the same finding: the stage, who failed, and at which output.
std::string kind_of(const CaseResult& result) {
  const RunResult& run = *result.decisive();
  return fmt::format("{}/{}/{}/{}/{}", result.stage, run.runner, run.wave,
                     verdict_name(run.verdict),
                     run.first_difference ? run.first_difference->output : "");
}

/// The contracts that the cases of a stage have in turn.
std::uint64_t contracts_of(const Stage& stage, const CampaignOptions& options) {
  return options.contract ? 1 : stage.contracts.size();
}

}  // namespace

bool is_deep(std::uint64_t index, std::uint64_t contracts) {
  return index / contracts % kDeepEvery == 0;
}

std::size_t runner_of(std::uint64_t index, std::uint64_t contracts, std::size_t runners) {
  const std::uint64_t kinds = contracts * kDeepEvery;  // of cases: contract, deep or not
  return static_cast<std::size_t>((index / kinds + index % kinds) % runners);
}

std::uint64_t shard_of(std::uint64_t stage, std::uint64_t index, std::uint64_t contracts,
                       std::uint64_t shards) {
  const std::uint64_t kinds = contracts * kDeepEvery;  // of cases: contract, deep or not
  const std::uint64_t kind = index % kinds;
  const std::uint64_t turn = index / kinds;
  const std::uint64_t first = CounterRandom(stage, turn / shards).bits32();
  return (first + kind + turn % shards) % shards;
}

Summary CampaignReport::summary() const {
  Summary sum;
  for (const StageReport& stage : stages) sum.add(stage.summary);
  return sum;
}

CaseResult judge_draw(const Draw& draw, const std::optional<Companion>& earlier,
                      const std::vector<Runner*>& runners, bool properties,
                      const JudgeSteps& steps) {
  const Case item = build_case(*draw.stage, draw.params, draw.contract, draw.seed);
  JudgeOptions options{.runners = runners,
                       .properties = properties,
                       .launch = launch_choice(draw.params),
                       .step = steps};
  std::string suffix;
  Case companion;
  if (earlier) {
    companion = companion_of(draw, *earlier);
    if (can_be_evaluated(*draw.stage, companion)) {
      options.earlier = &companion;
      suffix = fmt::format(";earlier={}:{}", earlier->seed, earlier->index);
    }
  }
  CaseResult result = judge_case(*draw.stage, item, options);
  result.line += suffix;
  result.repro = fmt::format("monoref replay '{}'", result.line);
  return result;
}

CaseResult judge_line(const CaseLine& line, const std::vector<Runner*>& runners,
                      const JudgeSteps& steps) {
  const Stage& stage = find_stage(line.stage);
  check_generator_version(stage, line);
  Params params(stage.dimensions);
  apply_settings(params, line);
  return judge_draw({&stage, line.contract, std::move(params), line.seed}, line.earlier, runners,
                    true, steps);
}

CaseResult judge_saved(const Case& item, const std::vector<Runner*>& runners,
                       const JudgeSteps& steps) {
  const Stage& stage = find_stage(item.stage);
  JudgeOptions options{.runners = runners,
                       .properties = true,
                       .launch = launch_choice(stage, item.line),
                       .step = steps};
  const std::optional<Case> earlier = saved_companion(stage, item);
  if (earlier && can_be_evaluated(stage, *earlier)) options.earlier = &*earlier;
  return judge_case(stage, item, options);
}

Finding shrink_finding(const Draw& draw, const std::optional<Companion>& earlier,
                       const CaseResult& failure, const std::vector<Runner*>& runners,
                       const ShrinkBudget& budget) {
  const std::string kind = kind_of(failure);
  const auto judge = [&](const Params& params, const std::optional<Companion>& companion) {
    return judge_draw({draw.stage, draw.contract, params, draw.seed}, companion, runners, true);
  };
  const auto fails = [&](const CaseResult& result) {
    return is_failure(result.verdict()) && kind_of(result) == kind;
  };
  // Most failures need no companion; drop it if the case fails alone.
  const std::optional<Companion> needed =
      earlier && fails(judge(draw.params, std::nullopt)) ? std::nullopt : earlier;
  ShrinkBudget affordable = budget;
  if (failure.verdict() == Verdict::kHung) affordable.tries = std::min(budget.tries, kHungTries);
  const Shrunken best = shrink(
      draw.params, [&](const Params& params) { return fails(judge(params, needed)); }, affordable);
  return {judge(best.params, needed), failure.repro, best.tries, {}};
}

CampaignReport run_campaign(const CampaignOptions& options,
                            const std::function<void(const CampaignProgress&)>& progress,
                            const std::function<void(const CaseResult&)>& each) {
  CampaignReport report;
  for (const Stage* stage : options.stages)
    report.stages.push_back({stage, {}, Coverage(*stage), 0});
  std::set<std::string> kinds;
  const auto start = Clock::now();
  const std::uint64_t count = options.stages.size();
  CampaignProgress now;
  for (std::uint64_t i = 0;; ++i) {
    if (options.stop()) break;
    if (options.cases && i >= *options.cases) break;
    StageReport& at = report.stages[i % count];
    const std::uint64_t index = i / count;
    const std::uint64_t contracts = contracts_of(*at.stage, options);
    if (shard_of(i % count, index, contracts, options.shards) != options.shard) continue;
    if (options.seconds && seconds_since(start) >= *options.seconds) break;
    const auto case_start = Clock::now();
    const Draw draw = draw_case(*at.stage, options.seed, index, options.contract);
    const bool deep = is_deep(index, contracts);
    const bool has_kernel = static_cast<bool>(at.stage->launch);
    const std::optional<Companion> earlier =
        deep && has_kernel ? std::optional(Companion{options.seed, index}) : std::nullopt;
    std::vector<Runner*> runners = options.runners;
    if (options.in_turn) runners = {runners[runner_of(index, contracts, runners.size())]};
    // Without a kernel to run, the properties are all there is to try.
    const CaseResult result = judge_draw(draw, earlier, runners, deep || !has_kernel);
    at.seconds += seconds_since(case_start);
    at.summary.add(result);
    at.coverage.add(draw.params);
    each(result);
    if (is_failure(result.verdict()) && kinds.insert(kind_of(result)).second) {
      options.failing(result);
      Finding finding =
          options.stop() ? Finding{result, result.repro}
                         : shrink_finding(draw, earlier, result, runners, {.stop = options.stop});
      save(options.corpus, finding);
      options.found(finding);
      report.findings.push_back(std::move(finding));
    }
    now.done += 1;
    now.seconds = seconds_since(start);
    now.findings = report.findings.size();
    progress(now);
    if (report.findings.size() >= static_cast<std::size_t>(options.most_findings)) break;
  }
  return report;
}

}  // namespace monoref
