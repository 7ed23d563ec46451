#include "tests/indexer/recorded_stages.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "reference/context_parallel_lengths.hpp"

namespace monoref {
namespace {

template <class T>
Tensor tensor_of(DType type, View<const T, 1> view) {
  std::vector<T> values;
  for (std::int64_t at = 0; at < view.dim(0); ++at) values.push_back(view(at));
  return Tensor::of(type, {view.dim(0)}, values);
}

/// The first `columns` columns.
Tensor columns_of(View<const std::int32_t, 2> view, std::int64_t columns) {
  std::vector<std::int32_t> values;
  for (std::int64_t row = 0; row < view.dim(0); ++row)
    for (std::int64_t column = 0; column < columns; ++column) values.push_back(view(row, column));
  return Tensor::of(DType::kInt32, {view.dim(0), columns}, values);
}

Tensor tensor_of(const std::vector<std::int32_t>& values) {
  return Tensor::of(DType::kInt32, {static_cast<std::int64_t>(values.size())}, values);
}

Tensor shape_tensor(const std::array<std::int64_t, 2>& shape) {
  return Tensor::of(DType::kInt64, {2}, std::vector<std::int64_t>(shape.begin(), shape.end()));
}

IndexerConfig indexer_config(const RecordedCase& recorded) {
  IndexerConfig config;
  config.max_model_len = recorded.integer("max_model_len");
  config.max_num_batched_tokens = recorded.integer("max_num_batched_tokens");
  config.block_size = recorded.integer("block_size");
  config.storage_block_size = recorded.integer("storage_block_size");
  config.num_speculative_tokens = recorded.integer("num_speculative_tokens");
  config.device_family = recorded.integer("device_family");
  config.compress_ratio = recorded.integer("compress_ratio");
  config.max_logits_mb = recorded.integer("max_logits_mb");
  config.context_parallel = {recorded.integer("dcp_world_size"), recorded.integer("dcp_rank"),
                             recorded.integer("cp_interleave")};
  if (recorded.find_scalar("supertile_k_setting") != nullptr) {
    config.b12x.emplace();
    const std::int64_t setting = recorded.integer("supertile_k_setting");
    if (setting != -1) config.b12x->supertile_k_setting = setting;
  }
  return config;
}

void append_chunk(StageOutputs& outputs, std::size_t index, const IndexerPrefillChunk& chunk) {
  const std::string prefix = "chunk" + std::to_string(index) + "_";
  const PrefillChunkShape& shape = chunk.shape;
  outputs.scalars.push_back({prefix + "num_reqs", shape.num_reqs});
  outputs.scalars.push_back({prefix + "total_seq_lens", shape.total_seq_lens});
  outputs.scalars.push_back({prefix + "token_start", shape.token_start});
  outputs.scalars.push_back({prefix + "token_end", shape.token_end});
  outputs.scalars.push_back({prefix + "skip_kv_gather", shape.skip_kv_gather});
  outputs.tensors.push_back(
      {prefix + "block_table", columns_of(chunk.block_table, chunk.block_table.dim(1))});
  outputs.tensors.push_back({prefix + "cu_seqlen_ks", tensor_of(chunk.cu_seqlen_ks)});
  outputs.tensors.push_back({prefix + "cu_seqlen_ke", tensor_of(chunk.cu_seqlen_ke)});
  outputs.tensors.push_back({prefix + "cu_seq_lens", tensor_of(chunk.cu_seq_lens)});
  outputs.tensors.push_back({prefix + "token_to_seq", tensor_of(chunk.token_to_seq)});
}

void append_decode(StageOutputs& outputs, const IndexerConfig& config, const IndexerBatch& batch,
                   const IndexerDecode& decode) {
  outputs.scalars.push_back({"use_flattening", config.use_flattening()});
  outputs.scalars.push_back({"decode_max_seq_len", decode.max_seq_len});
  outputs.scalars.push_back({"decode_requires_padding", decode.requires_padding});
  if (config.b12x) {
    outputs.scalars.push_back({"decode_active_width", decode.active_width.value()});
    outputs.scalars.push_back(
        {"max_prefill_buffer_size", max_prefill_buffer_size(config.max_model_len)});
  }
  outputs.tensors.push_back(
      {"decode_block_table", columns_of(decode.block_table, batch.block_table.dim(1))});
  outputs.tensors.push_back({"decode_lens", tensor_of(DType::kInt32, decode.decode_lens)});
  outputs.tensors.push_back(
      {"decode_seq_lens", columns_of(decode.seq_lens, decode.seq_lens.dim(1))});
}

void append_scatter(StageOutputs& outputs, const RecordedCase& recorded) {
  const auto decode_lens = recorded.input("decode_lens").view<std::int32_t, 1>();
  const std::int64_t tokens = recorded.integer("num_decode_tokens");
  Tensor req_id(DType::kInt64, Layout::dense({tokens}));
  Tensor intra(DType::kInt64, Layout::dense({tokens}));
  decode_scatter_indices({decode_lens, tokens},
                         {req_id.view<std::int64_t, 1>(), intra.view<std::int64_t, 1>()});
  outputs.tensors.push_back({"req_id", std::move(req_id)});
  outputs.tensors.push_back({"intra", std::move(intra)});

  const Tensor& rows = recorded.input("tokens");
  Tensor scattered(DType::kFloat32,
                   Layout::dense({decode_lens.dim(0), recorded.integer("next_n"), rows.dim(1)}));
  // The recorder packed with the pad value that the positions use.
  scatter_decode_tokens_by_request<float>({decode_lens, rows.view<float, 2>(), -1.0F},
                                          scattered.view<float, 3>());
  outputs.tensors.push_back({"scattered", std::move(scattered)});
}

void append_topk_lengths(StageOutputs& outputs, const RecordedCase& recorded) {
  const Tensor& decode_lens = recorded.input("decode_lens");
  const std::int64_t next_n = recorded.integer("next_n");
  Tensor lengths(DType::kInt32, Layout::dense({decode_lens.dim(0) * next_n}));
  decode_topk_seq_lens({.positions = recorded.input("positions").view<std::int64_t, 1>(),
                        .decode_lens = decode_lens.view<std::int32_t, 1>(),
                        .num_decode_tokens = recorded.integer("num_decode_tokens"),
                        .batch_size = decode_lens.dim(0),
                        .next_n = next_n,
                        .requires_padding = recorded.integer("requires_padding") != 0},
                       lengths.view<std::int32_t, 1>());
  outputs.tensors.push_back({"topk_seq_lens", std::move(lengths)});
}

void append_causal_fill(StageOutputs& outputs, const RecordedCase& recorded) {
  Tensor buffer = recorded.input("topk_buffer");
  const bool filled = short_decode_causal_fill(
      {.positions = recorded.input("fill_positions").view<std::int64_t, 1>(),
       .num_decode_tokens = recorded.integer("num_decode_tokens"),
       .max_seq_len = recorded.integer("fill_max_seq_len")},
      buffer.view<std::int32_t, 2>());
  outputs.scalars.push_back({"filled", filled});
  outputs.tensors.push_back({"topk_buffer", std::move(buffer)});
}

void append_workspace_shapes(StageOutputs& outputs, const RecordedCase& recorded) {
  const std::int64_t total = recorded.integer("total_seq_lens");
  const std::int64_t head_dim = recorded.integer("head_dim");
  const auto fp8 = gather_workspace_shapes(total, head_dim, IndexerCacheFormat::kFp8);
  const auto fp4 = gather_workspace_shapes(total, head_dim, IndexerCacheFormat::kMxfp4);
  outputs.tensors.push_back({"fp8_values", shape_tensor(fp8.values)});
  outputs.tensors.push_back({"fp8_scales", shape_tensor(fp8.scales)});
  outputs.tensors.push_back({"fp4_values", shape_tensor(fp4.values)});
  outputs.tensors.push_back({"fp4_scales", shape_tensor(fp4.scales)});
}

}  // namespace

RecordedIndexerInput indexer_input(const RecordedCase& recorded) {
  RecordedIndexerInput input;
  input.config = indexer_config(recorded);
  IndexerBatch& batch = input.batch;
  batch.query_start_loc = recorded.input("query_start_loc").view<std::int32_t, 1>();
  batch.seq_lens = recorded.input("seq_lens").view<std::int32_t, 1>();
  batch.block_table = recorded.input("block_table").view<std::int32_t, 2>();
  batch.slot_mapping = recorded.input("slot_mapping").view<std::int64_t, 1>();
  batch.use_dcp_local = recorded.integer("use_dcp_local") != 0;
  batch.seq_lens_cpu = batch.seq_lens;
  for (std::int64_t request = 0; request < batch.seq_lens.dim(0); ++request)
    batch.max_seq_len = std::max<std::int64_t>(batch.max_seq_len, batch.seq_lens(request));
  if (batch.use_dcp_local) {
    const std::int64_t requests = batch.seq_lens.dim(0);
    input.local_seq_lens_cpu =
        std::make_unique<std::vector<std::int32_t>>(static_cast<std::size_t>(requests));
    const View<std::int32_t, 1> local{input.local_seq_lens_cpu->data(), {requests}, {1}};
    context_parallel_lengths({batch.seq_lens, input.config.context_parallel}, {local});
    batch.dcp_local_seq_lens_cpu = local;
  }
  return input;
}

StageOutputs indexer_outputs(const IndexerConfig& config, const IndexerBatch& batch,
                             const IndexerMetadata& metadata) {
  StageOutputs outputs;
  outputs.scalars = {{"num_decodes", metadata.split.num_decodes},
                     {"num_prefills", metadata.split.num_prefills},
                     {"num_decode_tokens", metadata.split.num_decode_tokens},
                     {"num_prefill_tokens", metadata.split.num_prefill_tokens}};
  outputs.tensors.push_back({"slot_mapping", tensor_of(DType::kInt64, metadata.slot_mapping)});
  if (metadata.decode) append_decode(outputs, config, batch, *metadata.decode);
  if (metadata.prefill) {
    const auto count = static_cast<std::int64_t>(metadata.prefill->size());
    outputs.scalars.push_back({"prefill_chunks", count});
    for (std::size_t index = 0; index < metadata.prefill->size(); ++index)
      append_chunk(outputs, index, (*metadata.prefill)[index]);
  }
  return outputs;
}

Tensor comparable_indexer_output(const RecordedCase& recorded, const std::string& name) {
  const Tensor& output = recorded.output(name);
  if (name != "decode_block_table") return output;
  return columns_of(output.view<std::int32_t, 2>(), recorded.input("block_table").dim(1));
}

bool is_indexer_parameter(const std::string& name) {
  static constexpr std::array<std::string_view, 14> kParameters{"block_size",
                                                                "compress_ratio",
                                                                "cp_interleave",
                                                                "dcp_rank",
                                                                "dcp_world_size",
                                                                "device_family",
                                                                "max_logits_mb",
                                                                "max_model_len",
                                                                "max_num_batched_tokens",
                                                                "max_num_seqs",
                                                                "num_speculative_tokens",
                                                                "storage_block_size",
                                                                "supertile_k_setting",
                                                                "use_dcp_local"};
  return std::find(kParameters.begin(), kParameters.end(), name) != kParameters.end();
}

PrefillChunkSplitInput prefill_chunk_split_input(const RecordedCase& recorded) {
  return {.seq_lens = recorded.input("seq_lens").view<std::int64_t, 1>(),
          .query_lens = recorded.input("query_lens").view<std::int64_t, 1>(),
          .workspace_size = recorded.integer("workspace_size"),
          .max_logits_bytes = recorded.integer("max_logits_bytes"),
          .request_offset = recorded.integer("request_offset")};
}

StageOutputs prefill_chunk_split_outputs(const std::vector<PrefillChunk>& chunks) {
  std::vector<std::int64_t> rows;
  for (const PrefillChunk& chunk : chunks) {
    rows.insert(rows.end(),
                {chunk.request_start, chunk.request_stop, chunk.query_start, chunk.query_stop});
  }
  StageOutputs outputs;
  outputs.tensors.push_back(
      {"chunks", Tensor::of(DType::kInt64, {static_cast<std::int64_t>(chunks.size()), 4}, rows)});
  return outputs;
}

StageOutputs run_glm5next_indexer(const RecordedCase& recorded) {
  StageOutputs outputs;
  if (recorded.find_scalar("kind") != nullptr) {
    append_workspace_shapes(outputs, recorded);
    return outputs;
  }
  append_scatter(outputs, recorded);
  append_topk_lengths(outputs, recorded);
  append_causal_fill(outputs, recorded);
  return outputs;
}

ExpandPoolsInput expand_pools_input(const RecordedCase& recorded) {
  return {.pool_ids = recorded.input("pool_ids").view<std::int32_t, 2>(),
          .seq_lens = recorded.input("seq_lens").view<std::int32_t, 1>(),
          .pool_size = recorded.integer("pool_size")};
}

StageOutputs run_expand_pools(const RecordedCase& recorded) {
  const ExpandPoolsInput input = expand_pools_input(recorded);
  Tensor tokens(DType::kInt32,
                Layout::dense({input.pool_ids.dim(0), expanded_pool_columns(input)}));
  expand_pools_and_append_tail(input, tokens.view<std::int32_t, 2>());
  StageOutputs outputs;
  outputs.tensors.push_back({"token_ids", std::move(tokens)});
  return outputs;
}

}  // namespace monoref
