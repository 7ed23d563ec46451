// sparse_attention: the six stages from index queries to the output projection as one chain, each
// reading what the one before it left.
#include "reference/sparse_attention.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "fuzz/stage.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/kv_content.hpp"
#include "fuzz/stages/step_rows.hpp"
#include "reference/attention_merge.hpp"
#include "reference/fp8_attention_partition.hpp"
#include "reference/fp8_rules.hpp"
#include "reference/index_score.hpp"
#include "reference/index_select.hpp"
#include "reference/o_projection.hpp"
#include "reference/row_quant.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kPagesPerBlock = 8;
constexpr std::int64_t kHeads = 16;
constexpr std::int64_t kHeadDim = 32;  // 16 heads of 32: one step of the projection for each wave
constexpr std::int64_t kWidth = kHeads * kHeadDim;

/// What of each physical block some request reaches.
struct Blocks {
  std::int64_t width;
  std::vector<std::int32_t> ids;      ///< [requests, width]
  std::vector<std::int64_t> reaches;  ///< keys of each physical block

  Blocks(const StepRows& steps, std::int64_t columns, CounterRandom& random)
      : width(columns),
        ids(make_block_ids(TableIds::kShuffled,
                           static_cast<std::int64_t>(steps.lengths.size()) * columns, 0, random)),
        reaches(ids.size() + 1, 0) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::size_t request = i / static_cast<std::size_t>(width);
      const std::int64_t first = static_cast<std::int64_t>(i) % width * kBlock;
      reaches[static_cast<std::size_t>(ids[i])] = std::clamp<std::int64_t>(
          std::max<std::int64_t>(steps.lengths[request], 1) - first, 0, kBlock);
    }
  }
  std::int64_t count() const { return static_cast<std::int64_t>(reaches.size()); }
};

/// Calls use(slot) for every key that some request reaches.
template <class Use>
void for_each_owned_key(const Blocks& blocks, Use use) {
  for (std::int64_t block = 0; block < blocks.count(); ++block)
    for (std::int64_t key = 0; key < blocks.reaches[static_cast<std::size_t>(block)]; ++key)
      use(block * kBlock + key);
}

/// Caches whose unowned bytes are NaN.
Tensor index_cache(const Blocks& blocks, const FloatFormat& format, DType type,
                   CounterRandom& random) {
  Tensor cache(type, Layout::dense({blocks.count(), kBlock, kHeadDim}));
  cache.fill_bytes(std::byte{static_cast<std::uint8_t>(format.canonical_nan())});
  for_each_owned_key(blocks, [&](std::int64_t slot) {
    for (std::int64_t d = 0; d < kHeadDim; ++d)
      cache.base()[slot * kHeadDim + d] = std::byte{draw_code(format, false, random)};
  });
  return cache;
}

