#include "reference/stages/decode_expand.hpp"

#include <algorithm>
#include <limits>
#include <string_view>

#include "reference/rules/request_batch.hpp"
#include "reference/stages/compressed_slot_mapping.hpp"

namespace monoref {
namespace {

constexpr std::string_view kStage = "decode_expand";

void check(const DecodeExpandInput& input) {
  const std::int64_t requests = input.seq_lens.dim(0);
  if (requests < 1) refuse("{}: num_decodes is {}, limit 1", kStage, requests);
  check_query_start_loc(kStage, input.query_start_loc, requests);
  check_seq_lens(kStage, "seq_lens", input.seq_lens, requests);
  if (input.block_table.dim(0) < requests)
    refuse("{}: block_table has {} rows, must have at least {}, one a request", kStage,
           input.block_table.dim(0), requests);
  if (input.num_decode_tokens < input.query_start_loc(requests))
    refuse("{}: num_decode_tokens is {}, must be at least {}, which the queries hold", kStage,
           input.num_decode_tokens, input.query_start_loc(requests));
  if (input.next_n < 1) refuse("{}: next_n is {}, limit 1", kStage, input.next_n);
  if (input.max_model_len < 0)
    refuse("{}: max_model_len is {}, limit 0", kStage, input.max_model_len);
  effective_compress_ratio(kStage, input.compress_ratio);
  check_context_parallel(kStage, input.context_parallel);
}

DecodePath choose_path(const DecodeExpandInput& input, std::int64_t shortest,
                       std::int64_t longest) {
  const bool use_native = !input.use_flattening && longest <= input.next_n;
  if (!use_native && longest > 1)
    return shortest == longest ? DecodePath::kFlattenUniform : DecodePath::kFlattenRagged;
  return use_native && input.next_n > 1 ? DecodePath::kNative : DecodePath::kPlain;
}

void check_outputs(const DecodeExpandInput& input, const DecodeExpandShape& shape,
                   const DecodeExpandOutput& output) {
  check_extent(kStage, "decode_seq_lens", output.decode_seq_lens.dim(0), shape.length_rows);
  check_extent(kStage, "decode_seq_lens (columns)", output.decode_seq_lens.dim(1),
               shape.length_columns);
  check_extent(kStage, "decode_lens", output.decode_lens.dim(0), shape.rows);
  if (output.decode_block_table.data() == nullptr && !shape.flattened()) return;
  check_extent(kStage, "decode_block_table", output.decode_block_table.dim(0), shape.rows);
  const bool truncates =
      input.lengths == LengthRule::kAsSeed && shape.path == DecodePath::kFlattenUniform;
  if (!truncates && output.decode_block_table.dim(1) < input.block_table.dim(1))
    refuse("{}: decode_block_table has width {}, must have at least {} as block_table has", kStage,
           output.decode_block_table.dim(1), input.block_table.dim(1));
}

std::int32_t row_length(std::int64_t length, const DecodeExpandInput& input) {
  return static_cast<std::int32_t>(decode_row_length(length, input));
}

/// Copies what the table has columns for of the request's row, and zeroes those behind it; no
/// request: zeroes the row.
void write_table_row(const DecodeExpandInput& input, View<std::int32_t, 2> table, std::int64_t row,
                     std::int64_t request, bool live) {
  if (table.data() == nullptr) return;
  const std::int64_t width = live ? std::min(input.block_table.dim(1), table.dim(1)) : 0;
  for (std::int64_t column = 0; column < width; ++column)
    table(row, column) = input.block_table(request, column);
  for (std::int64_t column = width; column < table.dim(1); ++column) table(row, column) = 0;
}

void write_flattened(const DecodeExpandInput& input, const DecodeExpandShape& shape,
                     const DecodeExpandOutput& output) {
  std::int64_t row = 0;
  for (std::int64_t request = 0; request < input.seq_lens.dim(0); ++request) {
    const std::int64_t tokens = query_len(input.query_start_loc, request);
    for (std::int64_t token = 0; token < tokens; ++token, ++row) {
      output.decode_seq_lens(row, 0) =
          row_length(input.seq_lens(request) - tokens + token + 1, input);
      output.decode_lens(row) = 1;
      write_table_row(input, output.decode_block_table, row, request, true);
    }
  }
  for (; row < shape.rows; ++row) {
    output.decode_seq_lens(row, 0) = 0;
    output.decode_lens(row) = 1;
    write_table_row(input, output.decode_block_table, row, 0, false);
  }
}

void write_by_request(const DecodeExpandInput& input, const DecodeExpandShape& shape,
                      const DecodeExpandOutput& output) {
  const bool native = shape.path == DecodePath::kNative;
  const std::int64_t longest = native ? shape.length_columns : 1;
  for (std::int64_t request = 0; request < shape.rows; ++request) {
    for (std::int64_t token = 0; token < shape.length_columns && request < shape.length_rows;
         ++token) {
      output.decode_seq_lens(request, token) =
          row_length(input.seq_lens(request) - longest + token + 1, input);
    }
    output.decode_lens(request) =
        static_cast<std::int32_t>(query_len(input.query_start_loc, request));
    write_table_row(input, output.decode_block_table, request, request, true);
  }
  for (std::int64_t row = shape.rows; row < shape.length_rows; ++row)
    output.decode_seq_lens(row, 0) = 0;
}

}  // namespace

DecodeExpandShape decode_expand_shape(const DecodeExpandInput& input) {
  check(input);
  const std::int64_t requests = input.seq_lens.dim(0);
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  std::int64_t longest = 0;
  for (std::int64_t request = 0; request < requests; ++request) {
    shortest = std::min(shortest, query_len(input.query_start_loc, request));
    longest = std::max(longest, query_len(input.query_start_loc, request));
  }

  DecodeExpandShape shape;
  shape.path = choose_path(input, shortest, longest);
  shape.max_decode_len = longest;
  shape.rows = requests;
  if (shape.path == DecodePath::kFlattenUniform) shape.rows = requests * longest;
  if (shape.path == DecodePath::kFlattenRagged) shape.rows = input.num_decode_tokens;
  shape.length_rows = shape.rows;
  if (shape.path == DecodePath::kPlain && input.compress_ratio > 1)
    shape.length_rows = input.lengths == LengthRule::kAsSeed
                            ? input.num_decode_tokens
                            : std::max(requests, input.num_decode_tokens);
  if (shape.path == DecodePath::kNative) shape.length_columns = longest;
  shape.requires_padding = !shape.flattened() && shortest != longest;
  return shape;
}

std::int64_t decode_row_length(std::int64_t length, const DecodeExpandInput& input) {
  if (input.lengths == LengthRule::kClamped) {
    const std::int64_t limit =
        input.max_model_len > 0 ? input.max_model_len : std::numeric_limits<std::int32_t>::max();
    length = std::clamp<std::int64_t>(length, 0, limit);
  }
  return compressed_length(length, input.compress_ratio, input.context_parallel);
}

void decode_expand(const DecodeExpandInput& input, const DecodeExpandOutput& output) {
  const DecodeExpandShape shape = decode_expand_shape(input);
  check_outputs(input, shape, output);
  if (shape.flattened())
    write_flattened(input, shape, output);
  else
    write_by_request(input, shape, output);
}

}  // namespace monoref
