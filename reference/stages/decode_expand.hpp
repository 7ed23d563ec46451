// Stage decode_expand: the lengths and block tables of decodes as the decode kernels want them.
#pragma once

#include <cstdint>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"
#include "reference/stages/context_parallel_lengths.hpp"

namespace monoref {

/// How a batch of decodes is handed on (deepseek-indexer-metadata: _prepare_decode_tensors).
enum class DecodePath : std::uint8_t {
  kPlain,           ///< one length a request: no query is longer than one token
  kNative,          ///< [requests, longest query] lengths, the kernel takes multi-token queries
  kFlattenUniform,  ///< one row a token, all queries equally long
  kFlattenRagged,   ///< one row a token, padding rows behind them
};

struct DecodeExpandInput {
  View<const std::int32_t, 1> query_start_loc;  ///< [num_decodes+1]
  View<const std::int32_t, 1> seq_lens;         ///< [num_decodes], global tokens with the query
  View<const std::int32_t, 2> block_table;      ///< [num_decodes, source width]
  std::int64_t num_decode_tokens = 0;           ///< rows of the step, padding tokens included
  std::int64_t next_n = 1;                      ///< 1 + num_speculative_tokens
  bool use_flattening = false;                  ///< the decode kernel takes one-token queries only
  std::int64_t compress_ratio = 1;              ///< tokens a key; 0 and 1 both mean none
  ContextParallel context_parallel{};
  LengthRule lengths = LengthRule::kAsSeed;
  std::int64_t max_model_len = 0;  ///< tokens, upper limit of `kClamped`; 0: unknown, no limit
};

/// The path taken and the sizes of the outputs.
struct DecodeExpandShape {
  DecodePath path = DecodePath::kPlain;
  std::int64_t rows = 0;            ///< of decode_lens and decode_block_table
  std::int64_t length_rows = 0;     ///< of decode_seq_lens
  std::int64_t length_columns = 1;  ///< of decode_seq_lens
  std::int64_t max_decode_len = 0;  ///< longest query
  bool requires_padding = false;    ///< queries must be packed into a [requests, longest] grid
  bool operator==(const DecodeExpandShape&) const = default;

  bool flattened() const {
    return path == DecodePath::kFlattenUniform || path == DecodePath::kFlattenRagged;
  }
};

struct DecodeExpandOutput {
  View<std::int32_t, 2> decode_seq_lens;  ///< [length_rows, length_columns]
  View<std::int32_t, 1> decode_lens;      ///< [rows]
  /// [rows, width], at least as wide as the source. May be without data where the path does not
  /// flatten: the source table then serves as it is.
  View<std::int32_t, 2> decode_block_table;
};

/// Validates the input, chooses the path and returns the sizes.
///
/// Native is taken where the kernel does not need flattening and no query exceeds next_n; otherwise
/// queries longer than one token are flattened. Uniformity is the equality of all queries, never a
/// property of their sum (bug case T03).
/// * flattened uniform: rows = num_decodes * longest query
/// * flattened ragged: rows = num_decode_tokens, those behind the live ones are padding
/// * native (next_n > 1) and plain: rows = num_decodes. Lengths of the plain path under compression
///   are num_decode_tokens rows in the original, which so loses the last request's length for every
///   empty request, and max(num_decodes, num_decode_tokens) in ours (`kClamped`).
///
/// Refuses an empty batch, prefix sums that fall, negative lengths, fewer num_decode_tokens than
/// the queries hold, next_n below 1, a negative ratio or max_model_len, a bad ContextParallel and a
/// table with fewer rows than requests.
DecodeExpandShape decode_expand_shape(const DecodeExpandInput& input);

/// The length of a row that sees the first `length` tokens of its sequence: clamped, then divided
/// by the ratio, then localised. In this order: neither the division (bug case T12) nor the
/// localisation (bug case T19) commutes with the step from token to token.
std::int64_t decode_row_length(std::int64_t length, const DecodeExpandInput& input);

/// Writes the expansion.
///
/// Token j of a query of q tokens sees seq_len - q + j + 1 tokens; on the native path q is the
/// longest query of the batch for all requests, the plain path takes seq_len as it is. Flattened
/// rows have decode_lens 1, padding rows too, with length 0 and a table row of zeros; other paths
/// keep the query lengths. Table columns behind the source width are 0: the uniform kernel of the
/// original copies there what lies behind the source row (recordings:
/// indexer_metadata). All strides are free; source and destination widths may differ, but a
/// destination narrower than the source is refused (bug case T08). Only the original's uniform
/// flattening (`kAsSeed`) writes the columns that there are and drops the rest.
///
/// Refuses what `decode_expand_shape` does, and outputs of other sizes, before anything is written.
void decode_expand(const DecodeExpandInput& input, const DecodeExpandOutput& output);

}  // namespace monoref
