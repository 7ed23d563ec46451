// decode_expand: generator, reference and kernel side by side. The kernel is the uniform expansion;
// it also gives the lengths of the native and the plain path. Ragged batches are flattened by host
// code in the original.
#include "reference/stages/decode_expand.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "device/launch/decode_expand.hpp"
#include "fuzz/laws/adds_up.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/indexer_content.hpp"
#include "fuzz/stages/indexer_kernels.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

std::vector<std::int64_t> drawn_seq_lens(const Params& params,
                                         const std::vector<std::int64_t>& queries,
                                         std::uint64_t seed) {
  CounterRandom random(seed, "seq_lens");
  const auto kind = static_cast<Sequence>(params["sequences"]);
  std::vector<std::int64_t> lengths;
  for (const std::int64_t query : queries)
    lengths.push_back(make_seq_len(
        kind, {.query = query, .unit = sharing_unit(params), .limit = params["max_model_len"]},
        random));
  return lengths;
}

std::string_view applicable_defect(const Params& params) {
  const std::string_view defect = params.word("defect");
  const bool falls = defect == "query_start_loc_falls";
  return falls && params["requests"] < 2 ? "none" : defect;
}

/// Columns that the expanded table lacks: only the original's uniform flattening takes a table
/// that is wider than its buffer.
std::int64_t missing_columns(const Params& params, const Contract& contract,
                             const std::vector<std::int64_t>& queries) {
  const std::int64_t query = queries.front();
  const bool uniform = std::all_of(queries.begin(), queries.end(),
                                   [&](std::int64_t other) { return other == query; });
  const bool flattened = query > 1 && (params["use_flattening"] != 0 || query > params["next_n"]);
  if (contract.decode_lengths != LengthRule::kAsSeed || !uniform || !flattened) return 0;
  return std::min(params["missing_columns"], params["width"]);
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  CounterRandom query_random(seed, "query_start_loc");
  CounterRandom ids(seed, "block_table");
  const std::int64_t requests = params["requests"];
  const std::int64_t width = params["width"];
  const auto queries = make_query_lens(static_cast<QueryMix>(params["query_mix"]), requests,
                                       params["q_len"], query_random);
  const std::int64_t missing = missing_columns(params, contract, queries);
  auto lengths = drawn_seq_lens(params, queries, seed);
  auto starts = prefix_sums(queries);
  std::int64_t tokens = starts.back() + params["padding_tokens"];
  const std::string defect(applicable_defect(params));
  if (defect == "query_start_loc_falls") starts[1] = starts.back() + 1;
  if (defect == "negative_length") lengths.back() = -1;
  if (defect == "tokens_missing") tokens = starts.back() - 1;
  const std::int64_t rows = defect == "table_row_missing" ? requests - 1 : requests;
  const auto table =
      make_block_ids(static_cast<TableIds>(params["table_ids"]), rows * width, kInt32Max, ids);
  Case item;
  item.scalars = cache_sharing_scalars(params);
  if (defect == "rank_outside") set_scalar(item, "rank", params["world"]);
  item.scalars.insert(item.scalars.end(),
                      {{"num_decode_tokens", tokens},
                       {"next_n", params["next_n"]},
                       {"use_flattening", params["use_flattening"]},
                       {"max_model_len", params["max_model_len"]},
                       {"carried_rows", params["carried_rows"]},
                       {"extra_columns", missing > 0 ? -missing : params["extra_columns"]},
                       {"out_row_gap", params["out_row_gap"]},
                       {"defect", defect}});
  item.inputs = {
      {"query_start_loc", strided_vector(DType::kInt32, starts, params["vector_step"])},
      {"seq_lens", strided_vector(DType::kInt32, lengths, params["vector_step"])},
      {"block_table", padded_rows(DType::kInt32, rows, width, params["table_row_gap"], table)}};
  return item;
}

