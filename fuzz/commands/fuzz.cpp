#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "fuzz/campaign.hpp"
#include "fuzz/commands/commands.hpp"
#include "fuzz/corpus.hpp"
#include "fuzz/load_cases.hpp"
#include "fuzz/report.hpp"
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

/// Earlier findings come first: they must be right before anything new is tried.
Summary replay_corpus(const std::filesystem::path& folder, const std::vector<Runner*>& runners,
                      JsonFile& json) {
  Summary summary;
  for (const auto& file : corpus_files(folder))
    for (const Case& item : load_cases(file)) {
      CaseResult result = item.line.empty() ? judge_case(find_stage(item.stage), item,
                                                         {.runners = runners, .properties = true})
                                            : judge_line(parse_line(item.line), runners);
      result.repro = fmt::format("monoref replay {}", file.string());
      summary.add(result);
      json.add(result);
      if (is_failure(result.verdict())) fmt::print("corpus: {}\n", failure_text(result));
    }
  return summary;
}

void print_coverage(const StageReport& report) {
  fmt::print(
      "{}: {} cases in {:.1f} s ({:.0f} a second)\n", report.stage->name, report.summary.cases(),
      report.seconds,
      report.seconds > 0 ? static_cast<double>(report.summary.cases()) / report.seconds : 0.0);
  for (const std::string& line : report.coverage.lines()) fmt::print("  {}\n", line);
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

}  // namespace

int fuzz_command(const CommonOptions& common, const FuzzOptions& options) {
  const auto runners = make_runners(common, "64");
  CampaignOptions campaign{.stages = offered_stages(common, pointers(runners)),
                           .runners = pointers(runners)};
  campaign.contract = common.parsed_contract();
  campaign.seed = common.seed;
  campaign.cases = options.cases;
  campaign.seconds = options.seconds;
  if (!options.cases && !options.seconds) campaign.seconds = 60;
  std::tie(campaign.shard, campaign.shards) = parse_shard(options.shard);
  campaign.corpus = options.corpus;

  JsonFile json(common.json);
  Summary summary = replay_corpus(options.corpus, campaign.runners, json);
  CampaignReport report;
  int unexpected = 0;
  {
    ProgressLine progress(common.quiet);
    report = run_campaign(
        campaign, [&](const CampaignProgress& now) { progress.show(now); },
        [&](const CaseResult& result) {
          json.add(result);
          // Generators must not make what is refused, unless they say so.
          if (result.verdict() == Verdict::kRefused && !result.refusal_was_expected &&
              unexpected++ < 3)
            fmt::print("{}\n", failure_text(result));
        });
  }
  summary.add(report.summary());
  if (!common.quiet)
    for (const StageReport& stage : report.stages) print_coverage(stage);
  for (const Finding& finding : report.findings) {
    fmt::print("{}\n  shrunk in {} tries from {}\n", failure_text(finding.result),
               finding.shrink_tries, finding.original);
    if (!finding.saved.empty()) fmt::print("  saved as {}\n", finding.saved.string());
  }
  json.set("coverage", coverage_json(report));
  json.finish(summary_json("fuzz", summary));
  fmt::print("{}\n", summary.line("fuzz"));
  return summary.exit_code();
}

}  // namespace monoref
