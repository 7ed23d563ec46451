#include "reference/model/build_admission.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/reference/stage_test.hpp"

namespace monoref {
namespace {

using testing::refusal_of;

constexpr AdmissionRules kTarget = AdmissionRules::kTarget;
constexpr AdmissionRules kStored = AdmissionRules::kStored;

/// A fault alone in an otherwise good model whose shared expert is fused in every layer.
struct BuildFault {
  BuildReason reason;
  AdmissionRules from;
  const char* message;
  void (*spoil)(BuildRequest&);
};

void set_shared_experts(BuildRequest& request, bool fused) {
  for (LayerDescription& layer : request.layers) layer.shared_expert_fused = layer.is_moe && fused;
}

BuildRequest good_model() {
  BuildRequest request = BuildRequest::of(ModelShape{});
  set_shared_experts(request, true);
  request.fused_expert_id = 128;
  request.weights = {{"w13", {129, 1536, 6144}, 4, 129 * 1536 * 6144 / 2, true},
                     {"w_o", {6144, 2048}, 8, 6144 * 2048, true}};
  return request;
}

/// In the order of looking. Only the kSharedExpert group excludes each other.
const std::vector<BuildFault>& build_faults() {
  static const std::vector<BuildFault> all{
      {BuildReason::kTensorParallel, kTarget, "build: tensor_parallel_size is 8, must be 4",
       [](BuildRequest& r) { r.tensor_parallel_size = 8; }},
      {BuildReason::kPipelining, kTarget, "build: pipeline_parallel_size is 2, must be 1",
       [](BuildRequest& r) { r.pipeline_parallel_size = 2; }},
      {BuildReason::kExpertParallel, kTarget, "build: expert_parallel_size is 4, must be 1",
       [](BuildRequest& r) { r.expert_parallel_size = 4; }},
      {BuildReason::kLayerMix, kTarget,
       "build: layer 7 is dense, dense layers must precede the MoE layers, which start at 3",
       [](BuildRequest& r) { r.layers[7].is_moe = false; }},
      {BuildReason::kDenseMlpReduction, kTarget,
       "build: mlp_reduces_itself is false in dense layer 1, must be true",
       [](BuildRequest& r) { r.layers[1].mlp_reduces_itself = false; }},
      {BuildReason::kKvType, kTarget, "build: kv_cache is bfloat16, must be float8_e4m3",
       [](BuildRequest& r) { r.kv_cache_type = DType::kBFloat16; }},
      {BuildReason::kIndexType, kTarget, "build: index_cache is float8_e5m2, must be float8_e4m3",
       [](BuildRequest& r) { r.index_cache_type = DType::kFloat8E5M2; }},
      {BuildReason::kKvSides, kTarget,
       "build: the V view has 5 pages, must have 48 (dense) or 40 (interleaved)",
       [](BuildRequest& r) {
         r.k_view_pages = 48;
         r.v_view_pages = 5;
       }},
      {BuildReason::kBlockSize, kTarget, "build: block_size is 64, must be 128",
       [](BuildRequest& r) { r.block_size = 64; }},
      {BuildReason::kIndexBlocks, kTarget,
       "build: index_cache_shares_blocks is false, must be true",
       [](BuildRequest& r) { r.index_cache_shares_blocks = false; }},
      {BuildReason::kSwigluAlpha, kTarget, "build: swiglu_alpha is 1.7, must be 1.702",
       [](BuildRequest& r) { r.swiglu_alpha = 1.7; }},
      {BuildReason::kQueryHeads, kTarget, "build: local_q_heads is 8, must be 16",
       [](BuildRequest& r) { r.local_q_heads = 8; }},
      {BuildReason::kKvHeads, kTarget, "build: local_kv_heads is 2, must be 1",
       [](BuildRequest& r) { r.local_kv_heads = 2; }},
      {BuildReason::kIndexHeads, kTarget, "build: index_q_heads is 1, must be 4",
       [](BuildRequest& r) { r.index_q_heads = 1; }},
      {BuildReason::kRotaryDim, kTarget, "build: rotary_dim is 128, must be 64",
       [](BuildRequest& r) { r.rotary_dim = 128; }},
      {BuildReason::kExpertsPerToken, kTarget, "build: experts_per_token is 8, must be 4",
       [](BuildRequest& r) { r.experts_per_token = 8; }},
      {BuildReason::kGateShape, kTarget, "build: gate is 256 x 6144, must be 128 x 6144",
       [](BuildRequest& r) { r.gate_rows = 256; }},
      {BuildReason::kRouterBias, kTarget,
       "build: router bias is bfloat16[128], must be float32[128]",
       [](BuildRequest& r) { r.router_bias_type = DType::kBFloat16; }},
      {BuildReason::kNormType, kTarget, "build: q_norm is float32, must be bfloat16",
       [](BuildRequest& r) { r.norms[2].type = DType::kFloat32; }},
      {BuildReason::kRotaryTableType, kTarget, "build: cos_sin is float32, must be bfloat16",
       [](BuildRequest& r) { r.cos_sin_type = DType::kFloat32; }},
      {BuildReason::kPaddedOutput, kTarget, "build: output_padding is 64, must be 0",
       [](BuildRequest& r) { r.output_padding = 64; }},
      {BuildReason::kFp8Kernel, kTarget, "build: fp8 kernel is cutlass, must be a known one",
       [](BuildRequest& r) { r.unknown_fp8_kernel = "cutlass"; }},
      {BuildReason::kWeightLayout, kTarget, "build: weight w_o is unshuffled, must be shuffled",
       [](BuildRequest& r) { r.weights[1].shuffled = false; }},
      {BuildReason::kWeightBytes, kTarget, "build: weight w13 has 1 bytes, must have 608698368",
       [](BuildRequest& r) { r.weights[0].bytes = 1; }},
      {BuildReason::kSharedExpertSeparate, kStored,
       "build: the shared expert is fused in 0 of 57 layers, must be in all",
       [](BuildRequest& r) { set_shared_experts(r, false); }},
      {BuildReason::kSharedExpertMixed, kTarget,
       "build: the shared expert is fused in 56 of 57 layers, must be in all or none",
       [](BuildRequest& r) { r.layers[59].shared_expert_fused = false; }},
      {BuildReason::kSharedExpertMetadata, kTarget,
       "build: fused_expert_id is missing, must be 128",
       [](BuildRequest& r) { r.fused_expert_id.reset(); }},
      {BuildReason::kSharedExpertId, kTarget, "build: fused_expert_id is 0, must be 128",
       [](BuildRequest& r) { r.fused_expert_id = 0; }},
      {BuildReason::kSoftmaxScale, kTarget,
       "build: softmax_scale is 0.1, must be within 1e-12 of 0.08838834764831845",
       [](BuildRequest& r) { r.softmax_scale = 0.1; }},
      {BuildReason::kTopkBlocks, kTarget, "build: topk_blocks is 8, must be 16",
       [](BuildRequest& r) { r.topk_blocks = 8; }},
      {BuildReason::kPinnedBlocks, kTarget,
       "build: (init_blocks, local_blocks) is (1, 1), must be (0, 1)",
       [](BuildRequest& r) { r.init_blocks = 1; }},
      {BuildReason::kComputeUnits, kTarget, "build: compute_units is 304, must be 256",
       [](BuildRequest& r) { r.compute_units = 304; }},
  };
  return all;
}

TEST(AdmitBuild, BuildsForTheModel) {
  EXPECT_FALSE(admit_build(good_model(), ModelShape{}, kTarget).has_value());
  EXPECT_FALSE(admit_build(good_model(), ModelShape{}, kStored).has_value());
  EXPECT_FALSE(admit_build(BuildRequest::of(ModelShape{}), ModelShape{}).has_value())
      << "separate shared expert";
}

TEST(AdmitBuild, BuildsForDensePlanes) {
  ModelShape shape;
  shape.page16_sides = 1;
  const BuildRequest request = BuildRequest::of(shape);
  EXPECT_EQ(request.k_view_pages, 8192 * 8);
  EXPECT_EQ(request.v_view_pages, 8192 * 8);
  EXPECT_FALSE(admit_build(request, shape).has_value());
}

TEST(AdmitBuild, NamesEachReasonUnderTheRulesThatHaveIt) {
  for (const BuildFault& fault : build_faults()) {
    BuildRequest request = good_model();
    fault.spoil(request);
    EXPECT_EQ(admit_build(request, ModelShape{}, kStored),
              (BuildRefusal{fault.reason, fault.message}));
    EXPECT_EQ(admit_build(request, ModelShape{}, kTarget).has_value(), fault.from == kTarget)
        << fault.message;
  }
}

TEST(AdmitBuild, ReportsTheEarlierOfTwoReasons) {
  const auto& faults = build_faults();
  const auto shared = [](BuildReason reason) {
    return reason >= BuildReason::kSharedExpertSeparate && reason <= BuildReason::kSharedExpertId;
  };
  for (std::size_t first = 0; first < faults.size(); ++first)
    for (std::size_t second = first + 1; second < faults.size(); ++second) {
      if (shared(faults[first].reason) && shared(faults[second].reason)) continue;
      BuildRequest request = good_model();
      faults[second].spoil(request);
      faults[first].spoil(request);
      EXPECT_EQ(admit_build(request, ModelShape{}, kStored)->message, faults[first].message);
    }
}

TEST(AdmitBuild, MixedSharedExpertsComeBeforeTheirMetadata) {
  BuildRequest request = good_model();
  request.layers[59].shared_expert_fused = false;
  request.fused_expert_id.reset();
  EXPECT_EQ(admit_build(request, ModelShape{})->reason, BuildReason::kSharedExpertMixed);
}

TEST(AdmitBuild, SoftmaxScaleIsHeldToTheSeedsDistance) {
  BuildRequest request = good_model();
  request.softmax_scale += 9e-13;
  EXPECT_FALSE(admit_build(request, ModelShape{}).has_value());
  request.softmax_scale += 2e-13;
  EXPECT_EQ(admit_build(request, ModelShape{})->reason, BuildReason::kSoftmaxScale);
  request.softmax_scale = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(admit_build(request, ModelShape{})->reason, BuildReason::kSoftmaxScale);
}

TEST(AdmitBuild, GateAndBiasAreJudgedInEveryPart) {
  BuildRequest request = good_model();
  request.gate_columns = 6143;
  EXPECT_EQ(admit_build(request, ModelShape{})->message,
            "build: gate is 128 x 6143, must be 128 x 6144");
  request = good_model();
  request.router_bias_entries = 129;
  EXPECT_EQ(admit_build(request, ModelShape{})->message,
            "build: router bias is float32[129], must be float32[128]");
  request = good_model();
  request.local_blocks = 2;
  EXPECT_EQ(admit_build(request, ModelShape{})->message,
            "build: (init_blocks, local_blocks) is (0, 2), must be (0, 1)");
}

TEST(AdmitBuild, WeightBytesRoundUpToWholeBytes) {
  BuildRequest request = good_model();
  request.weights = {{"nibbles", {3}, 4, 2, true}};
  EXPECT_FALSE(admit_build(request, ModelShape{}).has_value());
  request.weights = {{"vast", {std::int64_t{1} << 40, std::int64_t{1} << 30}, 8, 0, true}};
  EXPECT_EQ(admit_build(request, ModelShape{})->message,
            "build: weight vast has dimension 1073741824, its bits must fit int64");
}

constexpr LayerDescription kDense{.is_moe = false, .has_indexer = false};
constexpr LayerDescription kSparse{};

TEST(DensePrefix, CountsTheLeadingDenseLayers) {
  EXPECT_EQ(dense_prefix(std::vector{kDense, kDense, kDense, kSparse, kSparse}), 3);
  EXPECT_EQ(dense_prefix(std::vector{kSparse}), 0);
}

TEST(DensePrefix, RefusesOtherMixes) {
  EXPECT_EQ(refusal_of([] { dense_prefix({}); }),
            "build: layers hold 0 dense and 0 MoE, dense layers must precede the MoE layers, at"
            " least 1");
  EXPECT_EQ(refusal_of([] { dense_prefix(std::vector{kDense, kDense}); }),
            "build: layers hold 2 dense and 0 MoE, dense layers must precede the MoE layers, at"
            " least 1");
  EXPECT_EQ(refusal_of([] { dense_prefix(std::vector{kSparse, kDense, kSparse}); }),
            "build: layer 1 is dense, dense layers must precede the MoE layers, which start at 0");
  EXPECT_EQ(refusal_of([] {
              dense_prefix(std::vector{kDense, kSparse, LayerDescription{.has_indexer = false}});
            }),
            "build: layer 2 has no indexer, dense layers must precede the MoE layers, each with 1");
}

}  // namespace
}  // namespace monoref
