// prefill_chunk_metadata: which entries of a gathered chunk each of its queries scores.
//
// Source of the rule: deepseek-indexer-metadata: build_prefill_chunk_metadata and its kernel. The
// entries of a chunk's requests lie one request behind the other; cu_seq_lens says where each
// starts. A query at position p of request r scores entries cu_seqlen_ks = cu_seq_lens[r] up to,
// not including, cu_seqlen_ke = cu_seq_lens[r] + visible_entries(p + 1). token_to_seq names the
// request of every entry. Only queries in [slice_start, slice_stop) of the chunk are described.

#include <cstdint>

#include "device/kernels/cache_length.hpp"
#include "device/kernels/flat_grid.hpp"
#include "device/kernels/prefix_sum.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

/// A run of queries or entries, counted from the chunk's first.
struct Range {
  std::int64_t begin;
  std::int64_t end;
};

/// The part of a run that lies in [low, high); begin >= end if there is none.
MONOREF_DEVICE Range clip(Range range, std::int64_t low, std::int64_t high) {
  return {range.begin > low ? range.begin : low, range.end < high ? range.end : high};
}

/// Entries that a query sees which has so many keys before its end. Fewer than none, of a query
/// longer than its sequence, the original divides towards 0 here; no rank has a rest of them.
MONOREF_DEVICE std::int32_t entries_before(std::int32_t keys, const CacheSharing& sharing) {
  if (keys >= 0) return visible_entries(keys, sharing);
  const std::int32_t entries = sharing.ratio > 1 ? keys / sharing.ratio : keys;
  if (sharing.world <= 1) return entries;
  return entries / sharing.interleave / sharing.world * sharing.interleave;
}

}  // namespace

// Inputs   seq_lens int32 [requests], dense: global keys of each request of the chunk
// Outputs  cu_seq_lens int32 [requests + 1], dense: 0, then the running sum of this rank's entries
// Sizes    compress_ratio, world, rank, interleave as in CacheSharing.
// Launch   one block (others do nothing) of whole waves; a pass of the block takes one request a
//          thread. Static shared memory only.
// Misuse   Sums wrap as int32 does.
MONOREF_KERNEL(1024, monoref_prefill_cu_seq_lens)(const std::int32_t* seq_lens,
                                                  std::int32_t* cu_seq_lens, std::int64_t requests,
                                                  std::int32_t compress_ratio, std::int32_t world,
                                                  std::int32_t rank, std::int32_t interleave) {
  constexpr int kMaxWaves = 1024 / simt::kWave;
  MONOREF_SHARED(std::uint32_t, wave_sums, kMaxWaves);
  const CacheSharing sharing{compress_ratio, world, rank, interleave};
  if (blockIdx.x > 0) return;
  if (threadIdx.x == 0) cu_seq_lens[0] = 0;
  const auto waves = static_cast<int>(blockDim.x / simt::kWave);
  std::uint32_t before = 0;  // the sum of all earlier passes
  for (std::int64_t first = 0; first < requests; first += blockDim.x) {
    const std::int64_t request = first + threadIdx.x;
    const std::int32_t entries =
        request < requests ? visible_entries(seq_lens[request], sharing) : 0;
    const std::uint32_t sum = wave_inclusive_sum(static_cast<std::uint32_t>(entries));
    if (simt::lane() == simt::kWave - 1) wave_sums[simt::wave()] = sum;
    __syncthreads();
    std::uint32_t offset = before;
    for (int wave = 0; wave < waves; ++wave) {
      const bool is_before =
          wave < simt::wave() && !MONOREF_FAULT(chunk_sums_of_waves_not_joined, "own",
                                                "a wave sums its own requests only");
      if (is_before) offset += wave_sums[wave];
      before += wave_sums[wave];
    }
    if (MONOREF_FAULT(chunk_sum_of_pass_lost, "own",
                      "prefix sums start again with each pass of the block"))
      before = 0;
    if (MONOREF_FAULT(chunk_sum_exclusive, "own", "prefix sums without the request itself") &&
        request < requests)
      cu_seq_lens[request + 1] = static_cast<std::int32_t>(offset + sum - entries);
    else if (request < requests)
      cu_seq_lens[request + 1] = static_cast<std::int32_t>(offset + sum);
    __syncthreads();  // the next pass writes wave_sums again
  }
}
MONOREF_REGISTER(monoref_prefill_cu_seq_lens);

