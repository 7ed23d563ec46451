#include "reference/stages/moe_route.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/arithmetic/constants.hpp"
#include "reference/arithmetic/minmax.hpp"
#include "reference/arithmetic/ordered_bits.hpp"
#include "reference/arithmetic/portable.hpp"
#include "reference/arithmetic/reduce.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

/// An expert that may be selected, and what it is ranked by.
struct Candidate {
  std::int32_t key;
  std::int32_t expert;
};

float exponent_of(float logit, const Contract& contract) {
  const bool rounded = contract.gate_weights == GateWeights::kBf16;
  return -(rounded ? round_to_bf16(logit) : logit) * kLog2E;
}

/// The scores of a row: routing_score of each logit, with the exponentials taken together.
std::vector<float> scores_of(const MoeRouteInput& input, std::int64_t row) {
  std::vector<float> exponents(static_cast<std::size_t>(input.logits.dim(1)));
  for (std::size_t e = 0; e < exponents.size(); ++e)
    exponents[e] = exponent_of(input.logits(row, e), input.contract);
  std::vector<float> scores(exponents.size());
  portable_exp2(exponents, scores);
  for (float& score : scores) score = portable_rcp(1.0f + score);
  return scores;
}

/// The selected experts of a row, best first.
std::vector<Candidate> select(const MoeRouteInput& input, const std::vector<float>& scores) {
  std::vector<Candidate> all;
  all.reserve(scores.size());
  for (std::size_t e = 0; e < scores.size(); ++e)
    all.push_back(
        {routing_key(scores[e], input.bias(e), static_cast<std::int64_t>(e), input.contract),
         static_cast<std::int32_t>(e)});
  const bool higher_first = input.contract.routing_key == RoutingKey::kPlainHigherId;
  const auto best = all.begin() + static_cast<std::ptrdiff_t>(input.top_k);
  std::partial_sort(all.begin(), best, all.end(), [&](const Candidate& a, const Candidate& b) {
    if (a.key != b.key) return a.key > b.key;
    return higher_first ? a.expert > b.expert : a.expert < b.expert;
  });
  all.erase(best, all.end());
  return all;
}

float sum_of(std::vector<float> selected) {
  selected.resize(std::bit_ceil(selected.size()), 0.0f);
  std::vector<int> offsets;
  for (int offset = 1; offset < static_cast<int>(selected.size()); offset *= 2)
    offsets.push_back(offset);
  return butterfly_sum(selected, offsets);
}

/// What the selected scores are multiplied by.
float factor_of(const MoeRouteInput& input, const std::vector<float>& selected) {
  const bool here = input.contract.routed_scaling == RoutedScaling::kWeights;
  const float scaling = here ? static_cast<float>(input.scaling) : 1.0f;
  if (!input.renormalise) return scaling;
  return portable_div(scaling, nan_max(sum_of(selected), kRouteSumFloor));
}

void route_row(const MoeRouteInput& input, const MoeRouteOutput& output, std::int64_t row) {
  const std::vector<float> scores = scores_of(input, row);
  const std::vector<Candidate> experts = select(input, scores);
  std::vector<float> selected;
  for (const Candidate& candidate : experts)
    selected.push_back(scores[static_cast<std::size_t>(candidate.expert)]);
  const float factor = factor_of(input, selected);
  for (std::size_t slot = 0; slot < experts.size(); ++slot) {
    output.topk_ids(row, slot) = experts[slot].expert;
    output.topk_weights(row, slot) = canonical(selected[slot] * factor);
  }
  if (!input.shared) return;
  output.topk_ids(row, input.top_k) = static_cast<std::int32_t>(input.logits.dim(1));
  output.topk_weights(row, input.top_k) = static_cast<float>(input.shared_weight);
}

void check_sizes(const MoeRouteInput& input) {
  const std::int64_t experts = input.logits.dim(1);
  const bool packed = input.contract.routing_key == RoutingKey::kPacked;
  const std::int64_t limit = packed ? kRoutePackedExperts : kRoutePlainExperts;
  if (experts < 1 || experts > limit)
    refuse("moe_route: logits has {} experts, must have 1 to {} with {} keys", experts, limit,
           packed ? "packed" : "plain");
  if (input.top_k < 1 || input.top_k > kRouteMaxTopK || input.top_k > experts)
    refuse("moe_route: top_k is {}, must be 1 to {}", input.top_k,
           std::min(kRouteMaxTopK, experts));
  require_dims("moe_route: bias", input.bias, {experts});
}

}  // namespace

float routing_score(float logit, const Contract& contract) {
  return portable_rcp(1.0f + portable_exp2(exponent_of(logit, contract)));
}

std::int32_t routing_key(float score, float bias, std::int64_t expert, const Contract& contract) {
  // Adding +0 makes a sum of -0 the same key as +0, and changes no other number.
  const float biased = canonical(score + bias + 0.0f);
  const bool last = biased != biased && contract.nan_key == NanKey::kLast;
  const std::int32_t key = last ? std::numeric_limits<std::int32_t>::min() : ordered_bits(biased);
  if (contract.routing_key != RoutingKey::kPacked) return key;
  constexpr std::int32_t kExpertMask = (1 << kRouteExpertBits) - 1;
  return (key & ~kExpertMask) | (kExpertMask - static_cast<std::int32_t>(expert));
}

std::array<std::int64_t, 2> moe_route_shape(const MoeRouteInput& input) {
  check_sizes(input);
  const auto scaling = static_cast<float>(input.scaling);
  if (!(scaling > 0.0f) || !std::isfinite(scaling))
    refuse("moe_route: scaling is {}, must be above 0 and finite in binary32", input.scaling);
  if (input.shared && !std::isfinite(static_cast<float>(input.shared_weight)))
    refuse("moe_route: shared_weight is {}, must be finite in binary32", input.shared_weight);
  return {input.logits.dim(0), input.top_k + (input.shared ? 1 : 0)};
}

void moe_route(const MoeRouteInput& input, const MoeRouteOutput& output) {
  const auto dims = moe_route_shape(input);
  require_dims("moe_route: output topk_ids", output.topk_ids, dims);
  require_dims("moe_route: output topk_weights", output.topk_weights, dims);
  for (std::int64_t row = 0; row < dims[0]; ++row) route_row(input, output, row);
}

}  // namespace monoref
