#include "fuzz/judges/judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "reference/error.hpp"

namespace monoref {
namespace {

std::string range_text(const CodeRange& range) {
  if (range.first > range.last) return range.may_be_nan ? "NaN" : "nothing";
  const auto text = [&](int at) {  // ordinals of a sign and magnitude format are its magnitudes
    const auto magnitude = static_cast<std::uint32_t>(std::abs(at));
    const std::uint32_t code = at < 0 ? magnitude | range.format->sign_bit() : magnitude;
    return fmt::format("{}", decode(*range.format, code));
  };
  return fmt::format("{} to {}{}", text(range.first), text(range.last),
                     range.may_be_nan ? " or NaN" : "");
}

std::string range_text(const Bounded& range) {
  if (!range.has_numbers()) return "NaN";
  return fmt::format("{} to {}{}", range.low, range.high, range.may_be_nan ? " or NaN" : "");
}

}  // namespace

OutputJudge::OutputJudge(std::string name, RunResult& result) : result_(result) {
  tally_.name = std::move(name);
}

OutputJudge::~OutputJudge() {
  tally_.elements = tally_.exact + tally_.allowed + tally_.wrong;
  if (tally_.allowed > 0) result_.verdict = std::max(result_.verdict, Verdict::kAllowed);
  if (tally_.wrong > 0) result_.verdict = std::max(result_.verdict, Verdict::kWrong);
  result_.outputs.push_back(std::move(tally_));
}

void OutputJudge::code(const Index& index, std::uint32_t ours, const CodeRange& range,
                       std::uint32_t got) {
  if (range.admits(got)) {
    ++(got == ours ? tally_.exact : tally_.allowed);
  } else {
    wrong(index, fmt::format("{} (0x{:02x})", decode(*range.format, ours), ours),
          fmt::format("{} (0x{:02x})", decode(*range.format, got), got), range_text(range));
  }
}

void OutputJudge::number(const Index& index, float ours, const Bounded& range, float got) {
  if (range.admits(got)) {
    const bool same = std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(ours) ||
                      (got != got && ours != ours);
    ++(same ? tally_.exact : tally_.allowed);
  } else {
    wrong(index, fmt::format("{}", ours), fmt::format("{}", got), range_text(range));
  }
}

void OutputJudge::bits(const Index& index, std::uint64_t expected, std::uint64_t got) {
  if (expected == got)
    ++tally_.exact;
  else
    wrong(index, fmt::format("0x{:x}", expected), fmt::format("0x{:x}", got), "");
}

void OutputJudge::id(const Index& index, std::int64_t ours, bool permitted, std::int64_t got,
                     std::string limit) {
  if (permitted)
    ++(got == ours ? tally_.exact : tally_.allowed);
  else
    wrong(index, fmt::format("{}", ours), fmt::format("{}", got), std::move(limit));
}

void OutputJudge::wrong(const Index& index, std::string expected, std::string got,
                        std::string bound) {
  ++tally_.wrong;
  if (!result_.first_difference)
    result_.first_difference =
        Difference{tally_.name, index, std::move(expected), std::move(got), std::move(bound)};
}

const RecordingJudge* find_judge(std::string_view recording) {
  for (const RecordingJudge& judge : recording_judges())
    if (judge.recording == recording) return &judge;
  return nullptr;
}

std::vector<CaseResult> judge_recording(const RecordingJudge& judge, const Recording& recording) {
  std::vector<CaseResult> results;
  for (const RecordedCase& recorded : recording.cases) {
    CaseResult result{.stage = std::string(judge.stage),
                      .title = recorded.title,
                      .contract = std::string(judge.contract)};
    RunResult run{.runner = "reference"};
    try {
      judge.judge(recorded, run);
    } catch (const Refusal& refusal) {
      run.verdict = Verdict::kRefused;
      run.message = refusal.what();
    }
    result.runs.push_back(std::move(run));
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace monoref
