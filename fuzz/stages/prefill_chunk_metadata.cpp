// prefill_chunk_metadata: generator, reference and kernels side by side.
#include "reference/stages/prefill_chunk_metadata.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "fuzz/laws/adds_up.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/indexer_content.hpp"
#include "fuzz/stages/indexer_kernels.hpp"

namespace monoref {
namespace {

constexpr const char* kScalars[] = {"num_reqs", "total_seq_lens", "token_start", "token_end",
                                    "skip_kv_gather"};

/// Prefixes before the queries: none, a few tokens, or whole groups and runs.
std::int64_t drawn_prefix(std::string_view kind, std::int64_t unit, CounterRandom& random) {
  if (kind == "none") return 0;
  if (kind == "multiple")
    return std::max<std::int64_t>(
        0, unit * random.between(0, std::max<std::int64_t>(300 / unit, 1)) + random.between(-1, 1));
  return random.between(0, 300);
}

/// Which requests and which of their queries the chunk has.
struct Cut {
  std::int64_t request_start = 0;
  std::int64_t request_stop = 0;
  std::int64_t query_start = 0;
  std::int64_t query_stop = 0;
};

Cut drawn_cut(const Params& params, const std::vector<std::int64_t>& starts,
              CounterRandom& random) {
  const std::int64_t requests = params["requests"];
  const std::int64_t before = params["requests_before"];
  Cut cut{before, before + requests, 0, 0};
  const std::int64_t queries = starts[static_cast<std::size_t>(cut.request_stop)] -
                               starts[static_cast<std::size_t>(cut.request_start)];
  const std::string_view kind = params.word("cut");
  cut.query_stop = queries;
  if (kind == "front" || kind == "middle") cut.query_stop = random.between(0, queries);
  if (kind == "back" || kind == "middle") cut.query_start = random.between(0, cut.query_stop);
  return cut;
}

void plant_defect(const std::string& defect, std::vector<std::int64_t>& starts,
                  std::vector<std::int64_t>& lengths, Cut& cut) {
  if (defect == "query_start_loc_falls") starts[0] = 1;
  if (defect == "shorter_than_query")
    lengths[static_cast<std::size_t>(cut.request_start)] =
        starts[static_cast<std::size_t>(cut.request_start + 1)] -
        starts[static_cast<std::size_t>(cut.request_start)] - 1;
  if (defect == "no_requests") cut.request_stop = cut.request_start;
  if (defect == "requests_beyond") cut.request_stop = std::ssize(lengths) + 1;
  if (defect == "queries_beyond") cut.query_stop += 1 + starts.back();
}

/// The original serves a sequence shorter than its query; to us it is a defect.
bool is_defect(std::string_view defect, const Contract& contract) {
  return defect != "shorter_than_query" || contract.decode_lengths == LengthRule::kClamped;
}

Case build(const Params& params, const Contract& contract, std::uint64_t seed) {
  CounterRandom query_random(seed, "query_start_loc");
  CounterRandom length_random(seed, "seq_lens");
  CounterRandom bound_random(seed, "seq_lens_cpu_upper_bound");
  CounterRandom cut_random(seed, "cut");
  const std::int64_t requests =
      params["requests_before"] + params["requests"] + params["requests_behind"];
  const auto queries = make_query_lens(static_cast<QueryMix>(params["query_mix"]), requests,
                                       params["q_len"], query_random);
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> bounds;
  for (const std::int64_t query : queries) {
    lengths.push_back(query +
                      drawn_prefix(params.word("prefixes"), sharing_unit(params), length_random));
    bounds.push_back(lengths.back() + bound_random.between(0, 9));
  }
  auto starts = prefix_sums(queries);
  Cut cut = drawn_cut(params, starts, cut_random);
  const std::string defect(params.word("defect"));
  plant_defect(defect, starts, lengths, cut);
  if (!is_defect(defect, contract))  // of an empty query nothing is shorter
    for (std::int64_t& length : lengths) length = std::max<std::int64_t>(length, 0);
  if (defect == "bound_too_low")
    bounds[static_cast<std::size_t>(cut.request_start)] =
        lengths[static_cast<std::size_t>(cut.request_start)] - 1;
  Case item;
  item.scalars = cache_sharing_scalars(params);
  item.scalars.insert(item.scalars.end(),
                      {{"request_start", cut.request_start},
                       {"request_stop", cut.request_stop},
                       {"query_start", cut.query_start},
                       {"query_stop", cut.query_stop},
                       {"defect", is_defect(defect, contract) ? defect : "none"}});
  item.inputs = {{"query_start_loc", vector_of(DType::kInt32, starts)},
                 {"seq_lens", vector_of(DType::kInt32, lengths)}};
  if (params["upper_bound"] != 0 || defect == "bound_too_low")
    item.inputs.push_back({"seq_lens_cpu_upper_bound", vector_of(DType::kInt32, bounds)});
  return item;
}

PrefillChunkMetadataInput input_of(const Case& item) {
  PrefillChunkMetadataInput input{
      .query_start_loc = item.input("query_start_loc").view<std::int32_t, 1>(),
      .seq_lens = item.input("seq_lens").view<std::int32_t, 1>(),
      .chunk = {item.integer("request_start"), item.integer("request_stop"),
                item.integer("query_start"), item.integer("query_stop")},
      .compress_ratio = item.integer("compress_ratio"),
      .context_parallel = context_parallel_of(item),
      .lengths = item.contract.decode_lengths};
  if (const Tensor* bound = item.find_input("seq_lens_cpu_upper_bound"))
    input.seq_lens_cpu_upper_bound = bound->view<std::int32_t, 1>();
  return input;
}

std::vector<OutputSpec> outputs(const Case& item) {
  const PrefillChunkShape shape = prefill_chunk_shape(input_of(item));
  if (shape.total_seq_lens > limits::kKeyRows)
    refuse("prefill_chunk_metadata: total_seq_lens is {}, limit {}", shape.total_seq_lens,
           limits::kKeyRows);
  const std::int64_t queries = shape.token_end - shape.token_start;
  std::vector<OutputSpec> specs{
      {"cu_seqlen_ks", DType::kInt32, Layout::dense({queries}), {"query"}, ""},
      {"cu_seqlen_ke", DType::kInt32, Layout::dense({queries}), {"query"}, ""},
      {"cu_seq_lens", DType::kInt32, Layout::dense({shape.num_reqs + 1}), {"request"}, ""},
      {"token_to_seq", DType::kInt32, Layout::dense({shape.total_seq_lens}), {"key"}, ""}};
  for (const char* name : kScalars) specs.push_back(host_numbers(name, 1, "value"));
  return specs;
}

void reference(const Case& item, Outputs& out) {
  const PrefillChunkMetadataInput input = input_of(item);
  prefill_chunk_metadata(
      input, {out[0].tensor.view<std::int32_t, 1>(), out[1].tensor.view<std::int32_t, 1>(),
              out[2].tensor.view<std::int32_t, 1>(), out[3].tensor.view<std::int32_t, 1>()});
  const PrefillChunkShape shape = prefill_chunk_shape(input);
  put_numbers(out, "num_reqs", {shape.num_reqs});
  put_numbers(out, "total_seq_lens", {shape.total_seq_lens});
  put_numbers(out, "token_start", {shape.token_start});
  put_numbers(out, "token_end", {shape.token_end});
  put_numbers(out, "skip_kv_gather", {shape.skip_kv_gather ? 1 : 0});
}

void launch(const Case& item, const Launcher& launcher) {
  const PrefillChunkMetadataInput input = input_of(item);
  const PrefillChunk& chunk = input.chunk;
  enqueue_prefill_chunk(
      launcher, launcher.address<std::int32_t>("out.cu_seq_lens"),
      {.query_start_loc =
           launcher.address<const std::int32_t>("query_start_loc") + chunk.request_start,
       .seq_lens = launcher.address<const std::int32_t>("seq_lens") + chunk.request_start,
       .cu_seq_lens = nullptr,
       .token_to_seq = launcher.address<std::int32_t>("out.token_to_seq"),
       .cu_seqlen_ks = launcher.address<std::int32_t>("out.cu_seqlen_ks"),
       .cu_seqlen_ke = launcher.address<std::int32_t>("out.cu_seqlen_ke"),
       .requests = chunk.request_stop - chunk.request_start,
       .entries = prefill_chunk_shape(input).total_seq_lens,
       .slice_start = chunk.query_start,
       .slice_stop = chunk.query_stop,
       .sharing = cache_sharing(input.compress_ratio, input.context_parallel)});
}

/// The case with other bounds of the chunk.
Case with_queries(const Case& item, std::int64_t start, std::int64_t stop) {
  Case part = item;
  set_scalar(part, "query_start", start);
  set_scalar(part, "query_stop", stop);
  return part;
}

/// Cuts to try between two bounds: all of them if there are few, else five.
std::vector<std::int64_t> cuts_between(std::int64_t start, std::int64_t stop) {
  std::vector<std::int64_t> cuts;
  const std::int64_t step = std::max<std::int64_t>((stop - start) / 5, 1);
  for (std::int64_t cut = start; cut <= stop; cut += step) cuts.push_back(cut);
  return cuts;
}

/// Queries from `first` on are those of a piece whose key rows begin at `key` in the whole.
std::optional<std::string> piece_differs(const Outputs& whole, const Outputs& piece,
                                         std::int64_t first, std::int64_t key) {
  for (const char* name : {"cu_seqlen_ks", "cu_seqlen_ke"}) {
    const auto all = numbers_of(output(whole, name));
    const auto own = numbers_of(output(piece, name));
    for (std::size_t i = 0; i < own.size(); ++i)
      if (own[i] + key != all[static_cast<std::size_t>(first) + i])
        return fmt::format("{} of query {} is {} in a piece, {} in the whole", name,
                           first + static_cast<std::int64_t>(i), own[i] + key,
                           all[static_cast<std::size_t>(first) + i]);
  }
  return std::nullopt;
}

std::optional<std::string> queries_can_be_cut(const Case& item, const Outputs& out,
                                              const Evaluate& evaluate) {
  const std::int64_t start = item.integer("query_start");
  const std::int64_t stop = item.integer("query_stop");
  for (const std::int64_t cut : cuts_between(start, stop)) {
    const Outputs front = evaluate(with_queries(item, start, cut));
    const Outputs back = evaluate(with_queries(item, cut, stop));
    if (auto broken = piece_differs(out, front, 0, 0)) return broken;
    if (auto broken = piece_differs(out, back, cut - start, 0)) return broken;
    if (number(back, "skip_kv_gather") != (cut > 0 ? 1 : 0))
      return fmt::format("skip_kv_gather is wrong for a piece from query {}", cut);
  }
  return std::nullopt;
}

/// Requests in chunks of their own: the same bounds, from each chunk's first key.
std::optional<std::string> requests_can_be_apart(const Case& item, const Outputs& out,
                                                 const Evaluate& evaluate) {
  if (item.find_input("seq_lens_cpu_upper_bound") != nullptr) return std::nullopt;
  const auto starts = numbers_of(item.input("query_start_loc"));
  const std::int64_t first = item.integer("request_start");
  const std::int64_t last = std::min(item.integer("request_stop"), first + 8);
  const auto keys = numbers_of(output(out, "cu_seq_lens"));
  Case alone = item;
  for (std::int64_t request = first; request < last; ++request) {
    const std::int64_t offset =
        starts[static_cast<std::size_t>(request)] - starts[static_cast<std::size_t>(first)];
    const std::int64_t queries =
        starts[static_cast<std::size_t>(request + 1)] - starts[static_cast<std::size_t>(request)];
    const std::int64_t begin = std::max(item.integer("query_start"), offset);
    const std::int64_t end = std::min(item.integer("query_stop"), offset + queries);
    if (begin >= end) continue;
    set_scalar(alone, "request_start", request);
    set_scalar(alone, "request_stop", request + 1);
    const Outputs piece = evaluate(with_queries(alone, begin - offset, end - offset));
    if (auto broken = piece_differs(out, piece, begin - item.integer("query_start"),
                                    keys[static_cast<std::size_t>(request - first)]))
      return broken;
  }
  return std::nullopt;
}

/// What an earlier step has already put into the cache changes nothing: with only the last query of
/// each request in the step, it sees the same keys.
std::optional<std::string> prefixes_can_be_cached(const Case& item, const Outputs& out,
                                                  const Evaluate& evaluate) {
  const auto queries = differences(item.input("query_start_loc"));
  const auto first = static_cast<std::size_t>(item.integer("request_start"));
  const auto last = static_cast<std::size_t>(item.integer("request_stop"));
  std::vector<std::int64_t> kept;
  for (const std::int64_t query : queries) kept.push_back(std::min<std::int64_t>(query, 1));
  Case other = item;
  set_input(other, "query_start_loc", vector_of(DType::kInt32, prefix_sums(kept)));
  const std::int64_t count =
      std::accumulate(kept.begin() + static_cast<std::ptrdiff_t>(first),
                      kept.begin() + static_cast<std::ptrdiff_t>(last), std::int64_t{0});
  const auto ends = numbers_of(output(evaluate(with_queries(other, 0, count)), "cu_seqlen_ke"));
  const auto all = numbers_of(output(out, "cu_seqlen_ke"));
  std::int64_t end = 0;
  std::size_t at = 0;
  for (std::size_t request = first; request < last; ++request) {
    end += queries[request];
    if (queries[request] == 0) continue;
    const std::int64_t place = end - 1 - item.integer("query_start");
    if (place >= 0 && place < std::ssize(all) && all[static_cast<std::size_t>(place)] != ends[at])
      return fmt::format("the last query of request {} ends at {}, with a cached prefix at {}",
                         request, all[static_cast<std::size_t>(place)], ends[at]);
    ++at;
  }
  return std::nullopt;
}

/// Whether queries lie before their sequences: only the original serves them.
bool has_queries_before(const Case& item) {
  const auto queries = differences(item.input("query_start_loc"));
  const auto lengths = numbers_of(item.input("seq_lens"));
  return !std::equal(queries.begin(), queries.end(), lengths.begin(), std::less_equal<>());
}

/// Prefix sums never fall, and every query scores keys of its own request only.
std::optional<std::string> bounds_are_valid(const Case& item, const Outputs& out, const Evaluate&) {
  const auto sums = numbers_of(output(out, "cu_seq_lens"));
  const auto names = numbers_of(output(out, "token_to_seq"));
  if (sums.front() != 0) return fmt::format("cu_seq_lens begins with {}", sums.front());
  for (std::size_t request = 0; request + 1 < sums.size(); ++request) {
    if (sums[request + 1] < sums[request])
      return fmt::format("cu_seq_lens falls behind request {}", request);
    for (std::int64_t key = sums[request]; key < sums[request + 1]; ++key)
      if (names.at(static_cast<std::size_t>(key)) != static_cast<std::int64_t>(request))
        return fmt::format("key row {} of request {} is said to be of {}", key, request,
                           names[static_cast<std::size_t>(key)]);
  }
  const auto starts = numbers_of(item.input("query_start_loc"));
  const auto first = numbers_of(output(out, "cu_seqlen_ks"));
  const auto last = numbers_of(output(out, "cu_seqlen_ke"));
  std::size_t request = 0;
  const auto base = static_cast<std::size_t>(item.integer("request_start"));
  for (std::size_t i = 0; i < first.size(); ++i) {
    const std::int64_t query =
        starts[base] + item.integer("query_start") + static_cast<std::int64_t>(i);
    while (starts[base + request + 1] <= query) ++request;
    const bool ends_before = last[i] < first[i] && !has_queries_before(item);
    if (first[i] != sums[request] || ends_before || last[i] > sums[request + 1])
      return fmt::format("query {} scores keys {} to {}, its request has {} to {}", i, first[i],
                         last[i], sums[request], sums[request + 1]);
  }
  return std::nullopt;
}

}  // namespace

Stage prefill_chunk_metadata_stage() {
  Stage stage;
  stage.name = "prefill_chunk_metadata";
  stage.summary = "which gathered keys each query of a prefill chunk scores";
  stage.source = "deepseek-indexer-metadata: build_prefill_chunk_metadata";
  stage.contracts = {"mono", "mono,decode_lengths=as-seed"};
  stage.dimensions = joined(
      {
          {"requests", 1, 1, 6, {1, 2, 63, 64, 65, 130}, {}, "requests of the chunk"},
          {"requests_before", 0, 0, 3, {}, {}, "requests of the batch before the chunk"},
          {"requests_behind", 0, 0, 2, {}, {}, "requests of the batch behind the chunk"},
          query_mix_dimension(),
          {"q_len", 1, 1, 12, {1, 2, 4, 65, 130}, {}, "longest query"},
          Dimension::choice("prefixes", {"ordinary", "none", "multiple"},
                            "tokens before the queries"),
          Dimension::choice("cut", {"whole", "front", "back", "middle"},
                            "queries that the chunk has of its requests"),
          {"upper_bound", 0, 0, 1, {}, {}, "the host knows an upper bound of the lengths only"},
      },
      joined(cache_sharing_dimensions(),
             {defect_dimension(16, {"query_start_loc_falls", "shorter_than_query", "no_requests",
                                    "requests_beyond", "queries_beyond", "bound_too_low"})}));
  stage.inputs = {
      {"query_start_loc", {DType::kInt32}, {"starts"}},
      {"seq_lens", {DType::kInt32}, {"requests"}},
      {"seq_lens_cpu_upper_bound", {DType::kInt32}, {"requests"}, InputStorage::kDense, true}};
  stage.scalars = cache_sharing_specs();
  for (const char* name : {"request_start", "request_stop", "query_start", "query_stop"})
    stage.scalars.push_back(ScalarSpec::integer(name, 0, limits::kExtent));
  stage.build = build;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.properties = {
      {"split_queries", "any cut of the chunk in its queries gives the union (T14)",
       queries_can_be_cut},
      {"split_requests", "requests in chunks of their own give the union", requests_can_be_apart},
      {"split_steps", "a prefix that is in the cache already gives the same keys (T14)",
       prefixes_can_be_cached},
      {"index_validity", "prefix sums are monotone, and queries score keys of their request",
       bounds_are_valid},
      laws::adds_up({"cu_seqlen_ke", "cu_seq_lens"}, "the ranks' keys add up to all keys",
                    [](const Case& item, const Outputs&) { return !has_queries_before(item); }),
      laws::no_ratio(),
  };
  return stage;
}

}  // namespace monoref
