#include "reference/stages/prefill_chunk_metadata.hpp"

#include <algorithm>
#include <limits>
#include <string_view>

#include "reference/rules/request_batch.hpp"
#include "reference/stages/compressed_slot_mapping.hpp"

namespace monoref {
namespace {

constexpr std::string_view kStage = "prefill_chunk_metadata";
constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();

void check_ranges(const PrefillChunkMetadataInput& input) {
  const PrefillChunk& chunk = input.chunk;
  const std::int64_t requests = input.seq_lens.dim(0);
  if (chunk.request_start < 0 || chunk.request_stop <= chunk.request_start ||
      chunk.request_stop > requests)
    refuse("{}: chunk holds requests {} to {}, limits 0 and {}", kStage, chunk.request_start,
           chunk.request_stop, requests);
  const std::int64_t queries = std::int64_t{input.query_start_loc(chunk.request_stop)} -
                               input.query_start_loc(chunk.request_start);
  if (chunk.query_start < 0 || chunk.query_stop < chunk.query_start || chunk.query_stop > queries)
    refuse("{}: chunk holds queries {} to {}, limits 0 and {}", kStage, chunk.query_start,
           chunk.query_stop, queries);
}

void check_lengths(const PrefillChunkMetadataInput& input) {
  const bool bounded = input.seq_lens_cpu_upper_bound.data() != nullptr;
  for (std::int64_t request = input.chunk.request_start; request < input.chunk.request_stop;
       ++request) {
    const std::int64_t length = input.seq_lens(request);
    const std::int64_t tokens = query_len(input.query_start_loc, request);
    if (length < tokens && input.lengths == LengthRule::kClamped)
      refuse("{}: seq_lens[{}] is {}, must be at least {}, the tokens of its query", kStage,
             request, length, tokens);
    if (length < 0) refuse("{}: seq_lens[{}] is {}, must be at least 0", kStage, request, length);
    if (bounded && input.seq_lens_cpu_upper_bound(request) < length)
      refuse("{}: seq_lens_cpu_upper_bound[{}] is {}, must be at least {} as seq_lens is", kStage,
             request, input.seq_lens_cpu_upper_bound(request), length);
  }
}

std::int64_t key_rows(const PrefillChunkMetadataInput& input, View<const std::int32_t, 1> seq_lens,
                      std::int64_t request) {
  return compressed_length(seq_lens(request), input.compress_ratio, input.context_parallel);
}

void check_outputs(const PrefillChunkShape& shape, const PrefillChunkMetadataOutput& output) {
  const std::int64_t queries = shape.token_end - shape.token_start;
  check_extent(kStage, "cu_seqlen_ks", output.cu_seqlen_ks.dim(0), queries);
  check_extent(kStage, "cu_seqlen_ke", output.cu_seqlen_ke.dim(0), queries);
  check_extent(kStage, "cu_seq_lens", output.cu_seq_lens.dim(0), shape.num_reqs + 1);
  check_extent(kStage, "token_to_seq", output.token_to_seq.dim(0), shape.total_seq_lens);
}

/// Keys that a query sees which has so many keys before its end. Fewer than none, of a query longer
/// than its sequence, the original's kernel divides towards 0; no rank has a rest of them.
std::int64_t visible_keys(const PrefillChunkMetadataInput& input, std::int64_t keys) {
  if (keys >= 0) return compressed_length(keys, input.compress_ratio, input.context_parallel);
  const std::int64_t entries = keys / std::max<std::int64_t>(input.compress_ratio, 1);
  const auto [world, rank, interleave] = input.context_parallel;
  return world > 1 ? entries / interleave / world * interleave : entries;
}

/// The bounds of those of one request's queries that lie in the chunk.
void write_queries(const PrefillChunkMetadataInput& input, const PrefillChunkMetadataOutput& output,
                   std::int64_t request, std::int64_t first_key) {
  const PrefillChunk& chunk = input.chunk;
  const std::int64_t chunk_start = input.query_start_loc(chunk.request_start);
  const std::int64_t query = input.query_start_loc(request) - chunk_start;
  const std::int64_t tokens = query_len(input.query_start_loc, request);
  const std::int64_t start = input.seq_lens(request) - tokens;
  const std::int64_t begin = std::max(query, chunk.query_start);
  const std::int64_t end = std::min(query + tokens, chunk.query_stop);
  for (std::int64_t at = begin; at < end; ++at) {
    const std::int64_t keys = visible_keys(input, start + at - query + 1);
    output.cu_seqlen_ks(at - chunk.query_start) = static_cast<std::int32_t>(first_key);
    output.cu_seqlen_ke(at - chunk.query_start) = static_cast<std::int32_t>(first_key + keys);
  }
}

}  // namespace

PrefillChunkShape prefill_chunk_shape(const PrefillChunkMetadataInput& input) {
  effective_compress_ratio(kStage, input.compress_ratio);
  check_context_parallel(kStage, input.context_parallel);
  const std::int64_t requests = input.seq_lens.dim(0);
  check_query_start_loc(kStage, input.query_start_loc, requests);
  const bool bounded = input.seq_lens_cpu_upper_bound.data() != nullptr;
  if (bounded)
    check_extent(kStage, "seq_lens_cpu_upper_bound", input.seq_lens_cpu_upper_bound.dim(0),
                 requests);
  check_ranges(input);
  check_lengths(input);

  const PrefillChunk& chunk = input.chunk;
  const std::int64_t first_token = input.query_start_loc(chunk.request_start);
  PrefillChunkShape shape;
  shape.num_reqs = chunk.request_stop - chunk.request_start;
  shape.token_start = first_token + chunk.query_start;
  shape.token_end = first_token + chunk.query_stop;
  shape.skip_kv_gather = chunk.query_start > 0;
  for (std::int64_t request = chunk.request_start; request < chunk.request_stop; ++request) {
    shape.total_seq_lens +=
        key_rows(input, bounded ? input.seq_lens_cpu_upper_bound : input.seq_lens, request);
  }
  if (shape.total_seq_lens > kMaxRows)
    refuse("{}: requests {} to {} have {} key rows, limit {}", kStage, chunk.request_start,
           chunk.request_stop, shape.total_seq_lens, kMaxRows);
  return shape;
}

void prefill_chunk_metadata(const PrefillChunkMetadataInput& input,
                            const PrefillChunkMetadataOutput& output) {
  const PrefillChunkShape shape = prefill_chunk_shape(input);
  check_outputs(shape, output);

  std::int64_t row = 0;
  output.cu_seq_lens(0) = 0;
  for (std::int64_t index = 0; index < shape.num_reqs; ++index) {
    const std::int64_t request = input.chunk.request_start + index;
    write_queries(input, output, request, row);
    const std::int64_t end = row + key_rows(input, input.seq_lens, request);
    for (; row < end; ++row) output.token_to_seq(row) = static_cast<std::int32_t>(index);
    output.cu_seq_lens(index + 1) = static_cast<std::int32_t>(end);
  }
  for (; row < shape.total_seq_lens; ++row) output.token_to_seq(row) = 0;
}

}  // namespace monoref
