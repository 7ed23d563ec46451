// The generator of stage indexer_metadata_build: steps of decodes and prefills.
#include <algorithm>
#include <limits>

#include "fuzz/stages/content.hpp"
#include "fuzz/stages/indexer_content.hpp"
#include "fuzz/stages/indexer_metadata_case.hpp"
#include "reference/stages/compressed_slot_mapping.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();

/// Query and sequence lengths of a step, decodes first.
struct DrawnRequests {
  std::vector<std::int64_t> queries;
  std::vector<std::int64_t> lengths;
  std::int64_t decodes = 0;
};

bool flattens(const Params& params) {
  return params.word("device") == "flattening" && params["num_speculative_tokens"] > 1;
}

/// Without a query token the original's native lengths are none, of which it cannot take the
/// largest. A uniform batch whose first query is empty has such decodes.
bool needs_a_query(const Params& params, const Contract& contract) {
  return contract.decode_lengths == LengthRule::kAsSeed && params["compress_ratio"] <= 1 &&
         params["num_speculative_tokens"] > 0 && params.word("scorer") == "deep_gemm" &&
         !flattens(params);
}

DrawnRequests drawn_requests(const Params& params, const Contract& contract, std::uint64_t seed) {
  CounterRandom query_random(seed, "query_start_loc");
  CounterRandom length_random(seed, "seq_lens");
  const std::int64_t next_n = params["num_speculative_tokens"] + 1;
  const std::int64_t limit = params["max_model_len"];
  const std::int64_t unit = sharing_unit(params);
  DrawnRequests drawn;
  drawn.decodes = params["decodes"];
  const std::int64_t longest =
      params["decodes_shorter"] != 0 ? std::max<std::int64_t>(next_n - 1, 1) : next_n;
  drawn.queries = make_query_lens(static_cast<QueryMix>(params["query_mix"]), drawn.decodes,
                                  longest, query_random);
  // Without a budget every query is a chunk, and two launches.
  const std::int64_t most = params["max_logits_mb"] == 0
                                ? std::min<std::int64_t>(params["prefill_queries"], 4)
                                : params["prefill_queries"];
  for (std::int64_t request = 0; request < params["prefills"]; ++request)
    drawn.queries.push_back(next_n + query_random.between(1, most));
  if (needs_a_query(params, contract) && !drawn.queries.empty())
    drawn.queries.front() = std::max<std::int64_t>(drawn.queries.front(), 1);
  // Behind the first odd query of a uniform split everything is a prefill, and a prefill has at
  // least its query.
  const bool ragged = params.word("query_mix") != "uniform" || params["prefills"] > 0;
  for (const std::int64_t query : drawn.queries) {
    const std::int64_t length =
        make_seq_len(static_cast<Sequence>(params["sequences"]),
                     {.query = query, .unit = unit, .limit = limit}, length_random);
    const bool may_be_prefill = ragged || std::ssize(drawn.lengths) >= drawn.decodes;
    drawn.lengths.push_back(may_be_prefill ? std::clamp(length, query, std::max(limit, query))
                                           : length);
  }
  return drawn;
}

/// Every other uniform batch that the original flattens has a table wider than its buffer, of which
/// it loses the last columns.
std::int64_t table_width(const Params& params, const Contract& contract,
                         const DrawnRequests& drawn) {
  const std::int64_t width = params["width"];
  const auto decodes = drawn.queries.begin() + drawn.decodes;
  const bool uniform = drawn.decodes > 0 && drawn.queries.front() > 1 &&
                       std::all_of(drawn.queries.begin(), decodes, [&](std::int64_t query) {
                         return query == drawn.queries.front();
                       });
  if (contract.decode_lengths != LengthRule::kAsSeed || !flattens(params) || !uniform ||
      width % 2 != 0)
    return width;
  const std::int64_t blocks = params["block_size"] * params["world"];
  return width + (params["max_model_len"] + blocks - 1) / blocks + 8;
}

/// A block of local caches is a whole number of runs.
std::int64_t storage_block_size(const Params& params) {
  const std::int64_t size = params["storage_block_size"];
  if (params["world"] == 1) return size;
  return (size + params["interleave"] - 1) / params["interleave"] * params["interleave"];
}

std::string_view applicable_defect(const Params& params, const DrawnRequests& drawn) {
  const std::string_view defect = params.word("defect");
  const bool needs_a_request =
      defect == "table_row_missing" || defect == "negative_length" || defect == "low_max_seq_len";
  if (needs_a_request && drawn.queries.empty()) return "none";
  if (defect == "low_max_seq_len" &&
      *std::max_element(drawn.lengths.begin(), drawn.lengths.end()) == 0)
    return "none";
  return defect;
}

