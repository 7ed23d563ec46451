// Attention over selected blocks, from queries to merged rows, in the form that a contract names.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"
#include "reference/rules/attention_caches.hpp"

namespace monoref {

/// Decode: request i owns the query rows i * q_len and following.
struct SparseAttentionInput {
  View<const std::uint16_t, 3> q;        ///< [rows, heads, head_dim] BF16, any strides
  View<const std::int32_t, 3> topk_idx;  ///< [1, rows, k] block ids as selected, -1: none
  View<const std::int32_t, 2>
      block_table;                       ///< [requests, width], physical block of each logical one
  View<const std::int32_t, 1> seq_lens;  ///< [requests], keys including this step's
  std::int64_t q_len = 1;
  AttentionCaches caches;                 ///< of one kv head
  double sm_scale = 0.08838834764831845;  ///< rounded to binary32 once
  std::int64_t compute_units = 256;       ///< of the machine; read where keys are dealt in splits
  Contract contract{};
};

struct SparseAttentionOutput {
  View<std::uint16_t, 3> out;  ///< [rows, heads, head_dim] BF16
};

/// The dims of the output, after every check of the input. Refuses: what `attention_cache_shape`
/// refuses and more than one kv head; a contract that deals FP8 operands in chunks, or BF16
/// operands otherwise; what sparse_block_table refuses of a selection; under chunks a block id
/// below 0 or beyond the row's own block among the first min(k, blocks of the row); and a page that
/// the caches do not have or do not store.
std::array<std::int64_t, 3> sparse_attention_shape(const SparseAttentionInput& input);

/// A row sees context keys: max(seq_lens[i] - q_len + j + 1, 0) for token j of request i, or at
/// least one by the contract's empty-row rule, which is key 0 of its first block. The keys it
/// attends to, by the contract's plan:
///
///   partitions  (mono-decode section 6) the blocks as stage sparse_block_table puts them, the tail
///               last, in partitions of 256 keys: stages fp8_attention_partition and
///               attention_merge
///   splits      (upstream-semantics section 6.1) the same keys in S = min(ceil(2 * compute_units /
///               rows), 8) equal parts of ceil(context / S) keys. A part walks the 256-key tiles
///               that it touches and masks keys that are not its own
///   chunks      (upstream-semantics section 6.2) the first min(k, blocks of the row) blocks as
///               selected, a tile each, dealt in bit_floor(max(1, min(k, 256 div rows))) runs of
///               equal length
///
/// Each part goes through `attend_tile`, tile by tile, and is rounded to BF16; parts are merged as
/// in stage attention_merge, by maxima and sums, or by log-sums m + log2(l) that are rounded once.
/// A part without keys has m = -Inf, l = 0 and o = 0.
///
/// Sums inside a foreign implementation's matrix units follow no stated order; here they have the
/// order of `attend_tile`, so that the forms `splits` and `chunks` are compared with recordings by
/// bounds (attention_bounds.hpp) and not by bits.
///
/// Refuses what the shape function refuses and an output of other dims, before it writes anything.
void sparse_attention(const SparseAttentionInput& input, const SparseAttentionOutput& output);

/// The keys of one row in the order of the contract's plan, with K and V as they enter the
/// products; for the bounds.
struct AttendedKeys {
  std::size_t dim = 0;
  std::vector<float> k;  ///< [keys][dim]
  std::vector<float> v;  ///< [keys][dim]
  std::size_t count() const { return dim == 0 ? 0 : k.size() / dim; }
};
AttendedKeys attended_keys(const SparseAttentionInput& input, std::int64_t row);

}  // namespace monoref
