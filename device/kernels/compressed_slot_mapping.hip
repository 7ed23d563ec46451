// compressed_slot_mapping: where each token of a step stores its entry in this rank's indexer
// cache.
//
// Source of the rule: deepseek-indexer-metadata: get_compressed_slot_mapping, as recordings:
// indexer_metadata states it. With compression a group of `ratio` keys makes one entry, stored when
// its last key arrives: position p stores entry c = p div ratio if p + 1 is a multiple of ratio.
// Entries go round the ranks in runs of `interleave`, so one block of the table stands for a
// virtual block of storage_block_size * world entries:
//
//   column = c div (B * W), vo = c mod (B * W)
//   owner  = (vo div I) mod W
//   offset = (vo div (I * W)) * I + vo mod I
//   slot   = block_table[request][column] * B + offset
//
// and -1 for every token that stores nothing here; a negative id names no block.

#include <cstdint>

#include "device/kernels/cache_length.hpp"
#include "device/kernels/flat_grid.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr std::int64_t kNothingStored = -1;

/// The slot of position `position` of a request, or kNothingStored. Reads the table row at the
/// column of an entry that this rank owns only, and never behind its width.
MONOREF_DEVICE std::int64_t slot_of_position(std::int64_t position, const std::int32_t* table_row,
                                             std::int32_t width, std::int32_t block_size,
                                             const CacheSharing& sharing) {
  const std::int32_t ratio = sharing.ratio > 1 ? sharing.ratio : 1;
  const std::int32_t world = sharing.world > 1 ? sharing.world : 1;
  const std::int32_t run =
      MONOREF_FAULT(slots_interleave_1, "T19", "keys dealt to the ranks one by one")
          ? 1
          : sharing.interleave;
  const std::int64_t nothing =
      MONOREF_FAULT(slots_nothing_is_slot_0, "P10", "tokens that store nothing get slot 0")
          ? 0
          : kNothingStored;
  if (position < 0) return nothing;
  const std::int64_t group =
      MONOREF_FAULT(slots_first_key_of_group, "T12", "a group is stored when its first key arrives")
          ? position
          : position + 1;
  if (group % ratio != 0) return nothing;
  const std::int64_t entry = MONOREF_FAULT(slots_of_positions, "T12",
                                           "the position itself taken for the compressed position")
                                 ? position
                                 : position / ratio;
  const std::int64_t virtual_block = std::int64_t{block_size} * world;
  const std::int64_t column = entry / virtual_block;
  const std::int64_t inside = entry - column * virtual_block;
  const bool owned = world == 1 || inside / run % world == sharing.rank;
  if (!owned && !MONOREF_FAULT(slots_owner_ignored, "T19", "every rank stores every key"))
    return nothing;
  if (column >= width) return nothing;
  const std::int64_t offset = world == 1 ? inside : inside / (run * world) * run + inside % run;
  const std::int64_t block = table_row[column];
  if (block < 0 &&
      !MONOREF_FAULT(slots_of_no_block, "P11", "a negative block id used as an address"))
    return nothing;
  if (MONOREF_FAULT(slots_block_size_of_keys, "P03",
                    "blocks as large as the keys they stand for (also P09)"))
    return block * block_size * ratio + offset;
  if (MONOREF_FAULT(slots_32_bits, "O07", "slots computed in 32 bits"))
    return static_cast<std::int32_t>(block * block_size + offset);
  return block * block_size + offset;
}

}  // namespace

// Inputs   query_start_loc int32 [requests + 1], dense: first token of each request, from 0
//          seq_lens int32 [requests], dense: global keys, this step's included
//          block_table int32 [requests, width], rows table_row_stride elements apart
// Outputs  slot_mapping int64 [slot_count], dense; in entries of the cache; -1 for tokens that
//          store nothing and for all from query_start_loc[requests] on (the padding of a captured
//          graph)
// Sizes    storage_block_size B >= 1 entries a block; compress_ratio, world, rank, interleave as in
//          CacheSharing.
// Launch   any grid and any block of whole waves; x goes over requests and the padding, y over the
//          tokens of one.
// Misuse   Positions below 0, entries behind the width of the table and entries of a block with a
//          negative id store nothing. Nothing is written outside slot_mapping.
MONOREF_KERNEL(1024, monoref_compressed_slot_mapping)(
    const std::int32_t* query_start_loc, const std::int32_t* seq_lens,
    const std::int32_t* block_table, std::int64_t table_row_stride, std::int64_t* slot_mapping,
    std::int64_t requests, std::int64_t slot_count, std::int32_t width,
    std::int32_t storage_block_size, std::int32_t compress_ratio, std::int32_t world,
    std::int32_t rank, std::int32_t interleave) {
  const CacheSharing sharing{compress_ratio, world, rank, interleave};
  const std::int64_t first_column =
      MONOREF_FAULT(slots_grid_y_ignored, "own",
                    "columns of the blocks behind the first in y are not made")
          ? std::int64_t{threadIdx.x}
          : column_of_grid();
  for (std::int64_t request = blockIdx.x; request <= requests; request += gridDim.x) {
    const bool padding = request == requests;
    if (padding && MONOREF_FAULT(slots_stale_padding, "T26", "slots of padding tokens not written"))
      continue;
    const std::int64_t start = query_start_loc[request];
    const std::int64_t begin = start > 0 ? start : 0;
    const std::int64_t stop = padding ? slot_count : query_start_loc[request + 1];
    const std::int64_t end = stop < slot_count ? stop : slot_count;
    const std::int64_t stride =
        MONOREF_FAULT(slots_table_stride_ignored, "T08",
                      "table rows taken to be as far apart as they are wide")
            ? width
            : table_row_stride;
    const std::int32_t* table_row = padding ? nullptr : block_table + request * stride;
    // The position of token 0 of the step, were it this request's.
    std::int64_t position = padding ? 0 : seq_lens[request] - stop;
    if (MONOREF_FAULT(slots_prefix_ignored, "T14",
                      "positions counted from the first token of the step"))
      position = -start;
    for (std::int64_t token = begin + first_column; token < end; token += columns_of_grid())
      slot_mapping[token] = padding ? kNothingStored
                                    : slot_of_position(position + token, table_row, width,
                                                       storage_block_size, sharing);
  }
}
MONOREF_REGISTER(monoref_compressed_slot_mapping);

}  // namespace monoref::kernels
