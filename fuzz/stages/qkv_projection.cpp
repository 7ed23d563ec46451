// qkv_projection: generator, reference and kernel side by side.
#include "reference/stages/qkv_projection.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "device/launch/qkv_projection.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/definition.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/laws/scale.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "reference/rules/fp8_rules.hpp"
#include "reference/rules/weight_layouts.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kChunk = ProjectionOrder::kChunk;
constexpr std::int64_t kGroupRows = 16;

/// Sizes of a case, after the dimensions that depend on each other are settled.
struct Sizes {
  std::int64_t tokens;
  std::int64_t hidden;
  std::int64_t rows;

  explicit Sizes(const Params& params) : tokens(params["tokens"]), rows(16 * params["row_groups"]) {
    std::int64_t chunks = params["chunks"];
    if (chunks > ProjectionOrder::kWaves) chunks -= chunks % ProjectionOrder::kWaves;
    hidden = chunks * kChunk;
    if (hidden <= 1024) return;
    rows = std::min(rows, kGroupRows);
    tokens = std::min<std::int64_t>(tokens, 4);
  }
};

/// For cancelling content: which k carry a large number, and with what sign in the weights. Pairs
/// of opposite sign, so that small products around them decide the sum, and with it the order.
std::vector<int> cancelling_signs(std::int64_t hidden, CounterRandom& random) {
  std::vector<int> signs(static_cast<std::size_t>(hidden), 0);
  for (std::int64_t pair = 0; pair < hidden / 8; ++pair)
    for (const int sign : {1, -1}) {
      std::int64_t k = random.below(hidden);
      while (signs[static_cast<std::size_t>(k)] != 0) k = (k + 1) % hidden;
      signs[static_cast<std::size_t>(k)] = sign;
    }
  return signs;
}

/// Codes of one operand of the product.
class Codes {
 public:
  Codes(const Params& params, const Contract& contract, std::uint64_t seed, std::string_view name)
      : kind_(params.word("codes")),
        is_weight_(name == "weight"),
        format_(fp8_rules(contract).format),
        random_(seed, name),
        hidden_(Sizes(params).hidden) {
    CounterRandom shared(seed, "signs");
    signs_ = cancelling_signs(hidden_, shared);
  }

  std::uint8_t next() {
    const int sign = signs_[static_cast<std::size_t>(column_)];
    column_ = (column_ + 1) % hidden_;
    if (kind_ == "zero") return 0;
    if (kind_ == "cancelling") return cancelling(sign);
    if (kind_ == "ordinary") return code_of_exponents(-3, 2);
    return draw_code(format_, kind_ == "with_nan" && random_.once_in(20), random_);
  }

 private:
  std::uint8_t code_of_exponents(int low, int high) {
    const float significand = static_cast<float>(random_.between(8, 15)) / 8;
    const float value = std::ldexp(significand, static_cast<int>(random_.between(low, high)));
    return static_cast<std::uint8_t>(
        encode(format_, random_.once_in(2) ? -value : value, Overflow::kSaturate));
  }

  std::uint8_t cancelling(int sign) {
    const std::uint32_t large = format_.largest();
    if (sign == 0) return code_of_exponents(-8, -2);
    const bool negative = is_weight_ && sign < 0;
    return static_cast<std::uint8_t>(large | (negative ? format_.sign_bit() : 0));
  }

  std::string_view kind_;
  bool is_weight_;
  FloatFormat format_;
  CounterRandom random_;
  std::int64_t hidden_;
  std::int64_t column_ = 0;
  std::vector<int> signs_;
};

std::uint32_t scale_bits(std::string_view kind, CounterRandom& random) {
  if (kind == "unit") return std::bit_cast<std::uint32_t>(1.0f);
  const Floats drawn = kind == "wide"      ? Floats::kWide
                       : kind == "special" ? Floats::kSpecial
                                           : Floats::kOrdinary;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(draw_float(drawn, random));
  return kind == "special" ? bits : bits & 0x7FFFFFFFu;
}

/// [rows, hidden] in the shuffled order; plain codes are drawn row by row.
Tensor drawn_weight(const Sizes& sizes, Codes codes, DType type) {
  std::vector<std::uint8_t> plain(static_cast<std::size_t>(sizes.rows * sizes.hidden));
  for (std::uint8_t& code : plain) code = codes.next();
  return Tensor::of(type, {sizes.rows, sizes.hidden},
                    shuffle_weight(plain, {1, sizes.rows, sizes.hidden}));
}

