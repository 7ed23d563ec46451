// Stage prefill_chunk_split: prefill requests into chunks that fit the indexer's workspace.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

/// A run of requests, and of their query tokens counted from the first token of the run. Stops are
/// exclusive.
struct PrefillChunk {
  std::int64_t request_start = 0;
  std::int64_t request_stop = 0;
  std::int64_t query_start = 0;
  std::int64_t query_stop = 0;
  bool operator==(const PrefillChunk&) const = default;
};

struct PrefillChunkSplitInput {
  /// [requests], in the unit of the workspace's rows: compressed and local to the rank where the
  /// cache is. Raw tokens here admit chunks larger than their workspace (bug case T15).
  View<const std::int64_t, 1> seq_lens;
  View<const std::int64_t, 1> query_lens;  ///< [requests], query tokens
  std::int64_t workspace_size = 0;         ///< rows of the gather workspace
  std::int64_t max_logits_bytes = 0;       ///< of the float32 logits [query tokens, rows]
  std::int64_t request_offset = 0;         ///< added to the request numbers of the result
  LengthRule lengths = LengthRule::kAsSeed;
};

/// Chunks in order (deepseek-indexer-metadata: split_indexer_prefill_chunks).
///
/// A chunk takes requests as long as their lengths together (N) fit the workspace and query tokens
/// (M) times N fit max_logits_bytes div 4. A request that fits neither budget is a chunk alone,
/// even one longer than the workspace. A chunk whose M x N exceeds the budget, which only one alone
/// can, is cut in its query tokens into pieces of max(1, budget div N); pieces repeat its requests.
///
/// A chunk without query tokens gives nothing, with or without keys. Where it has neither, the
/// original raises an error (a range with step 0), and `kAsSeed` refuses it.
///
/// Refuses arrays of different sizes, lengths that are negative or beyond int32, negative budgets
/// and offsets, and a batch that would be cut into more than limits::kTokens chunks.
std::vector<PrefillChunk> prefill_chunk_split(const PrefillChunkSplitInput& input);

}  // namespace monoref
