// Stage context_parallel_lengths: one rank's share of every sequence under decode context
// parallelism.
//
// Positions are dealt to the ranks in runs of `interleave`: run 0 to rank 0, run 1 to rank 1, ...,
// then around again (deepseek-indexer-metadata: get_dcp_local_seq_lens, as its prefill kernel
// writes it out; recordings: indexer_metadata).
#pragma once

#include <cstdint>
#include <string_view>

#include "reference/core/tensor.hpp"

namespace monoref {

/// How positions are dealt to ranks. World 1 owns everything.
struct ContextParallel {
  std::int64_t world = 1;       ///< ranks that share the cache
  std::int64_t rank = 0;        ///< this one, 0 .. world-1
  std::int64_t interleave = 1;  ///< consecutive positions on one rank
  bool operator==(const ContextParallel&) const = default;
};

/// Refuses a world or interleave below 1 or beyond int32, and a rank outside the world.
void check_context_parallel(std::string_view stage, const ContextParallel& context_parallel);

/// How many of the positions 0 .. length-1 the rank owns.
///
/// base = length div interleave div world * interleave full rounds, and of the rest up to one run
/// from rank * interleave on. Divisions round down, so that the sum over ranks equals the length
/// even for the negative lengths that `as-seed` expansion hands on.
std::int64_t local_length(std::int64_t length, const ContextParallel& context_parallel);

/// The rank that owns a position >= 0, and the position's index among those that its owner holds.
std::int64_t owner_rank(std::int64_t position, const ContextParallel& context_parallel);
std::int64_t local_position(std::int64_t position, const ContextParallel& context_parallel);

struct ContextParallelLengthsInput {
  View<const std::int32_t, 1> seq_lens;  ///< [rows], global lengths
  ContextParallel context_parallel{};
};

struct ContextParallelLengthsOutput {
  View<std::int32_t, 1> local_seq_lens;  ///< [rows]
};

/// Writes `local_length` of every row. A row of a multi-token request must already be expanded:
/// ownership alternates between ranks, so subtracting from a local length is wrong (bug case T19).
/// Refuses a bad ContextParallel and outputs of another size.
void context_parallel_lengths(const ContextParallelLengthsInput& input,
                              const ContextParallelLengthsOutput& output);

}  // namespace monoref
