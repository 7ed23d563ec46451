#include "reference/stages/sparse_block_table.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

/// What both forms of the stage share.
struct Selection {
  View<const std::int32_t, 3> topk_idx;
  View<const std::int32_t, 2> block_table;
  std::int64_t block_page_stride;
  SparseBlockShape shape;
};

/// Whose query token a row is.
struct QueryToken {
  std::int64_t row;      ///< of topk_idx and of the outputs
  std::int64_t request;  ///< row of block_table
  std::int64_t abs_pos;  ///< negative: the row has no tokens
};

/// One finished row: the first page of each occupied slot, and the context.
struct CompactRow {
  std::vector<std::int32_t> first_pages;
  std::int32_t context = 0;
};

Selection selection_of(const auto& input) {
  return {input.topk_idx, input.block_table, input.block_page_stride, input.shape};
}

void check_selection(const Selection& selection) {
  const SparseBlockShape& shape = selection.shape;
  if (shape.block_size < 1 || shape.block_size > kInt32Max)
    refuse("sparse_block_table: block_size is {}, must be 1 to {}", shape.block_size, kInt32Max);
  if (shape.pages_per_block < 1 || shape.pages_per_block > shape.block_size)
    refuse("sparse_block_table: pages_per_block is {}, must be 1 to block_size {}",
           shape.pages_per_block, shape.block_size);
  if (selection.block_page_stride < shape.pages_per_block)
    refuse("sparse_block_table: block_page_stride is {}, must be at least {}",
           selection.block_page_stride, shape.pages_per_block);
  if (selection.topk_idx.dim(0) != 1)
    refuse("sparse_block_table: topk_idx has {} in dimension 0, must have 1 (one kv head a rank)",
           selection.topk_idx.dim(0));
  const std::int64_t topk = selection.topk_idx.dim(2);
  if (topk < 1 || topk > kMaxTopK)
    refuse("sparse_block_table: top-k width is {}, must be 1 to {}", topk, kMaxTopK);
}

/// The first page of a valid id. The only place that reads block_table.
std::int32_t first_page(const Selection& selection, const QueryToken& token, std::int64_t id) {
  if (id >= selection.block_table.dim(1))
    refuse(
        "sparse_block_table: topk_idx of row {} holds block {}, must be below {}, the columns of "
        "block_table",
        token.row, id, selection.block_table.dim(1));
  const std::int64_t block = selection.block_table(token.request, id);
  std::int64_t page = 0;
  std::int64_t last = 0;
  if (__builtin_mul_overflow(block, selection.block_page_stride, &page) ||
      __builtin_add_overflow(page, selection.shape.pages_per_block - 1, &last) ||
      !fits_int32(page) || !fits_int32(last))
    refuse(
        "sparse_block_table: block_table[{}][{}] is {}, times page stride {} its pages must not"
        " leave int32 ({} to {})",
        token.request, id, block, selection.block_page_stride, kInt32Min, kInt32Max);
  return static_cast<std::int32_t>(page);
}

std::int32_t checked_context(const QueryToken& token, std::int64_t context) {
  if (!fits_int32(context))
    refuse("sparse_block_table: the context of row {} is {}, limit {}", token.row, context,
           kInt32Max);
  return static_cast<std::int32_t>(context);
}

CompactRow compact(const Selection& selection, const QueryToken& token) {
  if (token.abs_pos < kInt32Min || token.abs_pos >= kInt32Max)
    refuse("sparse_block_table: the position of row {} is {}, must be {} to {}", token.row,
           token.abs_pos, kInt32Min, kInt32Max - 1);
  // No division before this line: a quotient of a negative position means nothing here.
  if (token.abs_pos < 0) return {};
  const std::int64_t block_size = selection.shape.block_size;
  const std::int64_t causal_len = token.abs_pos + 1;
  const std::int64_t own_block = token.abs_pos / block_size;

  CompactRow row;
  row.first_pages.reserve(static_cast<std::size_t>(selection.topk_idx.dim(2)));
  std::int64_t tails = 0;
  std::int32_t tail_page = 0;
  for (std::int64_t rank = 0; rank < selection.topk_idx.dim(2); ++rank) {
    const std::int64_t id = selection.topk_idx(0, token.row, rank);
    if (id < 0 || id > own_block) continue;
    const std::int32_t page = first_page(selection, token, id);
    if (id == own_block) {
      ++tails;
      tail_page = page;
    } else {
      row.first_pages.push_back(page);
    }
  }
  const std::int64_t full_keys = static_cast<std::int64_t>(row.first_pages.size()) * block_size;
  if (tails > 0) {
    row.first_pages.push_back(tail_page);
    row.context = checked_context(token, full_keys + causal_len - own_block * block_size);
  } else {
    row.context = checked_context(token, std::min(full_keys, causal_len));
  }
  return row;
}

