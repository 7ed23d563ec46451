// The fast form of the up and gate projections. Lanes are 16 rows of an expert's weights, columns
// the tokens routed to it; a step of weights is decoded once for all of them.
#include <algorithm>
#include <vector>

#include "reference/fast/expert_panel.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/stages/expert_up_gate.hpp"

namespace monoref {
namespace {

constexpr std::size_t kTile = kPanelColumns * kPanelLanes;

/// One expert of the step with the tokens that are routed to it.
struct Work {
  ExpertMatrix matrix;
  std::vector<RoutedExpert::Pair> pairs;
  ColumnTiles tokens;
};

ColumnTiles token_columns(const ExpertUpGateInput& input, const RoutedExpert& expert) {
  const auto hidden = static_cast<std::size_t>(input.x8.dim(1));
  const float* table = decode_table(kE4M3FN).data();
  ColumnTiles columns(expert.pairs.size(), hidden);
  for (std::size_t column = 0; column < expert.pairs.size(); ++column)
    for (std::size_t k = 0; k < hidden; k += kMxBlock) {
      const std::int64_t row = expert.pairs[column].row;
      const float scale = decode_e8m0(input.x_scale(row, k / kMxBlock), input.contract.e8m0_zero);
      for (std::size_t i = k; i < k + kMxBlock; ++i)
        columns.at(column, i) = table[input.x8(row, i)] * scale;
    }
  return columns;
}

std::vector<Work> work_of(const ExpertUpGateInput& input) {
  std::vector<Work> work;
  for (const RoutedExpert& expert : routed_experts(input.w13, input.topk_ids))
    work.push_back(
        {expert_matrix(input.w13, expert.id), expert.pairs, token_columns(input, expert)});
  return work;
}

/// Dots of 16 rows of the weights with every token of an expert, [token][row of 16]: the waves in
/// order from 0.
class Dots {
 public:
  Dots(PanelProduct product, E8M0Zero zero, Isa isa) : product_(product), zero_(zero), isa_(isa) {}

  void multiply(const Work& work, std::int64_t first_row) {
    const std::int64_t steps = work.matrix.k / kExpertStep;
    const std::int64_t of_wave = (steps + kUpGateWaves - 1) / kUpGateWaves;
    totals_.assign(work.tokens.tiles() * kTile, 0.0f);
    for (std::int64_t first = 0; first < steps; first += of_wave) {
      partials_.assign(totals_.size(), 0.0f);
      for (std::int64_t step = first; step < std::min(first + of_wave, steps); ++step)
        add_step(work, first_row, step * kExpertStep);
      for (std::size_t i = 0; i < totals_.size(); ++i) totals_[i] += partials_[i];
    }
  }
  float at(std::size_t token, std::size_t row) const { return totals_[token * kPanelLanes + row]; }

 private:
  void add_step(const Work& work, std::int64_t first_row, std::int64_t first_k) {
    decode_expert_panel(work.matrix, first_row, first_k, zero_, panel_, isa_);
    for (std::size_t tile = 0; tile < work.tokens.tiles(); ++tile)
      product_(panel_, work.tokens.tile(tile, static_cast<std::size_t>(first_k)), kExpertStep,
               partials_.data() + tile * kTile);
  }

  PanelProduct product_;
  E8M0Zero zero_;
  Isa isa_;
  float panel_[kExpertPanel];
  std::vector<float> partials_;
  std::vector<float> totals_;
};

}  // namespace

void expert_up_gate_fast(const ExpertUpGateInput& input, const ExpertUpGateOutput& output,
                         Isa isa) {
  const auto [rows, slots, inter] = expert_up_gate_shape(input);
  require_dims("expert_up_gate: output mid", output.mid, {rows, slots, inter});
  const SwigluRule rule =
      swiglu_rule("expert_up_gate", input.limit, input.alpha, input.beta, input.contract);
  for (std::int64_t row = 0; row < rows; ++row)  // what no expert writes
    for (std::int64_t slot = 0; slot < slots; ++slot)
      for (std::int64_t i = 0; i < inter; ++i) output.mid(row, slot, i) = 0;
  const std::vector<Work> work = work_of(input);
  const auto groups = inter / static_cast<std::int64_t>(kPanelLanes);
  const std::int64_t tasks = static_cast<std::int64_t>(work.size()) * groups;
  const PanelProduct product = panel_product_for(isa);
#pragma omp parallel if (tasks * 32 * input.x8.dim(1) > kParallelWork)
  {
    Dots gate(product, input.contract.e8m0_zero, isa);
    Dots up(product, input.contract.e8m0_zero, isa);
#pragma omp for schedule(dynamic)
    for (std::int64_t task = 0; task < tasks; ++task) {
      const Work& own = work[static_cast<std::size_t>(task / groups)];
      const std::int64_t first = task % groups * static_cast<std::int64_t>(kPanelLanes);
      gate.multiply(own, first);
      up.multiply(own, inter + first);
      for (std::size_t token = 0; token < own.pairs.size(); ++token)
        for (std::size_t i = 0; i < kPanelLanes; ++i)
          output.mid(own.pairs[token].row, own.pairs[token].slot,
                     first + static_cast<std::int64_t>(i)) =
              bf16_from_float(swiglu(gate.at(token, i), up.at(token, i), rule));
    }
  }
}

}  // namespace monoref
