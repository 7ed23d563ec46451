#include "reference/model/build_admission.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "reference/core/error.hpp"
#include "reference/stages/page16_rebase.hpp"

namespace monoref {
namespace {

using detail::Fault;
using detail::fault_if;

/// The number of dense layers, and what is wrong with the mix of layers, if anything.
struct LayerMix {
  std::int64_t dense = 0;
  Fault fault;
};

LayerMix layer_mix(std::span<const LayerDescription> layers) {
  const auto first_moe =
      std::find_if(layers.begin(), layers.end(), [](const auto& layer) { return layer.is_moe; });
  const std::int64_t dense = first_moe - layers.begin();
  if (first_moe == layers.end())
    return {dense,
            fmt::format("build: layers hold {} dense and 0 MoE, dense layers must precede the"
                        " MoE layers, at least 1",
                        dense)};
  for (auto layer = first_moe; layer != layers.end(); ++layer) {
    if (!layer->is_moe)
      return {dense,
              fmt::format("build: layer {} is dense, dense layers must precede the MoE layers,"
                          " which start at {}",
                          layer - layers.begin(), dense)};
    if (!layer->has_indexer)
      return {dense, fmt::format("build: layer {} has no indexer, dense layers must precede the MoE"
                                 " layers, each with 1",
                                 layer - layers.begin())};
  }
  return {dense, Fault()};
}

/// The layers behind the dense ones; only asked for a mix without fault.
std::span<const LayerDescription> sparse_layers(const BuildRequest& r) {
  return std::span(r.layers).subspan(static_cast<std::size_t>(layer_mix(r.layers).dense));
}

std::int64_t fused_layers(const BuildRequest& r) {
  const auto sparse = sparse_layers(r);
  return std::count_if(sparse.begin(), sparse.end(),
                       [](const auto& layer) { return layer.shared_expert_fused; });
}

bool is_e4m3(DType type) {
  return type == DType::kFloat8E4M3FN || type == DType::kFloat8E4M3FNUZ;
}

Fault dense_mlp_fault(const BuildRequest& r, const ModelShape&) {
  for (std::size_t layer = 0; layer < r.layers.size(); ++layer)
    if (!r.layers[layer].is_moe && !r.layers[layer].mlp_reduces_itself)
      return fmt::format("build: mlp_reduces_itself is false in dense layer {}, must be true",
                         layer);
  return {};
}

/// The V view has as many pages as the K view (dense), or lacks the first block's K pages.
Fault kv_sides_fault(const BuildRequest& r, const ModelShape& s) {
  const std::int64_t missing =
      sides_are_packed(r.k_view_pages, r.v_view_pages) ? s.pages_per_block() : 0;
  return fault_if(r.k_view_pages - missing != r.v_view_pages,
                  "build: the V view has {} pages, must have {} (dense) or {} (interleaved)",
                  r.v_view_pages, r.k_view_pages, r.k_view_pages - s.pages_per_block());
}

Fault norm_fault(const BuildRequest& r, const ModelShape&) {
  for (const NamedType& norm : r.norms)
    if (norm.type != DType::kBFloat16)
      return fmt::format("build: {} is {}, must be bfloat16", norm.name, dtype_name(norm.type));
  return {};
}

Fault weight_layout_fault(const BuildRequest& r, const ModelShape&) {
  for (const WeightDescription& weight : r.weights)
    if (!weight.shuffled)
      return fmt::format("build: weight {} is unshuffled, must be shuffled", weight.name);
  return {};
}

Fault weight_bytes_fault(const BuildRequest& r, const ModelShape&) {
  for (const WeightDescription& weight : r.weights) {
    std::int64_t bits = weight.bits_per_element;
    for (const std::int64_t dim : weight.dims)
      if (dim < 0 || __builtin_mul_overflow(bits, dim, &bits))
        return fmt::format("build: weight {} has dimension {}, its bits must fit int64",
                           weight.name, dim);
    const std::int64_t bytes = bits / 8 + (bits % 8 != 0);
    if (weight.bytes != bytes)
      return fmt::format("build: weight {} has {} bytes, must have {}", weight.name, weight.bytes,
                         bytes);
  }
  return {};
}

/// A number of the request that must be the shape's.
Fault number_fault(std::string_view name, std::int64_t value, std::int64_t wanted) {
  return fault_if(value != wanted, "build: {} is {}, must be {}", name, value, wanted);
}

constexpr detail::Rule<BuildReason, BuildRequest> kBuildRules[] = {
    {BuildReason::kTensorParallel, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return number_fault("tensor_parallel_size", r.tensor_parallel_size, s.tp);
     }},
    {BuildReason::kPipelining, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape&) {
       return number_fault("pipeline_parallel_size", r.pipeline_parallel_size, 1);
     }},
    {BuildReason::kExpertParallel, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape&) {
       return number_fault("expert_parallel_size", r.expert_parallel_size, 1);
     }},
    {BuildReason::kLayerMix, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape&) { return layer_mix(r.layers).fault; }},
    {BuildReason::kDenseMlpReduction, AdmissionRules::kTarget, dense_mlp_fault},
    {BuildReason::kKvType, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape&) {
       return fault_if(!is_e4m3(r.kv_cache_type), "build: kv_cache is {}, must be float8_e4m3",
                       dtype_name(r.kv_cache_type));
     }},
    {BuildReason::kIndexType, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape&) {
       return fault_if(!is_e4m3(r.index_cache_type),
                       "build: index_cache is {}, must be float8_e4m3",
                       dtype_name(r.index_cache_type));
     }},
    {BuildReason::kKvSides, AdmissionRules::kTarget, kv_sides_fault},
    {BuildReason::kBlockSize, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return number_fault("block_size", r.block_size, s.sparse_block);
     }},
    {BuildReason::kIndexBlocks, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape&) {
       return fault_if(!r.index_cache_shares_blocks,
                       "build: index_cache_shares_blocks is false, must be true");
     }},
    {BuildReason::kSwigluAlpha, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return fault_if(r.swiglu_alpha != s.swiglu_alpha, "build: swiglu_alpha is {}, must be {}",
                       r.swiglu_alpha, s.swiglu_alpha);
     }},
    {BuildReason::kQueryHeads, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return number_fault("local_q_heads", r.local_q_heads, s.local_q_heads);
     }},
    {BuildReason::kKvHeads, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return number_fault("local_kv_heads", r.local_kv_heads, s.local_kv_heads);
     }},
    {BuildReason::kIndexHeads, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return number_fault("index_q_heads", r.index_q_heads, s.index_q_heads);
     }},
    {BuildReason::kRotaryDim, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return number_fault("rotary_dim", r.rotary_dim, s.rotary_dim);
     }},
    {BuildReason::kExpertsPerToken, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return number_fault("experts_per_token", r.experts_per_token, s.top_k);
     }},
    {BuildReason::kGateShape, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return fault_if(r.gate_rows != s.n_routed || r.gate_columns != s.hidden,
                       "build: gate is {} x {}, must be {} x {}", r.gate_rows, r.gate_columns,
                       s.n_routed, s.hidden);
     }},
    {BuildReason::kRouterBias, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return fault_if(r.router_bias_type != DType::kFloat32 || r.router_bias_entries != s.n_routed,
                       "build: router bias is {}[{}], must be float32[{}]",
                       dtype_name(r.router_bias_type), r.router_bias_entries, s.n_routed);
     }},
    {BuildReason::kNormType, AdmissionRules::kTarget, norm_fault},
    {BuildReason::kRotaryTableType, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape&) {
       return fault_if(r.cos_sin_type != DType::kBFloat16, "build: cos_sin is {}, must be bfloat16",
                       dtype_name(r.cos_sin_type));
     }},
    {BuildReason::kPaddedOutput, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape&) {
       return number_fault("output_padding", r.output_padding, 0);
     }},
    {BuildReason::kFp8Kernel, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape&) {
       return fault_if(r.unknown_fp8_kernel.has_value(),
                       "build: fp8 kernel is {}, must be a known one",
                       r.unknown_fp8_kernel.value_or(""));
     }},
    {BuildReason::kWeightLayout, AdmissionRules::kTarget, weight_layout_fault},
    {BuildReason::kWeightBytes, AdmissionRules::kTarget, weight_bytes_fault},
    {BuildReason::kSharedExpertSeparate, AdmissionRules::kStored,
     [](const BuildRequest& r, const ModelShape&) {
       return fault_if(fused_layers(r) == 0,
                       "build: the shared expert is fused in 0 of {} layers, must be in all",
                       sparse_layers(r).size());
     }},
    {BuildReason::kSharedExpertMixed, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape&) {
       const auto all = static_cast<std::int64_t>(sparse_layers(r).size());
       return fault_if(
           fused_layers(r) != 0 && fused_layers(r) != all,
           "build: the shared expert is fused in {} of {} layers, must be in all or none",
           fused_layers(r), all);
     }},
    {BuildReason::kSharedExpertMetadata, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return fault_if(fused_layers(r) != 0 && !r.fused_expert_id,
                       "build: fused_expert_id is missing, must be {}", s.shared_expert);
     }},
    {BuildReason::kSharedExpertId, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return fused_layers(r) == 0
                  ? Fault()
                  : number_fault("fused_expert_id", *r.fused_expert_id, s.shared_expert);
     }},
    {BuildReason::kSoftmaxScale, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       // Written so that a NaN is refused too; 1e-12 is mono-runner's.
       return fault_if(!(std::abs(r.softmax_scale - s.softmax_scale()) <= 1e-12),
                       "build: softmax_scale is {}, must be within 1e-12 of {}", r.softmax_scale,
                       s.softmax_scale());
     }},
    {BuildReason::kTopkBlocks, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return number_fault("topk_blocks", r.topk_blocks, s.topk_blocks);
     }},
    {BuildReason::kPinnedBlocks, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return fault_if(r.init_blocks != s.init_blocks || r.local_blocks != s.local_blocks,
                       "build: (init_blocks, local_blocks) is ({}, {}), must be ({}, {})",
                       r.init_blocks, r.local_blocks, s.init_blocks, s.local_blocks);
     }},
    {BuildReason::kComputeUnits, AdmissionRules::kTarget,
     [](const BuildRequest& r, const ModelShape& s) {
       return number_fault("compute_units", r.compute_units, s.grid_blocks);
     }},
};

}  // namespace

