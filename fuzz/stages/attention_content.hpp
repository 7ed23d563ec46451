// Caches for generators whose attention reads them: what some request reaches holds numbers, every
// other byte is NaN.
#pragma once

#include <optional>
#include <vector>

#include "fuzz/random.hpp"
#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

/// The physical blocks of a step, distinct for every request, and how many keys of each are
/// reached.
struct ReachedBlocks {
  std::int64_t width;             ///< columns of the block table
  std::vector<std::int32_t> ids;  ///< [requests, width]
  std::vector<std::int64_t> reaches;

  /// Ids are shuffled; block 0 belongs to nobody, and its first key is there for rows of padding.
  /// `lengths` are the requests' longest contexts; one
  /// without tokens reaches one key.
  ReachedBlocks(const std::vector<std::int32_t>& lengths, std::int64_t width,
                CounterRandom& random);
  std::int64_t count() const { return static_cast<std::int64_t>(reaches.size()); }
};

/// FP8 caches of one K/V head, and of index keys.
struct KvCaches {
  Tensor k;                 ///< and V, where the layout is interleaved
  std::optional<Tensor> v;  ///< dense layout only
};
KvCaches reached_kv_caches(const ReachedBlocks& blocks, std::int64_t head_dim,
                           const Contract& contract, CounterRandom& random);
Tensor reached_index_cache(const ReachedBlocks& blocks, std::int64_t head_dim,
                           const Contract& contract, CounterRandom& random);

}  // namespace monoref
