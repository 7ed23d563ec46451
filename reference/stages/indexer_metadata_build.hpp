// Stage indexer_metadata_build: all metadata of one step of the sparse indexers of
// DeepSeek-V3.2/V4.
//
// The source is deepseek-indexer-metadata: DeepseekV32IndexerMetadataBuilder.build, with the rules
// that its recording settles (recordings: indexer_metadata). Not modelled:
// the schedule that an external library computes for the paged scorer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/core/tensor.hpp"
#include "reference/rules/decode_prefill_split.hpp"
#include "reference/stages/context_parallel_lengths.hpp"
#include "reference/stages/decode_expand.hpp"
#include "reference/stages/prefill_chunk_metadata.hpp"
#include "reference/stages/prefill_chunk_split.hpp"

namespace monoref {

/// The B12X indexer, which scores in supertiles of keys and takes its bounds from the host.
struct B12xIndexer {
  /// Keys in a supertile as set from outside; nothing: unset, 32768.
  std::optional<std::int64_t> supertile_k_setting;
};

/// What is fixed when the builder is made.
struct IndexerConfig {
  std::int64_t max_model_len = 0;           ///< tokens
  std::int64_t max_num_batched_tokens = 0;  ///< rows of the carried buffers
  std::int64_t block_size = 64;             ///< tokens a block of the table, for its width
  std::int64_t storage_block_size = 64;     ///< compressed keys a block
  std::int64_t num_speculative_tokens = 0;
  std::int64_t device_family = 90;  ///< compute capability family; 100 takes any next_n natively
  std::int64_t compress_ratio = 1;  ///< 0 and 1 both mean none
  std::int64_t max_logits_mb = 512;
  ContextParallel context_parallel{};  ///< decode context parallelism
  std::int64_t prefill_context_parallel_size = 1;
  bool use_fp4_indexer_cache = false;
  std::optional<B12xIndexer> b12x;  ///< nothing: the DeepGEMM scorer
  LengthRule lengths = LengthRule::kAsSeed;

  std::int64_t next_n() const { return num_speculative_tokens + 1; }
  /// Outside family 100 the scorer takes queries of 1 and 2 tokens only.
  bool use_flattening() const { return device_family != 100 && next_n() != 1 && next_n() != 2; }
};

/// Refuses more than limits::kTokens tokens, sizes below 1 or so large that the carried buffers
/// would exceed 2^28 elements, a negative ratio or count, a bad ContextParallel, prefill context
/// parallelism together with decode context parallelism, and an FP4 cache outside device family
/// 100.
void check_indexer_config(const IndexerConfig& config);

/// Rows of the prefill gather workspace: 40 * max_model_len. 40 = 576 * 2 div 132 * 5 keeps it
/// inside the attention's own workspace of 5 * max_model_len rows of 1152 bytes, at 132 bytes a
/// key.
std::int64_t max_prefill_buffer_size(std::int64_t max_model_len);

/// Keys a supertile: the setting, at least 512, rounded up to a multiple of 512. Refuses a setting
/// beyond int32.
std::int64_t b12x_supertile_k(const B12xIndexer& b12x);

/// Buffers that live as long as the builder, at addresses that a captured graph may keep. All
/// decode lengths share one buffer, whatever the path: the original keeps the plain path's
/// compressed lengths in a second one, and a path whose lengths leave the buffer that a graph has
/// captured is bug case T06. Every step writes all that it hands out and zeroes the lengths behind
/// it, so that no step sees what an earlier one left.
struct IndexerBuffers {
  explicit IndexerBuffers(const IndexerConfig& config);