DecodeExpandInput input_of(const Case& item) {
  return {.query_start_loc = item.input("query_start_loc").view<std::int32_t, 1>(),
          .seq_lens = item.input("seq_lens").view<std::int32_t, 1>(),
          .block_table = item.input("block_table").view<std::int32_t, 2>(),
          .num_decode_tokens = item.integer("num_decode_tokens"),
          .next_n = item.integer("next_n"),
          .use_flattening = item.integer("use_flattening") != 0,
          .compress_ratio = item.integer("compress_ratio"),
          .context_parallel = context_parallel_of(item),
          .lengths = item.contract.decode_lengths,
          .max_model_len = item.integer("max_model_len")};
}

/// Columns of the expanded table. Only the original's uniform flattening drops some.
std::int64_t table_columns(const Case& item, const DecodeExpandInput& input,
                           const DecodeExpandShape& shape) {
  const std::int64_t width = input.block_table.dim(1);
  const bool truncates =
      input.lengths == LengthRule::kAsSeed && shape.path == DecodePath::kFlattenUniform;
  return width + ranged_parameter(item, "extra_columns", truncates ? -width : 0, limits::kRowGap);
}

/// The lengths lie at the front of a buffer that is carried from step to step, and the rest of it
/// is zeroed: rows of an earlier, larger step must not be seen again.
std::vector<OutputSpec> outputs(const Case& item) {
  const DecodeExpandInput input = input_of(item);
  const DecodeExpandShape shape = decode_expand_shape(input);
  const bool ragged = shape.path == DecodePath::kFlattenRagged;
  const bool uniform = shape.path == DecodePath::kFlattenUniform;
  const std::int64_t lengths = shape.length_rows * shape.length_columns;
  const std::int64_t columns = table_columns(item, input, shape);
  return {host_numbers("shape", 6, "field"),
          {"decode_seq_lens",
           DType::kInt32,
           Layout::dense({lengths + item.integer("carried_rows")}),
           {"row"},
           "",
           ragged},
          {"decode_lens", DType::kInt32, Layout::dense({shape.rows}), {"row"}, "", !uniform},
          {"decode_block_table",
           DType::kInt32,
           Layout::strided({shape.flattened() ? shape.rows : 0, columns},
                           {columns + row_gap(item, "out_row_gap"), 1}),
           {"row", "column"},
           "",
           !uniform}};
}

void reference(const Case& item, Outputs& out) {
  const DecodeExpandInput input = input_of(item);
  const DecodeExpandShape shape = decode_expand_shape(input);
  put_numbers(out, "shape",
              {static_cast<std::int64_t>(shape.path), shape.rows, shape.length_rows,
               shape.length_columns, shape.max_decode_len, shape.requires_padding ? 1 : 0});
  Tensor& lengths = writable(out, "decode_seq_lens");
  lengths.fill_bytes(std::byte{0});
  DecodeExpandOutput views{{lengths.view<std::int32_t, 1>().data(),
                            {shape.length_rows, shape.length_columns},
                            {shape.length_columns, 1}},
                           writable(out, "decode_lens").view<std::int32_t, 1>(),
                           {}};
  if (shape.flattened())
    views.decode_block_table = writable(out, "decode_block_table").view<std::int32_t, 2>();
  decode_expand(input, views);
}

/// Clamped lengths end at the model's limit, or nowhere if it is not known.
std::int32_t length_limit(const Case& item) {
  if (item.contract.decode_lengths == LengthRule::kAsSeed) return -1;
  const std::int64_t limit = item.integer("max_model_len");
  return static_cast<std::int32_t>(limit > 0 ? limit : kInt32Max);
}

