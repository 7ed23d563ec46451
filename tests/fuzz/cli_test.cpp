// The command line as a user meets it: exit codes, last lines, JSON, and clear errors.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>

#include "fuzz/runner.hpp"
#include "golden/case_file.hpp"

namespace monoref {
namespace {

struct Ran {
  int code;
  std::string out;  ///< standard output and standard error together
  /// The n-th line from the end, 1 for the last.
  std::string line_from_end(int n) const {
    std::string text = out.substr(0, out.find_last_not_of('\n') + 1);
    for (; n > 1; --n) text.resize(std::min(text.rfind('\n'), text.size()));
    return text.substr(text.rfind('\n') + 1);
  }
  std::string last_line() const { return line_from_end(1); }
  bool says(const std::string& text) const { return out.find(text) != std::string::npos; }
};

Ran run(const std::string& arguments) {
  const std::string command = std::string(MONOREF_PROGRAM) + " " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  Ran ran{-1, {}};
  char buffer[4096];
  while (const std::size_t count = fread(buffer, 1, sizeof(buffer), pipe))
    ran.out.append(buffer, count);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ran.code = WEXITSTATUS(status);
  return ran;
}

/// A folder that goes away with the test.
class CommandLine : public testing::Test {
 protected:
  CommandLine() {
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("monoref_cli_") +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~CommandLine() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  nlohmann::json json(const std::string& name) const {
    std::ifstream stream(folder_ / name);
    return nlohmann::json::parse(stream);
  }
  static std::string recorded(const std::string& name) {
    return std::string(MONOREF_SOURCE_FOLDER) + "/golden/recorded/" + name;
  }
  std::filesystem::path folder_;
};

TEST_F(CommandLine, HelpTeaches) {
  const Ran ran = run("--help");
  EXPECT_EQ(ran.code, 0);
  for (const char* word :
       {"list", "check", "fuzz", "replay", "golden", "mutants", "bench", "Exit codes"})
    EXPECT_NE(ran.out.find(word), std::string::npos) << word;
}

TEST_F(CommandLine, BadUsageIs2) {
  for (const char* arguments :
       {"", "nonsense", "check", "fuzz --cases x", "fuzz --shard 2/2 --cases 1",
        "fuzz --cases 1 --seconds 1", "fuzz --stage none --cases 1", "fuzz --wave 16 --cases 1",
        "fuzz --backend cpu --cases 1", "fuzz --contract other --cases 1", "mutants --only none",
        "replay 'stage=token_rows;width=-1'", "golden verify --folder none"})
    EXPECT_EQ(run(arguments).code, 2) << arguments;
}

TEST_F(CommandLine, DevicesAreNumbersOfABackendThatHasThem) {
  const auto refused = [](const std::string& arguments, const std::string& part) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 2) << arguments;
    EXPECT_NE(ran.out.find(part), std::string::npos) << ran.out;
  };
  const std::string fuzz = "fuzz --stage token_rows --cases 1 ";
  refused(fuzz + "--devices 0,1", "--devices: the backend 'host' has no devices to choose from");
  for (const char* numbers : {"0,", "x", "0;1", "-1", "0,1x"})
    refused(fuzz + "--backend nvidia --devices '" + numbers + "'",
            std::string("--devices: '") + numbers + "' must be numbers of devices, like 0,1");
  refused(fuzz + "--backend nvidia --devices 1,1", "--devices: '1,1' names device 1 twice");
  refused(fuzz + "--backend amd --devices 0,1,2,3,4,5,6,7,8", "names 9 devices, limit 8");
  refused("mutants --backend amd", "planted faults exist on host and nvidia, not on 'amd'");
  refused("mutants --only flags_stored_plainly", "no mutant 'flags_stored_plainly'");
}

TEST_F(CommandLine, ErrorsNameArgumentValueAndLimit) {
  EXPECT_NE(run("fuzz --shard 2/2 --cases 1").out.find("--shard: '2/2' must be i/n with i below n"),
            std::string::npos);
  EXPECT_NE(run("fuzz --wave 16 --cases 1").out.find("--wave: '16' is not one of 64, 32, both"),
            std::string::npos);
  EXPECT_NE(run("replay 'stage=token_rows;width=-1'").out.find("width is -1, must be 0 to 20"),
            std::string::npos);
}

TEST_F(CommandLine, CheckOfARecordingIsExactForBothWaves) {
  const Ran ran = run("check " + recorded("page16_rebase.h5") + " --json " + path("out.json"));
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.last_line(),
            "check: 12 cases, 12 exact, 0 allowed, 0 wrong, 0 refused, 0 crashed, 0 hung");
  const nlohmann::json report = json("out.json");
  ASSERT_EQ(report["cases"].size(), 12u);
  const nlohmann::json& first = report["cases"][0];
  EXPECT_EQ(first["stage"], "page16_rebase");
  EXPECT_EQ(first["case"], "case_0000");
  EXPECT_EQ(first["contract"], "mono");
  EXPECT_EQ(first["verdict"], "exact");
  EXPECT_TRUE(first["first_difference"].is_null());
  ASSERT_EQ(first["runs"].size(), 3u);  // reference, host at 64, host at 32
  EXPECT_EQ(first["outputs"]["block_table"]["wrong"], 0);
  EXPECT_EQ(report["summary"]["exact"], 12);
}

