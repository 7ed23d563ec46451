#include "fuzz/generator.hpp"

#include <rapidcheck.h>

#include <chrono>

#include "fuzz/random.hpp"

namespace monoref {
namespace {

rc::Gen<std::int64_t> values_of(const Dimension& dimension) {
  const auto range = rc::gen::inRange<std::int64_t>(dimension.low, dimension.high + 1);
  if (dimension.edges.empty()) return range;
  return rc::gen::weightedOneOf<std::int64_t>(
      {{3, range}, {2, rc::gen::elementOf(dimension.edges)}});
}

/// Simpler neighbours: each dimension alone set to a simpler value that it may have.
rc::Seq<Params> simpler(const Params& params) {
  std::vector<Params> candidates;
  for (std::size_t i = 0; i < params.values().size(); ++i) {
    for (const std::int64_t value : params.dimensions()[i].simpler_than(params.values()[i])) {
      Params candidate = params;
      candidate.values()[i] = value;
      candidates.push_back(std::move(candidate));
    }
  }
  return rc::seq::fromContainer(std::move(candidates));
}

/// Generators are built once per stage: making them costs more than drawing from them.
const std::vector<rc::Gen<std::int64_t>>& generators_of(const Stage& stage) {
  thread_local std::vector<std::pair<const Stage*, std::vector<rc::Gen<std::int64_t>>>> cache;
  for (const auto& [known, generators] : cache)
    if (known == &stage) return generators;
  std::vector<rc::Gen<std::int64_t>> generators;
  for (const Dimension& dimension : stage.dimensions) generators.push_back(values_of(dimension));
  return cache.emplace_back(&stage, std::move(generators)).second;
}

rc::Gen<Params> params_of(const Stage& stage) {
  return [&stage](const rc::Random& random, int size) {
    rc::Random source = random;
    Params params(stage.dimensions);
    const auto& generators = generators_of(stage);
    for (std::size_t i = 0; i < generators.size(); ++i)
      params.values()[i] = generators[i](source.split(), size).value();
    return rc::shrinkable::shrinkRecur(std::move(params), simpler);
  };
}

}  // namespace

Draw draw_case(const Stage& stage, std::uint64_t campaign_seed, std::uint64_t index,
               const std::optional<Contract>& fixed) {
  CounterRandom random(campaign_seed ^ CounterRandom::hash(stage.name), index);
  const rc::Random source(random.bits64());
  const auto contract = stage.contracts[index % stage.contracts.size()];
  return {&stage, fixed ? *fixed : Contract::parse(contract),
          params_of(stage)(source, rc::kNominalSize).value(), random.bits64() >> 32};
}

Shrunken shrink(const Params& failing, const std::function<bool(const Params&)>& still_fails,
                const ShrinkBudget& budget) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(budget.seconds);
  Shrunken best{failing, 0};
  auto current = rc::shrinkable::shrinkRecur(failing, simpler);
  for (bool progress = true; progress;) {
    progress = false;
    auto candidates = current.shrinks();
    for (auto candidate = candidates.next(); candidate; candidate = candidates.next()) {
      if (best.tries >= budget.tries || Clock::now() > end || budget.stop()) return best;
      ++best.tries;
      if (!still_fails(candidate->value())) continue;
      current = *candidate;
      best.params = current.value();
      progress = true;
      break;
    }
  }
  return best;
}

}  // namespace monoref
