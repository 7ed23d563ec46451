// prefill_chunk_split: generator, reference and properties. The original is host code, and so there
// is no kernel.
#include "reference/stages/prefill_chunk_split.hpp"

#include <algorithm>
#include <limits>

#include "fuzz/stages/content.hpp"
#include "fuzz/stages/indexer_content.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBytesPerLogit = 4;

/// One batch has requests of all kinds.
std::int64_t drawn_length(std::string_view kind, CounterRandom& random) {
  if (kind == "empty_ones" && random.once_in(2)) return 0;
  if (kind == "ones") return 1;
  if (kind == "mixed" && random.once_in(4)) return random.between(1000, 100000);
  if (kind == "largest" && random.once_in(3)) return std::numeric_limits<std::int32_t>::max();
  return random.between(1, 60);
}

std::vector<std::int64_t> drawn_lengths(std::string_view kind, std::int64_t count,
                                        CounterRandom& random) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i) lengths.push_back(drawn_length(kind, random));
  return lengths;
}

/// A budget just below, at or just above what some run of requests needs: only there can an off by
/// one show.
std::int64_t close_to_need(const std::vector<std::int64_t>& needs, CounterRandom& random) {
  std::int64_t need = 0;
  const std::int64_t run = random.between(1, std::max<std::int64_t>(1, std::ssize(needs)));
  for (std::int64_t i = 0; i < std::min(run, std::ssize(needs)); ++i)
    need += needs[static_cast<std::size_t>(i)];
  return std::max<std::int64_t>(0, need + random.between(-1, 1));
}

std::int64_t logits_bytes(std::string_view kind, const std::vector<std::int64_t>& keys,
                          const std::vector<std::int64_t>& queries, CounterRandom& random) {
  if (kind == "none") return 0;
  if (kind == "ample") return std::int64_t{512} << 20;
  const std::int64_t most_keys = keys.empty() ? 1 : *std::max_element(keys.begin(), keys.end());
  const std::int64_t queries_a_piece = random.between(1, 20);
  if (kind == "one_row") return kBytesPerLogit * most_keys + random.between(-1, 1);
  if (kind == "need")
    return kBytesPerLogit * close_to_need(keys, random) * close_to_need(queries, random) +
           random.between(-1, 4);
  return kBytesPerLogit * queries_a_piece * most_keys + random.below(kBytesPerLogit);
}

/// Shortens queries that the budget would cut into more pieces than a test needs.
void limit_pieces(std::vector<std::int64_t>& queries, const std::vector<std::int64_t>& keys,
                  std::int64_t max_logits_bytes) {
  constexpr std::int64_t kMostPieces = 40;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    if (keys[i] == 0) continue;
    const std::int64_t piece =
        std::max<std::int64_t>(1, max_logits_bytes / kBytesPerLogit / keys[i]);
    queries[i] = std::min(queries[i], kMostPieces * piece);
  }
}

std::string_view applicable_defect(const Params& params) {
  const std::string_view defect = params.word("defect");
  const bool needs_a_request = defect == "negative_length" || defect == "length_beyond_int32";
  return needs_a_request && params["requests"] == 0 ? "none" : defect;
}

/// The original has no chunk of requests without queries and keys.
void avoid_empty_runs(const std::vector<std::int64_t>& queries, std::vector<std::int64_t>& keys) {
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (keys[i] == 0 && queries[i] == 0) keys[i] = 1;
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  CounterRandom key_random(seed, "seq_lens");
  CounterRandom query_random(seed, "query_lens");
  CounterRandom budget_random(seed, "budgets");
  const std::int64_t requests = params["requests"];
  auto keys = drawn_lengths(params.word("keys"), requests, key_random);
  auto queries = drawn_lengths(params.word("queries"), requests, query_random);
  std::int64_t workspace = params.word("workspace") == "none" ? 0
                           : params.word("workspace") == "ample"
                               ? std::int64_t{1} << 40
                               : close_to_need(keys, budget_random);
  std::int64_t logits =
      std::max<std::int64_t>(0, logits_bytes(params.word("logits"), keys, queries, budget_random));
  limit_pieces(queries, keys, logits);
  if (contract.decode_lengths == LengthRule::kAsSeed) avoid_empty_runs(queries, keys);
  const std::string defect(applicable_defect(params));
  if (defect == "negative_length") keys.back() = -1;
  if (defect == "length_beyond_int32") queries.back() = std::int64_t{1} << 31;
  if (defect == "query_missing") queries.push_back(1);
  if (defect == "negative_workspace") workspace = -1;
  if (defect == "negative_logits") logits = -1;
  Case item;
  item.scalars = {{"workspace_size", workspace},
                  {"max_logits_bytes", logits},
                  {"request_offset", defect == "negative_offset" ? -1 : params["request_offset"]},
                  {"defect", defect}};
  item.inputs = {{"seq_lens", strided_vector(DType::kInt64, keys, params["vector_step"])},
                 {"query_lens", strided_vector(DType::kInt64, queries, params["vector_step"])}};
  return item;
}

