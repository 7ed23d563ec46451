// kv_cache_insert: keys and values into the page-16 cache, index keys into their side cache.
//
// Source of the rule: mono-decode section 3, steps 7 and 8, and section 8; upstream-semantics
// sections 3.3 to 3.5. Addresses of K and V are those of page_layout.hpp.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/flat_grid.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/page_layout.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

/// Value of the `key_source` parameter: keys are converted from f32 without a step through BF16.
constexpr std::int32_t kSourceUnrounded = 1;
/// Value of the `scaling` parameter: times the rounded reciprocal of the scale, not divided by it.
constexpr std::int32_t kScalingReciprocal = 1;

/// Neighbouring tokens and dims of V that neighbouring threads have.
constexpr std::int32_t kTileTokens = 4;
constexpr std::int32_t kTileDims = 16;

/// A number as an element of an FP8 cache.
struct ToE4m3 {
  using Element = std::uint8_t;
  E4m3 format;
  float k_scale, v_scale;
  bool reciprocal;
  bool unrounded_keys;

  MONOREF_MEMBER float scaled(float x, float scale) const {
    return reciprocal != MONOREF_FAULT(kv_scaling_swapped, "N08",
                                       "division for the reciprocal and the reverse")
               ? x * rcp(scale)
               : x / scale;
  }
  MONOREF_MEMBER Element key(float x) const {
    const bool unrounded =
        unrounded_keys || MONOREF_FAULT(kv_key_source_unrounded, "F06",
                                        "keys not rounded to BF16 against the contract");
    const bool rounded = !unrounded || MONOREF_FAULT(kv_key_source_rounded, "F06",
                                                     "keys rounded to BF16 against the contract");
    return e4m3_of(scaled(rounded ? rounded_to_bf16(x) : x, k_scale), format);
  }
  MONOREF_MEMBER Element value(std::uint16_t bf16) const {
    const float scale = MONOREF_FAULT(kv_value_by_k_scale, "F10", "V divided by the scale of K")
                            ? k_scale
                            : v_scale;
    return e4m3_of(scaled(float_of_bf16(bf16), scale), format);
  }
};

/// A number as an element of a BF16 cache: no scales, and V keeps its bits.
struct ToBf16 {
  using Element = std::uint16_t;

  MONOREF_MEMBER Element key(float x) const { return bf16_of(x); }
  MONOREF_MEMBER Element value(std::uint16_t bf16) const { return bf16; }
};

/// The slots of a launch: [count].
struct SlotList {
  const std::int64_t* data;
  std::int64_t stride;
  std::int64_t capacity;

  /// The slot that row `row` goes to; negative: the row is not stored.
  MONOREF_MEMBER std::int64_t of(std::int64_t row) const {
    std::int64_t slot = data[row * stride];
    if (MONOREF_FAULT(kv_slot_32_bits, "O07", "only the low 32 bits of a slot count"))
      slot = static_cast<std::int32_t>(slot);
    if (MONOREF_FAULT(kv_negative_slot_wraps, "P10", "slot -1 writes the last slot") && slot == -1)
      return capacity - 1;
    if (MONOREF_FAULT(kv_negative_slot_is_zero, "P11", "slot -1 writes slot 0") && slot < 0)
      return 0;
    if (MONOREF_FAULT(kv_slot_modulo_capacity, "P14", "a slot beyond the cache wraps") &&
        slot >= capacity)
      return slot % capacity;
    return slot < capacity ? slot : -1;
  }
};

/// One word of a cache, made from the numbers that it has room for.
template <class Convert>
MONOREF_DEVICE std::uint32_t key_word(const Convert& convert, const float* from) {
  constexpr int kBits = 8 * static_cast<int>(sizeof(typename Convert::Element));
  std::uint32_t word = 0;
  for (int i = 0; i < 32 / kBits; ++i) word |= std::uint32_t{convert.key(from[i])} << kBits * i;
  return word;
}

/// Converts f32 to 16 bytes of elements and stores them. Loads and stores are 16-byte vectors where
/// their addresses allow it.
template <class Convert>
MONOREF_DEVICE void store_key_vector(const Convert& convert, const float* from,
                                     typename Convert::Element* to) {
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(typename Convert::Element));
  float values[kVector];
  if (aligned16(from)) {
    for (int i = 0; i < kVector; i += 4) {
      const simt::Vec16 four = simt::load16(from + i);
      for (int j = 0; j < 4; ++j) values[i + j] = simt::bit_cast<float>(four.word[j]);
    }
  } else {
    for (int i = 0; i < kVector; ++i) values[i] = from[i];
  }
  if (aligned16(to)) {
    simt::store16(to, {{key_word(convert, values), key_word(convert, values + kVector / 4),
                        key_word(convert, values + kVector / 2),
                        key_word(convert, values + 3 * kVector / 4)}});
  } else {
    for (int i = 0; i < kVector; ++i) to[i] = convert.key(values[i]);
  }
}

