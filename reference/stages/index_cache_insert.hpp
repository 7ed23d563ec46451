// Stage index_cache_insert: scatter of index keys into the key-only side cache.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

/// Whole tensors, not views: the stage judges their ranks, element types and storage itself.
struct IndexCacheInsertInput {
  const Tensor& index_k;  ///< [n, head_dim], any strides
  const Tensor&
      index_cache;  ///< [blocks, block_size, head_dim] before the call, same type as index_k
  const Tensor& slot_mapping;  ///< [n] int32 or int64; slot = block * block_size + token
  OutOfRangeSlot out_of_range_slot = OutOfRangeSlot::kRefuse;
};

struct IndexCacheInsertOutput {
  Tensor& index_cache;  ///< after the call; the input's own tensor, or one of its type and layout
};

/// The cache's dims, after every check of the input.
///
/// An empty index_k or index_cache is accepted before any other check, as in sparse-pa, and nothing
/// is stored. Refuses then, in this order and each with its own message: index_k not of rank 2;
/// index_cache not of rank 3; head dims that differ; slot_mapping not of rank 1; a slot count other
/// than n; a last cache stride other than 1 (the original's errors); element types that differ
/// or are not of 1, 2 or 4 bytes (conversion is another stage's); slots neither int32 nor int64;
/// cache strides that let two slots overlap; and per row: a slot at or beyond the capacity (bug
/// case P14), an element that the storage of cache or keys does not hold, two rows with one slot.
///
/// `kDrop` states what a kernel does, which cannot refuse: a slot at or beyond the capacity stores
/// nothing, and of rows and slots only the first min(n, slots) take part (bug case P13: under graph
/// padding there are more key rows than slots).
///
/// Two rows with one slot are refused under both: the original is a race between them, so no result
/// is the right one, and a harness that picked one would call correct kernels wrong.
std::vector<std::int64_t> index_cache_insert_shape(const IndexCacheInsertInput& input);

/// Stores row r of index_k as bits at slot s = slot_mapping[r] (sparse-pa: insert_index_cache;
/// upstream-semantics section 3.5): element (r, d) goes to element
/// (s div block_size) * stride(0) + (s mod block_size) * stride(1) + d of the cache, computed in 64
/// bits whatever the type of the slots (bug cases O02, O07). Negative slots store nothing (P10,
/// P11). Everything else of the cache's storage, padding included, keeps its bits.
///
/// Refuses what the shape function refuses and an output of another type or layout, before it
/// writes anything.
void index_cache_insert(const IndexCacheInsertInput& input, const IndexCacheInsertOutput& output);

}  // namespace monoref