void launch(const Case& item, const Launcher& launcher) {
  const DecodeExpandInput input = input_of(item);
  const DecodeExpandShape shape = decode_expand_shape(input);
  if (shape.path == DecodePath::kFlattenRagged) return;
  const std::int64_t query = shape.flattened() ? shape.max_decode_len : shape.length_columns;
  device::launch::DecodeExpand arguments{
      .seq_lens = launcher.address<const std::int32_t>("seq_lens"),
      .seq_lens_stride = input.seq_lens.stride(0),
      .decode_seq_lens = launcher.address<std::int32_t>("out.decode_seq_lens"),
      // A batch without queries has no native rows, but a tail to zero.
      .requests = query > 0 ? input.seq_lens.dim(0) : 0,
      .live_rows = query > 0 ? std::min(input.seq_lens.dim(0) * query,
                                        shape.length_rows * shape.length_columns)
                             : 0,
      .length_rows = shape.length_rows * shape.length_columns + item.integer("carried_rows"),
      .max_decode_len = std::max<std::int64_t>(query, 1),
      .sharing = cache_sharing(input.compress_ratio, input.context_parallel),
      .length_limit = length_limit(item)};
  if (shape.flattened()) {
    arguments.width = input.block_table.dim(1);
    arguments.expanded_width = arguments.width + item.integer("extra_columns");
    arguments.block_table = launcher.address<const std::int32_t>("block_table");
    arguments.table_row_stride = input.block_table.stride(0);
    arguments.expanded_table = launcher.address<std::int32_t>("out.decode_block_table");
    arguments.expanded_row_stride = arguments.expanded_width + row_gap(item, "out_row_gap");
    arguments.decode_lens = launcher.address<std::int32_t>("out.decode_lens");
  }
  launcher.enqueue(arguments);
}

/// The case with only the given requests, in the given order, and without padding tokens.
Case with_requests(const Case& item, const std::vector<std::int64_t>& requests) {
  const auto queries = differences(item.input("query_start_loc"));
  const auto lengths = numbers_of(item.input("seq_lens"));
  std::vector<std::int64_t> kept_queries;
  std::vector<std::int64_t> kept_lengths;
  for (const std::int64_t request : requests) {
    kept_queries.push_back(queries[static_cast<std::size_t>(request)]);
    kept_lengths.push_back(lengths[static_cast<std::size_t>(request)]);
  }
  Case part = item;
  const auto starts = prefix_sums(kept_queries);
  set_input(part, "query_start_loc", vector_of(DType::kInt32, starts));
  set_input(part, "seq_lens", vector_of(DType::kInt32, kept_lengths));
  set_input(part, "block_table", take_rows(item.input("block_table"), requests));
  set_scalar(part, "num_decode_tokens", starts.back());
  return part;
}

/// Whether every request has its length, also without padding tokens: under compression the
/// original has one a token.
bool has_every_length(const Case& item) {
  Case live = item;
  set_scalar(live, "num_decode_tokens", numbers_of(item.input("query_start_loc")).back());
  const DecodeExpandShape shape = decode_expand_shape(input_of(live));
  return shape.flattened() || shape.length_rows >= shape.rows;
}

