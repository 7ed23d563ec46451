#include "reference/stages/expert_down.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "reference/arithmetic/reduce.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

constexpr std::string_view kStage = "expert_down";
constexpr auto kBlock = static_cast<std::int64_t>(kMxBlock);
constexpr auto kSharedAccumulators = static_cast<std::size_t>(kDownWaves);

/// Slots of a row before the shared expert's; all of them where the last does not name it.
std::int64_t routed_slots(const ExpertDownInput& input, std::int64_t row) {
  const std::int64_t last = input.topk_ids.dim(1) - 1;
  const bool shared =
      input.w2.has_shared() && last >= 0 && input.topk_ids(row, last) == input.w2.n_routed;
  return shared ? last : last + 1;
}

/// The units of slots first .. last - 1 of a row in the narrow form.
void add_narrow(const ExpertDownInput& input, std::int64_t row, std::int64_t first,
                std::int64_t last, std::size_t accumulators, std::vector<DownTerm>& terms) {
  const std::int64_t steps = input.mid8.dim(2) / kExpertStep;
  const std::int64_t units = steps * (last - first);
  const std::int64_t padded = (units + kDownWaves - 1) / kDownWaves * kDownWaves;
  for (std::int64_t j = 0; j < padded; ++j) {
    const std::int64_t unit = std::min(j, units - 1);
    const std::int64_t slot = first + unit / steps;
    const std::int32_t id = input.topk_ids(row, slot);
    if (!input.w2.is_expert(id)) continue;
    terms.push_back({id, slot, unit % steps, j < units ? input.topk_weights(row, slot) : 0.0f,
                     accumulators + static_cast<std::size_t>(j % kDownWaves)});
  }
}

std::vector<DownTerm> narrow_terms(const ExpertDownInput& input, std::int64_t row) {
  std::vector<DownTerm> terms;
  const std::int64_t routed = routed_slots(input, row);
  add_narrow(input, row, 0, routed, 0, terms);
  add_narrow(input, row, routed, input.topk_ids.dim(1), kSharedAccumulators, terms);
  return terms;
}

std::vector<DownTerm> wide_terms(const ExpertDownInput& input, std::int64_t row) {
  const std::int64_t steps = input.mid8.dim(2) / kExpertStep;
  std::vector<DownTerm> terms;
  std::int64_t j = 0;
  for (const RoutedExpert& expert : routed_experts(input.w2, input.topk_ids)) {
    const auto pair = std::find_if(expert.pairs.begin(), expert.pairs.end(),
                                   [&](const auto& known) { return known.row == row; });
    const std::int64_t slot = pair == expert.pairs.end() ? DownTerm::kNoSlot : pair->slot;
    const bool apart =
        expert.id == input.w2.n_routed && input.contract.routed_scaling == RoutedScaling::kOutput;
    for (std::int64_t step = 0; step < steps; ++step, ++j)
      terms.push_back(
          {expert.id, slot, step, slot == DownTerm::kNoSlot ? 0.0f : input.topk_weights(row, slot),
           (apart ? kSharedAccumulators : 0) + static_cast<std::size_t>(j % kDownWaves)});
  }
  return terms;
}

/// The activations of a unit as numbers.
std::array<float, kExpertStep> activations(const ExpertDownInput& input, std::int64_t row,
                                           const DownTerm& term) {
  std::array<float, kExpertStep> values;
  const E8M0Zero zero = input.contract.e8m0_zero;
  for (std::int64_t i = 0; i < kExpertStep; ++i) {
    const std::int64_t k = term.step * kExpertStep + i;
    values[static_cast<std::size_t>(i)] =
        term.slot == DownTerm::kNoSlot
            ? mx_activation(0, 0, zero)
            : mx_activation(input.mid8(row, term.slot, k),
                            input.mid_scale(row, term.slot, k / kBlock), zero);
  }
  return values;
}

float unit_dot(const ExpertDownInput& input, std::int64_t row, const DownTerm& term,
               std::int64_t weight_row) {
  std::array<float, kExpertStep> weights;
  read_weights(expert_matrix(input.w2, term.expert), weight_row, term.step * kExpertStep,
               input.contract.e8m0_zero, weights);
  return fma_chain(activations(input, row, term), weights, 0.0f);
}

}  // namespace

std::array<std::int64_t, 2> expert_down_shape(const ExpertDownInput& input) {
  const std::int64_t rows = input.mid8.dim(0);
  const std::int64_t slots = input.mid8.dim(1);
  const std::int64_t inter = input.mid8.dim(2);
  if (inter < kExpertStep || inter % kExpertStep != 0)
    refuse("{}: inter is {}, must be a multiple of {}", kStage, inter, kExpertStep);
  require_dims("expert_down: mid_scale", input.mid_scale, {rows, slots, inter / kBlock});
  require_dims("expert_down: topk_ids", input.topk_ids, {rows, slots});
  require_dims("expert_down: topk_weights", input.topk_weights, {rows, slots});
  if (input.wide_from < 1)
    refuse("{}: wide_from is {}, must be at least 1", kStage, input.wide_from);
  if (std::isnan(input.scaling))
    refuse("{}: scaling is {}, must be a number", kStage, input.scaling);
  check_expert_weights(kStage, "w2", input.w2, inter);
  check_expert_ids(kStage, input.w2, input.topk_ids, input.contract);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t slot = 0; slot + 1 < slots; ++slot)
      if (input.topk_ids(row, slot) == input.w2.n_routed && input.w2.has_shared())
        refuse("{}: topk_ids of row {} has the shared expert {} in slot {}, must be in slot {}",
               kStage, row, input.w2.n_routed, slot, slots - 1);
  return {rows, input.w2.weight.dim(1)};
}

std::vector<DownTerm> expert_down_terms(const ExpertDownInput& input, std::int64_t row) {
  return input.mid8.dim(0) >= input.wide_from ? wide_terms(input, row) : narrow_terms(input, row);
}

float expert_down_total(const ExpertDownInput& input, std::span<const float, 8> accumulators) {
  if (input.contract.routed_scaling == RoutedScaling::kWeights)
    return sum_in_order(accumulators, SumStart::kZero);
  const float routed = sum_in_order(accumulators.first<kSharedAccumulators>(), SumStart::kZero);
  const float shared = sum_in_order(accumulators.last<kSharedAccumulators>(), SumStart::kZero);
  return canonical((routed * static_cast<float>(input.scaling)) + shared);
}

void expert_down(const ExpertDownInput& input, const ExpertDownOutput& output) {
  const auto [rows, hidden] = expert_down_shape(input);
  require_dims("expert_down: output partial", output.partial, {rows, hidden});
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::vector<DownTerm> terms = expert_down_terms(input, row);
    for (std::int64_t weight_row = 0; weight_row < hidden; ++weight_row) {
      std::array<float, 2 * kDownWaves> acc{};
      for (const DownTerm& term : terms) {
        const float product = unit_dot(input, row, term, weight_row) * term.weight;
        acc[term.accumulator] = acc[term.accumulator] + product;
      }
      output.partial(row, weight_row) = bf16_from_float(expert_down_total(input, acc));
    }
  }
}

}  // namespace monoref
