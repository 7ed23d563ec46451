#include "fuzz/stages/layer_content.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "fuzz/inputs.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/step_rows.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/expert_weights.hpp"
#include "reference/rules/fp8_rules.hpp"
#include "reference/rules/weight_layouts.hpp"
#include "reference/stages/all_reduce.hpp"
#include "reference/stages/moe_route.hpp"
#include "reference/stages/residual_norm_quant.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kMxUnit = 32;
constexpr std::int64_t kChannels = 2;

/// About log2 of the square root of a length: how much a sum of so many random terms grows.
int growth(std::int64_t length) {
  return (std::bit_width(static_cast<std::uint64_t>(length)) - 1) / 2;
}

/// A number of both signs below `largest`, with every mantissa bit.
float ordinary(float largest, CounterRandom& random) {
  const auto fraction = static_cast<std::int32_t>(random.bits32() & 0xFFFFFF) - 0x800000;
  return largest * (static_cast<float>(fraction) / 0x800000);
}

std::uint32_t bf16_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) >> 16;
}

/// Random codes: any two of MXFP4, or FP8 ones of which none is `nan` (0x7F with either sign, or
/// 0x80).
void fill_codes(std::span<std::byte> bytes, std::optional<std::uint8_t> nan, CounterRandom random) {
  constexpr std::uint32_t kOnes = 0x01010101;
  for (std::size_t i = 0; i < bytes.size(); i += 4) {
    std::uint32_t word = random.bits32();
    if (nan == 0x7F) word &= ~((((word & 0x7F7F7F7F) + kOnes) & 0x80808080) >> 4);
    if (nan == 0x80) word |= (~((word & 0x7F7F7F7F) + 0x7F7F7F7F) >> 4) & 0x08080808;
    std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(4, bytes.size() - i));
  }
}

/// Scales of a [rows, columns] matrix in shuffle_scale order, around `centre`; columns behind
/// `real_columns` are padding.
void fill_scales(std::span<std::byte> bytes, std::int64_t rows, std::int64_t columns,
                 std::int64_t real_columns, int centre, CounterRandom random) {
  for (std::size_t i = 0; i < bytes.size(); i += 4) {  // rows of eight: whole words
    const std::uint32_t word =
        (random.bits32() & 0x03030303) + static_cast<std::uint32_t>(centre - 2) * 0x01010101;
    std::memcpy(bytes.data() + i, &word, 4);
  }
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = real_columns; column < columns; ++column)
      bytes[static_cast<std::size_t>(shuffled_scale_offset(row, column, columns))] =
          std::byte{kScalePad};
}

}  // namespace

std::vector<Dimension> layer_dimensions() {
  return {
      {"ranks", 1, 1, 1, {1, 1, 1, 1, 1, 1, 1, 4}, {}, "tensor-parallel ranks", 4},
      {"hidden_units", 1, 1, 1, {1, 1, 1, 1, 1, 2}, {}, "hidden / 512", 12},
      {"inter_units", 1, 1, 1, {1, 2}, {}, "inter / 128", 6},
      {"experts", 8, 5, 8, {5, 8, 12, 128}, {}, "routed experts"},
      {"live_experts",
       5,
       5,
       6,
       {5, 12},
       {},
       "of them, how many are ever routed to and have storage",
       128},
      Dimension::choice("weights", {"mxfp8", "mxfp4"}, "format of the routed experts"),
      Dimension::choice("shared", {"separate", "fused"}, "where the shared expert's weights are"),
      Dimension::choice("limit", {"7", "infinite", "0.5"}, "of SwiGLU"),
      {"topk_blocks", 1, 1, 3, {1, 2, 4}, {}, "blocks selected", 16},
      {"init_blocks", 0, 0, 1, {}, {}, "pinned leading blocks"},
      {"head_units", 1, 1, 1, {1, 1, 1, 4}, {}, "head_dim / 32"},
      Dimension::choice("content",
                        {"ordinary", "zero_row", "nan_row", "inf_row", "large", "equal_rows"},
                        "of hidden states and residual"),
  };
}