TEST_F(CommandLine, CheckSaysHowElementsWereDecided) {
  const Ran ran = run("check " + recorded("index_topk_decode.h5") + " --json " + path("out.json"));
  EXPECT_EQ(ran.code, 0);
  const nlohmann::json report = json("out.json");
  ASSERT_EQ(report["files"].size(), 1u);
  EXPECT_EQ(report["files"][0]["file"], "index_topk_decode.h5");
  // The elements of the file's six cases that somebody specifies. Of the scores not those behind a
  // row's last block: 1 column of 16 has one, 10 of 16, 26 of 32 and none, 2 and 2 of 16, four rows
  // of 14 of 16, four of 17 of 32; padding rows have none.
  for (const auto& [name, elements] :
       {std::pair{"score", 1 + 10 + 26 + 2 + 2 + 4 * 14 + 4 * 17}, std::pair{"topk_idx", 220}}) {
    const nlohmann::json& tally = report["files"][0]["outputs"][name];
    EXPECT_EQ(
        tally["exact"].get<int>() + tally["allowed"].get<int>() + tally["undecided"].get<int>(),
        elements)
        << name;
    EXPECT_EQ(tally["wrong"], 0) << name;
    const std::string line = std::string(name) + ": " + tally["exact"].dump() +
                             " elements with our bits, " + tally["allowed"].dump() +
                             " inside their bound, 0 outside, " + tally["undecided"].dump() +
                             " undecided";
    EXPECT_NE(ran.out.find(line), std::string::npos) << ran.out;
  }
}

TEST_F(CommandLine, AWrongContractIsFoundAndCodedOne) {
  const Ran ran = run("check --contract mono,kv_layout=dense " + recorded("page16_rebase.h5") +
                      " --json " + path("out.json"));
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.last_line().find("12 wrong"), std::string::npos) << ran.last_line();
  const nlohmann::json difference = json("out.json")["cases"][0]["first_difference"];
  EXPECT_EQ(difference["output"], "block_table");
  EXPECT_TRUE(difference["index"].contains("row"));
  EXPECT_NE(difference["expected"], difference["got"]);
}

TEST_F(CommandLine, BadFilesAreOneMessageAndCode2) {
  std::ofstream(path("text.h5")) << "not HDF5";
  for (const std::string& file : {path("text.h5"), path("missing.h5"), folder_.string()}) {
    const Ran ran = run("check " + file);
    EXPECT_EQ(ran.code, 2) << ran.out;
    EXPECT_NE(ran.out.find(file), std::string::npos) << ran.out;
    EXPECT_EQ(ran.last_line(),
              "check: 0 cases, 0 exact, 0 allowed, 0 wrong, 0 refused, 0 crashed, 0 hung");
  }
}

TEST_F(CommandLine, FuzzCountsItsCasesAndPrintsCoverage) {
  const Ran ran = run("fuzz --cases 100 --stage token_rows --wave both");
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.last_line().rfind("fuzz: 100 cases", 0), 0u) << ran.last_line();
  EXPECT_NE(ran.out.find("q_len"), std::string::npos);
}

TEST_F(CommandLine, ReplayOfALine) {
  const Ran ran = run("replay 'stage=token_rows;seed=3;q_len=3;requests=2'");
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.last_line(),
            "replay: 1 cases, 1 exact, 0 allowed, 0 wrong, 0 refused, 0 crashed, 0 hung");
}