void add_kv_caches(Case& item, const Blocks& blocks, const FloatFormat& format, DType type,
                   CounterRandom& random) {
  const KvPageShape shape{
      .layout = item.contract.kv_layout, .blocks = blocks.count(), .head_dim = kHeadDim};
  const bool dense = shape.layout == KvLayout::kDense;
  const Layout layout =
      Layout::dense({shape.blocks, shape.block_page_stride(), 1, kHeadDim * shape.page_size});
  Tensor k(type, layout);
  Tensor v(type, layout);
  k.fill_bytes(std::byte{static_cast<std::uint8_t>(format.canonical_nan())});
  v.fill_bytes(std::byte{static_cast<std::uint8_t>(format.canonical_nan())});
  Tensor& v_side = dense ? v : k;
  for_each_owned_key(blocks, [&](std::int64_t slot) {
    const KeyBytes key(shape, slot, 0);
    for (std::int64_t d = 0; d < kHeadDim; ++d) {
      k.base()[key.k(d)] = std::byte{draw_code(format, false, random)};
      v_side.base()[shape.v_view_offset() + key.v(d)] = std::byte{draw_code(format, false, random)};
    }
  });
  item.inputs.push_back({"k_cache", std::move(k)});
  if (dense) item.inputs.push_back({"v_cache", std::move(v)});
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  CounterRandom length_random(seed, "seq_lens");
  CounterRandom table_random(seed, "block_table");
  CounterRandom query_random(seed, "queries");
  CounterRandom cache_random(seed, "caches");
  CounterRandom weight_random(seed, "weights");
  const BlockSelection selection{.block_size = kBlock,
                                 .topk = params["topk"],
                                 .init_blocks = params["init_blocks"],
                                 .local_blocks = 1};
  const StepRows steps{params["q_len"],
                       make_lengths(static_cast<Lengths>(params["lengths"]), params["requests"],
                                    params["blocks"] * kBlock - params["short_of_capacity"],
                                    params["q_len"], length_random)};
  const Blocks blocks(steps, steps.most_blocks(selection), table_random);
  const std::int64_t rows = steps.rows();
  const std::int64_t hidden = 16 * params["hidden_units"];
  const DType type = fp8_dtype(contract);
  const FloatFormat& format = float_format(type);
  const auto query = [&] { return draw_bf16(Floats::kOrdinary, query_random) & 0xBFFFu; };
  const auto weight_scale = [&] {
    return std::bit_cast<std::uint32_t>(static_cast<float>(weight_random.between(1, 99)) / 64.0f);
  };
  Case item;
  item.contract = contract;
  item.scalars = {{"q_len", params["q_len"]}, {"sm_scale", 1.0 / std::sqrt(double{kHeadDim})}};
  add_selection(item, selection);
  item.inputs = {
      {"index_q", drawn_tensor(DType::kBFloat16, Layout::dense({rows, 1, kHeadDim}), query)},
      {"q", drawn_tensor(DType::kBFloat16, Layout::dense({rows, kHeads, kHeadDim}), query)},
      {"index_cache", index_cache(blocks, format, type, cache_random)},
      {"block_table", padded_rows(DType::kInt32, rows, blocks.width, 0,
                                  steps.row_tables(blocks.ids, blocks.width))},
      {"seq_lens", strided_vector(DType::kInt32, steps.row_lengths(), 1)},
      {"score", drawn_tensor(DType::kFloat32, Layout::dense({1, rows, blocks.width}),
                             [] { return 0x7F61B1E6u; })},
      {"weight", drawn_tensor(type, Layout::dense({hidden, kWidth}),
                              [&] { return draw_code(format, false, weight_random); })},
      {"w_scale", drawn_tensor(DType::kFloat32, Layout::dense({hidden}), weight_scale)}};
  add_kv_caches(item, blocks, format, type, cache_random);
  return item;
}

/// The chain's inputs and what each stage hands to the next.
struct Chain {
  const Case& item;
  const Tensor &score, &topk_idx, &table, &contexts, &o, &m, &l, &merged, &a8, &a_scale;

  Chain(const Case& of, const Outputs& out)
      : item(of),
        score(output(out, "score")),
        topk_idx(output(out, "topk_idx")),
        table(output(out, "sparse_block_table")),
        contexts(output(out, "sparse_context_lens")),
        o(output(out, "o")),
        m(output(out, "m")),
        l(output(out, "l")),
        merged(output(out, "merged")),
        a8(output(out, "a8")),
        a_scale(output(out, "a_scale")) {}

  /// [rows, width]: heads of a row one after another.
  View<const std::uint16_t, 2> merged_rows() const {
    return {reinterpret_cast<const std::uint16_t*>(merged.base()),
            {merged.dim(0), kWidth},
            {kWidth, 1}};
  }
};

IndexScoreInput scoring(const Case& item) {
  return {.index_q = item.input("index_q").view<std::uint16_t, 3>(),
          .index_cache = item.input("index_cache"),
          .block_table = item.input("block_table").view<std::int32_t, 2>(),
          .seq_lens = item.input("seq_lens").view<std::int32_t, 1>(),
          .q_len = item.integer("q_len"),
          .sm_scale = item.real("sm_scale"),
          .selection = selection_of(item),
          .contract = item.contract};
}

