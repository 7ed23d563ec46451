#include "fuzz/judges/judge.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "reference/core/error.hpp"

namespace monoref {
OutputJudge::Permitted OutputJudge::permitted(const CodeRange& range) {
  if (range.first > range.last) return {range.may_be_nan ? "NaN" : "nothing", {}, {}};
  const auto text = [&](int at) {  // ordinals of a sign and magnitude format are its magnitudes
    const auto magnitude = static_cast<std::uint32_t>(std::abs(at));
    const std::uint32_t code = at < 0 ? magnitude | range.format->sign_bit() : magnitude;
    return fmt::format("{}", decode(*range.format, code));
  };
  const std::string low = text(range.first);
  const std::string high = text(range.last);
  return {fmt::format("{} to {}{}", low, high, range.may_be_nan ? " or NaN" : ""), low, high};
}

OutputJudge::Permitted OutputJudge::permitted(const Bounded& range) {
  if (!range.has_numbers()) return {"NaN", {}, {}};
  const std::string low = fmt::format("{}", range.low);
  const std::string high = fmt::format("{}", range.high);
  return {fmt::format("{} to {}{}", low, high, range.may_be_nan ? " or NaN" : ""), low, high};
}

OutputJudge::OutputJudge(std::string name, RunResult& result) : result_(result) {
  tally_.name = std::move(name);
}

OutputJudge::~OutputJudge() {
  tally_.elements = tally_.exact + tally_.allowed + tally_.wrong + tally_.undecided;
  if (tally_.allowed + tally_.undecided > 0)
    result_.verdict = std::max(result_.verdict, Verdict::kAllowed);
  if (tally_.wrong > 0) result_.verdict = std::max(result_.verdict, Verdict::kWrong);
  result_.outputs.push_back(std::move(tally_));
}

void OutputJudge::code(const Index& index, std::uint32_t ours, const CodeRange& range,
                       std::uint32_t got) {
  if (range.admits(got)) {
    ++(got == ours ? tally_.exact : tally_.allowed);
  } else {
    wrong(index, fmt::format("{} (0x{:02x})", decode(*range.format, ours), ours),
          fmt::format("{} (0x{:02x})", decode(*range.format, got), got), permitted(range));
  }
}

void OutputJudge::number(const Index& index, float ours, const Bounded& range, float got) {
  if (range.admits(got)) {
    const bool same = std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(ours) ||
                      (got != got && ours != ours);
    ++(same ? tally_.exact : tally_.allowed);
  } else {
    wrong(index, fmt::format("{}", ours), fmt::format("{}", got), permitted(range));
  }
}

void OutputJudge::bits(const Index& index, std::uint64_t expected, std::uint64_t got) {
  if (expected == got)
    ++tally_.exact;
  else
    wrong(index, fmt::format("0x{:x}", expected), fmt::format("0x{:x}", got), {});
}

void OutputJudge::id(const Index& index, std::int64_t ours, bool permitted, std::int64_t got,
                     std::string limit) {
  if (permitted)
    ++(got == ours ? tally_.exact : tally_.allowed);
  else
    wrong(index, fmt::format("{}", ours), fmt::format("{}", got), {std::move(limit), {}, {}});
}

void OutputJudge::wrong(const Index& index, std::string expected, std::string got,
                        Permitted permitted) {
  ++tally_.wrong;
  if (result_.first_difference) return;
  Difference first{tally_.name, index, std::move(expected), std::move(got)};
  first.bound = std::move(permitted.text);
  first.low = std::move(permitted.low);
  first.high = std::move(permitted.high);
  result_.first_difference = std::move(first);
}

const RecordingJudge* find_judge(std::string_view recording) {
  for (const RecordingJudge& judge : recording_judges())
    if (judge.recording == recording) return &judge;
  return nullptr;
}

void check_work(const RecordedCase& recorded, std::initializer_list<std::int64_t> factors) {
  std::int64_t products = 1;
  for (const std::int64_t factor : factors)
    if (__builtin_mul_overflow(products, factor, &products) || products > kMostJudgedProducts)
      refuse("{} are {}, the limit is {} products", recorded.place("the sizes to be multiplied"),
             fmt::join(factors, " x "), kMostJudgedProducts);
}

CaseResult judge_recorded(const RecordingJudge& judge, const RecordedCase& recorded) {
  CaseResult result{.stage = std::string(judge.stage),
                    .title = recorded.title,
                    .contract = std::string(judge.contract)};
  RunResult run{.runner = "reference"};
  try {
    judge.judge(recorded, run);
  } catch (const Refusal& refusal) {
    run.verdict = Verdict::kRefused;
    const std::string message = refusal.what();
    run.message = message.starts_with("recording ") ? message : recorded.place(message);
  }
  result.runs.push_back(std::move(run));
  return result;
}

std::vector<CaseResult> judge_recording(const RecordingJudge& judge, const Recording& recording) {
  std::vector<CaseResult> results;
  for (const RecordedCase& recorded : recording.cases)
    results.push_back(judge_recorded(judge, recorded));
  return results;
}

}  // namespace monoref
