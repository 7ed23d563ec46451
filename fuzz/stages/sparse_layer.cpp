// sparse_layer: one MoE layer of the decode step as a chain, on one rank or on four together.
#include <algorithm>
#include <cstring>

#include "fuzz/laws/permute.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/layer_content.hpp"
#include "fuzz/stages/layer_links.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kMaxRows = 16;
constexpr std::int64_t kWideFrom = 5;

/// The step: as many requests as fit with their padding into 16 rows.
LayerStep step_of(const Params& params, std::uint64_t seed) {
  CounterRandom random(seed, "seq_lens");
  const std::int64_t q_len = params["q_len"];
  const std::int64_t most = kMaxRows / q_len;
  const std::int64_t requests = std::min(params["requests"], most);
  LayerStep step{
      q_len,
      {},
      make_lengths(static_cast<Lengths>(params["lengths"]), requests,
                   params["blocks"] * kBlock - params["short_of_capacity"], q_len, random)};
  for (std::int64_t i = 0; i < requests; ++i) step.requests.push_back(static_cast<std::int32_t>(i));
  step.requests.resize(static_cast<std::size_t>(std::min(requests + params["padding"], most)), -1);
  step.lengths.resize(step.requests.size(), 0);
  return step;
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  const LayerShape shape = layer_shape(params);
  const LayerStep step = step_of(params, seed);
  CounterRandom table_random(seed, "block_table");
  const std::int64_t width = params["blocks"];
  const ReachedBlocks blocks(step.lengths, width, table_random);
  Case item;
  item.contract = contract;
  item.scalars = {{"q_len", step.q_len}, {"rows", step.rows()}};
  add_layer_shape(item, shape);
  LayerContent content(item, shape, params, seed);
  content.add_step("", step, blocks, "ar", "residual");
  content.add_layer("", blocks);
  content.add_common(width * kBlock, step.rows(), width, 1);
  return item;
}

std::vector<ChainLink> make_links(const Case& item, const Planted&) {
  const std::int64_t rows = item.integer("rows");
  std::vector<ChainLink> links{{"token_rows",
                                "token_rows",
                                {{"block_table", "block_table"}, {"seq_lens", "seq_lens"}},
                                {{"block_table", "row_table"}, {"seq_lens", "row_lens"}},
                                {{"q", item.integer("q_len")}, {"n", rows}},
                                true}};
  LayerLinks layer;
  layer.shape = layer_shape_of(item);
  layer.kv_layout = item.contract.kv_layout;
  layer.rows = rows;
  layer.q_len = item.integer("q_len");
  layer.table_width = item.input("block_table").dim(1);
  layer.append_to(links);
  return links;
}

/// Every rank leaves the same hidden states and residual: reductions and routers agree.
std::optional<std::string> ranks_agree(const Case& item, const Outputs& out, const Evaluate&) {
  for (const char* name : {"ar_out", "h_mid"}) {
    const std::vector<std::byte> image = output(out, name).image();
    const std::size_t part = image.size() / static_cast<std::size_t>(item.integer("ranks"));
    for (std::size_t at = part; at < image.size(); at += part)
      if (!std::equal(image.begin(), image.begin() + static_cast<std::ptrdiff_t>(part),
                      image.begin() + static_cast<std::ptrdiff_t>(at)))
        return fmt::format("{} of rank {} differs from rank 0's", name, at / part);
  }
  return std::nullopt;
}

std::int64_t query_rows(const Case& item) {
  return item.integer("q_len");
}

bool is_narrow(const Case& item) {
  return item.integer("rows") < kWideFrom;
}

void set_rows(Case& item, std::int64_t requests) {
  for (NamedScalar& scalar : item.scalars)
    if (scalar.name == "rows") scalar.value = requests * query_rows(item);
}

/// Rank 0 has what all have.
laws::OutputRegion of_rank_0(const Case&, const Outputs&) {
  return [](std::string_view, laws::Index at) { return at[0] == 0; };
}

}  // namespace

Stage sparse_layer_stage() {
  Stage stage;
  stage.name = "sparse_layer";
  stage.summary = "one MoE layer from (ar, residual) to (ar', h_mid), on one rank or on four";
  stage.source = "mono-decode sections 2 to 7";
  // Every choice that the links read, the other way.
  stage.contracts = {"mono",
                     "mono,kv_layout=dense,fp8_encoding=e4m3fnuz,fp8_max=240,fp8_overflow=saturate,"
                     "topk_ties=lower_id,routing_key=plain_lower_id,gate_weights=f32,"
                     "routed_scaling=output,all_reduce_order=rotated"};
  stage.dimensions = {
      {"requests",
       1,
       1,
       2,
       {1, 1, 1, 1, 3, 4, 5, 12},
       {},
       "requests of the step; at most 16 rows",
       16},
      {"q_len", 1, 1, 1, {1, 1, 1, 2, 3, 4}, {}, "query rows a request", 8},
      {"padding", 0, 0, 0, {0, 1, 2}, {}, "requests of padding behind them", 15},
      {"blocks", 1, 1, 3, {1, 2, 4}, {}, "blocks that the longest context may have", 64},
      {"short_of_capacity", 0, 0, 127, {0, 1, 112, 127}, {}, "keys missing in the last block"},
      lengths_dimension(),
  };
  const auto shared = layer_dimensions();
  stage.dimensions.insert(stage.dimensions.end(), shared.begin(), shared.end());
  list_step_inputs(stage, "");
  for (const char* name : {"ar", "residual"})
    stage.inputs.push_back({name, {DType::kBFloat16}, {"ranks", "rows", "hidden"}});
  list_layer_inputs(stage, "");
  stage.build = build;
  stage.chain = make_links;
  stage.ranks = layer_ranks;
  as_chain(stage);
  stage.properties = {
      {"ranks_agree", "every rank ends with the same bits", ranks_agree},
      // The wide form adds the experts of all rows to every row: mono-decode section 10.
      laws::alone(
          {.part = "request",
           .inputs = {{"seq_lens"},
                      {"block_table"},
                      {"position", 0, query_rows},
                      {"slot_mapping", 0, query_rows},
                      {"ar", 1, query_rows},
                      {"residual", 1, query_rows}},
           .outputs = {{"ar_out", 1, query_rows}, {"h_mid", 1, query_rows}},
           .applies = is_narrow,
           .adjust = set_rows,
           .compared = of_rank_0,
           .statement = "in the narrow form a request alone is the same, padding included"}),
  };
  stage.golden_cases = 1;  // of the smallest layers: weights are large
  stage.golden_bytes = 1'700'000;
  return stage;
}

}  // namespace monoref
