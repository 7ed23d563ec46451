// Stage prefill_chunk_metadata: what the scorer of one prefill chunk needs to know of its rows.
#pragma once

#include <cstdint>

#include "reference/core/tensor.hpp"
#include "reference/stages/context_parallel_lengths.hpp"
#include "reference/stages/prefill_chunk_split.hpp"

namespace monoref {

struct PrefillChunkMetadataInput {
  View<const std::int32_t, 1> query_start_loc;  ///< [requests+1], of the whole batch
  View<const std::int32_t, 1> seq_lens;         ///< [requests], tokens including the query
  /// [requests], what the host believed when it sized the chunk: at least seq_lens. Without data it
  /// is seq_lens.
  View<const std::int32_t, 1> seq_lens_cpu_upper_bound;
  PrefillChunk chunk;  ///< requests of the batch; query tokens from the first of them on
  std::int64_t compress_ratio = 1;
  ContextParallel context_parallel{};
  LengthRule lengths = LengthRule::kClamped;
};

/// The scalars of a chunk, and with them the sizes of its tensors.
struct PrefillChunkShape {
  std::int64_t num_reqs = 0;
  std::int64_t total_seq_lens = 0;  ///< key rows of the workspace, from the upper bound
  std::int64_t token_start = 0;     ///< rows of the batch that the chunk's queries are
  std::int64_t token_end = 0;
  bool skip_kv_gather = false;  ///< an earlier piece of the same requests has gathered the keys
  bool operator==(const PrefillChunkShape&) const = default;

  /// A chunk without any key on this rank is left out by the builder.
  bool empty() const { return total_seq_lens == 0; }
};

struct PrefillChunkMetadataOutput {
  View<std::int32_t, 1> cu_seqlen_ks;  ///< [token_end-token_start] first key row of the query
  View<std::int32_t, 1> cu_seqlen_ke;  ///< the same, exclusive last
  View<std::int32_t, 1> cu_seq_lens;   ///< [num_reqs+1] prefix sums of the key rows
  View<std::int32_t, 1> token_to_seq;  ///< [total_seq_lens] request of a key row, from 0
};

/// Validates the input and returns the chunk's scalars.
/// Refuses ranges outside the batch or the chunk's queries, an upper bound below the length, more
/// than int32 key rows, negative ratios and a bad ContextParallel; and, unless lengths are as in
/// the original, a sequence shorter than its query (the position of its first token would be
/// negative).
PrefillChunkShape prefill_chunk_shape(const PrefillChunkMetadataInput& input);

/// Writes the chunk's tensors (deepseek-indexer-metadata: build_prefill_chunk_metadata and its
/// kernel). The query at position p of a request sees
/// local_length((p + 1) div ratio) keys: the whole prefix, not only this chunk's part (bug case
/// T14). At a position before the sequence the original divides towards 0: its end lies before its
/// first key row, or at it. Rows of token_to_seq behind the exact lengths, where the upper bound
/// was generous, are 0; the original leaves them unwritten. Refuses what `prefill_chunk_shape`
/// does, and outputs of other sizes, before anything is written.
void prefill_chunk_metadata(const PrefillChunkMetadataInput& input,
                            const PrefillChunkMetadataOutput& output);

}  // namespace monoref
