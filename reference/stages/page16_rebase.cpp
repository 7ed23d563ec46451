#include "reference/stages/page16_rebase.hpp"

#include <limits>

#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

void check_sides(std::int64_t sides) {
  if (sides != 1 && sides != 2) refuse("page16_rebase: sides is {}, must be 1 or 2", sides);
}

/// The rebased slot, or false where int64 cannot hold it. `slot` is not negative.
bool rebased_slot(const Page16RebaseSlotsInput& input, std::int64_t slot, std::int64_t& rebased) {
  const std::int64_t block_start = slot - slot % input.block_size;
  return !__builtin_add_overflow(slot, (input.sides - 1) * block_start, &rebased);
}

}  // namespace

std::int64_t page16_sides(KvLayout layout) {
  return layout == KvLayout::kInterleaved ? 2 : 1;
}

bool sides_are_packed(std::int64_t k_view_pages, std::int64_t v_view_pages) {
  return v_view_pages != k_view_pages;
}

std::int64_t sparse_block_page_stride(std::int64_t k_view_pages, std::int64_t v_view_pages,
                                      std::int64_t pages_per_block) {
  constexpr std::int64_t limit = std::numeric_limits<std::int64_t>::max() / 2;
  if (pages_per_block < 1 || pages_per_block > limit)
    refuse("page16_rebase: pages_per_block is {}, must be 1 to {}", pages_per_block, limit);
  return pages_per_block * (sides_are_packed(k_view_pages, v_view_pages) ? 2 : 1);
}

std::array<std::int64_t, 2> page16_rebase_shape(const Page16RebaseInput& input) {
  check_sides(input.sides);
  const auto& table = input.block_table;
  for (std::int64_t row = 0; row < table.dim(0); ++row)
    for (std::int64_t column = 0; column < table.dim(1); ++column)
      if (!fits_int32(table(row, column) * input.sides))
        refuse("page16_rebase: block_table[{}][{}] is {}, must be {} to {}", row, column,
               table(row, column), kInt32Min / input.sides, kInt32Max / input.sides);
  return {table.dim(0), table.dim(1)};
}

void page16_rebase(const Page16RebaseInput& input, const Page16RebaseOutput& output) {
  const auto dims = page16_rebase_shape(input);
  require_dims("page16_rebase: output block_table", output.block_table, dims);
  for (std::int64_t row = 0; row < dims[0]; ++row)
    for (std::int64_t column = 0; column < dims[1]; ++column)
      output.block_table(row, column) =
          static_cast<std::int32_t>(input.block_table(row, column) * input.sides);
}

std::array<std::int64_t, 1> page16_rebase_slots_shape(const Page16RebaseSlotsInput& input) {
  check_sides(input.sides);
  if (input.block_size < 1)
    refuse("page16_rebase: block_size is {}, must be at least 1", input.block_size);
  const std::int64_t n = input.slot_mapping.dim(0);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t slot = input.slot_mapping(i);
    std::int64_t rebased = 0;
    if (slot >= 0 && !rebased_slot(input, slot, rebased))
      refuse("page16_rebase: slot_mapping[{}] is {}, its place with {} sides exceeds the limit {}",
             i, slot, input.sides, std::numeric_limits<std::int64_t>::max());
  }
  return {n};
}

void page16_rebase_slots(const Page16RebaseSlotsInput& input,
                         const Page16RebaseSlotsOutput& output) {
  const auto dims = page16_rebase_slots_shape(input);
  require_dims("page16_rebase: output slot_mapping", output.slot_mapping, dims);
  for (std::int64_t i = 0; i < dims[0]; ++i) {
    const std::int64_t slot = input.slot_mapping(i);
    std::int64_t rebased = slot;
    if (slot >= 0) rebased_slot(input, slot, rebased);
    output.slot_mapping(i) = rebased;
  }
}

}  // namespace monoref
