// expert_up_gate: generator, reference and kernel side by side.
#include "reference/stages/expert_up_gate.hpp"

#include <algorithm>
#include <limits>

#include "device/launch/expert_up_gate.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/definition.hpp"
#include "fuzz/laws/ignores.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/laws/scale.hpp"
#include "fuzz/stage.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/expert_content.hpp"
#include "fuzz/stages/floats.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kHiddenUnit = 256;
constexpr std::int64_t kInterUnit = 32;

/// The limit of a case; 0 only where the contract takes it.
double limit_of(const Params& params, const Contract& contract) {
  const std::string_view word = params.word("limit");
  if (word == "infinite") return std::numeric_limits<double>::infinity();
  if (word == "half") return 0.5;
  const bool zero_is_served = contract.swiglu_limit_zero == SwigluLimitZero::kNoClamp;
  return word == "zero" && zero_is_served ? 0.0 : 7.0;
}

/// The model's function, plain SiLU, and (gate / 2) * up, which hides no bit of the sums.
void add_activation(Case& item, std::string_view kind) {
  item.scalars.push_back({"alpha", kind == "swigluoai" ? 1.702 : kind == "silu" ? 1.0 : 0.0});
  item.scalars.push_back({"beta", kind == "swigluoai" ? 1.0 : 0.0});
}

void plant_defect(Case& item, const std::string& defect) {
  if (defect == "limit_negative") {
    for (NamedScalar& scalar : item.scalars)
      if (scalar.name == "limit") scalar.value = -7.0;
  } else if (defect == "id_twice" || defect == "id_beyond") {
    Tensor ids = item.input("topk_ids");
    const std::int64_t slots = ids.dim(1);
    auto view = ids.view<std::int32_t, 2>();
    view(0, 0) = defect == "id_twice" ? view(0, slots - 1)
                                      : static_cast<std::int32_t>(item.integer("n_routed") + 1);
    replace_input(item, "topk_ids", std::move(ids));
  } else if (defect == "scale_columns") {
    const Tensor& scale = item.input("x_scale");
    replace_input(item, "x_scale",
                  Tensor(DType::kUInt8, Layout::dense({scale.dim(0), scale.dim(1) + 1})));
  }
}

/// A defect that this case can have.
std::string applicable_defect(const Params& params, const Routing& routing,
                              const Contract& contract) {
  const std::string defect(params.word("defect"));
  const bool no_ids = routing.rows == 0;
  const bool garbage = contract.out_of_range_slot == OutOfRangeSlot::kDrop;
  if (defect == "id_twice" && (no_ids || routing.slots() < 2 || garbage)) return "none";
  if (defect == "id_beyond" && (no_ids || garbage)) return "none";
  return defect;
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  CounterRandom id_random(seed, "topk_ids");
  CounterRandom code_random(seed, "x8");
  CounterRandom scale_random(seed, "x_scale");
  const Routing routing(params);
  const std::int64_t hidden = kHiddenUnit * params["hidden_units"];
  const std::int64_t inter = kInterUnit * params["inter_units"];
  const std::string defect = applicable_defect(params, routing, contract);
  Case item;
  item.scalars = {{"limit", limit_of(params, contract)}, {"defect", defect}};
  add_activation(item, params.word("activation"));
  item.inputs = {
      {"x8",
       make_activation_codes(params, {routing.rows, hidden}, params["x8_row_gap"], code_random)},
      {"x_scale", make_activation_scales(params, {routing.rows, hidden / 32}, scale_random)},
      {"topk_ids", make_expert_ids(params, routing, contract, id_random)}};
  add_expert_weights(item, params, routing, "w13", "s13", 2 * inter, hidden, seed);
  plant_defect(item, defect);
  return item;
}

ExpertUpGateInput input_of(const Case& item) {
  return {item.input("x8").view<std::uint8_t, 2>(),
          item.input("x_scale").view<std::uint8_t, 2>(),
          item.input("topk_ids").view<std::int32_t, 2>(),
          expert_weights_of(item, "w13", "s13"),
          item.real("limit"),
          item.real("alpha"),
          item.real("beta"),
          item.contract};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto [rows, slots, inter] = expert_up_gate_shape(input_of(item));
  return {{"mid",
           DType::kBFloat16,
           Layout::dense({rows, slots, inter}),
           {"row", "slot", "element"},
           ""}};
}

