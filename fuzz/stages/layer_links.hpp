// A sparse MoE layer as links of a chain: from (ar, residual) to the next layer's (ar, h_mid), on
// one tensor-parallel rank or on several together.
#pragma once

#include <string>
#include <vector>

#include "fuzz/chain.hpp"
#include "reference/rules/block_selection.hpp"

namespace monoref {

/// The sizes and constants that all layers of a case share; scalars of the case.
struct LayerShape {
  std::int64_t ranks = 1;
  std::int64_t hidden = 512;
  std::int64_t heads = 16;  ///< query heads of a rank, over one K/V head
  std::int64_t head_dim = 32;
  std::int64_t rotary_dim = 16;
  std::int64_t inter = 128;  ///< of a rank
  std::int64_t n_routed = 8;
  std::int64_t top_k = 4;
  bool mxfp4 = false;
  bool separate_shared = true;  ///< a shared expert of its own, in MXFP8; else the stack's last one
  double fused_weight = 1;      ///< of a shared expert in the stack
  double eps = 1e-6;
  double scaling = 2;
  double limit = 7;
  BlockSelection selection{.block_size = 128, .topk = 16, .init_blocks = 0, .local_blocks = 1};

  /// Rows of a rank's fused projection: every rank computes the index queries of all ranks.
  std::int64_t projection_rows() const { return (heads + 2 + ranks + 1) * head_dim; }
  /// Experts in a rank's stack.
  std::int64_t experts() const { return n_routed + (separate_shared ? 0 : 1); }
};
void add_layer_shape(Case& item, const LayerShape& shape);
LayerShape layer_shape_of(const Case& item);
std::int64_t layer_ranks(const Case& item);

/// Where one layer of one step finds and leaves things.
struct LayerLinks {
  LayerShape shape;
  KvLayout kv_layout = KvLayout::kInterleaved;
  std::int64_t rows = 0;
  std::int64_t q_len = 1;
  std::int64_t table_width = 0;  ///< columns of the block table
  std::int32_t tag = 1;          ///< of the first of two reductions; the second has the next one

  std::string link_prefix;   ///< of the links' names
  std::string layer_prefix;  ///< of weights and caches: then "r0." .., then the name
  std::string step_prefix;   ///< of position, slot_mapping and the row tables

  // [ranks, rows, hidden]; a rank reads and writes its own part.
  std::string ar_in = "ar", residual_in = "residual", ar_out = "ar_out", h_mid_out = "h_mid";

  /// Appends the layer's stages, rank by rank between the reductions. Activations are named "r0."
  /// .. and the name, and stand in the same buffers in every layer.
  void append_to(std::vector<ChainLink>& links) const;

 private:
  struct Rank;
  void append_before_attention(std::vector<ChainLink>& links, const Rank& rank) const;
  void append_attention(std::vector<ChainLink>& links, const Rank& rank) const;
  void append_routing(std::vector<ChainLink>& links, const Rank& rank) const;
  void append_experts(std::vector<ChainLink>& links, const Rank& rank) const;
  void append_reduction(std::vector<ChainLink>& links, const std::string& name,
                        const std::string& partials, const std::string& sum,
                        std::int32_t its_tag) const;
  ChainRead part_of(const std::string& name, const std::string& tensor, std::int64_t rank) const;
};

}  // namespace monoref
