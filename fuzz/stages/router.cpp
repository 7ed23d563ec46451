// router: generator, reference and kernels side by side.
#include "reference/stages/router.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "device/launch/router.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/laws/scale.hpp"
#include "fuzz/stage.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "reference/formats/convert.hpp"

namespace monoref {
namespace {

constexpr std::array<double, 5> kEps{1e-6, 1e-5, 0x1p-30, 1.0, 4.0};

std::uint16_t bf16_bits(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

std::uint16_t sum_element(std::string_view kind, CounterRandom& random) {
  if (kind == "zero") return draw_bf16(Floats::kZero, random);
  if (kind == "ones") return bf16_bits(random.once_in(2) ? 1.0f : -1.0f);
  if (kind == "outliers") return bf16_bits(random.once_in(100) ? 4096.0f : 1.0f);
  if (kind == "wide") return draw_bf16(Floats::kWide, random);
  if (kind == "subnormal")
    return static_cast<std::uint16_t>(random.between(0, 8) | (random.once_in(2) ? 0x8000 : 0));
  return draw_bf16(Floats::kOrdinary, random);
}

/// The residual beside an element of the sum.
std::uint16_t residual_element(std::string_view kind, std::uint16_t sum, CounterRandom& random) {
  if (kind == "opposite") {  // what is left is zero or one place, if that is a number
    const bool ordinary = (sum & 0x7FFF) != 0 && (sum & 0x7F80) != 0x7F80;
    return static_cast<std::uint16_t>((sum ^ 0x8000) + (ordinary ? random.between(-1, 1) : 0));
  }
  if (kind == "small")  // half a place of the sum and its neighbours: ties of h_mid
    return static_cast<std::uint16_t>(std::max<std::int64_t>((sum & 0x7F80) - 0x0400, 0) +
                                      random.between(0, 2));
  if (kind == "lower_bits")  // a sum of more bits than BF16 has
    return static_cast<std::uint16_t>(
        std::max<std::int64_t>((sum & 0x7F80) - 0x80 * random.between(4, 14), 0) +
        random.between(0, 0x7F));
  if (kind == "ordinary") return draw_bf16(Floats::kOrdinary, random);
  return 0;
}

std::uint16_t gamma_element(std::string_view kind, CounterRandom& random) {
  if (kind == "ordinary") return draw_bf16(Floats::kOrdinary, random);
  if (kind == "small") return bf16_bits(static_cast<float>(random.between(-64, 64)) / 256.0f);
  if (kind == "near_minus_one")
    return static_cast<std::uint16_t>(bf16_bits(-1) + random.between(-2, 2));
  return 0;
}

/// Weights whose sum depends on the order: a place of the large ones is worth a small one.
float cancelling(CounterRandom& random) {
  constexpr std::array<float, 6> kLarge{0x1p24f, -0x1p24f, 0x1p12f, -0x1p12f, 0x1p23f, -0x1p23f};
  if (random.once_in(3)) return kLarge[static_cast<std::size_t>(random.below(6))];
  return static_cast<float>(random.between(-3, 3));
}

std::uint32_t gate_element(std::string_view kind, bool bf16, CounterRandom& random) {
  float value = draw_float(Floats::kOrdinary, random);
  if (kind == "cancelling") value = cancelling(random);
  if (kind == "zero") value = draw_float(Floats::kZero, random);
  if (kind == "wide") value = draw_float(Floats::kWide, random);
  if (kind == "special") value = draw_float(Floats::kSpecial, random);
  return bf16 ? bf16_bits(value) : std::bit_cast<std::uint32_t>(value);
}

/// Sizes of a case, cut so that it stays small: 17 rows or 34 experts of 512.
struct Sizes {
  std::int64_t rows;
  std::int64_t hidden;
  std::int64_t experts;

  explicit Sizes(const Params& params)
      : rows(params["rows"]),
        hidden(params["hidden_units"] * kRouterThreads),
        experts(params["experts"]) {
    if (params["full_size"] != 0) return;
    rows = std::min(rows, std::max<std::int64_t>(17 * kRouterThreads / hidden, 1));
    experts = std::min(experts, std::max<std::int64_t>(34 * kRouterThreads / hidden, 1));
  }
};

/// The sum and the residual of a case; some elements of a few rows are special ones.
struct Rows {
  std::vector<std::uint16_t> sum;
  std::vector<std::uint16_t> residual;

  Rows(const Params& params, const Sizes& sizes, std::uint64_t seed) {
    CounterRandom random(seed, "rows");
    for (std::int64_t row = 0; row < sizes.rows; ++row) {
      const std::string_view kind = random.once_in(4) ? "ordinary" : params.word("content");
      const bool special = kind == "special" && random.once_in(2);
      for (std::int64_t i = 0; i < sizes.hidden; ++i) {
        const bool here = special && random.once_in(sizes.hidden / 2);
        sum.push_back(here ? draw_bf16(Floats::kSpecial, random) : sum_element(kind, random));
        residual.push_back(residual_element(params.word("residual"), sum.back(), random));
      }
    }
  }
};

/// Weights under which many elements of the first row lie next to the middle between two BF16
/// numbers: there the last place of the root decides, and with it the order of the sum of squares.
std::vector<std::uint16_t> near_tie_gamma(const Rows& rows, std::int64_t hidden, double eps,
                                          CounterRandom& random) {
  std::vector<double> row;
  double squares = 0;
  for (std::int64_t i = 0; i < hidden && !rows.sum.empty(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    row.push_back(float_from_bf16(rows.sum[at]) + float_from_bf16(rows.residual[at]));
    squares += row.back() * row.back();
  }
  const double rstd = 1 / std::sqrt(squares / static_cast<double>(hidden) + eps);
  row.resize(static_cast<std::size_t>(hidden), 1.0);
  const auto distance = [](double y) {
    const auto below = std::bit_cast<std::uint32_t>(static_cast<float>(y)) & 0xFFFFu;
    return std::abs(static_cast<int>(below) - 0x8000);
  };
  // With so many tries altogether, some element changes with the last place of the root.
  const std::int64_t tries = (std::int64_t{1} << 18) / hidden;
  std::vector<std::uint16_t> gamma;
  for (const double a : row) {
    std::uint16_t best = 0;
    for (std::int64_t i = 0; i < tries; ++i) {
      const auto code = static_cast<std::uint16_t>(random.between(0x3E80, 0x4000));
      const auto y = [&](std::uint16_t g) { return a * rstd * (1.0 + float_from_bf16(g)); };
      if (distance(y(code)) < distance(y(best))) best = code;
    }
    gamma.push_back(best);
  }
  return gamma;
}

std::vector<std::uint16_t> draw_gamma(const Params& params, const Rows& rows, const Sizes& sizes,
                                      double eps, CounterRandom& random) {
  if (params.word("gamma") == "near_ties") return near_tie_gamma(rows, sizes.hidden, eps, random);
  std::vector<std::uint16_t> gamma;
  for (std::int64_t i = 0; i < sizes.hidden; ++i)
    gamma.push_back(gamma_element(params.word("gamma"), random));
  return gamma;
}

void plant_defect(Case& item, const std::string& defect, const Sizes& sizes) {
  const auto bf16 = [](std::vector<std::int64_t> dims) {
    return Tensor(DType::kBFloat16, Layout::dense(std::move(dims)));
  };
  if (defect == "hidden_not_whole_threads")
    for (const char* name : {"sum", "residual"})
      replace_input(item, name, bf16({sizes.rows, sizes.hidden + 8}));
  if (defect == "residual_rows")
    replace_input(item, "residual", bf16({sizes.rows + 1, sizes.hidden}));
  if (defect == "gamma_length") replace_input(item, "gamma", bf16({sizes.hidden - 1}));
  if (defect == "gate_type")
    replace_input(
        item, "gate",
        Tensor(item.input("gate").type() == DType::kFloat32 ? DType::kBFloat16 : DType::kFloat32,
               Layout::dense({sizes.experts, sizes.hidden})));
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  const Sizes sizes(params);
  const std::string defect(params.word("defect"));
  const bool bf16 = contract.gate_weights == GateWeights::kBf16;
  CounterRandom gamma_random(seed, "gamma");
  CounterRandom gate_random(seed, "gate");
  const Rows rows(params, sizes, seed);
  const double eps = kEps[static_cast<std::size_t>(params["eps"])];
  const auto gamma = draw_gamma(params, rows, sizes, eps, gamma_random);
  std::size_t gamma_at = 0;
  std::size_t sum_at = 0;
  std::size_t residual_at = 0;
  const auto rows_of = [&](const char* gap) {
    return gapped_rows(sizes.rows, sizes.hidden, 1, params[gap]);
  };
  Case item;
  item.scalars = {{"eps", defect == "eps_zero" ? 0.0 : eps},
                  {"out_row_gap", params["out_row_gap"]},
                  {"defect", defect}};
  item.inputs = {
      {"sum",
       drawn_tensor(DType::kBFloat16, rows_of("sum_row_gap"), [&] { return rows.sum[sum_at++]; })},
      {"residual", drawn_tensor(DType::kBFloat16, rows_of("residual_row_gap"),
                                [&] { return rows.residual[residual_at++]; })},
      {"gamma", drawn_tensor(DType::kBFloat16, Layout::dense({sizes.hidden}),
                             [&] { return gamma[gamma_at++]; })},
      {"gate", drawn_tensor(bf16 ? DType::kBFloat16 : DType::kFloat32,
                            gapped_rows(sizes.experts, sizes.hidden, 1, params["gate_row_gap"]),
                            [&] { return gate_element(params.word("gate"), bf16, gate_random); })}};
  plant_defect(item, defect, sizes);
  return item;
}

RouterInput input_of(const Case& item) {
  return {item.input("sum").view<std::uint16_t, 2>(),
          item.input("residual").view<std::uint16_t, 2>(),
          item.input("gamma").view<std::uint16_t, 1>(),
          item.input("gate"),
          item.real("eps"),
          item.contract};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto [rows, hidden, experts] = router_shape(input_of(item));
  const std::int64_t gap = row_gap(item, "out_row_gap");
  const Layout wide = gapped_rows(rows, hidden, 1, gap);
  return {{"h_mid", DType::kBFloat16, wide, {"row", "element"}, ""},
          {"xn", DType::kBFloat16, wide, {"row", "element"}, ""},
          {"logits", DType::kFloat32, gapped_rows(rows, experts, 1, gap), {"row", "expert"}, ""}};
}

void reference(const Case& item, Outputs& out) {
  router(input_of(item), {out[0].tensor.view<std::uint16_t, 2>(),
                          out[1].tensor.view<std::uint16_t, 2>(), out[2].tensor.view<float, 2>()});
}

void launch_norm(const Case& item, const Launcher& launcher) {
  const RouterInput input = input_of(item);
  const std::int64_t hidden = input.sum.dim(1);
  const std::int64_t out_stride = hidden + row_gap(item, "out_row_gap");
  launcher.enqueue(
      device::launch::RouterNorm{.sum = launcher.address<const std::uint16_t>("sum"),
                                 .sum_row_stride = input.sum.stride(0),
                                 .residual = launcher.address<const std::uint16_t>("residual"),
                                 .residual_row_stride = input.residual.stride(0),
                                 .gamma = launcher.address<const std::uint16_t>("gamma"),
                                 .h_mid = launcher.address<std::uint16_t>("out.h_mid"),
                                 .h_mid_row_stride = out_stride,
                                 .xn = launcher.address<std::uint16_t>("out.xn"),
                                 .xn_row_stride = out_stride,
                                 .rows = input.sum.dim(0),
                                 .hidden = hidden,
                                 .eps = static_cast<float>(input.eps),
                                 .norm_input = option(item.contract.norm_source)});
}

/// T is the element type of the gate.
template <class T>
void launch_gate(const Case& item, const Launcher& launcher) {
  const Layout& gate = item.input("gate").layout();
  const std::int64_t gap = row_gap(item, "out_row_gap");
  launcher.enqueue(device::launch::RouterGate<T>{.xn = launcher.address<std::uint16_t>("out.xn"),
                                                 .xn_row_stride = gate.dims[1] + gap,
                                                 .gate = launcher.address<const T>("gate"),
                                                 .gate_row_stride = gate.strides[0],
                                                 .logits = launcher.address<float>("out.logits"),
                                                 .logits_row_stride = gate.dims[0] + gap,
                                                 .rows = item.input("sum").dim(0),
                                                 .n_routed = gate.dims[0],
                                                 .hidden = gate.dims[1]});
}

void launch(const Case& item, const Launcher& launcher) {
  launch_norm(item, launcher);
  if (item.contract.gate_weights == GateWeights::kBf16)
    launch_gate<std::uint16_t>(item, launcher);
  else
    launch_gate<float>(item, launcher);
}

/// Rows whose normed elements are zero or far from the ends of binary32.
laws::OutputRegion moderate_rows(const Case&, const Outputs& out) {
  std::vector<bool> moderate;
  const auto xn = output(out, "xn").view<std::uint16_t, 2>();
  for (std::int64_t row = 0; row < xn.dim(0); ++row) {
    moderate.push_back(true);
    for (std::int64_t i = 0; i < xn.dim(1); ++i) {
      const int exponent = xn(row, i) >> 7 & 0xFF;
      const bool here = (xn(row, i) & 0x7FFF) == 0 || (exponent > 90 && exponent < 160);
      moderate.back() = moderate.back() && here;
    }
  }
  return [moderate](std::string_view output, laws::Index at) {
    return output != "logits" || moderate[static_cast<std::size_t>(at[0])];
  };
}

}  // namespace

Stage router_stage() {
  Stage stage;
  stage.name = "router";
  stage.summary = "residual addition, router norm, and the logit of every expert";
  stage.source = "mono-decode sections 7 and 10; upstream-semantics section 7.1";
  stage.contracts = {"mono", "mono,gate_weights=f32", "mono,norm_source=rounded",
                     "mono,gate_weights=f32,norm_source=rounded"};
  stage.dimensions = {
      {"rows", 1, 0, 4, {0, 1, 4, 5, 16, 17}, {}, "tokens"},
      {"hidden_units", 1, 1, 3, {1, 2, 12, 16}, {}, "hidden / 512"},
      {"experts", 1, 1, 12, {1, 4, 32, 33, 128}, {}, "experts"},
      {"full_size",
       0,
       0,
       0,
       {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
       {},
       "the size of a case is not cut"},
      {"sum_row_gap", 0, 0, 9, {0, 1, 8}, {}, "elements between rows of the sum"},
      {"residual_row_gap", 0, 0, 9, {0, 1, 8}, {}, "elements between rows of the residual"},
      {"gate_row_gap", 0, 0, 9, {0, 1, 8}, {}, "elements between rows of the gate"},
      {"out_row_gap", 0, 0, 9, {0, 1, 8}, {}, "elements between rows of the results"},
      Dimension::choice("content",
                        {"ordinary", "ones", "zero", "outliers", "wide", "subnormal", "special"},
                        "most rows of the sum"),
      Dimension::choice("residual", {"zero", "ordinary", "opposite", "small", "lower_bits"},
                        "the residual"),
      {"gamma",
       0,
       0,
       4,
       {4},
       {"zero", "ordinary", "small", "near_minus_one", "near_ties"},
       "the weight without its 1"},
      Dimension::choice("gate", {"ordinary", "cancelling", "zero", "wide", "special"},
                        "the router's weights"),
      {"eps", 0, 0, 4, {}, {"1e-6", "1e-5", "2^-30", "1", "4"}, "added inside the root"},
      defect_dimension(14, {"hidden_not_whole_threads", "residual_rows", "gamma_length",
                            "gate_type", "eps_zero"}),
  };
  const auto rows = InputStorage::kRows;
  stage.inputs = {{"sum", {DType::kBFloat16}, {"rows", "hidden"}, rows},
                  {"residual", {DType::kBFloat16}, {"rows", "hidden"}, rows},
                  {"gamma", {DType::kBFloat16}, {"hidden"}},
                  {"gate", {DType::kBFloat16, DType::kFloat32}, {"experts", "hidden"}, rows}};
  stage.scalars = {ScalarSpec::positive("eps"), ScalarSpec::row_gap("out_row_gap")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      laws::permute("row", {"sum", "residual"}),
      laws::alone("row", {"sum", "residual"}),
      laws::permute({.part = "expert", .inputs = {{"gate"}}, .outputs = {{"logits", 1}}}),
      laws::scale(
          {.inputs = {{"gate", 1, -36, 33}}, .outputs = {{"logits"}}, .compared = moderate_rows}),
  };
  stage.golden_cases = 8;
  stage.golden_bytes = 1 << 17;
  return stage;
}

}  // namespace monoref
