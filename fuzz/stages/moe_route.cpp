// moe_route: generator, reference and kernel side by side.
#include "reference/stages/moe_route.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "device/launch/moe_route.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/ignores.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/laws/scale.hpp"
#include "fuzz/stage.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/step_rows.hpp"
#include "reference/formats/convert.hpp"

namespace monoref {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The model's factor, none, primes to other scales (bug case M11), and far ends.
constexpr std::array<double, 8> kScalings{2, 1, 2.5, 1.5, 0.1, 64, 1e-12, 1e30};
constexpr std::array<double, 4> kSharedWeights{1, 0.3, 0, -2};

/// `value` moved by some places.
float nudged(float value, std::int64_t places) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(std::bit_cast<std::int32_t>(value) +
                                                         static_cast<std::int32_t>(places)));
}

/// Logits of one row (bug cases M01 to M05).
class LogitContent {
 public:
  LogitContent(std::string_view kind, CounterRandom& random) : kind_(kind), random_(random) {
    level_ = static_cast<float>(2 * random.between(-12, 12) + 1) / 8.0f;
  }

  float next() {
    const float ordinary = static_cast<float>(random_.between(-8192, 8192)) / 1024.0f;
    if (kind_ == "levels") return static_cast<float>(random_.between(-2, 2));
    if (kind_ == "equal") return level_;
    if (kind_ == "near_equal") return nudged(level_, random_.between(-200, 200));
    if (kind_ == "bf16_ties")  // around the middle between two BF16 numbers
      return nudged(1.0f, 0x8000 * random_.between(-4, 4) + random_.between(-1, 1));
    if (kind_ == "saturated") return one_of({100, kInfinity, 3e38f, 17, 16, -kInfinity, 0});
    if (kind_ == "underflow") return static_cast<float>(random_.between(-2400, -160)) / 16.0f;
    if (kind_ == "minus_inf") return random_.once_in(16) ? ordinary : -kInfinity;
    if (kind_ == "some_nan") return random_.once_in(6) ? one_of({kNan, -kNan}) : ordinary;
    if (kind_ == "all_nan") return one_of({kNan, -kNan});
    if (kind_ == "any") return draw_float(Floats::kSpecial, random_);
    return ordinary;
  }

 private:
  float one_of(std::initializer_list<float> values) {
    return values.begin()[random_.below(static_cast<std::int64_t>(values.size()))];
  }

  std::string_view kind_;
  CounterRandom& random_;
  float level_;
};

float bias_element(std::string_view kind, CounterRandom& random) {
  const float ordinary = static_cast<float>(random.between(-2048, 2048)) / 1024.0f;
  if (kind == "ordinary") return ordinary;
  if (kind == "negative") return -5.0f - std::fabs(ordinary);
  if (kind == "large") return 12.0f + static_cast<float>(random.between(-3, 3));
  if (kind == "near_equal")  // keys around the step between packed ones, of either sign
    return (random.once_in(4) ? -1.0f : 1.0f) * nudged(0.75f, random.between(-300, 300));
  if (kind == "some_nan") return random.once_in(6) ? (random.once_in(2) ? kNan : -kNan) : ordinary;
  if (kind == "any") return draw_float(Floats::kSpecial, random);
  return random.once_in(2) ? 0.0f : -0.0f;
}

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

/// Sizes of a case, after the dimensions that depend on each other are settled.
struct Sizes {
  std::int64_t rows;
  std::int64_t experts;
  std::int64_t top_k;

  Sizes(const Params& params, const Contract& contract) : rows(params["rows"]) {
    const bool packed = contract.routing_key == RoutingKey::kPacked;
    experts = std::min(params["experts"], packed ? kRoutePackedExperts : kRoutePlainExperts);
    top_k = std::min(params["top_k"], experts);
    if (params.word("defect") == "too_many_experts")
      experts = (packed ? kRoutePackedExperts : kRoutePlainExperts) + 1;
    if (params.word("defect") == "top_k_above") top_k = std::min(experts, kRouteMaxTopK) + 1;
    if (params.word("defect") == "top_k_0") top_k = 0;
  }
};

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  const Sizes sizes(params, contract);
  const std::string defect(params.word("defect"));
  CounterRandom logit_random(seed, "logits");
  CounterRandom bias_random(seed, "bias");
  std::vector<float> logits;
  for (std::int64_t row = 0; row < sizes.rows; ++row) {
    LogitContent content(logit_random.once_in(4) ? "ordinary" : params.word("logits"),
                         logit_random);
    for (std::int64_t e = 0; e < sizes.experts; ++e) logits.push_back(content.next());
  }
  std::size_t at = 0;
  Case item;
  item.scalars = {
      {"top_k", sizes.top_k},
      {"scaling",
       defect == "scaling_0" ? 0.0 : kScalings[static_cast<std::size_t>(params["scaling"])]},
      {"renormalise", params["renormalise"]},
      {"shared", defect == "shared_weight_nan" ? 1 : params["shared"]},
      {"shared_weight", defect == "shared_weight_nan"
                            ? std::nan("")
                            : kSharedWeights[static_cast<std::size_t>(params["shared_weight"])]},
      {"out_row_gap", params["out_row_gap"]},
      {"defect", defect}};
  item.inputs = {
      {"logits", drawn_tensor(DType::kFloat32,
                              gapped_rows(sizes.rows, sizes.experts, 1, params["logits_row_gap"]),
                              [&] { return bits_of(logits[at++]); })},
      {"bias",
       drawn_tensor(DType::kFloat32,
                    Layout::dense({sizes.experts + (defect == "bias_length" ? 1 : 0)}),
                    [&] { return bits_of(bias_element(params.word("bias"), bias_random)); })}};
  return item;
}

