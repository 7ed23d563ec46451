// Block tables and lengths of a decode step, as the sparse kernels read them (mono-decode sections
// 2 and 4): every query row has a context, and every request a row of the block table.
#pragma once

#include <cstdint>

#include "device/kernels/page_layout.hpp"
#include "device/kernels/registers.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

/// Values of a kernel's `tables_of` parameter.
constexpr std::int32_t kTablesOfRows = 0;  ///< a row for each query row, as token_rows makes them
constexpr std::int32_t kTablesOfRequests =
    1;  ///< a row for each request, with its last row's length

/// Row r is query r mod q_len of request r div q_len.
struct StepTables {
  const std::int32_t* block_table;
  std::int64_t row_stride;
  const std::int32_t* seq_lens;
  std::int64_t seq_lens_stride;
  std::int32_t width;
  std::int32_t q_len;
  std::int32_t tables_of;

  MONOREF_MEMBER std::int64_t request_of(std::int64_t row) const { return row / q_len; }
  MONOREF_MEMBER std::int64_t last_row_of(std::int64_t request) const {
    return request * q_len + q_len - 1;
  }
  /// Keys before and with a row's token; below 1 in rows without tokens (padding).
  MONOREF_MEMBER std::int64_t length_of(std::int64_t row) const {
    if (tables_of != kTablesOfRequests) return in_global(seq_lens)[row * seq_lens_stride];
    const std::int64_t request = request_of(row);
    return in_global(seq_lens)[request * seq_lens_stride] - (last_row_of(request) - row);
  }
  /// Keys that a row sees. A row without tokens sees key 0 of its first block.
  MONOREF_MEMBER std::int64_t context_of(std::int64_t row) const {
    const std::int64_t length = length_of(row);
    return length < 1 ? 1 : length;
  }
  /// The row of the block table that a query row goes by.
  MONOREF_MEMBER const std::int32_t* blocks_of(std::int64_t row) const {
    const std::int64_t n = tables_of == kTablesOfRequests ? request_of(row) : row;
    return in_global(block_table) + n * row_stride;
  }
};

/// Blocks that `keys` keys reach into.
MONOREF_DEVICE std::int64_t blocks_of_context(std::int64_t keys) {
  return (keys + kBlockTokens - 1) / kBlockTokens;
}

}  // namespace
}  // namespace monoref::kernels
