// Weights, caches and step inputs of sparse layers, drawn so that every number on the way stays
// within its format.
#pragma once

#include <string>
#include <vector>

#include "fuzz/params.hpp"
#include "fuzz/stages/attention_content.hpp"
#include "fuzz/stages/layer_links.hpp"

namespace monoref {

/// The dimensions of a layer's sizes and contents, and the shape they mean.
std::vector<Dimension> layer_dimensions();
LayerShape layer_shape(const Params& params);

/// The inputs and scalars of a case of such layers, for its stage's lists. `layer` stands before
/// weights and caches, `step` before what every step has of its own ("l#.", "s#.", or nothing).
void list_layer_inputs(Stage& stage, const std::string& layer);
void list_step_inputs(Stage& stage, const std::string& step);

/// One step's requests: which of the case's requests they are, their contexts, and rows of padding
/// behind them, which are requests without tokens.
struct LayerStep {
  std::int64_t q_len = 1;
  std::vector<std::int32_t> requests;  ///< indices into the case's requests, -1: padding
  std::vector<std::int32_t> lengths;   ///< contexts, this step's tokens included

  std::int64_t rows() const { return static_cast<std::int64_t>(requests.size()) * q_len; }
};

/// Draws the contents of a case, each tensor from a stream of its own name.
class LayerContent {
 public:
  LayerContent(Case& item, const LayerShape& shape, const Params& params, std::uint64_t seed)
      : item_(item), shape_(shape), params_(params), seed_(seed) {}

  /// The weights of a layer under `prefix`, and its caches on every rank.
  void add_layer(const std::string& prefix, const ReachedBlocks& blocks);
  /// position and slot_mapping of a step's rows, its request tables, and `hidden_states` and
  /// `residual` [ranks, rows, hidden], equal on every rank. Nothing of the names is prefixed by the
  /// rank.
  void add_step(const std::string& prefix, const LayerStep& step, const ReachedBlocks& blocks,
                const std::string& hidden_states, const std::string& residual);
  /// What all layers and steps share: the rotary table up to `positions`, the flags of the
  /// reductions, all just before `first_tag`, and the scores of up to `rows` rows, which nobody may
  /// read where nobody wrote.
  void add_common(std::int64_t positions, std::int64_t rows, std::int64_t width,
                  std::int32_t first_tag);
  void add_gamma(const std::string& name, std::int64_t size);
  /// BF16 [ranks, rows, hidden], equal on every rank.
  void add_activations(const std::string& name, std::int64_t rows) {
    add(name, activations(name, rows));
  }

 private:
  CounterRandom stream(const std::string& name) const { return {seed_, name}; }
  void add(const std::string& name, Tensor tensor);
  void add_fp8_weight(const std::string& name, const std::string& scale, std::int64_t rows,
                      std::int64_t columns);
  void add_experts(const std::string& prefix, const std::string& weight, const std::string& scale,
                   std::int64_t rows, std::int64_t columns);
  void add_stack(const std::string& weight, const std::string& scale, std::int64_t experts,
                 std::int64_t rows, std::int64_t columns, bool mxfp4);
  void add_routing(const std::string& prefix);
  bool is_live(std::int64_t expert) const;
  Tensor activations(const std::string& name, std::int64_t rows) const;

  Case& item_;
  const LayerShape& shape_;
  const Params& params_;
  std::uint64_t seed_;
};

}  // namespace monoref