  std::vector<std::int32_t> decode_lens;      ///< [max_num_batched_tokens]
  std::vector<std::int32_t> decode_seq_lens;  ///< [max_num_batched_tokens]
  std::vector<std::int64_t> slot_mapping;     ///< [max_num_batched_tokens], compressed slots
  /// [max_num_batched_tokens, expanded_width], of which the rows of the largest step yet exist.
  std::vector<std::int32_t> expanded_table;
  std::int64_t expanded_width = 0;  ///< grows when a flattened batch's table is wider
  std::int32_t active_width = 0;    ///< B12X
};

/// One step's batch: decodes first.
struct IndexerBatch {
  View<const std::int32_t, 1> query_start_loc;  ///< [requests+1]
  View<const std::int32_t, 1> seq_lens;         ///< [requests], global tokens with the query
  View<const std::int32_t, 2> block_table;      ///< [requests, width]
  View<const std::int64_t, 1> slot_mapping;     ///< [num_tokens], uncompressed slots; its size is
                                                ///< the step's, padding tokens included
  std::int64_t max_seq_len = 0;                 ///< tokens, at least every length of the batch
  /// The caches are local to the ranks. Without it the config's context parallelism has no effect.
  bool use_dcp_local = false;
  /// [requests], what the host can say about the lengths; without data it is seq_lens, which
  /// `kAsSeed` refuses where there are prefills.
  View<const std::int32_t, 1> seq_lens_cpu_upper_bound;
  /// [requests], exact host shadow of the lengths, global and local to the rank. Without data where
  /// the device alone knows them.
  View<const std::int32_t, 1> seq_lens_cpu;
  View<const std::int32_t, 1> dcp_local_seq_lens_cpu;
};

/// Metadata of the decodes.
struct IndexerDecode {
  DecodePath path = DecodePath::kPlain;
  View<const std::int32_t, 2> block_table;  ///< [rows, width]: of the batch, or the expanded one
  View<const std::int32_t, 2> seq_lens;     ///< [rows, 1 or longest query]
  View<const std::int32_t, 1> decode_lens;  ///< [rows]
  std::int64_t max_seq_len = 0;             ///< bound of the scorer, in keys
  bool requires_padding = false;
  std::optional<std::int64_t> active_width;  ///< B12X: keys the scorer has to look at
};

/// Metadata of one prefill chunk, with its own tensors.
struct IndexerPrefillChunk {
  PrefillChunk chunk;  ///< its requests in the batch, and their query tokens
  PrefillChunkShape shape;
  View<const std::int32_t, 2> block_table;  ///< [num_reqs, width], rows of the batch's table
  std::vector<std::int32_t> cu_seqlen_ks;
  std::vector<std::int32_t> cu_seqlen_ke;
  std::vector<std::int32_t> cu_seq_lens;
  std::vector<std::int32_t> token_to_seq;
};

/// Views point into the batch and the buffers, and live until the next step.
struct IndexerMetadata {
  View<const std::int32_t, 1> seq_lens;  ///< [requests], as in the batch
  std::int64_t max_seq_len = 0;
  View<const std::int64_t, 1> slot_mapping;  ///< [num_tokens]
  DecodePrefillSplit split;
  std::optional<IndexerDecode> decode;                      ///< nothing without decodes
  std::optional<std::vector<IndexerPrefillChunk>> prefill;  ///< nothing without prefills
  ContextParallel context_parallel{};  ///< as in effect: world 1, rank 0 without use_dcp_local
};

/// Builds the metadata of one step.
///
/// * The split into decodes and prefills is `decode_prefill_split` at threshold next_n, uniform
///   where the scorer does not flatten.
/// * Slots are those of the batch, or `compressed_slot_mapping` under compression or with local
///   caches.
/// * Prefills are cut by `prefill_chunk_split` on the compressed, local lengths and the prefill
///   buffer; B12X cuts one request at a time, on the supertile instead of its length. Chunks
///   without a key on this rank are left out.
/// * Decodes go through `decode_expand`; one-dimensional lengths become one column.
/// * decode.max_seq_len: under compression ceil(max_seq_len / ratio) of the whole batch; otherwise
///   the largest decode length (0 where there is none), which B12X takes from the host: the local
///   shadow with local caches, else the global one, over the requests with a query where lengths
///   are flattened; and with no shadow its active width, which is max_seq_len.
///
/// Under `kAsSeed` it is the original's step or none: prefills need seq_lens_cpu_upper_bound, a
/// largest decode length needs one, a ratio of 0 must not be divided by, and a split that does not
/// hold every request and token is a "split mismatch"; a table wider than the buffer loses its last
/// columns in a uniform batch. Otherwise the table grows, missing bounds are seq_lens, and the
/// largest of no lengths is 0 (reference/spec/departures.md).
///
/// Refuses what `check_indexer_config` and the stages refuse, more tokens or decode rows than
/// max_num_batched_tokens, a max_seq_len below a length of the batch, host lengths of another size,
/// more key rows of all chunks than limits::kKeyRows, and buffers made for another
/// max_num_batched_tokens; all before a buffer is written.
IndexerMetadata indexer_metadata_build(const IndexerConfig& config, IndexerBuffers& buffers,
                                       const IndexerBatch& batch);

}  // namespace monoref
