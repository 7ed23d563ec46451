// A night with shards that are shell scripts: what is counted, kept, done again and told.
#include "fuzz/overnight.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "fuzz/commands/commands.hpp"
#include "reference/core/error.hpp"

namespace monoref {
namespace {

namespace fs = std::filesystem;

/// Words of the script that stands for `monoref`: the arguments of `fuzz` are in $*.
const std::string kExact =
    "echo 'fuzz: 10 cases, 9 exact, 1 allowed, 0 wrong, 0 refused, 0 crashed, 0 hung'\n";
const std::string kWrong =
    "echo 'fuzz: 10 cases, 8 exact, 0 allowed, 2 wrong, 0 refused, 0 crashed, 0 hung'; exit 1\n";

struct Ran {
  int code = -1;
  int signal = 0;
  std::string out;
  bool says(const std::string& text) const { return out.find(text) != std::string::npos; }
  std::string last_line() const {
    const std::string text = out.substr(0, out.find_last_not_of('\n') + 1);
    return text.substr(text.rfind('\n') + 1);
  }
};

class Overnight : public testing::Test {
 protected:
  Overnight() {
    folder_ =
        fs::temp_directory_path() / (std::string("monoref_overnight_") +
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    options_ = {.folder = folder_ / "night", .hours = 100, .program = {"/bin/sh", file("fake")}};
  }
  ~Overnight() override { fs::remove_all(folder_); }

  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  std::string text_of(const std::string& name) const {
    std::ifstream stream(folder_ / name);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  nlohmann::json state() const { return nlohmann::json::parse(text_of("night/state.json")); }

  /// Starts a night in a process of its own, in which `prepare` is run first.
  template <class Prepare>
  pid_t start(const std::string& script, const Prepare& prepare) {
    std::ofstream(file("fake")) << script;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    out_ = ends[0];
    const pid_t process = fork();
    if (process != 0) {
      close(ends[1]);
      return process;
    }
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    prepare();
    int code = 99;
    try {
      code = run_overnight(options_);
    } catch (const std::exception& error) {
      dprintf(STDERR_FILENO, "monoref: %s\n", error.what());
      code = 2;
    }
    std::fflush(stdout);
    _exit(code);
  }
  Ran ended(pid_t process) {
    Ran ran;
    char piece[4096];
    for (ssize_t size = 0; (size = read(out_, piece, sizeof(piece))) > 0;)
      ran.out.append(piece, static_cast<std::size_t>(size));
    close(out_);
    int status = 0;
    waitpid(process, &status, 0);
    if (WIFEXITED(status)) ran.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) ran.signal = WTERMSIG(status);
    return ran;
  }
  Ran run(const std::string& script) {
    return ended(start(script, [] {}));
  }
  /// Waits for a file that a script makes; a test that waits in vain is ended by its time limit.
  void await(const std::string& name) const {
    while (!fs::exists(folder_ / name)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  fs::path folder_;
  OvernightOptions options_;
  int out_ = -1;  ///< what a started night prints
};

TEST_F(Overnight, CountsEveryRoundOfEveryShard) {
  options_.shards = 3;
  options_.most_rounds = 4;
  const Ran ran = run(kExact);
  EXPECT_EQ(ran.code, 0) << ran.out;
  EXPECT_EQ(ran.last_line(),
            "overnight: 120 cases, 108 exact, 12 allowed, 0 wrong, 0 refused, 0 crashed, 0 hung");
  EXPECT_TRUE(ran.says("overnight: 12 rounds done, 0 lost, 0 findings in")) << ran.out;
  EXPECT_EQ(state()["rounds"].size(), 12u);
}

TEST_F(Overnight, WordsThatOnlySomeRoundsHaveAreCountedToo) {
  options_.most_rounds = 3;
  const Ran ran = run(
      "n=$(cat " + file("n") + " 2>/dev/null || echo 0); echo $((n + 1)) >" + file("n") +
      "\n"
      "if [ $n = 1 ]; then echo 'fuzz: 5 cases, 4 exact, 0 allowed, 0 wrong, 0 refused, 0 crashed, "
      "0 hung, 1 declined'; else " +
      kExact + "fi\n");
  EXPECT_EQ(ran.last_line(),
            "overnight: 25 cases, 22 exact, 2 allowed, 0 wrong, 0 refused, 0 crashed, 0 hung, "
            "1 declined");
}

// One failing round of 400 decides the exit code, whichever it is.
TEST_F(Overnight, AFailureAmongFourHundredRoundsIsNotLost) {
  options_.shards = 2;
  options_.most_rounds = 200;
  const Ran ran = run("case \"$*\" in *'--shard 1/2'*) [ -e " + file("once") + " ] || { : >" +
                      file("once") + "; " + kWrong + "};; esac\n" + kExact);
  EXPECT_EQ(ran.code, 1) << ran.out;
  EXPECT_TRUE(ran.says("overnight: 400 rounds done, 0 lost")) << ran.last_line();
  EXPECT_EQ(
      ran.last_line(),
      "overnight: 4000 cases, 3599 exact, 399 allowed, 2 wrong, 0 refused, 0 crashed, 0 hung");
}

TEST_F(Overnight, FourHundredFailingRoundsAreAFailure) {
  options_.shards = 2;
  options_.most_rounds = 200;
  const Ran ran = run(kWrong);
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(
      ran.last_line(),
      "overnight: 4000 cases, 3200 exact, 0 allowed, 800 wrong, 0 refused, 0 crashed, 0 hung");
}

TEST_F(Overnight, SeedsAreDrawnKeptAndNeverUsedTwice) {
  options_.shards = 2;
  options_.most_rounds = 3;
  const std::string script = "echo \"$*\" >>" + file("arguments") + "\n" + kExact;
  const Ran first = run(script);
  const std::uint64_t seed = state()["seed"];
  EXPECT_TRUE(first.says("seed " + std::to_string(seed))) << first.out;
  options_.most_rounds = 5;
  run(script);
  EXPECT_EQ(state()["seed"], seed);
  const std::string arguments = text_of("arguments");
  for (std::uint64_t round = 0; round < 5; ++round)
    for (const char* shard : {"0/2", "1/2"}) {
      const std::string words = "--seed " + std::to_string(seed + round) + " --shard " + shard;
      const std::size_t at = arguments.find(words);
      EXPECT_NE(at, std::string::npos) << words;
      EXPECT_EQ(arguments.find(words, at + 1), std::string::npos) << words;
    }
  options_.folder = folder_ / "other";
  run(script);
  EXPECT_NE(nlohmann::json::parse(text_of("other/state.json"))["seed"], seed);
}

TEST_F(Overnight, AKilledRoundIsDoneAgain) {
  options_.most_rounds = 2;
  const Ran ran =
      run("[ -e " + file("once") + " ] || { : >" + file("once") + "; kill -9 $$; }\n" + kExact);
  EXPECT_EQ(ran.code, 0) << ran.out;
  EXPECT_TRUE(ran.says("shard 0, round 1: killed by signal 9 (); again")) << ran.out;
  EXPECT_TRUE(ran.says("overnight: 2 rounds done, 0 lost")) << ran.out;
}

TEST_F(Overnight, ARoundThatAlwaysDiesIsLostAndTheOthersAreDone) {
  options_.most_rounds = 3;
  run(kExact);  // draws the seed
  const std::uint64_t seed = state()["seed"];
  options_.most_rounds = 6;
  const std::string script =
      "case \"$*\" in *'--seed " + std::to_string(seed + 3) + " '*) kill -9 $$;; esac\n";
  const Ran ran = run(script + kExact);
  EXPECT_EQ(ran.code, 1) << ran.out;
  EXPECT_TRUE(ran.says("shard 0, round 4: killed by signal 9 (); lost")) << ran.out;
  EXPECT_TRUE(ran.says("overnight: 5 rounds done, 1 lost")) << ran.out;
  // The next start tries it again.
  EXPECT_EQ(run(kExact).code, 0);
  EXPECT_EQ(state()["rounds"].size(), 6u);
}

// As with a corpus that stops every run before its first case: no spinning through the hours.
TEST_F(Overnight, AShardThatJudgesNothingIsGivenUp) {
  options_.shards = 2;
  const Ran ran = run("echo x >>" + file("starts") + "; echo 'monoref: a stale entry' >&2; exit 2");
  EXPECT_EQ(ran.code, 2) << ran.out;
  EXPECT_TRUE(ran.says("shard 1, round 1: exit code 2 (monoref: a stale entry); again")) << ran.out;
  EXPECT_TRUE(ran.says("shard 0: given up after 3 lost rounds in a row")) << ran.out;
  EXPECT_EQ(ran.last_line(),
            "overnight: 0 cases, 0 exact, 0 allowed, 0 wrong, 0 refused, 0 crashed, 0 hung");
  EXPECT_EQ(text_of("starts").size(), 2 * 2 * 9u);  // a line for 3 tries of 3 rounds of 2 shards
}

TEST_F(Overnight, BadInputBesideCasesIsCounted) {
  options_.most_rounds = 2;
  const Ran ran = run(kExact + "exit 2\n");
  EXPECT_EQ(ran.code, 2) << ran.out;
  EXPECT_TRUE(ran.says("overnight: 20 cases")) << ran.out;
}

TEST_F(Overnight, AMissingBackendIs3) {
  EXPECT_EQ(run("echo 'monoref: not here'; exit 3").code, 3);
}

TEST_F(Overnight, StoppedItEndsItsProcessesAndTells) {
  options_.shards = 2;
  for (const int signal : {SIGTERM, SIGINT}) {
    fs::remove_all(options_.folder);
    for (const char* name : {"pid0", "pid1"}) fs::remove(folder_ / name);
    // Deaf to what asks it to stop, and with a child of its own.
    const pid_t night = start(
        "trap '' TERM INT\n"
        "case \"$*\" in *'--shard 0/2'*) name=pid0;; *) name=pid1;; esac\n"
        "sleep 1000 & echo $! $$ >" +
            file("new") + ".$$; mv " + file("new") + ".$$ " + file("") +
            "$name\nwait\nsleep 1000\n",
        [] {});
    await("pid0");
    await("pid1");
    kill(night, signal);
    const Ran ran = ended(night);
    EXPECT_EQ(ran.code, 75) << ran.out;
    EXPECT_TRUE(ran.says("0 rounds done")) << ran.out;
    EXPECT_TRUE(ran.says("stopped early")) << ran.out;
    EXPECT_EQ(ran.last_line().rfind("overnight: 0 cases", 0), 0u) << ran.out;
    for (const char* name : {"pid0", "pid1"}) {
      std::istringstream pids(text_of(name));
      for (pid_t pid = 0; pids >> pid;) {
        // Killed, but perhaps not yet dead or buried.
        const std::string stat = "/proc/" + std::to_string(pid) + "/stat";
        for (std::string line = "?"; !line.empty() && line.find(") Z ") == line.npos;) {
          std::ifstream stream(stat);
          line.clear();
          std::getline(stream, line);
        }
      }
    }
    EXPECT_TRUE(state()["rounds"].empty());
  }
}

TEST_F(Overnight, StoppedAfterAFindingIs1AndGoesOnWhereItWas) {
  const std::string script = "echo \"$*\" >>" + file("arguments") + "\n[ -e " + file("second") +
                             " ] && { : >" + file("third") + "; sleep 1000; }\n[ -e " +
                             file("first") + " ] && : >" + file("second") + "\n: >" +
                             file("first") + "\n";
  const pid_t night = start(script + kWrong, [] {});
  await("third");
  kill(night, SIGTERM);
  const Ran stopped = ended(night);
  EXPECT_EQ(stopped.code, 1) << stopped.out;
  EXPECT_TRUE(stopped.says("overnight: 2 rounds done")) << stopped.out;
  // Behind the two that are done, and the third again.
  const std::uint64_t seed = state()["seed"];
  options_.most_rounds = 4;
  const Ran again = run("echo \"$*\" >>" + file("later") + "\n" + kExact);
  EXPECT_TRUE(again.says("2 rounds done before")) << again.out;
  EXPECT_TRUE(again.says("overnight: 4 rounds done, 0 lost")) << again.out;
  EXPECT_EQ(again.last_line().rfind("overnight: 40 cases, 34 exact", 0), 0u) << again.out;
  const std::string later = text_of("later");
  EXPECT_EQ(later.find("--seed " + std::to_string(seed + 1)), std::string::npos) << later;
  EXPECT_NE(later.find("--seed " + std::to_string(seed + 2)), std::string::npos) << later;
}

// A limit on the size of files stands for a disk that fills up: a write beyond it fails.
TEST_F(Overnight, AFullDiskIsToldAndLosesNoCount) {
  options_.shards = 2;
  options_.most_rounds = 30;
  const Ran ran = ended(start(kExact, [] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit small{3000, 3000};
    setrlimit(RLIMIT_FSIZE, &small);
  }));
  EXPECT_EQ(ran.code, 2) << ran.out;
  EXPECT_TRUE(ran.says("state.json': cannot be written: File too large; going on without"))
      << ran.out;
  EXPECT_TRUE(ran.says("overnight: 60 rounds done, 0 lost, 0 findings")) << ran.out;
  EXPECT_TRUE(ran.says(", not kept")) << ran.out;
  EXPECT_EQ(ran.last_line().rfind("overnight: 600 cases, 540 exact, 60 allowed", 0), 0u) << ran.out;
  // What was kept before is kept whole, and the rest is done again when there is room.
  const std::size_t kept = state()["rounds"].size();
  EXPECT_GT(kept, 0u);
  EXPECT_LT(kept, 60u);
  const Ran again = run(kExact);
  EXPECT_EQ(again.code, 0) << again.out;
  EXPECT_EQ(again.last_line().rfind("overnight: 600 cases, 540 exact, 60 allowed", 0), 0u)
      << again.out;
}

TEST_F(Overnight, AReaderThatLeavesDoesNotEndTheNight) {
  options_.most_rounds = 5;
  const Ran ran = ended(start(kExact, [] {
    int ends[2];
    if (pipe(ends) == 0) dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
  }));
  EXPECT_EQ(ran.code, 2);  // its output is lost, and that is no success
  EXPECT_EQ(state()["rounds"].size(), 5u);
}

TEST_F(Overnight, TwoNightsInOneFolderOrAnotherNumberOfShardsAreRefused) {
  const pid_t night = start(": >" + file("begun") + "\nsleep 1000", [] {});
  await("begun");
  try {
    run_overnight(options_);
    ADD_FAILURE() << "a second night began in the folder of a running one";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("another run is at work in"), std::string::npos)
        << error.what();
  }
  kill(night, SIGTERM);
  ended(night);
  options_.shards = 2;
  const Ran ran = run(kExact);
  EXPECT_EQ(ran.code, 2);
  EXPECT_TRUE(ran.says("SHARDS is 2, but")) << ran.out;
  EXPECT_TRUE(ran.says("was begun with 1")) << ran.out;
}

TEST_F(Overnight, ArgumentsThatMeanNoNightAreRefusedInASentence) {
  const auto refusal = [&](OvernightArguments arguments) -> std::string {
    arguments.folder = options_.folder;
    try {
      overnight_command(arguments);
    } catch (const Refusal& error) {
      return error.what();
    }
    return {};
  };
  for (const char* hours : {"abc", "-1", "nan", "inf", "0", "1e9x", "", "1e9", "8 "})
    EXPECT_EQ(refusal({.hours = hours}), "overnight: HOURS is '" + std::string(hours) +
                                             "', must be a number above 0 and at most 10000");
  for (const char* shards : {"0", "-1", "1.5", "", "two", "1025", "18446744073709551617"})
    EXPECT_EQ(refusal({.shards = shards}), "overnight: SHARDS is '" + std::string(shards) +
                                               "', must be a whole number from 1 to 1024");
  EXPECT_FALSE(fs::exists(options_.folder));
}

TEST_F(Overnight, ADamagedStateIsRefusedByName) {
  fs::create_directories(options_.folder);
  for (const char* text : {"", "{", "[]", R"({"format": "other/1"})",
                           R"({"format": "monoref-overnight/1", "seed": "x", "shards": 1})"}) {
    std::ofstream(options_.folder / "state.json") << text;
    const Ran ran = run(kExact);
    EXPECT_EQ(ran.code, 2) << text;
    EXPECT_TRUE(ran.says("state.json'")) << ran.out;
  }
}

}  // namespace
}  // namespace monoref