std::int64_t page_stride(const Case& item) {
  return item.contract.kv_layout == KvLayout::kInterleaved ? 16 : 8;
}

IndexSelectInput selecting(const Case& item, const Tensor& score) {
  return {.score = score.view<float, 3>(),
          .block_table = item.input("block_table").view<std::int32_t, 2>(),
          .seq_lens = item.input("seq_lens").view<std::int32_t, 1>(),
          .pages_per_block = kPagesPerBlock,
          .block_page_stride = page_stride(item),
          .selection = selection_of(item),
          .contract = item.contract};
}

Fp8AttentionPartitionInput attending(const Chain& chain) {
  const Case& item = chain.item;
  const Tensor* v = item.find_input("v_cache");
  const auto table = chain.table.view<std::int32_t, 3>();
  const auto contexts = chain.contexts.view<std::int32_t, 2>();
  return {.q = item.input("q").view<std::uint16_t, 3>(),
          .sparse_block_table = {table.data(),
                                 {table.dim(1), 1, table.dim(2)},
                                 {table.dim(2), table.dim(2), 1}},
          .sparse_context_lens = {contexts.data(), {contexts.dim(1), 1}, {1, 1}},
          .caches = {item.input("k_cache"), v == nullptr ? item.input("k_cache") : *v},
          .sm_scale = item.real("sm_scale"),
          .contract = item.contract};
}

OProjectionInput projecting(const Chain& chain) {
  return {.a8 = chain.a8.view<std::uint8_t, 2>(),
          .a_scale = chain.a_scale.view<float, 1>(),
          .weight = chain.item.input("weight").view<std::uint8_t, 2>(),
          .w_scale = chain.item.input("w_scale").view<float, 1>(),
          .contract = chain.item.contract};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto scores = index_score_shape(scoring(item));
  const std::int64_t rows = scores[1];
  const std::int64_t topk = item.integer("topk");
  const std::int64_t pages = topk * kPagesPerBlock;
  const std::int64_t partitions = (pages * 16 + kPartitionKeys - 1) / kPartitionKeys;
  const std::int64_t hidden = item.input("weight").dim(0);
  const auto dense = [](std::vector<std::int64_t> dims) { return Layout::dense(std::move(dims)); };
  return {
      {"score", DType::kFloat32, item.input("score").layout(), {"head", "row", "block"}, "score"},
      {"topk_idx", DType::kInt32, dense({1, rows, topk}), {"head", "row", "rank"}, ""},
      {"sparse_block_table", DType::kInt32, dense({1, rows, pages}), {"head", "row", "column"}, ""},
      {"sparse_context_lens", DType::kInt32, dense({1, rows}), {"head", "row"}, ""},
      {"o",
       DType::kBFloat16,
       dense({rows, partitions, kHeads, kHeadDim}),
       {"row", "partition", "head", "dim"},
       ""},
      {"m", DType::kFloat32, dense({rows, partitions, kHeads}), {"row", "partition", "head"}, ""},
      {"l", DType::kFloat32, dense({rows, partitions, kHeads}), {"row", "partition", "head"}, ""},
      {"merged", DType::kBFloat16, dense({rows, kHeads, kHeadDim}), {"row", "head", "dim"}, ""},
      {"a8", fp8_dtype(item.contract), dense({rows, kWidth}), {"row", "element"}, ""},
      {"a_scale", DType::kFloat32, dense({rows}), {"row"}, ""},
      {"out", DType::kBFloat16, dense({rows, hidden}), {"row", "element"}, ""}};
}

Tensor& result(Outputs& out, std::string_view name) {
  return const_cast<Tensor&>(output(out, name));
}

