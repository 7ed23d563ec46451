// Stages compressed_slot_mapping and compressed_seq_lens: where the compressed key of a token goes,
// and how many compressed keys a sequence has.
#pragma once

#include <cstdint>

#include "reference/core/tensor.hpp"
#include "reference/stages/context_parallel_lengths.hpp"

namespace monoref {

/// How compressed positions are laid into pages.
struct CompressedPages {
  std::int64_t storage_block_size = 1;  ///< compressed keys in one block of this rank's cache
  std::int64_t compress_ratio = 1;      ///< tokens a key; 0 and 1 both mean none
  ContextParallel context_parallel{};
};

struct CompressedSlotMappingInput {
  View<const std::int32_t, 1> query_start_loc;  ///< [requests+1]
  View<const std::int32_t, 1> seq_lens;         ///< [requests], tokens including the query
  View<const std::int32_t, 2> block_table;      ///< [requests, width], ids of this rank's blocks
  CompressedPages pages;
};

struct CompressedSlotMappingOutput {
  /// [tokens]; at least query_start_loc[requests], the rest are padding tokens.
  View<std::int64_t, 1> slot_mapping;
};

/// Slot of the token at `position` (in tokens, from 0) of the request in row `request` of the
/// table, or -1. This one function serves decodes and prefills alike (bug case P09).
///
/// Only the last token of each group of `compress_ratio` writes, and only on the rank that owns the
/// compressed position c = position div ratio. A virtual block is one block of every rank:
/// table column c div (storage_block_size * world), inside it the offset among the owner's
/// positions (recordings: indexer_metadata).
///
/// Everything else is -1: the other tokens and ranks, negative positions (a padded request whose
/// query is longer than its sequence), columns the table does not have (bug case T09: such a column
/// is never read), and columns that hold a negative id, which name no block.
std::int64_t compressed_slot(View<const std::int32_t, 2> block_table, std::int64_t request,
                             std::int64_t position, const CompressedPages& pages);

/// Writes the slot of every token; padding tokens behind the last request get -1.
/// Refuses prefix sums that fall, negative lengths, a storage_block_size below 1 or beyond int32, a
/// negative ratio, a bad ContextParallel, a block that is no whole number of interleave runs when
/// there are several ranks, a table with fewer rows than requests, and fewer slots than tokens.
void compressed_slot_mapping(const CompressedSlotMappingInput& input,
                             const CompressedSlotMappingOutput& output);

/// What `compressed_slot_mapping` refuses, without writing anything.
void check_compressed_slot_mapping(const CompressedSlotMappingInput& input,
                                   const CompressedSlotMappingOutput& output);

struct CompressedSeqLensInput {
  View<const std::int32_t, 1> seq_lens;  ///< [rows], in tokens
  std::int64_t compress_ratio = 1;
  ContextParallel context_parallel{};
};

struct CompressedSeqLensOutput {
  View<std::int32_t, 1> compressed_seq_lens;  ///< [rows], compressed keys on this rank
};

/// seq_len div ratio (rounded down; a group is only complete with its last token), then this rank's
/// share. In this order: shares of tokens are not shares of groups.
std::int64_t compressed_length(std::int64_t length, std::int64_t compress_ratio,
                               const ContextParallel& context_parallel);

/// `compressed_length` of every row. Refuses negative ratios, a bad ContextParallel and outputs of
/// another size.
void compressed_seq_lens(const CompressedSeqLensInput& input,
                         const CompressedSeqLensOutput& output);

}  // namespace monoref
