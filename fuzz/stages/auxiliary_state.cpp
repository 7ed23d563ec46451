// auxiliary_state: generator, reference and kernel side by side.
#include "reference/stages/auxiliary_state.hpp"

#include <algorithm>

#include "device/launch/auxiliary_state.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/stage.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"

namespace monoref {
namespace {

std::uint16_t residual_element(std::string_view kind, Floats content, std::uint16_t hidden,
                               CounterRandom& random) {
  if (kind == "opposite") return static_cast<std::uint16_t>(hidden ^ 0x8000);
  if (kind == "ties")  // half a place of hidden and its neighbours
    return static_cast<std::uint16_t>(std::max<std::int64_t>((hidden & 0x7F80) - 0x0400, 0) +
                                      random.between(0, 2));
  return draw_bf16(content, random);
}

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  CounterRandom hidden_random(seed, "hidden");
  CounterRandom residual_random(seed, "residual");
  const std::int64_t rows = params["rows"];
  const std::int64_t width = params["width"];
  const auto content = static_cast<Floats>(params["content"]);
  const std::string defect(params.word("defect"));
  const bool none = params.word("residual") == "none" && defect == "none";
  std::vector<std::uint16_t> hidden;
  for (std::int64_t i = 0; i < rows * width; ++i)
    hidden.push_back(draw_bf16(content, hidden_random));
  std::size_t at = 0;
  std::size_t beside = 0;
  Case item;
  item.scalars = {{"out_row_gap", params["out_row_gap"]}, {"defect", defect}};
  item.inputs = {{"hidden", drawn_tensor(DType::kBFloat16,
                                         gapped_rows(rows, width, 1, params["hidden_row_gap"]),
                                         [&] { return hidden[at++]; })}};
  if (!none)
    item.inputs.push_back(
        {"residual", drawn_tensor(DType::kBFloat16,
                                  gapped_rows(rows, width, 1, params["residual_row_gap"]), [&] {
                                    return residual_element(params.word("residual"), content,
                                                            hidden[beside++], residual_random);
                                  })});
  if (defect == "residual_rows")
    replace_input(item, "residual", Tensor(DType::kBFloat16, Layout::dense({rows + 1, width})));
  return item;
}

AuxiliaryStateInput input_of(const Case& item) {
  AuxiliaryStateInput input{item.input("hidden").view<std::uint16_t, 2>(), std::nullopt};
  if (const Tensor* residual = item.find_input("residual"))
    input.residual = residual->view<std::uint16_t, 2>();
  return input;
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto [rows, width] = auxiliary_state_shape(input_of(item));
  return {{"state",
           DType::kBFloat16,
           gapped_rows(rows, width, 1, row_gap(item, "out_row_gap")),
           {"row", "element"},
           ""}};
}

void reference(const Case& item, Outputs& out) {
  auxiliary_state(input_of(item), {out[0].tensor.view<std::uint16_t, 2>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const AuxiliaryStateInput input = input_of(item);
  const std::int64_t width = input.hidden.dim(1);
  launcher.enqueue(device::launch::AuxiliaryState{
      .hidden = launcher.address<const std::uint16_t>("hidden"),
      .hidden_row_stride = input.hidden.stride(0),
      .residual = launcher.address_or_null<const std::uint16_t>("residual"),
      .residual_row_stride = input.residual ? input.residual->stride(0) : 0,
      .out = launcher.address<std::uint16_t>("out.state"),
      .out_row_stride = width + row_gap(item, "out_row_gap"),
      .rows = input.hidden.dim(0),
      .width = width});
}

std::optional<std::string> without_residual_a_copy(const Case& item, const Outputs& out,
                                                   const Evaluate&) {
  if (item.find_input("residual") != nullptr) return std::nullopt;
  for (std::int64_t row = 0; row < item.input("hidden").dim(0); ++row)
    if (!same_row(item.input("hidden"), row, output(out, "state"), row))
      return fmt::format("row {} is no copy of hidden", row);
  return std::nullopt;
}

}  // namespace

Stage auxiliary_state_stage() {
  Stage stage;
  stage.name = "auxiliary_state";
  stage.summary = "the hidden state between two layers: hidden + residual in BF16";
  stage.source = "mono-decode sections 2 and 10";
  stage.dimensions = {
      {"rows", 1, 0, 4, {0, 1, 16, 17}, {}, "tokens"},
      {"width", 1, 1, 80, {1, 7, 8, 9, 511, 512, 513, 1025, 6144}, {}, "elements of a row"},
      {"hidden_row_gap", 0, 0, 9, {0, 1, 8}, {}, "elements between rows of hidden"},
      {"residual_row_gap", 0, 0, 9, {0, 1, 8}, {}, "elements between rows of the residual"},
      {"out_row_gap", 0, 0, 9, {0, 1, 8}, {}, "elements between rows of the state"},
      floats_dimension("content", "elements"),
      Dimension::choice("residual", {"none", "drawn", "opposite", "ties"}, "the residual"),
      defect_dimension(11, {"residual_rows"}),
  };
  stage.inputs = {{"hidden", {DType::kBFloat16}, {"rows", "width"}, InputStorage::kRows},
                  {"residual", {DType::kBFloat16}, {"rows", "width"}, InputStorage::kRows, true}};
  stage.scalars = {ScalarSpec::row_gap("out_row_gap")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      laws::permute("row", {"hidden", "residual"}),
      {"copy", "without a residual the state is hidden, bit for bit", without_residual_a_copy},
  };
  stage.golden_bytes = 1 << 16;
  return stage;
}

}  // namespace monoref
