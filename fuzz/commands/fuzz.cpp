#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "fuzz/campaign.hpp"
#include "fuzz/commands/commands.hpp"
#include "fuzz/corpus.hpp"
#include "fuzz/judging.hpp"
#include "fuzz/load_cases.hpp"
#include "fuzz/report.hpp"
#include "fuzz/session.hpp"
#include "fuzz/stop.hpp"
#include "golden/file_error.hpp"

namespace monoref {
namespace {

std::pair<std::uint64_t, std::uint64_t> parse_shard(const std::string& text) {
  std::uint64_t shard = 0;
  std::uint64_t shards = 0;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, shard);
  if (first.ec == std::errc{} && first.ptr != end && *first.ptr == '/') {
    const auto second = std::from_chars(first.ptr + 1, end, shards);
    if (second.ec == std::errc{} && second.ptr == end && shard < shards) return {shard, shards};
  }
  refuse("--shard: '{}' must be i/n with i below n", text);
}

/// Takes out the stages that have no form for a contract, and says so.
void drop_stages_without(const Contract& contract, std::vector<const Stage*>& stages) {
  std::erase_if(stages, [&](const Stage* stage) {
    const auto why = contract_refusal(*stage, contract);
    if (why) fmt::print("fuzz: {} is left out: {}\n", stage->name, *why);
    return why.has_value();
  });
  if (stages.empty()) refuse("--contract: no selected stage has a form for '{}'", contract.text());
}

/// The selected stages, without those that a plugin does not offer or that have no form for the
/// contract.
std::vector<const Stage*> offered_stages(const CommonOptions& common,
                                         const std::vector<Runner*>& runners) {
  std::vector<const Stage*> stages = select_stages(common.stages);
  const bool is_plugin = common.backend.starts_with("plugin:");
  std::erase_if(stages,
                [&](const Stage* stage) { return is_plugin && !runners.front()->offers(*stage); });
  if (stages.empty())
    throw device::Unavailable{
        fmt::format("{} offers none of the stages '{}'", runners.front()->name(), common.stages)};
  if (const auto contract = common.parsed_contract()) drop_stages_without(*contract, stages);
  return stages;
}

/// Progress on standard error: a line that rewrites itself on a terminal, else one every ten
/// seconds.
class ProgressLine {
 public:
  explicit ProgressLine(bool quiet) : quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}
  void show(const CampaignProgress& now) {
    if (quiet_ || now.seconds < next_) return;
    next_ = now.seconds + (terminal_ ? 0.5 : 10.0);
    fmt::print(stderr, "{}fuzz: {} cases in {:.0f} s, {:.0f} a second, {} findings{}",
               terminal_ ? "\r" : "", now.done, now.seconds,
               static_cast<double>(now.done) / now.seconds, now.findings, terminal_ ? "" : "\n");
    drawn_ = terminal_;
  }
  ~ProgressLine() {
    if (drawn_) fmt::print(stderr, "\n");
  }

 private:
  bool quiet_;
  bool terminal_;
  bool drawn_ = false;
  double next_ = 1.0;
};

void judge_corpus_entry(const std::filesystem::path& path, const std::vector<Runner*>& runners,
                        JudgeStream& stream) {
  CaseFile content(path);
  if (!content.has_cases()) throw FileError(path.string(), "holds no case of a stage");
  stream.has_read(content.bytes());
  for (std::size_t i = 0; i < content.size(); ++i) {
    CaseResult header = content.header(i);
    header.repro = fmt::format("monoref replay {}", path.string());
    stream.judge(header, [&]() -> JudgeStream::Judged {
      CaseResult result = judge_saved(content.take(i), runners, stream.steps());
      result.repro = header.repro;
      return {std::move(result), {}};
    });
  }
}

/// Earlier findings come first: they must be right before anything new is tried.
void replay_corpus(const CommonOptions& common, const std::filesystem::path& folder,
                   Session& session) {
  std::error_code failed;
  if (std::filesystem::exists(folder, failed) && !std::filesystem::is_directory(folder, failed))
    session.bad_input(fmt::format("--corpus: '{}' is not a folder", folder.string()));
  const auto files = corpus_files(folder);
  if (files.empty()) return;
  Judging judging{
      .make_runners = [&] { return make_runners(common, "both"); },
      .judge = [&](std::size_t file, const std::vector<Runner*>& runners,
                   JudgeStream& stream) { judge_corpus_entry(files[file], runners, stream); }};
  for (const auto& file : files) judging.files.push_back(file.string());
  JudgingListener listener = listener_for(session);
  listener.on_case = [&](std::size_t, const JudgeStream::Judged& judged) {
    session.add(judged.result);
    if (judged.result.verdict() >= Verdict::kRefused) say("corpus: ");
    print_unless_right(judged.result);
  };
  judge_files(judging, listener);
}

