// The tool that damages case files, tested itself: its mutants are what they claim to be, and it
// sees the faults of programs that are known to have them.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "golden/case_file.hpp"
#include "golden/seal.hpp"
#include "tests/fuzz/case_mutations.hpp"
#include "tests/fuzz/check_findings.hpp"
#include "tests/fuzz/watched_process.hpp"

namespace monoref::testing {
namespace {

namespace fs = std::filesystem;

const std::vector<GoldenStage>& golden() {
  static const std::vector<GoldenStage> all = load_golden(MONOREF_GOLDEN_FILES);
  return all;
}

TEST(CaseMutants, AreAFunctionOfSeedAndNumber) {
  for (const std::uint64_t number : {0, 17, 1000}) {
    const auto once = pack_tree(make_mutant(golden(), 3, number).root);
    EXPECT_EQ(once, pack_tree(make_mutant(golden(), 3, number).root)) << number;
    EXPECT_NE(once, pack_tree(make_mutant(golden(), 4, number).root)) << number;
  }
}

TEST(CaseMutants, ReachEveryStageByEveryKindOfDamage) {
  std::set<std::string> stages;
  std::set<std::string> kinds;
  for (std::uint64_t number = 0; number < 500; ++number) {
    const CaseMutant mutant = make_mutant(golden(), 1, number);
    stages.insert(mutant.stage);
    for (const std::string& change : mutant.changes)
      kinds.insert(change.substr(0, change.find(':')));
  }
  EXPECT_EQ(stages.size(), golden().size());
  for (const std::string_view kind : mutation_kinds())
    EXPECT_TRUE(kinds.contains(std::string(kind))) << kind;
}

TEST(CaseMutants, CarryAValidSealAndOftenPassTheReader) {
  std::uint64_t readable = 0;
  for (std::uint64_t number = 0; number < 300; ++number) {
    const CaseMutant mutant = make_mutant(golden(), 1, number);
    EXPECT_NO_THROW(verify_seals(mutant.root)) << number;
    try {
      readable += cases_from_tree(mutant.root).size();
    } catch (const ContentError&) {  // damage that the reader sees is allowed, and not the point
    }
  }
  EXPECT_GT(readable, 150u);
}

/// A shell script in the place of `monoref`; the arguments end in `--json JSON FILE`.
class FakeProgram : public ::testing::Test {
 protected:
  FakeProgram() {
    folder_ = fs::temp_directory_path() /
              (std::string("monoref_mutate_") +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~FakeProgram() override { fs::remove_all(folder_); }

  ProcessRun run(const std::string& script, const ProcessLimits& limits = {}) {
    std::ofstream(folder_ / "program") << script;
    fs::remove(folder_ / "json");
    return run_watched({"/bin/sh", (folder_ / "program").string(), (folder_ / "json").string(),
                        (folder_ / "mutant.h5").string()},
                       folder_ / "output", limits);
  }
  std::vector<std::string> findings_of(const std::string& script) {
    mutant_.names = {"q_len"};
    return judge_check(mutant_, folder_ / "mutant.h5", folder_ / "json", run(script)).findings;
  }
  /// A program that writes this run as the JSON of its one case.
  static std::string saying(const std::string& verdict, const std::string& message, int code) {
    return R"(echo '{"cases": [{"verdict": ")" + verdict +
           R"(", "runs": [{"backend": "host", "verdict": ")" + verdict + R"(", "message": ")" +
           message + R"("}]}]}' >$1; echo "check: 1 cases"; exit )" + std::to_string(code);
  }

  fs::path folder_;
  CaseMutant mutant_;
};

TEST_F(FakeProgram, ARightAnswerIsNoFinding) {
  EXPECT_EQ(findings_of(saying("exact", "", 0)), std::vector<std::string>{});
  EXPECT_EQ(findings_of(saying("refused", "q_len is -2, must be 0 to 20", 2)),
            std::vector<std::string>{});
  EXPECT_EQ(
      findings_of(R"(echo '{"cases": []}' >$1; echo "file '$2': dataset 'x': has 5, must be 4" >&2
                           echo "check: 0 cases"; exit 2)"),
      std::vector<std::string>{});
}

TEST_F(FakeProgram, DeathIsASignal) {
  EXPECT_EQ(findings_of("kill -SEGV $$"), std::vector<std::string>{"signal: 11"});
}

TEST_F(FakeProgram, AVerdictAgainstTheUnchangedKernelIsAFinding) {
  EXPECT_EQ(findings_of(saying("wrong", "", 1)), std::vector<std::string>{"wrong: host: "});
  EXPECT_EQ(findings_of(saying("hung", "m", 1)), std::vector<std::string>{"hung: host: m"});
}

TEST_F(FakeProgram, AnExitCodeThatSaysOtherwiseIsAFinding) {
  EXPECT_EQ(findings_of(saying("exact", "", 2)),
            std::vector<std::string>{"exit: code 2 for 'exact'"});
}

TEST_F(FakeProgram, ALostReportIsAFinding) {
  EXPECT_EQ(
      findings_of("echo monoref: oh; exit 2"),
      (std::vector<std::string>{"lost: no last line: monoref: oh", "lost: no JSON: monoref: oh"}));
  EXPECT_EQ(findings_of(R"(echo '{"cases": []}' >$1; echo "check: 0 cases")"),
            std::vector<std::string>{"exit: code 0, and nothing was judged"});
}

TEST_F(FakeProgram, ARefusalMustNameArgumentValueAndLimit) {
  EXPECT_EQ(findings_of(saying("refused", "tensor of rank 3", 2)),
            std::vector<std::string>{"vague: no argument, limit: tensor of rank 3"});
  EXPECT_EQ(findings_of(saying("refused", "q_len must not", 2)),
            std::vector<std::string>{"vague: no value: q_len must not"});
  for (const char* right : {"router: hidden is 130, must be a multiple of 512",
                            "token_rows: q_len is 256, block_table has 1 rows",
                            "page16_rebase: the case has no input 'block_table'"})
    EXPECT_EQ(findings_of(saying("refused", right, 2)), std::vector<std::string>{}) << right;
}

TEST_F(FakeProgram, LimitsEndARun) {
  EXPECT_EQ(run("while :; do :; done", {.cpu_seconds = 0.5}).ended,
            "took more than 0.5 s of processor time");
  EXPECT_EQ(run("sleep 100", {.wall_seconds = 1}).ended, "was not done after 1 s");
  EXPECT_EQ(run("x=$(head -c 300000000 /dev/zero | tr '\\0' x); sleep 100",
                {.memory_bytes = std::size_t{200} << 20})
                .ended,
            "held more than 200 MiB");
}

TEST_F(FakeProgram, NothingOfARunIsLeftBehind) {
  const ProcessRun ran = run("sleep 1000 & echo $!");
  EXPECT_EQ(ran.exit_code, 0);
  const std::string stat = "/proc/" + ran.output.substr(0, ran.output.find('\n')) + "/stat";
  // It has been killed, and dies when it next has the processor; then it may wait as a zombie.
  for (;;) {
    std::ifstream file(stat);
    std::string line;
    std::getline(file, line);
    if (line.empty() || line.find(") Z ") != line.npos) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace
}  // namespace monoref::testing