PrefillChunkSplitInput input_of(const Case& item) {
  return {.seq_lens = item.input("seq_lens").view<std::int64_t, 1>(),
          .query_lens = item.input("query_lens").view<std::int64_t, 1>(),
          .workspace_size = item.integer("workspace_size"),
          .max_logits_bytes = item.integer("max_logits_bytes"),
          .request_offset = item.integer("request_offset"),
          .lengths = item.contract.decode_lengths};
}

std::vector<OutputSpec> outputs(const Case& item) {
  const auto chunks = std::ssize(prefill_chunk_split(input_of(item)));
  return {{"chunks", DType::kInt64, Layout::dense({chunks, 4}), {"chunk", "bound"}, "", true}};
}

void reference(const Case& item, Outputs& out) {
  std::vector<std::int64_t> bounds;
  for (const PrefillChunk& chunk : prefill_chunk_split(input_of(item)))
    bounds.insert(bounds.end(),
                  {chunk.request_start, chunk.request_stop, chunk.query_start, chunk.query_stop});
  put_numbers(out, "chunks", bounds);
}

Case adopt(const Recording&, const RecordedCase& recorded) {
  Case item;
  item.contract.decode_lengths = LengthRule::kAsSeed;
  item.scalars = recorded.scalars;
  item.inputs = recorded.inputs;
  item.expected = {{"chunks", recorded.output("chunks"), std::nullopt}};
  return item;
}

/// A row of the output, and the requests it names in the case.
struct ChunkRow {
  std::int64_t first_request;
  std::int64_t last_request;  ///< exclusive
  std::int64_t first_query;
  std::int64_t last_query;  ///< exclusive
};

std::vector<ChunkRow> chunk_rows(const Case& item, const Outputs& out) {
  const auto bounds = output(out, "chunks").view<std::int64_t, 2>();
  const std::int64_t offset = item.integer("request_offset");
  std::vector<ChunkRow> rows;
  for (std::int64_t i = 0; i < bounds.dim(0); ++i)
    rows.push_back({bounds(i, 0) - offset, bounds(i, 1) - offset, bounds(i, 2), bounds(i, 3)});
  return rows;
}

std::int64_t sum(const std::vector<std::int64_t>& lengths, const ChunkRow& row) {
  std::int64_t total = 0;
  for (std::int64_t request = row.first_request; request < row.last_request; ++request)
    total += lengths[static_cast<std::size_t>(request)];
  return total;
}

/// Chunks are compared by their bounds alone, so that lengths near 2^31 cost nothing.
std::optional<std::string> queries_are_covered(const Case& item, const Outputs& out,
                                               const Evaluate&) {
  const auto queries = numbers_of(item.input("query_lens"));
  std::int64_t request = 0;
  std::int64_t query = 0;
  const std::vector<ChunkRow> rows = chunk_rows(item, out);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ChunkRow& row = rows[i];
    if (query == 0)  // requests between two runs have no query
      for (; request < row.first_request; ++request)
        if (queries[static_cast<std::size_t>(request)] != 0)
          return fmt::format("request {} with {} queries is in no chunk", request,
                             queries[static_cast<std::size_t>(request)]);
    if (row.first_request != request || row.first_query != query || row.last_query <= query)
      return fmt::format("chunk {} begins at request {} query {}, request {} query {} is next", i,
                         row.first_request, row.first_query, request, query);
    query = row.last_query;
    if (query < sum(queries, row)) continue;
    request = row.last_request;
    query = 0;
  }
  for (; request < std::ssize(queries); ++request)
    if (query != 0 || queries[static_cast<std::size_t>(request)] != 0)
      return fmt::format("the queries of request {} are not all in a chunk", request);
  return std::nullopt;
}

std::optional<std::string> budgets_are_kept(const Case& item, const Outputs& out, const Evaluate&) {
  const auto keys = numbers_of(item.input("seq_lens"));
  const std::int64_t workspace = item.integer("workspace_size");
  const std::int64_t logits = item.integer("max_logits_bytes") / kBytesPerLogit;
  for (const ChunkRow& row : chunk_rows(item, out)) {
    const std::int64_t rows = sum(keys, row);
    const std::int64_t queries = row.last_query - row.first_query;
    const bool alone = row.last_request - row.first_request == 1;
    if (!alone && rows > workspace)
      return fmt::format("requests {} to {} have {} rows together, the workspace {}",
                         row.first_request, row.last_request, rows, workspace);
    if (queries > 1 && rows > 0 && queries > logits / rows)
      return fmt::format("{} queries on {} rows exceed {} logits", queries, rows, logits);
  }
  return std::nullopt;
}

