// indexer_metadata_build: the whole builder, reference and kernels side by side. Planning (the
// split, the chunks, the bounds) is host code in the original and stays the reference's; the arrays
// that the original computes on the device come from the kernels.
#include "reference/stages/indexer_metadata_build.hpp"

#include <algorithm>
#include <limits>

#include "device/launch/compressed_slot_mapping.hpp"
#include "device/launch/decode_expand.hpp"
#include "fuzz/stages/indexer_content.hpp"
#include "fuzz/stages/indexer_kernels.hpp"
#include "fuzz/stages/indexer_metadata_case.hpp"
#include "fuzz/stages/indexer_metadata_recording.hpp"

namespace monoref {
namespace {

View<const std::int32_t, 1> optional_lengths(const Case& item, const char* name) {
  const Tensor* tensor = item.find_input(name);
  return tensor == nullptr ? View<const std::int32_t, 1>{} : tensor->view<std::int32_t, 1>();
}

/// A built step with the buffers that its views point into.
struct BuiltStep {
  explicit BuiltStep(const Case& item)
      : config(indexer_config_of(item)),
        buffers(config),
        metadata(indexer_metadata_build(config, buffers, indexer_batch_of(item))) {}

  const std::vector<IndexerPrefillChunk>& chunks() const {
    static const std::vector<IndexerPrefillChunk> none;
    return metadata.prefill ? *metadata.prefill : none;
  }
  /// Slots are the batch's own unless there is something to map.
  bool maps_slots(const Case& item) const {
    return config.compress_ratio > 1 ||
           (item.integer("use_dcp_local") != 0 && config.context_parallel.world > 1);
  }

