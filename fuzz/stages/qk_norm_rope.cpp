// qk_norm_rope: generator, reference and kernel side by side.
#include "reference/stages/qk_norm_rope.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "device/launch/qk_norm_rope.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/ignores.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "reference/rules/stored_elements.hpp"

namespace monoref {
namespace {

constexpr std::array<double, 4> kEps{1e-6, 1e-5, 1.0, 0x1p-30};
constexpr std::array<std::int64_t, 6> kHeadDims{8, 16, 32, 64, 96, 128};
constexpr std::array<const char*, 4> kGammas{"q_gamma", "k_gamma", "index_q_gamma",
                                             "index_k_gamma"};

HeadShape shape_of(const Case& item) {
  return {.q_heads = item.integer("q_heads"),
          .kv_heads = item.integer("kv_heads"),
          .index_q_heads = item.integer("index_q_heads"),
          .head_dim = item.integer("head_dim"),
          .rotary_dim = item.integer("rotary_dim")};
}

/// The rows of the table that have storage. A long table has three short runs of them, at both ends
/// and in the middle, so that 2^20 positions cost nothing.
std::vector<std::int64_t> stored_positions(std::int64_t table_rows) {
  constexpr std::int64_t kRun = 4;
  std::vector<std::int64_t> starts{0};
  std::int64_t run = table_rows;
  if (table_rows > 4096) {
    starts = {0, table_rows / 2, table_rows - kRun};
    run = kRun;
  }
  std::vector<std::int64_t> stored;
  for (const std::int64_t start : starts)
    for (std::int64_t i = 0; i < run; ++i) stored.push_back(start + i);
  return stored;
}

std::vector<std::int64_t> make_positions(const Params& params, CounterRandom& random) {
  const std::string_view kind = params.word("positions");
  const std::vector<std::int64_t> stored = stored_positions(params["table_rows"]);
  const auto count = static_cast<std::int64_t>(stored.size());
  std::int64_t at = random.below(count);
  std::vector<std::int64_t> positions;
  for (std::int64_t row = 0; row < params["rows"]; ++row) {
    if (kind == "ordinary") at = random.below(count);
    if (kind == "last") at = count - 1 - random.below(std::min<std::int64_t>(count, 3));
    if (kind == "around_256") at = std::min(count - 1, 254 + random.below(4));
    if (kind == "consecutive" && row > 0) at = (at + 1) % count;
    positions.push_back(stored[static_cast<std::size_t>(at)]);
  }
  return positions;
}

/// Cosines and sines between -1 and 1, the ends and zeros among them.
std::uint16_t table_element(CounterRandom& random) {
  constexpr std::array<std::uint16_t, 4> kEnds{0x0000, 0x8000, 0x3F80, 0xBF80};
  if (random.once_in(8)) return kEnds[static_cast<std::size_t>(random.below(4))];
  const std::int64_t magnitude = random.between(0x3A00, 0x3F7F);
  return static_cast<std::uint16_t>(magnitude | (random.once_in(2) ? 0x8000 : 0));
}

Tensor make_table(std::int64_t table_rows, std::int64_t rotary_dim, std::int64_t gap,
                  CounterRandom& random) {
  const std::int64_t stride = rotary_dim + gap;
  const std::vector<std::int64_t> stored = stored_positions(table_rows);
  Layout layout{{table_rows, rotary_dim}, {stride, 1}, {}};
  for (const std::int64_t position : stored) {
    const std::int64_t offset = position * stride;
    const bool follows = !layout.extents.empty() && layout.span() + gap == offset;
    if (follows)
      layout.extents.back().count += stride;
    else
      layout.extents.push_back({offset, rotary_dim});
  }
  Tensor table(DType::kBFloat16, layout);
  table.fill_bytes(std::byte{0xC3});
  const auto view = table.view<std::uint16_t, 2>();
  for (const std::int64_t position : stored)
    for (std::int64_t i = 0; i < rotary_dim; ++i) view(position, i) = table_element(random);
  return table;
}

std::uint32_t gamma_element(std::string_view kind, CounterRandom& random) {
  if (kind == "zero") return 0;
  if (kind == "special") return draw_bf16(Floats::kSpecial, random);
  return draw_bf16(Floats::kOrdinary, random);
}

Tensor positions_tensor(const std::vector<std::int64_t>& positions) {
  return Tensor::of(DType::kInt64, {static_cast<std::int64_t>(positions.size())}, positions);
}

void plant_defect(Case& item, const std::string& defect, std::int64_t table_rows) {
  const Tensor& position = item.input("position");
  std::vector<std::int64_t> positions(static_cast<std::size_t>(position.dim(0)), table_rows);
  if (defect == "position_past_table") replace_input(item, "position", positions_tensor(positions));
  if (defect == "position_negative") {
    std::fill(positions.begin(), positions.end(), -1);
    replace_input(item, "position", positions_tensor(positions));
  }
  const Tensor& qkv = item.input("qkv");
  if (defect == "row_width")
    replace_input(item, "qkv",
                  Tensor(DType::kBFloat16, Layout::dense({qkv.dim(0), qkv.dim(1) - 1})));
}

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  const std::int64_t head_dim = kHeadDims[static_cast<std::size_t>(params["head_dim"])];
  const HeadShape shape{.q_heads = params["q_heads"],
                        .kv_heads = params["kv_heads"],
                        .index_q_heads = params["index_q_heads"],
                        .head_dim = head_dim,
                        .rotary_dim = std::min(8 * params["rotary_eighths"], head_dim)};
  const std::int64_t rows = params["rows"];
  const std::int64_t table_rows = params["table_rows"];
  const auto content = static_cast<Floats>(params["content"]);
  const std::string defect(
      rows == 0 && params.word("defect").starts_with("position") ? "none" : params.word("defect"));
  CounterRandom position_random(seed, "position");
  CounterRandom table_random(seed, "cos_sin");
  CounterRandom qkv_random(seed, "qkv");
  const auto positions = make_positions(params, position_random);
  Case item;
  item.scalars = {{"q_heads", shape.q_heads},
                  {"kv_heads", shape.kv_heads},
                  {"index_q_heads", shape.index_q_heads},
                  {"head_dim", shape.head_dim},
                  {"rotary_dim", shape.rotary_dim},
                  {"eps", kEps[static_cast<std::size_t>(params["eps"])]},
                  {"out_row_gap", params["out_row_gap"]},
                  {"defect", defect}};
  item.inputs = {
      {"qkv",
       drawn_tensor(DType::kBFloat16,
                    gapped_rows(rows, shape.row_width(), params["qkv_step"], params["qkv_gap"]),
                    [&] { return draw_bf16(content, qkv_random); })},
      {"position", positions_tensor(positions)},
      {"cos_sin", make_table(table_rows, shape.rotary_dim, params["table_gap"], table_random)}};
  for (const char* name : kGammas) {
    CounterRandom random(seed, name);
    item.inputs.push_back({name, drawn_tensor(DType::kBFloat16, Layout::dense({head_dim}), [&] {
                             return gamma_element(params.word("gamma"), random);
                           })});
  }
  plant_defect(item, defect, table_rows);
  return item;
}

QkNormRopeInput input_of(const Case& item) {
  return {item.input("qkv").view<std::uint16_t, 2>(),
          item.input("position").view<std::int64_t, 1>(),
          item.input("cos_sin").view<std::uint16_t, 2>(),
          item.input("q_gamma").view<std::uint16_t, 1>(),
          item.input("k_gamma").view<std::uint16_t, 1>(),
          item.input("index_q_gamma").view<std::uint16_t, 1>(),
          item.input("index_k_gamma").view<std::uint16_t, 1>(),
          item.real("eps"),
          shape_of(item)};
}

/// A table of many positions may have storage for some of them alone.
void check_positions_are_stored(const Case& item) {
  const Layout& table = item.input("cos_sin").layout();
  const auto position = item.input("position").view<std::int64_t, 1>();
  for (std::int64_t row = 0; row < position.dim(0); ++row)
    if (!holds_run(table, position(row) * table.strides[0], table.dims[1]))
      refuse("qk_norm_rope: position[{}] is {}, its row of cos_sin must be stored: there are {}",
             row, position(row), stored_text(table));
}

std::vector<OutputSpec> outputs(const Case& item) {
  const HeadShape shape = shape_of(item);
  const std::int64_t rows = qk_norm_rope_rows(input_of(item));
  check_positions_are_stored(item);
  const auto spec = [&](const char* name, DType type, std::int64_t heads) {
    const std::int64_t stride = heads * shape.head_dim + row_gap(item, "out_row_gap");
    return OutputSpec{name,
                      type,
                      Layout::strided({rows, heads, shape.head_dim}, {stride, shape.head_dim, 1}),
                      {"token", "head", "dim"},
                      ""};
  };
  return {spec("q", DType::kBFloat16, shape.q_heads), spec("k", DType::kFloat32, shape.kv_heads),
          spec("index_q", DType::kBFloat16, shape.index_q_heads),
          spec("index_k", DType::kFloat32, 1)};
}

void reference(const Case& item, Outputs& out) {
  qk_norm_rope(input_of(item),
               {out[0].tensor.view<std::uint16_t, 3>(), out[1].tensor.view<float, 3>(),
                out[2].tensor.view<std::uint16_t, 3>(), out[3].tensor.view<float, 3>()});
}

void launch(const Case& item, const Launcher& launcher) {
  const HeadShape shape = shape_of(item);
  const Layout& qkv = item.input("qkv").layout();
  const Layout& table = item.input("cos_sin").layout();
  const auto bf16_input = [&](const char* name) {
    return launcher.address<const std::uint16_t>(name);
  };
  const auto row_stride = [&](std::int64_t count) {
    return count * shape.head_dim + row_gap(item, "out_row_gap");
  };
  launcher.enqueue(
      device::launch::QkNormRope{.qkv = bf16_input("qkv"),
                                 .qkv_row_stride = qkv.strides[0],
                                 .qkv_stride = qkv.strides[1],
                                 .positions = launcher.address<const std::int64_t>("position"),
                                 .cos_sin = bf16_input("cos_sin"),
                                 .cos_sin_row_stride = table.strides[0],
                                 .table_rows = table.dims[0],
                                 .q_gamma = bf16_input("q_gamma"),
                                 .k_gamma = bf16_input("k_gamma"),
                                 .index_q_gamma = bf16_input("index_q_gamma"),
                                 .index_k_gamma = bf16_input("index_k_gamma"),
                                 .q = launcher.address<std::uint16_t>("out.q"),
                                 .q_row_stride = row_stride(shape.q_heads),
                                 .index_q = launcher.address<std::uint16_t>("out.index_q"),
                                 .index_q_row_stride = row_stride(shape.index_q_heads),
                                 .k = launcher.address<float>("out.k"),
                                 .k_row_stride = row_stride(shape.kv_heads),
                                 .index_k = launcher.address<float>("out.index_k"),
                                 .index_k_row_stride = row_stride(1),
                                 .tokens = qkv.dims[0],
                                 .q_heads = shape.q_heads,
                                 .kv_heads = shape.kv_heads,
                                 .index_heads = shape.index_q_heads,
                                 .head_dim = shape.head_dim,
                                 .rotary_dim = shape.rotary_dim,
                                 .eps = static_cast<float>(item.real("eps"))});
}

/// v lies between k and index q in the row and takes no part.
laws::Region values(const Case& item) {
  return [shape = shape_of(item)](laws::Index at) {
    return at[1] >= shape.v_start() && at[1] < shape.index_q_start();
  };
}

/// Dims behind the rotary ones are those of the norm, whatever the table says (bug case N05).
laws::OutputRegion dims_behind_rotary(const Case& item, const Outputs&) {
  return [shape = shape_of(item)](std::string_view, laws::Index at) {
    return at[2] >= shape.rotary_dim;
  };
}

}  // namespace