LayerShape layer_shape(const Params& params) {
  const std::string_view limit = params.word("limit");
  LayerShape shape;
  shape.ranks = params["ranks"];
  shape.hidden = 512 * params["hidden_units"];
  shape.head_dim = 32 * params["head_units"];
  shape.rotary_dim = shape.head_dim / 2;
  shape.inter = 128 * params["inter_units"];
  shape.n_routed = params["experts"];
  shape.mxfp4 = params.word("weights") == "mxfp4";
  shape.separate_shared = params.word("shared") == "separate";
  shape.fused_weight = 0.75;
  shape.limit = limit == "7" ? 7.0 : limit == "0.5" ? 0.5 : INFINITY;
  shape.selection = {.block_size = kBlock,
                     .topk = params["topk_blocks"],
                     .init_blocks = params["init_blocks"],
                     .local_blocks = 1};
  return shape;
}

void list_layer_inputs(Stage& stage, const std::string& layer) {
  const auto add = [&](const std::string& name, std::vector<DType> types,
                       std::vector<std::string> axes, InputStorage storage = InputStorage::kDense) {
    stage.inputs.push_back({name, std::move(types), std::move(axes), storage, true});
  };
  const std::vector<DType> bf16{DType::kBFloat16}, f32{DType::kFloat32}, u8{DType::kUInt8};
  const auto sparse = InputStorage::kSparse;
  for (const char* name : {"input_gamma", "post_gamma"}) add(layer + name, bf16, {"hidden"});
  for (const char* name : {"q_gamma", "k_gamma", "index_q_gamma", "index_k_gamma"})
    add(layer + name, bf16, {"head_dim"});
  add(layer + "gate", {DType::kBFloat16, DType::kFloat32}, {"n_routed", "hidden"});
  add(layer + "bias", f32, {"n_routed"});
  const std::string rank = layer + "r#.";
  add(rank + "qkv_weight", fp8_types(), {"projection rows", "hidden"});
  add(rank + "qkv_scale", f32, {"projection rows"});
  add(rank + "o_weight", fp8_types(), {"hidden", "attention width"});
  add(rank + "o_scale", f32, {"hidden"});
  for (const char* weight : {"w13", "w2"}) {
    const std::string scale = weight == std::string("w13") ? "s13" : "s2";
    const std::string rows = std::string("rows of ") + weight;
    const std::string k = std::string("k of ") + weight;
    const std::string scales = "scales of " + scale;
    add(rank + weight, u8, {"experts", rows, std::string("bytes of ") + weight}, sparse);
    add(rank + scale, u8, {"rows of all " + scale, scales}, sparse);
    add(rank + "shared_" + weight, u8, {rows, k});
    add(rank + "shared_" + scale, u8, {rows, scales});
  }
  for (const char* cache : {"kv_cache", "k_cache", "v_cache"})
    add(rank + cache, fp8_types(), {"blocks", "pages of a block", "kv heads", "elements of a page"},
        sparse);
  add(rank + "index_cache", fp8_types(), {"blocks", "block_size", "head_dim"},
      InputStorage::kCache);
  add("r#.score", f32, {"score heads", "score rows", "score columns"});
  add("cos_sin", bf16, {"positions", "rotary_dim"});
  add("flags", {DType::kInt32}, {"phases", "ranks", "ranks", "channels"});
  stage.sizes = {{"kv heads", 1, 1}, {"score heads", 1, 1}};

  stage.scalars.insert(
      stage.scalars.end(),
      {ScalarSpec::integer("ranks", 1, kReduceMaxRanks),
       ScalarSpec::integer("hidden", 512, kNormMaxHidden, 512),
       ScalarSpec::integer("heads", 1, limits::kHeads),
       ScalarSpec::integer("head_dim", 16, 128, 16), ScalarSpec::integer("rotary_dim", 8, 128, 8),
       ScalarSpec::integer("inter", 128, 1 << 17, 128),
       ScalarSpec::integer("n_routed", 1, kExpertMaxRouted),
       ScalarSpec::integer("top_k", 1, kRouteMaxTopK), ScalarSpec::flag("mxfp4"),
       ScalarSpec::flag("separate_shared"), ScalarSpec::finite("fused_weight"),
       ScalarSpec::positive("eps"), ScalarSpec::positive("scaling"),
       ScalarSpec::real("limit", 0, HUGE_VAL)});
  const auto selection = selection_scalars();
  stage.scalars.insert(stage.scalars.end(), selection.begin(), selection.end());
}