/// Where a request's rows begin in the outputs, and how many it has.
struct RowsOfRequest {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

std::vector<RowsOfRequest> rows_of_requests(const Case& item) {
  const DecodeExpandShape shape = decode_expand_shape(input_of(item));
  const auto queries = differences(item.input("query_start_loc"));
  std::vector<RowsOfRequest> rows;
  std::int64_t next = 0;
  for (const std::int64_t query : queries) {
    const std::int64_t count = shape.flattened() ? query : shape.length_columns;
    rows.push_back({next, count});
    next += count;
  }
  return rows;
}

/// What differs between a request's rows in two results; nothing if nothing does.
std::optional<std::string> difference(const Case& a_case, const Outputs& a, std::int64_t request_a,
                                      const Case& b_case, const Outputs& b,
                                      std::int64_t request_b) {
  const RowsOfRequest in_a = rows_of_requests(a_case)[static_cast<std::size_t>(request_a)];
  const RowsOfRequest in_b = rows_of_requests(b_case)[static_cast<std::size_t>(request_b)];
  if (in_a.count != in_b.count)
    return fmt::format("request {} has {} rows, then {}", request_a, in_a.count, in_b.count);
  for (std::int64_t row = 0; row < in_a.count; ++row)
    if (!same_row(output(a, "decode_seq_lens"), in_a.first + row, output(b, "decode_seq_lens"),
                  in_b.first + row))
      return fmt::format("token {} of request {} gets another length", row, request_a);
  if (output(a, "decode_block_table").dim(0) == 0 || output(b, "decode_block_table").dim(0) == 0)
    return std::nullopt;
  for (std::int64_t row = 0; row < in_a.count; ++row)
    if (!same_row(output(a, "decode_block_table"), in_a.first + row,
                  output(b, "decode_block_table"), in_b.first + row))
      return fmt::format("token {} of request {} gets another table row", row, request_a);
  return std::nullopt;
}

std::optional<std::string> requests_can_be_reversed(const Case& item, const Outputs& out,
                                                    const Evaluate& evaluate) {
  if (!has_every_length(item)) return std::nullopt;
  std::vector<std::int64_t> reversed(static_cast<std::size_t>(item.input("seq_lens").dim(0)));
  std::iota(reversed.rbegin(), reversed.rend(), std::int64_t{0});
  const Case other = with_requests(item, reversed);
  const Outputs got = evaluate(other);
  for (std::size_t at = 0; at < reversed.size(); ++at)
    if (auto broken =
            difference(item, out, reversed[at], other, got, static_cast<std::int64_t>(at)))
      return broken;
  return std::nullopt;
}

/// A flattened request alone has the same rows: alone it is uniform, whatever the batch was.
std::optional<std::string> requests_can_be_alone(const Case& item, const Outputs& out,
                                                 const Evaluate& evaluate) {
  if (!decode_expand_shape(input_of(item)).flattened()) return std::nullopt;
  const auto queries = differences(item.input("query_start_loc"));
  const std::int64_t requests = std::min<std::int64_t>(std::ssize(queries), 8);
  for (std::int64_t request = 0; request < requests; ++request) {
    if (queries[static_cast<std::size_t>(request)] == 0) continue;
    const Case alone = with_requests(item, {request});
    if (auto broken = difference(item, out, request, alone, evaluate(alone), 0)) return broken;
  }
  return std::nullopt;
}

/// Requests and tokens that pad a captured graph change no live row.
std::optional<std::string> padding_changes_nothing(const Case& item, const Outputs& out,
                                                   const Evaluate& evaluate) {
  if (!has_every_length(item)) return std::nullopt;
  // A padded batch is no uniform one, whose table the original lets lose columns.
  if (item.integer("extra_columns") < 0) return std::nullopt;
  auto starts = numbers_of(item.input("query_start_loc"));
  auto lengths = numbers_of(item.input("seq_lens"));
  std::vector<std::int64_t> rows(lengths.size());
  std::iota(rows.begin(), rows.end(), std::int64_t{0});
  rows.insert(rows.end(), 2, 0);
  starts.insert(starts.end(), 2, starts.back());
  lengths.insert(lengths.end(), 2, 0);
  Case padded = item;
  set_input(padded, "query_start_loc", vector_of(DType::kInt32, starts));
  set_input(padded, "seq_lens", vector_of(DType::kInt32, lengths));
  set_input(padded, "block_table", take_rows(item.input("block_table"), rows));
  set_scalar(padded, "num_decode_tokens", item.integer("num_decode_tokens") + 3);
  const Outputs got = evaluate(padded);
  for (std::int64_t request = 0; request < std::ssize(rows) - 2; ++request)
    if (auto broken = difference(item, out, request, padded, got, request)) return broken;
  return std::nullopt;
}

std::optional<std::string> lengths_are_legal(const Case& item, const Outputs& out,
                                             const Evaluate&) {
  if (item.contract.decode_lengths == LengthRule::kAsSeed) return std::nullopt;
  const std::int64_t limit = length_limit(item);
  for (const std::int64_t length : numbers_of(output(out, "decode_seq_lens")))
    if (length < 0 || length > limit)
      return fmt::format("a row has length {}, limits 0 and {}", length, limit);
  return std::nullopt;
}

}  // namespace

