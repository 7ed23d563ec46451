// Launches of the indexer's kernels, which both their own stages and the builder's make.
#pragma once

#include "fuzz/stage.hpp"
#include "reference/stages/context_parallel_lengths.hpp"

namespace monoref {

/// How a rank's cache keeps keys, as kernels take it.
struct CacheSharingArguments {
  std::int32_t compress_ratio;
  std::int32_t world;
  std::int32_t rank;
  std::int32_t interleave;
};
CacheSharingArguments cache_sharing(std::int64_t compress_ratio, const ContextParallel& ranks);

/// A run of int32 in device memory.
struct StridedInts {
  const std::int32_t* data = nullptr;
  std::int64_t stride = 1;  ///< elements
};

/// monoref_decode_expand_uniform. Rows are `requests` x `query_len`, row-major.
struct DecodeExpandLaunch {
  StridedInts seq_lens;
  StridedInts block_table;  ///< no data: the table stays as it is
  std::int32_t* expanded_table = nullptr;
  std::int64_t expanded_row_stride = 0;
  std::int32_t* decode_seq_lens = nullptr;
  std::int32_t* decode_lens = nullptr;  ///< null: not wanted
  std::int64_t requests = 0;
  std::int64_t live_rows = 0;    ///< of decode_seq_lens that have a length
  std::int64_t length_rows = 0;  ///< of decode_seq_lens, the zeroed tail included
  std::int64_t width = 0;
  std::int64_t expanded_width = 0;
  std::int64_t query_len = 1;
  CacheSharingArguments sharing{};
  std::int32_t length_limit = -1;  ///< tokens; negative: lengths stay as they are
};
void launch_decode_expand(const Launcher& launcher, const DecodeExpandLaunch& arguments);

/// monoref_prefill_cu_seq_lens and, reading its result, monoref_prefill_chunk_metadata.
struct PrefillChunkLaunch {
  const std::int32_t* query_start_loc = nullptr;  ///< of the chunk's first request
  const std::int32_t* seq_lens = nullptr;         ///< likewise
  std::int32_t* cu_seq_lens = nullptr;
  std::int32_t* token_to_seq = nullptr;
  std::int32_t* cu_seqlen_ks = nullptr;
  std::int32_t* cu_seqlen_ke = nullptr;
  std::int64_t requests = 0;
  std::int64_t entries = 0;  ///< of token_to_seq
  std::int64_t query_start = 0;
  std::int64_t query_stop = 0;
  CacheSharingArguments sharing{};
};
void launch_prefill_chunk(const Launcher& launcher, const PrefillChunkLaunch& arguments);

/// monoref_compressed_slot_mapping.
struct SlotMappingLaunch {
  const std::int32_t* query_start_loc = nullptr;
  const std::int32_t* seq_lens = nullptr;
  StridedInts block_table;
  std::int64_t* slots = nullptr;
  std::int64_t requests = 0;
  std::int64_t slot_count = 0;
  std::int64_t width = 0;
  std::int64_t storage_block_size = 1;
  CacheSharingArguments sharing{};
};
void launch_slot_mapping(const Launcher& launcher, const SlotMappingLaunch& arguments);

}  // namespace monoref