void list_step_inputs(Stage& stage, const std::string& step) {
  const std::string rows = step + "rows", requests = step + "requests";
  stage.inputs.insert(stage.inputs.end(),
                      {{step + "block_table", {DType::kInt32}, {requests, step + "width"}},
                       {step + "seq_lens", {DType::kInt32}, {requests}},
                       {step + "position", {DType::kInt64}, {rows}},
                       {step + "slot_mapping", {DType::kInt64}, {rows}}});
  stage.scalars.push_back(ScalarSpec::integer(step + "rows", 0, limits::kTokens));
  stage.scalars.push_back(ScalarSpec::integer(step + "q_len", 1, limits::kQueryLength));
}

void LayerContent::add(const std::string& name, Tensor tensor) {
  item_.inputs.push_back({name, std::move(tensor)});
}

void LayerContent::add_gamma(const std::string& name, std::int64_t size) {
  CounterRandom random = stream(name);
  add(name, drawn_tensor(DType::kBFloat16, Layout::dense({size}),
                         [&] { return bf16_bits(ordinary(0.5F, random)); }));
}

/// FP8 weights under one scale a row, such that products with quantised activations of size 1 stay
/// about that.
void LayerContent::add_fp8_weight(const std::string& name, const std::string& scale,
                                  std::int64_t rows, std::int64_t columns) {
  const DType type = fp8_dtype(item_.contract);
  Tensor weight(type, Layout::dense({rows, columns}));
  const bool is_fn = item_.contract.fp8_encoding == Fp8Encoding::kFn;
  fill_codes(weight.bytes(weight.layout().extents.front()), is_fn ? 0x7F : 0x80, stream(name));
  add(name, std::move(weight));
  CounterRandom random = stream(scale);
  const int exponent = -6 - growth(columns);
  add(scale, drawn_tensor(DType::kFloat32, Layout::dense({rows}), [&] {
        return std::bit_cast<std::uint32_t>(
            std::ldexp(static_cast<float>(random.between(64, 127)) / 64.0F, exponent));
      }));
}

/// Experts with weights: the last one and the first `live_experts`. Those include the placeholder
/// ids of shape inference and the experts that a row of NaN selects where no bias decides: the
/// first ones, or as many of the last where equal keys go to the higher expert.
bool LayerContent::is_live(std::int64_t expert) const {
  const bool higher_first = item_.contract.routing_key == RoutingKey::kPlainHigherId;
  const std::int64_t last = higher_first ? shape_.top_k : 1;
  return expert >= shape_.n_routed - last || expert < params_["live_experts"];
}

void LayerContent::add_stack(const std::string& weight, const std::string& scale,
                             std::int64_t experts, std::int64_t rows, std::int64_t columns,
                             bool mxfp4) {
  const std::int64_t row_bytes = mxfp4 ? columns / 2 : columns;
  const std::int64_t scale_columns = (columns / kMxUnit + 7) / 8 * 8;
  const std::int64_t weight_run = rows * row_bytes, scale_run = rows * scale_columns;
  Layout weight_layout = Layout::dense({experts, rows, row_bytes});
  Layout scale_layout = Layout::dense({experts * rows, scale_columns});
  std::vector<std::int32_t> live;
  for (std::int64_t e = 0; e < experts; ++e)
    if (is_live(e)) live.push_back(static_cast<std::int32_t>(e));
  if (static_cast<std::int64_t>(live.size()) < experts) {
    weight_layout.extents = stored_blocks(live, weight_run, weight_run);
    scale_layout.extents = stored_blocks(live, scale_run, scale_run);
  }
  Tensor codes(DType::kUInt8, std::move(weight_layout));
  Tensor scales(DType::kUInt8, std::move(scale_layout));
  const int centre = 127 - (mxfp4 ? 1 : 6) - growth(columns);
  for (const std::int32_t e : live) {
    const std::string expert = fmt::format("{}.{}", weight, e);
    fill_codes(codes.bytes({e * weight_run, weight_run}),
               mxfp4 ? std::nullopt : std::optional<std::uint8_t>(0x7F), stream(expert));
    fill_scales(scales.bytes({e * scale_run, scale_run}), rows, scale_columns, columns / kMxUnit,
                centre, stream(expert + ".scale"));
  }
  add(weight, std::move(codes));
  add(scale, std::move(scales));
}

