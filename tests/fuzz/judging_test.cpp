// Judging in a process of its own: every way to die there is the verdict of one case.
#include "fuzz/judging.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <new>
#include <stdexcept>

namespace monoref {
namespace {

struct Heard {
  std::vector<std::string> results;  ///< "file/title: verdict, runner: message"
  std::vector<std::string> bad_inputs;
  std::vector<std::string> unavailable;
  std::vector<std::size_t> ended;
};

/// Three files of three cases. `act` is what judging the case of a file does.
Heard judge(const std::function<void(std::size_t file, int number, JudgeStream&)>& act,
            JudgeLimits limits = {}) {
  const Judging judging{
      .files = {"a.h5", "b.h5", "c.h5"},
      .make_runners = [] { return std::vector<std::unique_ptr<Runner>>(); },
      .judge =
          [&](std::size_t file, const std::vector<Runner*>&, JudgeStream& stream) {
            stream.has_read(100);
            for (int i = 0; i < 3; ++i) {
              const CaseResult header{.stage = "stage", .title = std::to_string(i)};
              stream.judge(header, [&]() -> JudgeStream::Judged {
                act(file, i, stream);
                return {header, {}};
              });
            }
          },
      .limits = limits};
  Heard heard;
  judge_files(judging,
              {.on_runner = [](const std::string&) {},
               .on_case =
                   [&](std::size_t file, const JudgeStream::Judged& judged) {
                     const CaseResult& result = judged.result;
                     std::string text = judging.files[file] + "/" + result.title + ": " +
                                        std::string(verdict_name(result.verdict()));
                     if (!result.runs.empty())
                       text += ", " + result.runs[0].runner + ": " + result.runs[0].message;
                     heard.results.push_back(text);
                   },
               .on_file = [&](std::size_t file) { heard.ended.push_back(file); },
               .on_note = [](std::size_t, const std::string&) {},
               .on_bad_input = [&](const std::string& t) { heard.bad_inputs.push_back(t); },
               .on_unavailable = [&](const std::string& t) { heard.unavailable.push_back(t); }});
  return heard;
}

TEST(Judging, EveryCaseIsJudgedOnceAndInOrder) {
  const Heard heard = judge([](std::size_t, int, JudgeStream&) {});
  const std::vector<std::string> all{"a.h5/0: exact", "a.h5/1: exact", "a.h5/2: exact",
                                     "b.h5/0: exact", "b.h5/1: exact", "b.h5/2: exact",
                                     "c.h5/0: exact", "c.h5/1: exact", "c.h5/2: exact"};
  EXPECT_EQ(heard.results, all);
  EXPECT_EQ(heard.ended, (std::vector<std::size_t>{0, 1, 2}));
}

TEST(Judging, ADeathIsTheVerdictOfOneCase) {
  const Heard heard = judge([](std::size_t file, int number, JudgeStream& stream) {
    if (file == 1 && number == 1) {
      stream.step("reference, property sum", false);
      raise(SIGSEGV);
    }
  });
  ASSERT_EQ(heard.results.size(), 9u);
  EXPECT_EQ(heard.results[4],
            "b.h5/1: crashed, reference, property sum: the process that judged it died of signal "
            "11 (Segmentation fault)");
  for (const std::size_t other : {0, 1, 2, 3, 5, 6, 7, 8})
    EXPECT_NE(heard.results[other].find(": exact"), std::string::npos) << heard.results[other];
  EXPECT_EQ(heard.ended, (std::vector<std::size_t>{0, 1, 2}));
}

TEST(Judging, EachOfSeveralDeathsIsItsOwn) {
  const Heard heard = judge([](std::size_t, int number, JudgeStream&) {
    if (number != 1) std::abort();
  });
  ASSERT_EQ(heard.results.size(), 9u);
  for (std::size_t i = 0; i < 9; ++i)
    EXPECT_NE(heard.results[i].find(i % 3 == 1 ? ": exact" : "signal 6"), std::string::npos)
        << heard.results[i];
}

TEST(Judging, AnEndlessLoopIsHung) {
  const Heard heard = judge(
      [](std::size_t file, int number, JudgeStream&) {
        const std::atomic<bool> stop{false};
        while (file == 0 && number == 0 && !stop) continue;
      },
      {.seconds = 0.2, .sanitized_factor = 1});
  ASSERT_EQ(heard.results.size(), 9u);
  EXPECT_EQ(heard.results[0].rfind("a.h5/0: hung, reference: the process that judged it took more "
                                   "than 0 seconds of processor time",
                                   0),
            0u)
      << heard.results[0];
  EXPECT_EQ(heard.results[1], "a.h5/1: exact");
}

TEST(Judging, AStepOfARunnerWatchesItsOwnTime) {
  const Heard heard = judge(
      [](std::size_t, int, JudgeStream& stream) {
        stream.step("host64", true);
        const auto used = [] { return static_cast<double>(clock()) / CLOCKS_PER_SEC; };
        for (const double start = used(); used() - start < 0.1;) continue;
      },
      {.seconds = 0.05, .sanitized_factor = 1});
  for (const std::string& result : heard.results)
    EXPECT_NE(result.find(": exact"), std::string::npos) << result;
}

TEST(Judging, TooMuchMemoryIsARefusal) {
  if (is_sanitized()) return;  // no limit there
  const Heard heard = judge(
      [](std::size_t file, int number, JudgeStream&) {
        if (file != 0) return;
        if (number == 1) throw std::bad_alloc();
        if (number != 2) return;
        std::vector<std::vector<char>> hoard;
        for (;; usleep(1000)) hoard.emplace_back(std::size_t{1} << 20, 'x');
      },
      {.bytes = std::size_t{100} << 20, .bytes_per_byte = 0, .bytes_per_processor = 0});
  ASSERT_EQ(heard.results.size(), 9u);
  EXPECT_EQ(heard.results[1],
            "a.h5/1: refused, reference: the case needs more memory than the limit, what the "
            "process can get");
  EXPECT_EQ(heard.results[2],
            "a.h5/2: refused, reference: the process that judged it used more than 100 MiB of "
            "memory");
  EXPECT_EQ(heard.results[3], "b.h5/0: exact");
}

TEST(Judging, WhatIsThrownIsARefusalThatNamesTheStep) {
  const Heard heard = judge([](std::size_t, int number, JudgeStream& stream) {
    stream.step("host32", true);
    if (number == 0) throw std::invalid_argument("launch: blocks_z is 0");
  });
  EXPECT_EQ(heard.results[3], "b.h5/0: refused, host32: launch: blocks_z is 0");
  EXPECT_EQ(heard.results[4], "b.h5/1: exact");
}

TEST(Judging, ADeathOutsideOfCasesCostsItsFileAlone) {
  const Judging judging{
      .files = {"a.h5", "b.h5"},
      .make_runners = [] { return std::vector<std::unique_ptr<Runner>>(); },
      .judge =
          [](std::size_t file, const std::vector<Runner*>&, JudgeStream& stream) {
            if (file == 0) raise(SIGFPE);
            stream.judge({.stage = "s", .title = "t"}, []() -> JudgeStream::Judged { return {}; });
          },
  };
  std::vector<std::string> bad;
  int cases = 0;
  judge_files(judging, {.on_runner = [](const std::string&) {},
                        .on_case = [&](std::size_t, const JudgeStream::Judged&) { ++cases; },
                        .on_file = [](std::size_t) {},
                        .on_note = [](std::size_t, const std::string&) {},
                        .on_bad_input = [&](const std::string& text) { bad.push_back(text); },
                        .on_unavailable = [](const std::string&) {}});
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0], "a.h5: the process that read it died of signal 8 (Floating point exception)");
  EXPECT_EQ(cases, 1);
}

