// expert_down: generator, reference and kernel side by side.
#include "reference/stages/expert_down.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "device/launch/expert_down.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/stage.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/expert_content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/step_rows.hpp"
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

/// In the wide form the list of experts is the step's, whatever the order of its rows.
std::optional<std::string> rows_may_be_reordered(const Case& item, const Outputs& out,
                                                 const Evaluate& evaluate) {
  const std::int64_t rows = item.input("mid8").dim(0);
  const Outputs other =
      evaluate(with_reversed_rows(item, {"mid8", "mid_scale", "topk_ids", "topk_weights"}));
  for (std::int64_t row = 0; row < rows; ++row)
    if (!same_row(output(out, "partial"), row, output(other, "partial"), rows - 1 - row))
      return fmt::format("row {} changes when the rows are reversed", row);
  return std::nullopt;
}

std::optional<std::string> a_narrow_row_alone_is_the_same(const Case& item, const Outputs& out,
                                                          const Evaluate& evaluate) {
  const std::int64_t rows = item.input("mid8").dim(0);
  if (rows < 2 || is_wide(item)) return std::nullopt;
  const Outputs alone =
      evaluate(with_one_row(item, {"mid8", "mid_scale", "topk_ids", "topk_weights"}, rows / 2));
  if (!same_row(output(out, "partial"), rows / 2, output(alone, "partial"), 0))
    return fmt::format("row {} changes when it is alone", rows / 2);
  return std::nullopt;
}

/// Exchanges two slots of every row of a tensor [rows, slots] or [rows, slots, width].
Tensor with_exchanged_slots(const Tensor& tensor, std::int64_t a, std::int64_t b) {
  Tensor made(tensor.type(), Layout::dense(tensor.dims()));
  const std::int64_t slots = tensor.dim(1);
  std::vector<std::int64_t> order;
  for (std::int64_t slot = 0; slot < slots; ++slot)
    order.push_back(slot == a ? b : slot == b ? a : slot);
  const std::int64_t width = tensor.rank() == 3 ? tensor.dim(2) : 1;
  const auto size = static_cast<std::int64_t>(tensor.element_size());
  const std::int64_t slot_stride = tensor.layout().strides[1];
  for (std::int64_t row = 0; row < tensor.dim(0); ++row)
    for (std::int64_t slot = 0; slot < slots; ++slot)
      std::copy_n(tensor.base() + (row * tensor.layout().strides[0] +
                                   order[static_cast<std::size_t>(slot)] * slot_stride) *
                                      size,
                  width * size, made.base() + (row * slots + slot) * width * size);
  return made;
}

/// The wide form adds by expert: which slot names it does not matter.
std::optional<std::string> wide_slots_may_be_exchanged(const Case& item, const Outputs& out,
                                                       const Evaluate& evaluate) {
  const ExpertWeights weights = expert_weights_of(item, "w2", "s2");
  const std::int64_t slots = item.input("topk_ids").dim(1);
  const std::int64_t last_routed = slots - (weights.has_shared() ? 2 : 1);
  if (!is_wide(item) || last_routed < 1) return std::nullopt;
  Case other = item;
  for (NamedTensor& input : other.inputs)
    for (const char* name : {"mid8", "mid_scale", "topk_ids", "topk_weights"})
      if (input.name == name) input.tensor = with_exchanged_slots(input.tensor, 0, last_routed);
  if (!same_bits(out, evaluate(other), "partial"))
    return fmt::format("the result changes when slots 0 and {} are exchanged", last_routed);
  return std::nullopt;
}

std::optional<std::string> unrouted_experts_do_not_matter(const Case& item, const Outputs& out,
                                                          const Evaluate& evaluate) {
  const auto other = with_other_unrouted_experts(item, "w2", "s2");
  if (other && !same_bits(out, evaluate(*other), "partial"))
    return "the result depends on an expert that no row is routed to";
  return std::nullopt;
}

std::optional<std::string> garbage_ids_do_not_matter(const Case& item, const Outputs& out,
                                                     const Evaluate& evaluate) {
  const auto other = with_other_garbage_ids(item, expert_weights_of(item, "w2", "s2"));
  if (other && !same_bits(out, evaluate(*other), "partial"))
    return "the result depends on what an id is that names no expert";
  return std::nullopt;
}

