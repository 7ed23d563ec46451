// The stages from index queries to the output projection as links of a chain.
#pragma once

#include <string>
#include <vector>

#include "fuzz/chain.hpp"
#include "reference/block_selection.hpp"

namespace monoref {

/// What the links need to know beyond the tensors' own shapes.
struct AttentionLinks {
  std::int64_t rows = 0;
  std::int64_t q_len = 1;
  std::int64_t heads = 0;  ///< query heads of the rank, over one K/V head
  std::int64_t head_dim = 0;
  double sm_scale = 1;
  BlockSelection selection;
  KvLayout kv_layout = KvLayout::kInterleaved;
  /// Stands before the name of every link and of every tensor of the rank's own.
  std::string rank;
  /// The cache that holds K, and V too where the layout is interleaved.
  std::string k_cache = "k_cache";
  /// How the stage sees the rank's index queries: [rows, 1, head_dim].
  ChainRead index_q{"index_q", "index_q"};
  ChainWrite out{"out", "out"};

  /// Appends index_score, index_select, fp8_attention_partition, attention_merge, row_quant and
  /// o_projection. They read block_table and seq_lens, which all ranks share, and of the rank's own
  /// q, index_cache, the K/V caches, score, weight and w_scale.
  void append_to(std::vector<ChainLink>& links) const;
};

}  // namespace monoref
