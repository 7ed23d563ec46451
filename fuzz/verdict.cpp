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

void Summary::add(const CaseResult& result) {
  ++counts[static_cast<std::size_t>(result.verdict())];
  if (result.verdict() == Verdict::kRefused && !result.refusal_was_expected) ++unexpected_refusals;
}

void Summary::add(const Summary& other) {
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
  unexpected_refusals += other.unexpected_refusals;
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

int Summary::exit_code() const {
  if (of(Verdict::kWrong) + of(Verdict::kCrashed) + of(Verdict::kHung) > 0) return 1;
  return unexpected_refusals > 0 ? 2 : 0;
}

}  // namespace monoref
