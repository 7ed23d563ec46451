#include "reference/stages/token_rows.hpp"

#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

void copy_whole(const TokenRowsInput& input, const TokenRowsOutput& output) {
  for (std::int64_t row = 0; row < input.block_table.dim(0); ++row)
    for (std::int64_t column = 0; column < input.block_table.dim(1); ++column)
      output.block_table(row, column) = input.block_table(row, column);
  for (std::int64_t row = 0; row < input.seq_lens.dim(0); ++row)
    output.seq_lens(row) = input.seq_lens(row);
}

}  // namespace

TokenRowsShape token_rows_shape(const TokenRowsInput& input) {
  if (input.q < 1) refuse("token_rows: q is {}, must be at least 1", input.q);
  if (input.n < 0) refuse("token_rows: n is {}, must be at least 0", input.n);
  const std::int64_t requests = input.n / input.q;
  if (input.block_table.dim(0) < requests)
    refuse("token_rows: block_table has {} rows, needs at least {} (n {} div q {})",
           input.block_table.dim(0), requests, input.n, input.q);
  if (input.seq_lens.dim(0) < requests)
    refuse("token_rows: seq_lens has {} rows, needs at least {} (n {} div q {})",
           input.seq_lens.dim(0), requests, input.n, input.q);
  const std::int64_t width = input.block_table.dim(1);
  if (input.q == 1) return {{input.block_table.dim(0), width}, {input.seq_lens.dim(0)}};
  // The first token of a request has its smallest length. Written so that no q can overflow.
  for (std::int64_t request = 0; request < requests; ++request)
    if (input.q - 1 > input.seq_lens(request) - kInt32Min)
      refuse("token_rows: seq_lens[{}] is {}, with q {} its first length is below the limit {}",
             request, input.seq_lens(request), input.q, kInt32Min);
  return {{requests * input.q, width}, {requests * input.q}};
}

void token_rows(const TokenRowsInput& input, const TokenRowsOutput& output) {
  const TokenRowsShape shape = token_rows_shape(input);
  require_dims("token_rows: output block_table", output.block_table, shape.block_table);
  require_dims("token_rows: output seq_lens", output.seq_lens, shape.seq_lens);
  if (input.q == 1) return copy_whole(input, output);
  for (std::int64_t row = 0; row < shape.seq_lens[0]; ++row) {
    const std::int64_t request = row / input.q;
    const std::int64_t token = row % input.q;
    for (std::int64_t column = 0; column < shape.block_table[1]; ++column)
      output.block_table(row, column) = input.block_table(request, column);
    output.seq_lens(row) =
        static_cast<std::int32_t>(input.seq_lens(request) - (input.q - 1 - token));
  }
}

}  // namespace monoref
