// What the generators and properties of the experts' stages share: who is routed where, weights in
// their layouts, and variants of a case.
#pragma once

#include <vector>

#include "fuzz/laws/ignores.hpp"
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

/// Laws' regions: all stored experts that no row is routed to, and slots that name no expert.
std::vector<laws::Ignored> unrouted_experts(std::string_view weight, std::string_view scale);
std::vector<laws::Ignored> garbage_ids(std::string_view weight, std::string_view scale);

}  // namespace monoref