/// What an insertion into the page-16 cache is made of.
template <class Element>
struct KvInsert {
  const float* k;
  std::int64_t k_row_stride;
  const std::uint16_t* v;
  std::int64_t v_row_stride;
  SlotList slots;
  Element* k_cache;
  Element* v_cache;
  std::int64_t rows;
  PageShape shape;
};

/// Tiles of neighbouring tokens.
MONOREF_DEVICE std::int64_t tiles_of(std::int64_t rows) {
  return (rows + kTileTokens - 1) / kTileTokens;
}

/// Stores K of the tokens of a tile. A thread has one 16-byte vector: 16 or 8 dims of a head.
/// Neighbouring threads have the same dims of neighbouring tokens, whose vectors lie side by side
/// if they share a page.
template <class Convert>
MONOREF_DEVICE void insert_keys(const KvInsert<typename Convert::Element>& in,
                                const Convert& convert, std::int64_t tile) {
  constexpr std::int32_t kVector =
      kVectorBytes / static_cast<int>(sizeof(typename Convert::Element));
  const std::int32_t vectors = in.shape.head_dim / kVector;
  auto* cache = in.k_cache;
  if (MONOREF_FAULT(kv_key_into_value_pages, "P16", "keys written to the pages of V"))
    cache = in.v_cache + in.shape.v_view_start();
  const std::int32_t items = vectors * in.shape.heads * kTileTokens;
  const std::int64_t first_column =
      MONOREF_FAULT(kv_grid_y_ignored, "own",
                    "columns of the blocks behind the first in y are not made")
          ? std::int64_t{threadIdx.x}
          : column_of_grid();
  for (std::int64_t i = first_column; i < items; i += columns_of_grid()) {
    const auto item = static_cast<std::int32_t>(i);
    const std::int64_t row = tile * kTileTokens + item % kTileTokens;
    const std::int64_t slot = row < in.rows ? in.slots.of(row) : -1;
    if (slot < 0) continue;
    const std::int32_t head = item / kTileTokens / vectors;
    const std::int32_t dim = item / kTileTokens % vectors * kVector;
    const PagePosition position = position_of_slot(slot, in.shape.sides);
    store_key_vector(convert, in.k + row * in.k_row_stride + head * in.shape.head_dim + dim,
                     cache + k_element(in.shape, position, head, dim));
  }
}

/// Stores V of the tokens of a tile. Pages of V are transposed: a token's dims lie 16 bytes apart,
/// and the bytes between them belong to other tokens. So stores are arranged to share lines: 64
/// neighbouring threads have 16 dims of 4 tokens, so that one instruction touches the fewest lines
/// where the tokens share a page, and no more than in any other order where they do not.
template <class Convert>
MONOREF_DEVICE void insert_values(const KvInsert<typename Convert::Element>& in,
                                  const Convert& convert, std::int64_t tile) {
  auto* cache = in.v_cache + in.shape.v_view_start();
  const std::int32_t items = in.shape.heads * in.shape.head_dim * kTileTokens;
  const std::int64_t first_column =
      MONOREF_FAULT_AT(kv_grid_y_ignored) ? std::int64_t{threadIdx.x} : column_of_grid();
  for (std::int64_t i = first_column; i < items; i += columns_of_grid()) {
    const auto item = static_cast<std::int32_t>(i);
    const std::int64_t row = tile * kTileTokens + item / kTileDims % kTileTokens;
    const std::int64_t slot = row < in.rows ? in.slots.of(row) : -1;
    if (slot < 0) continue;
    const std::int32_t element = item / (kTileDims * kTileTokens) * kTileDims + item % kTileDims;
    const std::int32_t head = element / in.shape.head_dim;
    const std::int32_t dim = element - head * in.shape.head_dim;
    const PagePosition position = position_of_slot(slot, in.shape.sides);
    const std::int32_t to =
        MONOREF_FAULT(kv_value_into_head_0, "S22", "values of every head written to head 0") ? 0
                                                                                             : head;
    cache[v_element(in.shape, position, to, dim)] =
        convert.value(in.v[row * in.v_row_stride + element]);
  }
}

