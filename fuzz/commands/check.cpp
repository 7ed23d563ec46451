#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fuzz/commands/commands.hpp"
#include "fuzz/judges/judge.hpp"
#include "fuzz/load_cases.hpp"
#include "fuzz/report.hpp"
#include "golden/case_file.hpp"

namespace monoref {
namespace {

/// Counts per runner for the line of a file.
std::string file_line(const std::filesystem::path& file, const std::vector<CaseResult>& results) {
  std::vector<std::pair<std::string, Summary>> by_runner;
  for (const CaseResult& result : results)
    for (const RunResult& run : result.runs) {
      const std::string who =
          run.wave == 0 ? run.runner : fmt::format("{} wave {}", run.runner, run.wave);
      auto found = std::find_if(by_runner.begin(), by_runner.end(),
                                [&](const auto& entry) { return entry.first == who; });
      if (found == by_runner.end()) found = by_runner.insert(by_runner.end(), {who, {}});
      CaseResult single;
      single.runs.push_back(run);
      found->second.add(single);
    }
  std::string line = fmt::format("{}: {} cases", file.filename().string(), results.size());
  for (const auto& [who, summary] : by_runner) {
    line += fmt::format("; {}:", who);
    for (const Verdict verdict : {Verdict::kExact, Verdict::kAllowed, Verdict::kWrong,
                                  Verdict::kRefused, Verdict::kCrashed, Verdict::kHung})
      if (summary.of(verdict) > 0)
        line += fmt::format(" {} {}", summary.of(verdict), verdict_name(verdict));
  }
  return line;
}

/// A recording whose results are judged with bounds: no backend takes part.
std::vector<CaseResult> judge_file(const RecordingJudge& judge, const Recording& recording,
                                   const std::filesystem::path& file, const CommonOptions& common) {
  if (common.stages != "all" && judge.stage.find(common.stages) == std::string_view::npos)
    return {};
  std::vector<CaseResult> results = judge_recording(judge, recording);
  for (CaseResult& result : results)
    result.repro = fmt::format("monoref check {}  # case {}", file.string(), result.title);
  return results;
}

/// Sums over the cases of a file of how the reference and each recorded output agreed.
std::vector<OutputTally> recorded_tallies(const std::vector<CaseResult>& results) {
  std::vector<OutputTally> sums;
  for (const CaseResult& result : results)
    for (const RunResult& run : result.runs) {
      if (run.runner != "reference") continue;
      for (const OutputTally& tally : run.outputs) {
        auto sum = std::find_if(sums.begin(), sums.end(),
                                [&](const OutputTally& known) { return known.name == tally.name; });
        if (sum == sums.end()) sum = sums.insert(sums.end(), {.name = tally.name});
        sum->add(tally);
      }
    }
  return sums;
}

/// How many elements were decided by equal bits, by their bound, against them, and not at all.
std::string tally_line(const OutputTally& sum) {
  return fmt::format(
      "  {}: {} elements with our bits, {} inside their bound, {} outside, {} undecided", sum.name,
      sum.exact, sum.allowed, sum.wrong, sum.undecided);
}

void print_file(const std::filesystem::path& file, const std::vector<CaseResult>& results,
                const std::vector<OutputTally>& tallies) {
  fmt::print("{}\n", file_line(file, results));
  const bool all_equal = std::all_of(tallies.begin(), tallies.end(), [](const OutputTally& sum) {
    return sum.allowed + sum.undecided == 0;
  });
  if (all_equal) return;  // the line of the file says it
  for (const OutputTally& sum : tallies) fmt::print("{}\n", tally_line(sum));
}

nlohmann::json file_json(const std::filesystem::path& file, const std::vector<CaseResult>& results,
                         const std::vector<OutputTally>& tallies) {
  nlohmann::json outputs = nlohmann::json::object();
  for (const OutputTally& sum : tallies) outputs[sum.name] = tally_json(sum);
  return {{"file", file.filename().string()}, {"cases", results.size()}, {"outputs", outputs}};
}

std::vector<CaseResult> check_file(const std::filesystem::path& file, const CommonOptions& common,
                                   const std::vector<const Stage*>& stages,
                                   const std::vector<Runner*>& runners) {
  AnyFile content = read_any(file);
  if (const RecordingJudge* judge = judge_of(content))
    return judge_file(*judge, std::get<Recording>(content), file, common);
  std::vector<CaseResult> results;
  for (Case& item : cases_of(std::move(content), file)) {
    const Stage& stage = find_stage(item.stage);
    if (std::find(stages.begin(), stages.end(), &stage) == stages.end()) continue;
    if (const auto contract = common.parsed_contract()) item.contract = *contract;
    CaseResult result = judge_case(stage, item, {.runners = runners, .properties = true});
    result.repro = fmt::format("monoref check {}  # case {}", file.string(), item.title);
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace

int check_command(const CommonOptions& common, const std::vector<std::filesystem::path>& files) {
  const auto runners = make_runners(common, "both");
  const auto stages = select_stages(common.stages);
  JsonFile json(common.json);
  Summary summary;
  bool bad_input = false;
  nlohmann::json file_objects = nlohmann::json::array();
  for (const auto& file : files) {
    try {
      const auto results = check_file(file, common, stages, pointers(runners));
      for (const CaseResult& result : results) {
        summary.add(result);
        json.add(result);
        if (is_failure(result.verdict()) || result.verdict() == Verdict::kRefused)
          fmt::print("{}\n", failure_text(result));
      }
      const auto tallies = recorded_tallies(results);
      file_objects.push_back(file_json(file, results, tallies));
      if (!common.quiet) print_file(file, results, tallies);
    } catch (const FileError& error) {
      fmt::print(stderr, "{}\n", error.what());
      bad_input = true;
    }
  }
  json.set("files", file_objects);
  json.finish(summary_json("check", summary));
  fmt::print("{}\n", summary.line("check"));
  const int code = summary.exit_code();
  return code == 0 && bad_input ? 2 : code;
}

}  // namespace monoref
