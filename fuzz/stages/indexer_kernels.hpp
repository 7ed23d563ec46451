// What launches of the indexer's kernels share.
#pragma once

#include "device/launch/prefill_chunk_metadata.hpp"
#include "fuzz/stage.hpp"
#include "reference/stages/context_parallel_lengths.hpp"

namespace monoref {

inline device::launch::CacheSharing cache_sharing(std::int64_t compress_ratio,
                                                  const ContextParallel& ranks) {
  return {compress_ratio, ranks.world, ranks.rank, ranks.interleave};
}

/// The sums of a chunk's entries into `cu_seq_lens`, and its metadata from them.
inline void enqueue_prefill_chunk(const Launcher& launcher, std::int32_t* cu_seq_lens,
                                  device::launch::PrefillChunkMetadata chunk) {
  launcher.enqueue(device::launch::PrefillCuSeqLens{.seq_lens = chunk.seq_lens,
                                                    .cu_seq_lens = cu_seq_lens,
                                                    .requests = chunk.requests,
                                                    .sharing = chunk.sharing});
  chunk.cu_seq_lens = cu_seq_lens;
  launcher.enqueue(chunk);
}

}  // namespace monoref
