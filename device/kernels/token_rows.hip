// token_rows: one block table row and one length a token of the step.
//
// Source of the rule: mono-runner: token_rows, mono-decode section 2. A request of q query tokens
// becomes q rows; its token j sees seq_len - (q - 1 - j) keys. Lengths of padded or young requests
// go to zero and below and are not clamped. With q == 1 both tables are returned whole.

#include <cstdint>

#include "device/kernels/flat_grid.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

/// The request that output row `row` belongs to, and which of its query tokens the row is.
struct TokenOfRequest {
  std::int64_t request;
  std::int64_t token;
};

MONOREF_DEVICE TokenOfRequest token_of_row(std::int64_t row, std::int64_t rows,
                                           std::int32_t q_len) {
  if (MONOREF_FAULT(token_rows_request_modulo, "T03",
                    "a row belongs to request row mod requests")) {
    const std::int64_t requests = rows / q_len;
    return {row % requests, row / requests};
  }
  const std::int64_t request = row / q_len;
  return {request, row - request * q_len};
}

/// Keys that token `token` of a request with `seq_len` keys sees. Wraps as int32 does in the
/// original, where a length of the lowest numbers is given.
MONOREF_DEVICE std::int32_t keys_of_token(std::int32_t seq_len, std::int64_t token,
                                          std::int32_t q_len) {
  std::int64_t later = q_len - 1 - token;
  if (MONOREF_FAULT(token_rows_length_off_by_one, "T12", "every length one short"))
    later = q_len - token;
  if (MONOREF_FAULT(token_rows_lengths_reversed, "own",
                    "the first token of a request gets the longest length"))
    later = token;
  const auto keys = static_cast<std::int32_t>(std::int64_t{seq_len} - later);
  return MONOREF_FAULT(token_rows_length_clamped, "T02", "negative lengths become 0") && keys < 0
             ? 0
             : keys;
}

}  // namespace

// Inputs   block_table int32 [requests, width], rows table_row_stride elements apart
//          seq_lens int32 [requests], seq_lens_stride elements apart; in keys
// Outputs  rows_table int32 [rows, width], rows rows_table_stride elements apart; columns between
//          width and the stride stay as they are
//          rows_lens int32 [length_rows], dense; in keys
// Sizes    width >= 0 columns; q_len >= 1 query tokens a request.
//          q_len == 1: rows and length_rows are the rows of block_table and of seq_lens.
//          q_len > 1: both are the n tokens of the step; rows from (n div q_len) * q_len on do not
//          exist and are not written.
// Launch   any grid and any block of whole waves; x goes over rows, y over columns. One block of
//          256 threads a row fits tables up to a few thousand columns.
// Misuse   q_len < 1 writes nothing. The kernel reads the table rows and lengths of requests
//          below rows div q_len and length_rows div q_len only.
MONOREF_KERNEL(1024, monoref_token_rows)(const std::int32_t* block_table,
                                         std::int64_t table_row_stride,
                                         const std::int32_t* seq_lens, std::int64_t seq_lens_stride,
                                         std::int32_t* rows_table, std::int64_t rows_table_stride,
                                         std::int32_t* rows_lens, std::int64_t rows,
                                         std::int64_t length_rows, std::int32_t width,
                                         std::int32_t q_len) {
  if (q_len < 1) return;
  const std::int64_t table_end = rows / q_len * q_len;
  const std::int64_t length_end = length_rows / q_len * q_len;
  const std::int64_t end = table_end > length_end ? table_end : length_end;
  const std::int64_t column =
      MONOREF_FAULT(token_rows_grid_y_ignored, "own",
                    "columns of the blocks behind the first in y are not made")
          ? std::int64_t{threadIdx.x}
          : column_of_grid();
  const std::int64_t from_stride =
      MONOREF_FAULT(token_rows_source_stride_ignored, "T08",
                    "source rows taken to be as far apart as they are wide")
          ? width
          : table_row_stride;
  const std::int64_t to_stride =
      MONOREF_FAULT(token_rows_destination_stride_ignored, "T08",
                    "destination rows taken to be as far apart as they are wide")
          ? width
          : rows_table_stride;
  std::int32_t copied = width;
  if (MONOREF_FAULT(token_rows_last_column_dropped, "T08", "last table column not copied"))
    copied = width - 1;
  if (MONOREF_FAULT(token_rows_partial_unit_dropped, "own",
                    "columns behind the last whole 16-byte unit not copied"))
    copied = width / 4 * 4;
  const std::int64_t row_step = MONOREF_FAULT(token_rows_grid_x_runs_once, "own",
                                              "the blocks of the grid take one row each and stop")
                                    ? end
                                    : gridDim.x;
  for (std::int64_t row = blockIdx.x; row < end; row += row_step) {
    const TokenOfRequest of = token_of_row(row, end, q_len);
    if (MONOREF_FAULT(token_rows_first_token_only, "T11",
                      "only the first token of each request written") &&
        of.token > 0)
      continue;
    const std::int64_t source = MONOREF_FAULT(token_rows_table_row_of_token, "T01",
                                              "table row of the token instead of the request")
                                    ? row
                                    : of.request;
    if (row < table_end)
      copy_row(block_table + source * from_stride, rows_table + row * to_stride, copied, column,
               columns_of_grid());
    if (row < length_end && column == 0) {
      const std::int64_t stride =
          MONOREF_FAULT(token_rows_length_stride_ignored, "T05", "lengths read as if contiguous")
              ? 1
              : seq_lens_stride;
      rows_lens[row] = keys_of_token(seq_lens[of.request * stride], of.token, q_len);
    }
  }
}
MONOREF_REGISTER(monoref_token_rows);

}  // namespace monoref::kernels
