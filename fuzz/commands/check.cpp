#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "fuzz/commands/commands.hpp"
#include "fuzz/judging.hpp"
#include "fuzz/load_cases.hpp"
#include "fuzz/report.hpp"
#include "fuzz/session.hpp"

namespace monoref {
namespace {

/// What is said of a file when all its cases have been judged.
class FileReport {
 public:
  explicit FileReport(std::string name) : name_(std::move(name)) {}

  void add(const CaseResult& result) {
    ++cases_;
    for (const RunResult& run : result.runs) {
      CaseResult single;
      single.runs.push_back(run);
      entry(by_runner_,
            run.wave == 0 ? run.runner : fmt::format("{} wave {}", run.runner, run.wave))
          .add(single);
      // How the reference and each recorded output agreed.
      if (run.runner == "reference")
        for (const OutputTally& tally : run.outputs) entry(recorded_, tally.name).add(tally);
    }
  }

  void print() const {
    if (cases_ == 0) return;
    std::string line = fmt::format("{}: {} cases", name_, cases_);
    for (const auto& [who, summary] : by_runner_) {
      line += fmt::format("; {}:", who);
      for (const Verdict verdict : {Verdict::kExact, Verdict::kAllowed, Verdict::kWrong,
                                    Verdict::kRefused, Verdict::kCrashed, Verdict::kHung})
        if (summary.of(verdict) > 0)
          line += fmt::format(" {} {}", summary.of(verdict), verdict_name(verdict));
    }
    say("{}\n", line);
    const bool all_equal = std::all_of(recorded_.begin(), recorded_.end(), [](const auto& item) {
      return item.second.allowed + item.second.undecided == 0;
    });
    if (all_equal) return;  // the line of the file says it
    for (const auto& [name, sum] : recorded_)
      say("  {}: {} elements with our bits, {} inside their bound, {} outside, {} undecided\n",
          name, sum.exact, sum.allowed, sum.wrong, sum.undecided);
  }

  nlohmann::json json() const {
    nlohmann::json outputs = nlohmann::json::object();
    for (const auto& [name, sum] : recorded_) outputs[name] = tally_json(sum);
    return {{"file", name_}, {"cases", cases_}, {"outputs", outputs}};
  }

 private:
  template <class Value>
  static Value& entry(std::vector<std::pair<std::string, Value>>& list, const std::string& name) {
    for (auto& [known, value] : list)
      if (known == name) return value;
    return list.emplace_back(name, Value{}).second;
  }

  std::string name_;
  std::size_t cases_ = 0;
  std::vector<std::pair<std::string, Summary>> by_runner_;
  std::vector<std::pair<std::string, OutputTally>> recorded_;
};

/// A recording whose results are judged with bounds: no backend takes part.
void judge_recorded_file(const CaseFile& content, const std::filesystem::path& path,
                         const CommonOptions& common, JudgeStream& stream) {
  if (common.contract)
    return stream.bad_input(
        fmt::format("{}: --contract '{}' has no effect on a recording that is judged by what was "
                    "granted to its implementation ({}); it is not judged",
                    path.string(), *common.contract, content.judge()->contract));
  for (std::size_t i = 0; i < content.size(); ++i) {
    CaseResult header = content.header(i);
    header.repro = fmt::format("monoref check {}  # case {}", path.string(), header.title);
    stream.judge(header, [&]() -> JudgeStream::Judged {
      CaseResult result = judge_recorded(*content.judge(), content.recorded(i));
      result.repro = header.repro;
      return {std::move(result), {}};
    });
  }
}

void check_file(const std::filesystem::path& path, const CommonOptions& common,
                const std::vector<Runner*>& runners, JudgeStream& stream) {
  const auto stages = select_stages(common.stages);
  const auto contract = common.parsed_contract();
  CaseFile content(path);
  content.require_judgeable();
  stream.has_read(content.bytes());
  if (content.judge() != nullptr) {
    if (is_selected(stages, content.judge()->stage))
      judge_recorded_file(content, path, common, stream);
    return;
  }
  for (std::size_t i = 0; i < content.size(); ++i) {
    CaseResult header = content.header(i);
    if (!is_selected(stages, header.stage)) continue;
    header.repro = fmt::format("monoref check {}  # case {}", path.string(), header.title);
    stream.judge(header, [&]() -> JudgeStream::Judged {
      Case item = content.take(i);
      if (contract) item.contract = *contract;
      CaseResult result = judge_case(find_stage(item.stage), item,
                                     {.runners = runners,
                                      .properties = true,
                                      .launch = launch_choice(find_stage(item.stage), item.line),
                                      .step = stream.steps()});
      result.repro = header.repro;
      return {std::move(result), {}};
    });
  }
}

}  // namespace

int check_command(const CommonOptions& common, const std::vector<std::filesystem::path>& files) {
  check_backend(common);
  select_stages(common.stages);
  common.parsed_contract();
  Session session("check", common.json, common.must_run);
  Judging judging{
      .make_runners = [&] { return make_runners(common, "both"); },
      .judge = [&](std::size_t file, const std::vector<Runner*>& runners,
                   JudgeStream& stream) { check_file(files[file], common, runners, stream); }};
  std::vector<FileReport> reports;
  for (const auto& file : files) {
    judging.files.push_back(file.string());
    reports.emplace_back(file.filename().string());
  }
  nlohmann::json file_objects = nlohmann::json::array();
  JudgingListener listener = listener_for(session);
  listener.on_case = [&](std::size_t file, const JudgeStream::Judged& judged) {
    session.add(judged.result);
    reports[file].add(judged.result);
    print_unless_right(judged.result);
  };
  listener.on_file = [&](std::size_t file) {
    file_objects.push_back(reports[file].json());
    if (!common.quiet) reports[file].print();
    std::fflush(stdout);  // whoever waits reads it now
  };
  judge_files(judging, listener);
  session.add_json("files", file_objects);
  return session.finish();
}

}  // namespace monoref