TEST_F(CommandLine, GoldenRegenIsRepeatableAndVerifies) {
  EXPECT_EQ(run("golden regen --quiet --stage token_rows --folder " + path("a")).code, 0);
  EXPECT_EQ(run("golden regen --quiet --stage token_rows --folder " + path("b")).code, 0);
  const auto bytes = [&](const char* folder) {
    std::ifstream stream(folder_ / folder / "generated/token_rows.h5", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  EXPECT_GT(bytes("a").size(), 1000u);
  EXPECT_EQ(bytes("a"), bytes("b"));
  const Ran verified = run("golden verify --stage token_rows --folder " + path("a"));
  EXPECT_EQ(verified.code, 0) << verified.out;
  // A stage without golden cases is not a quiet success.
  EXPECT_EQ(run("golden verify --folder " + path("a")).code, 1);
}

TEST_F(CommandLine, MutantsByName) {
  const Ran ran = run("mutants --only insert_negative_slot_wraps");
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.last_line(), "mutants: 1 planted, 1 killed, 0 survived");
}

TEST_F(CommandLine, ARightPluginIsExact) {
  const std::string backend = " --backend plugin:" MONOREF_PLUGIN_RIGHT " ";
  const Ran checked = run("check" + backend + recorded("token_rows.h5"));
  EXPECT_EQ(checked.code, 0) << checked.out;
  EXPECT_NE(checked.out.find("plugin:token_rows example: 96 exact"), std::string::npos)
      << checked.out;
  EXPECT_EQ(run("fuzz --cases 300" + backend).code, 0);
}

TEST_F(CommandLine, AWrongPluginIsFoundAndShrunk) {
  const Ran ran =
      run("fuzz --cases 300 --quiet --backend plugin:" MONOREF_PLUGIN_WRONG " --corpus " +
          path("corpus"));
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("seq_lens[row 0]"), std::string::npos) << ran.out;
  // The finding is on disk, and is what the next run starts with.
  const Ran again =
      run("fuzz --cases 1 --quiet --backend plugin:" MONOREF_PLUGIN_WRONG " --corpus " +
          path("corpus"));
  EXPECT_EQ(again.code, 1);
  EXPECT_NE(again.out.find("corpus: wrong token_rows"), std::string::npos) << again.out;
  // Against the host backend the same corpus is right.
  EXPECT_EQ(run("fuzz --cases 1 --quiet --corpus " + path("corpus")).code, 0);
}

TEST_F(CommandLine, APluginThatCrashesOverItsOfferIsCrashed) {
  const std::string backend = " --backend plugin:" MONOREF_PLUGIN_CRASHING " ";
  const Ran checked = run("check --quiet" + backend + recorded("token_rows.h5"));
  EXPECT_EQ(checked.code, 1);
  EXPECT_NE(checked.out.find("asked whether it offers 'token_rows': the plugin died of signal 6"),
            std::string::npos)
      << checked.out;
  EXPECT_NE(checked.last_line().find("96 crashed"), std::string::npos) << checked.last_line();
}

TEST_F(CommandLine, APluginRunsWithoutStandardStreams) {
  for (const char* closed : {"<&- >&-", "<&- 2>&-", "<&- >&- 2>&-"})
    EXPECT_EQ(run(fmt::format("fuzz --quiet --stage token_rows --cases 20 --backend plugin:{} {}; "
                              "exit $?",
                              MONOREF_PLUGIN_RIGHT, closed))
                  .code,
              0)
        << closed;
}

TEST_F(CommandLine, WhatIsNotHereIs3) {
  EXPECT_EQ(run("check --backend plugin:/none.so " + recorded("token_rows.h5")).code, 3);
  EXPECT_EQ(run("fuzz --cases 1 --stage page16_rebase --backend plugin:" MONOREF_PLUGIN_RIGHT).code,
            3);
}

TEST_F(CommandLine, BisectNamesWhereTheSidesPart) {
  const Ran ran = run("replay --bisect --backend plugin:" MONOREF_PLUGIN_WRONG
                      " 'stage=token_rows;seed=3;q_len=3;requests=2'");
  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("bisect: stage token_rows is the first that differs"), std::string::npos);
  EXPECT_NE(ran.out.find("seq_lens[row 5]"), std::string::npos) << ran.out;
}

