// The stages from index queries to the output projection as links of a chain.
#pragma once

#include <string>
#include <vector>

#include "fuzz/chain.hpp"
#include "reference/rules/block_selection.hpp"

namespace monoref {

/// What the links need to know beyond the tensors' own shapes.
struct AttentionLinks {
  std::int64_t rows = 0;
  std::int64_t table_width = 0;  ///< columns of the block table
  std::int64_t q_len = 1;
  std::int64_t heads = 0;  ///< query heads of the rank, over one K/V head
  std::int64_t head_dim = 0;
  double sm_scale = 1;
  BlockSelection selection;
  KvLayout kv_layout = KvLayout::kInterleaved;
  std::string link_prefix;  ///< of the links' names
  std::string prefix;       ///< of activations, which the next layer overwrites
  /// Of caches and weights.
  std::string layer_prefix;
  /// The cache that holds K, and V too where the layout is interleaved.
  std::string k_cache = "k_cache";
  std::string weight = "weight";
  std::string w_scale = "w_scale";
  /// The step's tables, one row a token.
  std::string block_table = "block_table";
  std::string seq_lens = "seq_lens";
  /// How the stage sees the rank's index queries: [rows, 1, head_dim].
  ChainRead index_q{"index_q", "index_q"};
  ChainWrite out{"out", "out"};

  /// Appends index_score, index_select, fp8_attention_partition, attention_merge, row_quant and
  /// o_projection. They read block_table and seq_lens; under `prefix` q and score; and under
  /// `layer_prefix` index_cache, the K/V caches, and the weight.
  void append_to(std::vector<ChainLink>& links) const;
};

}  // namespace monoref
