// Which models the mono kernels can be built for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/core/dtype.hpp"
#include "reference/model/shapes.hpp"
#include "reference/rules/admission_rules.hpp"

namespace monoref {

/// One layer of the model, as far as building looks at it.
struct LayerDescription {
  bool is_moe = true;
  bool has_indexer = true;
  bool shared_expert_fused = false;  ///< MoE: into the routed kernel, rather than separate
  bool mlp_reduces_itself = true;    ///< dense: its output is already summed over the ranks
};

/// Number of leading layers without MoE. Refuses unless at least one layer follows them and all
/// that follow are MoE and have an indexer (mono-runner: dense_prefix).
std::int64_t dense_prefix(std::span<const LayerDescription> layers);

/// One reason the kernels cannot be built for a model, in the order in which they are looked at:
/// mono-runner's, with the stored build's checks of single layers where that builds the layers.
enum class BuildReason : std::uint8_t {
  kTensorParallel,
  kPipelining,
  kExpertParallel,
  kLayerMix,
  kDenseMlpReduction,
  kKvType,
  kIndexType,
  kKvSides,
  kBlockSize,
  kIndexBlocks,
  kSwigluAlpha,
  kQueryHeads,
  kKvHeads,
  kIndexHeads,
  kRotaryDim,
  kExpertsPerToken,
  kGateShape,
  kRouterBias,
  kNormType,
  kRotaryTableType,
  kPaddedOutput,
  kFp8Kernel,
  kWeightLayout,
  kWeightBytes,
  kSharedExpertSeparate,  ///< stored rules only: the target serves a separate shared expert
  kSharedExpertMixed,
  kSharedExpertMetadata,
  kSharedExpertId,
  kSoftmaxScale,
  kTopkBlocks,
  kPinnedBlocks,
  kComputeUnits,
};

struct BuildRefusal {
  BuildReason reason;
  std::string message;  ///< "build: argument is value, limit"
  bool operator==(const BuildRefusal&) const = default;
};

struct NamedType {
  std::string name;
  DType type = DType::kBFloat16;
};

/// A weight or scale tensor as it is found in memory.
struct WeightDescription {
  std::string name;
  std::vector<std::int64_t> dims;     ///< logical elements
  std::int64_t bits_per_element = 8;  ///< 4 for MXFP4
  std::int64_t bytes = 0;             ///< that it occupies
  bool shuffled = true;               ///< in the layout that the kernels read
};

/// Everything that building looks at.
struct BuildRequest {
  /// A request that describes `shape` and is admitted: no weights listed, shared expert separate.
  static BuildRequest of(const ModelShape& shape);

  std::int64_t tensor_parallel_size = 0;
  std::int64_t pipeline_parallel_size = 1;
  std::int64_t expert_parallel_size = 1;
  std::vector<LayerDescription> layers;

  DType kv_cache_type = DType::kFloat8E4M3FN;
  DType index_cache_type = DType::kFloat8E4M3FN;
  std::int64_t k_view_pages = 0;
  std::int64_t v_view_pages = 0;
  std::int64_t block_size = 0;
  bool index_cache_shares_blocks = true;

  std::int64_t local_q_heads = 0;
  std::int64_t local_kv_heads = 0;
  std::int64_t index_q_heads = 0;
  std::int64_t rotary_dim = 0;
  double softmax_scale = 0;
  std::int64_t topk_blocks = 0;
  std::int64_t init_blocks = 0;
  std::int64_t local_blocks = 0;

  double swiglu_alpha = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t gate_rows = 0;
  std::int64_t gate_columns = 0;
  DType router_bias_type = DType::kFloat32;
  std::int64_t router_bias_entries = 0;
  /// Id that the routing metadata gives the fused shared expert; nothing: there is no metadata.
  std::optional<std::int64_t> fused_expert_id;

  std::vector<NamedType> norms;  ///< gammas
  DType cos_sin_type = DType::kBFloat16;
  std::int64_t output_padding = 0;                ///< elements behind the hidden width
  std::optional<std::string> unknown_fp8_kernel;  ///< name of a linear layer's kernel, if unknown
  std::vector<WeightDescription> weights;
  std::int64_t compute_units = 0;
};

/// The first reason not to build, or nothing. The lists of mono-decode sections 2 and 10 apply
/// under all rules; they differ in the shared expert alone: the stored build wants it fused, the
/// target (mono-runner) serves it separate too, if all layers agree.
std::optional<BuildRefusal> admit_build(const BuildRequest& request, const ModelShape& shape,
                                        AdmissionRules rules = AdmissionRules::kTarget);

}  // namespace monoref