TEST_F(CommandLine, ListNamesEveryStage) {
  const Ran ran = run("list");
  EXPECT_EQ(ran.code, 0);
  for (const char* stage : {"token_rows", "sparse_block_table", "page16_rebase",
                            "index_cache_insert", "kv_page_address"})
    EXPECT_NE(ran.out.find(stage), std::string::npos) << stage;
}

// ---- what ran ----------------------------------------------------------------------------------

const std::string kIdle = " --backend plugin:" MONOREF_PLUGIN_IDLE " ";
const std::string kRight = " --backend plugin:" MONOREF_PLUGIN_RIGHT " ";
const std::string kWrong = " --backend plugin:" MONOREF_PLUGIN_WRONG " ";

TEST_F(CommandLine, TheLineBeforeTheLastSaysWhoRan) {
  const std::string arguments =
      "check --quiet " + recorded("page16_rebase.h5") + " --json " + path("out.json");
  const Ran both = run(arguments);
  EXPECT_EQ(both.line_from_end(2), "runs: host64 12, host32 12");
  EXPECT_EQ(json("out.json")["summary"]["runs"]["host32"], 12);
  EXPECT_EQ(run(arguments + " --wave 32").line_from_end(2), "runs: host32 12");
  EXPECT_EQ(run("fuzz --quiet --stage router --cases 1 --wave 32").line_from_end(2),
            "runs: host32 1");
  EXPECT_EQ(run("replay --quiet 'stage=token_rows;seed=3'").line_from_end(2),
            "runs: host64 1, host32 1");
  EXPECT_EQ(run("check --quiet " + recorded("swiglu_oai.h5")).line_from_end(2),
            "runs: host64 0, host32 0");
}

/// How many cases each wave of the host computed, by the line before the last.
std::pair<int, int> runs_of_waves(const Ran& ran) {
  int of_64 = -1;
  int of_32 = -1;
  std::istringstream line(ran.line_from_end(2));
  std::string word;
  line >> word >> word >> of_64;
  line.ignore(1) >> word >> of_32;
  return {of_64, of_32};
}

TEST_F(CommandLine, FuzzAndMutantsTakeTheWavesInTurn) {
  // No defect among these: every case runs, on one wave.
  const std::string fuzz = "fuzz --quiet --stage router --seed 3 --cases ";
  const auto [of_64, of_32] = runs_of_waves(run(fuzz + "16"));
  EXPECT_EQ(of_64, 8);
  EXPECT_EQ(of_32, 8);
  EXPECT_EQ(runs_of_waves(run(fuzz + "16 --wave both")), std::pair(16, 16));
  const Ran mutants =
      run("mutants --quiet --only insert_negative_slot_wraps --json " + path("out.json"));
  const auto [killed_64, killed_32] = runs_of_waves(mutants);
  EXPECT_EQ(killed_64 + killed_32, json("out.json")["mutants"][0]["cases"]) << mutants.out;
  EXPECT_EQ(killed_64, json("out.json")["summary"]["runs"]["host64"]) << mutants.out;
  EXPECT_EQ(mutants.out.find("index_cache_insert"), std::string::npos) << mutants.out;
}

TEST_F(CommandLine, ARunnerThatWasAskedForAndRanNothingIs3) {
  for (const std::string& file : {recorded("page16_rebase.h5"), recorded("swiglu_oai.h5")}) {
    const Ran ran = run("check" + kRight + file + " --json " + path("out.json"));
    EXPECT_EQ(ran.code, 3) << ran.out;
    EXPECT_TRUE(ran.says("which --backend asks for, ran no case")) << ran.out;
    EXPECT_EQ(ran.line_from_end(2), "runs: plugin:token_rows example 0");
    EXPECT_EQ(json("out.json")["summary"]["runs"]["plugin:token_rows example"], 0);
  }
  EXPECT_EQ(run("replay" + kRight + "'stage=step_counter;seed=3'").code, 3);
  EXPECT_EQ(run("check --backend host " + recorded("swiglu_oai.h5")).code, 3);
  EXPECT_EQ(run("check " + recorded("swiglu_oai.h5")).code, 0);
}

// `has_kernels` of a stage speaks of the kernels of this tree: it must not spare a plugin.
TEST_F(CommandLine, APluginIsRunUnderContractsThatOurKernelsDoNotHave) {
  const Ran ran = run("fuzz --quiet --stage index_select --contract vllm-triton --cases 8" + kIdle);
  EXPECT_EQ(ran.code, 1) << ran.out;
  EXPECT_TRUE(ran.says("wrong index_select")) << ran.out;
}

