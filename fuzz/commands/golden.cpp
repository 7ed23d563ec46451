#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fuzz/commands/commands.hpp"
#include "fuzz/generator.hpp"
#include "fuzz/load_cases.hpp"
#include "fuzz/report.hpp"
#include "golden/case_file.hpp"

namespace monoref {
namespace {

// golden/generated/STAGE.h5 is ours to rewrite; golden/recorded/ was imported and is only read.
constexpr std::string_view kGenerated = "generated";
constexpr std::string_view kRecorded = "recorded";

/// Draws of golden cases come from a campaign of their own, so that no other seed shifts them.
constexpr std::uint64_t kGoldenSeed = 20260829;

std::vector<OutputSpec> specs_or_none(const Stage& stage, const Case& item) {
  try {
    return stage.outputs(item);
  } catch (const Refusal&) {
    return {};
  }
}

/// The reference's outputs become the expected ones; false if the case is one that is refused.
bool fill_expected(const Stage& stage, Case& item) {
  const auto specs = specs_or_none(stage, item);
  if (specs.empty()) return false;
  try {
    Outputs outputs = run_reference(stage, item, specs);
    for (NamedTensor& named : outputs)
      item.expected.push_back({named.name, std::move(named.tensor), std::nullopt});
    return true;
  } catch (const Refusal&) {
    return false;
  }
}

std::int64_t stored_bytes(const Case& item) {
  std::int64_t bytes = 0;
  for (const NamedTensor& input : item.inputs)
    bytes +=
        input.tensor.layout().stored() * static_cast<std::int64_t>(input.tensor.element_size());
  return bytes;
}

std::vector<Case> golden_cases(const Stage& stage) {
  std::vector<Case> cases;
  for (const std::string_view contract : stage.contracts)
    for (std::uint64_t index = 0, taken = 0; taken < stage.golden_cases; ++index) {
      const Draw draw = draw_case(stage, kGoldenSeed, index, Contract::parse(contract));
      Case item = build_case(stage, draw.params, draw.contract, draw.seed);
      if (stored_bytes(item) > stage.golden_bytes || !fill_expected(stage, item)) continue;
      item.title = fmt::format("case_{:04}", cases.size());
      cases.push_back(std::move(item));
      ++taken;
    }
  return cases;
}

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::is_directory(folder)) return files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".h5") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

bool same_inputs(const Case& a, const Case& b) {
  if (a.inputs.size() != b.inputs.size()) return false;
  for (std::size_t i = 0; i < a.inputs.size(); ++i)
    if (a.inputs[i].name != b.inputs[i].name ||
        a.inputs[i].tensor.layout() != b.inputs[i].tensor.layout() ||
        a.inputs[i].tensor.image() != b.inputs[i].tensor.image())
      return false;
  return true;
}

/// A generated golden case must also come out of its line again: the generator has not drifted.
void verify_line(const Stage& stage, const Case& item, CaseResult& result) {
  if (item.line.empty() || item.generator_version != stage.generator_version) return;
  if (same_inputs(build_case(parse_line(item.line)), item)) return;
  result.runs.push_back(
      {.runner = "generator",
       .verdict = Verdict::kWrong,
       .message = fmt::format("'{}' no longer gives the stored inputs", item.line)});
}

}  // namespace

int golden_regen_command(const CommonOptions& common, const std::filesystem::path& folder) {
  Summary summary;
  JsonFile json(common.json);
  std::filesystem::create_directories(folder / kGenerated);
  for (const Stage* stage : select_stages(common.stages)) {
    const auto cases = golden_cases(*stage);
    const auto path = folder / kGenerated / fmt::format("{}.h5", stage->name);
    write_cases(path, cases);
    for (const Case& item : cases) {
      CaseResult result{.stage = item.stage,
                        .title = item.title,
                        .contract = item.contract.text(),
                        .line = item.line,
                        .repro = fmt::format("monoref replay '{}'", item.line)};
      summary.add(result);
      json.add(result);
    }
    if (!common.quiet) fmt::print("{}: {} cases\n", path.string(), cases.size());
  }
  json.finish(summary_json("golden", summary));
  fmt::print("{}\n", summary.line("golden"));
  return 0;
}

int golden_verify_command(const CommonOptions& common, const std::filesystem::path& folder) {
  const auto stages = select_stages(common.stages);
  Summary summary;
  JsonFile json(common.json);
  std::vector<std::filesystem::path> files = files_in(folder / kGenerated);
  std::vector<const Stage*> without = stages;
  for (const auto& path : files_in(folder / kRecorded)) files.push_back(path);
  if (files.empty()) refuse("golden: there are no golden files in '{}'", folder.string());
  for (const auto& path : files) {
    const bool generated = path.parent_path().filename() == kGenerated;
    AnyFile content = read_any(path);
    if (const RecordingJudge* judge = judge_of(content)) {
      for (const CaseResult& result : judge_recording(*judge, std::get<Recording>(content))) {
        if (is_failure(result.verdict())) fmt::print("{}\n", failure_text(result));
        summary.add(result);
        json.add(result);
      }
      continue;
    }
    if (!has_cases(content)) {
      if (!common.quiet)
        fmt::print("{}: read by unit tests only, no stage adopts it\n", path.filename().string());
      continue;
    }
    std::size_t count = 0;
    for (const Case& item : cases_of(std::move(content), path)) {
      const Stage& stage = find_stage(item.stage);
      if (std::find(stages.begin(), stages.end(), &stage) == stages.end()) continue;
      CaseResult result = judge_case(stage, item, {.runners = {}, .properties = false});
      if (item.expected.empty())
        result.runs.push_back({.runner = "reference",
                               .verdict = Verdict::kWrong,
                               .message = "a golden case without expected outputs"});
      verify_line(stage, item, result);
      result.repro = fmt::format("monoref check {}  # case {}", path.string(), item.title);
      if (is_failure(result.verdict())) fmt::print("{}\n", failure_text(result));
      summary.add(result);
      json.add(result);
      if (generated) std::erase(without, &stage);
      ++count;
    }
    if (!common.quiet) fmt::print("{}: {} cases\n", path.filename().string(), count);
  }
  json.finish(summary_json("golden", summary));
  for (const Stage* stage : without)
    fmt::print(stderr, "golden: no generated golden file holds cases of stage {}\n", stage->name);
  fmt::print("{}\n", summary.line("golden"));
  return without.empty() ? summary.exit_code() : std::max(summary.exit_code(), 1);
}

}  // namespace monoref