/// Where the step's prefills begin, as its planner will see it.
std::int64_t first_prefill(const Params& params, const DrawnRequests& drawn) {
  const Tensor starts = vector_of(DType::kInt32, prefix_sums(drawn.queries));
  const auto view = starts.view<std::int32_t, 1>();
  return decode_prefill_split({.query_start_loc = view,
                               .num_tokens = view(std::ssize(drawn.queries)),
                               .decode_threshold = params["num_speculative_tokens"] + 1,
                               .require_uniform = !flattens(params)})
      .num_decodes;
}

/// The bounds of the lengths that the original cannot do without: prefills have one, and at least
/// one key on every rank if they have no query.
std::vector<std::int64_t> original_bounds(const Params& params, const DrawnRequests& drawn,
                                          const Case& item, std::vector<std::int64_t> bounds) {
  const std::int64_t unit = sharing_unit(params) * params["world"];
  for (std::int64_t request = first_prefill(params, drawn); request < std::ssize(bounds);
       ++request) {
    const auto at = static_cast<std::size_t>(request);
    const bool local = item.integer("use_dcp_local") != 0;
    const std::int64_t keys =
        compressed_length(bounds[at], params["compress_ratio"],
                          local ? context_parallel_of(item) : ContextParallel{});
    if (drawn.queries[at] == 0 && keys == 0) bounds[at] = std::max(bounds[at], unit);
  }
  return bounds;
}

void append_upper_bound(const Params& params, const DrawnRequests& drawn, Case& item,
                        std::uint64_t seed) {
  const bool original = item.contract.decode_lengths == LengthRule::kAsSeed;
  const bool demanded = original && first_prefill(params, drawn) < std::ssize(drawn.queries);
  if (params["upper_bound"] == 0 && !demanded) return;
  CounterRandom random(seed, "seq_lens_cpu_upper_bound");
  std::vector<std::int64_t> bounds;
  for (const std::int64_t length : drawn.lengths)
    bounds.push_back(
        params["upper_bound"] == 0 ? length : std::min(length + random.between(0, 9), kInt32Max));
  if (original) bounds = original_bounds(params, drawn, item, bounds);
  item.inputs.push_back({"seq_lens_cpu_upper_bound", vector_of(DType::kInt32, bounds)});
}

void append_host_lengths(const Params& params, const DrawnRequests& drawn, Case& item,
                         std::uint64_t seed) {
  const std::string_view shadow = params.word("host_shadow");
  if (shadow != "none") item.inputs.push_back({"seq_lens_cpu", item.input("seq_lens")});
  if (shadow == "local" && item.integer("use_dcp_local") != 0) {
    std::vector<std::int64_t> local;
    for (const std::int64_t length : drawn.lengths)
      local.push_back(local_length(length, context_parallel_of(item)));
    item.inputs.push_back({"dcp_local_seq_lens_cpu", vector_of(DType::kInt32, local)});
  }
  append_upper_bound(params, drawn, item, seed);
}

/// The original divides by a ratio of 0 for local caches and for prefills.
void avoid_division_by_zero(const Params& params, const DrawnRequests& drawn, Case& item) {
  if (item.contract.decode_lengths != LengthRule::kAsSeed || params["compress_ratio"] != 0) return;
  const bool local = params["use_dcp_local"] != 0 && params["world"] > 1;
  if (local || first_prefill(params, drawn) < std::ssize(drawn.queries))
    set_scalar(item, "compress_ratio", std::int64_t{1});
}

}  // namespace

