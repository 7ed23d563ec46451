#include "reference/stages/expert_up_gate.hpp"

#include <algorithm>
#include <vector>

#include "reference/arithmetic/reduce.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

constexpr std::string_view kStage = "expert_up_gate";
constexpr std::int64_t kHiddenStep = 256;
constexpr auto kBlock = static_cast<std::int64_t>(kMxBlock);

std::vector<float> row_numbers(const ExpertUpGateInput& input, std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(input.x8.dim(1)));
  for (std::size_t k = 0; k < values.size(); ++k)
    values[k] =
        mx_activation(input.x8(row, k), input.x_scale(row, k / kMxBlock), input.contract.e8m0_zero);
  return values;
}

/// The dot of a row with a row of the weights: waves in order from 0.
float waves_dot(std::span<const float> x, std::span<const float> weight) {
  const std::size_t steps = x.size() / kExpertStep;
  const std::size_t of_wave = (steps + kUpGateWaves - 1) / kUpGateWaves * kExpertStep;
  std::vector<float> partials;
  for (std::size_t k = 0; k < x.size(); k += of_wave) {
    const std::size_t count = std::min(of_wave, x.size() - k);
    partials.push_back(fma_chain(x.subspan(k, count), weight.subspan(k, count), 0.0f));
  }
  return sum_in_order(partials, SumStart::kZero);
}

}  // namespace

std::array<std::int64_t, 3> expert_up_gate_shape(const ExpertUpGateInput& input) {
  const std::int64_t rows = input.x8.dim(0);
  const std::int64_t hidden = input.x8.dim(1);
  if (hidden < kHiddenStep || hidden % kHiddenStep != 0)
    refuse("{}: hidden is {}, must be a multiple of {}", kStage, hidden, kHiddenStep);
  require_dims("expert_up_gate: x_scale", input.x_scale, {rows, hidden / kBlock});
  require_dims("expert_up_gate: topk_ids", input.topk_ids, {rows, input.topk_ids.dim(1)});
  check_expert_weights(kStage, "w13", input.w13, hidden);
  const std::int64_t inter = input.w13.weight.dim(1) / 2;
  if (inter % kBlock != 0)
    refuse("{}: inter is {}, half the rows of w13, must be a multiple of {}", kStage, inter,
           kBlock);
  check_expert_ids(kStage, input.w13, input.topk_ids, input.contract);
  static_cast<void>(swiglu_rule(kStage, input.limit, input.alpha, input.beta, input.contract));
  return {rows, input.topk_ids.dim(1), inter};
}

void expert_up_gate(const ExpertUpGateInput& input, const ExpertUpGateOutput& output) {
  const auto [rows, slots, inter] = expert_up_gate_shape(input);
  require_dims("expert_up_gate: output mid", output.mid, {rows, slots, inter});
  const SwigluRule rule = swiglu_rule(kStage, input.limit, input.alpha, input.beta, input.contract);
  std::vector<float> gate(static_cast<std::size_t>(input.x8.dim(1)));
  std::vector<float> up(gate.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::vector<float> x = row_numbers(input, row);
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      const std::int32_t id = input.topk_ids(row, slot);
      const bool served = input.w13.is_expert(id);
      for (std::int64_t i = 0; i < inter; ++i) {
        output.mid(row, slot, i) = 0;
        if (!served) continue;
        const ExpertMatrix expert = expert_matrix(input.w13, id);
        read_weights(expert, i, 0, input.contract.e8m0_zero, gate);
        read_weights(expert, inter + i, 0, input.contract.e8m0_zero, up);
        output.mid(row, slot, i) =
            bf16_from_float(swiglu(waves_dot(x, gate), waves_dot(x, up), rule));
      }
    }
  }
}

}  // namespace monoref
