// index_cache_insert: index keys scattered into their side cache by slot.
//
// Source of the rule: sparse-pa: insert_index_cache, upstream-semantics section 3.5.
// Row r goes to token slot mod block_size of block slot div block_size. Elements are moved as bits,
// one kernel for each element size (b8, b16, b32: bits) and slot type (s32, s64).

#include <cstdint>

#include "device/kernels/flat_grid.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

/// The keys of a launch: [rows, dim].
template <class Element>
struct IndexKeys {
  const Element* data;
  std::int64_t row_stride;
  std::int64_t dim_stride;
  std::int64_t rows;
};

/// The slots of a launch: [count].
template <class Slot>
struct SlotList {
  const Slot* data;
  std::int64_t stride;
  std::int64_t count;
};

/// The cache: [capacity / block_size, block_size, dim], innermost stride 1.
template <class Element>
struct IndexCache {
  Element* data;
  std::int64_t block_stride;
  std::int64_t token_stride;
  std::int64_t capacity;  ///< slots
  std::int32_t block_size;
  std::int32_t dim;
};

/// A slot's row of the cache as an element offset. 0 <= slot < capacity.
template <class Element>
MONOREF_DEVICE std::int64_t offset_of_slot(const IndexCache<Element>& cache, std::int64_t slot) {
  // A 64-bit division costs several times a 32-bit one, and few caches need it.
  std::int64_t block = cache.capacity <= INT32_MAX
                           ? static_cast<std::int32_t>(slot) / cache.block_size
                           : slot / cache.block_size;
  const std::int64_t token = slot - block * cache.block_size;
  if (MONOREF_FAULT(insert_block_16_bits, "O01", "block id cut to 16 bits")) block &= 0xFFFF;
  const std::int64_t token_stride =
      MONOREF_FAULT(insert_token_stride_ignored, "P06",
                    "tokens taken to be as far apart as they are wide")
          ? cache.dim
          : cache.token_stride;
  const std::int64_t block_stride =
      MONOREF_FAULT(insert_block_stride_ignored, "P03",
                    "blocks taken to be as far apart as they are large")
          ? cache.block_size * cache.token_stride
          : cache.block_stride;
  const std::int64_t offset = block * block_stride + token * token_stride;
  // The sign is cut off too, so that the wrong address stays inside the cache's range.
  return MONOREF_FAULT(insert_offset_31_bits, "O02", "cache offset in 31 bits") ? offset & INT32_MAX
                                                                                : offset;
}

/// How many threads share one row: enough for one 16-byte unit each where everything lies on such
/// units, else for one element each; a power of two, at most a wave.
template <class Element>
MONOREF_DEVICE std::int32_t threads_of_row(const IndexKeys<Element>& keys,
                                           const IndexCache<Element>& cache) {
  constexpr std::int64_t kUnit = 16 / sizeof(Element);
  const bool units = keys.dim_stride == 1 && aligned16(keys.data) && aligned16(cache.data) &&
                     keys.row_stride % kUnit == 0 && cache.block_stride % kUnit == 0 &&
                     cache.token_stride % kUnit == 0;
  const std::int64_t moves = units ? (cache.dim + kUnit - 1) / kUnit : cache.dim;
  std::int32_t threads = 1;
  while (threads < moves && threads < simt::kWave) threads *= 2;
  return threads;
}

/// Where element d of a key lies behind the start of its row: rows are plain. (The fault lays 16
/// rows out as tiles of 16 x 16, where they fill whole ones.)
template <class Element>
MONOREF_DEVICE std::int64_t offset_in_row(const IndexCache<Element>& cache, std::int64_t slot,
                                          std::int64_t d) {
  const bool whole_tiles = cache.dim % 16 == 0 && cache.block_size % 16 == 0;
  if (MONOREF_FAULT(insert_tiled_rows, "P07", "keys stored as 16x16 tiles") && whole_tiles)
    return d / 16 * 256 + slot % 16 * (16 - cache.token_stride) + d % 16;
  return d;
}

/// Writes key `row` to `slot`, shared among `step` threads of which this is number `first`.
template <class Element>
MONOREF_DEVICE void write_key(const IndexKeys<Element>& keys, std::int64_t row,
                              const IndexCache<Element>& cache, std::int64_t slot,
                              std::int64_t first, std::int64_t step) {
  std::int64_t from_offset = row * keys.row_stride;
  if (MONOREF_FAULT(insert_key_stride_ignored, "N01",
                    "key rows taken to be as far apart as they are wide"))
    from_offset = row * cache.dim;
  if (MONOREF_FAULT(insert_key_in_16_bytes, "P06", "key rows start at a multiple of 16 bytes"))
    from_offset -= from_offset % (16 / sizeof(Element));
  const Element* from = keys.data + from_offset;
  Element* to = cache.data + offset_of_slot(cache, slot);
  const std::int32_t dim = MONOREF_FAULT(insert_partial_unit_dropped, "own",
                                         "elements behind the last whole 16-byte unit not copied")
                               ? cache.dim - cache.dim % std::int32_t{16 / sizeof(Element)}
                               : cache.dim;
  if (keys.dim_stride == 1 && !MONOREF_FAULT_AT(insert_tiled_rows)) {
    copy_row(from, to, dim, first, step);
    return;
  }
  const std::int64_t from_step =
      MONOREF_FAULT(insert_dim_stride_ignored, "N01", "key elements taken to be contiguous")
          ? 1
          : keys.dim_stride;
  for (std::int64_t d = first; d < dim; d += step)
    to[offset_in_row(cache, slot, d)] = from[d * from_step];
}