/// Whether scales and route weights keep every operation far from the ends of binary32.
bool is_ordinary(const Case& item) {
  for (const char* name : {"mid_scale", "s2", "shared_s2"}) {
    const Tensor* scale = item.find_input(name);
    if (scale != nullptr && !with_moved_scales(*scale, 1, 90, 165)) return false;
  }
  const auto route = item.input("topk_weights").view<float, 2>();
  for (std::int64_t row = 0; row < route.dim(0); ++row)
    for (std::int64_t slot = 0; slot < route.dim(1); ++slot)
      if (const float weight = std::fabs(route(row, slot));
          weight != 0 && !(weight >= 0x1p-10f && weight <= 0x1p10f))
        return false;
  return true;
}

/// Twice every route weight, or twice every scale of mid, is twice the result.
std::optional<std::string> parts_are_linear(const Case& item, const Outputs& out,
                                            const Evaluate& evaluate) {
  if (!is_ordinary(item)) return std::nullopt;
  Case heavier = item;
  Tensor route = item.input("topk_weights");
  for (std::int64_t row = 0; row < route.dim(0); ++row)
    for (std::int64_t slot = 0; slot < route.dim(1); ++slot) route.view<float, 2>()(row, slot) *= 2;
  replace_input(heavier, "topk_weights", std::move(route));
  Case louder = item;
  replace_input(louder, "mid_scale", *with_moved_scales(item.input("mid_scale"), 1, 90, 165));
  for (const auto& [what, other] : {std::pair{"route weights", &heavier}, {"mid", &louder}})
    if (const auto at =
            first_not_doubled(output(out, "partial"), output(evaluate(*other), "partial")))
      return fmt::format("element {} is not doubled with the {}", *at, what);
  return std::nullopt;
}

/// Without routed weights (bug case M14) it does not matter what the routed experts were given, as
/// long as it is finite.
std::optional<std::string> the_shared_expert_stands_alone(const Case& item, const Outputs&,
                                                          const Evaluate& evaluate) {
  const ExpertWeights weights = expert_weights_of(item, "w2", "s2");
  if (!weights.has_shared() || !is_ordinary(item)) return std::nullopt;
  Case unweighted = item;
  Tensor route = item.input("topk_weights");
  Tensor silent = item.input("mid8");
  const auto ids = item.input("topk_ids").view<std::int32_t, 2>();
  for (std::int64_t row = 0; row < ids.dim(0); ++row)
    for (std::int64_t slot = 0; slot < ids.dim(1); ++slot) {
      if (ids(row, slot) == weights.n_routed) continue;
      route.view<float, 2>()(row, slot) = 0;
      for (std::int64_t k = 0; k < silent.dim(2); ++k)
        silent.view<std::uint8_t, 3>()(row, slot, k) = 0;
    }
  replace_input(unweighted, "topk_weights", std::move(route));
  Case alone = unweighted;
  replace_input(alone, "mid8", std::move(silent));
  const Outputs some = evaluate(unweighted);
  const Outputs none = evaluate(alone);
  const auto before = output(some, "partial").view<std::uint16_t, 2>();
  const auto after = output(none, "partial").view<std::uint16_t, 2>();
  for (std::int64_t row = 0; row < before.dim(0); ++row)
    for (std::int64_t i = 0; i < before.dim(1); ++i)
      if (before(row, i) != after(row, i) && (before(row, i) & 0x7F80) != 0x7F80)
        return fmt::format("row {}, element {} has a part of a routed expert at weight 0", row, i);
  return std::nullopt;
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
      {"row_order", "rows in another order are the same rows", rows_may_be_reordered},
      {"row_alone", "in the narrow form a row alone is the row of the batch",
       a_narrow_row_alone_is_the_same},
      {"slot_order", "in the wide form slots in another order are the same sum",
       wide_slots_may_be_exchanged},
      {"poison_invariance", "experts without rows do not matter", unrouted_experts_do_not_matter},
      {"garbage_ids", "ids that name no expert do not matter", garbage_ids_do_not_matter},
      {"linearity", "twice the route weights, or twice mid, is twice the result", parts_are_linear},
      {"shared_alone", "without routed weights the shared expert stands alone",
       the_shared_expert_stands_alone},
  };
  return stage;
}

}  // namespace monoref