void reference(const Case& item, Outputs& out) {
  const Chain chain(item, out);
  index_score_fast(scoring(item), {result(out, "score").view<float, 3>()});
  index_select(selecting(item, chain.score),
               {result(out, "topk_idx").view<std::int32_t, 3>(),
                result(out, "sparse_block_table").view<std::int32_t, 3>(),
                result(out, "sparse_context_lens").view<std::int32_t, 2>()});
  fp8_attention_partition_fast(
      attending(chain), {result(out, "o").view<std::uint16_t, 4>(),
                         result(out, "m").view<float, 3>(), result(out, "l").view<float, 3>()});
  attention_merge({chain.o.view<std::uint16_t, 4>(), chain.m.view<float, 3>(),
                   chain.l.view<float, 3>(), item.contract},
                  {result(out, "merged").view<std::uint16_t, 3>()});
  row_quant({chain.merged_rows(), item.contract},
            {result(out, "a8").view<std::uint8_t, 2>(), result(out, "a_scale").view<float, 1>()});
  o_projection_fast(projecting(chain), {result(out, "out").view<std::uint16_t, 2>()});
}

/// Sizes that the launches share.
struct Sizes {
  std::int64_t rows, width, hidden;
  std::int32_t q_len, topk, init_blocks, local_blocks, partitions;

  explicit Sizes(const Case& item)
      : rows(item.input("seq_lens").dim(0)),
        width(item.input("block_table").dim(1)),
        hidden(item.input("weight").dim(0)),
        q_len(static_cast<std::int32_t>(item.integer("q_len"))),
        topk(static_cast<std::int32_t>(item.integer("topk"))),
        init_blocks(static_cast<std::int32_t>(item.integer("init_blocks"))),
        local_blocks(static_cast<std::int32_t>(item.integer("local_blocks"))),
        partitions((topk * 128 + 255) / 256) {}
};

std::uint32_t grid_of(std::int64_t items) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(items, 1, 4));
}

void launch_selection(const Case& item, const Launcher& launcher, const Sizes& s) {
  launcher.run(
      "monoref_index_score_fp8",
      device::Grid{.blocks_x = 2,
                   .blocks_y = grid_of(s.rows / s.q_len),
                   .threads_x = 128,
                   .shared_bytes = s.q_len == 1   ? 512u
                                   : s.q_len <= 4 ? 2048u
                                                  : 8192u},
      launcher.address<const std::uint16_t>("index_q"), kHeadDim, kHeadDim,
      launcher.address<const std::uint8_t>("index_cache"), kBlock * kHeadDim, kHeadDim,
      item.input("index_cache").dim(0), launcher.address<const std::int32_t>("block_table"),
      s.width, launcher.address<const std::int32_t>("seq_lens"), std::int64_t{1},
      launcher.address<float>("out.score"), s.width, s.rows * s.width, s.rows, std::int32_t{1},
      static_cast<std::int32_t>(kHeadDim), static_cast<std::int32_t>(s.width), s.q_len, s.topk,
      s.init_blocks, s.local_blocks, static_cast<float>(item.real("sm_scale")),
      static_cast<std::int32_t>(item.contract.fp8_encoding), std::int32_t{1}, std::int32_t{0},
      std::int32_t{1}, std::int32_t{0}, std::int32_t{0});
  const std::int64_t pages = s.topk * kPagesPerBlock;
  launcher.run("monoref_index_select", device::Grid{.blocks_x = grid_of(s.rows), .threads_x = 64},
               static_cast<const float*>(launcher.address<float>("out.score")), s.width,
               s.rows * s.width, launcher.address<const std::int32_t>("block_table"), s.width,
               launcher.address<const std::int32_t>("seq_lens"), std::int64_t{1},
               launcher.address<std::int32_t>("out.topk_idx"), std::int64_t{s.topk},
               s.rows * s.topk, launcher.address<std::int32_t>("out.sparse_block_table"), pages,
               s.rows * pages, launcher.address<std::int32_t>("out.sparse_context_lens"),
               std::int64_t{1}, s.rows, s.rows, std::int32_t{1}, static_cast<std::int32_t>(s.width),
               s.q_len, s.topk, s.init_blocks, s.local_blocks,
               static_cast<std::int32_t>(page_stride(item)), std::int32_t{0},
               static_cast<std::int32_t>(item.contract.topk_ties));
}

