// prefill_chunk_metadata: see device/kernels/prefill_chunk_metadata.hip.
#pragma once

#include "device/launch/cache_sharing.hpp"
#include "device/launch/launch.hpp"

namespace monoref::device::launch {

/// Running sums, which the other kernel reads.
struct PrefillCuSeqLens {
  const std::int32_t* seq_lens;
  std::int32_t* cu_seq_lens;
  std::int64_t requests;
  CacheSharing sharing;

  static constexpr std::string_view kernel() { return "monoref_prefill_cu_seq_lens"; }
  /// One block takes a request a thread; others have nothing to do.
  Grid grid(int) const { return {.threads_x = threads_for(requests, 1024)}; }
  static constexpr Legal legal(int wave) { return any_x(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(seq_lens, cu_seq_lens, requests, narrow(sharing.compress_ratio), narrow(sharing.world),
         narrow(sharing.rank), narrow(sharing.interleave));
  }
};

struct PrefillChunkMetadata {
  const std::int32_t* query_start_loc;  ///< of the chunk's first request
  const std::int32_t* seq_lens;         ///< likewise
  const std::int32_t* cu_seq_lens;
  std::int32_t* token_to_seq;
  std::int32_t* cu_seqlen_ks;
  std::int32_t* cu_seqlen_ke;
  std::int64_t requests, entries, slice_start, slice_stop;
  CacheSharing sharing;

  static constexpr std::string_view kernel() { return "monoref_prefill_chunk_metadata"; }
  Grid grid(int) const { return {.blocks_x = blocks(requests), .threads_x = 64}; }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(query_start_loc, seq_lens, cu_seq_lens, token_to_seq, cu_seqlen_ks, cu_seqlen_ke, requests,
         entries, slice_start, slice_stop, narrow(sharing.compress_ratio), narrow(sharing.world),
         narrow(sharing.rank), narrow(sharing.interleave));
  }
};

}  // namespace monoref::device::launch
