// moe_route: the experts of a token, and their weights.
//
// Source of the rule: mono-decode section 7 (scores, keys, weights), section 10 (NaN), section 8
// (where a NaN key ranks).
//
//   score   rcp(1 + exp2(-logit * log2 e)), of the logit rounded to BF16 or, by option, as it is
//   key     score + bias as a signed integer of the same order
//   packed  the key's low 7 bits replaced by 127 - expert: keys that are equal above them tie, and
//           the lower expert comes first
//   plain   the whole key; ties go to the lower or, by option, the higher expert
//   weight  score * (scaling / max(sum of the selected scores, 1e-20)); the sum is a butterfly over
//           the slots. Without renormalisation: score * scaling.
//
// Work. A wave has a row, and a lane every kWave-th expert. Key and expert are one integer, no two
// are equal, and each slot goes to the largest of the wave, which is then taken out. Lane j keeps
// the j-th expert and recomputes its score, which is cheaper than passing it on.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/flat_grid.hpp"
#include "device/kernels/float_order.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/registers.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr std::int32_t kMaxTopk = 8;
constexpr std::int32_t kPackedExperts = 128;  ///< that 7 bits tell apart
constexpr std::int32_t kExpertBits = kPackedExperts - 1;
constexpr std::int32_t kMaxExperts = 1024;

/// Values of `keys`.
constexpr std::int32_t kKeysPacked = 0;
constexpr std::int32_t kKeysLowerId = 1;
constexpr std::int32_t kKeysHigherId = 2;

/// Values of `nan_key`.
constexpr std::int32_t kNanFirst = 1;

/// What the sum of scores counts as at least.
constexpr float kLeastSum = 1e-20F;

/// What all rows of a launch share.
struct Routing {
  const float* bias;
  std::int32_t experts;
  std::int32_t topk;
  bool bf16_logits;
  bool nan_first;
  bool renormalise;
  float scaling;
};

/// The sigmoid of a logit.
MONOREF_DEVICE float score_of(const Routing& routing, float logit) {
  if (routing.bf16_logits &&
      !MONOREF_FAULT(route_logit_not_rounded, "own", "the logit is not rounded to BF16"))
    logit = rounded_to_bf16(logit);
  const float exponent =
      MONOREF_FAULT(route_natural_base, "own", "2^-x for e^-x") ? -logit : -logit * kLog2E;
  return rcp(1.0F + exp2_portable(exponent));
}

/// The order of keys as that of integers. A NaN that ranks last stays above the lowest packed
/// integers, which stand for no expert.
MONOREF_DEVICE std::int32_t sort_key(const Routing& routing, float key) {
  if (MONOREF_FAULT(route_key_plain_bits, "own", "keys of negative numbers run backwards"))
    return simt::bit_cast<std::int32_t>(canonical(key));
  if (key != key) {
    return routing.nan_first !=
                   MONOREF_FAULT(route_nan_swapped, "M04", "NaN keys rank at the other end")
               ? INT32_MAX
               : INT32_MIN + kPackedExperts;
  }
  return key == 0.0F ? 0 : rank_of(key);
}

/// Sort key and expert in 32 bits, of which the expert has the lowest 7.
struct PackedKeys {
  using Key = std::int32_t;
  static constexpr Key kNobody = INT32_MIN;

  MONOREF_MEMBER Key key_of(std::int32_t sort_key, std::int32_t expert) const {
    const std::int32_t low =
        MONOREF_FAULT(route_tie_higher_expert, "own", "ties go to the other expert")
            ? expert
            : kExpertBits - expert;
    return (sort_key & ~kExpertBits) | low;
  }
  MONOREF_MEMBER std::int32_t expert_of(Key key) const {
    const std::int32_t low = key & kExpertBits;
    return MONOREF_FAULT_AT(route_tie_higher_expert) ? low : kExpertBits - low;
  }
};

/// The whole sort key, and behind it the expert in the order of ties.
struct PlainKeys {
  using Key = std::int64_t;
  static constexpr Key kNobody = INT64_MIN;
  bool higher_id_first;

  MONOREF_MEMBER Key key_of(std::int32_t sort_key, std::int32_t expert) const {
    const std::int32_t low = higher_first() ? expert : kMaxExperts - 1 - expert;
    return std::int64_t{sort_key} * kAboveExpert + low;
  }
  MONOREF_MEMBER std::int32_t expert_of(Key key) const {
    const auto low = static_cast<std::int32_t>(key & (kMaxExperts - 1));
    return higher_first() ? low : kMaxExperts - 1 - low;
  }

 private:
  static constexpr std::int64_t kAboveExpert = std::int64_t{1} << 32;

  MONOREF_MEMBER bool higher_first() const {
    return higher_id_first != MONOREF_FAULT_AT(route_tie_higher_expert);
  }
};

