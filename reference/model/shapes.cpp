#include "reference/model/shapes.hpp"

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "reference/core/error.hpp"

namespace monoref {
namespace {

/// Far above every model, and low enough that products of three numbers of a shape fit int64.
constexpr std::int64_t kMostOfAnything = std::int64_t{1} << 20;
/// Elements that share one E8M0 scale.
constexpr std::int64_t kScaleBlock = 32;

void require_range(std::string_view name, std::int64_t value, std::int64_t least,
                   std::int64_t most) {
  if (value < least || value > most)
    refuse("shape: {} is {}, must be {} to {}", name, value, least, most);
}

void require_multiple(std::string_view name, std::int64_t value, std::int64_t factor) {
  if (value % factor != 0) refuse("shape: {} is {}, must be a multiple of {}", name, value, factor);
}

void require_positive(std::string_view name, double value) {
  if (!(value > 0.0)) refuse("shape: {} is {}, must be above 0", name, value);
}

void require_counts(const ModelShape& shape) {
  const std::array<std::pair<std::string_view, std::int64_t>, 19> counts{{
      {"layers", shape.layers},
      {"hidden", shape.hidden},
      {"head_dim", shape.head_dim},
      {"local_q_heads", shape.local_q_heads},
      {"local_kv_heads", shape.local_kv_heads},
      {"index_q_heads", shape.index_q_heads},
      {"sparse_block", shape.sparse_block},
      {"index_cp_from_blocks", shape.index_cp_from_blocks},
      {"page_size", shape.page_size},
      {"split_keys", shape.split_keys},
      {"n_routed", shape.n_routed},
      {"top_k", shape.top_k},
      {"inter", shape.inter},
      {"tp", shape.tp},
      {"max_tokens", shape.max_tokens},
      {"max_context", shape.max_context},
      {"layer_slots", shape.layer_slots},
      {"grid_blocks", shape.grid_blocks},
      {"block_threads", shape.block_threads},
  }};
  for (const auto& [name, value] : counts) require_range(name, value, 1, kMostOfAnything);
}

void require_attention(const ModelShape& shape) {
  require_range("rotary_dim", shape.rotary_dim, 0, shape.head_dim);
  require_multiple("rotary_dim", shape.rotary_dim, 2);
  require_multiple("local_q_heads", shape.local_q_heads, shape.local_kv_heads);
  if (shape.index_q_heads != 1 && shape.index_q_heads != shape.tp)
    refuse("shape: index_q_heads is {}, must be 1 or tp {}", shape.index_q_heads, shape.tp);
  require_range("topk_blocks", shape.topk_blocks, 1, 64);
  require_range("init_blocks", shape.init_blocks, 0, shape.topk_blocks);
  require_range("local_blocks", shape.local_blocks, 0, shape.topk_blocks - shape.init_blocks);
  require_range("page16_sides", shape.page16_sides, 1, 2);
  require_multiple("sparse_block", shape.sparse_block, shape.page_size);
  require_multiple("split_keys", shape.split_keys, shape.sparse_block);
  require_multiple("topk_blocks * sparse_block", shape.topk_blocks * shape.sparse_block,
                   shape.split_keys);
  require_multiple("max_context", shape.max_context, shape.sparse_block);
}

void require_experts(const ModelShape& shape) {
  require_range("dense_layers", shape.dense_layers, 0, shape.layers - 1);
  require_range("top_k", shape.top_k, 1, shape.n_routed);
  require_range("shared_expert", shape.shared_expert, shape.n_routed, shape.n_routed);
  require_multiple("hidden", shape.hidden, kScaleBlock);
  require_multiple("inter", shape.inter, kScaleBlock);
}

}  // namespace

double ModelShape::softmax_scale() const {
  return std::pow(static_cast<double>(head_dim), -0.5);
}

void ModelShape::validate() const {
  require_counts(*this);
  require_attention(*this);
  require_experts(*this);
  if (wave != 32 && wave != 64) refuse("shape: wave is {}, must be 32 or 64", wave);
  require_multiple("block_threads", block_threads, wave);
  require_positive("rms_eps", rms_eps);
  require_positive("rope_theta", rope_theta);
  require_positive("routed_scaling", routed_scaling);
  require_positive("swiglu_alpha", swiglu_alpha);
  require_positive("swiglu_limit", swiglu_limit);
  if (!std::isfinite(swiglu_beta)) refuse("shape: swiglu_beta is {}, must be finite", swiglu_beta);
}

}  // namespace monoref