TEST_F(CommandLine, ARunWithoutACaseIsNotRight) {
  const Ran ran = run("check --stage step_counter " + recorded("token_rows.h5"));
  EXPECT_EQ(ran.code, 2);
  EXPECT_TRUE(ran.says("check: no case was judged")) << ran.out;
  EXPECT_EQ(ran.last_line().rfind("check: 0 cases", 0), 0u);
}

TEST_F(CommandLine, APluginWithoutASlashIsAFileHere) {
  const std::filesystem::path library = MONOREF_PLUGIN_RIGHT;
  std::filesystem::copy(library, folder_ / "mine.so");
  const std::string command = "cd " + folder_.string() +
                              " && " MONOREF_PROGRAM " check --quiet --backend plugin:mine.so " +
                              recorded("token_rows.h5") + " >out.txt 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

// ---- options -----------------------------------------------------------------------------------

TEST_F(CommandLine, AnOptionActsOrIsRefused) {
  const std::string file = recorded("token_rows.h5");
  for (const std::string& arguments :
       {std::string("list --contract nonsense"), std::string("list --seed 3"),
        std::string("list --wave 64"), std::string("list --quiet"),
        "golden regen --contract mono --stage token_rows --folder " + path("x"),
        "golden regen --seed 2 --stage token_rows --folder " + path("x"),
        std::string("golden verify --backend host"), "check --seed 2 " + file,
        "check --wave 64" + kRight + file, std::string("replay --seed 2 'stage=token_rows'"),
        std::string("replay --stage token_rows 'stage=token_rows'"),
        "check --contract mono " + recorded("swiglu_oai.h5"),
        std::string("mutants --contract mono --only insert_negative_slot_wraps")}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 2) << arguments << "\n" << ran.out;
  }
  EXPECT_FALSE(std::filesystem::exists(path("x")));
  EXPECT_TRUE(run("check --contract mono " + recorded("swiglu_oai.h5"))
                  .says("--contract 'mono' has no effect on a recording"));
}

TEST_F(CommandLine, NumbersAreNumbers) {
  for (const char* arguments :
       {"fuzz --cases -1", "fuzz --cases ''", "fuzz --cases 18446744073709551616", "fuzz --cases 0",
        "fuzz --cases 1.5", "fuzz --seconds nan", "fuzz --seconds 0", "fuzz --seconds inf",
        "fuzz --seconds -1", "fuzz --cases 1 --seed -1",
        "fuzz --cases 1 --seed 18446744073709551616", "mutants --seconds nan", "mutants --cases -1",
        "mutants --cases 0", "mutants --cases 1.5", "mutants --only ''"}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 2) << arguments << "\n" << ran.out;
    EXPECT_LT(ran.out.size(), 300u) << ran.out;
  }
  EXPECT_TRUE(run("fuzz --cases -1").says("--cases: '-1' must be a whole number from 1 to "));
  EXPECT_TRUE(run("fuzz --seconds nan").says("--seconds: 'nan' must be a number of seconds"));
}

void write_right_case(const std::string& path) {
  Case item = build_case(parse_line("stage=token_rows;seed=4;requests=2;q_len=3;width=4"));
  item.title = "case_0000";
  write_cases(path, {&item, 1});
}

/// A plugin that computes for half a second of processor time, and one that never ends.
TEST_F(CommandLine, ATimeLimitGivesMoreAndLess) {
  write_right_case(path("right.h5"));
  const auto check = [&](const std::string& plugin, const std::string& limit) {
    return run("check --backend plugin:" + plugin + " --time-limit " + limit + " " +
               path("right.h5"));
  };
  const Ran less = check(MONOREF_PLUGIN_SLOW, "0.2");
  EXPECT_EQ(less.code, 1) << less.out;
  EXPECT_TRUE(less.says("the plugin ran at the time limit of 0.2 s")) << less.out;
  EXPECT_NE(less.last_line().find("1 hung"), std::string::npos) << less.out;
  const Ran more = check(MONOREF_PLUGIN_SLOW, "60");
  EXPECT_EQ(more.code, 0) << more.out;
  EXPECT_TRUE(check(MONOREF_PLUGIN_ENDLESS, "0.3").says("at the time limit of 0.3 s"));
}

