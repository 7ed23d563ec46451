// What a run amounts to: counts, the last lines and the exit code.
#include "fuzz/verdict.hpp"

#include <gtest/gtest.h>

namespace monoref {
namespace {

CaseResult result_of(Verdict verdict) {
  CaseResult result;
  result.runs.push_back({.runner = "host", .wave = 64, .verdict = verdict, .is_case = true});
  return result;
}

TEST(Verdicts, OneWinsOverTwoAndTwoOverThree) {
  EXPECT_EQ(worse_code(0, 0), 0);
  EXPECT_EQ(worse_code(0, 3), 3);
  EXPECT_EQ(worse_code(3, 2), 2);
  EXPECT_EQ(worse_code(2, 1), 1);
  EXPECT_EQ(worse_code(1, 3), 1);
}

TEST(Verdicts, RunsAreCountedPerRunner) {
  Summary summary;
  summary.add_runs("host32", 0);
  CaseResult both = result_of(Verdict::kExact);
  both.runs.push_back({.runner = "plugin:mine", .is_case = true});
  both.runs.push_back({.runner = "host, reused buffers", .wave = 64});
  both.runs.push_back({.runner = "reference"});
  summary.add(both);
  summary.add(result_of(Verdict::kCrashed));
  EXPECT_EQ(summary.runs_line(), "runs: host32 0, host64 2, plugin:mine 1");
  EXPECT_EQ(Summary{}.runs_line(), "runs: none");
}

TEST(Verdicts, TheWorstDecides) {
  Summary summary;
  summary.add(result_of(Verdict::kRefused));
  EXPECT_EQ(summary.exit_code(), 2);
  summary.add(result_of(Verdict::kHung));
  EXPECT_EQ(summary.exit_code(), 1);
  EXPECT_EQ(summary.line("check"),
            "check: 2 cases, 0 exact, 0 allowed, 0 wrong, 1 refused, 0 crashed, 1 hung");
}

}  // namespace
}  // namespace monoref
