// kv_cache_insert: see device/kernels/kv_cache_insert.hip.
#pragma once

#include <type_traits>

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

/// How numbers become codes; a BF16 cache takes none of it.
struct Fp8Codes {
  float k_scale = 1, v_scale = 1;  ///< not of index keys
  std::int32_t scaling = 0;        ///< likewise
  std::int32_t key_source = 0, encoding = 0, overflow = 0;
};

/// Element: uint8 for codes, uint16 for bf16.
template <class Element>
struct KvCacheInsert {
  const float* k;
  std::int64_t k_row_stride;
  const std::uint16_t* v;
  std::int64_t v_row_stride, rows;
  const std::int64_t* slots;
  std::int64_t slot_stride, slot_count;
  Element* k_cache;
  Element* v_cache;
  std::int64_t capacity, heads, head_dim, sides;
  Fp8Codes codes = {};

  static constexpr bool kCodes = std::is_same_v<Element, std::uint8_t>;
  static_assert(kCodes || std::is_same_v<Element, std::uint16_t>);

  static constexpr std::string_view kernel() {
    return kCodes ? "monoref_kv_cache_insert_fp8" : "monoref_kv_cache_insert_bf16";
  }
  /// A tile has four rows.
  Grid grid(int) const {
    const std::uint32_t threads = threads_for(heads * head_dim);
    return {.blocks_x = blocks(parts(rows, 4)),
            .blocks_y = blocks(parts(4 * heads * head_dim, 2 * std::int64_t{threads}), 8),
            .threads_x = threads};
  }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    const auto all = [&](auto... options) {
      take(k, k_row_stride, v, v_row_stride, rows, slots, slot_stride, slot_count, k_cache, v_cache,
           capacity, narrow(heads), narrow(head_dim), narrow(sides), options...);
    };
    if constexpr (kCodes)
      all(codes.k_scale, codes.v_scale, codes.scaling, codes.key_source, codes.encoding,
          codes.overflow);
    else
      all();
  }
};

/// Index keys, whose codes have no scale.
template <class Element>
struct IndexKeyInsert {
  const float* keys;
  std::int64_t key_row_stride, rows;
  const std::int64_t* slots;
  std::int64_t slot_stride, slot_count;
  Element* cache;
  std::int64_t cache_block_stride, cache_token_stride, capacity, block_size, dim;
  Fp8Codes codes = {};

  static constexpr bool kCodes = std::is_same_v<Element, std::uint8_t>;
  static_assert(kCodes || std::is_same_v<Element, std::uint16_t>);

  static constexpr std::string_view kernel() {
    return kCodes ? "monoref_index_key_insert_fp8" : "monoref_index_key_insert_bf16";
  }
  Grid grid(int) const { return {.blocks_x = blocks(parts(rows, 4)), .threads_x = 64}; }
  static constexpr Legal legal(int wave) { return any_x(wave); }
  template <class Take>
  void pass(const Take& take) const {
    const auto all = [&](auto... options) {
      take(keys, key_row_stride, rows, slots, slot_stride, slot_count, cache, cache_block_stride,
           cache_token_stride, capacity, narrow(block_size), narrow(dim), options...);
    };
    if constexpr (kCodes)
      all(codes.key_source, codes.encoding, codes.overflow);
    else
      all();
  }
};

}  // namespace monoref::device::launch
