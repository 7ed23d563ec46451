// sparse_block_table: generator, reference and kernel side by side.
#include "reference/stages/sparse_block_table.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "device/launch/sparse_block_table.hpp"
#include "fuzz/inputs.hpp"
#include "fuzz/laws/ignores.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/stages/content.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kPagesPerBlock = 8;

bool is_prefill(const Case& item) {
  return item.word("phase") == "prefill";
}

/// Rows of queries, each with the request it belongs to and its position there.
struct Queries {
  std::vector<std::int64_t> request;
  std::vector<std::int64_t> position;
};

Queries decode_queries(const std::vector<std::int32_t>& lengths, std::int64_t q_len) {
  Queries queries;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    for (std::int64_t token = 0; token < q_len; ++token) {
      queries.request.push_back(static_cast<std::int64_t>(i));
      queries.position.push_back(lengths[i] - q_len + token);
    }
  return queries;
}

/// Prefill rows in an order of their own: requests interleave, and some rows are padding.
Queries prefill_queries(const std::vector<std::int32_t>& lengths, std::int64_t rows,
                        CounterRandom& random) {
  Queries queries;
  for (std::int64_t row = 0; row < rows && !lengths.empty(); ++row) {
    const std::int64_t request = random.below(static_cast<std::int64_t>(lengths.size()));
    const std::int64_t length = lengths[static_cast<std::size_t>(request)];
    queries.request.push_back(request);
    queries.position.push_back(length == 0 || random.once_in(8) ? -random.between(1, 200)
                                                                : random.below(length));
  }
  return queries;
}

/// One row of selected ids, as the named kind of selector leaves it. `blocks` is what the row may
/// see, `capacity` what its request's table row can resolve.
std::vector<std::int32_t> selection(std::string_view kind, std::int64_t topk, std::int64_t blocks,
                                    std::int64_t capacity, CounterRandom& random) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(topk), -1);
  std::vector<std::int32_t> pool(static_cast<std::size_t>(std::max<std::int64_t>(blocks, 0)));
  std::iota(pool.begin(), pool.end(), 0);
  for (std::size_t i = pool.size(); i > 1; --i)
    std::swap(pool[i - 1],
              pool[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  if (kind == "top") {  // distinct, the tail among them, -1 behind the last
    for (std::size_t i = 0; i < ids.size() && i < pool.size(); ++i) ids[i] = pool[i];
    if (blocks > 0 && !ids.empty()) {
      const auto tail = static_cast<std::int32_t>(blocks - 1);
      if (std::find(ids.begin(), ids.end(), tail) == ids.end()) ids[0] = tail;
    }
  } else if (kind == "no_tail") {
    std::size_t next = 0;
    for (const std::int32_t id : pool)
      if (id != blocks - 1 && next < ids.size()) ids[next++] = id;
  } else if (kind == "duplicates") {
    for (auto& id : ids)
      id = blocks > 0 ? static_cast<std::int32_t>(random.below(std::min<std::int64_t>(blocks, 3)) +
                                                  std::max<std::int64_t>(blocks - 3, 0))
                      : 0;
  } else if (kind == "repeated_tail") {
    for (auto& id : ids)
      id = static_cast<std::int32_t>(random.once_in(2) ? blocks - 1 : random.below(blocks + 1));
  } else if (kind == "holes") {
    for (std::size_t i = 0, next = 0; i < ids.size(); ++i)
      if (!random.once_in(3) && next < pool.size()) ids[i] = pool[next++];
  } else if (kind == "future") {
    for (auto& id : ids)
      id = static_cast<std::int32_t>(random.below(std::max<std::int64_t>(capacity, 1) + 2));
  } else if (kind == "out_of_range") {
    static constexpr std::int32_t kOdd[] = {-1, -2, INT32_MIN, INT32_MAX, 65536, 1 << 24};
    for (auto& id : ids)
      id = random.once_in(2)
               ? kOdd[random.below(6)]
               : static_cast<std::int32_t>(random.below(std::max<std::int64_t>(blocks, 1)));
  } else if (kind == "stale") {  // what an earlier, longer step left there
    for (auto& id : ids)
      id = static_cast<std::int32_t>(random.below(std::max<std::int64_t>(capacity, 1)));
  }
  return ids;  // "none": all -1
}

Tensor topk_tensor(const std::vector<std::int32_t>& ids, std::int64_t rows, std::int64_t topk,
                   std::int64_t row_gap, std::int64_t step) {
  const std::int64_t row_stride = topk * step + row_gap;
  Tensor tensor(DType::kInt32,
                Layout::strided({1, rows, topk}, {rows * row_stride, row_stride, step}));
  tensor.fill_bytes(std::byte{0x01});  // a wrong stride reads ids that look plausible
  auto view = tensor.view<std::int32_t, 3>();
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < topk; ++i)
      view(0, row, i) = ids[static_cast<std::size_t>(row * topk + i)];
  return tensor;
}