MoeRouteInput input_of(const Case& item) {
  return {.logits = item.input("logits").view<float, 2>(),
          .bias = item.input("bias").view<float, 1>(),
          .top_k = item.integer("top_k"),
          .scaling = item.real("scaling"),
          .renormalise = flag_parameter(item, "renormalise"),
          .shared = flag_parameter(item, "shared"),
          .shared_weight = item.real("shared_weight"),
          .contract = item.contract};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto [rows, slots] = moe_route_shape(input_of(item));
  const Layout layout = gapped_rows(rows, slots, 1, row_gap(item, "out_row_gap"));
  return {{"topk_ids", DType::kInt32, layout, {"row", "slot"}, ""},
          {"topk_weights", DType::kFloat32, layout, {"row", "slot"}, ""}};
}

void reference(const Case& item, Outputs& out) {
  moe_route(input_of(item),
            {out[0].tensor.view<std::int32_t, 2>(), out[1].tensor.view<float, 2>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const MoeRouteInput input = input_of(item);
  const std::int64_t out_stride =
      input.top_k + (input.shared ? 1 : 0) + row_gap(item, "out_row_gap");
  const bool here = item.contract.routed_scaling == RoutedScaling::kWeights;
  launcher.enqueue(device::launch::MoeRoute{
      .logits = launcher.address<const float>("logits"),
      .logits_row_stride = input.logits.stride(0),
      .bias = launcher.address<const float>("bias"),
      .ids = launcher.address<std::int32_t>("out.topk_ids"),
      .ids_row_stride = out_stride,
      .weights = launcher.address<float>("out.topk_weights"),
      .weights_row_stride = out_stride,
      .rows = input.logits.dim(0),
      .n_routed = input.logits.dim(1),
      .top_k = input.top_k,
      .scaling = here ? static_cast<float>(input.scaling) : 1.0f,
      .renormalise = option(input.renormalise),
      .shared = option(input.shared),
      .shared_weight = static_cast<float>(input.shared_weight),
      .keys = option(item.contract.routing_key),
      .nan_key = option(item.contract.nan_key),
      .logits_bf16 = option(item.contract.gate_weights == GateWeights::kBf16)});
}

std::optional<std::string> ids_are_valid(const Case& item, const Outputs& out, const Evaluate&) {
  const MoeRouteInput input = input_of(item);
  const auto ids = output(out, "topk_ids").view<std::int32_t, 2>();
  const auto weights = output(out, "topk_weights").view<float, 2>();
  for (std::int64_t row = 0; row < ids.dim(0); ++row) {
    std::set<std::int64_t> seen;
    for (std::int64_t slot = 0; slot < input.top_k; ++slot) {
      const std::int64_t id = ids(row, slot);
      if (id < 0 || id >= input.logits.dim(1) || !seen.insert(id).second)
        return fmt::format("row {} selects expert {} of {}, or twice", row, id,
                           input.logits.dim(1));
    }
    if (input.shared && (ids(row, input.top_k) != input.logits.dim(1) ||
                         weights(row, input.top_k) != static_cast<float>(input.shared_weight)))
      return fmt::format("row {} has {} with weight {} for the shared expert", row,
                         ids(row, input.top_k), weights(row, input.top_k));
  }
  return std::nullopt;
}

/// The logit as the stage reads it.
double read_logit(const Case& item, std::int64_t row, std::int64_t expert) {
  const float logit = item.input("logits").view<float, 2>()(row, expert);
  return item.contract.gate_weights == GateWeights::kBf16 ? round_to_bf16(logit) : logit;
}

/// No expert that is left out may rank above a selected one, as far as 64 bits can tell. In a score
/// the rounded exponent is off by 2^-24 |x|, which moves s = sigmoid(x) by s (1 - s) |x| 2^-24 or
/// less than 2^-26; exp2, the addition and the quotient by 2^-22 together. A key is off by 2^-24 of
/// itself too, and packing moves it down by less than 2^-16 of itself.
std::optional<std::string> the_best_are_selected(const Case& item, const Outputs& out,
                                                 const Evaluate&) {
  const MoeRouteInput input = input_of(item);
  const auto ids = output(out, "topk_ids").view<std::int32_t, 2>();
  const double packing = item.contract.routing_key == RoutingKey::kPacked ? 0x1p-16 : 0;
  const auto key = [&](std::int64_t row, std::int64_t e) {
    return 1 / (1 + std::exp(-read_logit(item, row, e))) + static_cast<double>(input.bias(e));
  };
  for (std::int64_t row = 0; row < ids.dim(0); ++row) {
    std::set<std::int64_t> chosen;
    for (std::int64_t slot = 0; slot < input.top_k; ++slot) chosen.insert(ids(row, slot));
    for (const std::int64_t good : chosen)
      for (std::int64_t e = 0; e < input.logits.dim(1); ++e) {
        if (chosen.contains(e) || !std::isfinite(key(row, e)) || !std::isfinite(key(row, good)))
          continue;
        const double slack = 0x1p-21 + (0x1p-23 + packing) * std::max(std::fabs(key(row, e)),
                                                                      std::fabs(key(row, good)));
        if (key(row, e) - key(row, good) > slack)
          return fmt::format("row {} selects expert {} rather than {}, whose key is {} larger", row,
                             good, e, key(row, e) - key(row, good));
      }
  }
  return std::nullopt;
}

bool is_moderate(double scaling) {
  return scaling > 0x1p-20 && scaling < 0x1p20;
}

/// The first row without a NaN logit, as a case of its own; nothing if there is none.
std::optional<std::int64_t> first_finite_row(const Case& item) {
  const auto logits = item.input("logits").view<float, 2>();
  for (std::int64_t row = 0; row < logits.dim(0); ++row) {
    bool nan = false;
    for (std::int64_t e = 0; e < logits.dim(1); ++e) nan = nan || logits(row, e) != logits(row, e);
    if (!nan) return row;
  }
  return std::nullopt;
}

/// A row alone, under another bias that makes the same choice in the same order, far apart.
std::optional<std::string> the_bias_selects_only(const Case& item, const Outputs& out,
                                                 const Evaluate& evaluate) {
  const auto row = first_finite_row(item);
  if (!row) return std::nullopt;
  const Tensor& ids = output(out, "topk_ids");
  Case other = item;
  replace_input(other, "logits", take_rows(item.input("logits"), {*row}));
  Tensor bias(DType::kFloat32, Layout::dense({item.input("bias").dim(0)}));
  for (std::int64_t e = 0; e < bias.dim(0); ++e) bias.view<float, 1>()(e) = -1000;
  for (std::int64_t slot = 0; slot < item.integer("top_k"); ++slot)
    bias.view<float, 1>()(ids.view<std::int32_t, 2>()(*row, slot)) =
        static_cast<float>(1000 - 100 * slot);
  replace_input(other, "bias", std::move(bias));
  const Outputs alone = evaluate(other);
  for (const char* name : {"topk_ids", "topk_weights"})
    if (!same_row(output(out, name), *row, output(alone, name), 0))
      return fmt::format("row {} has other {} under a bias that makes the same choice", *row, name);
  return std::nullopt;
}

/// What the routed weights of a renormalised row add up to: the factor, by proven bounds. From
/// score to weight there are at most three additions, a division and a product, each off by 2^-24
/// of its result; a subnormal weight is off by 2^-150.
std::optional<std::string> weights_add_up(const Case& item, const Outputs& out, const Evaluate&) {
  if (item.integer("renormalise") == 0 || !is_moderate(item.real("scaling"))) return std::nullopt;
  const bool here = item.contract.routed_scaling == RoutedScaling::kWeights;
  const double factor = here ? static_cast<float>(item.real("scaling")) : 1;
  const auto ids = output(out, "topk_ids").view<std::int32_t, 2>();
  const auto weights = output(out, "topk_weights").view<float, 2>();
  const std::int64_t top_k = item.integer("top_k");
  for (std::int64_t row = 0; row < weights.dim(0); ++row) {
    double total = 0;
    double scores = 0;
    for (std::int64_t slot = 0; slot < top_k; ++slot) {
      total += static_cast<double>(weights(row, slot));
      scores += 1 / (1 + std::exp(-read_logit(item, row, ids(row, slot))));
    }
    if (total != total) continue;
    const double slack =
        factor * (std::pow(1 / (1 - 0x1p-24), 5) - 1) + static_cast<double>(top_k) * 0x1p-150;
    // Below twice the floor the sum may not be what was divided by, and only bounds the total.
    if (total > factor + slack || (scores > 2e-20 && total < factor - slack))
      return fmt::format("the weights of row {} add up to {}, the factor is {}", row, total,
                         factor);
  }
  return std::nullopt;
}

bool weights_are_scaled(const Case& item) {
  return item.contract.routed_scaling == RoutedScaling::kWeights;
}

laws::OutputRegion routed_slots(const Case& item, const Outputs&) {
  return
      [top_k = item.integer("top_k")](std::string_view, laws::Index at) { return at[1] < top_k; };
}

/// What the factor has no part in (bug cases M11, M12).
laws::OutputRegion unscaled_slots(const Case& item, const Outputs&) {
  return [top_k = item.integer("top_k"), scaled = weights_are_scaled(item)](std::string_view name,
                                                                            laws::Index at) {
    return !scaled || at[1] >= top_k || name == "topk_ids";
  };
}

std::optional<Case> with_doubled_factor(const Case& item) {
  return laws::with_scalar("scaling", 2 * item.real("scaling"))(item);
}

}  // namespace

Stage moe_route_stage() {
  Stage stage;
  stage.name = "moe_route";
  stage.summary = "the experts of each token and their weights";
  stage.source = "mono-decode sections 7 and 10; upstream-semantics section 7.2";
  stage.contracts = {"mono",
                     "mono,gate_weights=f32",
                     "mono,routing_key=plain_lower_id",
                     "mono,nan_key=first",
                     "mono,routing_key=plain_higher_id",
                     "mono,routed_scaling=output",
                     "mono,gate_weights=f32,routing_key=plain_lower_id,routed_scaling=output",
                     "mono,gate_weights=f32,routing_key=plain_higher_id,nan_key=first"};
  stage.dimensions = {
      {"rows", 1, 0, 4, {0, 1, 11, 12, 13, 16, 17}, {}, "tokens"},
      {"experts", 1, 1, 40, {1, 8, 31, 32, 63, 64, 65, 127, 128, 128, 256, 1024}, {}, "experts"},
      {"top_k", 1, 1, 8, {1, 4, 4, 8}, {}, "experts selected"},
      {"scaling",
       1,
       0,
       7,
       {0, 2},
       {"2", "1", "2.5", "1.5", "0.1", "64", "1e-12", "1e30"},
       "factor of the routed experts"},
      {"renormalise", 1, 0, 1, {1}, {}, "weights are divided by the sum of the scores"},
      {"shared", 0, 0, 1, {}, {}, "a shared expert has the last slot"},
      {"shared_weight", 0, 0, 3, {}, {"1", "0.3", "0", "-2"}, "its weight"},
      {"logits_row_gap", 0, 0, 8, {0, 1}, {}, "elements between rows of the logits"},
      {"out_row_gap", 0, 0, 3, {}, {}, "elements between rows of the results"},
      Dimension::choice("logits",
                        {"ordinary", "levels", "equal", "near_equal", "bf16_ties", "saturated",
                         "underflow", "minus_inf", "some_nan", "all_nan", "any"},
                        "most rows of logits"),
      Dimension::choice("bias",
                        {"zero", "ordinary", "negative", "large", "near_equal", "some_nan", "any"},
                        "the bias of the selection"),
      defect_dimension(14, {"too_many_experts", "top_k_0", "top_k_above", "bias_length",
                            "scaling_0", "shared_weight_nan"}),
  };
  stage.inputs = {{"logits", {DType::kFloat32}, {"rows", "experts"}, InputStorage::kRows},
                  {"bias", {DType::kFloat32}, {"experts"}}};
  stage.scalars = {ScalarSpec::integer("top_k", 1, kRouteMaxTopK),
                   ScalarSpec::positive("scaling"),
                   ScalarSpec::flag("renormalise"),
                   ScalarSpec::flag("shared"),
                   ScalarSpec::finite("shared_weight"),
                   ScalarSpec::row_gap("out_row_gap")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      laws::permute("row", {"logits"}),
      {"index_validity", "ids are distinct and in range whatever the input; the shared expert last",
       ids_are_valid},
      {"selection", "no expert left out has a larger score + bias than a selected one",
       the_best_are_selected},
      {"unbiased_weights", "a row alone, under any bias that selects alike, has the same weights",
       the_bias_selects_only},
      laws::scale({.inputs = {{"scaling", 1, -20, 21}},
                   .outputs = {{"topk_weights"}},
                   .applies = weights_are_scaled,
                   .compared = routed_slots}),
      laws::unchanged("factor_apart", "the factor is of routed weights alone, if of any",
                      {with_doubled_factor}, {.compared = unscaled_slots}),
      {"weight_sum", "renormalised weights add up to the factor", weights_add_up},
  };
  return stage;
}

}  // namespace monoref
