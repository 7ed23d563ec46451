// Stage sparse_block_table: the selected blocks of each query token as one compact table of page
// ids.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/tensor.hpp"

namespace monoref {

/// Widest selection of one query token.
inline constexpr std::int64_t kMaxTopK = 64;

/// How many keys a selectable block has and in how many pages one side (K or V) keeps them.
struct SparseBlockShape {
  std::int64_t block_size = 128;     ///< keys, 1 to 2^31 - 1
  std::int64_t pages_per_block = 8;  ///< pages of one side, 1 to block_size
};

/// Decode: request i owns the query tokens i * decode_query_len and following.
struct SparseBlockTableDecodeInput {
  View<const std::int32_t, 3> topk_idx;     ///< [1, total_q, k], block ids, -1 where there is none
  View<const std::int32_t, 2> block_table;  ///< [batch, width], physical block of each logical one
  View<const std::int32_t, 1> seq_lens;     ///< [batch], keys including this step's
  std::int64_t decode_query_len = 1;
  std::int64_t block_page_stride = 8;  ///< page ids a block spans: 8 dense, 16 interleaved sides
  SparseBlockShape shape{};
};

/// Prefill: every query token names its request and its position.
struct SparseBlockTablePrefillInput {
  View<const std::int32_t, 3> topk_idx;       ///< [1, total_q, k]
  View<const std::int32_t, 2> block_table;    ///< [batch, width]
  View<const std::int32_t, 1> query_req_id;   ///< [total_q], row of block_table
  View<const std::int32_t, 1> query_abs_pos;  ///< [total_q], negative for a row without tokens
  std::int64_t block_page_stride = 8;
  SparseBlockShape shape{};
};

struct SparseBlockTableOutput {
  View<std::int32_t, 2> sparse_block_table;   ///< [total_q, k * pages_per_block], page ids
  View<std::int32_t, 1> sparse_context_lens;  ///< [total_q], keys
};

struct SparseBlockTableShape {
  std::array<std::int64_t, 2> sparse_block_table{};
  std::array<std::int64_t, 1> sparse_context_lens{};
};

/// The output shapes, after every check of the input.
///
/// Refuses: a block_size outside int32 or pages_per_block outside 1..block_size;
/// topk_idx.dim(0) other than 1; a top-k width outside 1..64; rows other than
/// batch * decode_query_len (decode) or other than the lengths of query_req_id and query_abs_pos
/// (prefill); a request id outside block_table; a page stride below pages_per_block; a position
/// outside int32 or at its last value, where position + 1 overflows; a valid id whose column
/// block_table does not have; a page id or a context outside int32.
SparseBlockTableShape sparse_block_table_decode_shape(const SparseBlockTableDecodeInput& input);
SparseBlockTableShape sparse_block_table_prefill_shape(const SparseBlockTablePrefillInput& input);

/// Compacts each token's selection into page ids (upstream-semantics section 5; sparse-pa:
/// _write_sparse_block_table_row_from_values, whose values these are wherever it writes any).
///
/// A token at position p sees causal_len = max(p + 1, 0) keys; its own block is p div block_size.
/// Decode: p = seq_lens[i] - decode_query_len + j for token j of request i. An id is valid iff
/// causal_len > 0 and 0 <= id <= own block; only valid ids are looked up in block_table. Valid ids
/// below the own block are full and keep their order in slots 0, 1, ...; the own block (the tail)
/// comes last, in one slot however often it is selected. Slot s holds at columns
/// s * pages_per_block + j the pages block_table[i][id] * block_page_stride + j; all other columns
/// are 0, also those that the original leaves unwritten after a repeated tail.
///
/// Context: full blocks * block_size + the keys of the tail; without a tail
/// min(valid ids * block_size, causal_len). It exceeds causal_len only where full ids repeat.
///
/// Refuses what the shape functions refuse and outputs of other shapes, before it writes anything.
void sparse_block_table_decode(const SparseBlockTableDecodeInput& input,
                               const SparseBlockTableOutput& output);
void sparse_block_table_prefill(const SparseBlockTablePrefillInput& input,
                                const SparseBlockTableOutput& output);

}  // namespace monoref