/// The fewest columns that every valid id needs.
std::int64_t least_width(const Queries& queries) {
  std::int64_t width = 1;
  for (const std::int64_t position : queries.position)
    width = std::max(width, position < 0 ? 0 : position / kBlock + 1);
  return width;
}

void plant_defect(Case& item, std::string_view defect) {
  if (defect == "heads_not_1") {
    for (NamedTensor& input : item.inputs)
      if (input.name == "topk_idx")
        input.tensor =
            Tensor(DType::kInt32, Layout::dense({2, input.tensor.dim(1), input.tensor.dim(2)}));
  } else if (defect == "page_stride_7") {
    for (NamedScalar& scalar : item.scalars)
      if (scalar.name == "block_page_stride") scalar.value = std::int64_t{7};
  } else if (defect == "rows_do_not_match") {
    for (NamedTensor& input : item.inputs)
      if (input.name == "topk_idx")
        input.tensor =
            Tensor(DType::kInt32, Layout::dense({1, input.tensor.dim(1) + 1, input.tensor.dim(2)}));
  }
}

Case build(const Params& params, const Contract&, std::uint64_t seed) {
  const bool prefill = params.word("phase") == "prefill";
  const std::int64_t requests = params["requests"];
  const std::int64_t q_len = params["q_len"];
  const std::int64_t topk = params["topk"];
  const std::int64_t stride = params["page_stride"];
  const std::string_view defect = params.word("defect");
  CounterRandom length_random(seed, "seq_lens");
  CounterRandom query_random(seed, "queries");
  CounterRandom id_random(seed, "topk_idx");
  CounterRandom table_random(seed, "block_table");
  const auto lengths =
      make_lengths(static_cast<Lengths>(params["lengths"]), requests,
                   params["blocks"] * kBlock - params["short_of_capacity"], q_len, length_random);
  const Queries queries = prefill ? prefill_queries(lengths, params["queries"], query_random)
                                  : decode_queries(lengths, q_len);
  const auto rows = static_cast<std::int64_t>(queries.request.size());
  const std::int64_t width = least_width(queries) + params["spare_columns"];
  std::vector<std::int32_t> ids;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t position = queries.position[static_cast<std::size_t>(row)];
    const auto selected = selection(params.word("selection"), topk,
                                    position < 0 ? 0 : position / kBlock + 1, width, id_random);
    ids.insert(ids.end(), selected.begin(), selected.end());
  }
  const std::int64_t limit = (INT32_MAX - kPagesPerBlock) / stride;
  const auto table = make_block_ids(static_cast<TableIds>(params["table_ids"]), requests * width,
                                    limit, table_random);
  Case item;
  item.scalars = {{"phase", std::string(params.word("phase"))},
                  {"block_page_stride", stride},
                  {"decode_query_len", q_len},
                  {"out_row_gap", params["out_row_gap"]},
                  {"defect", std::string(defect)}};
  item.inputs = {
      {"topk_idx", topk_tensor(ids, rows, topk, params["topk_row_gap"], params["topk_step"])},
      {"block_table", padded_rows(DType::kInt32, requests, width, params["table_row_gap"], table)}};
  if (prefill) {
    item.inputs.push_back(
        {"query_req_id", strided_vector(DType::kInt32, queries.request, params["vector_step"])});
    item.inputs.push_back(
        {"query_abs_pos", strided_vector(DType::kInt32, queries.position, params["vector_step"])});
  } else {
    item.inputs.push_back(
        {"seq_lens",
         strided_vector(DType::kInt32, {lengths.begin(), lengths.end()}, params["vector_step"])});
  }
  plant_defect(item, defect);
  return item;
}

