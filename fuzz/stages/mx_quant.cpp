// mx_quant: generator, reference and kernel side by side.
#include "reference/stages/mx_quant.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "device/launch/mx_quant.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/laws/scale.hpp"
#include "fuzz/stage.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "reference/formats/convert.hpp"
#include "reference/formats/mx_block.hpp"

namespace monoref {
namespace {

constexpr auto kBlock = static_cast<std::int64_t>(kMxBlock);

/// The largest magnitude of a block: 2^n times one of the factors at which some rule switches, or a
/// neighbour of that (bug case X08).
float switching_amax(CounterRandom& random) {
  constexpr float kFactors[] = {1.0f, 1.5f, 1.75f, 1.875f, 1.9375f, 1.984375f, 448.0f / 256.0f};
  const float factor = kFactors[random.below(std::size(kFactors))];
  const float amax = std::ldexp(factor, static_cast<int>(random.between(-20, 20)));
  const auto bits = std::bit_cast<std::uint32_t>(amax);
  const std::int64_t place = 0x10000 * random.between(-1, 1) + random.between(-1, 1);
  return std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<std::int64_t>(bits) + place));
}

/// The elements of one block by the named pattern.
std::vector<float> draw_block(std::string_view kind, Floats content, CounterRandom& random) {
  std::vector<float> block;
  for (std::int64_t i = 0; i < kBlock; ++i) block.push_back(draw_float(content, random));
  float& one = block[static_cast<std::size_t>(random.below(kBlock))];
  if (kind == "switching") {
    const float amax = switching_amax(random);
    for (float& value : block) value = std::fmod(value, amax);
    one = random.once_in(2) ? -amax : amax;
  }
  if (kind == "tiny") {
    for (float& value : block) value = draw_float(Floats::kTiny, random) * 0x1p-100f;
    one = std::ldexp(1.0f, static_cast<int>(random.between(-149, -110)));
  }
  if (kind == "huge") one = std::ldexp(1.984375f, static_cast<int>(random.between(110, 127)));
  if (kind == "one_nan") one = std::bit_cast<float>(0xFFC10000u);
  if (kind == "zeros")
    for (float& value : block) value = std::copysign(0.0f, value);
  return block;
}

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  CounterRandom random(seed, "x");
  const std::int64_t rows = params["rows"];
  const std::int64_t width = kBlock * params["blocks"];
  const bool f32 = params["f32"] != 0;
  const std::string defect(params.word("defect"));
  std::vector<float> values;
  for (std::int64_t block = 0; block < rows * params["blocks"]; ++block) {
    const auto drawn = draw_block(random.once_in(4) ? "any" : params.word("block"),
                                  static_cast<Floats>(params["content"]), random);
    values.insert(values.end(), drawn.begin(), drawn.end());
  }
  std::size_t at = 0;
  const auto draw = [&] {
    const auto bits = std::bit_cast<std::uint32_t>(values[at++]);
    return f32 ? bits : bits >> 16;
  };
  const DType type = f32 ? DType::kFloat32 : DType::kBFloat16;
  Case item;
  item.scalars = {{"codes_row_gap", params["codes_row_gap"]}, {"defect", defect}};
  item.inputs = {{"x", drawn_tensor(type, gapped_rows(rows, width, 1, params["row_gap"]), draw)}};
  if (defect == "width") replace_input(item, "x", Tensor(type, Layout::dense({rows, width + 8})));
  if (defect == "type")
    replace_input(item, "x", Tensor(DType::kInt32, Layout::dense({rows, width})));
  return item;
}

MxQuantInput input_of(const Case& item) {
  return {item.input("x"), item.contract};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto [rows, width] = mx_quant_shape(input_of(item));
  return {{"codes",
           DType::kFloat8E4M3FN,
           gapped_rows(rows, width, 1, row_gap(item, "codes_row_gap")),
           {"row", "element"},
           ""},
          {"scales", DType::kUInt8, Layout::dense({rows, width / kBlock}), {"row", "block"}, ""}};
}

void reference(const Case& item, Outputs& out) {
  mx_quant(input_of(item),
           {out[0].tensor.view<std::uint8_t, 2>(), out[1].tensor.view<std::uint8_t, 2>()});
}

template <class Element>
void launch_as(const Case& item, const Launcher& launcher) {
  const Layout& x = item.input("x").layout();
  launcher.enqueue(device::launch::MxQuant<Element>{
      .x = launcher.address<const Element>("x"),
      .x_row_stride = x.strides[0],
      .codes = launcher.address<std::uint8_t>("out.codes"),
      .codes_row_stride = x.dims[1] + row_gap(item, "codes_row_gap"),
      .scales = launcher.address<std::uint8_t>("out.scales"),
      .rows = x.dims[0],
      .width = x.dims[1],
      .rule = option(item.contract.mx_rule)});
}

void launch(const Case& item, const Launcher& launcher) {
  if (item.input("x").type() == DType::kFloat32)
    launch_as<float>(item, launcher);
  else
    launch_as<std::uint16_t>(item, launcher);
}

float element_of(const Case& item, std::int64_t row, std::int64_t i) {
  const Tensor& x = item.input("x");
  return x.type() == DType::kFloat32 ? x.view<float, 2>()(row, i)
                                     : float_from_bf16(x.view<std::uint16_t, 2>()(row, i));
}