Stage decode_expand_stage() {
  Stage stage;
  stage.name = "decode_expand";
  stage.summary = "lengths and block-table rows of decodes as the scorer's kernels take them";
  stage.source = "deepseek-indexer-metadata: _prepare_decode_tensors";
  stage.contracts = {"mono", "mono,decode_lengths=as-seed"};
  stage.dimensions = joined(
      {
          {"requests", 1, 1, 6, {1, 2, 33, 65}, {}, "decodes"},
          query_mix_dimension(),
          {"q_len", 1, 1, 5, {1, 2, 3, 4, 8}, {}, "longest query"},
          {"padding_tokens", 0, 0, 4, {}, {}, "tokens behind the last request"},
          {"next_n", 1, 1, 8, {1, 2, 3, 4}, {}, "query tokens that the scorer is made for"},
          {"use_flattening", 0, 0, 1, {}, {}, "the scorer takes queries of one token only"},
          sequence_dimension(),
          {"max_model_len", 2048, 300, 2048, {0, 257, 512, 2048}, {}, "tokens; 0: not known"},
          {"width", 1, 0, 12, {1, 4, 16, 129}, {}, "columns of the block table"},
          {"extra_columns", 0, 0, 8, {0, 1, 8}, {}, "columns that the expanded table has more"},
          {"table_row_gap", 0, 0, 4, {}, {}, "elements between rows of the block table"},
          {"out_row_gap", 0, 0, 4, {}, {}, "elements between rows of the expanded table"},
          {"vector_step", 1, 1, 3, {}, {}, "stride of starts and lengths"},
          {"carried_rows", 0, 0, 9, {0, 70}, {}, "rows of the carried buffer behind the step's"},
      },
      joined(cache_sharing_dimensions(),
             {
                 table_ids_dimension(),
                 defect_dimension(14, {"table_row_missing", "negative_length",
                                       "query_start_loc_falls", "tokens_missing", "rank_outside"}),
                 {"missing_columns",
                  0,
                  0,
                  3,
                  {1, 2},
                  {},
                  "columns that the original's expanded table has fewer",
                  limits::kRowGap},
             }));
  stage.inputs = {
      {"query_start_loc", {DType::kInt32}, {"starts"}, InputStorage::kStrided},
      {"seq_lens", {DType::kInt32}, {"requests"}, InputStorage::kStrided},
      {"block_table", {DType::kInt32}, {"rows of the table", "width"}, InputStorage::kRows}};
  stage.scalars = joined(
      cache_sharing_specs(),
      {ScalarSpec::integer("num_decode_tokens", 0, limits::kTokens),
       ScalarSpec::integer("next_n", 1, limits::kQueryLength), ScalarSpec::flag("use_flattening"),
       ScalarSpec::integer("max_model_len", 0, limits::kExtent),
       ScalarSpec::integer("carried_rows", 0, limits::kTokens),
       ScalarSpec::integer("extra_columns", -limits::kRowGap, limits::kRowGap),
       ScalarSpec::row_gap("out_row_gap")});
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      {"row_independence", "reversing the batch permutes the rows and changes nothing else",
       requests_can_be_reversed},
      {"row_alone", "a flattened request has the same rows alone (T03)", requests_can_be_alone},
      {"padding_invariance", "padding requests and tokens change no live row (T26)",
       padding_changes_nothing},
      laws::adds_up({"decode_seq_lens"},
                    "the ranks' lengths add up to the global ones for every row (T19)"),
      laws::no_ratio(),
      {"index_validity", "clamped lengths are neither negative nor beyond the model's limit",
       lengths_are_legal},
  };
  return stage;
}

}  // namespace monoref
