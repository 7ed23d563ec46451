// What is said about a case, and how it is told to people and to machines.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace monoref {

/// In ascending order of badness, so that the worst of several is their maximum.
enum class Verdict : std::uint8_t {
  kExact,    ///< the same bits
  kAllowed,  ///< differs, and the difference is proved to be rounding freedom
  kRefused,  ///< a clear error for bad input
  kWrong,
  kCrashed,
  kHung,
};
std::string_view verdict_name(Verdict verdict);

/// True for what makes a run fail: wrong, crashed or hung.
constexpr bool is_failure(Verdict verdict) {
  return verdict >= Verdict::kWrong;
}

/// How the elements of one output were decided.
struct OutputTally {
  std::string name;
  std::uint64_t exact = 0;
  std::uint64_t allowed = 0;
  std::uint64_t wrong = 0;
  std::uint64_t undecided = 0;  ///< no sound bound can tell whether they are right
  std::uint64_t elements = 0;   ///< all that were judged: the sum of the four

  void add(const OutputTally& other);
};

/// The first element that differs.
struct Difference {
  std::string output;
  /// Coordinates in the stage's terms; a single `storage_offset` where padding was touched.
  std::vector<std::pair<std::string, std::int64_t>> index;
  std::string expected;
  std::string got;
  std::string bound;    ///< the permitted interval or set; empty where only equality counts
  std::string made_by;  ///< the stage of a chain that wrote the output; empty elsewhere
  std::string low;      ///< the ends of `bound` where it is an interval; empty elsewhere
  std::string high;

  std::string text() const;
};

/// One comparison: reference against stored outputs, or a backend against the reference.
struct RunResult {
  std::string runner;  ///< "reference", "host", "nvidia", "plugin:...", "property NAME"
  int wave = 0;        ///< lanes; 0 where waves do not exist
  Verdict verdict = Verdict::kExact;
  std::vector<OutputTally> outputs;
  std::optional<Difference> first_difference;
  std::string message;   ///< for crashes, hangs, refusals and broken properties
  bool is_case = false;  ///< the runner computed the case itself: what is counted as a run
  /// Hung on a device that this process has lost by it: another process must run it once more.
  bool is_lost = false;
};

/// How a runner is named where runs are counted: "host64", "nvidia", "plugin:NAME".
std::string runner_token(const std::string& runner, int wave);

/// All comparisons of one case.
struct CaseResult {
  std::string stage;
  std::string title;
  std::string contract;
  std::string line;   ///< the one-line form; empty for cases that only a file holds
  std::string repro;  ///< a complete command
  std::vector<RunResult> runs;
  bool refusal_was_expected = false;

  Verdict verdict() const;
  /// The run that decided the verdict; null if there is none.
  const RunResult* decisive() const;
};

/// The exit code of two that wins: 1 (something wrong), then 2 (bad usage or input), then 3 (the
/// backend is not there or ran nothing), then 0.
int worse_code(int one, int other);

/// What a run of the program amounts to: the last lines of every command.
struct Summary {
  std::array<std::uint64_t, 6> counts{};
  std::uint64_t unexpected_refusals = 0;
  /// How many cases each runner computed, in the order in which they were named.
  std::vector<std::pair<std::string, std::uint64_t>> runs;

  void add(const CaseResult& result);
  void add(const Summary& other);
  /// Counts `count` more runs of a runner; 0 makes it known.
  void add_runs(const std::string& runner, std::uint64_t count);
  std::uint64_t cases() const;
  std::uint64_t of(Verdict verdict) const { return counts[static_cast<std::size_t>(verdict)]; }
  /// `check: N cases, E exact, A allowed, W wrong, R refused, C crashed, H hung`
  std::string line(std::string_view command) const;
  /// `runs: host64 96, host32 96`
  std::string runs_line() const;
  /// 0 all as it should be, 1 any failure, 2 an unexpected refusal.
  int exit_code() const;
};

}  // namespace monoref
