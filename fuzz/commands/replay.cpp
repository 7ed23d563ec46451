#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "fuzz/bisect.hpp"
#include "fuzz/campaign.hpp"
#include "fuzz/commands/commands.hpp"
#include "fuzz/load_cases.hpp"
#include "fuzz/report.hpp"
#include "golden/file_error.hpp"

namespace monoref {
namespace {

/// A line names a stage; anything else is a file.
bool is_line(const std::string& target) {
  return target.find("stage=") != std::string::npos;
}

void print_result(const CaseResult& result, bool quiet) {
  if (is_failure(result.verdict()) || result.verdict() == Verdict::kRefused) {
    fmt::print("{}\n", failure_text(result));
    return;
  }
  if (quiet) return;
  fmt::print("{} {} under contract {}\n", verdict_name(result.verdict()), result.stage,
             result.contract);
  for (const RunResult& run : result.runs)
    for (const OutputTally& tally : run.outputs)
      fmt::print("  {}{}: {}: {} elements, {} exact, {} allowed\n", run.runner,
                 run.wave == 0 ? "" : fmt::format(" (wave {})", run.wave), tally.name,
                 tally.elements, tally.exact, tally.allowed);
}

/// Where the two sides part, and what went in; with another contract, where the contracts part.
void print_bisection(const Case& item, const CaseResult& result,
                     const std::optional<Contract>& other) {
  const Stage& stage = find_stage(item.stage);
  if (result.verdict() == Verdict::kRefused) return;
  if (const std::string text = bisection_text(stage, item, result); !text.empty())
    fmt::print("{}\n", text);
  if (other && *other != item.contract)
    fmt::print("{}\n", contract_bisection_text(stage, item, *other));
}

}  // namespace

int replay_command(const CommonOptions& common, const std::string& target, bool bisect) {
  const auto runners = make_runners(common, "both");
  JsonFile json(common.json);
  Summary summary;
  // With --bisect, the case keeps its contract and --contract is what it is held against.
  const auto contract = common.parsed_contract();
  const auto take = [&](const Case& item, const CaseResult& result) {
    summary.add(result);
    json.add(result);
    print_result(result, common.quiet);
    if (bisect) print_bisection(item, result, contract);
  };
  if (is_line(target)) {
    CaseLine line = parse_line(target);
    if (contract && !bisect) line.contract = *contract;
    const CaseResult result = judge_line(line, pointers(runners));
    take(build_case(line), result);
  } else {
    for (Case& item : load_cases(target)) {
      if (contract && !bisect) item.contract = *contract;
      CaseResult result = judge_case(find_stage(item.stage), item,
                                     {.runners = pointers(runners), .properties = true});
      result.repro = fmt::format("monoref replay {}", target);
      take(item, result);
    }
  }
  json.finish(summary_json("replay", summary));
  fmt::print("{}\n", summary.line("replay"));
  return summary.exit_code();
}

}  // namespace monoref