void LayerContent::add_experts(const std::string& prefix, const std::string& weight,
                               const std::string& scale, std::int64_t rows, std::int64_t columns) {
  add_stack(prefix + weight, prefix + scale, shape_.experts(), rows, columns, shape_.mxfp4);
  if (!shape_.separate_shared) return;
  const std::int64_t scale_columns = (columns / kMxUnit + 7) / 8 * 8;
  Tensor codes(DType::kUInt8, Layout::dense({rows, columns}));
  Tensor scales(DType::kUInt8, Layout::dense({rows, scale_columns}));
  const std::string name = prefix + "shared_" + weight;
  fill_codes(codes.bytes(codes.layout().extents.front()), 0x7F, stream(name));
  fill_scales(scales.bytes(scales.layout().extents.front()), rows, scale_columns, columns / kMxUnit,
              127 - 6 - growth(columns), stream(name + ".scale"));
  add(name, std::move(codes));
  add(prefix + "shared_" + scale, std::move(scales));
}

/// The gate, and a bias that keeps experts without storage out.
void LayerContent::add_routing(const std::string& prefix) {
  CounterRandom gate_random = stream(prefix + "gate");
  CounterRandom bias_random = stream(prefix + "bias");
  const float largest = std::ldexp(1.5F, -growth(shape_.hidden));
  const DType type =
      item_.contract.gate_weights == GateWeights::kBf16 ? DType::kBFloat16 : DType::kFloat32;
  add(prefix + "gate", drawn_tensor(type, Layout::dense({shape_.n_routed, shape_.hidden}), [&] {
        const float weight = ordinary(largest, gate_random);
        return type == DType::kBFloat16 ? bf16_bits(weight) : std::bit_cast<std::uint32_t>(weight);
      }));
  std::int64_t expert = 0;
  add(prefix + "bias", drawn_tensor(DType::kFloat32, Layout::dense({shape_.n_routed}), [&] {
        const float bias = ordinary(0.5F, bias_random);
        return std::bit_cast<std::uint32_t>(is_live(expert++) ? bias : bias - 8.0F);
      }));
}

void LayerContent::add_layer(const std::string& prefix, const ReachedBlocks& blocks) {
  add_gamma(prefix + "input_gamma", shape_.hidden);
  add_gamma(prefix + "post_gamma", shape_.hidden);
  for (const char* name : {"q_gamma", "k_gamma", "index_q_gamma", "index_k_gamma"})
    add_gamma(prefix + name, shape_.head_dim);
  add_routing(prefix);
  for (std::int64_t r = 0; r < shape_.ranks; ++r) {
    const std::string rank = fmt::format("{}r{}.", prefix, r);
    add_fp8_weight(rank + "qkv_weight", rank + "qkv_scale", shape_.projection_rows(),
                   shape_.hidden);
    add_fp8_weight(rank + "o_weight", rank + "o_scale", shape_.hidden,
                   shape_.heads * shape_.head_dim);
    add_experts(rank, "w13", "s13", 2 * shape_.inter, shape_.hidden);
    add_experts(rank, "w2", "s2", shape_.hidden, shape_.inter);
    CounterRandom random = stream(rank + "caches");
    KvCaches caches = reached_kv_caches(blocks, shape_.head_dim, item_.contract, random);
    add(rank + (caches.v ? "k_cache" : "kv_cache"), std::move(caches.k));
    if (caches.v) add(rank + "v_cache", std::move(*caches.v));
    add(rank + "index_cache", reached_index_cache(blocks, shape_.head_dim, item_.contract, random));
  }
}