SparseBlockTableDecodeInput decode_input(const Case& item) {
  return {item.input("topk_idx").view<std::int32_t, 3>(),
          item.input("block_table").view<std::int32_t, 2>(),
          item.input("seq_lens").view<std::int32_t, 1>(),
          item.integer("decode_query_len"),
          item.integer("block_page_stride"),
          {}};
}

SparseBlockTablePrefillInput prefill_input(const Case& item) {
  return {item.input("topk_idx").view<std::int32_t, 3>(),
          item.input("block_table").view<std::int32_t, 2>(),
          item.input("query_req_id").view<std::int32_t, 1>(),
          item.input("query_abs_pos").view<std::int32_t, 1>(),
          item.integer("block_page_stride"),
          {}};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const SparseBlockTableShape shape = is_prefill(item)
                                          ? sparse_block_table_prefill_shape(prefill_input(item))
                                          : sparse_block_table_decode_shape(decode_input(item));
  const std::int64_t columns = shape.sparse_block_table[1];
  return {{"sparse_block_table",
           DType::kInt32,
           Layout::strided({shape.sparse_block_table[0], columns},
                           {columns + row_gap(item, "out_row_gap"), 1}),
           {"row", "column"},
           ""},
          {"sparse_context_lens",
           DType::kInt32,
           Layout::dense({shape.sparse_context_lens[0]}),
           {"row"},
           ""}};
}

void reference(const Case& item, Outputs& out) {
  const SparseBlockTableOutput views{out[0].tensor.view<std::int32_t, 2>(),
                                     out[1].tensor.view<std::int32_t, 1>()};
  if (is_prefill(item))
    sparse_block_table_prefill(prefill_input(item), views);
  else
    sparse_block_table_decode(decode_input(item), views);
}

void launch(const Case& item, const Launcher& launcher) {
  const Layout& topk = item.input("topk_idx").layout();
  const Layout& table = item.input("block_table").layout();
  const device::launch::SparseTableRows rows{
      .topk_idx = launcher.address<const std::int32_t>("topk_idx"),
      .topk_row_stride = topk.strides[1],
      .topk_id_stride = topk.strides[2],
      .block_table = launcher.address<const std::int32_t>("block_table"),
      .table_row_stride = table.strides[0],
      .sparse_table = launcher.address<std::int32_t>("out.sparse_block_table"),
      .sparse_row_stride = topk.dims[2] * kPagesPerBlock + row_gap(item, "out_row_gap"),
      .context_lens = launcher.address<std::int32_t>("out.sparse_context_lens"),
      .total_q = topk.dims[1],
      .requests = table.dims[0],
      .topk = topk.dims[2],
      .width = table.dims[1],
      .page_stride = item.integer("block_page_stride")};
  const auto stride_of = [&](const char* name) { return item.input(name).layout().strides[0]; };
  if (is_prefill(item))
    launcher.enqueue(device::launch::SparseBlockTablePrefill{
        .rows = rows,
        .query_req_id = launcher.address<const std::int32_t>("query_req_id"),
        .req_id_stride = stride_of("query_req_id"),
        .query_abs_pos = launcher.address<const std::int32_t>("query_abs_pos"),
        .abs_pos_stride = stride_of("query_abs_pos")});
  else
    launcher.enqueue(device::launch::SparseBlockTableDecode{
        .rows = rows,
        .seq_lens = launcher.address<const std::int32_t>("seq_lens"),
        .seq_lens_stride = stride_of("seq_lens"),
        .q_len = item.integer("decode_query_len")});
}

