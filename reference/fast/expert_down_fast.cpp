// The fast form of the down projection. For 16 rows of the weights at a time: the dots of all
// units, expert by expert, each step decoded once; then every row adds its units in its own order.
#include <algorithm>
#include <map>
#include <vector>

#include "reference/fast/expert_panel.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/stages/expert_down.hpp"

namespace monoref {
namespace {

constexpr std::size_t kTile = kPanelColumns * kPanelLanes;
constexpr std::size_t kAccumulators = 2 * kDownWaves;

/// One expert of the step: a column for every row that is routed to it, then one of zeros, which
/// stands for all rows that are not.
struct Work {
  ExpertMatrix matrix;
  ColumnTiles columns;
  std::size_t first_dot = 0;  ///< place of its dots: [step][column], 16 rows each

  std::size_t dots_of_step() const { return columns.tiles() * kPanelColumns; }
};

/// A term of a row's sum with the place of its dots.
struct Term {
  std::size_t dots;
  float weight;
  std::size_t accumulator;
};

/// Everything that does not depend on the rows of the weights.
struct Plan {
  std::vector<Work> work;
  std::vector<std::vector<Term>> terms;  ///< of each row
  std::size_t dots = 0;                  ///< of all units
  std::int64_t steps = 0;
};

ColumnTiles mid_columns(const ExpertDownInput& input, const RoutedExpert& expert) {
  const auto inter = static_cast<std::size_t>(input.mid8.dim(2));
  const float* table = decode_table(kE4M3FN).data();
  ColumnTiles columns(expert.pairs.size() + 1, inter);
  for (std::size_t column = 0; column < expert.pairs.size(); ++column)
    for (std::size_t k = 0; k < inter; ++k) {
      const auto [row, slot] = expert.pairs[column];
      columns.at(column, k) =
          table[input.mid8(row, slot, k)] *
          decode_e8m0(input.mid_scale(row, slot, k / kMxBlock), input.contract.e8m0_zero);
    }
  return columns;
}

Plan plan_of(const ExpertDownInput& input) {
  Plan plan;
  plan.steps = input.mid8.dim(2) / kExpertStep;
  std::vector<RoutedExpert> experts = routed_experts(input.w2, input.topk_ids);
  std::map<std::int32_t, std::size_t> places;
  for (const RoutedExpert& expert : experts) {
    places[expert.id] = plan.work.size();
    plan.work.push_back(
        {expert_matrix(input.w2, expert.id), mid_columns(input, expert), plan.dots});
    plan.dots += static_cast<std::size_t>(plan.steps) * plan.work.back().dots_of_step();
  }
  for (std::int64_t row = 0; row < input.mid8.dim(0); ++row) {
    std::vector<Term>& terms = plan.terms.emplace_back();
    for (const DownTerm& term : expert_down_terms(input, row)) {
      const std::size_t place = places.at(term.expert);
      const auto& pairs = experts[place].pairs;
      const auto column = term.slot == DownTerm::kNoSlot
                              ? pairs.end()
                              : std::find_if(pairs.begin(), pairs.end(),
                                             [&](const auto& pair) { return pair.row == row; });
      const Work& work = plan.work[place];
      terms.push_back({work.first_dot + static_cast<std::size_t>(term.step) * work.dots_of_step() +
                           static_cast<std::size_t>(column - pairs.begin()),
                       term.weight, term.accumulator});
    }
  }
  return plan;
}

/// The dots of all units with 16 rows of the weights.
void multiply(const Plan& plan, std::int64_t first_row, PanelProduct product, E8M0Zero zero,
              Isa isa, std::vector<float>& dots) {
  float panel[kExpertPanel];
  std::fill(dots.begin(), dots.end(), 0.0f);
  for (const Work& work : plan.work)
    for (std::int64_t step = 0; step < plan.steps; ++step) {
      decode_expert_panel(work.matrix, first_row, step * kExpertStep, zero, panel, isa);
      const std::size_t first =
          work.first_dot + static_cast<std::size_t>(step) * work.dots_of_step();
      for (std::size_t tile = 0; tile < work.columns.tiles(); ++tile)
        product(panel, work.columns.tile(tile, static_cast<std::size_t>(step * kExpertStep)),
                kExpertStep, dots.data() + first * kPanelLanes + tile * kTile);
    }
}

/// A row's sums over its units, 16 rows of the weights at once.
void add_units(const std::vector<Term>& terms, const std::vector<float>& dots,
               float (&acc)[kAccumulators][kPanelLanes]) {
  for (const Term& term : terms) {
    const float* dot = dots.data() + term.dots * kPanelLanes;
    float* sum = acc[term.accumulator];
    for (std::size_t i = 0; i < kPanelLanes; ++i) {
      const float product = dot[i] * term.weight;
      sum[i] = sum[i] + product;
    }
  }
}

}  // namespace

void expert_down_fast(const ExpertDownInput& input, const ExpertDownOutput& output, Isa isa) {
  const auto [rows, hidden] = expert_down_shape(input);
  require_dims("expert_down: output partial", output.partial, {rows, hidden});
  const Plan plan = plan_of(input);
  const PanelProduct product = panel_product_for(isa);
  const std::int64_t row_count = rows;
  const std::int64_t groups = hidden / static_cast<std::int64_t>(kPanelLanes);
  const std::int64_t decoded =
      static_cast<std::int64_t>(plan.work.size()) * hidden * input.mid8.dim(2);
#pragma omp parallel if (decoded > kParallelWork)
  {
    std::vector<float> dots(plan.dots * kPanelLanes);
#pragma omp for schedule(dynamic)
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t first = group * static_cast<std::int64_t>(kPanelLanes);
      multiply(plan, first, product, input.contract.e8m0_zero, isa, dots);
      for (std::int64_t row = 0; row < row_count; ++row) {
        float acc[kAccumulators][kPanelLanes] = {};
        add_units(plan.terms[static_cast<std::size_t>(row)], dots, acc);
        for (std::size_t i = 0; i < kPanelLanes; ++i) {
          float own[kAccumulators];
          for (std::size_t a = 0; a < kAccumulators; ++a) own[a] = acc[a][i];
          output.partial(row, first + static_cast<std::int64_t>(i)) =
              bf16_from_float(expert_down_total(input, own));
        }
      }
    }
  }
}

}  // namespace monoref
