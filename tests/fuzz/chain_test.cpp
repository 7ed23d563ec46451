// Chains of stages, and where two computations of one part.
#include "fuzz/chain.hpp"

#include <gtest/gtest.h>

#include "fuzz/bisect.hpp"
#include "fuzz/runner.hpp"

namespace monoref {
namespace {

constexpr const char* kLine = "stage=sparse_attention;seed=7;requests=2;blocks=3";

/// A fault planted in the kernels for as long as it lives.
class PlantedFault {
 public:
  explicit PlantedFault(std::string_view fault) { device::set_active_fault(fault); }
  ~PlantedFault() { device::set_active_fault({}); }
  PlantedFault(const PlantedFault&) = delete;
  PlantedFault& operator=(const PlantedFault&) = delete;
};

CaseResult judge_with_fault(const Case& item, std::string_view fault) {
  const PlantedFault planted(fault);
  KernelRunner runner(device::make_host_backend(64, device::KernelBuild::kWithFaults));
  return judge_case(find_stage(item.stage), item, {.runners = {&runner}});
}

TEST(Tensor, NumbersAreViewedAsWhatTheyAre) {
  const Tensor ints = Tensor::of<std::int32_t>(DType::kInt32, {1}, {0x3F800000});
  EXPECT_EQ((ints.view<std::int32_t, 1>()(0)), 0x3F800000);
  EXPECT_EQ((ints.view<std::uint32_t, 1>()(0)), 0x3F800000u) << "bits of any type";
  EXPECT_THROW((ints.view<float, 1>()), Refusal);
  const Tensor floats(DType::kFloat64, Layout::dense({1}));
  EXPECT_THROW((floats.view<std::int64_t, 1>()), Refusal);
  EXPECT_EQ((floats.view<double, 1>()(0)), 0.0);
}

TEST(Tensor, AnAxisThatThereIsNotIsRefused) {
  EXPECT_THROW(Tensor(DType::kInt32, Layout::dense({})).dim(0), Refusal);
  EXPECT_EQ(Tensor(DType::kInt32, Layout::dense({2, 3})).dim(1), 3);
}

TEST(Tensor, AnAliasSharesMemoryAndItsCopyDoesNot) {
  Tensor owner = Tensor::of<std::int32_t>(DType::kInt32, {2, 3}, {0, 1, 2, 3, 4, 5});
  Tensor row = Tensor::alias(owner, Layout::dense({3}), 3);
  EXPECT_EQ((row.view<std::int32_t, 1>()(1)), 4);
  Tensor copy = row;
  row.view<std::int32_t, 1>()(1) = 40;
  EXPECT_EQ((owner.view<std::int32_t, 2>()(1, 1)), 40);
  EXPECT_EQ((copy.view<std::int32_t, 1>()(1)), 4);
}

TEST(Tensor, AnAliasOutlivesItsOwner) {
  Tensor alias;
  {
    const Tensor owner = Tensor::of<std::int32_t>(DType::kInt32, {2}, {7, 8});
    alias = Tensor::alias(owner, Layout::dense({1}), 1);
  }
  EXPECT_EQ((alias.view<std::int32_t, 1>()(0)), 8);
}

TEST(Tensor, AnAliasBehindTheOwnersEndIsRefused) {
  const Tensor owner(DType::kInt32, Layout::dense({4}));
  EXPECT_THROW(Tensor::alias(owner, Layout::dense({3}), 2), Refusal);
  EXPECT_THROW(Tensor::alias(owner, Layout::dense({1}), -1), Refusal);
}

TEST(Chain, OutputsStandInTheOrderOfTheirMaking) {
  const Case item = build_case(parse_line(kLine));
  std::vector<std::string> names;
  for (const OutputSpec& spec : find_stage("sparse_attention").outputs(item))
    names.push_back(spec.name + " " + spec.made_by);
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "score index_score", "topk_idx index_select", "sparse_block_table index_select",
                "sparse_context_lens index_select", "o fp8_attention_partition",
                "m fp8_attention_partition", "l fp8_attention_partition", "merged attention_merge",
                "a8 row_quant", "a_scale row_quant", "out o_projection"}));
}

TEST(Chain, AFaultIsLaidToTheStageItIsIn) {
  const Case item = build_case(parse_line(kLine));
  const std::vector<std::pair<std::string, std::string>> faults{
      {"attention_p_unscaled", "fp8_attention_partition"},
      {"oproj_w_scale_of_wrong_row", "o_projection"}};
  for (const auto& [fault, stage] : faults) {
    const CaseResult result = judge_with_fault(item, fault);
    ASSERT_EQ(result.verdict(), Verdict::kWrong) << fault;
    ASSERT_TRUE(result.decisive()->first_difference) << fault;
    EXPECT_EQ(result.decisive()->first_difference->made_by, stage);
    const std::string text = bisection_text(find_stage(item.stage), item, result);
    EXPECT_NE(text.find("bisect: stage " + stage + " is the first that differs"), std::string::npos)
        << text;
  }
}

TEST(Chain, TwoContractsPartWhereTheirChoiceIsMade) {
  const Case item = build_case(parse_line(kLine));
  const Stage& stage = find_stage(item.stage);
  const std::string text =
      contract_bisection_text(stage, item, Contract::parse("mono,fp8_max=224"));
  EXPECT_NE(text.find("stage fp8_attention_partition is the first"), std::string::npos) << text;
  EXPECT_NE(text.find("sparse_context_lens int32 [2, 1], at 0: "), std::string::npos) << text;
  // A choice that nothing in the chain reads changes nothing.
  EXPECT_EQ(contract_bisection_text(stage, item, Contract::parse("mono,nan_key=first")),
            "bisect: no output differs (contract mono against mono,nan_key=first)");
}

TEST(Chain, AContractThatCannotTakeTheCaseIsNamed) {
  const Case item = build_case(parse_line(
      "stage=moe_route;contract=mono,routing_key=plain_lower_id;seed=1;experts=256;rows=2"));
  try {
    contract_bisection_text(find_stage("moe_route"), item, Contract{});
    FAIL() << "256 experts have no packed keys";
  } catch (const Refusal& refusal) {
    EXPECT_STREQ(refusal.what(),
                 "bisect: contract mono cannot take the case: moe_route: logits has 256 experts, "
                 "must have 1 to 128 with packed keys");
  }
}

TEST(Chain, ReusedBuffersAreToldApartWhenLookedAt) {
  const Stage& stage = find_stage("decode_step");
  const Case item = build_case(parse_line("stage=decode_step;seed=3;layers=2"));
  std::size_t own_names = 0;
  for (const OutputSpec& spec : with_own_buffers(stage).outputs(item))
    if (spec.name == "r0.x8" || spec.name == "r0.x8@s0.l1.r0.residual_norm_quant") ++own_names;
  EXPECT_EQ(own_names, 2u);
  for (const OutputSpec& spec : stage.outputs(item))
    EXPECT_EQ(spec.name.find('@'), std::string::npos) << spec.name;
}

TEST(Chain, AFaultInTheSecondLayerIsNotLaidToTheFirst) {
  // Both layers write the same buffers; only the second one reads the wrong parity.
  const Case item = build_case(parse_line("stage=decode_step;seed=3;layers=2"));
  const CaseResult result = judge_with_fault(item, "runner_parity_swapped");
  ASSERT_EQ(result.verdict(), Verdict::kWrong);
  ASSERT_TRUE(result.decisive()->first_difference);
  EXPECT_EQ(result.decisive()->first_difference->made_by,
            "s0.l1.r0.residual_norm_quant (residual_norm_quant)");
}

}  // namespace
}  // namespace monoref
