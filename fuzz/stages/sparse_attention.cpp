// sparse_attention: the six stages from index queries to the output projection as one chain, each
// reading what the one before it left.
#include "reference/model/sparse_attention.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "fuzz/inputs.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/stages/attention_content.hpp"
#include "fuzz/stages/attention_links.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/step_rows.hpp"
#include "reference/rules/fp8_rules.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kHeads = 16;
constexpr std::int64_t kHeadDim = 32;  // 16 heads of 32: one step of the projection for each wave
constexpr std::int64_t kWidth = kHeads * kHeadDim;

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
  const StepRows steps = drawn_step_rows(params, selection, length_random);
  const ReachedBlocks blocks(steps.lengths, steps.most_blocks(selection), table_random);
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
      {"index_cache", reached_index_cache(blocks, kHeadDim, contract, cache_random)},
      {"block_table", padded_rows(DType::kInt32, rows, blocks.width, 0,
                                  steps.row_tables(blocks.ids, blocks.width))},
      {"seq_lens", strided_vector(DType::kInt32, steps.row_lengths(), 1)},
      {"score", drawn_tensor(DType::kFloat32, Layout::dense({1, rows, blocks.width}),
                             [] { return 0x7F61B1E6u; })},
      {"weight", drawn_tensor(type, Layout::dense({hidden, kWidth}),
                              [&] { return draw_code(format, false, weight_random); })},
      {"w_scale", drawn_tensor(DType::kFloat32, Layout::dense({hidden}), weight_scale)}};
  KvCaches caches = reached_kv_caches(blocks, kHeadDim, contract, cache_random);
  item.inputs.push_back({"k_cache", std::move(caches.k)});
  if (caches.v) item.inputs.push_back({"v_cache", std::move(*caches.v)});
  return item;
}

std::vector<ChainLink> make_links(const Case& item, const Planted&) {
  std::vector<ChainLink> links;
  AttentionLinks{.rows = item.input("seq_lens").dim(0),
                 .table_width = item.input("block_table").dim(1),
                 .q_len = item.integer("q_len"),
                 .heads = kHeads,
                 .head_dim = kHeadDim,
                 .sm_scale = item.real("sm_scale"),
                 .selection = selection_of(item),
                 .kv_layout = item.contract.kv_layout}
      .append_to(links);
  return links;
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

std::int64_t query_rows(const Case& item) {
  return item.integer("q_len");
}

}  // namespace

Stage sparse_attention_stage() {
  Stage stage;
  stage.name = "sparse_attention";
  stage.generator_version = 2;
  stage.summary = "scores, selection, attention, merge, quantisation and projection as one chain";
  stage.source = "mono-decode sections 4 to 6";
  stage.contracts = {"mono", "mono,kv_layout=dense,topk_ties=lower_id",
                     "mono,fp8_encoding=e4m3fnuz,fp8_max=240,fp8_overflow=saturate"};
  stage.dimensions = {
      {"requests", 1, 0, 2, {0, 1}, {}, "requests of the step"},
      {"q_len", 1, 1, 3, {1, 1, 8}, {}, "query rows a request", 8},
      {"topk", 1, 1, 3, {1, 2, 4}, {}, "blocks selected", 16},
      {"init_blocks", 0, 0, 1, {}, {}, "pinned leading blocks"},
      {"blocks", 1, 1, 5, {1, 2, 6}, {}, "blocks that the longest context may have", 64},
      {"short_of_capacity", 0, 0, 127, {0, 1, 112, 127}, {}, "keys missing in the last block"},
      {"hidden_units", 1, 1, 2, {}, {}, "rows of the output weight, in sixteens"},
      lengths_dimension(),
  };
  stage.inputs = {
      {"index_q", {DType::kBFloat16}, {"rows", "index heads", "head dim"}},
      {"q", {DType::kBFloat16}, {"rows", "heads", "head dim"}},
      {"index_cache", fp8_types(), {"blocks", "block_size", "head dim"}, InputStorage::kCache},
      {"block_table", {DType::kInt32}, {"rows", "width"}, InputStorage::kRows},
      {"seq_lens", {DType::kInt32}, {"rows"}, InputStorage::kStrided},
      {"score", {DType::kFloat32}, {"index heads", "rows", "width"}},
      {"weight", fp8_types(), {"hidden", "width of a row"}},
      {"w_scale", {DType::kFloat32}, {"hidden"}}};
  for (const char* name : {"k_cache", "v_cache"})
    stage.inputs.push_back({name,
                            fp8_types(),
                            {"blocks", "pages of a block", "kv heads", "elements of a page"},
                            InputStorage::kSparse,
                            name[0] == 'v'});
  stage.sizes = {{"index heads", 1, 1},
                 {"kv heads", 1, 1},
                 {"heads", kHeads, kHeads},
                 {"head dim", kHeadDim, kHeadDim}};
  stage.scalars = selection_scalars();
  stage.scalars.push_back(ScalarSpec::integer("q_len", 1, limits::kQueryLength));
  stage.scalars.push_back(ScalarSpec::finite("sm_scale"));
  stage.build = build;
  stage.chain = make_links;
  as_chain(stage);
  stage.properties = {
      laws::alone({.part = "request",
                   .inputs = {{"seq_lens", 0, query_rows},
                              {"block_table", 0, query_rows},
                              {"index_q", 0, query_rows},
                              {"q", 0, query_rows},
                              {"score", 1, query_rows}},
                   .outputs = {{"out", 0, query_rows}}}),
      {"selection_decides", "the merged rows follow from the selected ids alone",
       selection_alone_gives_the_rows},
  };
  return stage;
}

}  // namespace monoref