void reference(const Case& item, Outputs& out) {
  expert_up_gate_fast(input_of(item), {out[0].tensor.view<std::uint16_t, 3>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const ExpertUpGateInput input = input_of(item);
  launcher.enqueue(device::launch::ExpertUpGate{
      .x8 = launcher.address<const std::uint8_t>("x8"),
      .x8_row_stride = input.x8.stride(0),
      .x_scale = launcher.address<const std::uint8_t>("x_scale"),
      .topk_ids = launcher.address<const std::int32_t>("topk_ids"),
      .w13 = launcher.address<const std::uint8_t>("w13"),
      .s13 = launcher.address<const std::uint8_t>("s13"),
      .shared_w13 = launcher.address_or_null<const std::uint8_t>("shared_w13"),
      .shared_s13 = launcher.address_or_null<const std::uint8_t>("shared_s13"),
      .mid = launcher.address<std::uint16_t>("out.mid"),
      .rows = input.x8.dim(0),
      .slots = input.topk_ids.dim(1),
      .hidden = input.x8.dim(1),
      .inter = input.w13.weight.dim(1) / 2,
      .experts = input.w13.weight.dim(0),
      .n_routed = input.w13.n_routed,
      .weights = option(input.w13.element == MxElement::kFp4),
      .e8m0_zero = option(item.contract.e8m0_zero == E8M0Zero::kZero),
      .limit = static_cast<float>(input.limit),
      .alpha = static_cast<float>(input.alpha),
      .beta = static_cast<float>(input.beta)});
}

void define(const Case& item, Outputs& out) {
  expert_up_gate(input_of(item), {out[0].tensor.view<std::uint16_t, 3>()});
}

std::int64_t work(const Case& item) {
  return item.input("topk_ids").layout().elements() * item.input("x8").dim(1) *
         item.input("w13").dim(1);
}

}  // namespace

Stage expert_up_gate_stage() {
  Stage stage;
  stage.name = "expert_up_gate";
  stage.summary = "the first half of the routed and shared experts, through SwiGLU";
  stage.source = "mono-decode sections 7, 9 and 10; upstream-semantics sections 7.3 and 7.6";
  stage.contracts = {"mono", "mono,e8m0_zero=zero", "mono,swiglu_limit_zero=no_clamp",
                     "mono,out_of_range_slot=drop"};
  stage.golden_cases = 3;
  stage.golden_bytes = 30000;
  stage.dimensions = routing_dimensions();
  for (const Dimension& dimension : expert_weight_dimensions())
    stage.dimensions.push_back(dimension);
  stage.dimensions.push_back(
      {"hidden_units", 1, 1, 2, {1, 3, 5}, {}, "elements of a token, in 256s", 24});
  stage.dimensions.push_back(
      {"inter_units", 1, 1, 2, {1, 3}, {}, "elements of mid, in thirty-twos", 24});
  stage.dimensions.push_back({"x8_row_gap", 0, 0, 17, {0, 16}, {}, "codes between tokens"});
  stage.dimensions.push_back(
      Dimension::choice("limit", {"seven", "infinite", "half", "zero"}, "limit of SwiGLU"));
  stage.dimensions.push_back(Dimension::choice("activation", {"swigluoai", "silu", "product"},
                                               "alpha and beta of SwiGLU"));
  stage.dimensions.push_back(
      defect_dimension(15, {"limit_negative", "id_twice", "id_beyond", "scale_columns"}));
  stage.inputs = {{"x8", {DType::kFloat8E4M3FN}, {"rows", "k"}, InputStorage::kRows},
                  {"x_scale", {DType::kUInt8, DType::kFloat8E8M0}, {"rows", "blocks of k"}},
                  {"topk_ids", {DType::kInt32}, {"rows", "slots"}}};
  stage.scalars = {ScalarSpec::real("limit", 0, HUGE_VAL), ScalarSpec::finite("alpha"),
                   ScalarSpec::finite("beta")};
  add_expert_inputs(stage, "w13", "s13");
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      laws::permute("row", {"x8", "x_scale", "topk_ids"}),
      laws::alone("row", {"x8", "x_scale", "topk_ids"}),
      laws::permute({.part = "slot", .inputs = {{"topk_ids", 1}}, .outputs = {{"mid", 1}}}),
      laws::definition({outputs, define, work}),
      laws::ignores("poison_invariance", "experts without rows do not matter",
                    unrouted_experts("w13", "s13")),
      laws::ignores("garbage_ids", "ids that name no expert do not matter",
                    garbage_ids("w13", "s13")),
      laws::scale({.inputs = {{"x_scale", 1, -125, 113},
                              {"s13", -1, -125, 113},
                              {"shared_s13", -1, -125, 113}},
                   .outputs = {}}),
  };
  return stage;
}

}  // namespace monoref
