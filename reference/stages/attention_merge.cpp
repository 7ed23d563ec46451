#include "reference/stages/attention_merge.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "reference/arithmetic/minmax.hpp"
#include "reference/arithmetic/portable.hpp"
#include "reference/arithmetic/reduce.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/attention_tile.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

/// One row and head of the input.
struct Partials {
  const AttentionMergeInput& input;
  std::int64_t row;
  std::int64_t head;

  std::size_t count() const { return static_cast<std::size_t>(input.m.dim(1)); }
  float m(std::size_t i) const { return input.m(row, i, head); }

  bool is_skipped(std::size_t i) const {
    return input.contract.empty_partial == EmptyPartial::kSkipped &&
           m(i) <= std::numeric_limits<float>::lowest();
  }

  float unnormalised(std::size_t i, float largest) const {
    if (is_skipped(i)) return 0.0f;
    const float difference = m(i) - largest;
    switch (input.contract.merge_weights) {
      case MergeWeights::kLseBase2:
        return portable_exp2(difference);
      case MergeWeights::kLseBaseE:
        return portable_exp2(difference * kLog2E);
      default:
        return input.l(row, i, head) * portable_exp2(difference * kLog2E);
    }
  }

  /// Weights that add up to one, up to rounding.
  std::vector<float> weights() const {
    float largest = m(0);
    for (std::size_t i = 1; i < count(); ++i) largest = nan_max(largest, m(i));
    std::vector<float> weights(count());
    for (std::size_t i = 0; i < count(); ++i) weights[i] = unnormalised(i, largest);
    const float sum = sum_in_order(weights, SumStart::kFirstTerm);
    for (float& weight : weights) weight = portable_div(weight, sum > 0 ? sum : 1.0f);
    return weights;
  }

  std::uint16_t merged(const std::vector<float>& weights, std::int64_t d) const {
    const bool fused = input.contract.merge_sum == MergeSum::kFused;
    float sum = 0.0f;
    for (std::size_t i = 0; i < count(); ++i) {
      if (is_skipped(i)) continue;
      const float o = float_from_bf16(input.o(row, i, head, d));
      sum = fused ? std::fma(weights[i], o, sum) : sum + weights[i] * o;
    }
    return bf16_from_float(sum);
  }
};

}  // namespace

std::array<std::int64_t, 3> attention_merge_shape(const AttentionMergeInput& input) {
  const std::int64_t rows = input.o.dim(0);
  const std::int64_t partitions = input.o.dim(1);
  const std::int64_t heads = input.o.dim(2);
  if (partitions < 1)
    refuse("attention_merge: o has {} partitions, must have at least 1", partitions);
  require_dims("attention_merge: m", input.m, {rows, partitions, heads});
  if (input.contract.merge_weights == MergeWeights::kMaxAndSum)
    require_dims("attention_merge: l", input.l, {rows, partitions, heads});
  return {rows, heads, input.o.dim(3)};
}

void attention_merge(const AttentionMergeInput& input, const AttentionMergeOutput& output) {
  const auto dims = attention_merge_shape(input);
  require_dims("attention_merge: output out", output.out, dims);
  for (std::int64_t row = 0; row < dims[0]; ++row)
    for (std::int64_t head = 0; head < dims[1]; ++head) {
      const Partials partials{input, row, head};
      const std::vector<float> weights = partials.weights();
      for (std::int64_t d = 0; d < dims[2]; ++d)
        output.out(row, head, d) = partials.merged(weights, d);
    }
}

}  // namespace monoref
