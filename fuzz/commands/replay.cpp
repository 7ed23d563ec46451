#include <fmt/format.h>

#include "fuzz/bisect.hpp"
#include "fuzz/campaign.hpp"
#include "fuzz/commands/commands.hpp"
#include "fuzz/judging.hpp"
#include "fuzz/load_cases.hpp"
#include "fuzz/report.hpp"
#include "fuzz/session.hpp"
#include "golden/file_error.hpp"

namespace monoref {
namespace {

/// A line names a stage; anything else is a file.
bool is_line(const std::string& target) {
  return target.find("stage=") != std::string::npos;
}

void print_result(const CaseResult& result, bool quiet) {
  print_unless_right(result);
  if (quiet || is_failure(result.verdict()) || result.verdict() == Verdict::kRefused) return;
  say("{} {} under contract {}\n", verdict_name(result.verdict()), result.stage, result.contract);
  for (const RunResult& run : result.runs)
    for (const OutputTally& tally : run.outputs)
      say("  {}{}: {}: {} elements, {} exact, {} allowed{}\n", run.runner,
          run.wave == 0 ? "" : fmt::format(" (wave {})", run.wave), tally.name, tally.elements,
          tally.exact, tally.allowed,
          tally.undecided == 0 ? "" : fmt::format(", {} undecided", tally.undecided));
}

/// Where the two sides part, and what went in; with another contract, where the contracts part.
std::string bisection(const Case& item, const CaseResult& result,
                      const std::optional<Contract>& other) {
  const Stage& stage = find_stage(item.stage);
  if (result.verdict() == Verdict::kRefused) return {};
  std::string text = bisection_text(stage, item, result);
  if (!text.empty()) text += "\n";
  if (other && *other != item.contract) text += contract_bisection_text(stage, item, *other) + "\n";
  return text;
}

/// What to replay, and how.
struct Replay {
  std::string target;
  bool bisect;
  /// With --bisect, the case keeps its contract and --contract is what it is held against.
  std::optional<Contract> contract;
  std::vector<const Stage*> stages;  ///< of a file's cases

  void line(const std::vector<Runner*>& runners, JudgeStream& stream) const {
    CaseLine parsed = parse_line(target);
    if (contract && !bisect) parsed.contract = *contract;
    stream.trust();
    const CaseResult header{.stage = parsed.stage,
                            .contract = parsed.contract.text(),
                            .line = target,
                            .repro = fmt::format("monoref replay '{}'", target)};
    stream.judge(header, [&]() -> JudgeStream::Judged {
      CaseResult result = judge_line(parsed, runners, stream.steps());
      return {result, explain(stream, [&] { return build_case(parsed); }, result)};
    });
  }

  void file(const std::vector<Runner*>& runners, JudgeStream& stream) const {
    CaseFile content{std::filesystem::path(target)};
    if (!content.has_cases())
      throw FileError(target, "no stage here adopts recordings of its kind; see `monoref check`");
    stream.has_read(content.bytes());
    for (std::size_t i = 0; i < content.size(); ++i) {
      CaseResult header = content.header(i);
      if (!is_selected(stages, header.stage)) continue;
      header.repro = fmt::format("monoref replay {}", target);
      stream.judge(header, [&]() -> JudgeStream::Judged {
        Case item = content.take(i);
        if (contract && !bisect) item.contract = *contract;
        CaseResult result = judge_case(find_stage(item.stage), item,
                                       {.runners = runners,
                                        .properties = true,
                                        .launch = launch_choice(find_stage(item.stage), item.line),
                                        .step = stream.steps()});
        result.repro = header.repro;
        return {result, explain(stream, [&] { return item; }, result)};
      });
    }
  }

 private:
  template <class MakeCase>
  std::string explain(JudgeStream& stream, MakeCase&& make, const CaseResult& result) const {
    if (!bisect) return {};
    try {
      stream.step("bisect", true);
      return bisection(make(), result, contract);
    } catch (const Refusal& refusal) {
      stream.bad_input(refusal.what());
      return {};
    }
  }
};

/// Refuses a line that names no case, before anything is started for it.
void check_line(const CommonOptions& common, const std::string& target) {
  if (common.stages != "all")
    refuse("--stage: '{}' has no effect on a line, which names its stage", common.stages);
  const CaseLine line = parse_line(target);
  const Stage& stage = find_stage(line.stage);
  check_generator_version(stage, line);
  Params params(stage.dimensions);
  apply_settings(params, line);
}

}  // namespace

int replay_command(const CommonOptions& common, const std::string& target, bool bisect) {
  check_backend(common);
  if (is_line(target)) check_line(common, target);
  const Replay replay{target, bisect, common.parsed_contract(), select_stages(common.stages)};
  Session session("replay", common.json, common.must_run);
  const Judging judging{
      .files = {target},
      .make_runners = [&] { return make_runners(common, "both"); },
      .judge =
          [&](std::size_t, const std::vector<Runner*>& runners, JudgeStream& stream) {
            is_line(target) ? replay.line(runners, stream) : replay.file(runners, stream);
          }};
  JudgingListener listener = listener_for(session);
  listener.on_case = [&](std::size_t, const JudgeStream::Judged& judged) {
    session.add(judged.result);
    print_result(judged.result, common.quiet);
    say("{}", judged.text);
  };
  judge_files(judging, listener);
  return session.finish();
}

}  // namespace monoref
