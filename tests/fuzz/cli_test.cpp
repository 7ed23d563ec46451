// The command line as a user meets it: exit codes, last lines, JSON, and clear errors.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace monoref {
namespace {

struct Ran {
  int code;
  std::string out;  ///< standard output and standard error together
  std::string last_line() const {
    const std::string text = out.substr(0, out.find_last_not_of('\n') + 1);
    return text.substr(text.rfind('\n') + 1);
  }
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
  // The elements that the file's six cases have, of each output.
  for (const auto& [name, elements] : {std::pair{"score", 512}, std::pair{"topk_idx", 220}}) {
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
  // Columns behind a row's last block: 1 of 16 has a score, 10 of 16, 26 of 32 and none, 2 and 2 of
  // 16, four rows of 14 of 16, four of 17 of 32; padding rows have none.
  EXPECT_EQ(report["files"][0]["outputs"]["score"]["undecided"],
            512 - (1 + 10 + 26 + 2 + 2 + 4 * 14 + 4 * 17));
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
  EXPECT_EQ(run("fuzz --quiet --stage token_rows --cases 20 --backend plugin:" MONOREF_PLUGIN_RIGHT
                " <&- >&-")
                .code,
            0);
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

}  // namespace
}  // namespace monoref
