// Stage glm5next_expand_pools: from selected pools of tokens to the tokens themselves.
#pragma once

#include <cstdint>

#include "reference/core/tensor.hpp"

namespace monoref {

struct ExpandPoolsInput {
  /// [rows, K], selected pools in any order. Pool p holds tokens p*pool_size .. (p+1)*pool_size-1
  /// and is selectable once complete; -1 marks an unused place, anywhere in the row.
  View<const std::int32_t, 2> pool_ids;
  View<const std::int32_t, 1> seq_lens;  ///< [rows], tokens
  std::int64_t pool_size = 1;
};

/// Columns of the result: K * pool_size for the pools, pool_size - 1 for the tail.
std::int64_t expanded_pool_columns(const ExpandPoolsInput& input);

/// Writes `token_ids` [rows, expanded_pool_columns] (recordings: glm5next_expand_pools).
///
/// Columns j*pool_size .. (j+1)*pool_size-1 hold the tokens of the j-th selected pool, or -1. From
/// column K*pool_size on follow the tokens behind the last complete pool,
/// floor(seq_len / pool_size) * pool_size .. seq_len - 1, then -1. The tail belongs to its own
/// row's length: anchored at another's it names tokens that the sequence does not have.
///
/// Refuses a pool_size below 1, negative lengths, pool ids below -1, pools that are not complete in
/// their row's sequence, more columns than int32, and outputs of other sizes, before anything is
/// written. Duplicate pools expand twice, as selected.
void expand_pools_and_append_tail(const ExpandPoolsInput& input, View<std::int32_t, 2> token_ids);

}  // namespace monoref
