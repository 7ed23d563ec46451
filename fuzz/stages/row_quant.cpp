// row_quant: generator, reference and kernel side by side.
#include "reference/stages/row_quant.hpp"

#include <algorithm>
#include <bit>

#include "device/launch/row_quant.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/laws/scale.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/row_properties.hpp"
#include "reference/rules/fp8_rules.hpp"

namespace monoref {
namespace {

/// One row; "one_outlier" and "negative_outlier" have their largest element in the last head.
std::vector<std::uint16_t> draw_row(std::string_view kind, Floats content, std::int64_t width,
                                    CounterRandom& random) {
  std::vector<std::uint16_t> row;
  for (std::int64_t i = 0; i < width; ++i) row.push_back(draw_bf16(content, random));
  if (kind == "zeros")
    for (std::uint16_t& code : row) code &= 0x8000u;
  if (kind == "subnormal")
    for (std::uint16_t& code : row) code &= 0x8007u;
  if (kind == "one_outlier") row.back() = 0x4380;       // 256
  if (kind == "negative_outlier") row.back() = 0xC380;  // -256
  if (kind == "one_nan") row[static_cast<std::size_t>(random.below(width))] = 0xFFC1;
  return row;
}

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  CounterRandom random(seed, "a");
  const std::int64_t rows = params["rows"];
  const std::int64_t width = 8 * params["width_units"];
  const std::string defect(params.word("defect"));
  std::vector<std::uint16_t> codes;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto drawn = draw_row(random.once_in(4) ? "ordinary" : params.word("row"),
                                static_cast<Floats>(params["content"]), width, random);
    codes.insert(codes.end(), drawn.begin(), drawn.end());
  }
  std::size_t at = 0;
  const Layout layout = gapped_rows(rows, width, 1, 8 * params["row_gap"]);
  Case item;
  item.scalars = {{"out_row_gap", 8 * params["out_row_gap"]}, {"defect", defect}};
  item.inputs = {{"a", drawn_tensor(DType::kBFloat16, layout, [&] { return codes[at++]; })}};
  if (defect == "no_elements")
    replace_input(item, "a", Tensor(DType::kBFloat16, Layout::dense({rows, 0})));
  return item;
}

RowQuantInput input_of(const Case& item) {
  return {item.input("a").view<std::uint16_t, 2>(), item.contract};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto [rows, width] = row_quant_shape(input_of(item));
  return {{"a8",
           fp8_dtype(item.contract),
           gapped_rows(rows, width, 1, row_gap(item, "out_row_gap")),
           {"row", "element"},
           ""},
          {"a_scale", DType::kFloat32, Layout::dense({rows}), {"row"}, ""}};
}

void reference(const Case& item, Outputs& out) {
  row_quant(input_of(item),
            {out[0].tensor.view<std::uint8_t, 2>(), out[1].tensor.view<float, 1>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const Layout& a = item.input("a").layout();
  launcher.enqueue(
      device::launch::RowQuant{.x = launcher.address<const std::uint16_t>("a"),
                               .x_row_stride = a.strides[0],
                               .x8 = launcher.address<std::uint8_t>("out.a8"),
                               .x8_row_stride = a.dims[1] + row_gap(item, "out_row_gap"),
                               .scale = launcher.address<float>("out.a_scale"),
                               .rows = a.dims[0],
                               .width = a.dims[1],
                               .largest = fp8_maximum(item.contract),
                               .encoding = option(item.contract.fp8_encoding),
                               .overflow = option(item.contract.fp8_overflow)});
}

}  // namespace

Stage row_quant_stage() {
  Stage stage;
  stage.name = "row_quant";
  stage.summary = "the merged attention of a row to FP8 with one scale";
  stage.source = "mono-decode section 6";
  stage.contracts = {"mono", "mono,fp8_overflow=saturate", "mono,fp8_encoding=e4m3fnuz,fp8_max=240",
                     "mono,fp8_max=224"};
  stage.check_contract = [](const Contract& contract) { static_cast<void>(fp8_maximum(contract)); };
  stage.dimensions = {
      {"rows", 1, 0, 5, {0, 1, 16}, {}, "query rows"},
      {"width_units", 1, 1, 40, {1, 16, 64, 65, 256}, {}, "elements of a row, in eights"},
      {"row_gap", 0, 0, 3, {}, {}, "elements between rows, in eights"},
      {"out_row_gap", 0, 0, 3, {}, {}, "codes between rows, in eights"},
      Dimension::choice(
          "row", {"ordinary", "zeros", "subnormal", "one_outlier", "negative_outlier", "one_nan"},
          "what is special about most rows"),
      floats_dimension("content", "elements"),
      defect_dimension(11, {"no_elements"}),
  };
  stage.inputs = {{"a", {DType::kBFloat16}, {"rows", "width"}, InputStorage::kRows}};
  stage.sizes = {{"width", 8, limits::kExtent, 8}};
  stage.scalars = {ScalarSpec::row_gap("out_row_gap")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      laws::permute("row", {"a"}),
      rows_fill_the_range("a8", "a_scale", 0),
      laws::scale({.inputs = {{"a", 1, -90, 100}}, .outputs = {{"a_scale"}}}),
  };
  return stage;
}

}  // namespace monoref
