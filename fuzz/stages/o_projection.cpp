// o_projection: generator, reference and kernel side by side.
#include "reference/stages/o_projection.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "device/launch/o_projection.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/definition.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/laws/scale.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/step_rows.hpp"
#include "reference/rules/fp8_rules.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kWidthUnit = kOProjectionWaves * kOProjectionStep;

/// One code of the named content. "cancelling" ones are large and of both signs, so that the order
/// of a sum shows.
std::uint8_t code_of(std::string_view kind, const FloatFormat& format, CounterRandom& random) {
  if (kind == "zero") return 0;
  if (kind == "sparse" && !random.once_in(32)) return 0;
  if (kind == "cancelling")
    return static_cast<std::uint8_t>((random.once_in(2) ? 0x80 : 0) | (0x70 + random.below(14)));
  return draw_code(format, kind == "special" && random.once_in(2048), random);
}

std::uint32_t scale_of(std::string_view kind, CounterRandom& random) {
  if (kind == "ones") return std::bit_cast<std::uint32_t>(1.0f);
  if (kind == "special" && random.once_in(4))
    return std::bit_cast<std::uint32_t>(draw_float(Floats::kSpecial, random));
  const float power = std::ldexp(1.0f, static_cast<int>(random.between(-12, 2)));
  return std::bit_cast<std::uint32_t>(
      kind == "powers" ? power : power * static_cast<float>(random.between(129, 255)) / 128.0f);
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  CounterRandom a_random(seed, "a8");
  CounterRandom weight_random(seed, "weight");
  CounterRandom scale_random(seed, "scales");
  const std::int64_t tokens = params["tokens"];
  const std::int64_t width = kWidthUnit * params["width_units"];
  const std::int64_t hidden = 16 * params["hidden_units"];
  const FloatFormat& format = float_format(fp8_dtype(contract));
  const std::string_view content = params.word("content");
  const std::string_view scales = params.word("scales");
  const std::string defect(params.word("defect"));
  const DType type = fp8_dtype(contract);
  Case item;
  item.scalars = {{"out_row_gap", params["out_row_gap"]}, {"defect", defect}};
  item.inputs = {{"a8", drawn_tensor(type, gapped_rows(tokens, width, 1, 16 * params["a8_row_gap"]),
                                     [&] { return code_of(content, format, a_random); })},
                 {"a_scale", drawn_tensor(DType::kFloat32, Layout::dense({tokens}),
                                          [&] { return scale_of(scales, scale_random); })},
                 {"weight", drawn_tensor(type, Layout::dense({hidden, width}),
                                         [&] { return code_of(content, format, weight_random); })},
                 {"w_scale", drawn_tensor(DType::kFloat32, Layout::dense({hidden}),
                                          [&] { return scale_of(scales, scale_random); })}};
  if (defect == "rows_not_in_16")
    replace_input(item, "weight", Tensor(type, Layout::dense({hidden + 8, width})));
  if (defect == "scale_count")
    replace_input(item, "w_scale", Tensor(DType::kFloat32, Layout::dense({hidden + 1})));
  return item;
}

OProjectionInput input_of(const Case& item) {
  require_contract_fp8(item, {"a8", "weight"});
  return {item.input("a8").view<std::uint8_t, 2>(), item.input("a_scale").view<float, 1>(),
          item.input("weight").view<std::uint8_t, 2>(), item.input("w_scale").view<float, 1>(),
          item.contract};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto [tokens, hidden] = o_projection_shape(input_of(item));
  return {{"out",
           DType::kBFloat16,
           gapped_rows(tokens, hidden, 1, row_gap(item, "out_row_gap")),
           {"token", "row"},
           ""}};
}

void reference(const Case& item, Outputs& out) {
  o_projection_fast(input_of(item), {out[0].tensor.view<std::uint16_t, 2>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const Layout& a = item.input("a8").layout();
  const std::int64_t hidden = item.input("weight").dim(0);
  launcher.enqueue(
      device::launch::OProjection{.x8 = launcher.address<const std::uint8_t>("a8"),
                                  .x8_row_stride = a.strides[0],
                                  .x_scale = launcher.address<const float>("a_scale"),
                                  .weights = launcher.address<const std::uint8_t>("weight"),
                                  .w_scale = launcher.address<const float>("w_scale"),
                                  .out = launcher.address<std::uint16_t>("out.out"),
                                  .out_row_stride = hidden + row_gap(item, "out_row_gap"),
                                  .tokens = a.dims[0],
                                  .rows = hidden,
                                  .width = a.dims[1],
                                  .encoding = option(item.contract.fp8_encoding)});
}

void define(const Case& item, Outputs& out) {
  o_projection(input_of(item), {out[0].tensor.view<std::uint16_t, 2>()});
}

std::int64_t work(const Case& item) {
  return item.input("a8").layout().elements() * item.input("weight").dim(0);
}

}  // namespace

Stage o_projection_stage() {
  Stage stage;
  stage.name = "o_projection";
  stage.summary = "the quantised attention of a row times the FP8 output weights";
  stage.source = "mono-decode sections 6, 9 and 10";
  stage.contracts = {"mono", "mono,fp8_encoding=e4m3fnuz,fp8_max=240"};
  stage.dimensions = {
      {"tokens", 1, 0, 6, {0, 1, 8, 9, 16, 17}, {}, "tokens of the step"},
      {"width_units", 1, 1, 2, {1, 1, 4}, {}, "elements of a row, in 512s"},
      {"hidden_units", 1, 1, 4, {1}, {}, "rows of the weight, in sixteens"},
      {"a8_row_gap", 0, 0, 2, {}, {}, "codes between rows, in sixteens"},
      {"out_row_gap", 0, 0, 3, {}, {}, "elements between rows of the result"},
      Dimension::choice("content", {"any", "cancelling", "sparse", "zero", "special"},
                        "codes of both operands"),
      Dimension::choice("scales", {"ones", "powers", "odd", "special"}, "scales of both operands"),
      defect_dimension(11, {"rows_not_in_16", "scale_count"}),
  };
  stage.inputs = {{"a8", fp8_types(), {"tokens", "width"}, InputStorage::kRows},
                  {"a_scale", {DType::kFloat32}, {"tokens"}},
                  {"weight", fp8_types(), {"rows", "width"}},
                  {"w_scale", {DType::kFloat32}, {"rows"}}};
  stage.scalars = {ScalarSpec::row_gap("out_row_gap")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      laws::permute("token", {"a8", "a_scale"}),
      laws::definition({outputs, define, work}),
      laws::scale({.inputs = {{"a_scale"}, {"w_scale", 0}}, .outputs = {{"out"}}}),
      laws::scale({.inputs = {{"w_scale"}, {"a_scale", 0}}, .outputs = {{"out"}}}),
  };
  return stage;
}

}  // namespace monoref