/// The largest of the wave's keys.
template <class Key>
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE Key largest_of_wave(Key key) {
  for (int mask = simt::kWave / 2; mask > 0; mask /= 2) {
    const Key other = simt::shuffle_xor(key, mask);
    key = other > key ? other : key;
  }
  return key;
}

/// The sort key of an expert of a row.
MONOREF_DEVICE std::int32_t key_of_expert(const Routing& routing, const float* logits,
                                          std::int32_t expert) {
  const float logit = logits[expert], bias = routing.bias[expert];
  if (MONOREF_FAULT(route_bias_before_sigmoid, "own", "the bias is added to the logit"))
    return sort_key(routing, score_of(routing, logit + bias));
  if (MONOREF_FAULT(route_bias_ignored, "own", "experts are ranked by their scores"))
    return sort_key(routing, score_of(routing, logit));
  return sort_key(routing, score_of(routing, logit) + bias);
}

/// Selects a row's experts: lane j < topk gets the one in slot j. `experts_of_lane` lanes' worth of
/// experts are at least the row's.
template <int experts_of_lane, class Keys>
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE std::int32_t select_experts(const Routing& routing,
                                                                   const Keys& order,
                                                                   const float* logits) {
  using Key = typename Keys::Key;
  Key keys[experts_of_lane];
  std::int32_t last = routing.experts - 1;
  compute_here(last);  // else which experts exist occupies registers from row to row
  MONOREF_UNROLL
  for (int i = 0; i < experts_of_lane; ++i) {
    const std::int32_t expert = simt::lane() + i * simt::kWave;
    const std::int32_t key = key_of_expert(routing, logits, expert < last ? expert : last);
    keys[i] = expert <= last ? order.key_of(key, expert) : Keys::kNobody;
    if (MONOREF_FAULT(route_nan_is_nobody, "M04", "an expert with a NaN key cannot be selected") &&
        key == INT32_MIN + kPackedExperts)
      keys[i] = Keys::kNobody;
  }
  std::int32_t selected = 0;
  for (int slot = 0; slot < routing.topk; ++slot) {
    Key best = keys[0];
    MONOREF_UNROLL
    for (int i = 1; i < experts_of_lane; ++i) best = keys[i] > best ? keys[i] : best;
    best = largest_of_wave(best);
    MONOREF_UNROLL
    for (int i = 0; i < experts_of_lane; ++i)
      if (keys[i] == best) keys[i] = Keys::kNobody;
    if (simt::lane() == slot) selected = order.expert_of(best);
  }
  return selected;
}

/// Selects by the kind of key that the launch asks for.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE std::int32_t select_of_row(const Routing& routing,
                                                                  std::int32_t keys,
                                                                  const float* logits) {
  constexpr int kFew = kPackedExperts / simt::kWave, kMany = kMaxExperts / simt::kWave;
  if (keys == kKeysPacked &&
      !MONOREF_FAULT(route_low_bits_kept, "own", "near-equal keys do not tie"))
    return select_experts<kFew>(routing, PackedKeys{}, logits);
  const PlainKeys plain{keys == kKeysHigherId};
  if (routing.experts <= kPackedExperts) return select_experts<kFew>(routing, plain, logits);
  if (routing.experts <= 2 * kPackedExperts)
    return select_experts<2 * kFew>(routing, plain, logits);
  return select_experts<kMany>(routing, plain, logits);
}

/// The factor of a row's selected scores. Lanes from topk on contribute zero to the sum.
/// The first kMaxTopk lanes get the factor.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE float factor_of(const Routing& routing, const float* logits,
                                                       float score, float shared_weight) {
  float sum = score;
  for (int mask = 1; mask < kMaxTopk; mask *= 2) sum += simt::shuffle_xor(sum, mask);
  if (MONOREF_FAULT(route_sum_in_order, "own", "selected scores are added one after the other")) {
    sum = 0.0F;
    for (int slot = 0; slot < routing.topk; ++slot) sum += simt::shuffle(score, slot);
  }
  if (MONOREF_FAULT(route_renormalise_all, "own", "divided by the sum over all experts")) {
    sum = 0.0F;
    for (std::int32_t i = 0; i < routing.experts; ++i) sum += score_of(routing, logits[i]);
  }
  if (MONOREF_FAULT(route_renormalise_with_shared, "own", "the shared expert counts in the sum"))
    sum += shared_weight;
  float scaling = routing.scaling;
  if (MONOREF_FAULT(route_factor_missing, "M12", "the factor is left out")) scaling = 1.0F;
  if (MONOREF_FAULT(route_factor_twice, "M11", "the factor enters twice")) scaling *= scaling;
  if (!routing.renormalise ||
      MONOREF_FAULT(route_renormalise_ignored, "M07", "weights are never divided by their sum"))
    return scaling;
  if (MONOREF_FAULT(route_factor_unless_renormalised, "M12",
                    "the factor enters only without renormalisation"))
    scaling = 1.0F;
  return scaling / (MONOREF_FAULT(route_floor_missing, "M01", "the sum of scores has no floor")
                        ? sum
                        : max_or_nan(sum, kLeastSum));
}