SparseBlockTableShape shape_of(const Selection& selection) {
  const std::int64_t rows = selection.topk_idx.dim(1);
  return {{rows, selection.topk_idx.dim(2) * selection.shape.pages_per_block}, {rows}};
}

void write_row(const Selection& selection, const QueryToken& token,
               const SparseBlockTableOutput& output) {
  const CompactRow row = compact(selection, token);
  const std::int64_t pages = selection.shape.pages_per_block;
  const auto slots = static_cast<std::int64_t>(row.first_pages.size());
  for (std::int64_t slot = 0; slot < selection.topk_idx.dim(2); ++slot)
    for (std::int64_t page = 0; page < pages; ++page)
      output.sparse_block_table(token.row, slot * pages + page) =
          slot < slots
              ? static_cast<std::int32_t>(row.first_pages[static_cast<std::size_t>(slot)] + page)
              : 0;
  output.sparse_context_lens(token.row) = row.context;
}

/// Runs the stage for the tokens that `token_of` names, after the form's own checks.
template <class Input, class TokenOf>
void build(const Input& input, const SparseBlockTableShape& shape, TokenOf token_of,
           const SparseBlockTableOutput& output) {
  require_dims("sparse_block_table: output sparse_block_table", output.sparse_block_table,
               shape.sparse_block_table);
  require_dims("sparse_block_table: output sparse_context_lens", output.sparse_context_lens,
               shape.sparse_context_lens);
  const Selection selection = selection_of(input);
  for (std::int64_t row = 0; row < shape.sparse_context_lens[0]; ++row)
    write_row(selection, token_of(input, row), output);
}

/// Finishes a shape function: every row must be computable before any is written.
template <class Input, class TokenOf>
SparseBlockTableShape checked_shape(const Input& input, TokenOf token_of) {
  const Selection selection = selection_of(input);
  for (std::int64_t row = 0; row < selection.topk_idx.dim(1); ++row)
    static_cast<void>(compact(selection, token_of(input, row)));
  return shape_of(selection);
}

QueryToken decode_token(const SparseBlockTableDecodeInput& input, std::int64_t row) {
  const std::int64_t request = row / input.decode_query_len;
  const std::int64_t token = row % input.decode_query_len;
  return {row, request, input.seq_lens(request) - input.decode_query_len + token};
}

QueryToken prefill_token(const SparseBlockTablePrefillInput& input, std::int64_t row) {
  return {row, input.query_req_id(row), input.query_abs_pos(row)};
}

}  // namespace

SparseBlockTableShape sparse_block_table_decode_shape(const SparseBlockTableDecodeInput& input) {
  check_selection(selection_of(input));
  const std::int64_t batch = input.block_table.dim(0);
  if (input.decode_query_len < 1)
    refuse("sparse_block_table: decode_query_len is {}, must be at least 1",
           input.decode_query_len);
  std::int64_t rows = 0;
  if (__builtin_mul_overflow(batch, input.decode_query_len, &rows) || rows != input.topk_idx.dim(1))
    refuse("sparse_block_table: topk_idx has {} rows, must have batch {} * decode_query_len {}",
           input.topk_idx.dim(1), batch, input.decode_query_len);
  require_dims("sparse_block_table: seq_lens", input.seq_lens, {batch});
  return checked_shape(input, decode_token);
}

SparseBlockTableShape sparse_block_table_prefill_shape(const SparseBlockTablePrefillInput& input) {
  check_selection(selection_of(input));
  const std::int64_t rows = input.topk_idx.dim(1);
  require_dims("sparse_block_table: query_req_id", input.query_req_id, {rows});
  require_dims("sparse_block_table: query_abs_pos", input.query_abs_pos, {rows});
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t request = input.query_req_id(row);
    if (request < 0 || request >= input.block_table.dim(0))
      refuse(
          "sparse_block_table: query_req_id[{}] is {}, must be 0 or more and below {}, the rows of "
          "block_table",
          row, request, input.block_table.dim(0));
  }
  return checked_shape(input, prefill_token);
}

void sparse_block_table_decode(const SparseBlockTableDecodeInput& input,
                               const SparseBlockTableOutput& output) {
  build(input, sparse_block_table_decode_shape(input), decode_token, output);
}

void sparse_block_table_prefill(const SparseBlockTablePrefillInput& input,
                                const SparseBlockTableOutput& output) {
  build(input, sparse_block_table_prefill_shape(input), prefill_token, output);
}

}  // namespace monoref
