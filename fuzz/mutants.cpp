#include "fuzz/mutants.hpp"

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
/// Most deaths are understood after a few dozen tries; a chain's cost too much for more.
constexpr int kShrinkTries = 100;

/// Whose turn it is: they alternate, and among the deep cases too.
std::size_t turn_of(std::uint64_t index, std::size_t runners) {
  return static_cast<std::size_t>((index + index / kDeepEvery) % runners);
}

}  // namespace

MutantResult try_mutant(const Stage& stage, const Mutant& mutant, std::span<Runner* const> runners,
                        std::uint64_t seed, std::uint64_t cases,
                        const std::function<bool()>& stop) {
  const ActiveFault active(mutant.name);
  MutantResult result{.stage = &stage, .mutant = &mutant};
  while (result.cases < cases) {
    if (stop()) return result;
    const std::uint64_t index = result.cases++;
    const std::vector<Runner*> runner{runners[turn_of(index, runners.size())]};
    const Draw draw = draw_case(stage, seed, index, std::nullopt);
    const bool deep = index % kDeepEvery == 0;
    const std::optional<Companion> earlier =
        deep ? std::optional(Companion{seed, index}) : std::nullopt;
    const CaseResult failure = judge_draw(draw, earlier, runner, deep);
    result.judged.add(failure);
    if (!is_failure(failure.verdict())) continue;
    result.fate = MutantFate::kKilled;
    result.verdict = failure.verdict();
    result.wave = runner.front()->wave();
    result.repro =
        shrink_finding(draw, earlier, failure, runner, {.tries = kShrinkTries}).result.line;
    return result;
  }
  result.fate = MutantFate::kSurvived;
  return result;
}

}  // namespace monoref
