// Cases that no generator made: every input of every stage that lists its inputs, spoilt in each
// way that a file can spoil it. Each must be refused by a message that names stage and input.
#include "fuzz/inputs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "fuzz/runner.hpp"

namespace monoref {
namespace {

constexpr DType kTypes[] = {DType::kInt32,          DType::kInt64,          DType::kUInt8,
                            DType::kFloat32,        DType::kFloat64,        DType::kBFloat16,
                            DType::kFloat8E4M3FN,   DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2,
                            DType::kFloat8E5M2FNUZ, DType::kFloat8E8M0};

/// A sound case with every input that the stage can have, and more than one row.
Case whole_case(const std::string& stage) {
  const std::string sizes = stage == "all_reduce"        ? ";ranks=2;rows=2;absent=1"
                            : stage == "step_counter"    ? ""
                            : stage == "auxiliary_state" ? ";rows=2;width=8;residual=drawn"
                            : stage.starts_with("expert_")
                                ? ";rows=2;top_k=2;shared=separate;storage=whole"
                                : ";rows=2";
  return build_case(parse_line("stage=" + stage + ";seed=3" + sizes));
}

std::vector<const Stage*> listing_stages() {
  std::vector<const Stage*> stages;
  for (const Stage& stage : all_stages())
    if (!stage.inputs.empty()) stages.push_back(&stage);
  return stages;
}

/// What `judge_case` says of a case.
std::string refusal_of(const Case& item) {
  const CaseResult result = judge_case(find_stage(item.stage), item, {});
  if (result.verdict() != Verdict::kRefused) return std::string(verdict_name(result.verdict()));
  return result.decisive()->message;
}

std::string refusal_with(const Case& item, std::string_view input, Tensor tensor) {
  Case other = item;
  for (NamedTensor& known : other.inputs)
    if (known.name == input) known.tensor = std::move(tensor);
  return refusal_of(other);
}

TEST(StageInputs, TheStagesBehindAttentionListTheirs) {
  for (const char* name : {"all_reduce", "router", "moe_route", "mx_quant", "expert_up_gate",
                           "expert_down", "final_norm", "auxiliary_state", "step_counter"})
    EXPECT_FALSE(find_stage(name).inputs.empty()) << name;
}

TEST(StageInputs, AWholeCaseIsTakenAndNothingMayBeMissing) {
  for (const Stage* stage : listing_stages()) {
    const Case item = whole_case(std::string(stage->name));
    EXPECT_EQ(refusal_of(item), "exact") << stage->name;
    for (const InputSpec& spec : stage->inputs) {
      ASSERT_NE(item.find_input(std::string(spec.name)), nullptr) << stage->name << spec.name;
      if (spec.optional) continue;
      Case other = item;
      std::erase_if(other.inputs,
                    [&](const NamedTensor& known) { return known.name == spec.name; });
      EXPECT_EQ(refusal_of(other),
                fmt::format("{}: the case has no input '{}'", stage->name, spec.name));
    }
  }
}

TEST(StageInputs, UnknownOnesAreRefused) {
  for (const Stage* stage : listing_stages()) {
    Case item = whole_case(std::string(stage->name));
    item.inputs.push_back({"residul", item.inputs.front().tensor});
    EXPECT_TRUE(refusal_of(item).starts_with(
        fmt::format("{}: the case has an input 'residul', must have only ", stage->name)));
  }
}

TEST(StageInputs, EveryOtherTypeIsRefused) {
  for (const Stage* stage : listing_stages()) {
    const Case item = whole_case(std::string(stage->name));
    for (const InputSpec& spec : stage->inputs)
      for (const DType type : kTypes) {
        if (std::find(spec.types.begin(), spec.types.end(), type) != spec.types.end()) continue;
        const Tensor& known = item.input(std::string(spec.name));
        EXPECT_TRUE(refusal_with(item, spec.name, Tensor(type, Layout::dense(known.dims())))
                        .starts_with(fmt::format("{}: {} is {}, must be ", stage->name, spec.name,
                                                 dtype_name(type))));
      }
  }
}

TEST(StageInputs, EveryOtherRankIsRefused) {
  for (const Stage* stage : listing_stages()) {
    const Case item = whole_case(std::string(stage->name));
    for (const InputSpec& spec : stage->inputs)
      for (std::size_t rank = 0; rank <= 5; ++rank) {
        if (rank == spec.rank) continue;
        const Layout layout = Layout::dense(std::vector<std::int64_t>(rank, 1));
        EXPECT_EQ(refusal_with(item, spec.name, Tensor(spec.types.front(), layout)),
                  fmt::format("{}: {} has rank {}, must have {}", stage->name, spec.name, rank,
                              spec.rank));
      }
  }
}

TEST(StageInputs, ElementsThatLieOtherwiseAreRefused) {
  for (const Stage* stage : listing_stages()) {
    const Case item = whole_case(std::string(stage->name));
    for (const InputSpec& spec : stage->inputs) {
      const Tensor& known = item.input(std::string(spec.name));
      if (known.layout().elements() < 3) continue;
      const std::string argument = fmt::format("{}: {} ", stage->name, spec.name);
      std::vector<std::int64_t> strides = known.layout().strides;
      for (std::int64_t& stride : strides) stride *= 2;
      const auto with_strides = [&](const std::vector<std::int64_t>& wanted) {
        return refusal_with(item, spec.name,
                            Tensor(known.type(), Layout::strided(known.dims(), wanted)));
      };
      EXPECT_TRUE(with_strides(strides).starts_with(argument + "has stride")) << argument;
      EXPECT_TRUE(with_strides(std::vector<std::int64_t>(known.rank(), 0))
                      .starts_with(argument + "has stride"))
          << argument << "one element for all";
      if (spec.storage == InputStorage::kSparse) continue;
      Layout holed = Layout::dense(known.dims());
      holed.extents = {{0, 1}, {holed.elements() - 1, 1}};
      EXPECT_EQ(refusal_with(item, spec.name, Tensor(known.type(), holed)),
                argument + "is stored in 2 runs, must be in one");
    }
  }
}

TEST(StageInputs, RowsMayLieApartButNotOverlap) {
  const Case item = whole_case("final_norm");
  const std::int64_t hidden = item.input("ar").dim(1);
  const auto with_stride = [&](std::int64_t stride) {
    return refusal_with(item, "ar",
                        Tensor(DType::kBFloat16, Layout::strided({2, hidden}, {stride, 1})));
  };
  EXPECT_EQ(with_stride(hidden + 3), "exact");
  EXPECT_EQ(with_stride(hidden - 1),
            fmt::format("final_norm: ar has stride {} in dimension 0, must have at least {}",
                        hidden - 1, hidden));
}

TEST(StageInputs, MoreThan31BitsOfRowsAreRefusedBeforeAnythingIsAllocated) {
  const Case item = whole_case("auxiliary_state");
  constexpr std::int64_t kMany = std::int64_t{1} << 31;
  for (const std::int64_t width : {0, 8})
    EXPECT_EQ(refusal_with(item, "hidden",
                           Tensor(DType::kBFloat16, Layout::strided({kMany, width}, {0, 1}))),
              "auxiliary_state: hidden has 2147483648 in dimension 0, the limit is 2147483647");
}

std::string refusal_of_parameter(const std::string& stage, const std::string& key, Scalar value) {
  Case item = whole_case(stage);
  const auto known = std::find_if(item.scalars.begin(), item.scalars.end(),
                                  [&](const NamedScalar& scalar) { return scalar.name == key; });
  if (known == item.scalars.end()) return "there is no such parameter";
  known->value = std::move(value);
  return refusal_of(item);
}

TEST(StageInputs, ChainsOfMoreThanACaseCanHaveAreRefusedBeforeTheyAreMade) {
  const auto refusal = [](const char* stage, const char* key, std::int64_t value) {
    Case item = build_case(parse_line(std::string("stage=") + stage + ";seed=3"));
    for (NamedScalar& scalar : item.scalars)
      if (scalar.name == key) scalar.value = value;
    return refusal_of(item);
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-1}, kMost}) {
    EXPECT_EQ(refusal("sparse_layer", "ranks", value),
              fmt::format("sparse_layer: ranks is {}, must be 1 to 8", value));
    EXPECT_EQ(refusal("decode_step", "layers", value),
              fmt::format("decode_step: layers is {}, must be 1 to 60", value));
    EXPECT_EQ(refusal("decode_step", "steps", value),
              fmt::format("decode_step: steps is {}, must be 1 to 64", value));
  }
  EXPECT_EQ(refusal("decode_step", "aux_mask", -1),
            "decode_step: aux_mask is -1, must be 0 to 9223372036854775807");
}