float amax_of(const Case& item, std::int64_t row, std::int64_t block) {
  float amax = 0;
  for (std::int64_t i = block * kBlock; i < (block + 1) * kBlock; ++i) {
    const float magnitude = std::fabs(element_of(item, row, i));
    if (magnitude != magnitude) return magnitude;
    amax = std::max(amax, magnitude);
  }
  return amax;
}

/// Rules whose scale never lets a finite element pass 448 (bug case X08).
bool never_clips(MxScaleRule rule) {
  return rule == MxScaleRule::kA || rule == MxScaleRule::kD || rule == MxScaleRule::kE ||
         rule == MxScaleRule::kMono || rule == MxScaleRule::kCeil || rule == MxScaleRule::kRoundUp;
}

std::optional<std::string> nothing_is_clipped(const Case& item, const Outputs& out,
                                              const Evaluate&) {
  if (!never_clips(item.contract.mx_rule)) return std::nullopt;
  const auto scales = output(out, "scales").view<std::uint8_t, 2>();
  for (std::int64_t row = 0; row < scales.dim(0); ++row)
    for (std::int64_t block = 0; block < scales.dim(1); ++block) {
      const float amax = amax_of(item, row, block);
      // In double: the binary32 products of the rule may round a hair past 448 down to it.
      const double scaled = std::ldexp(static_cast<double>(amax), 127 - scales(row, block));
      if (std::isfinite(amax) && scaled > 448.0 * (1 + 0x1p-23))
        return fmt::format("row {}, block {}: {} becomes {} under scale byte {}", row, block, amax,
                           scaled, scales(row, block));
    }
  return std::nullopt;
}

/// Every element is the nearest code to its scaled self, by the definition in double.
std::optional<std::string> codes_are_nearest(const Case& item, const Outputs& out,
                                             const Evaluate&) {
  const auto codes = output(out, "codes").view<std::uint8_t, 2>();
  const auto scales = output(out, "scales").view<std::uint8_t, 2>();
  for (std::int64_t row = 0; row < codes.dim(0); ++row)
    for (std::int64_t i = 0; i < codes.dim(1); ++i) {
      const std::uint8_t scale = scales(row, i / kBlock);
      const double scaled =
          scale == kE8M0Nan
              ? NAN
              : std::ldexp(static_cast<double>(element_of(item, row, i)), 127 - scale);
      const std::uint32_t expected = encode(kE4M3FN, scaled, Overflow::kSaturate);
      if (codes(row, i) != expected)
        return fmt::format("row {}, element {} is code {:#04x}, the nearest is {:#04x}", row, i,
                           codes(row, i), expected);
    }
  return std::nullopt;
}

/// Blocks whose largest element is far from the ends of binary32.
laws::OutputRegion moderate_blocks(const Case& item, const Outputs&) {
  return [&item](std::string_view output, laws::Index at) {
    const float amax = amax_of(item, at[0], output == "codes" ? at[1] / kBlock : at[1]);
    return amax > 0x1p-20f && amax < 0x1p120f;
  };
}

}  // namespace

Stage mx_quant_stage() {
  Stage stage;
  stage.name = "mx_quant";
  stage.summary = "rows to MXFP8, 32 elements a scale";
  stage.source = "mono-decode section 7; upstream-semantics section 7.4";
  stage.contracts = {"mono",
                     "mono,mx_rule=a",
                     "mono,mx_rule=b",
                     "mono,mx_rule=c",
                     "mono,mx_rule=d",
                     "mono,mx_rule=e",
                     "mono,mx_rule=round_down",
                     "mono,mx_rule=even",
                     "mono,mx_rule=ceil",
                     "mono,mx_rule=round_up"};
  stage.golden_cases = 5;
  stage.golden_bytes = 6000;
  stage.dimensions = {
      {"rows", 1, 0, 5, {0, 1, 16}, {}, "rows"},
      {"blocks", 1, 1, 8, {1, 24, 32, 33}, {}, "elements of a row, in blocks of 32", 192},
      {"f32", 0, 0, 1, {}, {}, "elements are binary32 instead of BF16"},
      {"row_gap", 0, 0, 17, {0, 8}, {}, "elements between rows"},
      {"codes_row_gap", 0, 0, 17, {0, 16}, {}, "codes between rows"},
      Dimension::choice("block", {"any", "switching", "tiny", "huge", "one_nan", "zeros"},
                        "what is special about most blocks"),
      floats_dimension("content", "elements"),
      defect_dimension(11, {"width", "type"}),
  };
  stage.inputs = {
      {"x", {DType::kBFloat16, DType::kFloat32}, {"rows", "width"}, InputStorage::kRows}};
  stage.scalars = {ScalarSpec::row_gap("codes_row_gap")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      laws::permute("row", {"x"}),
      {"no_clipping", "rules that round up keep every element within 448", nothing_is_clipped},
      {"nearest", "every code is the nearest to its element over the scale", codes_are_nearest},
      laws::scale(
          {.inputs = {{"x", 1, -100, 126}}, .outputs = {{"scales"}}, .compared = moderate_blocks}),
  };
  return stage;
}

}  // namespace monoref
