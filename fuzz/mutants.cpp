#include "fuzz/mutants.hpp"

#include <chrono>

namespace monoref {
namespace {

/// Switches a fault on for as long as it lives.
class ActiveFault {
 public:
  explicit ActiveFault(std::string_view name) { device::set_active_fault(name); }
  ~ActiveFault() { device::set_active_fault({}); }
  ActiveFault(const ActiveFault&) = delete;
  ActiveFault& operator=(const ActiveFault&) = delete;
};

constexpr std::uint64_t kDeepEvery = 4;  // as in a campaign

}  // namespace

MutantResult try_mutant(const Stage& stage, const Mutant& mutant, Runner& runner,
                        std::uint64_t seed, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const ActiveFault active(mutant.name);
  const std::vector<Runner*> runners{&runner};
  MutantResult result{.stage = &stage, .mutant = &mutant};
  for (std::uint64_t index = 0; !result.killed && elapsed() < seconds; ++index) {
    const Draw draw = draw_case(stage, seed, index, std::nullopt);
    const bool deep = index % kDeepEvery == 0;
    const std::optional<Companion> earlier =
        deep ? std::optional(Companion{seed, index}) : std::nullopt;
    const CaseResult failure = judge_draw(draw, earlier, runners, deep);
    ++result.cases;
    if (!is_failure(failure.verdict())) continue;
    result.killed = true;
    result.verdict = failure.verdict();
    result.repro =
        shrink_finding(draw, earlier, failure, runners, {.tries = 200, .seconds = 1.0}).result.line;
  }
  result.seconds = elapsed();
  return result;
}

}  // namespace monoref
