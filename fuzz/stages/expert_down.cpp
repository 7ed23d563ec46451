// expert_down: generator, reference and kernel side by side.
#include "reference/stages/expert_down.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "device/launch/expert_down.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/definition.hpp"
#include "fuzz/laws/ignores.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/laws/scale.hpp"
#include "fuzz/stage.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/expert_content.hpp"
#include "fuzz/stages/floats.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kHiddenUnit = 32;

/// A route weight of the named content; the shared expert's is 1 but for "odd" and "special" ones.
float route_weight(std::string_view kind, bool shared, CounterRandom& random) {
  if (kind == "special" && random.once_in(8)) return draw_float(Floats::kSpecial, random);
  if (shared && kind != "odd") return 1.0f;
  if (kind == "zero") return random.once_in(4) ? -0.0f : 0.0f;
  const float power = std::ldexp(1.0f, static_cast<int>(random.between(-6, 1)));
  return kind == "powers" ? power : power * static_cast<float>(random.between(129, 255)) / 128.0f;
}

Tensor make_route_weights(const Params& params, const Routing& routing, CounterRandom& random) {
  std::int64_t at = 0;
  return drawn_tensor(DType::kFloat32, Layout::dense({routing.rows, routing.slots()}), [&] {
    const bool last = ++at % routing.slots() == 0;
    return std::bit_cast<std::uint32_t>(
        route_weight(params.word("route"), routing.has_shared && last, random));
  });
}

void plant_defect(Case& item, const std::string& defect) {
  Tensor ids = item.input("topk_ids");
  auto view = ids.view<std::int32_t, 2>();
  if (defect == "shared_not_last")
    std::swap(view(0, 0), view(0, view.dim(1) - 1));
  else if (defect == "id_twice")
    view(0, 0) = view(0, view.dim(1) - 1);
  else if (defect == "id_beyond")
    view(0, 0) = static_cast<std::int32_t>(item.integer("n_routed") + 1);
  replace_input(item, "topk_ids", std::move(ids));
  if (defect == "weight_count") {
    const Tensor& route = item.input("topk_weights");
    replace_input(item, "topk_weights",
                  Tensor(DType::kFloat32, Layout::dense({route.dim(0), route.dim(1) + 1})));
  }
}

/// A defect that this case can have.
std::string applicable_defect(const Params& params, const Routing& routing,
                              const Contract& contract) {
  const std::string defect(params.word("defect"));
  if (defect == "none" || defect == "weight_count") return defect;
  const bool garbage = contract.out_of_range_slot == OutOfRangeSlot::kDrop;
  if (routing.rows == 0 || garbage) return "none";
  if (defect == "shared_not_last" && !routing.has_shared) return "none";
  return defect == "id_twice" && routing.slots() < 2 ? "none" : defect;
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  CounterRandom id_random(seed, "topk_ids");
  CounterRandom code_random(seed, "mid8");
  CounterRandom scale_random(seed, "mid_scale");
  CounterRandom route_random(seed, "topk_weights");
  const Routing routing(params);
  const std::int64_t inter = kExpertStep * params["inter_units"];
  const std::int64_t hidden = kHiddenUnit * params["hidden_units"];
  const std::string defect = applicable_defect(params, routing, contract);
  Case item;
  item.scalars = {{"wide_from", params["wide_from"]},
                  {"scaling", static_cast<double>(params["scaling_halves"]) / 2},
                  {"defect", defect}};
  item.inputs = {
      {"mid8",
       make_activation_codes(params, {routing.rows, routing.slots(), inter}, 0, code_random)},
      {"mid_scale",
       make_activation_scales(params, {routing.rows, routing.slots(), inter / 32}, scale_random)},
      {"topk_ids", make_expert_ids(params, routing, contract, id_random)},
      {"topk_weights", make_route_weights(params, routing, route_random)}};
  add_expert_weights(item, params, routing, "w2", "s2", hidden, inter, seed);
  plant_defect(item, defect);
  return item;
}

ExpertDownInput input_of(const Case& item) {
  return {item.input("mid8").view<std::uint8_t, 3>(),
          item.input("mid_scale").view<std::uint8_t, 3>(),
          item.input("topk_ids").view<std::int32_t, 2>(),
          item.input("topk_weights").view<float, 2>(),
          expert_weights_of(item, "w2", "s2"),
          item.integer("wide_from"),
          item.real("scaling"),
          item.contract};
}