TEST_F(CommandLine, TimeLimitsAreSeconds) {
  const std::string file = recorded("token_rows.h5");
  for (const std::string& command :
       {"check " + file, std::string("fuzz --cases 1"), std::string("replay 'stage=token_rows'"),
        std::string("mutants --only insert_negative_slot_wraps")})
    for (const char* limit : {"0", "-1", "nan", "inf", "1e9", "86401", "0.0001", "''", "2s"}) {
      const Ran ran = run(command + " --time-limit " + limit);
      EXPECT_EQ(ran.code, 2) << command << " " << limit << "\n" << ran.out;
      EXPECT_TRUE(ran.says("must be a number of seconds from 0.001 to 86400")) << ran.out;
    }
}

TEST_F(CommandLine, ListIsAlsoForMachines) {
  EXPECT_EQ(run("list --json " + path("out.json")).code, 0);
  const nlohmann::json report = json("out.json");
  EXPECT_EQ(report["summary"]["stages"], report["stages"].size());
  bool found = false;
  for (const nlohmann::json& stage : report["stages"])
    if (stage["stage"] == "page16_rebase") {
      found = true;
      EXPECT_TRUE(stage["kernels"]);
      EXPECT_FALSE(stage["dimensions"].empty());
    }
  EXPECT_TRUE(found);
  EXPECT_TRUE(run("list --contract vllm-triton").says("no kernel under vllm-triton"));
}

TEST_F(CommandLine, RegenRefusesBeforeItMakesFolders) {
  EXPECT_EQ(run("golden regen --folder " + path("new") + " --stage nope").code, 2);
  EXPECT_FALSE(std::filesystem::exists(path("new")));
}

// ---- nothing is lost ---------------------------------------------------------------------------

/// A file of one case that `check` finds wrong: another length is stored.
void write_wrong_case(const std::string& path) {
  const Stage& stage = find_stage("token_rows");
  Case item = build_case(parse_line("stage=token_rows;seed=4;requests=2;q_len=3;width=4"));
  item.title = "case_0000";
  Outputs outputs = run_reference(stage, item, stage.outputs(item));
  outputs[1].tensor.view<std::int32_t, 1>()(0) += 1;
  item.expected = {{"seq_lens", outputs[1].tensor, std::nullopt}};
  write_cases(path, {&item, 1});
}

/// A file of one case whose stage, or whose announced defect, nobody can read.
void write_odd_case(const std::string& path, bool of_no_stage) {
  Case item = build_case(parse_line("stage=step_counter;seed=4"));
  item.title = "case_0000";
  std::erase_if(item.scalars, [](const NamedScalar& scalar) { return scalar.name == "defect"; });
  if (of_no_stage)
    item.stage = "no_such_stage";
  else
    item.scalars.push_back({"defect", std::int64_t{1}});
  write_cases(path, {&item, 1});
}

TEST_F(CommandLine, OneWinsWhateverComesLater) {
  write_wrong_case(path("wrong.h5"));
  write_odd_case(path("stage.h5"), true);
  write_odd_case(path("defect.h5"), false);
  std::ofstream(path("junk.h5")) << "junk";
  for (const char* other : {"stage.h5", "defect.h5", "junk.h5", "missing.h5"}) {
    for (const std::string& files :
         {path("wrong.h5") + " " + path(other), path(other) + " " + path("wrong.h5")}) {
      const Ran ran = run("check " + files + " --json " + path("out.json"));
      EXPECT_EQ(ran.code, 1) << ran.out;
      EXPECT_NE(ran.last_line().find("1 wrong"), std::string::npos) << ran.out;
      EXPECT_TRUE(ran.says(path(other))) << ran.out;
      EXPECT_EQ(json("out.json")["summary"]["wrong"], 1);
    }
    EXPECT_EQ(run("check " + path(other)).code, 2);
  }
}

TEST_F(CommandLine, VerifyGoesOnBehindABadFile) {
  ASSERT_EQ(run("golden regen --quiet --stage token_rows --folder " + path("g")).code, 0);
  std::ofstream(path("g/generated/a.h5")) << "junk";
  const Ran ran = run("golden verify --stage token_rows --folder " + path("g"));
  EXPECT_EQ(ran.code, 2) << ran.out;
  EXPECT_TRUE(ran.says(path("g/generated/a.h5"))) << ran.out;
  EXPECT_EQ(ran.last_line().rfind("golden: 16 cases, 16 exact", 0), 0u) << ran.out;
  EXPECT_EQ(ran.line_from_end(2), "runs: reference 16");
}