TEST(Judging, ABackendThatCannotBeMadeEndsIt) {
  for (const bool dies : {false, true}) {
    std::vector<std::string> said;
    judge_files({.files = {"a.h5", "b.h5"},
                 .make_runners = [=]() -> std::vector<std::unique_ptr<Runner>> {
                   if (dies) std::abort();
                   throw device::Unavailable{"no such device"};
                 },
                 .judge = [](std::size_t, const std::vector<Runner*>&, JudgeStream&) {}},
                {.on_runner = [](const std::string&) {},
                 .on_case = [](std::size_t, const JudgeStream::Judged&) {},
                 .on_file = [](std::size_t) {},
                 .on_note = [](std::size_t, const std::string&) {},
                 .on_bad_input = [](const std::string&) {},
                 .on_unavailable = [&](const std::string& text) { said.push_back(text); }});
    ASSERT_EQ(said.size(), 1u);
    EXPECT_NE(said[0].find(dies ? "died of signal 6" : "no such device"), std::string::npos);
  }
}

// A GPU is lost to the process whose kernel crashed, and there again for the next process.
TEST(Judging, ALostBackendIsMadeAnew) {
  bool is_lost = false;  // each process has its own
  const Heard heard = judge([&](std::size_t, int number, JudgeStream&) {
    if (is_lost) throw device::Unavailable{"lost"};
    is_lost = number == 1;
  });
  EXPECT_EQ(heard.results.size(), 9u);
  EXPECT_TRUE(heard.unavailable.empty());
  const Heard never = judge([](std::size_t, int number, JudgeStream&) {
    if (number == 1) throw device::Unavailable{"no device"};
  });
  EXPECT_EQ(never.results, (std::vector<std::string>{"a.h5/0: exact"}));
  EXPECT_EQ(never.unavailable, (std::vector<std::string>{"no device"}));
}