/// [ranks, rows, hidden], the same on every rank; one row is what the content says.
Tensor LayerContent::activations(const std::string& name, std::int64_t rows) const {
  CounterRandom random = stream(name);
  const std::string_view content = params_.word("content");
  const std::int64_t special = rows == 0 ? 0 : random.below(rows);
  std::vector<std::uint32_t> of_rank;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < shape_.hidden; ++i) {
      std::uint32_t bits = bf16_bits(ordinary(content == "large" ? 4096.0F : 2.0F, random));
      if (content == "equal_rows" && row > 0) bits = of_rank[static_cast<std::size_t>(i)];
      if (row == special && content == "zero_row") bits = 0;
      if (row == special && i == 0 && content == "nan_row") bits = 0x7FC0;
      if (row == special && i == 0 && content == "inf_row") bits = 0x7F80;
      of_rank.push_back(bits);
    }
  std::size_t at = 0;
  return drawn_tensor(DType::kBFloat16, Layout::dense({shape_.ranks, rows, shape_.hidden}),
                      [&] { return of_rank[at++ % of_rank.size()]; });
}

void LayerContent::add_step(const std::string& prefix, const LayerStep& step,
                            const ReachedBlocks& blocks, const std::string& hidden_states,
                            const std::string& residual) {
  std::vector<std::int32_t> table;
  std::vector<std::int64_t> lengths, positions, slots;
  for (std::size_t i = 0; i < step.requests.size(); ++i) {
    const std::int32_t request = step.requests[i];
    const std::int32_t length = request < 0 ? 0 : step.lengths[i];
    lengths.push_back(length);
    for (std::int64_t column = 0; column < blocks.width; ++column)
      table.push_back(
          request < 0 ? 0 : blocks.ids[static_cast<std::size_t>(request * blocks.width + column)]);
    for (std::int64_t token = 0; token < step.q_len; ++token) {
      const std::int64_t position = length - step.q_len + token;
      positions.push_back(std::max<std::int64_t>(position, 0));
      slots.push_back(
          position < 0
              ? -1
              : blocks.ids[static_cast<std::size_t>(request * blocks.width + position / kBlock)] *
                        kBlock +
                    position % kBlock);
    }
  }
  const auto requests = static_cast<std::int64_t>(step.requests.size());
  add(prefix + "block_table", padded_rows(DType::kInt32, requests, blocks.width, 0, table));
  add(prefix + "seq_lens", strided_vector(DType::kInt32, lengths, 1));
  add(prefix + "position", strided_vector(DType::kInt64, positions, 1));
  add(prefix + "slot_mapping", strided_vector(DType::kInt64, slots, 1));
  add(hidden_states, activations(hidden_states, step.rows()));
  add(residual, activations(residual, step.rows()));
}

void LayerContent::add_common(std::int64_t positions, std::int64_t rows, std::int64_t width,
                              std::int32_t first_tag) {
  CounterRandom random = stream("cos_sin");
  add("cos_sin", drawn_tensor(DType::kBFloat16, Layout::dense({positions, shape_.rotary_dim}),
                              [&] { return bf16_bits(ordinary(1.0F, random)); }));
  const auto before = static_cast<std::uint32_t>(first_tag) - 1;
  add("flags", drawn_tensor(DType::kInt32,
                            Layout::dense({kReducePhases, shape_.ranks, shape_.ranks, kChannels}),
                            [&] { return before; }));
  for (std::int64_t r = 0; r < shape_.ranks; ++r)
    add(fmt::format("r{}.score", r),
        drawn_tensor(DType::kFloat32, Layout::dense({1, rows, width}), [] { return 0x7F61B1E6u; }));
}

}  // namespace monoref
