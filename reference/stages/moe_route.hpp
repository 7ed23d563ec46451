// Stage moe_route: which experts a token goes to, and with what weight.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

/// Low bits of a packed key that hold the expert, and the limits of the stage. Packed keys have
/// room for 128 experts.
inline constexpr int kRouteExpertBits = 7;
inline constexpr std::int64_t kRoutePackedExperts = std::int64_t{1} << kRouteExpertBits;
inline constexpr std::int64_t kRoutePlainExperts = 1024;
inline constexpr std::int64_t kRouteMaxTopK = 8;
/// The least sum that weights are divided by, so that scores of 0 alone give weights of 0 and not
/// NaN (bug case M01).
inline constexpr float kRouteSumFloor = 1e-20f;

struct MoeRouteInput {
  View<const float, 2> logits;  ///< [rows, n_routed] binary32
  View<const float, 1> bias;    ///< [n_routed] binary32, of the selection alone
  std::int64_t top_k = 4;       ///< routed experts a token
  double scaling = 1;           ///< factor of the routed experts, rounded to binary32 once
  bool renormalise = true;      ///< divide by the sum of the selected scores
  bool shared = false;          ///< a shared expert takes one more slot
  double shared_weight = 1;     ///< its weight, rounded to binary32 once; the factor is not for it
  Contract contract{};
};

struct MoeRouteOutput {
  View<std::int32_t, 2> topk_ids;  ///< [rows, top_k + shared], routed experts in descending keys
  View<float, 2> topk_weights;     ///< [rows, top_k + shared] binary32
};

/// The sigmoid of a logit in binary32: rcp(1 + exp2(-x * log2(e))), where x is the logit rounded to
/// BF16 if the contract's gate weights are BF16. 0 for -Inf, 1 for +Inf, NaN for NaN.
float routing_score(float logit, const Contract& contract);

/// What an expert is ranked by: the larger key first, as signed integers. The ordered bits of score
/// + bias; a NaN as INT_MIN, below -Inf, or above +Inf, as the contract says (bug cases M04, M05).
/// A packed key has its low 7 bits replaced by 127 - expert.
std::int32_t routing_key(float score, float bias, std::int64_t expert, const Contract& contract);

/// The dims [rows, top_k + shared] of both outputs.
///
/// Refuses: n_routed outside 1 to 128 with packed keys or 1 to 1024 with plain ones; top_k outside
/// 1 to 8, or above n_routed; a bias of another length; a scaling that is not above 0 and finite in
/// binary32; and a shared weight that is not finite there.
std::array<std::int64_t, 2> moe_route_shape(const MoeRouteInput& input);

/// Per row, in binary32 (mono-decode sections 7, 8 and 10; upstream-semantics section 7.2):
///
///   score[e]  = sigmoid of the logit, see routing_score;  key[e] from score[e] + bias[e]
///   selected  = the top_k experts of the largest keys, in that order. Packed keys never tie:
///               experts whose keys differ in their low 7 bits alone rank by the lower id. Plain
///               keys rank whole, and equal ones by the contract's id rule; so do NaNs.
///   sum       = the selected scores s0, s1, ..: lanes of a power of two, padded with zeros, by the
///               butterfly 1, 2, 4, which is (s0 + s1) + (s2 + s3) for four
///   weight[e] = score[e] * (scaling / max(sum, 1e-20))        with renormalisation
///   weight[e] = score[e] * scaling                            without
///
/// The bias takes part in the selection alone; weights are of the plain scores (bug cases M02,
/// M09). Where the contract applies the routed experts' factor to their output, `scaling` counts as
/// 1 here: the factor enters exactly once (bug cases M11, M12). The maximum lets a NaN sum through,
/// so a selected NaN score makes all routed weights of its row NaN; the ids stay distinct and valid
/// whatever logits and bias hold (bug cases M04, M05).
///
/// The shared expert, if any, has the last slot, the id n_routed and its own weight (bug case M14).
///
/// Refuses what the shape function refuses and outputs of other dims, before it writes anything.
void moe_route(const MoeRouteInput& input, const MoeRouteOutput& output);

}  // namespace monoref
