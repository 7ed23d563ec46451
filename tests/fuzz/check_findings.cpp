#include "tests/fuzz/check_findings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string_view>

#include "reference/core/contract.hpp"

namespace monoref::testing {
namespace {

namespace fs = std::filesystem;

bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool has_word(std::string_view text, std::string_view word) {
  if (word.empty()) return false;
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_word_character(text[at - 1])) &&
        (end == text.size() || !is_word_character(text[end])))
      return true;
  }
  return false;
}

template <class Words>
bool has_any(std::string_view text, const Words& words) {
  return std::any_of(std::begin(words), std::end(words),
                     [&](std::string_view word) { return text.find(word) != text.npos; });
}

/// `STAGE: SUBJECT is ...`: sizes and counts that no input or scalar holds as such.
bool has_subject(std::string_view text) {
  static const std::regex subject(
      R"(^([a-z0-9_.]+( \([a-z0-9_]+\))?: )+[A-Za-z0-9_.]+(\[[-0-9, ]+\])*( [a-z0-9]+){0,4} (is|has|are|holds|must|leaves|needs) )");
  return std::regex_search(text.begin(), text.end(), subject);
}

/// `X is 5, y has 3`: the limit is what the other one has.
bool has_other(std::string_view text) {
  static const std::regex other(
      R"([0-9]( [a-z]+)?, [A-Za-z0-9_. ]+ (has|have|holds|is|are) ([0-9]|no ))");
  return std::regex_search(text.begin(), text.end(), other);
}

bool names_argument(std::string_view text, const CaseMutant& mutant) {
  constexpr std::string_view kPlaces[] = {"attribute '", "dataset '", "input '", "parameter '",
                                          "stage is '"};
  if (has_any(text, kPlaces)) return true;
  if (has_subject(text)) return true;
  for (const std::string& name : mutant.names)
    if (has_word(text, name)) return true;
  for (const ContractField& field : contract_fields())
    if (has_word(text, field.name)) return true;
  return false;
}

bool names_value(std::string_view text) {
  constexpr std::string_view kWords[] = {"nan", "inf", "'"};
  return text.find_first_of("0123456789") != text.npos || has_any(text, kWords);
}

bool names_limit(std::string_view text) {
  constexpr std::string_view kWords[] = {
      "must",    "limit",     "at most", "at least", "not one of", "is missing", "has no",
      "needs",   "below",     "above",   "beyond",   "more than",  "less than",  "between",
      "unknown", "not known", "only",    "expected", "cannot",     "no such",    "not listed",
      "is none", "no known",  "twice",   "does not", "is empty",   "is not a"};
  return has_any(text, kWords) || has_other(text);
}

/// What a refusal does not say, in words; empty if it says all.
std::string missing_of(std::string_view text, const CaseMutant& mutant) {
  std::string missing;
  const auto miss = [&](std::string_view what) {
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", what);
  };
  if (!names_argument(text, mutant)) miss("argument");
  if (!names_value(text)) miss("value");
  if (!names_limit(text)) miss("limit");
  return missing;
}

/// The part of a message that says what is wrong; the file's name before it is full of digits.
std::string_view behind_file(std::string_view output, const fs::path& file) {
  const std::string name = file.string();
  const std::size_t at = output.find(name);
  return at == output.npos ? output : output.substr(at + name.size());
}

struct Judgement {
  const CaseMutant& mutant;
  const ProcessRun& run;
  CheckOutcome outcome;

  void find(std::string text) { outcome.findings.push_back(std::move(text)); }

  void judge_end() {
    if (!run.ended.empty()) find(fmt::format("ended: {}", run.ended));
    if (run.signal != 0) find(fmt::format("signal: {}", run.signal));
    if (run.cpu_seconds > kMostSeconds && run.ended.empty())
      find(fmt::format("slow: more than {} s of processor time", kMostSeconds));
    if (run.peak_bytes > kMostBytes)
      find(fmt::format("memory: more than {} MiB", kMostBytes >> 20));
    if (run.exit_code > 2) find(fmt::format("exit: code {}", run.exit_code));
  }

  /// A file that gave no case: it must be named, and so must what is wrong with it.
  void judge_unreadable(const fs::path& file) {
    outcome.verdict = "unreadable";
    if (run.exit_code == 0) return find("exit: code 0, and nothing was judged");
    if (run.output.find(file.string()) == run.output.npos)
      return find("vague: does not name the file: " + first_line());
    const std::string_view text = behind_file(run.output, file);
    if (const auto missing = missing_of(text, mutant); !missing.empty())
      find(fmt::format("vague: no {}: {}", missing, text.substr(0, text.find('\n'))));
  }

  void judge_runs(const nlohmann::json& item) {
    for (const nlohmann::json& one : item["runs"]) {
      const std::string verdict = one["verdict"];
      const std::string runner = one["backend"];
      const std::string message = one.value("message", "");
      if (verdict == "refused") {
        if (const auto missing = missing_of(message, mutant); !missing.empty())
          find(fmt::format("vague: no {}: {}", missing, message));
      } else if (verdict == "crashed" || verdict == "hung" ||
                 (verdict == "wrong" && !(runner == "reference" && mutant.claims_results))) {
        find(fmt::format("{}: {}: {}", verdict, runner, message));
      }
    }
  }

  void judge_case(const nlohmann::json& item) {
    outcome.verdict = item["verdict"];
    const bool failed =
        outcome.verdict == "wrong" || outcome.verdict == "crashed" || outcome.verdict == "hung";
    const int code = failed ? 1 : outcome.verdict == "refused" ? 2 : 0;
    // A claimed defect makes a refusal right.
    const bool is_right =
        run.exit_code == code || (mutant.claims_results && code == 2 && run.exit_code == 0);
    if (!is_right) find(fmt::format("exit: code {} for '{}'", run.exit_code, outcome.verdict));
    judge_runs(item);
  }

  std::string first_line() const { return run.output.substr(0, run.output.find('\n')); }
};

}  // namespace

CheckOutcome judge_check(const CaseMutant& mutant, const fs::path& file, const fs::path& json,
                         const ProcessRun& run) {
  Judgement judgement{mutant, run, {}};
  judgement.judge_end();
  if (!run.ended.empty() || run.signal != 0) return std::move(judgement.outcome);
  if (run.output.find("\ncheck: ") == run.output.npos && !run.output.starts_with("check: "))
    judgement.find("lost: no last line: " + judgement.first_line());
  std::ifstream stream(json);
  const nlohmann::json report = nlohmann::json::parse(stream, nullptr, false);
  if (report.is_discarded() || !report.contains("cases")) {
    judgement.find("lost: no JSON: " + judgement.first_line());
    return std::move(judgement.outcome);
  }
  if (report["cases"].empty())
    judgement.judge_unreadable(file);
  else
    judgement.judge_case(report["cases"][0]);
  return std::move(judgement.outcome);
}

}  // namespace monoref::testing