TEST(StageInputs, ParametersThatDoNotFitAreRefused) {
  constexpr std::int64_t kTwoTo32 = std::int64_t{1} << 32;
  EXPECT_EQ(refusal_of_parameter("all_reduce", "tag", kTwoTo32 + 1),
            "all_reduce: tag is 4294967297, must be -2147483648 to 2147483647");
  for (const char* flag : {"renormalise", "shared"})
    EXPECT_EQ(refusal_of_parameter("moe_route", flag, std::int64_t{2}),
              fmt::format("moe_route: {} is 2, must be 0 or 1", flag));
  EXPECT_EQ(refusal_of_parameter("step_counter", "blocks", std::int64_t{1} << 31),
            "step_counter: blocks is 2147483648, must be 1 to 1024");
  EXPECT_EQ(refusal_of_parameter("expert_down", "wide_from", std::int64_t{0}),
            "expert_down: wide_from is 0, must be at least 1");
  EXPECT_EQ(refusal_of_parameter("expert_down", "wide_from", kTwoTo32), "exact");
  const std::pair<const char*, const char*> gaps[] = {{"router", "out_row_gap"},
                                                      {"moe_route", "out_row_gap"},
                                                      {"mx_quant", "codes_row_gap"},
                                                      {"final_norm", "out_row_gap"},
                                                      {"auxiliary_state", "out_row_gap"}};
  for (const auto& [stage, gap] : gaps)
    for (const std::int64_t value : {std::int64_t{-1}, kMaxRowGap + 1, kTwoTo32})
      EXPECT_EQ(refusal_of_parameter(stage, gap, value),
                fmt::format("{}: {} is {}, must be 0 to 256", stage, gap, value));
}

}  // namespace
}  // namespace monoref
