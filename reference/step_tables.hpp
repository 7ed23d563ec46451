// The tables that every layer of one decode step shares.
#pragma once

#include <algorithm>
#include <cstdint>

#include "reference/tensor.hpp"

namespace monoref {

/// One row a token (mono-decode section 2; mono-runner: StepTables). The first two are what
/// `token_rows` returns. Padding rows of a captured graph are rows like others: slot -1, length 0,
/// block-table row of zeros.
struct StepTables {
  View<const std::int32_t, 2> block_table;  ///< [rows, width], page-128 block ids
  View<const std::int32_t, 1> seq_lens;     ///< [rows], keys that the row may see; may be <= 0
  View<const std::int64_t, 1>
      slot_mapping;        ///< [>= rows], plain page-128 slots, K/V and index cache
  std::int64_t q_len = 1;  ///< query tokens a request

  std::int64_t rows() const { return seq_lens.dim(0); }

  /// The row's context in the mono kernels: at least 1, so that a padding row attends to key 0 of
  /// page 0. The sparse_block_table stage gives such a row context 0; both rules exist.
  std::int64_t mono_context(std::int64_t row) const {
    return std::max<std::int64_t>(seq_lens(row), 1);
  }
};

}  // namespace monoref
