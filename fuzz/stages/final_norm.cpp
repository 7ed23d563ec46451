// final_norm: generator, reference and kernel side by side.
#include "reference/stages/final_norm.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "device/launch/final_norm.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/ignores.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/stage.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "reference/formats/convert.hpp"
#include "reference/stages/residual_norm_quant.hpp"

namespace monoref {
namespace {

constexpr std::array<double, 5> kEps{1e-6, 1e-5, 0x1p-30, 1.0, 4.0};

std::uint16_t bf16_bits(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

std::uint16_t ar_element(std::string_view kind, CounterRandom& random) {
  if (kind == "zero") return draw_bf16(Floats::kZero, random);
  if (kind == "outliers") return bf16_bits(random.once_in(100) ? 4096.0f : 1.0f);
  if (kind == "wide") return draw_bf16(Floats::kWide, random);
  if (kind == "special") return draw_bf16(Floats::kSpecial, random);
  if (kind == "subnormal")
    return static_cast<std::uint16_t>(random.between(0, 8) | (random.once_in(2) ? 0x8000 : 0));
  return draw_bf16(Floats::kOrdinary, random);
}

/// The residual beside an element.
std::uint16_t residual_element(std::string_view kind, std::uint16_t ar, CounterRandom& random) {
  if (kind == "ordinary") return draw_bf16(Floats::kOrdinary, random);
  if (kind == "opposite") return static_cast<std::uint16_t>(ar ^ 0x8000);
  if (kind == "lower_bits")  // a sum of more bits than BF16 has
    return static_cast<std::uint16_t>(
        std::max<std::int64_t>((ar & 0x7F80) - 0x80 * random.between(4, 14), 0) +
        random.between(0, 0x7F));
  return 0;
}

std::uint16_t gamma_element(std::string_view kind, CounterRandom& random) {
  if (kind == "ordinary") return draw_bf16(Floats::kOrdinary, random);
  if (kind == "near_minus_one")
    return static_cast<std::uint16_t>(bf16_bits(-1) + random.between(-2, 2));
  if (kind == "special") return draw_bf16(Floats::kSpecial, random);
  return 0;
}

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  const std::string defect(params.word("defect"));
  const std::int64_t hidden =
      kNormElementsPerThread * params["threads"] + (defect == "hidden_not_whole_threads" ? 4 : 0);
  const std::int64_t rows =
      hidden > 1024 ? std::min<std::int64_t>(params["rows"], 2) : params["rows"];
  CounterRandom row_random(seed, "rows");
  CounterRandom gamma_random(seed, "gamma");
  std::vector<std::uint16_t> ar;
  std::vector<std::uint16_t> res;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::string_view kind = row_random.once_in(4) ? "ordinary" : params.word("content");
    for (std::int64_t i = 0; i < hidden; ++i) {
      ar.push_back(ar_element(kind, row_random));
      res.push_back(residual_element(params.word("residual"), ar.back(), row_random));
    }
  }
  std::size_t ar_at = 0;
  std::size_t res_at = 0;
  const auto layout = [&](const char* gap) { return gapped_rows(rows, hidden, 1, params[gap]); };
  const std::int64_t weights = hidden - (defect == "gamma_length" ? 1 : 0);
  Case item;
  item.scalars = {
      {"eps", defect == "eps_zero" ? 0.0 : kEps[static_cast<std::size_t>(params["eps"])]},
      {"out_row_gap", params["out_row_gap"]},
      {"defect", defect}};
  item.inputs = {
      {"ar", drawn_tensor(DType::kBFloat16, layout("ar_row_gap"), [&] { return ar[ar_at++]; })},
      {"res", drawn_tensor(DType::kBFloat16, layout("res_row_gap"), [&] { return res[res_at++]; })},
      {"gamma", drawn_tensor(DType::kBFloat16, Layout::dense({weights}),
                             [&] { return gamma_element(params.word("gamma"), gamma_random); })}};
  return item;
}

FinalNormInput input_of(const Case& item) {
  return {item.input("ar").view<std::uint16_t, 2>(), item.input("res").view<std::uint16_t, 2>(),
          item.input("gamma").view<std::uint16_t, 1>(), item.real("eps")};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto [rows, hidden] = final_norm_shape(input_of(item));
  return {{"out",
           DType::kBFloat16,
           gapped_rows(rows, hidden, 1, row_gap(item, "out_row_gap")),
           {"row", "element"},
           ""}};
}

void reference(const Case& item, Outputs& out) {
  final_norm(input_of(item), {out[0].tensor.view<std::uint16_t, 2>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const FinalNormInput input = input_of(item);
  const std::int64_t hidden = input.ar.dim(1);
  launcher.enqueue(
      device::launch::FinalNorm{.hidden_states = launcher.address<const std::uint16_t>("ar"),
                                .hidden_row_stride = input.ar.stride(0),
                                .residual = launcher.address<const std::uint16_t>("res"),
                                .residual_row_stride = input.res.stride(0),
                                .gamma = launcher.address<const std::uint16_t>("gamma"),
                                .out = launcher.address<std::uint16_t>("out.out"),
                                .out_row_stride = hidden + row_gap(item, "out_row_gap"),
                                .rows = input.ar.dim(0),
                                .hidden = hidden,
                                .eps = static_cast<float>(input.eps)});
}

}  // namespace

Stage final_norm_stage() {
  Stage stage;
  stage.name = "final_norm";
  stage.summary = "residual addition and the model's gemma RMSNorm, after the last layer";
  stage.source = "mono-decode sections 2, 3 and 10; upstream-semantics section 3.1";
  stage.dimensions = {
      {"rows", 1, 0, 3, {0, 1, 17}, {}, "tokens"},
      {"threads", 1, 1, 32, {1, 8, 31, 32, 33, 64, 96, 768, 1024}, {}, "hidden / 8"},
      {"ar_row_gap", 0, 0, 9, {0, 1, 8}, {}, "elements between rows of the layer output"},
      {"res_row_gap", 0, 0, 9, {0, 1, 8}, {}, "elements between rows of the residual"},
      {"out_row_gap", 0, 0, 9, {0, 1, 8}, {}, "elements between rows of the result"},
      Dimension::choice("content", {"ordinary", "zero", "outliers", "wide", "special", "subnormal"},
                        "most rows of the layer output"),
      Dimension::choice("residual", {"zero", "ordinary", "opposite", "lower_bits"}, "the residual"),
      Dimension::choice("gamma", {"zero", "ordinary", "near_minus_one", "special"},
                        "the weight without its 1"),
      {"eps", 0, 0, 4, {}, {"1e-6", "1e-5", "2^-30", "1", "4"}, "added inside the root"},
      defect_dimension(12, {"hidden_not_whole_threads", "gamma_length", "eps_zero"}),
  };
  stage.inputs = {{"ar", {DType::kBFloat16}, {"rows", "hidden"}, InputStorage::kRows},
                  {"res", {DType::kBFloat16}, {"rows", "hidden"}, InputStorage::kRows},
                  {"gamma", {DType::kBFloat16}, {"hidden"}}};
  stage.scalars = {ScalarSpec::positive("eps"), ScalarSpec::row_gap("out_row_gap")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      laws::permute("row", {"ar", "res"}),
      laws::unchanged("symmetry", "row and residual may change places",
                      {laws::exchanged("ar", "res")}),
  };
  stage.golden_bytes = 1 << 16;
  return stage;
}

}  // namespace monoref
