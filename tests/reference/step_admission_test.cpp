#include "reference/model/step_admission.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/reference/stage_test.hpp"

namespace monoref {
namespace {

struct StepFault {
  StepReason reason;
  AdmissionRules from;
  const char* message;
  void (*spoil)(StepRequest&);
};

constexpr AdmissionRules kTarget = AdmissionRules::kTarget;
constexpr AdmissionRules kStored = AdmissionRules::kStored;
constexpr AdmissionRules kNewer = AdmissionRules::kNewer;

/// In the order of mono-decode section 10. Any suffix of the list can be planted together.
const std::vector<StepFault>& step_faults() {
  static const std::vector<StepFault> all{
      {StepReason::kBuildFailed, kStored, "step: build_failed is true, must be false",
       [](StepRequest& r) { r.build_failed = true; }},
      {StepReason::kNoSparseLayer, kStored, "step: sparse_layers is 0, must be at least 1",
       [](StepRequest& r) { r.sparse_layers = 0; }},
      {StepReason::kNoResidual, kStored, "step: has_residual is false, must be true",
       [](StepRequest& r) { r.has_residual = false; }},
      {StepReason::kTokenCount, kTarget, "step: tokens is 17, must be 1 to 16",
       [](StepRequest& r) { r.tokens = 17; }},
      {StepReason::kMicrobatched, kStored, "step: microbatched is true, must be false",
       [](StepRequest& r) { r.microbatched = true; }},
      {StepReason::kPiecewiseGraph, kStored, "step: piecewise_graph is true, must be false",
       [](StepRequest& r) { r.piecewise_graph = true; }},
      {StepReason::kNoMetadata, kStored, "step: has_metadata is false, must be true",
       [](StepRequest& r) { r.has_metadata = false; }},
      {StepReason::kPrefill, kTarget, "step: prefills is 2, must be 0",
       [](StepRequest& r) { r.prefills = 2; }},
      {StepReason::kPositionsType, kTarget, "step: positions is int32, must be int64",
       [](StepRequest& r) { r.positions_type = DType::kInt32; }},
      {StepReason::kQueryLength, kTarget, "step: tokens is 1, must be a multiple of q_len 2",
       [](StepRequest& r) { r.q_len = 2; }},
      {StepReason::kBlockTableType, kTarget, "step: block_table is int64, must be int32",
       [](StepRequest& r) { r.block_table_type = DType::kInt64; }},
      {StepReason::kSeqLensType, kTarget, "step: seq_lens is int64, must be int32",
       [](StepRequest& r) { r.seq_lens_type = DType::kInt64; }},
      {StepReason::kBlockTableRows, kTarget, "step: block_table has 0 rows, must have at least 1",
       [](StepRequest& r) { r.block_table_rows = 0; }},
      {StepReason::kSeqLensRows, kTarget, "step: seq_lens has 0 rows, must have at least 1",
       [](StepRequest& r) { r.seq_lens_rows = 0; }},
      {StepReason::kBlockTableStride, kTarget,
       "step: block_table has row stride 9000, must be its width 8192",
       [](StepRequest& r) { r.block_table_row_stride = 9000; }},
      {StepReason::kBlockTableWidth, kTarget, "step: block_table has width 8193, limit 8192",
       [](StepRequest& r) {
         r.block_table_width = 8193;
         r.block_table_row_stride = 8193;
         r.cache_blocks = 8193;
       }},
      {StepReason::kSlotType, kTarget, "step: slot_mapping is int32, must be int64",
       [](StepRequest& r) { r.slot_mapping_type = DType::kInt32; }},
      {StepReason::kSlotCount, kTarget, "step: slot_mapping has 0 entries, must have at least 1",
       [](StepRequest& r) { r.slot_mapping_entries = 0; }},
      {StepReason::kCachesUnbound, kStored, "step: caches_bound is false, must be true",
       [](StepRequest& r) { r.caches_bound = false; }},
      {StepReason::kCapturing, kStored, "step: capturing is true before the build, must be false",
       [](StepRequest& r) {
         r.capturing = true;
         r.built = false;
       }},
      {StepReason::kDataParallel, kNewer, "step: data_parallel_size is 2, must be 1",
       [](StepRequest& r) { r.data_parallel_size = 2; }},
      {StepReason::kMaxLength, kNewer, "step: max_seq_len is 1048577, limit 1048576",
       [](StepRequest& r) { r.max_seq_len = 1048577; }},
      {StepReason::kCacheBlocks, kNewer,
       "step: cache_blocks is 8191, must be at least the block_table width 8192",
       [](StepRequest& r) { r.cache_blocks = 8191; }},
  };
  return all;
}

TEST(AdmitStep, ServesThePlainStepUnderAllRules) {
  for (const AdmissionRules rules : {kTarget, kStored, kNewer})
    EXPECT_FALSE(admit_step(StepRequest{}, ModelShape{}, rules).has_value());
}

TEST(AdmitStep, ServesTheLargestStep) {
  StepRequest step;
  step.tokens = 16;
  step.q_len = 4;
  step.block_table_rows = 4;
  step.seq_lens_rows = 4;
  step.slot_mapping_entries = 16;
  step.max_seq_len = 1 << 20;
  EXPECT_FALSE(admit_step(step, ModelShape{}, kNewer).has_value());
  step.slot_mapping_entries = 15;
  EXPECT_EQ(admit_step(step, ModelShape{})->message,
            "step: slot_mapping has 15 entries, must have at least 16");
  step.slot_mapping_entries = 16;
  step.seq_lens_rows = 3;
  EXPECT_EQ(admit_step(step, ModelShape{})->message,
            "step: seq_lens has 3 rows, must have at least 4");
}

TEST(AdmitStep, NamesEachReasonUnderTheRulesThatHaveIt) {
  for (const StepFault& fault : step_faults()) {
    StepRequest step;
    fault.spoil(step);
    for (const AdmissionRules rules : {kTarget, kStored, kNewer}) {
      const auto refusal = admit_step(step, ModelShape{}, rules);
      if (rules < fault.from) {
        EXPECT_FALSE(refusal.has_value()) << fault.message;
      } else {
        EXPECT_EQ(refusal, (StepRefusal{fault.reason, fault.message}));
      }
    }
  }
}

TEST(AdmitStep, ReportsTheFirstReasonInOrder) {
  const auto& faults = step_faults();
  for (std::size_t first = 0; first < faults.size(); ++first) {
    StepRequest step;
    for (std::size_t i = faults.size(); i-- > first;) faults[i].spoil(step);
    const auto refusal = admit_step(step, ModelShape{}, kNewer);
    ASSERT_TRUE(refusal.has_value()) << faults[first].message;
    EXPECT_EQ(refusal->reason, faults[first].reason) << refusal->message;
  }
}

TEST(AdmitStep, RefusesNoTokensAndNoQueryLength) {
  StepRequest step;
  step.tokens = 0;
  EXPECT_EQ(admit_step(step, ModelShape{})->message, "step: tokens is 0, must be 1 to 16");
  step.tokens = 1;
  step.q_len = 0;
  EXPECT_EQ(admit_step(step, ModelShape{}),
            (StepRefusal{StepReason::kQueryLength, "step: q_len is 0, must be at least 1"}));
}

TEST(AdmitStep, CapturingIsServedOnceBuilt) {
  StepRequest step;
  step.capturing = true;
  EXPECT_FALSE(admit_step(step, ModelShape{}, kNewer).has_value());
}

TEST(AdmitStep, TakesItsLimitsFromTheShape) {
  ModelShape shape;
  shape.max_tokens = 4;
  shape.max_context = 1024;
  StepRequest step;
  step.tokens = 5;
  EXPECT_EQ(admit_step(step, shape)->message, "step: tokens is 5, must be 1 to 4");
  step.tokens = 1;
  EXPECT_EQ(admit_step(step, shape)->message, "step: block_table has width 8192, limit 8");
  shape.wave = 1;
  EXPECT_EQ(testing::refusal_of([&] { admit_step(step, shape); }),
            "shape: wave is 1, must be 32 or 64");
}

}  // namespace
}  // namespace monoref
