// Stage kv_cache_insert: a step's keys, values and index keys into their caches.
#pragma once

#include <cstdint>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"
#include "reference/stages/kv_page_address.hpp"

namespace monoref {

/// Takes over from qk_norm_rope (k and index_k, unrounded) and from the projection (v). Caches are
/// whole tensors, because the stage judges their element types and storage itself.
///
/// A K/V cache is a dense tensor [blocks, pages, kv_heads, head_dim * page_size] of the contract's
/// FP8 or of BF16, perhaps with only some of its blocks stored. Interleaved: one tensor serves as
/// k_cache and as v_cache, and a block's pages are those of K, then those of V. Dense: two tensors
/// of the same dims and type.
struct KvCacheInsertInput {
  View<const float, 3> k;          ///< [n, kv_heads, head_dim] binary32, rotated
  View<const std::uint16_t, 3> v;  ///< [n, kv_heads, head_dim] BF16, as projected; any strides
  View<const float, 3> index_k;    ///< [n, 1, head_dim] binary32, rotated
  const Tensor& slot_mapping;      ///< [n] int64, plain (not rebased); negative: padding
  const Tensor& k_cache;           ///< before the call
  const Tensor& v_cache;
  const Tensor& index_cache;  ///< [blocks, block_size, head_dim], the contract's FP8 or BF16
  double k_scale = 1.0;       ///< of the whole cache; rounded to binary32 once
  double v_scale = 1.0;
  Contract contract{};
};

/// After the call: the input's own tensors, or ones of their types and layouts. Interleaved: one
/// tensor for k_cache and v_cache.
struct KvCacheInsertOutput {
  Tensor& k_cache;
  Tensor& v_cache;
  Tensor& index_cache;
};

/// The K/V caches' geometry, after every check of the input.
///
/// Refuses caches of other ranks, types (mixed encodings: bug case F15), dims or strides than
/// above; one tensor for dense caches and two for interleaved ones; v, index_k and slots of other
/// dims than k; an index cache of another capacity than the K/V caches; a scale that is not above 0
/// and finite in binary32, or not 1 where the cache is BF16, which holds values as they are; a slot
/// at or beyond the capacity (bug case P14); two rows with one slot (a race in the original); and
/// a slot whose page or index row the caches do not store.
///
/// Under the contract's `drop`, what a kernel does that cannot refuse: a slot at or beyond the
/// capacity stores nothing, and of rows and slots only the first min(n, slots) take part.
KvPageShape kv_cache_insert_shape(const KvCacheInsertInput& input);

/// Per row with slot s >= 0 (mono-decode sections 3.7, 3.8 and 10; upstream-semantics 3.3 to 3.5):
///
///   FP8 cache:   K element = fp8(scaled(k', k_scale)), k' = bf16(k) or k by the contract's key
///                source; V element = fp8(scaled(v, v_scale)) from the BF16 value
///                scaled(x, s) = x / s, or x * (1 / s), by the contract
///   BF16 cache:  K element = bf16(k); V element = v, as bits
///   index cache: fp8(k'), the same source with unit scale, or bf16(k); then stage
///                index_cache_insert
///
/// Conversions do not clamp unless the contract saturates. A K or V element (s, head, dim) lies
/// where kv_page_address says. Negative slots store nothing; the rest of all storage keeps its
/// bits.
///
/// Refuses what the shape function refuses and outputs of other types or layouts, before it writes
/// anything.
void kv_cache_insert(const KvCacheInsertInput& input, const KvCacheInsertOutput& output);

}  // namespace monoref
