// sparse_layer: one MoE layer of the decode step as a chain, on one rank or on four together.
#include <algorithm>
#include <cstring>

#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/layer_content.hpp"
#include "fuzz/stages/layer_links.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kMaxRows = 16;
constexpr std::int64_t kWideFrom = 5;

/// Copies the elements of a dense tensor behind `offset` elements of another.
void copy_elements(const Tensor& from, Tensor& to, std::int64_t offset) {
  std::memcpy(to.base() + offset * static_cast<std::int64_t>(to.element_size()), from.base(),
              static_cast<std::size_t>(from.layout().elements()) * from.element_size());
}

/// Rows of [ranks, rows, hidden], of rank 0.
bool same_rank_0_row(const Tensor& a, std::int64_t row_a, const Tensor& b, std::int64_t row_b) {
  const std::int64_t hidden = a.dim(2);
  const auto size = static_cast<std::int64_t>(a.element_size());
  return std::memcmp(a.base() + row_a * hidden * size, b.base() + row_b * hidden * size,
                     static_cast<std::size_t>(hidden * size)) == 0;
}

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

/// One request of a step alone: everything that has a row, or one of its request.
Case one_request(const Case& item, std::int64_t request) {
  const std::int64_t q_len = item.integer("q_len");
  std::vector<std::int64_t> rows;
  for (std::int64_t token = 0; token < q_len; ++token) rows.push_back(request * q_len + token);
  Case alone = item;
  for (NamedScalar& scalar : alone.scalars)
    if (scalar.name == "rows") scalar.value = q_len;
  for (const char* name : {"block_table", "seq_lens"})
    replace_input(alone, name, take_rows(item.input(name), {request}));
  for (const char* name : {"position", "slot_mapping"})
    replace_input(alone, name, take_rows(item.input(name), rows));
  for (const char* name : {"ar", "residual"}) {
    const Tensor& whole = item.input(name);
    const std::int64_t size = q_len * whole.dim(2);
    Tensor part(whole.type(), Layout::dense({whole.dim(0), q_len, whole.dim(2)}));
    for (std::int64_t rank = 0; rank < whole.dim(0); ++rank)
      copy_elements(Tensor::alias(whole, Layout::dense({size}),
                                  rank * whole.dim(1) * whole.dim(2) + request * size),
                    part, rank * size);
    replace_input(alone, name, std::move(part));
  }
  return alone;
}

/// In the narrow form a request's rows depend on nobody else's, padding included. (The wide form
/// adds the experts of all rows to every row: mono-decode section 10.)
std::optional<std::string> requests_stand_alone(const Case& item, const Outputs& out,
                                                const Evaluate& evaluate) {
  const std::int64_t q_len = item.integer("q_len");
  const std::int64_t rows = item.integer("rows");
  if (rows >= kWideFrom || rows == q_len) return std::nullopt;
  const std::int64_t request = rows / q_len - 1;
  const Outputs alone = evaluate(one_request(item, request));
  for (const char* name : {"ar_out", "h_mid"})
    for (std::int64_t token = 0; token < q_len; ++token)
      if (!same_rank_0_row(output(out, name), request * q_len + token, output(alone, name), token))
        return fmt::format("{} of row {} differs from its request alone", name,
                           request * q_len + token);
  return std::nullopt;
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
  stage.properties = {{"ranks_agree", "every rank ends with the same bits", ranks_agree},
                      {"request_independence", "a request alone has the same rows, below 5 rows",
                       requests_stand_alone}};
  stage.golden_cases = 1;  // of the smallest layers: weights are large
  stage.golden_bytes = 1'700'000;
  return stage;
}

}  // namespace monoref
