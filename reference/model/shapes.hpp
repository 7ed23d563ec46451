// The numbers of the model on one tensor-parallel rank. Every one is a parameter; the defaults are
// MiniMax-M3's (mono-decode section 1).
#pragma once

#include <cstdint>

namespace monoref {

struct ModelShape {
  // Layers and widths
  std::int64_t layers = 60;
  std::int64_t dense_layers = 3;  ///< leading layers without MoE
  std::int64_t hidden = 6144;
  std::int64_t head_dim = 128;
  std::int64_t rotary_dim = 64;     ///< rotated dims of a head, the first ones
  std::int64_t local_q_heads = 16;  ///< of this rank
  std::int64_t local_kv_heads = 1;  ///< of this rank
  std::int64_t index_q_heads = 4;   ///< 1, or all `tp` where the rank scores blocks by itself

  // Sparse selection
  std::int64_t sparse_block = 128;          ///< keys a selectable block
  std::int64_t topk_blocks = 16;            ///< selected blocks a row
  std::int64_t init_blocks = 0;             ///< leading blocks always selected
  std::int64_t local_blocks = 1;            ///< trailing blocks always selected
  std::int64_t index_cp_from_blocks = 288;  ///< beyond it, ranks share the block scores

  // Caches and attention
  std::int64_t page_size = 16;    ///< keys a page of the K/V caches
  std::int64_t page16_sides = 2;  ///< 2: K and V interleaved in a block; 1: dense planes
  std::int64_t split_keys = 256;  ///< keys an attention partition

  // Experts
  std::int64_t n_routed = 128;
  std::int64_t top_k = 4;            ///< routed experts a token
  std::int64_t shared_expert = 128;  ///< id of the shared expert, the one after the routed ones
  std::int64_t inter = 768;          ///< intermediate width, of this rank

  // Step and machine
  std::int64_t tp = 4;
  std::int64_t max_tokens = 16;        ///< rows a step
  std::int64_t max_context = 1 << 20;  ///< keys
  std::int64_t layer_slots = 128;
  std::int64_t grid_blocks = 256;  ///< one a compute unit
  std::int64_t block_threads = 512;
  std::int64_t wave = 64;

  // Constants of the arithmetic
  double rms_eps = 1e-6;
  double rope_theta = 5e6;
  double routed_scaling = 2.0;
  double swiglu_alpha = 1.702;
  double swiglu_limit = 7.0;  ///< infinite: no clamp
  double swiglu_beta = 1.0;

  bool operator==(const ModelShape&) const = default;

  std::int64_t pages_per_block() const { return sparse_block / page_size; }
  std::int64_t block_page_stride() const { return pages_per_block() * page16_sides; }
  /// Blocks of the longest context: the widest block table.
  std::int64_t max_blocks() const { return max_context / sparse_block; }
  std::int64_t partitions() const { return topk_blocks * sparse_block / split_keys; }
  /// Rows of the fused projection: q, k, v, index q, index k.
  std::int64_t projection_rows() const {
    return (local_q_heads + 2 * local_kv_heads + index_q_heads + 1) * head_dim;
  }
  /// head_dim^-0.5.
  double softmax_scale() const;

  /// Refuses numbers that contradict each other or that no stage could work with. What single
  /// kernels further ask of their shapes is theirs to refuse.
  void validate() const;
};

}  // namespace monoref
