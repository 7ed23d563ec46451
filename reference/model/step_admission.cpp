#include "reference/model/step_admission.hpp"

namespace monoref {
namespace {

using detail::fault_if;

/// Section 10's order; q_len is at least 1 wherever a rule behind kQueryLength divides by it.
constexpr detail::Rule<StepReason, StepRequest> kStepRules[] = {
    {StepReason::kBuildFailed, AdmissionRules::kStored,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.build_failed, "step: build_failed is true, must be false");
     }},
    {StepReason::kNoSparseLayer, AdmissionRules::kStored,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.sparse_layers < 1, "step: sparse_layers is {}, must be at least 1",
                       r.sparse_layers);
     }},
    {StepReason::kNoResidual, AdmissionRules::kStored,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(!r.has_residual, "step: has_residual is false, must be true");
     }},
    {StepReason::kTokenCount, AdmissionRules::kTarget,
     [](const StepRequest& r, const ModelShape& s) {
       return fault_if(r.tokens < 1 || r.tokens > s.max_tokens,
                       "step: tokens is {}, must be 1 to {}", r.tokens, s.max_tokens);
     }},
    {StepReason::kMicrobatched, AdmissionRules::kStored,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.microbatched, "step: microbatched is true, must be false");
     }},
    {StepReason::kPiecewiseGraph, AdmissionRules::kStored,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.piecewise_graph, "step: piecewise_graph is true, must be false");
     }},
    {StepReason::kNoMetadata, AdmissionRules::kStored,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(!r.has_metadata, "step: has_metadata is false, must be true");
     }},
    {StepReason::kPrefill, AdmissionRules::kTarget,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.prefills != 0, "step: prefills is {}, must be 0", r.prefills);
     }},
    {StepReason::kPositionsType, AdmissionRules::kTarget,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.positions_type != DType::kInt64, "step: positions is {}, must be int64",
                       dtype_name(r.positions_type));
     }},
    {StepReason::kQueryLength, AdmissionRules::kTarget,
     [](const StepRequest& r, const ModelShape&) {
       if (r.q_len < 1) return fault_if(true, "step: q_len is {}, must be at least 1", r.q_len);
       return fault_if(r.tokens % r.q_len != 0,
                       "step: tokens is {}, must be a multiple of q_len {}", r.tokens, r.q_len);
     }},
    {StepReason::kBlockTableType, AdmissionRules::kTarget,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.block_table_type != DType::kInt32,
                       "step: block_table is {}, must be int32", dtype_name(r.block_table_type));
     }},
    {StepReason::kSeqLensType, AdmissionRules::kTarget,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.seq_lens_type != DType::kInt32, "step: seq_lens is {}, must be int32",
                       dtype_name(r.seq_lens_type));
     }},
    {StepReason::kBlockTableRows, AdmissionRules::kTarget,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.block_table_rows < r.tokens / r.q_len,
                       "step: block_table has {} rows, must have at least {}", r.block_table_rows,
                       r.tokens / r.q_len);
     }},
    {StepReason::kSeqLensRows, AdmissionRules::kTarget,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.seq_lens_rows < r.tokens / r.q_len,
                       "step: seq_lens has {} rows, must have at least {}", r.seq_lens_rows,
                       r.tokens / r.q_len);
     }},
    {StepReason::kBlockTableStride, AdmissionRules::kTarget,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.block_table_row_stride != r.block_table_width,
                       "step: block_table has row stride {}, must be its width {}",
                       r.block_table_row_stride, r.block_table_width);
     }},
    {StepReason::kBlockTableWidth, AdmissionRules::kTarget,
     [](const StepRequest& r, const ModelShape& s) {
       return fault_if(r.block_table_width > s.max_blocks(),
                       "step: block_table has width {}, limit {}", r.block_table_width,
                       s.max_blocks());
     }},
    {StepReason::kSlotType, AdmissionRules::kTarget,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.slot_mapping_type != DType::kInt64,
                       "step: slot_mapping is {}, must be int64", dtype_name(r.slot_mapping_type));
     }},
    {StepReason::kSlotCount, AdmissionRules::kTarget,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.slot_mapping_entries < r.tokens,
                       "step: slot_mapping has {} entries, must have at least {}",
                       r.slot_mapping_entries, r.tokens);
     }},
    {StepReason::kCachesUnbound, AdmissionRules::kStored,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(!r.caches_bound, "step: caches_bound is false, must be true");
     }},
    {StepReason::kCapturing, AdmissionRules::kStored,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.capturing && !r.built,
                       "step: capturing is true before the build, must be false");
     }},
    {StepReason::kDataParallel, AdmissionRules::kNewer,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.data_parallel_size != 1, "step: data_parallel_size is {}, must be 1",
                       r.data_parallel_size);
     }},
    {StepReason::kMaxLength, AdmissionRules::kNewer,
     [](const StepRequest& r, const ModelShape& s) {
       return fault_if(r.max_seq_len > s.max_context, "step: max_seq_len is {}, limit {}",
                       r.max_seq_len, s.max_context);
     }},
    {StepReason::kCacheBlocks, AdmissionRules::kNewer,
     [](const StepRequest& r, const ModelShape&) {
       return fault_if(r.cache_blocks < r.block_table_width,
                       "step: cache_blocks is {}, must be at least the block_table width {}",
                       r.cache_blocks, r.block_table_width);
     }},
};

}  // namespace

std::optional<StepRefusal> admit_step(const StepRequest& request, const ModelShape& shape,
                                      AdmissionRules rules) {
  return detail::first_broken<StepRefusal>(kStepRules, request, shape, rules);
}

}  // namespace monoref
