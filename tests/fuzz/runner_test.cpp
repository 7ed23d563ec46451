// Judging with runners that misbehave in known ways: each must be seen, and seen as what it is.
#include "fuzz/runner.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "fuzz/campaign.hpp"
#include "fuzz/mutants.hpp"

namespace monoref {
namespace {

/// Computes with the reference, then spoils the result.
class SpoiledRunner : public Runner {
 public:
  using Spoil = std::function<void(RunOutputs&)>;
  explicit SpoiledRunner(Spoil spoil) : spoil_(std::move(spoil)) {}
  std::string name() const override { return "spoiled"; }
  int wave() const override { return 0; }
  RunOutputs run(const Stage& stage, const Case& item, std::span<const OutputSpec> specs) override {
    RunOutputs result{.outputs = run_reference(stage, item, specs)};
    spoil_(result);
    return result;
  }

 private:
  Spoil spoil_;
};

/// Computes with the reference, and counts.
class CountingRunner : public Runner {
 public:
  std::string name() const override { return "counting"; }
  int wave() const override { return 0; }
  RunOutputs run(const Stage& stage, const Case& item, std::span<const OutputSpec> specs) override {
    ++runs;
    return {.outputs = run_reference(stage, item, specs)};
  }
  std::optional<RunOutputs> run_after(const Stage&, const Case&, const Case&) override {
    ++second_runs;
    return std::nullopt;
  }
  int runs = 0;
  int second_runs = 0;
};

CaseResult judge(const std::string& line, SpoiledRunner::Spoil spoil) {
  SpoiledRunner runner(std::move(spoil));
  const Case item = build_case(parse_line(line));
  return judge_case(find_stage(item.stage), item, {.runners = {&runner}, .properties = true});
}

constexpr const char* kLine = "stage=token_rows;seed=4;requests=2;q_len=3;width=4";

TEST(Judge, AnHonestRunnerIsExact) {
  const CaseResult result = judge(kLine, [](RunOutputs&) {});
  EXPECT_EQ(result.verdict(), Verdict::kExact);
  ASSERT_EQ(result.runs.size(), 1u);
  EXPECT_EQ(result.runs[0].outputs[0].elements, 24u);
  EXPECT_EQ(result.runs[0].outputs[1].elements, 6u);
}

TEST(Judge, AWrongElementIsNamed) {
  const CaseResult result =
      judge(kLine, [](RunOutputs& run) { run.outputs[1].tensor.view<std::int32_t, 1>()(4) -= 1; });
  EXPECT_EQ(result.verdict(), Verdict::kWrong);
  EXPECT_EQ(result.decisive()->first_difference->output, "seq_lens");
  EXPECT_EQ(result.decisive()->first_difference->index[0],
            (std::pair<std::string, std::int64_t>{"row", 4}));
}

TEST(Judge, CrashesHangsAndRefusalsAreVerdicts) {
  EXPECT_EQ(
      judge(kLine, [](RunOutputs& run) { run.status = device::RunStatus::kCrashed; }).verdict(),
      Verdict::kCrashed);
  EXPECT_EQ(judge(kLine, [](RunOutputs& run) { run.status = device::RunStatus::kHung; }).verdict(),
            Verdict::kHung);
  EXPECT_EQ(judge(kLine, [](RunOutputs& run) { run.refused = true; }).verdict(), Verdict::kRefused);
}

TEST(Judge, AnAnnouncedDefectMustBeRefused) {
  const CaseResult result =
      judge("stage=token_rows;seed=4;q_len=3;defect=missing_requests", [](RunOutputs&) {});
  EXPECT_EQ(result.verdict(), Verdict::kRefused);
  EXPECT_TRUE(result.refusal_was_expected);
  Summary summary;
  summary.add(result);
  EXPECT_EQ(summary.exit_code(), 0);
}

TEST(Judge, AnUnannouncedRefusalIsExitCode2) {
  Case item = build_case(parse_line(kLine));
  for (NamedScalar& scalar : item.scalars)
    if (scalar.name == "n") scalar.value = std::int64_t{300};
  const CaseResult result = judge_case(find_stage("token_rows"), item, {});
  EXPECT_EQ(result.verdict(), Verdict::kRefused);
  Summary summary;
  summary.add(result);
  EXPECT_EQ(summary.exit_code(), 2);
}

TEST(Judge, StoredOutputsAreCompared) {
  Case item = build_case(parse_line(kLine));
  const Stage& stage = find_stage("token_rows");
  Outputs outputs = run_reference(stage, item, stage.outputs(item));
  item.expected = {{"seq_lens", outputs[1].tensor, std::nullopt}};
  EXPECT_EQ(judge_case(stage, item, {}).verdict(), Verdict::kExact);
  item.expected[0].tensor.view<std::int32_t, 1>()(0) += 1;
  EXPECT_EQ(judge_case(stage, item, {}).verdict(), Verdict::kWrong);
  item.expected[0].name = "lengths";
  EXPECT_EQ(judge_case(stage, item, {}).verdict(), Verdict::kWrong);
}

std::vector<std::string> lines_of_shard(std::uint64_t shard, std::uint64_t shards) {
  std::vector<std::string> seen;
  CampaignOptions options{.stages = select_stages("token_rows,page16_rebase")};
  options.cases = 200;
  options.shard = shard;
  options.shards = shards;
  run_campaign(
      options, [](const CampaignProgress&) {},
      [&](const CaseResult& result) { seen.push_back(result.line); });
  return seen;
}

TEST(Campaign, ShardsTogetherAreTheWhole) {
  std::vector<std::string> whole = lines_of_shard(0, 1);
  std::sort(whole.begin(), whole.end());
  EXPECT_EQ(whole.size(), 200u);
  for (const std::uint64_t shards : {2, 3, 4, 15, 34}) {
    std::vector<std::string> parts;
    for (std::uint64_t shard = 0; shard < shards; ++shard)
      for (const std::string& line : lines_of_shard(shard, shards)) parts.push_back(line);
    std::sort(parts.begin(), parts.end());
    EXPECT_EQ(whole, parts) << shards;
  }
}

// A shard that never sees some of the stages, contracts or deep cases leaves them to the others,
// which may be lost. Equal shares, whatever the number of shards has in common with theirs.
TEST(Campaign, EveryShardHasItsShareOfEveryKindOfCase) {
  for (const std::uint64_t shards : {1, 2, 3, 4, 15, 34, 68})
    for (const Stage& stage : all_stages()) {
      const std::uint64_t contracts = stage.contracts.size();
      const auto number = static_cast<std::uint64_t>(&stage - all_stages().data());
      std::map<std::tuple<std::uint64_t, std::uint64_t, bool>, int> share;
      for (std::uint64_t index = 0; index < 4 * contracts * shards; ++index)
        ++share[{shard_of(number, index, contracts, shards), index % contracts,
                 is_deep(index, contracts)}];
      EXPECT_EQ(share.size(), 2 * contracts * shards) << stage.name << ", " << shards;
      for (const auto& [kind, cases] : share)
        EXPECT_EQ(cases, std::get<bool>(kind) ? 1 : 3) << stage.name << ", " << shards;
    }
}

// What goes by the index in some other period is dealt to all too.
TEST(Campaign, NoPeriodOfTheIndexStaysWithOneShard) {
  for (const std::uint64_t shards : {2, 3, 4, 6, 16})
    for (const std::uint64_t period : {2, 3, 4, 5, 8, 16, 17, 32}) {
      std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
      for (std::uint64_t index = 0; index < 400 * shards * period; ++index)
        seen.insert({shard_of(7, index, 2, shards), index / 8 % period});
      EXPECT_EQ(seen.size(), shards * period) << shards << ", " << period;
    }
}

TEST(Campaign, AFailureIsShrunkAndItsLineFailsAgain) {
  SpoiledRunner runner([](RunOutputs& run) {
    Tensor& lengths = run.outputs[1].tensor;
    if (lengths.dim(0) >= 5) lengths.view<std::int32_t, 1>()(4) ^= 1;
  });
  CampaignOptions options{.stages = select_stages("token_rows"), .runners = {&runner}};
  options.cases = 200;
  const CampaignReport report =
      run_campaign(options, [](const CampaignProgress&) {}, [](const CaseResult&) {});
  ASSERT_EQ(report.findings.size(), 1u);
  const CaseResult& found = report.findings[0].result;
  EXPECT_TRUE(is_failure(found.verdict()));
  EXPECT_TRUE(is_failure(judge_line(parse_line(found.line), {&runner}).verdict()));
  const Case item = build_case(parse_line(found.line));
  EXPECT_LE(item.input("seq_lens").dim(0), 5) << found.line;
  EXPECT_EQ(item.input("block_table").dim(1), 1) << found.line;
}

// The planted faults are off unless asked for: the build that has them is otherwise the shipped
// one.
TEST(Mutants, WithoutAnActiveFaultNothingIsFound) {
  KernelRunner runner(device::make_host_backend(64, device::KernelBuild::kWithFaults));
  CampaignOptions options{.stages = select_stages("all"), .runners = {&runner}};
  options.cases = 300;
  const CampaignReport report =
      run_campaign(options, [](const CampaignProgress&) {}, [](const CaseResult&) {});
  EXPECT_TRUE(report.findings.empty());
  EXPECT_EQ(report.summary().exit_code(), 0);
}

TEST(Mutants, AKilledMutantHasALineThatKillsItAgain) {
  const Stage& stage = find_stage("index_cache_insert");
  KernelRunner runner(device::make_host_backend(64, device::KernelBuild::kWithFaults));
  Runner* const runners[] = {&runner};
  const MutantResult result =
      try_mutant(stage, stage.mutants.front(), runners, 1, 1000, [] { return false; });
  ASSERT_EQ(result.fate, MutantFate::kKilled);
  device::set_active_fault(stage.mutants.front().name);
  EXPECT_TRUE(is_failure(judge_line(parse_line(result.repro), {&runner}).verdict()));
  device::set_active_fault({});
  EXPECT_FALSE(is_failure(judge_line(parse_line(result.repro), {&runner}).verdict()));
}

TEST(Mutants, AFaultThatIsNotPlantedSurvives) {
  const Stage& stage = find_stage("token_rows");
  CountingRunner wave64;
  CountingRunner wave32;
  Runner* const runners[] = {&wave64, &wave32};
  const Mutant none{"no_such_fault", "own", "nothing"};
  MutantResult result = try_mutant(stage, none, runners, 1, 40, [] { return false; });
  EXPECT_EQ(result.fate, MutantFate::kSurvived);
  EXPECT_EQ(result.cases, 40u);
  // Both had their share of the cases, and of those that are run a second time.
  EXPECT_GT(wave64.runs, 10);
  EXPECT_GT(wave32.runs, 10);
  EXPECT_GT(wave64.second_runs, 0);
  EXPECT_GT(wave32.second_runs, 0);
  // Stopped in the middle, it has not survived.
  result = try_mutant(stage, none, runners, 1, 1000, [&] { return wave64.runs > 100; });
  EXPECT_EQ(result.fate, MutantFate::kNotTried);
  EXPECT_GT(result.cases, 10u);
  EXPECT_LT(result.cases, 1000u);
}

}  // namespace
}  // namespace monoref