/// Every member of a result comes through, also bytes that are no text.
TEST(Judging, ResultsComeWhole) {
  CaseResult sent{.stage = "s", .title = "t\xff", .contract = "c", .line = "l", .repro = "r"};
  RunResult run{.runner = "host", .wave = 32, .verdict = Verdict::kWrong, .message = "m"};
  run.outputs.push_back({"out", 1, 2, 3, 4, 10});
  Difference difference{"out", {{"row", 3}}, "1", "2", "0 to 1", "link", "0", "1"};
  run.first_difference = difference;
  run.is_case = true;
  sent.runs.push_back(run);
  sent.refusal_was_expected = true;
  std::vector<CaseResult> got;
  judge_files({.files = {"a.h5"},
               .make_runners = [] { return std::vector<std::unique_ptr<Runner>>(); },
               .judge =
                   [&](std::size_t, const std::vector<Runner*>&, JudgeStream& stream) {
                     stream.judge(sent, [&]() -> JudgeStream::Judged { return {sent, "text"}; });
                   }},
              {.on_runner = [](const std::string&) {},
               .on_case =
                   [&](std::size_t, const JudgeStream::Judged& judged) {
                     got.push_back(judged.result);
                     EXPECT_EQ(judged.text, "text");
                   },
               .on_file = [](std::size_t) {},
               .on_note = [](std::size_t, const std::string&) {},
               .on_bad_input = [](const std::string&) {},
               .on_unavailable = [](const std::string&) {}});
  ASSERT_EQ(got.size(), 1u);
  const CaseResult& result = got[0];
  EXPECT_EQ(std::tie(result.stage, result.title, result.contract, result.line, result.repro,
                     result.refusal_was_expected),
            std::tie(sent.stage, sent.title, sent.contract, sent.line, sent.repro,
                     sent.refusal_was_expected));
  ASSERT_EQ(result.runs.size(), 1u);
  const RunResult& back = result.runs[0];
  EXPECT_EQ(std::tie(back.runner, back.wave, back.verdict, back.message, back.is_case),
            std::tie(run.runner, run.wave, run.verdict, run.message, run.is_case));
  ASSERT_EQ(back.outputs.size(), 1u);
  EXPECT_EQ(back.outputs[0].name, "out");
  EXPECT_EQ(back.outputs[0].exact, 1u);
  EXPECT_EQ(back.outputs[0].allowed, 2u);
  EXPECT_EQ(back.outputs[0].wrong, 3u);
  EXPECT_EQ(back.outputs[0].undecided, 4u);
  EXPECT_EQ(back.outputs[0].elements, 10u);
  ASSERT_TRUE(back.first_difference.has_value());
  EXPECT_EQ(back.first_difference->text(), difference.text());
  EXPECT_EQ(back.first_difference->index, difference.index);
  EXPECT_EQ(back.first_difference->low, "0");
  EXPECT_EQ(back.first_difference->high, "1");
}

}  // namespace
}  // namespace monoref