bool is_wide(const Case& item) {
  return item.input("mid8").dim(0) >= item.integer("wide_from");
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto [rows, hidden] = expert_down_shape(input_of(item));
  return {{"partial", DType::kBFloat16, Layout::dense({rows, hidden}), {"row", "element"}, ""}};
}

void reference(const Case& item, Outputs& out) {
  expert_down_fast(input_of(item), {out[0].tensor.view<std::uint16_t, 2>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const ExpertDownInput input = input_of(item);
  launcher.enqueue(device::launch::ExpertDown{
      .mid8 = launcher.address<const std::uint8_t>("mid8"),
      .mid_scale = launcher.address<const std::uint8_t>("mid_scale"),
      .topk_ids = launcher.address<const std::int32_t>("topk_ids"),
      .topk_weights = launcher.address<const float>("topk_weights"),
      .w2 = launcher.address<const std::uint8_t>("w2"),
      .s2 = launcher.address<const std::uint8_t>("s2"),
      .shared_w2 = launcher.address_or_null<const std::uint8_t>("shared_w2"),
      .shared_s2 = launcher.address_or_null<const std::uint8_t>("shared_s2"),
      .partial = launcher.address<std::uint16_t>("out.partial"),
      .rows = input.mid8.dim(0),
      .slots = input.mid8.dim(1),
      .inter = input.mid8.dim(2),
      .hidden = input.w2.weight.dim(1),
      .experts = input.w2.weight.dim(0),
      .n_routed = input.w2.n_routed,
      .weights = option(input.w2.element == MxElement::kFp4),
      .e8m0_zero = option(item.contract.e8m0_zero == E8M0Zero::kZero),
      .wide_from = input.wide_from,
      .routed_scaling = option(item.contract.routed_scaling == RoutedScaling::kOutput),
      .scaling = static_cast<float>(input.scaling)});
}

void define(const Case& item, Outputs& out) {
  expert_down(input_of(item), {out[0].tensor.view<std::uint16_t, 2>()});
}

std::int64_t work(const Case& item) {
  return item.input("mid8").layout().elements() * item.input("w2").dim(1);
}

bool is_narrow(const Case& item) {
  return !is_wide(item);
}

/// The first and the last routed slot in each other's place.
laws::Parts exchanged_slots(const Case& item) {
  laws::Parts order(static_cast<std::size_t>(item.input("topk_ids").dim(1)));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const std::size_t routed =
      order.size() - (expert_weights_of(item, "w2", "s2").has_shared() ? 1 : 0);
  if (routed < 2) return {};
  std::swap(order[0], order[routed - 1]);
  return order;
}

/// The routed experts of a case weigh nothing; nothing where no shared expert is left.
std::optional<Case> without_routed_weights(const Case& item) {
  const ExpertWeights weights = expert_weights_of(item, "w2", "s2");
  if (!weights.has_shared()) return std::nullopt;
  Case other = item;
  Tensor route = item.input("topk_weights");
  const auto ids = item.input("topk_ids").view<std::int32_t, 2>();
  for (std::int64_t row = 0; row < ids.dim(0); ++row)
    for (std::int64_t slot = 0; slot < ids.dim(1); ++slot)
      if (ids(row, slot) != weights.n_routed) route.view<float, 2>()(row, slot) = 0;
  replace_input(other, "topk_weights", std::move(route));
  return other;
}

/// The same, and what routed experts were given is zero.
std::optional<Case> without_routed_rows(const Case& item) {
  const std::int64_t n_routed = item.integer("n_routed");
  const auto ids = item.input("topk_ids").view<std::int32_t, 2>();
  Case other = item;
  Tensor silent = item.input("mid8");
  auto mid = silent.view<std::uint8_t, 3>();
  for (std::int64_t row = 0; row < mid.dim(0); ++row)
    for (std::int64_t slot = 0; slot < mid.dim(1); ++slot)
      for (std::int64_t k = 0; ids(row, slot) != n_routed && k < mid.dim(2); ++k)
        mid(row, slot, k) = 0;
  replace_input(other, "mid8", std::move(silent));
  return other;
}

/// Elements that are finite: Inf times a weight of 0 is NaN.
laws::OutputRegion finite_elements(const Case&, const Outputs& out) {
  const auto partial = output(out, "partial").view<std::uint16_t, 2>();
  return
      [=](std::string_view, laws::Index at) { return (partial(at[0], at[1]) & 0x7F80) != 0x7F80; };
}

/// What keeps every operation far from the ends of binary32.
std::vector<laws::Factor> ordinary(std::string_view multiplied) {
  std::vector<laws::Factor> factors{{"topk_weights", 0, -10, 11},
                                    {"mid_scale", 0, -37, 38},
                                    {"s2", 0, -37, 38},
                                    {"shared_s2", 0, -37, 38}};
  for (laws::Factor& factor : factors)
    if (factor.name == multiplied) factor.power = 1;
  return factors;
}

}  // namespace

Stage expert_down_stage() {
  Stage stage;
  stage.name = "expert_down";
  stage.summary = "the second half of the experts, and their weighted sum";
  stage.source = "mono-decode sections 7, 9 and 10; upstream-semantics section 7.6";
  stage.contracts = {"mono", "mono,routed_scaling=output", "mono,e8m0_zero=zero",
                     "mono,out_of_range_slot=drop"};
  stage.golden_cases = 4;
  stage.golden_bytes = 24000;
  stage.dimensions = routing_dimensions();
  for (const Dimension& dimension : expert_weight_dimensions())
    stage.dimensions.push_back(dimension);
  stage.dimensions.push_back(
      {"inter_units", 1, 1, 3, {1, 3, 5, 6}, {}, "elements of mid, in 128s"});
  stage.dimensions.push_back(
      {"hidden_units", 1, 1, 3, {1}, {}, "elements of the result, in thirty-twos", 192});
  stage.dimensions.push_back(
      {"wide_from", 5, 1, 6, {5, 5, 12}, {}, "rows that take the wide form"});
  stage.dimensions.push_back(
      {"scaling_halves", 2, 1, 7, {}, {}, "factor of the routed experts, in halves"});
  stage.dimensions.push_back(Dimension::choice(
      "route", {"ordinary", "powers", "zero", "odd", "special"}, "route weights"));
  stage.dimensions.push_back(
      defect_dimension(15, {"shared_not_last", "id_twice", "id_beyond", "weight_count"}));
  stage.inputs = {
      {"mid8", {DType::kFloat8E4M3FN}, {"rows", "slots", "k"}},
      {"mid_scale", {DType::kUInt8, DType::kFloat8E8M0}, {"rows", "slots", "blocks of k"}},
      {"topk_ids", {DType::kInt32}, {"rows", "slots"}},
      {"topk_weights", {DType::kFloat32}, {"rows", "slots"}}};
  stage.scalars = {ScalarSpec::integer("wide_from", 1, std::numeric_limits<std::int64_t>::max()),
                   ScalarSpec::real("scaling", -HUGE_VAL, HUGE_VAL)};
  add_expert_inputs(stage, "w2", "s2");
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      laws::permute("row", {"mid8", "mid_scale", "topk_ids", "topk_weights"}),
      laws::alone({.inputs = {{"mid8"}, {"mid_scale"}, {"topk_ids"}, {"topk_weights"}},
                   .applies = is_narrow,
                   .statement = "in the narrow form a row alone is the same as among others"}),
      laws::permute(
          {.part = "slot",
           .inputs = {{"mid8", 1}, {"mid_scale", 1}, {"topk_ids", 1}, {"topk_weights", 1}},
           .order = exchanged_slots,
           .applies = is_wide,
           .outputs_follow = false,
           .statement = "in the wide form slots in another order are the same sum"}),
      laws::definition({outputs, define, work}),
      laws::ignores("poison_invariance", "experts without rows do not matter",
                    unrouted_experts("w2", "s2")),
      laws::ignores("garbage_ids", "ids that name no expert do not matter",
                    garbage_ids("w2", "s2")),
      laws::scale({.inputs = ordinary("topk_weights"), .outputs = {{"partial"}}}),
      laws::scale({.inputs = ordinary("mid_scale"), .outputs = {{"partial"}}}),
      laws::of_variant(
          without_routed_weights,
          laws::unchanged("shared_alone", "without routed weights the shared expert stands alone",
                          {without_routed_rows}, {.compared = finite_elements})),
  };
  return stage;
}

}  // namespace monoref