Case adopt(const Recording& recording, const RecordedCase& recorded) {
  Case item;
  const bool prefill = recording.stage == "sparse_block_table_prefill";
  item.scalars = {{"phase", std::string(prefill ? "prefill" : "decode")},
                  {"block_page_stride", recorded.integer("block_page_stride")}};
  if (!prefill) item.scalars.push_back({"decode_query_len", recorded.integer("decode_query_len")});
  item.inputs = recorded.inputs;
  const Tensor& table = recorded.output("sparse_block_table");
  item.expected = {
      {"sparse_block_table", table,
       recorded.output("sparse_block_table_specified", {{DType::kUInt8}, table.dims()})},
      {"sparse_context_lens", recorded.output("sparse_context_lens"), std::nullopt}};
  return item;
}

/// Position of a row, and the request it belongs to.
std::pair<std::int64_t, std::int64_t> row_place(const Case& item, std::int64_t row) {
  if (is_prefill(item))
    return {item.input("query_req_id").view<std::int32_t, 1>()(row),
            item.input("query_abs_pos").view<std::int32_t, 1>()(row)};
  const std::int64_t q = item.integer("decode_query_len");
  return {row / q, item.input("seq_lens").view<std::int32_t, 1>()(row / q) - q + row % q};
}

/// The rows of a case as prefill rows, in the given order: each row is then a row alone.
Case as_prefill(const Case& item, const std::vector<std::int64_t>& rows) {
  std::vector<std::int64_t> requests;
  std::vector<std::int64_t> positions;
  for (const std::int64_t row : rows) {
    const auto [request, position] = row_place(item, row);
    requests.push_back(request);
    positions.push_back(position);
  }
  const Tensor& topk = item.input("topk_idx");
  const auto ids = topk.view<std::int32_t, 3>();
  std::vector<std::int32_t> selected;
  for (const std::int64_t row : rows)
    for (std::int64_t i = 0; i < topk.dim(2); ++i) selected.push_back(ids(0, row, i));
  Case other = item;
  other.scalars = {{"phase", std::string("prefill")},
                   {"block_page_stride", item.integer("block_page_stride")}};
  other.inputs = {
      {"topk_idx", Tensor::of(DType::kInt32,
                              {1, static_cast<std::int64_t>(rows.size()), topk.dim(2)}, selected)},
      {"block_table", item.input("block_table")},
      {"query_req_id", strided_vector(DType::kInt32, requests, 1)},
      {"query_abs_pos", strided_vector(DType::kInt32, positions, 1)}};
  return other;
}

/// Recounts each row from its logical tokens, not from the compacted table.
std::optional<std::string> context_counts_tokens(const Case& item, const Outputs& out,
                                                 const Evaluate&) {
  const auto context = output(out, "sparse_context_lens").view<std::int32_t, 1>();
  const auto ids = item.input("topk_idx").view<std::int32_t, 3>();
  for (std::int64_t row = 0; row < context.dim(0); ++row) {
    const std::int64_t position = row_place(item, row).second;
    std::int64_t tokens = 0;
    std::set<std::int64_t> seen;
    bool repeats = false;
    for (std::int64_t i = 0; i < ids.dim(2); ++i) {
      const std::int64_t first = std::int64_t{ids(0, row, i)} * kBlock;
      if (ids(0, row, i) < 0 || first > position) continue;
      repeats = repeats || !seen.insert(first).second;
      tokens += std::min(kBlock, position + 1 - first);
    }
    if (!repeats && context(row) != tokens)
      return fmt::format("row {} has context {}, its distinct valid blocks hold {} tokens", row,
                         context(row), tokens);
    if (context(row) < 0 || (!repeats && context(row) > std::max<std::int64_t>(position + 1, 0)))
      return fmt::format("row {} has context {} at position {}", row, context(row), position);
  }
  return std::nullopt;
}

laws::Parts reversed_rows(const Case& item) {
  laws::Parts order(static_cast<std::size_t>(item.input("topk_idx").dim(1)));
  std::iota(order.rbegin(), order.rend(), std::int64_t{0});
  return order;
}

