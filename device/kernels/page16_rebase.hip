// page16_rebase: block tables and slots on the page numbering of a cache whose K and V sides share
// a block.
//
// Source of the rule: sparse-pa: rebase_block_table_to_page16, upstream-semantics
// section 3.4. Where a block spans the pages of `sides` sides, block b becomes sides * b, and slot
// s becomes s + 128 * (s div 128) * (sides - 1). A negative block id is multiplied like any other
// (-1 becomes -2); a negative slot means "store nothing" and stays as it is.

#include <cstdint>

#include "device/kernels/flat_grid.hpp"
#include "device/kernels/page_layout.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

/// One rebased block id; wraps as int32 does.
MONOREF_DEVICE std::uint32_t rebased_block(std::uint32_t block, std::uint32_t sides) {
  if (MONOREF_FAULT(rebase_negative_block_kept, "own", "negative ids keep their value") &&
      static_cast<std::int32_t>(block) < 0)
    return block;
  if (MONOREF_FAULT(rebase_block_not_rebased, "P05", "ids copied without the factor")) return block;
  if (MONOREF_FAULT(rebase_block_16_bits, "O01", "block id cut to 16 bits"))
    return (block * sides) & 0xFFFF;
  return block * sides;
}

/// One rebased slot. Slots stay below 2^63 / sides.
MONOREF_DEVICE std::int64_t rebased_slot(std::int64_t slot, std::int32_t sides) {
  if (slot < 0) {
    // A shift divides towards minus infinity: slot -1 would become one of the block before.
    if (MONOREF_FAULT(rebase_negative_slot_rebased, "P10", "slot -1 treated as a slot"))
      return slot + kBlockTokens * (slot >> 7) * (sides - 1);
    return slot;
  }
  const std::int64_t tokens =
      MONOREF_FAULT(rebase_slot_by_page, "S09",
                    "slots rebased by the page of 16 instead of the block of 128")
          ? kPageTokens
          : kBlockTokens;
  const std::int64_t rebased = slot + tokens * (slot / tokens) * (sides - 1);
  if (MONOREF_FAULT(rebase_slot_twice, "own", "slots rebased twice"))
    return rebased + kBlockTokens * (rebased / kBlockTokens) * (sides - 1);
  if (MONOREF_FAULT(rebase_slot_32_bits, "O07", "slots computed in 32 bits"))
    return static_cast<std::int32_t>(rebased);
  return rebased;
}

/// Rebases columns [0, width) of one row, shared among threads as in `copy_row`.
MONOREF_DEVICE void rebase_row(const std::int32_t* from, std::int32_t* to, std::int32_t width,
                               std::uint32_t sides) {
  const std::int64_t first_column =
      MONOREF_FAULT(rebase_grid_y_ignored, "own",
                    "columns of the blocks behind the first in y are not made")
          ? std::int64_t{threadIdx.x}
          : column_of_grid();
  const std::int32_t units = aligned16(from) && aligned16(to) ? width / 4 : 0;
  for (std::int64_t i = first_column; i < units; i += columns_of_grid()) {
    simt::Vec16 blocks = simt::load16(from + i * 4);
    for (std::uint32_t& block : blocks.word) block = rebased_block(block, sides);
    simt::store16(to + i * 4, blocks);
  }
  for (std::int64_t i = units * 4 + first_column; i < width; i += columns_of_grid())
    to[i] = static_cast<std::int32_t>(rebased_block(static_cast<std::uint32_t>(from[i]), sides));
}

}  // namespace

// Inputs   block_table int32 [rows, width], rows table_row_stride elements apart; block ids
// Outputs  rebased int32 [rows, width], rows rebased_row_stride elements apart; columns behind
//          width stay as they are. May be the block table itself (same address and stride).
// Sizes    sides >= 1: how many sides' pages one block holds (1 copies).
// Launch   any grid and any block of whole waves; x goes over rows, y over columns.
// Misuse   None: every id is a number. Products wrap as int32 does.
MONOREF_KERNEL(1024,
               monoref_page16_rebase_table)(const std::int32_t* block_table,
                                            std::int64_t table_row_stride, std::int32_t* rebased,
                                            std::int64_t rebased_row_stride, std::int64_t rows,
                                            std::int32_t width, std::int32_t sides) {
  const std::int64_t from_stride =
      MONOREF_FAULT(rebase_source_stride_ignored, "T08",
                    "source rows taken to be as far apart as they are wide")
          ? width
          : table_row_stride;
  const std::int64_t to_stride =
      MONOREF_FAULT(rebase_destination_stride_ignored, "T08",
                    "destination rows taken to be as far apart as they are wide")
          ? width
          : rebased_row_stride;
  const std::int32_t columns =
      MONOREF_FAULT(rebase_last_column_dropped, "T08", "last table column not written") ? width - 1
                                                                                        : width;
  const std::int64_t row_step = MONOREF_FAULT(rebase_grid_x_runs_once, "own",
                                              "the blocks of the grid take one row each and stop")
                                    ? rows
                                    : gridDim.x;
  for (std::int64_t row = blockIdx.x; row < rows; row += row_step)
    rebase_row(block_table + row * from_stride, rebased + row * to_stride, columns, sides);
}
MONOREF_REGISTER(monoref_page16_rebase_table);

// Inputs   slots int64 [count], slot_stride elements apart; plain slots, negative: store nothing
// Outputs  rebased int64 [count], dense. May be the slots themselves if slot_stride is 1.
// Sizes    sides >= 1, as above.
// Launch   any grid in x and any block of whole waves.
// Misuse   None: every slot is a number, below 2^63 / sides.
MONOREF_KERNEL(1024, monoref_page16_rebase_slots)(const std::int64_t* slots,
                                                  std::int64_t slot_stride, std::int64_t* rebased,
                                                  std::int64_t count, std::int32_t sides) {
  const std::int64_t stride =
      MONOREF_FAULT(rebase_slot_stride_ignored, "T05", "slots read as if contiguous") ? 1
                                                                                      : slot_stride;
  const bool paired = stride == 1 && aligned16(slots) && aligned16(rebased);
  const std::int64_t pairs = paired ? count / 2 : 0;
  for (std::int64_t i = thread_of_grid(); i < pairs; i += threads_of_grid()) {
    std::int64_t first = 0;
    std::int64_t second = 0;
    load_pair(slots + 2 * i, &first, &second);
    store_pair(rebased + 2 * i, rebased_slot(first, sides), rebased_slot(second, sides));
  }
  for (std::int64_t i = 2 * pairs + thread_of_grid(); i < count; i += threads_of_grid())
    rebased[i] = rebased_slot(slots[i * stride], sides);
}
MONOREF_REGISTER(monoref_page16_rebase_slots);

}  // namespace monoref::kernels
