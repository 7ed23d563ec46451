#include "reference/stages/indexer_metadata_build.hpp"

#include <algorithm>
#include <limits>
#include <string_view>

#include "reference/core/limits.hpp"
#include "reference/rules/integer_division.hpp"
#include "reference/rules/request_batch.hpp"
#include "reference/stages/compressed_slot_mapping.hpp"

namespace monoref {
namespace {

constexpr std::string_view kStage = "indexer_metadata_build";
constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxBufferElements = std::int64_t{1} << 28;
/// Columns that the original keeps spare: the runner's tables can be wider than its own formula.
constexpr std::int64_t kSpareColumns = 8;
constexpr std::int64_t kPrefillBufferFactor = 40;
constexpr std::int64_t kSupertileDefault = 32768;
constexpr std::int64_t kSupertileTile = 512;
constexpr std::int64_t kBytesPerMb = std::int64_t{1} << 20;

using Lengths = View<const std::int32_t, 1>;

/// Everything that decides a step, computed and validated before any buffer is written.
struct Plan {
  std::int64_t requests = 0;
  std::int64_t num_tokens = 0;
  ContextParallel context_parallel;
  DecodePrefillSplit split;
  bool map_slots = false;
  DecodeExpandInput decode;
  DecodeExpandShape decode_shape;
  std::vector<PrefillChunkMetadataInput> chunks;
  std::vector<PrefillChunkShape> chunk_shapes;
};

void check_range(std::string_view name, std::int64_t value, std::int64_t least) {
  if (value < least || value > kMaxInt32)
    refuse("{}: {} is {}, limits {} and {}", kStage, name, value, least, kMaxInt32);
}

template <class T>
View<T, 1> span_of(std::vector<T>& values, std::int64_t count) {
  return {values.data(), {count}, {1}};
}

Lengths first_lengths(Lengths lengths, std::int64_t count) {
  return {lengths.data(), {count}, {lengths.stride(0)}};
}

View<const std::int32_t, 2> table_rows(View<const std::int32_t, 2> table, std::int64_t first,
                                       std::int64_t count) {
  // A table without columns has no address to advance.
  const std::int32_t* data =
      table.dim(1) > 0 ? table.data() + first * table.stride(0) : table.data();
  return {data, {count, table.dim(1)}, {table.stride(0), table.stride(1)}};
}

std::int64_t ratio_of(const IndexerConfig& config) {
  return effective_compress_ratio(kStage, config.compress_ratio);
}

std::int64_t expanded_table_width(const IndexerConfig& config) {
  const std::int64_t ranks = config.context_parallel.world * config.prefill_context_parallel_size;
  return ceil_divide(config.max_model_len, config.block_size * ranks) + kSpareColumns;
}

void check_table_size(const IndexerConfig& config, std::int64_t width) {
  if (width > kMaxBufferElements / config.max_num_batched_tokens)
    refuse("{}: expanded block table is {} x {} entries, limit {}", kStage,
           config.max_num_batched_tokens, width, kMaxBufferElements);
}

void check_host_lengths(std::string_view name, Lengths lengths, std::int64_t requests) {
  if (lengths.data() != nullptr) check_seq_lens(kStage, name, lengths, requests);
}

void check_batch(const IndexerConfig& config, const IndexerBatch& batch) {
  const std::int64_t requests = batch.seq_lens.dim(0);
  check_seq_lens(kStage, "seq_lens", batch.seq_lens, requests);
  check_query_start_loc(kStage, batch.query_start_loc, requests);
  if (batch.block_table.dim(0) < requests)
    refuse("{}: block_table has {} rows, must have at least {}, one a request", kStage,
           batch.block_table.dim(0), requests);
  check_host_lengths("seq_lens_cpu_upper_bound", batch.seq_lens_cpu_upper_bound, requests);
  check_host_lengths("seq_lens_cpu", batch.seq_lens_cpu, requests);
  check_host_lengths("dcp_local_seq_lens_cpu", batch.dcp_local_seq_lens_cpu, requests);
  if (batch.slot_mapping.dim(0) > config.max_num_batched_tokens)
    refuse("{}: the step has {} tokens, limit {} (max_num_batched_tokens)", kStage,
           batch.slot_mapping.dim(0), config.max_num_batched_tokens);
  check_range("max_seq_len", batch.max_seq_len, 0);
  for (std::int64_t request = 0; request < requests; ++request) {
    if (batch.seq_lens(request) > batch.max_seq_len)
      refuse("{}: max_seq_len is {}, must be at least seq_lens[{}], {}", kStage, batch.max_seq_len,
             request, batch.seq_lens(request));
  }
}

/// Buffers of another configuration would be written past their end.
void check_buffers(const IndexerConfig& config, const IndexerBuffers& buffers) {
  check_extent(kStage, "buffers", static_cast<std::int64_t>(buffers.decode_lens.size()),
               config.max_num_batched_tokens);
}

/// The chunks of the prefills, empty ones among them.
std::vector<PrefillChunk> chunk_specs(const IndexerConfig& config, const IndexerBatch& batch,
                                      const Plan& plan) {
  const Lengths bound = batch.seq_lens_cpu_upper_bound.data() != nullptr
                            ? batch.seq_lens_cpu_upper_bound
                            : batch.seq_lens;
  std::vector<std::int64_t> keys;
  std::vector<std::int64_t> queries;
  for (std::int64_t request = plan.split.num_decodes; request < plan.requests; ++request) {
    keys.push_back(config.b12x ? b12x_supertile_k(*config.b12x)
                               : compressed_length(bound(request), config.compress_ratio,
                                                   plan.context_parallel));
    queries.push_back(query_len(batch.query_start_loc, request));
  }

  // B12X budgets by the supertile, whatever the lengths, and never puts two requests together.
  const std::int64_t prefills = plan.split.num_prefills;
  const std::int64_t group = config.b12x ? 1 : prefills;
  std::vector<PrefillChunk> specs;
  for (std::int64_t first = 0; first < prefills; first += group) {
    const PrefillChunkSplitInput input{
        .seq_lens = {keys.data() + first, {group}, {1}},
        .query_lens = {queries.data() + first, {group}, {1}},
        .workspace_size = max_prefill_buffer_size(config.max_model_len),
        .max_logits_bytes = config.max_logits_mb * kBytesPerMb,
        .request_offset = plan.split.num_decodes + first,
        .lengths = config.lengths,
    };
    const std::vector<PrefillChunk> chunks = prefill_chunk_split(input);
    specs.insert(specs.end(), chunks.begin(), chunks.end());
  }
  return specs;
}

void plan_prefill(const IndexerConfig& config, const IndexerBatch& batch, Plan& plan) {
  if (config.lengths == LengthRule::kAsSeed && batch.seq_lens_cpu_upper_bound.data() == nullptr)
    refuse("{}: seq_lens_cpu_upper_bound is missing, the original demands it for {} prefills",
           kStage, plan.split.num_prefills);
  std::int64_t keys = 0;
  for (const PrefillChunk& chunk : chunk_specs(config, batch, plan)) {
    const PrefillChunkMetadataInput input{
        .query_start_loc = batch.query_start_loc,
        .seq_lens = batch.seq_lens,
        .seq_lens_cpu_upper_bound = batch.seq_lens_cpu_upper_bound,
        .chunk = chunk,
        .compress_ratio = config.compress_ratio,
        .context_parallel = plan.context_parallel,
        .lengths = config.lengths,
    };
    const PrefillChunkShape shape = prefill_chunk_shape(input);
    if (shape.empty()) continue;
    plan.chunks.push_back(input);
    plan.chunk_shapes.push_back(shape);
    keys += shape.total_seq_lens;
  }
  if (keys > limits::kKeyRows)
    refuse("{}: the {} chunks of the prefills have {} key rows, limit {}", kStage,
           plan.chunks.size(), keys, limits::kKeyRows);
}

void plan_decode(const IndexerConfig& config, const IndexerBatch& batch, Plan& plan) {
  const std::int64_t decodes = plan.split.num_decodes;
  plan.decode = {
      .query_start_loc = first_lengths(batch.query_start_loc, decodes + 1),
      .seq_lens = first_lengths(batch.seq_lens, decodes),
      .block_table = table_rows(batch.block_table, 0, decodes),
      .num_decode_tokens = plan.split.num_decode_tokens,
      .next_n = config.next_n(),
      .use_flattening = config.use_flattening(),
      .compress_ratio = config.compress_ratio,
      .context_parallel = plan.context_parallel,
      .lengths = config.lengths,
      .max_model_len = config.max_model_len,
  };
  plan.decode_shape = decode_expand_shape(plan.decode);
  const DecodeExpandShape& shape = plan.decode_shape;
  const std::int64_t rows = std::max(shape.rows, shape.length_rows * shape.length_columns);
  if (rows > config.max_num_batched_tokens)
    refuse("{}: the decodes need {} rows, limit {} (max_num_batched_tokens)", kStage, rows,
           config.max_num_batched_tokens);
  if (shape.flattened()) check_table_size(config, batch.block_table.dim(1));
  const std::int64_t width = std::max(batch.block_table.dim(1), expanded_table_width(config));
  if (shape.flattened() && shape.rows > 0 && width > limits::kTableEntries / shape.rows)
    refuse("{}: the expanded block table of the step is {} x {} entries, limit {}", kStage,
           shape.rows, width, limits::kTableEntries);
  const bool largest_of_rows = !config.b12x && ratio_of(config) == 1;
  if (config.lengths == LengthRule::kAsSeed && largest_of_rows &&
      shape.length_rows * shape.length_columns == 0)
    refuse(
        "{}: the {} decodes have no query token, and the original's maximum of no length is an "
        "error",
        kStage, decodes);
}

CompressedSlotMappingInput slot_input(const IndexerConfig& config, const IndexerBatch& batch,
                                      const Plan& plan) {
  return {
      .query_start_loc = batch.query_start_loc,
      .seq_lens = batch.seq_lens,
      .block_table = batch.block_table,
      .pages = {.storage_block_size = config.storage_block_size,
                .compress_ratio = config.compress_ratio,
                .context_parallel = plan.context_parallel},
  };
}

/// What the original raises an error on before it looks at decodes and prefills. A ratio of 0 means
/// none to it too where it gets along without dividing.
void check_as_seed(const IndexerConfig& config, const Plan& plan, bool local) {
  if (config.lengths != LengthRule::kAsSeed) return;
  check_split(kStage, plan.split, plan.requests, plan.num_tokens);
  if (config.compress_ratio == 0 && (local || plan.split.num_prefills > 0))
    refuse("{}: compress_ratio is 0, limit 1: the original divides by it for {}", kStage,
           local ? "local caches" : "prefills");
}

Plan make_plan(const IndexerConfig& config, IndexerBuffers& buffers, const IndexerBatch& batch) {
  Plan plan;
  plan.requests = batch.seq_lens.dim(0);
  plan.num_tokens = batch.slot_mapping.dim(0);
  const bool local = batch.use_dcp_local && config.context_parallel.world > 1;
  plan.context_parallel = config.context_parallel;
  if (!local) {
    plan.context_parallel.world = 1;
    plan.context_parallel.rank = 0;
  }
  plan.split = decode_prefill_split({
      .query_start_loc = batch.query_start_loc,
      .num_tokens = plan.num_tokens,
      .decode_threshold = config.next_n(),
      .require_uniform = !config.use_flattening(),
      .lengths = config.lengths,
  });
  check_as_seed(config, plan, local);
  plan.map_slots = ratio_of(config) > 1 || local;
  if (plan.map_slots)
    check_compressed_slot_mapping(slot_input(config, batch, plan),
                                  {span_of(buffers.slot_mapping, plan.num_tokens)});
  if (plan.split.num_prefills > 0) plan_prefill(config, batch, plan);
  if (plan.split.num_decodes > 0) plan_decode(config, batch, plan);
  return plan;
}

/// The largest length the host knows of, or nothing where only the device knows.
std::optional<std::int64_t> host_max_seq_len(const IndexerBatch& batch, const Plan& plan) {
  const bool local = plan.context_parallel.world > 1;
  const Lengths lengths = local && batch.dcp_local_seq_lens_cpu.data() != nullptr
                              ? batch.dcp_local_seq_lens_cpu
                              : batch.seq_lens_cpu;
  if (lengths.data() == nullptr) return std::nullopt;
  std::int64_t largest = 0;
  for (std::int64_t request = 0; request < plan.split.num_decodes; ++request) {
    // Flattening leaves no row of a request without a query.
    if (plan.decode_shape.flattened() && query_len(batch.query_start_loc, request) == 0) continue;
    largest = std::max<std::int64_t>(largest, lengths(request));
  }
  return largest;
}

std::int64_t largest_row(View<const std::int32_t, 2> lengths) {
  if (lengths.dim(0) == 0 || lengths.dim(1) == 0) return 0;
  std::int64_t largest = lengths(0, 0);
  for (std::int64_t row = 0; row < lengths.dim(0); ++row) {
    for (std::int64_t column = 0; column < lengths.dim(1); ++column)
      largest = std::max<std::int64_t>(largest, lengths(row, column));
  }
  return largest;
}

/// The scorer's bounds: decode.max_seq_len, and active_width under B12X.
void set_bounds(const IndexerConfig& config, IndexerBuffers& buffers, const IndexerBatch& batch,
                const Plan& plan, IndexerDecode& decode) {
  const std::int64_t ratio = ratio_of(config);
  const std::int64_t batch_bound = ceil_divide(batch.max_seq_len, ratio);
  if (config.b12x) {
    buffers.active_width = static_cast<std::int32_t>(batch_bound);
    decode.active_width = batch_bound;
  }
  if (ratio > 1)
    decode.max_seq_len = batch_bound;
  else if (config.b12x)
    decode.max_seq_len = host_max_seq_len(batch, plan).value_or(batch_bound);
  else
    decode.max_seq_len = largest_row(decode.seq_lens);
}

/// Where the expanded table goes: grown when the batch's table is wider, no data without
/// flattening. The original does not grow it for uniform batches, and loses the last columns.
View<std::int32_t, 2> expanded_table(const IndexerConfig& config, IndexerBuffers& buffers,
                                     const Plan& plan) {
  if (!plan.decode_shape.flattened()) return {};
  const std::int64_t width = plan.decode.block_table.dim(1);
  const bool truncates = config.lengths == LengthRule::kAsSeed &&
                         plan.decode_shape.path == DecodePath::kFlattenUniform;
  if (!truncates) buffers.expanded_width = std::max(buffers.expanded_width, width);
  const std::int64_t entries = plan.decode_shape.rows * buffers.expanded_width;
  if (entries > std::ssize(buffers.expanded_table))
    buffers.expanded_table.resize(static_cast<std::size_t>(entries));
  return {buffers.expanded_table.data(),
          {plan.decode_shape.rows, buffers.expanded_width},
          {buffers.expanded_width, 1}};
}

IndexerDecode build_decode(const IndexerConfig& config, IndexerBuffers& buffers,
                           const IndexerBatch& batch, const Plan& plan) {
  const DecodeExpandShape& shape = plan.decode_shape;
  // Zeroed whole, as the original zeroes the tails: rows behind the step's belong to nobody.
  std::fill(buffers.decode_seq_lens.begin(), buffers.decode_seq_lens.end(), 0);
  std::fill(buffers.decode_lens.begin(), buffers.decode_lens.end(), 0);
  const DecodeExpandOutput output{
      .decode_seq_lens = {buffers.decode_seq_lens.data(),
                          {shape.length_rows, shape.length_columns},
                          {shape.length_columns, 1}},
      .decode_lens = span_of(buffers.decode_lens, shape.rows),
      .decode_block_table = expanded_table(config, buffers, plan),
  };
  decode_expand(plan.decode, output);

  IndexerDecode decode;
  decode.path = shape.path;
  decode.block_table = plan.decode.block_table;
  if (shape.flattened()) decode.block_table = output.decode_block_table;
  decode.seq_lens = output.decode_seq_lens;
  decode.decode_lens = output.decode_lens;
  decode.requires_padding = shape.requires_padding;
  set_bounds(config, buffers, batch, plan, decode);
  return decode;
}

IndexerPrefillChunk build_chunk(const IndexerBatch& batch, const PrefillChunkMetadataInput& input,
                                const PrefillChunkShape& shape) {
  const std::int64_t queries = shape.token_end - shape.token_start;
  IndexerPrefillChunk chunk;
  chunk.chunk = input.chunk;
  chunk.shape = shape;
  chunk.block_table = table_rows(batch.block_table, input.chunk.request_start, shape.num_reqs);
  chunk.cu_seqlen_ks.resize(static_cast<std::size_t>(queries));
  chunk.cu_seqlen_ke.resize(static_cast<std::size_t>(queries));
  chunk.cu_seq_lens.resize(static_cast<std::size_t>(shape.num_reqs + 1));
  chunk.token_to_seq.resize(static_cast<std::size_t>(shape.total_seq_lens));
  prefill_chunk_metadata(
      input, {span_of(chunk.cu_seqlen_ks, queries), span_of(chunk.cu_seqlen_ke, queries),
              span_of(chunk.cu_seq_lens, shape.num_reqs + 1),
              span_of(chunk.token_to_seq, shape.total_seq_lens)});
  return chunk;
}

}  // namespace

void check_indexer_config(const IndexerConfig& config) {
  check_range("max_model_len", config.max_model_len, 1);
  if (config.max_num_batched_tokens < 1 || config.max_num_batched_tokens > limits::kTokens)
    refuse("{}: max_num_batched_tokens is {}, limits 1 and {}", kStage,
           config.max_num_batched_tokens, limits::kTokens);
  check_range("block_size", config.block_size, 1);
  check_range("storage_block_size", config.storage_block_size, 1);
  check_range("num_speculative_tokens", config.num_speculative_tokens, 0);
  check_range("max_logits_mb", config.max_logits_mb, 0);
  check_range("prefill_context_parallel_size", config.prefill_context_parallel_size, 1);
  effective_compress_ratio(kStage, config.compress_ratio);
  check_context_parallel(kStage, config.context_parallel);
  if (config.context_parallel.world > 1 && config.prefill_context_parallel_size > 1)
    refuse("{}: prefill_context_parallel_size is {}, limit 1 with a decode world of {}", kStage,
           config.prefill_context_parallel_size, config.context_parallel.world);
  if (config.use_fp4_indexer_cache && config.device_family != 100)
    refuse("{}: device_family is {}, must be 100 for use_fp4_indexer_cache", kStage,
           config.device_family);
  if (config.b12x) b12x_supertile_k(*config.b12x);
  check_table_size(config, expanded_table_width(config));
}

std::int64_t max_prefill_buffer_size(std::int64_t max_model_len) {
  return kPrefillBufferFactor * max_model_len;
}

std::int64_t b12x_supertile_k(const B12xIndexer& b12x) {
  const std::int64_t setting = b12x.supertile_k_setting.value_or(kSupertileDefault);
  if (setting > kMaxInt32 - kSupertileTile)
    refuse("{}: supertile_k_setting is {}, limit {}", kStage, setting, kMaxInt32 - kSupertileTile);
  return ceil_divide(std::max(setting, kSupertileTile), kSupertileTile) * kSupertileTile;
}

IndexerBuffers::IndexerBuffers(const IndexerConfig& config) {
  check_indexer_config(config);
  const auto rows = static_cast<std::size_t>(config.max_num_batched_tokens);
  decode_lens.resize(rows);
  decode_seq_lens.resize(rows);
  slot_mapping.resize(rows);
  expanded_width = expanded_table_width(config);
}

IndexerMetadata indexer_metadata_build(const IndexerConfig& config, IndexerBuffers& buffers,
                                       const IndexerBatch& batch) {
  check_indexer_config(config);
  check_buffers(config, buffers);
  check_batch(config, batch);
  const Plan plan = make_plan(config, buffers, batch);

  IndexerMetadata metadata;
  metadata.seq_lens = batch.seq_lens;
  metadata.max_seq_len = batch.max_seq_len;
  metadata.slot_mapping = batch.slot_mapping;
  metadata.split = plan.split;
  metadata.context_parallel = plan.context_parallel;
  if (plan.map_slots) {
    const View<std::int64_t, 1> slots = span_of(buffers.slot_mapping, plan.num_tokens);
    compressed_slot_mapping(slot_input(config, batch, plan), {slots});
    metadata.slot_mapping = slots;
  }
  if (plan.split.num_prefills > 0) {
    metadata.prefill.emplace();
    for (std::size_t index = 0; index < plan.chunks.size(); ++index)
      metadata.prefill->push_back(build_chunk(batch, plan.chunks[index], plan.chunk_shapes[index]));
  }
  if (plan.split.num_decodes > 0) metadata.decode = build_decode(config, buffers, batch, plan);
  return metadata;
}

}  // namespace monoref
