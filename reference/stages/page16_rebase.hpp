// Stage page16_rebase: page-128 block ids and slots in the page-16 numbering of the K/V caches.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

/// Sides (K, V) that lie inside one block: 2 interleaved, 1 dense (mono-decode section 1).
std::int64_t page16_sides(KvLayout layout);

/// Whether a block holds both its K and its V pages. The original decides it from the page counts
/// of the two cache views: interleaved sides leave the V view short of the pages before its first.
bool sides_are_packed(std::int64_t k_view_pages, std::int64_t v_view_pages);

/// How many page ids a block spans: pages_per_block, twice that where sides are packed
/// (sparse-pa: sparse_block_page_stride; bug case P05). pages_per_block < 1 or >= 2^62: refused.
std::int64_t sparse_block_page_stride(std::int64_t k_view_pages, std::int64_t v_view_pages,
                                      std::int64_t pages_per_block = 8);

struct Page16RebaseInput {
  View<const std::int32_t, 2> block_table;  ///< [rows, width]
  std::int64_t sides = 2;                   ///< 1 or 2
};

struct Page16RebaseOutput {
  View<std::int32_t, 2> block_table;  ///< [rows, width]
};

/// The output dims. Refuses sides other than 1 and 2 and an id whose product leaves int32.
std::array<std::int64_t, 2> page16_rebase_shape(const Page16RebaseInput& input);

/// Every id times `sides` (sparse-pa: rebase_block_table_to_page16; upstream-semantics
/// section 3.4). It is a plain product: a padding id of -1 becomes -2. The output view is the
/// input's own storage, element for element, or does not touch it. Refuses what the shape function
/// refuses and an output of other dims, before it writes anything.
void page16_rebase(const Page16RebaseInput& input, const Page16RebaseOutput& output);

struct Page16RebaseSlotsInput {
  View<const std::int64_t, 1> slot_mapping;  ///< [n]
  std::int64_t sides = 2;                    ///< 1 or 2
  std::int64_t block_size = 128;             ///< slots a block
};

struct Page16RebaseSlotsOutput {
  View<std::int64_t, 1> slot_mapping;  ///< [n]
};

/// The output dims. Refuses sides other than 1 and 2, block_size < 1 and a slot whose place leaves
/// int64.
std::array<std::int64_t, 1> page16_rebase_slots_shape(const Page16RebaseSlotsInput& input);

/// Slot s >= 0 becomes s + (sides - 1) * block_size * (s div block_size): it keeps its place in the
/// block, and the block moves past the V pages before it. Negative slots mean "no write" and stay.
/// (upstream-semantics section 3.4; slots of the index cache are never rebased.) Aliasing and
/// refusals as in `page16_rebase`.
void page16_rebase_slots(const Page16RebaseSlotsInput& input,
                         const Page16RebaseSlotsOutput& output);

}  // namespace monoref