/// The slot of key `row`; negative: not written.
template <class Slot>
MONOREF_DEVICE std::int64_t slot_of_row(const SlotList<Slot>& slots, std::int64_t row) {
  const std::int64_t stride =
      MONOREF_FAULT(insert_slot_stride_ignored, "T05", "slots read as if contiguous")
          ? 1
          : slots.stride;
  const Slot slot = slots.data[row * stride];
  return MONOREF_FAULT(insert_slot_low_32_bits, "O07", "only the low 32 bits of a slot count")
             ? static_cast<std::int32_t>(slot)
             : slot;
}

/// Whether the cache has a row for this slot.
MONOREF_DEVICE bool is_stored(std::int64_t slot, std::int64_t capacity) {
  if (MONOREF_FAULT(insert_negative_slot_written, "P11",
                    "slot -1 writes below the base of the cache") &&
      slot == -1)
    return true;
  if (MONOREF_FAULT(insert_capacity_off_by_one, "P14", "slot == capacity is written") &&
      slot == capacity)
    return true;
  return slot >= 0 && slot < capacity;
}

template <class Element, class Slot>
MONOREF_DEVICE void insert(const IndexKeys<Element>& keys, const SlotList<Slot>& slots,
                           const IndexCache<Element>& cache) {
  const std::int64_t step = threads_of_row(keys, cache);
  std::int64_t rows = keys.rows < slots.count ? keys.rows : slots.count;
  if (MONOREF_FAULT(insert_rows_beyond_slots, "P13", "loop bound from the key rows"))
    rows = keys.rows;
  if (MONOREF_FAULT(insert_slots_beyond_rows, "P13", "loop bound from the slots"))
    rows = slots.count;
  if (MONOREF_FAULT(insert_last_row_dropped, "own", "last key row not stored")) rows -= 1;
  const std::int64_t thread = thread_of_grid();
  for (std::int64_t row = thread / step; row < rows; row += threads_of_grid() / step) {
    std::int64_t slot = slot_of_row(slots, row);
    if (MONOREF_FAULT(insert_negative_slot_wraps, "P10", "slot -1 writes the last slot") &&
        slot == -1)
      slot = cache.capacity - 1;
    if (is_stored(slot, cache.capacity)) write_key(keys, row, cache, slot, thread % step, step);
  }
}

}  // namespace

// Inputs   keys [key_rows, dim], elements key_row_stride and key_dim_stride apart
//          slots [slot_count], slot_stride elements apart; negative: the row is not stored
// Outputs  cache [capacity / block_size, block_size, dim], blocks cache_block_stride and tokens
//          cache_token_stride elements apart, innermost stride 1; nothing but the rows of the given
//          slots is written
// Sizes    capacity slots (whole blocks), block_size >= 1 tokens a block, dim >= 0 elements a key.
//          Only the first min(key_rows, slot_count) rows and slots exist. Slots that are stored
//          are distinct: which of two keys of one slot stays is not defined.
// Launch   any grid in x and any block of whole waves; threads_of_row(dim) threads share a row
//          (8 for 128 bytes), so ceil(rows * 8 / threads of a block) blocks suit FP8 keys of 128.
// Misuse   slots below 0 and from capacity on are not stored. Offsets are 64-bit throughout.
#define MONOREF_INDEX_CACHE_INSERT(name, Element, Slot)                                            \
  MONOREF_KERNEL(1024, name)(                                                                      \
      const Element* keys, std::int64_t key_row_stride, std::int64_t key_dim_stride,               \
      std::int64_t key_rows, const Slot* slots, std::int64_t slot_stride, std::int64_t slot_count, \
      Element* cache, std::int64_t cache_block_stride, std::int64_t cache_token_stride,            \
      std::int64_t capacity, std::int32_t block_size, std::int32_t dim) {                          \
    insert<Element, Slot>(                                                                         \
        {keys, key_row_stride, key_dim_stride, key_rows}, {slots, slot_stride, slot_count},        \
        {cache, cache_block_stride, cache_token_stride, capacity, block_size, dim});               \
  }                                                                                                \
  MONOREF_REGISTER(name)

MONOREF_INDEX_CACHE_INSERT(monoref_index_cache_insert_b8_s32, std::uint8_t, std::int32_t);
MONOREF_INDEX_CACHE_INSERT(monoref_index_cache_insert_b8_s64, std::uint8_t, std::int64_t);
MONOREF_INDEX_CACHE_INSERT(monoref_index_cache_insert_b16_s32, std::uint16_t, std::int32_t);
MONOREF_INDEX_CACHE_INSERT(monoref_index_cache_insert_b16_s64, std::uint16_t, std::int64_t);
MONOREF_INDEX_CACHE_INSERT(monoref_index_cache_insert_b32_s32, std::uint32_t, std::int32_t);
MONOREF_INDEX_CACHE_INSERT(monoref_index_cache_insert_b32_s64, std::uint32_t, std::int64_t);

}  // namespace monoref::kernels