// Inputs   query_start_loc int32 [requests + 1], dense: first query of each request of the chunk
//          and the end of the last; counted from anywhere, query_start_loc[0] being the chunk's
//          first
//          seq_lens int32 [requests], dense: global keys of each request, its queries included
//          cu_seq_lens int32 [requests + 1], dense: this rank's entries, as made above
// Outputs  token_to_seq int32 [entries], dense: request of the chunk, from 0
//          cu_seqlen_ks, cu_seqlen_ke int32 [slice_stop - slice_start], dense; in entries
// Sizes    entries: at least cu_seq_lens[requests] (more: an upper bound known on the host, and the
//          rest is 0); 0 <= slice_start <= slice_stop <= queries of the chunk.
// Launch   any grid and any block of whole waves; x goes over requests, y over queries and entries.
// Misuse   Nothing is written outside the outputs whatever the offsets say; rows of the slice that
//          no request owns stay as they are.
MONOREF_KERNEL(1024, monoref_prefill_chunk_metadata)(
    const std::int32_t* query_start_loc, const std::int32_t* seq_lens,
    const std::int32_t* cu_seq_lens, std::int32_t* token_to_seq, std::int32_t* cu_seqlen_ks,
    std::int32_t* cu_seqlen_ke, std::int64_t requests, std::int64_t entries,
    std::int64_t slice_start, std::int64_t slice_stop, std::int32_t compress_ratio,
    std::int32_t world, std::int32_t rank, std::int32_t interleave) {
  const CacheSharing sharing{compress_ratio, world, rank, interleave};
  const std::int64_t first_column =
      MONOREF_FAULT(chunk_grid_y_ignored, "own",
                    "columns of the blocks behind the first in y are not made")
          ? std::int64_t{threadIdx.x}
          : column_of_grid();
  for (std::int64_t request = blockIdx.x; request < requests; request += gridDim.x) {
    const std::int64_t chunk_start =
        MONOREF_FAULT(chunk_queries_not_rebased, "own",
                      "queries counted from the batch, not from the chunk")
            ? 0
            : query_start_loc[0];
    const Range all{query_start_loc[request] - chunk_start,
                    query_start_loc[request + 1] - chunk_start};
    const Range queries = clip(all, slice_start, slice_stop);
    const std::int32_t entry_start = cu_seq_lens[request];
    // The position of query 0 of the chunk, were it this request's.
    std::int64_t position = seq_lens[request] - all.end;
    if (MONOREF_FAULT(chunk_prefix_ignored, "T14", "positions counted from the first query"))
      position = -all.begin;
    if (MONOREF_FAULT(chunk_positions_of_slice, "own",
                      "positions counted from the end of the slice"))
      position = seq_lens[request] - queries.end;
    for (std::int64_t q = queries.begin + first_column; q < queries.end; q += columns_of_grid()) {
      const std::int64_t at = MONOREF_FAULT(chunk_slice_start_kept, "own",
                                            "rows of the slice written where the whole chunk's are")
                                  ? q
                                  : q - slice_start;
      if (MONOREF_FAULT_AT(chunk_slice_start_kept) && at >= slice_stop - slice_start) continue;
      const std::int64_t keys =
          MONOREF_FAULT(chunk_key_of_query_missing, "own", "a query does not see its own key")
              ? position + q
              : position + q + 1;
      cu_seqlen_ks[at] = entry_start;
      cu_seqlen_ke[at] = entry_start + entries_before(static_cast<std::int32_t>(keys), sharing);
    }
    const Range own = clip({entry_start, cu_seq_lens[request + 1]}, 0, entries);
    const auto name = static_cast<std::int32_t>(
        MONOREF_FAULT(chunk_request_off_by_one, "own", "keys named after the next request")
            ? request + 1
            : request);
    fill_row(token_to_seq + own.begin, own.end - own.begin, name, first_column, columns_of_grid());
    if (request + 1 < requests) continue;
    const std::int64_t rest = own.end > own.begin ? own.end : own.begin;
    fill_row(token_to_seq + rest, entries - rest, 0, first_column, columns_of_grid());
  }
}
MONOREF_REGISTER(monoref_prefill_chunk_metadata);

}  // namespace monoref::kernels
