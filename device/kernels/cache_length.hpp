// From global key counts to what one rank's indexer cache holds: compression and context
// parallelism (deepseek-indexer-metadata: get_dcp_local_seq_lens and build_prefill_chunk_metadata).
#pragma once

#include <cstdint>

#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

/// How an indexer cache keeps the keys of a request.
struct CacheSharing {
  std::int32_t ratio;       ///< keys per stored entry; 0 and 1: every key
  std::int32_t world;       ///< ranks that share the entries; 0 and 1: none
  std::int32_t rank;        ///< this one, below world
  std::int32_t interleave;  ///< neighbouring entries that go to one rank, >= 1
};

}  // namespace

/// Division by a positive number, rounded towards minus infinity as the original's host code does:
/// lengths of padded requests may be negative.
MONOREF_DEVICE std::int32_t floor_divide(std::int32_t value, std::int32_t divisor) {
  const std::int32_t quotient = value / divisor;
  return value % divisor < 0 ? quotient - 1 : quotient;
}

/// Entries that `keys` keys fill: only whole groups of `ratio` keys are stored.
MONOREF_DEVICE std::int32_t stored_entries(std::int32_t keys, const CacheSharing& sharing) {
  if (sharing.ratio <= 1) return keys;
  if (MONOREF_FAULT(length_rounded_up, "T12", "an incomplete group counts as a key",
                    .stages = {"decode_expand"}))
    return floor_divide(keys + sharing.ratio - 1, sharing.ratio);
  const std::int32_t entries = floor_divide(keys, sharing.ratio);
  return MONOREF_FAULT(length_divided_twice, "T12",
                       "compressed lengths divided by the ratio once more",
                       .stages = {"decode_expand"})
             ? floor_divide(entries, sharing.ratio)
             : entries;
}

/// Of the first `entries` entries, those that this rank owns. Entries go round the ranks in runs of
/// `interleave`. Summed over the ranks this gives `entries`.
MONOREF_DEVICE std::int32_t local_entries(std::int32_t entries, const CacheSharing& sharing) {
  if (sharing.world <= 1) return entries;
  const std::int32_t run =
      MONOREF_FAULT(length_interleave_1, "T19",
                    "keys dealt to the ranks one by one, whatever the interleave",
                    .stages = {"context_parallel_lengths"})
          ? 1
          : sharing.interleave;
  const std::int32_t base = floor_divide(floor_divide(entries, run), sharing.world) * run;
  // Of the most negative entries, base times world does not fit; the difference does.
  const auto rest = static_cast<std::int32_t>(static_cast<std::uint32_t>(entries) -
                                              static_cast<std::uint32_t>(base) *
                                                  static_cast<std::uint32_t>(sharing.world));
  if (MONOREF_FAULT(length_rest_to_rank_0, "T19", "the keys of the last round all on rank 0",
                    .stages = {"context_parallel_lengths"}))
    return sharing.rank == 0 ? base + rest : base;
  const std::int32_t own = rest - sharing.rank * run;
  return base + (own < 0 ? 0 : own < run ? own : run);
}

/// Entries of this rank's cache that a query with `keys` keys may see. Compression comes first,
/// ownership second; both come after the expansion of lengths to query tokens.
MONOREF_DEVICE std::int32_t visible_entries(std::int32_t keys, const CacheSharing& sharing) {
  return local_entries(stored_entries(keys, sharing), sharing);
}

}  // namespace monoref::kernels
