// Which steps the mono kernels serve.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "reference/core/dtype.hpp"
#include "reference/model/shapes.hpp"
#include "reference/rules/admission_rules.hpp"

namespace monoref {

/// One reason a step is not served, in the order in which they are looked at.
enum class StepReason : std::uint8_t {
  kBuildFailed,  // stored
  kNoSparseLayer,
  kNoResidual,
  kTokenCount,  // target
  kMicrobatched,
  kPiecewiseGraph,
  kNoMetadata,
  kPrefill,        // target
  kPositionsType,  // target
  kQueryLength,    // target
  kBlockTableType,
  kSeqLensType,
  kBlockTableRows,
  kSeqLensRows,
  kBlockTableStride,
  kBlockTableWidth,
  kSlotType,
  kSlotCount,  // target, like all since kQueryLength
  kCachesUnbound,
  kCapturing,
  kDataParallel,  // newer
  kMaxLength,
  kCacheBlocks,
};

struct StepRefusal {
  StepReason reason;
  std::string message;  ///< "step: argument is value, limit"
  bool operator==(const StepRefusal&) const = default;
};

/// Everything that the rules look at. The defaults are a step of one token that is served.
struct StepRequest {
  std::int64_t sparse_layers = 57;
  bool build_failed = false;  ///< an earlier build failed: mono is off for the process
  bool built = true;
  bool capturing = false;  ///< a graph is being captured
  bool caches_bound = true;
  bool microbatched = false;
  bool piecewise_graph = false;
  bool has_residual = true;  ///< mono-runner uses zeros where there is none
  bool has_metadata = true;
  std::int64_t data_parallel_size = 1;

  std::int64_t tokens = 1;    ///< n
  std::int64_t q_len = 1;     ///< query tokens a request
  std::int64_t prefills = 0;  ///< prefill requests in the step
  std::int64_t max_seq_len = 1;
  std::int64_t cache_blocks = 8192;
  DType positions_type = DType::kInt64;

  DType block_table_type = DType::kInt32;
  std::int64_t block_table_rows = 1;
  std::int64_t block_table_width = 8192;
  std::int64_t block_table_row_stride = 8192;  ///< elements
  DType seq_lens_type = DType::kInt32;
  std::int64_t seq_lens_rows = 1;
  DType slot_mapping_type = DType::kInt64;
  std::int64_t slot_mapping_entries = 1;
};

/// The first reason not to serve the step, or nothing: then every table is what `token_rows` and
/// the layers take it for. Limits come from the shape. A query length below 1, which would make n
/// mod q meaningless, is refused with the reason of divisibility.
std::optional<StepRefusal> admit_step(const StepRequest& request, const ModelShape& shape,
                                      AdmissionRules rules = AdmissionRules::kTarget);

}  // namespace monoref
