// residual_norm_quant: generator, reference and kernel side by side.
#include "reference/stages/residual_norm_quant.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "device/launch/residual_norm_quant.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/row_properties.hpp"
#include "reference/rules/fp8_rules.hpp"

namespace monoref {
namespace {

constexpr std::array<double, 5> kEps{1e-6, 1e-5, 0x1p-30, 1.0, 4.0};

std::uint16_t bf16_bits(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

/// How the rows of the layer output look; most of them say what the whole case is about.
class RowContent {
 public:
  RowContent(std::string_view kind, std::int64_t hidden, CounterRandom& random)
      : kind_(kind), hidden_(hidden), random_(random) {}

  std::uint32_t next() {
    if (column_ == 0) start_row();
    const std::uint32_t value = element();
    column_ = (column_ + 1) % hidden_;
    return value;
  }

 private:
  void start_row() {
    outlier_ = random_.below(hidden_);
    plain_ = kind_ != "quotient_ties" && random_.once_in(4);
    // An odd factor: quotients by a scale that is no power of two, where division is exact and the
    // product with the reciprocal is not.
    factor_ = std::ldexp(static_cast<float>(2 * random_.between(1, 7) + 1), -40);
  }

  std::uint16_t element() {
    if (plain_) return draw_bf16(Floats::kOrdinary, random_);
    if (kind_ == "zero") return draw_bf16(Floats::kZero, random_);
    if (kind_ == "one_not_zero")
      return column_ == outlier_ ? draw_bf16(Floats::kOrdinary, random_) : std::uint16_t{0};
    if (kind_ == "outlier") return column_ == outlier_ ? bf16_bits(300) : bf16_bits(0.1f);
    if (kind_ == "equal") return bf16_bits(1.5f);
    if (kind_ == "wide") return draw_bf16(Floats::kWide, random_);
    if (kind_ == "special") return draw_bf16(Floats::kSpecial, random_);
    if (kind_ == "subnormal")
      return static_cast<std::uint16_t>(random_.between(0, 8) | (random_.once_in(2) ? 0x8000 : 0));
    if (kind_ == "quotient_ties") return quotient_tie();
    return draw_bf16(Floats::kOrdinary, random_);
  }

  /// A midpoint of FP8 times the row's factor; one element is 448, 240 or 224 times the factor.
  std::uint16_t quotient_tie() {
    if (column_ == outlier_) {
      constexpr std::array<float, 3> kMaxima{448, 240, 224};
      return bf16_bits(kMaxima[static_cast<std::size_t>(random_.below(3))] * factor_);
    }
    const float tie = draw_float(Floats::kTies, random_);
    return bf16_bits((std::fabs(tie) < 224 ? tie : tie / 4) * factor_);
  }

  std::string_view kind_;
  std::int64_t hidden_;
  CounterRandom& random_;
  std::int64_t column_ = 0;
  std::int64_t outlier_ = 0;
  bool plain_ = false;
  float factor_ = 1;
};

std::uint32_t residual_element(std::string_view kind, CounterRandom& random) {
  if (kind == "zero") return 0;
  if (kind == "small") return draw_bf16(Floats::kTiny, random);
  if (kind == "special") return draw_bf16(Floats::kSpecial, random);
  return draw_bf16(Floats::kOrdinary, random);
}

std::uint32_t gamma_element(std::string_view kind, CounterRandom& random) {
  if (kind == "zero") return 0;
  if (kind == "minus_one") return bf16_bits(-1);
  if (kind == "near_minus_one")
    return static_cast<std::uint32_t>(bf16_bits(-1) + random.between(-2, 2));
  if (kind == "special") return draw_bf16(Floats::kSpecial, random);
  return draw_bf16(Floats::kOrdinary, random);
}

/// Sizes of a case, after the dimensions that depend on each other are settled.
struct Sizes {
  std::int64_t rows;
  std::int64_t hidden;

  explicit Sizes(const Params& params)
      : rows(params["rows"]), hidden(params["threads"] * kNormElementsPerThread) {
    if (hidden > 1024) rows = std::min<std::int64_t>(rows, 2);
  }
};

void plant_defect(Case& item, const std::string& defect, const Sizes& sizes) {
  if (defect == "hidden_not_whole_threads")
    for (const char* name : {"ar", "res"})
      replace_input(item, name,
                    Tensor(DType::kBFloat16, Layout::dense({sizes.rows, sizes.hidden + 4})));
  if (defect == "residual_dims")
    replace_input(item, "res",
                  Tensor(DType::kBFloat16, Layout::dense({sizes.rows + 1, sizes.hidden})));
  if (defect == "gamma_length")
    replace_input(item, "gamma", Tensor(DType::kBFloat16, Layout::dense({sizes.hidden - 1})));
}

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  const Sizes sizes(params);
  const std::string defect(params.word("defect"));
  // Exact quotients need a root of 1, weights of 1 and no residual.
  const bool ties = params.word("content") == "quotient_ties";
  CounterRandom ar_random(seed, "ar");
  CounterRandom res_random(seed, "res");
  CounterRandom gamma_random(seed, "gamma");
  RowContent content(params.word("content"), sizes.hidden, ar_random);
  const std::string_view residual = ties ? "zero" : params.word("residual");
  const std::string_view gamma = ties ? "zero" : params.word("gamma");
  const double eps = ties ? 1.0 : kEps[static_cast<std::size_t>(params["eps"])];
  const Layout ar_layout =
      gapped_rows(sizes.rows, sizes.hidden, params["ar_step"], params["ar_gap"]);
  const Layout res_layout =
      gapped_rows(sizes.rows, sizes.hidden, params["res_step"], params["res_gap"]);
  Case item;
  item.scalars = {{"eps", defect == "eps_zero" ? 0.0 : eps},
                  {"out_row_gap", params["out_row_gap"]},
                  {"defect", defect}};
  item.inputs = {{"ar", drawn_tensor(DType::kBFloat16, ar_layout, [&] { return content.next(); })},
                 {"res", drawn_tensor(DType::kBFloat16, res_layout,
                                      [&] { return residual_element(residual, res_random); })},
                 {"gamma", drawn_tensor(DType::kBFloat16,
                                        Layout::strided({sizes.hidden}, {params["gamma_step"]}),
                                        [&] { return gamma_element(gamma, gamma_random); })}};
  plant_defect(item, defect, sizes);
  return item;
}

ResidualNormQuantInput input_of(const Case& item) {
  return {item.input("ar").view<std::uint16_t, 2>(), item.input("res").view<std::uint16_t, 2>(),
          item.input("gamma").view<std::uint16_t, 1>(), item.real("eps"), item.contract};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto [rows, hidden] = residual_norm_quant_shape(input_of(item));
  const Layout layout = gapped_rows(rows, hidden, 1, row_gap(item, "out_row_gap"));
  return {{"residual", DType::kBFloat16, layout, {"row", "element"}, ""},
          {"x8", fp8_dtype(item.contract), layout, {"row", "element"}, ""},
          {"x_scale", DType::kFloat32, Layout::dense({rows}), {"row"}, ""}};
}

void reference(const Case& item, Outputs& out) {
  residual_norm_quant(input_of(item),
                      {out[0].tensor.view<std::uint16_t, 2>(),
                       out[1].tensor.view<std::uint8_t, 2>(), out[2].tensor.view<float, 1>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const Layout& ar = item.input("ar").layout();
  const Layout& res = item.input("res").layout();
  const std::int64_t out_stride = ar.dims[1] + row_gap(item, "out_row_gap");
  launcher.enqueue(device::launch::ResidualNormQuant{
      .ar = launcher.address<const std::uint16_t>("ar"),
      .ar_row_stride = ar.strides[0],
      .ar_stride = ar.strides[1],
      .residual = launcher.address<const std::uint16_t>("res"),
      .residual_row_stride = res.strides[0],
      .residual_stride = res.strides[1],
      .gamma = launcher.address<const std::uint16_t>("gamma"),
      .gamma_stride = item.input("gamma").layout().strides[0],
      .residual_out = launcher.address<std::uint16_t>("out.residual"),
      .residual_out_row_stride = out_stride,
      .x8 = launcher.address<std::uint8_t>("out.x8"),
      .x8_row_stride = out_stride,
      .x_scale = launcher.address<float>("out.x_scale"),
      .rows = ar.dims[0],
      .hidden = ar.dims[1],
      .eps = static_cast<float>(item.real("eps")),
      .norm_input = option(item.contract.norm_source),
      .fp8_max = static_cast<std::int32_t>(fp8_maximum(item.contract)),
      .encoding = option(item.contract.fp8_encoding),
      .overflow = option(item.contract.fp8_overflow)});
}

}  // namespace

Stage residual_norm_quant_stage() {
  Stage stage;
  stage.name = "residual_norm_quant";
  stage.summary = "residual addition, gemma RMSNorm, FP8 with one scale a token";
  stage.source = "mono-decode sections 3.1 to 3.4; upstream-semantics section 3.1";
  stage.contracts = {"mono",
                     "mono,fp8_overflow=saturate",
                     "mono,norm_source=rounded",
                     "mono,fp8_max=240",
                     "mono,fp8_encoding=e4m3fnuz,fp8_max=240",
                     "mono,fp8_encoding=e4m3fnuz,fp8_overflow=saturate,fp8_max=224"};
  stage.check_contract = [](const Contract& contract) { static_cast<void>(fp8_maximum(contract)); };
  stage.dimensions = {
      {"rows", 1, 0, 3, {0, 1, 17}, {}, "tokens"},
      {"threads", 1, 1, 32, {1, 8, 31, 32, 33, 64, 96, 768}, {}, "hidden / 8"},
      {"ar_step", 1, 1, 2, {}, {}, "stride of the elements of the layer output"},
      {"ar_gap", 0, 0, 8, {0, 1, 8}, {}, "elements between its rows"},
      {"res_step", 1, 1, 2, {}, {}, "stride of the elements of the residual"},
      {"res_gap", 0, 0, 8, {0, 1, 8}, {}, "elements between its rows"},
      {"gamma_step", 1, 1, 3, {}, {}, "stride of the weight"},
      {"out_row_gap", 0, 0, 8, {0, 1, 8}, {}, "elements between rows of the results"},
      Dimension::choice("content",
                        {"ordinary", "zero", "one_not_zero", "outlier", "equal", "wide", "special",
                         "subnormal", "quotient_ties"},
                        "the layer output"),
      Dimension::choice("residual", {"zero", "ordinary", "small", "special"}, "the residual"),
      Dimension::choice("gamma", {"zero", "ordinary", "minus_one", "near_minus_one", "special"},
                        "the weight without its 1"),
      {"eps", 0, 0, 4, {}, {"1e-6", "1e-5", "2^-30", "1", "4"}, "added inside the root"},
      defect_dimension(12,
                       {"hidden_not_whole_threads", "residual_dims", "gamma_length", "eps_zero"}),
  };
  const auto strided = InputStorage::kStrided;
  stage.inputs = {{"ar", {DType::kBFloat16}, {"rows", "hidden"}, strided},
                  {"res", {DType::kBFloat16}, {"rows", "hidden"}, strided},
                  {"gamma", {DType::kBFloat16}, {"hidden"}, strided}};
  stage.scalars = {ScalarSpec::positive("eps"), ScalarSpec::row_gap("out_row_gap")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      laws::permute("row", {"ar", "res"}),
      rows_fill_the_range("x8", "x_scale", 1),
  };
  return stage;
}

}  // namespace monoref