/// Columns of the block table that a request's valid ids never name are nobody's.
laws::Region unnamed_columns(const Case& item) {
  const auto ids = item.input("topk_idx").view<std::int32_t, 3>();
  std::set<std::pair<std::int64_t, std::int64_t>> named;
  for (std::int64_t row = 0; row < ids.dim(1); ++row) {
    const auto [request, position] = row_place(item, row);
    for (std::int64_t i = 0; i < ids.dim(2); ++i)
      if (position >= 0 && ids(0, row, i) >= 0 && ids(0, row, i) <= position / kBlock)
        named.insert({request, ids(0, row, i)});
  }
  return [named](laws::Index at) { return !named.contains({at[0], at[1]}); };
}

}  // namespace

Stage sparse_block_table_stage() {
  Stage stage;
  stage.name = "sparse_block_table";
  stage.summary = "selected blocks of each query row as a compact table of page-16 ids";
  stage.source = "sparse-pa: build_sparse_block_table; upstream-semantics section 5";
  stage.dimensions = {
      Dimension::choice("phase", {"decode", "prefill"}, "which builder"),
      {"requests", 1, 0, 5, {0, 1, 2, 33}, {}, "rows of the block table"},
      {"q_len", 1, 1, 5, {1, 2, 3, 4, 8}, {}, "query tokens a request (decode)"},
      {"queries", 1, 0, 12, {0, 1, 65}, {}, "query rows (prefill)"},
      {"topk", 1, 1, 20, {1, 3, 5, 6, 8, 12, 16, 17, 31, 32, 33, 63, 64}, {}, "ids a row"},
      {"page_stride", 8, 8, 24, {8, 16}, {}, "page ids a block spans"},
      {"blocks", 1, 1, 8, {1, 2, 16, 17, 70}, {}, "blocks that the longest sequence may have"},
      {"short_of_capacity", 0, 0, 127, {0, 1, 112, 127}, {}, "tokens missing in the last block"},
      {"spare_columns", 0, 0, 3, {}, {}, "table columns that no sequence needs"},
      {"table_row_gap", 0, 0, 4, {}, {}, "elements between rows of the block table"},
      {"topk_row_gap", 0, 0, 4, {}, {}, "elements between rows of the selection"},
      {"topk_step", 1, 1, 2, {}, {}, "stride of the ids of a row"},
      {"vector_step", 1, 1, 3, {}, {}, "stride of lengths, request ids and positions"},
      {"out_row_gap", 0, 0, 5, {}, {}, "elements between rows of the result"},
      Dimension::choice("selection",
                        {"top", "no_tail", "duplicates", "repeated_tail", "holes", "future",
                         "out_of_range", "stale", "none"},
                        "what the selector left in a row"),
      lengths_dimension(),
      table_ids_dimension(),
      defect_dimension(11, {"heads_not_1", "page_stride_7", "rows_do_not_match"}),
  };
  stage.variant = "phase";
  const auto strided = InputStorage::kStrided;
  stage.inputs = {{"topk_idx", {DType::kInt32}, {"kv heads", "queries", "topk"}, strided},
                  {"block_table", {DType::kInt32}, {"requests", "width"}, InputStorage::kRows},
                  InputSpec{"seq_lens", {DType::kInt32}, {"requests"}, strided}.of("decode"),
                  InputSpec{"query_req_id", {DType::kInt32}, {"queries"}, strided}.of("prefill"),
                  InputSpec{"query_abs_pos", {DType::kInt32}, {"queries"}, strided}.of("prefill")};
  stage.scalars = {ScalarSpec::word("phase", {"decode", "prefill"}),
                   ScalarSpec::integer("block_page_stride", kPagesPerBlock, limits::kExtent),
                   ScalarSpec::integer("decode_query_len", 1, limits::kQueryLength).or_none(),
                   ScalarSpec::row_gap("out_row_gap")};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.recordings = {"sparse_block_table_decode", "sparse_block_table_prefill"};
  stage.adopt = adopt;
  stage.properties = {
      laws::permute({.inputs = {}, .order = reversed_rows, .variant = as_prefill}),
      laws::ignores("poison_invariance", "table entries that no valid id names change nothing",
                    {{"block_table", unnamed_columns}}),
      {"context_counts_tokens",
       "a row's context is the number of its tokens, at most the causal length unless ids repeat",
       context_counts_tokens},
  };
  return stage;
}

}  // namespace monoref
