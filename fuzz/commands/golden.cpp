#include <fmt/format.h>

#include <algorithm>

#include "fuzz/commands/commands.hpp"
#include "fuzz/generator.hpp"
#include "fuzz/judging.hpp"
#include "fuzz/launch_choice.hpp"
#include "fuzz/load_cases.hpp"
#include "fuzz/report.hpp"
#include "fuzz/session.hpp"
#include "fuzz/stop.hpp"
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
      Case item = build_case(stage, with_default_launch(draw.params), draw.contract, draw.seed);
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

/// The reference alone against what is stored; no backend takes part.
CaseResult verify_case(const Case& item, JudgeStream& stream) {
  const Stage& stage = find_stage(item.stage);
  CaseResult result = judge_case(stage, item, {.step = stream.steps()});
  if (item.expected.empty())
    result.runs.push_back({.runner = "reference",
                           .verdict = Verdict::kWrong,
                           .message = "a golden case without expected outputs"});
  stream.step("generator", true);
  verify_line(stage, item, result);
  return result;
}

void verify_file(const std::filesystem::path& path, const std::vector<const Stage*>& stages,
                 JudgeStream& stream) {
  CaseFile content(path);
  stream.has_read(content.bytes());
  if (content.judge() == nullptr && !content.has_cases())
    return stream.note(
        fmt::format("{}: read by unit tests only, no stage adopts it", path.filename().string()));
  for (std::size_t i = 0; i < content.size(); ++i) {
    CaseResult header = content.header(i);
    if (!is_selected(stages, header.stage)) continue;
    header.repro = fmt::format("monoref check {}  # case {}", path.string(), header.title);
    stream.judge(header, [&]() -> JudgeStream::Judged {
      CaseResult result = content.judge() != nullptr
                              ? judge_recorded(*content.judge(), content.recorded(i))
                              : verify_case(content.take(i), stream);
      result.runs.front().is_case = true;
      result.repro = header.repro;
      return {std::move(result), {}};
    });
  }
}

}  // namespace

int golden_regen_command(const CommonOptions& common, const std::filesystem::path& folder) {
  const auto stages = select_stages(common.stages);
  Session session("golden", common.json, false);
  for (const Stage* stage : stages) {
    if (stop_requested()) break;
    const auto path = folder / kGenerated / fmt::format("{}.h5", stage->name);
    try {
      const auto cases = golden_cases(*stage);
      std::filesystem::create_directories(path.parent_path());
      write_cases(path, cases);
      for (const Case& item : cases)
        session.add({.stage = item.stage,
                     .title = item.title,
                     .contract = item.contract.text(),
                     .line = item.line,
                     .repro = fmt::format("monoref replay '{}'", item.line)});
      if (!common.quiet) say("{}: {} cases\n", path.string(), cases.size());
    } catch (const std::exception& error) {
      session.bad_input(error.what());
    }
  }
  return session.finish();
}

int golden_verify_command(const CommonOptions& common, const std::filesystem::path& folder) {
  const auto stages = select_stages(common.stages);
  std::vector<std::filesystem::path> files = files_in(folder / kGenerated);
  std::vector<const Stage*> without = stages;
  const std::size_t generated = files.size();
  for (const auto& path : files_in(folder / kRecorded)) files.push_back(path);
  if (files.empty()) refuse("golden: there are no golden files in '{}'", folder.string());

  Session session("golden", common.json, false);
  Judging judging{.make_runners = [] { return std::vector<std::unique_ptr<Runner>>(); },
                  .judge = [&](std::size_t file, const std::vector<Runner*>&,
                               JudgeStream& stream) { verify_file(files[file], stages, stream); }};
  for (const auto& file : files) judging.files.push_back(file.string());
  JudgingListener listener = listener_for(session);
  std::size_t count = 0;
  listener.on_case = [&, tell = listener.on_case](std::size_t file,
                                                  const JudgeStream::Judged& judged) {
    tell(file, judged);
    ++count;
    if (file < generated)
      std::erase_if(without, [&](const Stage* s) { return s->name == judged.result.stage; });
  };
  listener.on_file = [&](std::size_t file) {
    if (!common.quiet && count > 0) say("{}: {} cases\n", files[file].filename().string(), count);
    count = 0;
  };
  if (common.quiet) listener.on_note = [](std::size_t, const std::string&) {};
  judge_files(judging, listener);
  if (!stop_requested())
    for (const Stage* stage : without)
      session.failure(
          fmt::format("golden: no generated golden file holds cases of stage {}", stage->name));
  return session.finish();
}

}  // namespace monoref