/// A run ends only where its next request would break a budget.
std::optional<std::string> runs_are_longest(const Case& item, const Outputs& out, const Evaluate&) {
  const auto keys = numbers_of(item.input("seq_lens"));
  const auto queries = numbers_of(item.input("query_lens"));
  const std::int64_t workspace = item.integer("workspace_size");
  const std::int64_t logits = item.integer("max_logits_bytes") / kBytesPerLogit;
  for (ChunkRow row : chunk_rows(item, out)) {
    if (row.first_query != 0 || row.last_query != sum(queries, row)) continue;  // cut: alone
    if (row.last_request == std::ssize(keys)) continue;
    const bool was_legal = sum(keys, row) <= workspace &&
                           (sum(keys, row) == 0 || row.last_query <= logits / sum(keys, row));
    ++row.last_request;
    const std::int64_t rows = sum(keys, row);
    if (was_legal && rows <= workspace && (rows == 0 || sum(queries, row) <= logits / rows))
      return fmt::format("request {} would have fitted the run from {}", row.last_request - 1,
                         row.first_request);
  }
  return std::nullopt;
}

std::optional<std::string> offset_only_shifts(const Case& item, const Outputs& out,
                                              const Evaluate& evaluate) {
  if (item.integer("request_offset") > limits::kExtent - 7) return std::nullopt;
  Case other = item;
  set_scalar(other, "request_offset", item.integer("request_offset") + 7);
  const Outputs shifted = evaluate(other);
  const auto before = output(out, "chunks").view<std::int64_t, 2>();
  const auto after = output(shifted, "chunks").view<std::int64_t, 2>();
  if (before.dim(0) != after.dim(0)) return "another offset gives another number of chunks";
  for (std::int64_t i = 0; i < before.dim(0); ++i)
    for (std::int64_t j = 0; j < 4; ++j)
      if (after(i, j) != before(i, j) + (j < 2 ? 7 : 0))
        return fmt::format("bound {} of chunk {} is {} with offset 7 more, {} without", j, i,
                           after(i, j), before(i, j));
  return std::nullopt;
}

}  // namespace

Stage prefill_chunk_split_stage() {
  Stage stage;
  stage.name = "prefill_chunk_split";
  stage.summary = "prefill requests and their queries in chunks that fit the indexer's workspace";
  stage.source = "deepseek-indexer-metadata: split_indexer_prefill_chunks";
  stage.contracts = {"mono", "mono,decode_lengths=as-seed"};
  stage.dimensions = {
      {"requests", 1, 0, 8, {0, 1, 2, 65}, {}, "prefill requests"},
      Dimension::choice("keys", {"ordinary", "ones", "empty_ones", "mixed", "largest"},
                        "rows of the requests' sequences"),
      Dimension::choice("queries", {"ordinary", "ones", "empty_ones", "mixed", "largest"},
                        "query tokens of the requests"),
      Dimension::choice("workspace", {"ample", "need", "none"}, "rows of the workspace"),
      Dimension::choice("logits", {"ample", "some_rows", "one_row", "need", "none"},
                        "bytes of the logits"),
      {"request_offset", 0, 0, 5, {0, 1, 1000}, {}, "number of the first request"},
      {"vector_step", 1, 1, 3, {}, {}, "stride of the lengths"},
      defect_dimension(15, {"negative_length", "length_beyond_int32", "query_missing",
                            "negative_workspace", "negative_logits", "negative_offset"}),
  };
  stage.inputs = {{"seq_lens", {DType::kInt64}, {"requests"}, InputStorage::kStrided},
                  {"query_lens", {DType::kInt64}, {"requests"}, InputStorage::kStrided}};
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();  // numbers, no sizes
  stage.scalars = {ScalarSpec::integer("workspace_size", 0, kMost),
                   ScalarSpec::integer("max_logits_bytes", 0, kMost),
                   ScalarSpec::integer("request_offset", 0, limits::kExtent)};
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.recordings = {"prefill_chunk_split"};
  stage.adopt = adopt;
  stage.properties = {
      {"coverage", "chunks hold every query once, in order", queries_are_covered},
      {"budgets", "several requests fit the workspace, several queries the logits (T15)",
       budgets_are_kept},
      {"longest_runs", "a run of requests ends where its next request would not fit",
       runs_are_longest},
      {"offset", "the request offset moves request numbers and nothing else", offset_only_shifts},
  };
  return stage;
}

}  // namespace monoref