Stage qk_norm_rope_stage() {
  Stage stage;
  stage.name = "qk_norm_rope";
  stage.summary = "norm of each head and partial NeoX rotation of q, k, index q and index k";
  stage.source = "mono-decode sections 3.6 and 3.7; upstream-semantics section 3.3";
  stage.dimensions = {
      {"rows", 1, 0, 4, {0, 1, 17}, {}, "tokens"},
      {"q_heads", 1, 1, 4, {1, 16}, {}, "query heads of the rank"},
      {"kv_heads", 1, 1, 2, {1, 4}, {}, "K/V heads of the rank"},
      {"index_q_heads", 1, 1, 4, {1, 4}, {}, "index query heads of the rank"},
      {"head_dim", 0, 0, 5, {5}, {"8", "16", "32", "64", "96", "128"}, "elements of a head"},
      {"rotary_eighths", 1, 1, 16, {1, 8}, {}, "rotated dims / 8, at most the head"},
      {"table_rows", 1, 1, 300, {1, 2, 256, 257, 258, 1 << 20}, {}, "positions of the table"},
      {"table_gap", 0, 0, 8, {0, 1, 8}, {}, "elements between rows of the table"},
      {"qkv_step", 1, 1, 2, {}, {}, "stride of the projection's elements"},
      {"qkv_gap", 0, 0, 8, {0, 1, 8}, {}, "elements between its rows"},
      {"out_row_gap", 0, 0, 8, {0, 1, 4}, {}, "elements between rows of the results"},
      floats_dimension("content", "the projection's heads"),
      Dimension::choice("gamma", {"zero", "ordinary", "special"}, "weights without their 1"),
      Dimension::choice("positions", {"ordinary", "last", "around_256", "consecutive"},
                        "what the positions are"),
      {"eps", 0, 0, 3, {}, {"1e-6", "1e-5", "1", "2^-30"}, "added inside the root"},
      defect_dimension(12, {"position_past_table", "position_negative", "row_width"}),
  };
  stage.inputs = {
      {"qkv", {DType::kBFloat16}, {"tokens", "row width"}, InputStorage::kStrided},
      {"position", {DType::kInt64}, {"tokens"}},
      {"cos_sin", {DType::kBFloat16}, {"positions", "rotary_dim"}, InputStorage::kCache}};
  for (const char* name : kGammas) stage.inputs.push_back({name, {DType::kBFloat16}, {"head_dim"}});
  stage.scalars = {ScalarSpec::integer("q_heads", 1, limits::kHeads),
                   ScalarSpec::integer("kv_heads", 1, limits::kHeads),
                   ScalarSpec::integer("index_q_heads", 1, limits::kHeads),
                   ScalarSpec::integer("head_dim", 4, 128, 4),
                   ScalarSpec::integer("rotary_dim", 8, 128, 8),
                   ScalarSpec::positive("eps"),
                   ScalarSpec::row_gap("out_row_gap")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      laws::permute("token", {"qkv", "position"}),
      laws::ignores("untouched_dims", "dims behind the rotary ones are those of the norm",
                    {{"cos_sin"}}, {.compared = dims_behind_rotary}),
      laws::ignores("values_apart", "the projection's v changes nothing", {{"qkv", values}}),
  };
  return stage;
}

}  // namespace monoref