void launch_attention(const Case& item, const Launcher& launcher, const Sizes& s) {
  const KvPageShape shape{.layout = item.contract.kv_layout,
                          .blocks = item.input("k_cache").dim(0),
                          .head_dim = kHeadDim};
  const std::int64_t pages = s.topk * kPagesPerBlock;
  const float* const no_scale = nullptr;
  launcher.run(
      "monoref_fp8_attention_partition",
      device::Grid{
          .blocks_x = grid_of(s.partitions), .blocks_y = grid_of(s.rows), .threads_x = 256},
      launcher.address<const std::uint16_t>("q"), kWidth, kHeadDim,
      launcher.address<const std::uint8_t>("k_cache"),
      launcher.address<const std::uint8_t>(launcher.has("v_cache") ? "v_cache" : "k_cache"),
      shape.v_view_pages(),
      static_cast<const std::int32_t*>(launcher.address<std::int32_t>("out.sparse_block_table")),
      pages, std::int64_t{0},
      static_cast<const std::int32_t*>(launcher.address<std::int32_t>("out.sparse_context_lens")),
      std::int64_t{1}, std::int64_t{0}, no_scale, no_scale, std::int64_t{0},
      launcher.address<std::uint16_t>("out.o"), launcher.address<float>("out.m"),
      launcher.address<float>("out.l"), s.rows, std::int32_t{1}, static_cast<std::int32_t>(kHeads),
      static_cast<std::int32_t>(kHeadDim), s.partitions,
      std::int32_t{shape.layout == KvLayout::kInterleaved ? 2 : 1},
      static_cast<float>(item.real("sm_scale")), fp8_maximum(item.contract), std::int32_t{0},
      static_cast<std::int32_t>(item.contract.fp8_encoding),
      static_cast<std::int32_t>(item.contract.fp8_overflow));
  launcher.run("monoref_attention_merge",
               device::Grid{.blocks_x = grid_of(s.rows), .threads_x = 64},
               static_cast<const std::uint16_t*>(launcher.address<std::uint16_t>("out.o")),
               static_cast<const float*>(launcher.address<float>("out.m")),
               static_cast<const float*>(launcher.address<float>("out.l")),
               launcher.address<std::uint16_t>("out.merged"), kWidth, s.rows,
               static_cast<std::int32_t>(kHeads), static_cast<std::int32_t>(kHeadDim), s.partitions,
               static_cast<std::int32_t>(item.contract.merge_sum));
}

void launch_projection(const Case& item, const Launcher& launcher, const Sizes& s) {
  launcher.run("monoref_row_quant", device::Grid{.blocks_x = grid_of(s.rows), .threads_x = 64},
               static_cast<const std::uint16_t*>(launcher.address<std::uint16_t>("out.merged")),
               kWidth, launcher.address<std::uint8_t>("out.a8"), kWidth,
               launcher.address<float>("out.a_scale"), s.rows, static_cast<std::int32_t>(kWidth),
               fp8_maximum(item.contract), static_cast<std::int32_t>(item.contract.fp8_encoding),
               static_cast<std::int32_t>(item.contract.fp8_overflow));
  launcher.run("monoref_o_projection",
               device::Grid{.blocks_x = grid_of(s.hidden / 16),
                            .blocks_y = grid_of(s.rows / 8),
                            .threads_x = 64,
                            .shared_bytes = 2112 * std::bit_ceil(static_cast<std::uint32_t>(
                                                       std::clamp<std::int64_t>(s.rows, 1, 8)))},
               static_cast<const std::uint8_t*>(launcher.address<std::uint8_t>("out.a8")), kWidth,
               static_cast<const float*>(launcher.address<float>("out.a_scale")),
               launcher.address<const std::uint8_t>("weight"),
               launcher.address<const float>("w_scale"), launcher.address<std::uint16_t>("out.out"),
               s.hidden, s.rows, static_cast<std::int32_t>(s.hidden),
               static_cast<std::int32_t>(kWidth),
               static_cast<std::int32_t>(item.contract.fp8_encoding));
}

void launch(const Case& item, const Launcher& launcher) {
  const Sizes sizes(item);
  launch_selection(item, launcher, sizes);
  launch_attention(item, launcher, sizes);
  launch_projection(item, launcher, sizes);
}

