#include "fuzz/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace monoref {

std::string_view verdict_name(Verdict verdict) {
  static constexpr std::array<std::string_view, 6> kNames{"exact", "allowed", "refused",
                                                          "wrong", "crashed", "hung"};
  return kNames[static_cast<std::size_t>(verdict)];
}

void OutputTally::add(const OutputTally& other) {
  exact += other.exact;
  allowed += other.allowed;
  wrong += other.wrong;
  elements += other.elements;
  undecided += other.undecided;
}

std::string Difference::text() const {
  std::string at;
  for (const auto& [axis, value] : index)
    at += fmt::format("{}{} {}", at.empty() ? "" : ", ", axis, value);
  std::string text = fmt::format("{}[{}]: expected {}, got {}", output, at, expected, got);
  if (!bound.empty()) text += fmt::format(" (allowed: {})", bound);
  if (!made_by.empty()) text += fmt::format(", made by {}", made_by);
  return text;
}

const RunResult* CaseResult::decisive() const {
  const auto worst = std::max_element(
      runs.begin(), runs.end(),
      [](const RunResult& a, const RunResult& b) { return a.verdict < b.verdict; });
  return worst == runs.end() ? nullptr : &*worst;
}

Verdict CaseResult::verdict() const {
  const RunResult* worst = decisive();
  return worst == nullptr ? Verdict::kExact : worst->verdict;
}

std::string runner_token(const std::string& runner, int wave) {
  return runner == "host" ? fmt::format("{}{}", runner, wave) : runner;
}

int worse_code(int one, int other) {
  for (const int code : {1, 2, 3})
    if (one == code || other == code) return code;
  return std::max(one, other);
}

void Summary::add(const CaseResult& result) {
  ++counts[static_cast<std::size_t>(result.verdict())];
  if (result.verdict() == Verdict::kRefused && !result.refusal_was_expected) ++unexpected_refusals;
  for (const RunResult& run : result.runs)
    if (run.is_case) add_runs(runner_token(run.runner, run.wave), 1);
}

void Summary::add(const Summary& other) {
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
  unexpected_refusals += other.unexpected_refusals;
  for (const auto& [runner, count] : other.runs) add_runs(runner, count);
}

void Summary::add_runs(const std::string& runner, std::uint64_t count) {
  auto known = std::find_if(runs.begin(), runs.end(),
                            [&](const auto& entry) { return entry.first == runner; });
  if (known == runs.end()) known = runs.insert(runs.end(), {runner, 0});
  known->second += count;
}

std::uint64_t Summary::cases() const {
  std::uint64_t sum = 0;
  for (const std::uint64_t count : counts) sum += count;
  return sum;
}

std::string Summary::line(std::string_view command) const {
  return fmt::format(
      "{}: {} cases, {} exact, {} allowed, {} wrong, {} refused, {} crashed, {} hung", command,
      cases(), of(Verdict::kExact), of(Verdict::kAllowed), of(Verdict::kWrong),
      of(Verdict::kRefused), of(Verdict::kCrashed), of(Verdict::kHung));
}

std::string Summary::runs_line() const {
  std::string line;
  for (const auto& [runner, count] : runs)
    line += fmt::format("{}{} {}", line.empty() ? "runs: " : ", ", runner, count);
  return line.empty() ? "runs: none" : line;
}

int Summary::exit_code() const {
  if (of(Verdict::kWrong) + of(Verdict::kCrashed) + of(Verdict::kHung) > 0) return 1;
  return unexpected_refusals > 0 ? 2 : 0;
}

}  // namespace monoref
