// Ranks with devices of their own: where their buffers lie, and that the kernels find each other's.
#include "tests/fuzz/devices.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "fuzz/judging.hpp"
#include "fuzz/placement.hpp"
#include "tests/device/pretend_runtime.hpp"

namespace monoref {
namespace {

using device::DeviceRun;

TEST(Devices, RanksAreDealtOutInOrder) {
  const auto devices = [](std::int64_t ranks, int count) {
    std::vector<int> list;
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      list.push_back(device_of_rank(rank, ranks, count));
    return list;
  };
  EXPECT_EQ(devices(4, 1), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(devices(2, 2), (std::vector<int>{0, 1}));
  EXPECT_EQ(devices(4, 2), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(devices(3, 2), (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(devices(1, 2), (std::vector<int>{0}));
}

TEST(Devices, EveryRankHasItsPartOfTheReduction) {
  const Case item =
      build_case(parse_line("stage=all_reduce;seed=1;ranks=2;rows=3;hidden_units=1;channels=5"));
  Placement placement(2);
  placement.add(find_stage("all_reduce"), item);
  constexpr std::uint64_t kRows = 3 * 512 * 2, kMailbox = 2 * 5 * 4;
  EXPECT_EQ(placement.runs("partials", {{0, 2 * kRows}}, 2),
            (std::vector<DeviceRun>{{0, kRows, 1, -1}, {kRows, kRows, 2, -1}}));
  EXPECT_EQ(placement.runs("out.sum", {{0, 2 * kRows}}, 2),
            (std::vector<DeviceRun>{{0, kRows, 1, 0}, {kRows, kRows, 2, 1}}));
  EXPECT_EQ(placement.runs("out.flags", {{0, 4 * kMailbox}}, 4),
            (std::vector<DeviceRun>{{0, kMailbox, 1, 0},
                                    {kMailbox, kMailbox, 2, 1},
                                    {2 * kMailbox, kMailbox, 1, 0},
                                    {3 * kMailbox, kMailbox, 2, 1}}));
  EXPECT_EQ(placement.runs("out.status", {{0, 8}}, 4),
            (std::vector<DeviceRun>{{0, 4, 1, 0}, {4, 4, 2, 1}}));
  EXPECT_EQ(placement.runs("no_such", {{0, 8}}, 4), std::vector<DeviceRun>{});
}

/// Two layers, steps of other sizes: a part of a reused buffer is now one rank's, now another's.
TEST(Devices, WhatALinkOfARankTouchesLiesOnItsDevice) {
  const Case item = build_case(
      parse_line("stage=decode_step;seed=3;ranks=2;layers=2;steps=2;requests=3;aux_mask=1"));
  Placement placement(2);
  const Stage& stage = find_stage("decode_step");
  placement.add(stage, item);
  const auto whole = [&](const char* name) { return placement.runs(name, {{0, 64}}, 1); };
  EXPECT_EQ(whole("l0.r0.qkv_weight"), (std::vector<DeviceRun>{{0, 64, 1, -1}}));
  EXPECT_EQ(whole("l1.r1.w13"), (std::vector<DeviceRun>{{0, 64, 2, -1}}));
  EXPECT_EQ(whole("out.l1.r1.kv_cache"), (std::vector<DeviceRun>{{0, 64, 2, 1}}));
  EXPECT_EQ(whole("out.r0.x8"), (std::vector<DeviceRun>{{0, 64, 1, 0}}));
  EXPECT_EQ(whole("out.s0.aux0"), (std::vector<DeviceRun>{{0, 64, 1, 0}}));
  EXPECT_EQ(whole("l0.input_gamma"), (std::vector<DeviceRun>{{0, 64, 3, -1}}));
  EXPECT_EQ(whole("out.s0.row_table"), (std::vector<DeviceRun>{{0, 64, 3, -1}}));
  EXPECT_EQ(whole("out.step"), (std::vector<DeviceRun>{{0, 64, 3, -1}}));
}

class PretendDevices : public testing::Test {
 protected:
  device::Script script_;
  KernelRunner runner_{device::make_pretend_backend(script_, 2)};
};

/// A pretended device may be kept from running for any time: cases in which ranks on both are to
/// give up after a number of looks are left to real ones.
bool waits_on_one_device(const Params& params) {
  const std::int64_t ranks = params["ranks"];
  const std::int64_t absent = std::min(params["absent"], ranks - 1);
  return absent == 0 || device_of_rank(ranks - absent - 1, ranks, 2) == 0;
}

TEST_F(PretendDevices, ReduceAsOneDoes) {
  EXPECT_EQ(
      judge_draws("all_reduce", runner_, 120, false,
                  [](const Params& params, std::uint64_t) { return waits_on_one_device(params); }),
      120);
}

TEST_F(PretendDevices, GiveUpOnARankThatDoesNotCome) {
  for (const char* line : {"stage=all_reduce;seed=1;ranks=2;rows=3;absent=1",
                           "stage=all_reduce;seed=2;ranks=4;rows=13;absent=2;channels=2"}) {
    const CaseResult result = judge_line(parse_line(line), {&runner_});
    EXPECT_EQ(result.verdict(), Verdict::kExact) << line;
    EXPECT_EQ(result.runs.back().runner, "pretend");
  }
}

TEST_F(PretendDevices, ReduceAgainInTheSameBuffersWithOtherRanks) {
  const Stage& stage = find_stage("all_reduce");
  const Case two = build_case(parse_line("stage=all_reduce;seed=1;ranks=2;rows=5;channels=2"));
  const Case four = build_case(parse_line("stage=all_reduce;seed=2;ranks=4;rows=13;channels=1"));
  for (const auto& [earlier, later] : {std::pair(&two, &four), std::pair(&four, &two)}) {
    const CaseResult result =
        judge_case(stage, *later, {.runners = {&runner_}, .earlier = earlier});
    EXPECT_EQ(result.verdict(), Verdict::kExact);
    EXPECT_EQ(result.runs.back().runner, "pretend, reused buffers");
  }
}

/// The second device has no row of the second step, and no byte of what the first one placed.
TEST_F(PretendDevices, ReduceNoRowsAfterOneRankReducedSome) {
  const Stage& stage = find_stage("all_reduce");
  const Case one = build_case(parse_line("stage=all_reduce;seed=1;ranks=1;rows=5"));
  const Case two = build_case(parse_line("stage=all_reduce;seed=2;ranks=2;rows=0"));
  const CaseResult result = judge_case(stage, two, {.runners = {&runner_}, .earlier = &one});
  EXPECT_EQ(result.verdict(), Verdict::kExact);
  EXPECT_EQ(result.runs.back().runner, "pretend, reused buffers");
}

TEST_F(PretendDevices, RunLayersAndSteps) {
  for (const char* line :
       {"stage=sparse_layer;seed=5;ranks=2;requests=3", "stage=sparse_layer;seed=6;ranks=4;q_len=2",
        "stage=sparse_layer;seed=7;ranks=1",
        "stage=decode_step;seed=8;ranks=2;steps=3;layers=2;requests=4;aux_mask=3",
        "stage=decode_step;seed=9;ranks=4;steps=2;layers=1;dense_layers=1;tags=wrap"}) {
    const CaseResult result = judge_line(parse_line(line), {&runner_});
    EXPECT_EQ(result.verdict(), Verdict::kExact)
        << line << ": " << (result.decisive() ? result.decisive()->message : "");
    EXPECT_EQ(result.runs.back().runner, "pretend");
  }
}

TEST_F(PretendDevices, EachDoAllOfAStageWithoutRanks) {
  EXPECT_EQ(judge_draws("token_rows", runner_, 40, true,
                        [](const Params&, std::uint64_t) { return true; }),
            40);
  const Case item = build_case(parse_line("stage=token_rows;seed=1;q_len=3"));
  const Stage& stage = find_stage("token_rows");
  Stage only_first = stage;
  bool is_first = true;
  only_first.launch = [&stage, &is_first](const Case& the_case, const Launcher& launcher) {
    if (is_first) stage.launch(the_case, launcher);
    is_first = false;
  };
  const CaseResult result = judge_case(only_first, item, {.runners = {&runner_}});
  EXPECT_EQ(result.verdict(), Verdict::kCrashed) << "the second device's copy was not written";
}

TEST_F(PretendDevices, FindAFaultBetweenTheKernels) {
  device::set_active_fault("runner_parity_swapped");
  const CaseResult result =
      judge_line(parse_line("stage=decode_step;seed=8;ranks=2;layers=3;requests=2"), {&runner_});
  device::set_active_fault({});
  EXPECT_EQ(result.verdict(), Verdict::kWrong);
}

// ---- limits of passed time ---------------------------------------------------------------------

constexpr int kForever = 1'000'000'000;  // looks

TEST(TimeLimits, ARunThatTookTooLongOnADeviceIsDoneAgainAlone) {
  device::Script script{.stops = true};
  const CaseLine line = parse_line("stage=token_rows;seed=3");
  const auto judge = [&](LimitOf limit) {
    KernelRunner runner(device::make_pretend_backend(script), limit);
    runner.set_time_limit(0.05);
    script.looks_of_launch = kForever;  // until the device is asked to stop
    return judge_line(line, {&runner});
  };
  EXPECT_EQ(judge(LimitOf::kPassedTime).verdict(), Verdict::kExact);
  EXPECT_EQ(judge(LimitOf::kProcessorTime).verdict(), Verdict::kHung);
  script.stops_for_good = false;
  const CaseResult hung = judge(LimitOf::kPassedTime);
  EXPECT_EQ(hung.verdict(), Verdict::kHung);
  EXPECT_NE(hung.decisive()->message.find("the second of two runs"), std::string::npos)
      << hung.decisive()->message;
}

/// What `judge_files` tells of two cases, where a process has a device that cannot be stopped.
/// `busy` says whether the device of the process of this number is.
std::vector<Verdict> judge_in_processes(const std::function<bool(std::size_t)>& busy) {
  const std::filesystem::path starts =
      std::filesystem::temp_directory_path() / fmt::format("monoref_devices_{}", getpid());
  const Case item = build_case(parse_line("stage=token_rows;seed=3"));
  device::Script script;
  std::vector<Verdict> verdicts;
  JudgingListener listener{
      .on_runner = [](const std::string&) {},
      .on_case =
          [&](std::size_t, const JudgeStream::Judged& judged) {
            verdicts.push_back(judged.result.verdict());
          },
      .on_file = [](std::size_t) {},
      .on_note = [](std::size_t, const std::string&) {},
      .on_bad_input = [](const std::string& text) { ADD_FAILURE() << text; },
      .on_unavailable = [](const std::string& text) { ADD_FAILURE() << text; }};
  judge_files(
      {.files = {"line"},
       .make_runners =
           [&] {
             std::ofstream(starts, std::ios::app) << '.';
             script.looks_of_launch = busy(std::filesystem::file_size(starts)) ? kForever : 0;
             std::vector<std::unique_ptr<Runner>> runners;
             runners.push_back(std::make_unique<KernelRunner>(device::make_pretend_backend(script),
                                                              LimitOf::kPassedTime));
             runners.back()->set_time_limit(0.05);
             return runners;
           },
       .judge =
           [&](std::size_t, const std::vector<Runner*>& runners, JudgeStream& stream) {
             stream.trust();
             for (int i = 0; i < 2; ++i)
               stream.judge({.stage = item.stage}, [&]() -> JudgeStream::Judged {
                 return {judge_case(find_stage(item.stage), item, {.runners = runners}), {}};
               });
           }},
      listener);
  std::filesystem::remove(starts);
  return verdicts;
}

TEST(TimeLimits, ADeviceThatCannotBeStoppedIsTriedAgainByAnotherProcess) {
  EXPECT_EQ(judge_in_processes([](std::size_t process) { return process == 1; }),
            (std::vector{Verdict::kExact, Verdict::kExact}));
  // Twice in vain; the third process begins with the case behind it.
  EXPECT_EQ(judge_in_processes([](std::size_t process) { return process <= 2; }),
            (std::vector{Verdict::kHung, Verdict::kExact}));
}

}  // namespace
}  // namespace monoref