void print_coverage(const StageReport& report) {
  say("{}: {} cases in {:.1f} s ({:.0f} a second)\n", report.stage->name, report.summary.cases(),
      report.seconds,
      report.seconds > 0 ? static_cast<double>(report.summary.cases()) / report.seconds : 0.0);
  for (const std::string& line : report.coverage.lines()) say("  {}\n", line);
}

nlohmann::json coverage_json(const CampaignReport& report) {
  nlohmann::json all = nlohmann::json::object();
  for (const StageReport& stage : report.stages)
    for (const auto& [dimension, counts] : stage.coverage.counts())
      for (const auto& [value, count] : counts)
        all[std::string(stage.stage->name)][std::string(dimension->name)]
           [dimension->words.empty()
                ? fmt::format("{}", value)
                : std::string(dimension->words[static_cast<std::size_t>(value)])] = count;
  return all;
}

std::string finding_text(const Finding& finding) {
  std::string text = fmt::format("{}\n  shrunk in {} tries from {}\n", failure_text(finding.result),
                                 finding.shrink_tries, finding.original);
  if (!finding.saved.empty()) text += fmt::format("  saved as {}\n", finding.saved.string());
  return text;
}

/// What the campaign tells as it goes.
class CampaignTeller {
 public:
  CampaignTeller(Session& session, bool quiet) : session_(session), progress_(quiet) {}

  void each(const CaseResult& result) {
    session_.add(result);
    // Generators must not make what is refused, unless they say so.
    if (result.verdict() == Verdict::kRefused && !result.refusal_was_expected &&
        unexpected_++ < kShownRefusals)
      say("{}\n", failure_text(result));
  }
  void failing(const CaseResult& result) {
    const std::lock_guard lock(mutex_);
    unshrunken_ = result;
  }
  void found(const Finding& finding) {
    const std::lock_guard lock(mutex_);
    unshrunken_.reset();
    say("{}", finding_text(finding));
    std::fflush(stdout);
    if (!finding.not_saved.empty())
      session_.failure(fmt::format("the finding could not be saved: {}", finding.not_saved));
  }
  void progress(const CampaignProgress& now) { progress_.show(now); }
  /// What was found and is still being shrunk, for an end in between.
  void tell_unshrunken() {
    const std::lock_guard lock(mutex_);
    if (unshrunken_) say("{}\n", failure_text(*unshrunken_));
  }

 private:
  static constexpr int kShownRefusals = 3;
  Session& session_;
  ProgressLine progress_;
  int unexpected_ = 0;
  std::mutex mutex_;
  std::optional<CaseResult> unshrunken_;
};

/// The campaign itself, with the reports of its stages. Whatever stops it, what was found by then
/// is in the session.
void fuzz(const CommonOptions& common, CampaignOptions campaign, Session& session) {
  std::vector<std::unique_ptr<Runner>> runners;
  try {
    runners = make_runners(common, "both");
    campaign.runners = pointers(runners);
    campaign.in_turn = common.wave.empty();
    campaign.stages = offered_stages(common, campaign.runners);
  } catch (const device::Unavailable& unavailable) {
    return session.unavailable(unavailable.message);
  }
  for (const Runner* runner : campaign.runners)
    session.runner(runner_token(runner->name(), runner->wave()));
  CampaignTeller teller(session, common.quiet);
  campaign.stop = stop_requested;
  campaign.failing = [&](const CaseResult& result) { teller.failing(result); };
  campaign.found = [&](const Finding& finding) { teller.found(finding); };
  const GiveUpInTime watch([&] {
    teller.tell_unshrunken();
    const int code = session.finish();
    std::fflush(stdout);
    _exit(code);
  });
  try {
    const CampaignReport report = run_campaign(
        campaign, [&](const CampaignProgress& now) { teller.progress(now); },
        [&](const CaseResult& result) { teller.each(result); });
    if (!common.quiet)
      for (const StageReport& stage : report.stages) print_coverage(stage);
    session.add_json("coverage", coverage_json(report));
  } catch (const device::Unavailable& lost) {
    teller.tell_unshrunken();
    session.unavailable(lost.message);
  } catch (const std::exception& error) {
    session.bad_input(error.what());
  }
}

}  // namespace

int fuzz_command(const CommonOptions& common, const FuzzOptions& options) {
  check_backend(common);
  select_stages(common.stages);
  CampaignOptions campaign{.contract = common.parsed_contract(),
                           .seed = common.seed,
                           .cases = options.cases,
                           .seconds = options.seconds,
                           .corpus = options.corpus};
  if (!options.cases && !options.seconds) campaign.seconds = 60;
  std::tie(campaign.shard, campaign.shards) = parse_shard(options.shard);
  Session session("fuzz", common.json, common.must_run);
  replay_corpus(common, options.corpus, session);
  if (!stop_requested()) fuzz(common, std::move(campaign), session);
  return session.finish();
}

}  // namespace monoref