std::vector<Dimension> indexer_metadata_dimensions() {
  return joined(
      {
          {"decodes", 1, 0, 5, {0, 1, 2, 33}, {}, "decodes"},
          {"prefills", 0, 0, 3, {0, 0, 0, 66}, {}, "prefills behind them"},
          query_mix_dimension(),
          {"decodes_shorter", 0, 0, 1, {}, {}, "decodes one token shorter than they may be"},
          {"prefill_queries", 1, 1, 30, {1, 130}, {}, "query tokens a prefill has more"},
          {"padding_tokens", 0, 0, 3, {}, {}, "tokens behind the last request"},
          {"num_speculative_tokens",
           0,
           0,
           4,
           {0, 1, 2, 3},
           {},
           "query tokens a decode may have more"},
          Dimension::choice("device", {"native", "flattening"},
                            "whether the scorer takes longer queries"),
          Dimension::choice("scorer", {"deep_gemm", "b12x"}, "which indexer plans"),
          {"supertile", 0, 0, 7, {}, {}, "number of the supertile setting"},
          Dimension::choice("host_shadow", {"none", "global", "local"},
                            "which exact lengths the host knows"),
          {"upper_bound", 0, 0, 1, {}, {}, "the host knows an upper bound of the lengths only"},
          {"use_dcp_local", 0, 0, 1, {}, {}, "caches are local to the ranks"},
          sequence_dimension(),
          {"max_model_len", 600, 60, 700, {64, 257, 512}, {}, "tokens"},
          {"max_seq_len_slack", 0, 0, 5, {}, {}, "tokens that the batch's bound is too high"},
          {"max_logits_mb", 512, 1, 2, {0, 512, 512}, {}, "budget of the logits"},
          {"block_size", 64, 16, 64, {16, 64, 256}, {}, "tokens a block, for the table's width"},
          {"storage_block_size",
           64,
           1,
           64,
           {1, 2, 16, 64},
           {},
           "keys a block (whole runs where ranks share it)"},
          {"width", 1, 0, 20, {1, 4, 40}, {}, "columns of the block table"},
          {"table_row_gap", 0, 0, 4, {}, {}, "elements between rows of the block table"},
          {"carried_rows", 0, 0, 9, {0, 70}, {}, "rows of the carried buffers that no step needs"},
      },
      joined(cache_sharing_dimensions(),
             {
                 table_ids_dimension(),
                 defect_dimension(14, {"table_row_missing", "negative_length", "low_max_seq_len",
                                       "too_many_tokens"}),
             }));
}

Case build_indexer_metadata_case(const Params& params, const Contract& contract,
                                 std::uint64_t seed) {
  CounterRandom ids(seed, "block_table");
  CounterRandom slot_random(seed, "slot_mapping");
  DrawnRequests drawn = drawn_requests(params, contract, seed);
  const std::string defect(applicable_defect(params, drawn));
  const std::int64_t requests = std::ssize(drawn.queries);
  const auto starts = prefix_sums(drawn.queries);
  const std::int64_t tokens = starts.back() + params["padding_tokens"];
  const std::int64_t next_n = params["num_speculative_tokens"] + 1;
  const std::int64_t width = table_width(params, contract, drawn);
  std::int64_t max_seq_len = 0;
  for (const std::int64_t length : drawn.lengths) max_seq_len = std::max(max_seq_len, length);
  max_seq_len = std::min(max_seq_len + params["max_seq_len_slack"], kInt32Max);
  if (defect == "low_max_seq_len") max_seq_len = 0;
  if (defect == "negative_length") drawn.lengths.back() = -1;
  // Every path's rows fit: the native one has a row for each request and column.
  const std::int64_t rows = std::max<std::int64_t>({tokens, drawn.decodes * next_n, 1});

  Case item;
  item.contract = contract;
  item.scalars = cache_sharing_scalars(params);
  avoid_division_by_zero(params, drawn, item);
  item.scalars.insert(
      item.scalars.end(),
      {{"max_model_len", params["max_model_len"]},
       {"max_num_batched_tokens", defect == "too_many_tokens"
                                      ? std::max<std::int64_t>(tokens - 1, 0)
                                      : rows + params["carried_rows"]},
       {"block_size", params["block_size"]},
       {"storage_block_size", storage_block_size(params)},
       {"num_speculative_tokens", params["num_speculative_tokens"]},
       {"device_family", params.word("device") == "flattening" ? std::int64_t{90} : 100},
       {"max_logits_mb", params["max_logits_mb"]},
       {"use_dcp_local", params["use_dcp_local"]},
       {"max_seq_len", max_seq_len},
       {"defect", defect}});
  if (params.word("scorer") == "b12x") {
    static constexpr std::int64_t kSettings[] = {kSupertileUnset, 0, 1, 511, 512, 513, 5000, 40000};
    item.scalars.push_back({"supertile_k_setting", kSettings[params["supertile"]]});
  }
  std::vector<std::int64_t> slots;
  for (std::int64_t token = 0; token < tokens; ++token)
    slots.push_back(slot_random.once_in(8) ? -1 : slot_random.between(0, 100000));
  const std::int64_t table_rows = defect == "table_row_missing" ? requests - 1 : requests;
  item.inputs = {
      {"query_start_loc", vector_of(DType::kInt32, starts)},
      {"seq_lens", vector_of(DType::kInt32, drawn.lengths)},
      {"block_table", padded_rows(DType::kInt32, table_rows, width, params["table_row_gap"],
                                  make_block_ids(static_cast<TableIds>(params["table_ids"]),
                                                 table_rows * width, kInt32Max, ids))},
      {"slot_mapping", vector_of(DType::kInt64, slots)}};
  append_host_lengths(params, drawn, item, seed);
  return item;
}

}  // namespace monoref