void plant_defect(Case& item, const std::string& defect, const Sizes& sizes) {
  const DType fp8 = item.input("x8").type();
  if (defect == "hidden_not_whole_chunks") {
    replace_input(item, "x8", Tensor(fp8, Layout::dense({sizes.tokens, sizes.hidden + 32})));
    replace_input(item, "weight", Tensor(fp8, Layout::dense({sizes.rows, sizes.hidden + 32})));
  }
  if (defect == "rows_not_whole_groups") {
    replace_input(item, "weight", Tensor(fp8, Layout::dense({sizes.rows + 8, sizes.hidden})));
    replace_input(item, "w_scale", Tensor(DType::kFloat32, Layout::dense({sizes.rows + 8})));
  }
  if (defect == "x_scale_length")
    replace_input(item, "x_scale", Tensor(DType::kFloat32, Layout::dense({sizes.tokens + 1})));
  if (defect == "w_scale_length")
    replace_input(item, "w_scale", Tensor(DType::kFloat32, Layout::dense({sizes.rows + 1})));
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  const Sizes sizes(params);
  const DType fp8 = fp8_dtype(contract);
  const std::string defect(params.word("defect"));
  CounterRandom x_scale_random(seed, "x_scale");
  CounterRandom w_scale_random(seed, "w_scale");
  Codes x_codes(params, contract, seed, "x8");
  const auto scales = [&](std::int64_t count, CounterRandom& random) {
    return drawn_tensor(DType::kFloat32, Layout::dense({count}),
                        [&] { return scale_bits(params.word("scales"), random); });
  };
  Case item;
  item.scalars = {{"out_row_gap", params["out_row_gap"]}, {"defect", defect}};
  item.inputs = {
      {"x8", drawn_tensor(fp8, gapped_rows(sizes.tokens, sizes.hidden, 1, params["x_gap"]),
                          [&] { return x_codes.next(); })},
      {"x_scale", scales(sizes.tokens, x_scale_random)},
      {"weight", drawn_weight(sizes, Codes(params, contract, seed, "weight"), fp8)},
      {"w_scale", scales(sizes.rows, w_scale_random)}};
  plant_defect(item, defect, sizes);
  return item;
}

QkvProjectionInput input_of(const Case& item) {
  require_contract_fp8(item, {"x8", "weight"});
  return {item.input("x8").view<std::uint8_t, 2>(), item.input("x_scale").view<float, 1>(),
          item.input("weight").view<std::uint8_t, 2>(), item.input("w_scale").view<float, 1>(),
          item.contract};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto [tokens, rows] = qkv_projection_shape(input_of(item));
  return {{"qkv",
           DType::kBFloat16,
           gapped_rows(tokens, rows, 1, row_gap(item, "out_row_gap")),
           {"token", "row"},
           ""}};
}

void reference(const Case& item, Outputs& out) {
  qkv_projection_fast(input_of(item), {out[0].tensor.view<std::uint16_t, 2>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const Layout& x8 = item.input("x8").layout();
  const std::int64_t rows = item.input("weight").dim(0);
  launcher.enqueue(
      device::launch::QkvProjection{.x8 = launcher.address<const std::uint8_t>("x8"),
                                    .x8_row_stride = x8.strides[0],
                                    .x_scale = launcher.address<const float>("x_scale"),
                                    .weights = launcher.address<const std::uint8_t>("weight"),
                                    .w_scale = launcher.address<const float>("w_scale"),
                                    .out = launcher.address<std::uint16_t>("out.qkv"),
                                    .out_row_stride = rows + row_gap(item, "out_row_gap"),
                                    .tokens = x8.dims[0],
                                    .rows = rows,
                                    .hidden = x8.dims[1],
                                    .encoding = option(item.contract.fp8_encoding)});
}

void define(const Case& item, Outputs& out) {
  qkv_projection(input_of(item), {out[0].tensor.view<std::uint16_t, 2>()});
}

std::int64_t work(const Case& item) {
  return item.input("x8").layout().elements() * item.input("weight").dim(0);
}

}  // namespace

Stage qkv_projection_stage() {
  Stage stage;
  stage.name = "qkv_projection";
  stage.summary = "FP8 by token times FP8 by row on the shuffled weight, eight slices of K";
  stage.source = "mono-decode sections 3.5, 9 and 10";
  stage.contracts = {"mono", "mono,fp8_encoding=e4m3fnuz"};
  stage.dimensions = {
      {"tokens", 1, 0, 4, {0, 1, 15, 16, 17, 33}, {}, "tokens"},
      {"chunks", 1, 1, 4, {1, 4, 7, 8, 16, 24, 96}, {}, "hidden / 64; above 8 in steps of 8"},
      {"row_groups", 1, 1, 3, {}, {}, "rows / 16"},
      {"x_gap", 0, 0, 16, {0, 1, 16}, {}, "bytes between rows of the activations"},
      {"out_row_gap", 0, 0, 8, {0, 1, 8}, {}, "elements between rows of the result"},
      Dimension::choice("codes", {"ordinary", "all", "cancelling", "with_nan", "zero"},
                        "activations and weights"),
      Dimension::choice("scales", {"unit", "ordinary", "wide", "special"},
                        "scales of tokens and rows"),
      defect_dimension(12, {"hidden_not_whole_chunks", "rows_not_whole_groups", "x_scale_length",
                            "w_scale_length"}),
  };
  stage.inputs = {{"x8", fp8_types(), {"tokens", "hidden"}, InputStorage::kRows},
                  {"x_scale", {DType::kFloat32}, {"tokens"}},
                  {"weight", fp8_types(), {"rows", "hidden"}},
                  {"w_scale", {DType::kFloat32}, {"rows"}}};
  stage.sizes = {{"tokens", 0, limits::kTokens}};
  stage.scalars = {ScalarSpec::row_gap("out_row_gap")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      laws::permute("token", {"x8", "x_scale"}),
      laws::definition({outputs, define, work}),
      laws::scale({.inputs = {{"x_scale"}, {"w_scale", 0}}, .outputs = {{"qkv"}}}),
  };
  return stage;
}

}  // namespace monoref