/// One request of the step alone.
Case one_request(const Case& item, std::int64_t request) {
  const std::int64_t q_len = item.integer("q_len");
  std::vector<std::int64_t> rows;
  for (std::int64_t token = 0; token < q_len; ++token) rows.push_back(request * q_len + token);
  Case alone = item;
  for (const char* name : {"index_q", "q", "block_table", "seq_lens"})
    replace_input(alone, name, take_rows(item.input(name), rows));
  Tensor score(DType::kFloat32, Layout::dense({1, q_len, item.input("score").dim(2)}));
  score.fill_bytes(std::byte{0x01});
  replace_input(alone, "score", std::move(score));
  return alone;
}

std::optional<std::string> requests_are_independent(const Case& item, const Outputs& out,
                                                    const Evaluate& evaluate) {
  const std::int64_t q_len = item.integer("q_len");
  for (std::int64_t request = 0; request < item.input("seq_lens").dim(0) / q_len; ++request) {
    const Outputs alone = evaluate(one_request(item, request));
    for (std::int64_t token = 0; token < q_len; ++token)
      if (!same_row(output(out, "out"), request * q_len + token, output(alone, "out"), token))
        return fmt::format("row {} differs from the same request alone", request * q_len + token);
  }
  return std::nullopt;
}

/// The whole reference form of the attention finds the same merged rows from the ids alone: it
/// builds its tables by the rule of sparse_block_table and shares no page table with this chain.
std::optional<std::string> selection_alone_gives_the_rows(const Case& item, const Outputs& out,
                                                          const Evaluate&) {
  const Tensor* v = item.find_input("v_cache");
  const SparseAttentionInput input{
      .q = item.input("q").view<std::uint16_t, 3>(),
      .topk_idx = output(out, "topk_idx").view<std::int32_t, 3>(),
      .block_table = item.input("block_table").view<std::int32_t, 2>(),
      .seq_lens = item.input("seq_lens").view<std::int32_t, 1>(),
      .q_len = 1,  // every row has its own table and length
      .caches = {item.input("k_cache"), v == nullptr ? item.input("k_cache") : *v},
      .sm_scale = item.real("sm_scale"),
      .contract = item.contract};
  const Tensor& merged = output(out, "merged");
  Tensor other(DType::kBFloat16, merged.layout());
  sparse_attention(input, {other.view<std::uint16_t, 3>()});
  if (other.image() != merged.image())
    return "the merged rows differ from attention over the selected ids";
  return std::nullopt;
}

}  // namespace

Stage sparse_attention_stage() {
  Stage stage;
  stage.name = "sparse_attention";
  stage.summary = "scores, selection, attention, merge, quantisation and projection as one chain";
  stage.source = "mono-decode sections 4 to 6";
  stage.contracts = {"mono", "mono,kv_layout=dense,topk_ties=lower_id",
                     "mono,fp8_encoding=e4m3fnuz,fp8_max=240,fp8_overflow=saturate"};
  stage.dimensions = {
      {"requests", 1, 0, 2, {0, 1}, {}, "requests of the step"},
      {"q_len", 1, 1, 3, {1, 1, 8}, {}, "query rows a request"},
      {"topk", 1, 1, 3, {1, 2, 4}, {}, "blocks selected"},
      {"init_blocks", 0, 0, 1, {}, {}, "pinned leading blocks"},
      {"blocks", 1, 1, 5, {1, 2, 6}, {}, "blocks that the longest context may have"},
      {"short_of_capacity", 0, 0, 127, {0, 1, 112, 127}, {}, "keys missing in the last block"},
      {"hidden_units", 1, 1, 2, {}, {}, "rows of the output weight, in sixteens"},
      lengths_dimension(),
  };
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      {"request_independence", "a request alone has the same rows", requests_are_independent},
      {"selection_decides", "the merged rows follow from the selected ids alone",
       selection_alone_gives_the_rows},
  };
  return stage;
}

}  // namespace monoref