/// The score that an expert's weight is made of.
MONOREF_DEVICE float weighing_score(const Routing& routing, const float* logits,
                                    std::int32_t expert) {
  const float score = score_of(routing, logits[expert]);
  if (MONOREF_FAULT(route_weights_biased, "M09", "weights are of the biased scores"))
    return score + routing.bias[expert];
  if (MONOREF_FAULT(route_score_from_key, "M02", "the score is the key without the bias again"))
    return (score + routing.bias[expert]) - routing.bias[expert];
  return score;
}

}  // namespace

// Inputs   logits f32 [rows, n_routed], rows logits_row_stride elements apart
//          bias f32 [n_routed], dense
// Outputs  ids int32 and weights f32 [rows, top_k + shared], rows ids_row_stride and
//          weights_row_stride elements apart: the experts in descending order of their keys, then,
//          if `shared`, expert n_routed with shared_weight. The ids of a row are distinct and in
//          range whatever the logits and the bias are. A NaN among the selected scores makes a
//          renormalised row's routed weights NaN.
// Sizes    top_k 1 .. 8, at most n_routed; n_routed 1 .. 128 with packed keys, 1 .. 1024 with plain
//          ones
// Options  keys        0: packed; 1: plain, ties to the lower expert; 2: plain, to the higher one
//          nan_key     0: a NaN key ranks below -Inf; 1: above +Inf; among themselves NaN keys tie
//          logits_bf16 1: logits are rounded to BF16 first; 0: not
//          renormalise 1: weights are divided by their sum; 0: not
//          shared      1: the shared expert has the last slot; 0: there is none
//          scaling multiplies the routed weights, once, in either case.
// Launch   any grid in x; blocks of whole waves, in one dimension. A wave has a row at a time, so
//          ceil(rows / waves of a block) blocks have one row a wave. No shared memory.
// Misuse   Other sizes, keys and blocks write nothing.
MONOREF_KERNEL(256, monoref_moe_route)(const float* logits, std::int64_t logits_row_stride,
                                       const float* bias, std::int32_t* ids,
                                       std::int64_t ids_row_stride, float* weights,
                                       std::int64_t weights_row_stride, std::int64_t rows,
                                       std::int32_t n_routed, std::int32_t top_k, float scaling,
                                       std::int32_t renormalise, std::int32_t shared,
                                       float shared_weight, std::int32_t keys, std::int32_t nan_key,
                                       std::int32_t logits_bf16) {
  const std::int32_t limit = keys == kKeysPacked ? kPackedExperts : kMaxExperts;
  if (keys != kKeysPacked && keys != kKeysLowerId && keys != kKeysHigherId) return;
  if (n_routed > limit) return;
  if (top_k < 1 || top_k > kMaxTopk || top_k > n_routed) return;
  if (blockDim.x % simt::kWave != 0) return;
  const Routing routing{
      bias, n_routed, top_k, logits_bf16 != 0, nan_key == kNanFirst, renormalise != 0, scaling};
  const int lane = simt::lane();
  for (std::int64_t row = wave_of_grid(); row < rows; row += waves_of_grid()) {
    const float* of_row = logits + row * logits_row_stride;
    std::int32_t expert = select_of_row(routing, keys, of_row);
    const bool routed = lane < top_k;
    const float score = routed ? weighing_score(routing, of_row, expert) : 0.0F;
    const float factor = factor_of(routing, of_row, score, shared_weight);
    if (MONOREF_FAULT(route_nan_row_out_of_range, "M04", "a row of NaN has ids out of range") &&
        score != score)
      expert = 1 << 30;
    if (routed) {
      ids[row * ids_row_stride + lane] = expert;
      weights[row * weights_row_stride + lane] = canonical(score * factor);
    } else if (lane == top_k && shared != 0) {
      ids[row * ids_row_stride + lane] =
          MONOREF_FAULT(route_shared_id_wrong, "M14", "the shared expert has another id")
              ? n_routed - 1
              : n_routed;
      float weight = shared_weight;
      if (MONOREF_FAULT(route_shared_lost, "M14", "the shared expert has no slot")) weight = 0.0F;
      if (MONOREF_FAULT(route_factor_on_shared, "M11", "the shared expert is scaled too"))
        weight *= scaling;
      weights[row * weights_row_stride + lane] = canonical(weight);
    }
  }
}
MONOREF_REGISTER(monoref_moe_route);

}  // namespace monoref::kernels