  IndexerConfig config;
  IndexerBuffers buffers;
  IndexerMetadata metadata;
};

// --- Outputs ---

std::int64_t queries_of(const IndexerPrefillChunk& chunk) {
  return chunk.shape.token_end - chunk.shape.token_start;
}

/// Tensors of all chunks lie one behind the other, so that a step has the same outputs whatever its
/// chunks are.
void append_chunk_specs(const BuiltStep& step, std::int64_t width, std::vector<OutputSpec>& specs) {
  std::int64_t requests = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  for (const IndexerPrefillChunk& chunk : step.chunks()) {
    requests += chunk.shape.num_reqs;
    queries += queries_of(chunk);
    keys += chunk.shape.total_seq_lens;
  }
  const std::int64_t chunks = std::ssize(step.chunks());
  for (const std::string_view name : kChunkScalars)
    specs.push_back(host_numbers(chunk_output(name), chunks, "chunk"));
  specs.push_back({chunk_output("block_table"),
                   DType::kInt32,
                   Layout::dense({requests, width}),
                   {"row", "column"},
                   "",
                   true});
  specs.push_back(
      {chunk_output("cu_seqlen_ks"), DType::kInt32, Layout::dense({queries}), {"query"}, ""});
  specs.push_back(
      {chunk_output("cu_seqlen_ke"), DType::kInt32, Layout::dense({queries}), {"query"}, ""});
  specs.push_back({chunk_output("cu_seq_lens"),
                   DType::kInt32,
                   Layout::dense({requests + chunks}),
                   {"request"},
                   ""});
  specs.push_back(
      {chunk_output("token_to_seq"), DType::kInt32, Layout::dense({keys}), {"key"}, ""});
}

std::vector<OutputSpec> outputs(const Case& item) {
  const BuiltStep step(item);
  std::vector<OutputSpec> specs;
  for (const std::string_view name : kStepScalars)
    specs.push_back(host_numbers(std::string(name), 1, "value"));
  specs.push_back({"slot_mapping",
                   DType::kInt64,
                   Layout::dense({item.input("slot_mapping").dim(0)}),
                   {"token"},
                   "",
                   !step.maps_slots(item)});
  const auto& decode = step.metadata.decode;
  const DecodePath path = decode ? decode->path : DecodePath::kPlain;
  const bool uniform = path == DecodePath::kFlattenUniform;
  specs.push_back(host_numbers("decode_seq_lens_shape", 2, "axis"));
  // The whole of the carried buffer: what lies behind the step's lengths must be 0.
  specs.push_back({"decode_seq_lens",
                   DType::kInt32,
                   Layout::dense({decode ? step.config.max_num_batched_tokens : 0}),
                   {"row"},
                   "",
                   path == DecodePath::kFlattenRagged});
  specs.push_back({"decode_lens",
                   DType::kInt32,
                   Layout::dense({decode ? decode->decode_lens.dim(0) : 0}),
                   {"row"},
                   "",
                   !uniform});
  specs.push_back({"decode_block_table",
                   DType::kInt32,
                   Layout::dense({decode ? decode->block_table.dim(0) : 0,
                                  decode ? decode->block_table.dim(1) : 0}),
                   {"row", "column"},
                   "",
                   !uniform});
  append_chunk_specs(step, item.input("block_table").dim(1), specs);
  return specs;
}

// --- Reference ---

template <class T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

void append_rows(std::vector<std::int32_t>& all, View<const std::int32_t, 2> table) {
  for (std::int64_t row = 0; row < table.dim(0); ++row)
    for (std::int64_t column = 0; column < table.dim(1); ++column)
      all.push_back(table(row, column));
}

void put_step_scalars(const BuiltStep& step, Outputs& out) {
  const DecodePrefillSplit& split = step.metadata.split;
  put_numbers(out, "num_decodes", {split.num_decodes});
  put_numbers(out, "num_prefills", {split.num_prefills});
  put_numbers(out, "num_decode_tokens", {split.num_decode_tokens});
  put_numbers(out, "num_prefill_tokens", {split.num_prefill_tokens});
  put_numbers(out, "use_flattening", {step.config.use_flattening() ? 1 : 0});
  put_numbers(out, "max_prefill_buffer_size", {max_prefill_buffer_size(step.config.max_model_len)});
  const auto& decode = step.metadata.decode;
  put_numbers(out, "decode_max_seq_len", {decode ? decode->max_seq_len : 0});
  put_numbers(out, "decode_requires_padding", {decode && decode->requires_padding ? 1 : 0});
  put_numbers(out, "decode_active_width", {decode ? decode->active_width.value_or(0) : 0});
}

void put_decode(const BuiltStep& step, Outputs& out) {
  if (!step.metadata.decode) {
    put_numbers(out, "decode_seq_lens_shape", {0, 0});
    return;
  }
  const IndexerDecode& decode = *step.metadata.decode;
  put_numbers(out, "decode_seq_lens_shape", {decode.seq_lens.dim(0), decode.seq_lens.dim(1)});
  put_vector(out, "decode_seq_lens", step.buffers.decode_seq_lens);
  std::vector<std::int32_t> lens;
  for (std::int64_t row = 0; row < decode.decode_lens.dim(0); ++row)
    lens.push_back(decode.decode_lens(row));
  put_vector(out, "decode_lens", lens);
  std::vector<std::int32_t> table;
  append_rows(table, decode.block_table);
  put_vector(out, "decode_block_table", table);
}

void put_chunk_scalars(const BuiltStep& step, Outputs& out) {
  std::vector<std::int64_t> num_reqs, total, start, end, skip;
  for (const IndexerPrefillChunk& chunk : step.chunks()) {
    num_reqs.push_back(chunk.shape.num_reqs);
    total.push_back(chunk.shape.total_seq_lens);
    start.push_back(chunk.shape.token_start);
    end.push_back(chunk.shape.token_end);
    skip.push_back(chunk.shape.skip_kv_gather ? 1 : 0);
  }
  put_numbers(out, chunk_output("num_reqs"), num_reqs);
  put_numbers(out, chunk_output("total_seq_lens"), total);
  put_numbers(out, chunk_output("token_start"), start);
  put_numbers(out, chunk_output("token_end"), end);
  put_numbers(out, chunk_output("skip_kv_gather"), skip);
}

void put_chunks(const BuiltStep& step, Outputs& out) {
  std::vector<std::int32_t> table, ks, ke, sums, names;
  for (const IndexerPrefillChunk& chunk : step.chunks()) {
    append_rows(table, chunk.block_table);
    append(ks, chunk.cu_seqlen_ks);
    append(ke, chunk.cu_seqlen_ke);
    append(sums, chunk.cu_seq_lens);
    append(names, chunk.token_to_seq);
  }
  put_vector(out, chunk_output("block_table"), table);
  put_vector(out, chunk_output("cu_seqlen_ks"), ks);
  put_vector(out, chunk_output("cu_seqlen_ke"), ke);
  put_vector(out, chunk_output("cu_seq_lens"), sums);
  put_vector(out, chunk_output("token_to_seq"), names);
  put_chunk_scalars(step, out);
}

void reference(const Case& item, Outputs& out) {
  const BuiltStep step(item);
  put_step_scalars(step, out);
  std::vector<std::int64_t> slots;
  for (std::int64_t token = 0; token < step.metadata.slot_mapping.dim(0); ++token)
    slots.push_back(step.metadata.slot_mapping(token));
  put_numbers(out, "slot_mapping", slots);
  put_decode(step, out);
  put_chunks(step, out);
}

// --- Kernels ---

device::launch::CacheSharing sharing_of(const BuiltStep& step) {
  return cache_sharing(step.config.compress_ratio, step.metadata.context_parallel);
}

void launch_slots(const Case& item, const BuiltStep& step, const Launcher& launcher) {
  if (!step.maps_slots(item)) return;
  const Tensor& table = item.input("block_table");
  launcher.enqueue(device::launch::CompressedSlotMapping{
      .query_start_loc = launcher.address<const std::int32_t>("query_start_loc"),
      .seq_lens = launcher.address<const std::int32_t>("seq_lens"),
      .block_table = launcher.address<const std::int32_t>("block_table"),
      .table_row_stride = table.layout().strides[0],
      .slot_mapping = launcher.address<std::int64_t>("out.slot_mapping"),
      .requests = item.input("seq_lens").dim(0),
      .slot_count = item.input("slot_mapping").dim(0),
      .width = table.dim(1),
      .storage_block_size = step.config.storage_block_size,
      .sharing = sharing_of(step)});
}

void launch_decodes(const Case& item, const BuiltStep& step, const Launcher& launcher) {
  if (!step.metadata.decode || step.metadata.decode->path == DecodePath::kFlattenRagged) return;
  const IndexerDecode& decode = *step.metadata.decode;
  const std::int64_t decodes = step.metadata.split.num_decodes;
  const bool uniform = decode.path == DecodePath::kFlattenUniform;
  const std::int64_t query = uniform ? decode.seq_lens.dim(0) / decodes : decode.seq_lens.dim(1);
  const bool clamped = step.config.lengths == LengthRule::kClamped;
  device::launch::DecodeExpand arguments{
      .seq_lens = launcher.address<const std::int32_t>("seq_lens"),
      .seq_lens_stride = 1,
      .decode_seq_lens = launcher.address<std::int32_t>("out.decode_seq_lens"),
      // A batch without queries has no native rows, but a tail to zero.
      .requests = query > 0 ? decodes : 0,
      .live_rows = std::min(decode.seq_lens.dim(0) * decode.seq_lens.dim(1),
                            query > 0 ? decodes * query : 0),
      .length_rows = step.config.max_num_batched_tokens,
      .max_decode_len = std::max<std::int64_t>(query, 1),
      .sharing = sharing_of(step),
      .length_limit = clamped ? step.config.max_model_len : -1};
  if (uniform) {
    const Tensor& table = item.input("block_table");
    arguments.block_table = launcher.address<const std::int32_t>("block_table");
    arguments.table_row_stride = table.layout().strides[0];
    arguments.width = table.dim(1);
    arguments.expanded_table = launcher.address<std::int32_t>("out.decode_block_table");
    arguments.expanded_width = arguments.expanded_row_stride = decode.block_table.dim(1);
    arguments.decode_lens = launcher.address<std::int32_t>("out.decode_lens");
  }
  launcher.enqueue(arguments);
}

/// The last chunk first: what a chunk writes behind its own part is not made good by the next one.
void launch_chunks(const BuiltStep& step, const Launcher& launcher) {
  const auto& chunks = step.chunks();
  std::vector<std::pair<std::int32_t*, device::launch::PrefillChunkMetadata>> launches;
  auto* cu_seq_lens = launcher.address<std::int32_t>("out." + chunk_output("cu_seq_lens"));
  device::launch::PrefillChunkMetadata next{
      .query_start_loc = nullptr,
      .seq_lens = nullptr,
      .cu_seq_lens = nullptr,
      .token_to_seq = launcher.address<std::int32_t>("out." + chunk_output("token_to_seq")),
      .cu_seqlen_ks = launcher.address<std::int32_t>("out." + chunk_output("cu_seqlen_ks")),
      .cu_seqlen_ke = launcher.address<std::int32_t>("out." + chunk_output("cu_seqlen_ke")),
      .requests = 0,
      .entries = 0,
      .slice_start = 0,
      .slice_stop = 0,
      .sharing = sharing_of(step)};
  for (const IndexerPrefillChunk& chunk : chunks) {
    next.query_start_loc =
        launcher.address<const std::int32_t>("query_start_loc") + chunk.chunk.request_start;
    next.seq_lens = launcher.address<const std::int32_t>("seq_lens") + chunk.chunk.request_start;
    next.requests = chunk.shape.num_reqs;
    next.entries = chunk.shape.total_seq_lens;
    next.slice_start = chunk.chunk.query_start;
    next.slice_stop = chunk.chunk.query_stop;
    launches.emplace_back(cu_seq_lens, next);
    cu_seq_lens += chunk.shape.num_reqs + 1;
    next.token_to_seq += chunk.shape.total_seq_lens;
    next.cu_seqlen_ks += queries_of(chunk);
    next.cu_seqlen_ke += queries_of(chunk);
  }
  for (auto at = launches.rbegin(); at != launches.rend(); ++at)
    enqueue_prefill_chunk(launcher, at->first, at->second);
}

void launch(const Case& item, const Launcher& launcher) {
  const BuiltStep step(item);
  launch_slots(item, step, launcher);
  launch_decodes(item, step, launcher);
  launch_chunks(step, launcher);
}

}  // namespace

IndexerConfig indexer_config_of(const Case& item) {
  IndexerConfig config;
  config.max_model_len = item.integer("max_model_len");
  config.max_num_batched_tokens = item.integer("max_num_batched_tokens");
  config.block_size = item.integer("block_size");
  config.storage_block_size = item.integer("storage_block_size");
  config.num_speculative_tokens = item.integer("num_speculative_tokens");
  config.device_family = item.integer("device_family");
  config.compress_ratio = item.integer("compress_ratio");
  config.max_logits_mb = item.integer("max_logits_mb");
  config.context_parallel = context_parallel_of(item);
  config.lengths = item.contract.decode_lengths;
  constexpr std::int64_t kNotB12x = std::numeric_limits<std::int64_t>::min();
  const std::int64_t setting = item.integer_or("supertile_k_setting", kNotB12x);
  if (setting == kNotB12x) return config;
  config.b12x.emplace();
  if (setting != kSupertileUnset) config.b12x->supertile_k_setting = setting;
  return config;
}

IndexerBatch indexer_batch_of(const Case& item) {
  IndexerBatch batch;
  batch.query_start_loc = item.input("query_start_loc").view<std::int32_t, 1>();
  batch.seq_lens = item.input("seq_lens").view<std::int32_t, 1>();
  batch.block_table = item.input("block_table").view<std::int32_t, 2>();
  batch.slot_mapping = item.input("slot_mapping").view<std::int64_t, 1>();
  batch.max_seq_len = item.integer("max_seq_len");
  batch.use_dcp_local = item.integer("use_dcp_local") != 0;
  batch.seq_lens_cpu_upper_bound = optional_lengths(item, "seq_lens_cpu_upper_bound");
  batch.seq_lens_cpu = optional_lengths(item, "seq_lens_cpu");
  batch.dcp_local_seq_lens_cpu = optional_lengths(item, "dcp_local_seq_lens_cpu");
  return batch;
}

Stage indexer_metadata_build_stage() {
  Stage stage;
  stage.name = "indexer_metadata_build";
  stage.summary = "all metadata of one step of the DeepSeek-V3.2/V4 indexer";
  stage.source =
      "deepseek-indexer-metadata: DeepseekV32IndexerMetadataBuilder.build; recordings: "
      "indexer_metadata";
  stage.contracts = {"mono", "mono,decode_lengths=as-seed"};
  stage.dimensions = indexer_metadata_dimensions();
  stage.inputs = {
      {"query_start_loc", {DType::kInt32}, {"starts"}},
      {"seq_lens", {DType::kInt32}, {"requests"}},
      {"block_table", {DType::kInt32}, {"rows of the table", "width"}, InputStorage::kRows},
      {"slot_mapping", {DType::kInt64}, {"tokens"}}};
  for (const char* name : {"seq_lens_cpu_upper_bound", "seq_lens_cpu", "dcp_local_seq_lens_cpu"})
    stage.inputs.push_back({name, {DType::kInt32}, {"requests"}, InputStorage::kDense, true});
  stage.scalars = joined(
      cache_sharing_specs(),
      {ScalarSpec::integer("max_model_len", 1, limits::kExtent),
       ScalarSpec::integer("max_num_batched_tokens", 1, limits::kTokens),
       ScalarSpec::integer("block_size", 1, limits::kStorageBlock),
       ScalarSpec::integer("storage_block_size", 1, limits::kStorageBlock),
       ScalarSpec::integer("num_speculative_tokens", 0, limits::kQueryLength - 1),
       ScalarSpec::integer("device_family", 0, limits::kExtent),
       ScalarSpec::integer("max_logits_mb", 0, limits::kExtent), ScalarSpec::flag("use_dcp_local"),
       ScalarSpec::integer("max_seq_len", 0, limits::kExtent),
       ScalarSpec::integer("supertile_k_setting", kSupertileUnset, limits::kExtent).or_none()});
  stage.build = build_indexer_metadata_case;
  stage.outputs = outputs;
  stage.reference = reference;
  stage.launch = launch;
  stage.recordings = {"indexer_metadata", "indexer_metadata_b12x"};
  stage.adopt = adopt_indexer_metadata;
  stage.properties = indexer_metadata_properties();
  return stage;
}

}  // namespace monoref
