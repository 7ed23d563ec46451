// What the generators and properties of the experts' stages share: who is routed where, weights in
// their layouts, and variants of a case.
#pragma once

#include <vector>

#include "fuzz/params.hpp"
#include "fuzz/random.hpp"
#include "fuzz/stage.hpp"
#include "reference/rules/expert_weights.hpp"

namespace monoref {

/// The dimensions of a step's routing: rows, slots, experts and how they are spread.
std::vector<Dimension> routing_dimensions();
/// The dimensions of the experts' weights and of MXFP8 activations.
std::vector<Dimension> expert_weight_dimensions();

/// The sizes of a step's routing.
struct Routing {
  std::int64_t rows;
  std::int64_t top_k;
  std::int64_t n_routed;
  bool has_shared;
  bool is_separate;

  explicit Routing(const Params& params);
  std::int64_t slots() const { return top_k + (has_shared ? 1 : 0); }
  /// Experts in the stack.
  std::int64_t experts() const { return n_routed + (has_shared && !is_separate ? 1 : 0); }
};

/// topk_ids [rows, slots]: routed ids in any order, the shared one last. Under
/// out_of_range_slot=drop padded rows hold garbage, and a live row may have a slot of it.
Tensor make_expert_ids(const Params& params, const Routing& routing, const Contract& contract,
                       CounterRandom& random);

/// Adds the weights of [rows, k] a expert to a case: `weight` and `scale` ("w13" and "s13"), and
/// "shared_" and the same for a separate shared expert. Experts that no row is routed to hold NaN
/// or have no storage. The scalars "weights" and "n_routed" go with them.
void add_expert_weights(Case& item, const Params& params, const Routing& routing,
                        std::string_view weight, std::string_view scale, std::int64_t rows,
                        std::int64_t k, std::uint64_t seed);

/// A tensor [.., width] of E4M3FN activation codes, rows `gap` further apart, and its dense scales.
Tensor make_activation_codes(const Params& params, std::vector<std::int64_t> dims, std::int64_t gap,
                             CounterRandom& random);
Tensor make_activation_scales(const Params& params, std::vector<std::int64_t> dims,
                              CounterRandom& random);

/// Lists what `add_expert_weights` adds among the inputs of a stage.
void add_expert_inputs(Stage& stage, std::string_view weight, std::string_view scale);

/// The weights of a case, as the reference takes them.
ExpertWeights expert_weights_of(const Case& item, const std::string& weight,
                                const std::string& scale);

/// A variant with other contents in all stored experts that no row is routed to; nothing where
/// there are none.
std::optional<Case> with_other_unrouted_experts(const Case& item, const std::string& weight,
                                                const std::string& scale);
/// A variant with other garbage in the slots that name no expert; nothing where there are none.
std::optional<Case> with_other_garbage_ids(const Case& item, const ExpertWeights& weights);
/// A variant with one row alone.
Case with_one_row(const Case& item, std::initializer_list<std::string_view> inputs,
                  std::int64_t row);

/// Adds to every scale byte of a tensor that is no padding; nothing if one of them would leave
/// `low` .. `high`. Weights are those of a [rows, k] stack in shuffle_scale order.
std::optional<Tensor> with_moved_scales(const Tensor& scale, int by, int low, int high);

/// Whether every element of `twice` is twice that of `once`, where neither comes near the ends of
/// BF16; else the place of the first that is not.
std::optional<std::int64_t> first_not_doubled(const Tensor& once, const Tensor& twice);

}  // namespace monoref
