// decode_expand: a uniform decode batch flattened to one row a query token.
//
// Source of the rule: deepseek-indexer-metadata: _prepare_uniform_decode_kernel and the lines
// around its launch. Row r is query token r mod n of request r div n, n being max_decode_len; it
// sees seq_len - n + (r mod n) + 1 keys, of which compression and context parallelism leave the
// visible entries of cache_length.hpp. The lengths alone, as [requests, n], are those of the native
// path.

#include <cstdint>

#include "device/kernels/cache_length.hpp"
#include "device/kernels/flat_grid.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

/// A length moved into 0 .. limit; a negative limit leaves it as it is.
MONOREF_DEVICE std::int32_t limited_keys(std::int32_t keys, std::int32_t limit) {
  if (limit < 0) return keys;
  if (keys > limit &&
      !MONOREF_FAULT(expand_limit_ignored, "T09", "lengths beyond the model's limit stay"))
    return limit;
  return keys < 0 && !MONOREF_FAULT(expand_not_clamped, "T22", "lengths below 0 stay negative")
             ? 0
             : keys;
}

/// Entries that query token `token` of a request sees. Wraps as int32 does.
MONOREF_DEVICE std::int32_t entries_of_token(std::int32_t seq_len, std::int32_t token,
                                             std::int32_t decode_len, std::int32_t limit,
                                             const CacheSharing& sharing) {
  const std::int64_t offset = std::int64_t{token} + 1 - decode_len;
  if (MONOREF_FAULT(expand_offset_after_division, "T12",
                    "the token's offset added to the compressed length"))
    return local_entries(
        static_cast<std::int32_t>(stored_entries(limited_keys(seq_len, limit), sharing) + offset),
        sharing);
  if (MONOREF_FAULT(expand_localised_first, "T19", "the token's offset added to the local length"))
    return static_cast<std::int32_t>(visible_entries(limited_keys(seq_len, limit), sharing) +
                                     offset);
  auto keys = static_cast<std::int32_t>(seq_len + offset);
  if (MONOREF_FAULT(expand_length_off_by_one, "own", "every length one short"))
    keys = static_cast<std::int32_t>(keys - 1LL);
  return visible_entries(limited_keys(keys, limit), sharing);
}

/// Copies one request's table row into one row of the wider table; columns the source does not
/// have are 0.
MONOREF_DEVICE void expand_row(const std::int32_t* from, std::int32_t width, std::int32_t* to,
                               std::int32_t expanded_width) {
  const std::int64_t first_column =
      MONOREF_FAULT(expand_grid_y_ignored, "own",
                    "columns of the blocks behind the first in y are not made")
          ? std::int64_t{threadIdx.x}
          : column_of_grid();
  std::int32_t copied = width < expanded_width ? width : expanded_width;
  if (MONOREF_FAULT(expand_wide_row_spills, "T08",
                    "a table wider than the original's buffer is copied whole, into the next row",
                    .stages = {"decode_expand"}))
    copied = width;
  if (MONOREF_FAULT(expand_last_column_dropped, "T08", "last table column not copied")) copied -= 1;
  copy_row(from, to, copied, first_column, columns_of_grid());
  if (MONOREF_FAULT(expand_extra_columns_stale, "T08",
                    "columns behind the source width not zeroed"))
    return;
  fill_row(to + copied, expanded_width - copied, 0, first_column, columns_of_grid());
}

}  // namespace

// Inputs   seq_lens int32 [requests], seq_lens_stride elements apart; in keys, the step's included
//          block_table int32 [requests, width], rows table_row_stride elements apart
// Outputs  expanded_table int32 [requests * n, expanded_width], rows expanded_row_stride elements
//          apart; columns behind expanded_width stay as they are
//          decode_seq_lens int32 [length_rows], dense; in entries; 0 from row live_rows on
//          decode_lens int32 [requests * n], dense; 1 everywhere. Null: not wanted, because the
//          scorer takes the queries whole (native path)
// Sizes    n = max_decode_len >= 1; live_rows <= requests * n: the rows that have a length, fewer
//          where the original has one for each token only; length_rows >= live_rows, the whole of
//          the buffer that is carried from step to step; expanded_width may be 0, then block_table
//          and expanded_table are not touched (native path); compress_ratio, world, rank,
//          interleave as in CacheSharing; length_limit >= 0: lengths in keys are moved into 0 ..
//          length_limit before anything else, < 0: they stay as they are.
// Launch   any grid and any block of whole waves; x goes over rows, y over columns.
// Misuse   A table wider than expanded_width loses its last columns (as in the original; the host
//          may refuse it).
//          max_decode_len < 1 writes nothing.
MONOREF_KERNEL(1024, monoref_decode_expand_uniform)(
    const std::int32_t* seq_lens, std::int64_t seq_lens_stride, const std::int32_t* block_table,
    std::int64_t table_row_stride, std::int32_t* expanded_table, std::int64_t expanded_row_stride,
    std::int32_t* decode_seq_lens, std::int32_t* decode_lens, std::int64_t requests,
    std::int64_t live_rows, std::int64_t length_rows, std::int32_t width,
    std::int32_t expanded_width, std::int32_t max_decode_len, std::int32_t compress_ratio,
    std::int32_t world, std::int32_t rank, std::int32_t interleave, std::int32_t length_limit) {
  if (max_decode_len < 1) return;
  const CacheSharing sharing{compress_ratio, world, rank, interleave};
  const std::int64_t rows = requests * max_decode_len;
  const std::int64_t live =
      MONOREF_FAULT(
          expand_length_of_every_request, "own",
          "under compression every request has a length, not every token as in the original",
          .stages = {"decode_expand", "indexer_metadata_build"})
          ? rows
          : live_rows;
  const std::int64_t from_stride =
      MONOREF_FAULT(expand_source_stride_ignored, "T08",
                    "source rows taken to be as far apart as they are wide")
          ? width
          : table_row_stride;
  const std::int64_t length_stride =
      MONOREF_FAULT(expand_length_stride_ignored, "T05", "lengths read as if contiguous")
          ? 1
          : seq_lens_stride;
  const std::int64_t to_stride =
      MONOREF_FAULT(expand_destination_stride_ignored, "T08",
                    "destination rows taken to be as far apart as they are wide")
          ? expanded_width
          : expanded_row_stride;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    std::int64_t request = row / max_decode_len;
    auto token = static_cast<std::int32_t>(row - request * max_decode_len);
    if (MONOREF_FAULT(expand_request_modulo, "T03", "a row belongs to request row mod requests")) {
      request = row % requests;
      token = static_cast<std::int32_t>(row / requests);
    }
    if (expanded_width > 0)
      expand_row(block_table + request * from_stride, width, expanded_table + row * to_stride,
                 expanded_width);
    if (column_of_grid() > 0) continue;
    if (row < live)
      decode_seq_lens[row] = entries_of_token(seq_lens[request * length_stride], token,
                                              max_decode_len, length_limit, sharing);
    if (decode_lens != nullptr)
      decode_lens[row] =
          MONOREF_FAULT(expand_decode_len_kept, "own", "flattened rows keep the query's length")
              ? max_decode_len
              : 1;
  }
  if (blockIdx.y > 0 || MONOREF_FAULT(expand_stale_tail, "D04",
                                      "lengths behind the step's rows are not zeroed (also T06)"))
    return;
  fill_row(decode_seq_lens + live, length_rows - live, 0, thread_of_grid(), threads_of_grid());
}
MONOREF_REGISTER(monoref_decode_expand_uniform);

}  // namespace monoref::kernels