TEST_F(CommandLine, JsonThatCannotBeWrittenSwallowsNothing) {
  write_wrong_case(path("wrong.h5"));
  std::filesystem::create_directories(path("folder"));
  for (const std::string& target : {std::string("/dev/full"), path("folder"), path("no/where")}) {
    const Ran wrong = run("check " + path("wrong.h5") + " --json " + target);
    EXPECT_EQ(wrong.code, 1) << wrong.out;
    EXPECT_NE(wrong.last_line().find("1 wrong"), std::string::npos) << wrong.out;
    EXPECT_TRUE(wrong.says("--json: cannot write '" + target + "'")) << wrong.out;
    EXPECT_EQ(run("check " + recorded("page16_rebase.h5") + " --json " + target).code, 2);
  }
  EXPECT_TRUE(std::filesystem::is_empty(path("folder")));
}

TEST_F(CommandLine, JsonGoesThroughLinksAndIntoPipes) {
  const std::string check = "check " + recorded("page16_rebase.h5") + " --json ";
  std::ofstream(path("target.json")) << "old";
  std::filesystem::create_symlink("target.json", path("link.json"));
  EXPECT_EQ(run(check + path("link.json")).code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(path("link.json")));
  EXPECT_EQ(json("target.json")["summary"]["exact"], 12);

  std::filesystem::create_symlink("new.json", path("dangling.json"));
  EXPECT_EQ(run(check + path("dangling.json")).code, 0);
  EXPECT_EQ(json("new.json")["summary"]["exact"], 12);

  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const std::string reader = "cat " + path("pipe") + " >" + path("read.json") + " & ";
  EXPECT_EQ(
      std::system(
          (reader + MONOREF_PROGRAM + " " + check + path("pipe") + " >/dev/null && wait").c_str()),
      0);
  EXPECT_TRUE(std::filesystem::is_fifo(path("pipe")));
  EXPECT_EQ(json("read.json")["summary"]["exact"], 12);

  EXPECT_EQ(run(check + "/dev/null").code, 0);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos) << entry.path();
}

TEST_F(CommandLine, LostOutputIsNotRight) {
  EXPECT_EQ(run("list >/dev/full").code, 2);
  EXPECT_EQ(run("check " + recorded("page16_rebase.h5") + " >/dev/full").code, 2);
  write_wrong_case(path("wrong.h5"));
  EXPECT_EQ(run("check " + path("wrong.h5") + " >/dev/full --json " + path("out.json")).code, 1);
  EXPECT_EQ(json("out.json")["summary"]["wrong"], 1);
}

// ---- the corpus --------------------------------------------------------------------------------

TEST_F(CommandLine, ACorpusEntryIsJudgedFromWhatIsStored) {
  std::filesystem::create_directories(path("corpus"));
  Case item = build_case(parse_line("stage=token_rows;seed=4;requests=2;q_len=3;width=4"));
  item.title = "finding";
  item.generator_version = 1000;
  item.line = "stage=token_rows;contract=mono;seed=4;gen=1000;renamed=2";
  write_cases(path("corpus/old.h5"), {&item, 1});
  const Ran right = run("fuzz --quiet --stage step_counter --cases 20 --corpus " + path("corpus"));
  EXPECT_EQ(right.code, 0) << right.out;
  EXPECT_EQ(right.last_line().rfind("fuzz: 21 cases", 0), 0u) << right.out;
  const Ran wrong =
      run("fuzz --quiet --stage token_rows --cases 1" + kWrong + "--corpus " + path("corpus"));
  EXPECT_EQ(wrong.code, 1);
  EXPECT_TRUE(wrong.says("corpus: wrong token_rows")) << wrong.out;
  EXPECT_TRUE(wrong.says(path("corpus/old.h5"))) << wrong.out;
}

TEST_F(CommandLine, BadCorpusEntriesAreNamedAndStopNothing) {
  std::filesystem::create_directories(path("corpus"));
  std::ofstream(path("corpus/a.h5")) << "junk";
  write_odd_case(path("corpus/b.h5"), true);
  const Ran ran = run("fuzz --quiet --stage step_counter --cases 20 --json " + path("out.json") +
                      " --corpus " + path("corpus"));
  EXPECT_EQ(ran.code, 2) << ran.out;
  for (const char* entry : {"corpus/a.h5", "corpus/b.h5"})
    EXPECT_TRUE(ran.says(path(entry))) << ran.out;
  EXPECT_EQ(ran.last_line().rfind("fuzz: 21 cases", 0), 0u) << ran.out;  // b.h5 is one, refused
  EXPECT_EQ(json("out.json")["summary"]["cases"], 21);
}