template <class Convert>
MONOREF_DEVICE void insert(const KvInsert<typename Convert::Element>& in, const Convert& convert) {
  if (in.shape.head_dim % kTileDims != 0) return;
  const std::int64_t tile_step = MONOREF_FAULT(kv_grid_x_runs_once, "own",
                                               "the blocks of the grid take one tile each and stop")
                                     ? tiles_of(in.rows)
                                     : gridDim.x;
  for (std::int64_t tile = blockIdx.x; tile < tiles_of(in.rows); tile += tile_step) {
    insert_keys(in, convert, tile);
    insert_values(in, convert, tile);
  }
}

/// The rows that have both a key and a slot.
MONOREF_DEVICE std::int64_t rows_with_slot(std::int64_t rows, std::int64_t slot_count) {
  if (MONOREF_FAULT(kv_last_row_dropped, "own", "last row not stored")) rows -= 1;
  return rows < slot_count ? rows : slot_count;
}

/// The index cache: [capacity / block_size, block_size, dim], innermost stride 1.
template <class Element>
struct IndexCache {
  Element* data;
  std::int64_t block_stride;
  std::int64_t token_stride;
  std::int32_t block_size;
  std::int32_t dim;
};

/// Stores index keys. A thread has one 16-byte vector; the rest of a row is stored element by
/// element.
template <class Convert>
MONOREF_DEVICE void insert_index_keys(const float* keys, std::int64_t key_row_stride,
                                      std::int64_t rows, const SlotList& slots,
                                      const IndexCache<typename Convert::Element>& cache,
                                      const Convert& convert) {
  constexpr std::int32_t kVector =
      kVectorBytes / static_cast<int>(sizeof(typename Convert::Element));
  const std::int32_t vectors = cache.dim / kVector;
  const std::int32_t row_items = vectors + cache.dim % kVector;
  for (std::int64_t i = thread_of_grid(); i < rows * row_items; i += threads_of_grid()) {
    const auto item = static_cast<std::int32_t>(i);
    const std::int32_t row = item / row_items;
    const std::int32_t part = item - row * row_items;
    const std::int64_t slot = slots.of(row);
    if (slot < 0) continue;
    const std::int64_t block = slot / cache.block_size;
    const std::int64_t token = slot - block * cache.block_size;
    auto* to = cache.data + block * cache.block_stride + token * cache.token_stride;
    const float* from = keys + row * key_row_stride;
    if (part < vectors) {
      store_key_vector(convert, from + part * kVector, to + part * kVector);
    } else {
      const std::int32_t dim = vectors * kVector + part - vectors;
      to[dim] = convert.key(from[dim]);
    }
  }
}

}  // namespace

// Inputs   k f32 [rows, heads * head_dim], as qk_norm_rope leaves it; v bf16 of the same shape, as
//          it stands in the projection; rows k_row_stride and v_row_stride elements apart,
//          innermost stride 1
//          slots int64 [slot_count], slot_stride elements apart: plain slots (block * 128 + token);
//          negative: the row is not stored
// Outputs  k_cache, v_cache codes in the page-16 layout: with dense sides two planes, with
//          interleaved sides the same buffer twice (V finds its view, 8 pages behind, by itself).
//          Nothing but the elements of the given slots is written.
//            K   e4m3(bf16(k) / k_scale)      V   e4m3(v / v_scale)
// Sizes    capacity slots (whole blocks of 128); head_dim a multiple of 16; sides 1 (dense) or 2
//          (interleaved); scales positive. Only the first min(rows, slot_count) rows exist. Slots
//          that are stored are distinct: which of two rows of one slot stays is not defined.
// Options  scaling     0: IEEE division by the scale; 1: product with 1 / scale, rounded
//          key_source  0: k goes through BF16; 1: it does not
//          encoding    0: E4M3FN; 1: E4M3FNUZ
//          overflow    0: NaN; 1: saturate
// Launch   any grid and any block of whole waves; x goes over tiles of 4 rows, y over their
//          elements (512 a tile and head: 256 threads and two blocks in y leave nobody idle).
// Misuse   Slots below 0 and from capacity on are not stored; other head sizes write nothing.
//          Offsets are 64-bit throughout.
MONOREF_KERNEL(1024, monoref_kv_cache_insert_fp8)(
    const float* k, std::int64_t k_row_stride, const std::uint16_t* v, std::int64_t v_row_stride,
    std::int64_t rows, const std::int64_t* slots, std::int64_t slot_stride, std::int64_t slot_count,
    std::uint8_t* k_cache, std::uint8_t* v_cache, std::int64_t capacity, std::int32_t heads,
    std::int32_t head_dim, std::int32_t sides, float k_scale, float v_scale, std::int32_t scaling,
    std::int32_t key_source, std::int32_t encoding, std::int32_t overflow) {
  const ToE4m3 convert{e4m3_format(encoding, overflow), k_scale, v_scale,
                       scaling == kScalingReciprocal, key_source == kSourceUnrounded};
  insert({k,
          k_row_stride,
          v,
          v_row_stride,
          {slots, slot_stride, capacity},
          k_cache,
          v_cache,
          rows_with_slot(rows, slot_count),
          {heads, head_dim, 1, sides}},
         convert);
}
MONOREF_REGISTER(monoref_kv_cache_insert_fp8);