std::int64_t dense_prefix(std::span<const LayerDescription> layers) {
  const LayerMix mix = layer_mix(layers);
  if (!mix.fault.empty()) throw Refusal(mix.fault);
  return mix.dense;
}

std::optional<BuildRefusal> admit_build(const BuildRequest& request, const ModelShape& shape,
                                        AdmissionRules rules) {
  return detail::first_broken<BuildRefusal>(kBuildRules, request, shape, rules);
}

BuildRequest BuildRequest::of(const ModelShape& shape) {
  BuildRequest request;
  request.tensor_parallel_size = shape.tp;
  request.layers.resize(static_cast<std::size_t>(shape.layers));
  for (std::int64_t layer = 0; layer < shape.dense_layers; ++layer)
    request.layers[static_cast<std::size_t>(layer)] = {.is_moe = false, .has_indexer = false};
  request.k_view_pages = shape.max_blocks() * shape.block_page_stride();
  request.v_view_pages =
      request.k_view_pages - (shape.page16_sides == 2 ? shape.pages_per_block() : 0);
  request.block_size = shape.sparse_block;
  request.local_q_heads = shape.local_q_heads;
  request.local_kv_heads = shape.local_kv_heads;
  request.index_q_heads = shape.index_q_heads;
  request.rotary_dim = shape.rotary_dim;
  request.softmax_scale = shape.softmax_scale();
  request.topk_blocks = shape.topk_blocks;
  request.init_blocks = shape.init_blocks;
  request.local_blocks = shape.local_blocks;
  request.swiglu_alpha = shape.swiglu_alpha;
  request.experts_per_token = shape.top_k;
  request.gate_rows = shape.n_routed;
  request.gate_columns = shape.hidden;
  request.router_bias_entries = shape.n_routed;
  for (const char* name :
       {"input_norm", "post_attention_norm", "q_norm", "k_norm", "index_q_norm", "index_k_norm"})
    request.norms.push_back({name, DType::kBFloat16});
  request.compute_units = shape.grid_blocks;
  return request;
}

}  // namespace monoref