TEST_F(CommandLine, AFindingThatCannotBeSavedIsStillAFinding) {
  std::ofstream(path("afile")) << "no folder";
  const Ran ran = run("fuzz --quiet --stage token_rows --cases 50" + kWrong + "--corpus " +
                      path("afile") + " --json " + path("out.json"));
  EXPECT_EQ(ran.code, 1);
  EXPECT_TRUE(ran.says("monoref replay 'stage=token_rows;")) << ran.out;
  EXPECT_TRUE(ran.says("the finding could not be saved")) << ran.out;
  EXPECT_EQ(ran.last_line().rfind("fuzz: 50 cases", 0), 0u) << ran.out;
  EXPECT_GT(json("out.json")["summary"]["wrong"], 0);
}

// ---- asked to stop -----------------------------------------------------------------------------

/// The program in the background, for signals.
class Started {
 public:
  Started(const std::string& arguments, std::string out) : out_(std::move(out)) {
    child_ = fork();
    if (child_ == 0) {
      const std::string command =
          std::string("exec ") + MONOREF_PROGRAM + " " + arguments + " >" + out_ + " 2>&1";
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
  }
  /// Waits until `file` holds the text (or, for none, is there).
  static void wait_for(const std::string& file, const std::string& text) {
    for (;; usleep(10'000)) {
      std::ifstream stream(file);
      if (!stream) continue;
      const std::string all(std::istreambuf_iterator<char>(stream), {});
      if (all.find(text) != std::string::npos) return;
    }
  }
  Ran stop(int signal) {
    kill(child_, signal);
    int status = 0;
    waitpid(child_, &status, 0);
    std::ifstream stream(out_);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            std::string(std::istreambuf_iterator<char>(stream), {})};
  }
  /// The name under which JSON is collected: once it is there, signals are noted.
  std::string partial(const std::filesystem::path& json) const {
    return (json.parent_path() /
            ("." + json.filename().string() + "." + std::to_string(child_) + ".partial"))
        .string();
  }

 private:
  std::string out_;
  pid_t child_;
};

TEST_F(CommandLine, AFuzzRunThatIsStoppedReportsWhatItHas) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Started fuzz("fuzz --stage token_rows --seconds 600 --json " + path("out.json"), path("out"));
    Started::wait_for(fuzz.partial(path("out.json")), "");
    const Ran ran = fuzz.stop(signal);
    EXPECT_EQ(ran.code, 75) << ran.out;
    EXPECT_EQ(ran.last_line().rfind("fuzz: ", 0), 0u) << ran.out;
    EXPECT_TRUE(json("out.json")["summary"]["stopped"]);
    EXPECT_FALSE(std::filesystem::exists(fuzz.partial(path("out.json"))));
  }
}

TEST_F(CommandLine, FindingsAreToldAtOnceAndAStopIsThen1) {
  Started fuzz("fuzz --stage token_rows --seconds 600" + kWrong + "--json " + path("out.json"),
               path("out"));
  Started::wait_for(path("out"), "shrunk in");
  const Ran ran = fuzz.stop(SIGTERM);
  EXPECT_EQ(ran.code, 1) << ran.out;
  EXPECT_EQ(ran.last_line().rfind("fuzz: ", 0), 0u) << ran.out;
  EXPECT_GT(json("out.json")["summary"]["wrong"], 0);
}

TEST_F(CommandLine, ACheckThatIsStoppedGivesUpTheCaseUnderWay) {
  const std::string endless = " --backend plugin:" MONOREF_PLUGIN_ENDLESS " ";
  Started check("check " + recorded("page16_rebase.h5") + " " + recorded("token_rows.h5") +
                    endless + "--json " + path("out.json"),
                path("out"));
  Started::wait_for(path("out"), "page16_rebase.h5: 12 cases");
  const Ran ran = check.stop(SIGINT);
  EXPECT_EQ(ran.code, 75) << ran.out;
  EXPECT_EQ(ran.last_line().rfind("check: 12 cases", 0), 0u) << ran.out;
  EXPECT_EQ(json("out.json")["cases"].size(), 12u);
}

}  // namespace
}  // namespace monoref