// The same for a BF16 cache: K is bf16(k), V keeps its bits, and there are no scales.
MONOREF_KERNEL(1024, monoref_kv_cache_insert_bf16)(
    const float* k, std::int64_t k_row_stride, const std::uint16_t* v, std::int64_t v_row_stride,
    std::int64_t rows, const std::int64_t* slots, std::int64_t slot_stride, std::int64_t slot_count,
    std::uint16_t* k_cache, std::uint16_t* v_cache, std::int64_t capacity, std::int32_t heads,
    std::int32_t head_dim, std::int32_t sides) {
  insert({k,
          k_row_stride,
          v,
          v_row_stride,
          {slots, slot_stride, capacity},
          k_cache,
          v_cache,
          rows_with_slot(rows, slot_count),
          {heads, head_dim, 2, sides}},
         ToBf16{});
}
MONOREF_REGISTER(monoref_kv_cache_insert_bf16);

// Inputs   keys f32 [rows, dim], as qk_norm_rope leaves index k; rows key_row_stride elements
//          apart, innermost stride 1
//          slots int64 [slot_count], slot_stride elements apart; plain slots, never rebased
// Outputs  cache codes [capacity / block_size, block_size, dim], blocks cache_block_stride and
//          tokens cache_token_stride bytes apart, innermost stride 1: e4m3(bf16(key)), unit scale
// Sizes    capacity slots (whole blocks), block_size >= 1, dim >= 0. Only the first
//          min(rows, slot_count) rows exist. Slots that are stored are distinct. rows * dim is
//          below 2^31.
// Options  key_source, encoding, overflow as for the K/V cache
// Launch   any grid in x and any block of whole waves in one dimension.
// Misuse   Slots below 0 and from capacity on are not stored. Offsets are 64-bit throughout.
MONOREF_KERNEL(1024, monoref_index_key_insert_fp8)(
    const float* keys, std::int64_t key_row_stride, std::int64_t rows, const std::int64_t* slots,
    std::int64_t slot_stride, std::int64_t slot_count, std::uint8_t* cache,
    std::int64_t cache_block_stride, std::int64_t cache_token_stride, std::int64_t capacity,
    std::int32_t block_size, std::int32_t dim, std::int32_t key_source, std::int32_t encoding,
    std::int32_t overflow) {
  const ToE4m3 convert{e4m3_format(encoding, overflow), 1.0F, 1.0F, false,
                       key_source == kSourceUnrounded};
  insert_index_keys(keys, key_row_stride, rows_with_slot(rows, slot_count),
                    {slots, slot_stride, capacity},
                    {cache, cache_block_stride, cache_token_stride, block_size, dim}, convert);
}
MONOREF_REGISTER(monoref_index_key_insert_fp8);

// The same for a BF16 index cache: bf16(key); strides count elements.
MONOREF_KERNEL(1024, monoref_index_key_insert_bf16)(
    const float* keys, std::int64_t key_row_stride, std::int64_t rows, const std::int64_t* slots,
    std::int64_t slot_stride, std::int64_t slot_count, std::uint16_t* cache,
    std::int64_t cache_block_stride, std::int64_t cache_token_stride, std::int64_t capacity,
    std::int32_t block_size, std::int32_t dim) {
  insert_index_keys(keys, key_row_stride, rows_with_slot(rows, slot_count),
                    {slots, slot_stride, capacity},
                    {cache, cache_block_stride, cache_token_stride, block_size, dim}, ToBf16{});
}
MONOREF_REGISTER(monoref_index_key_insert_bf16);

}  // namespace monoref::kernels
