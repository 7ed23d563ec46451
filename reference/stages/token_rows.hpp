// Stage token_rows: one block-table row and one length per token of a decode step.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/tensor.hpp"

namespace monoref {

/// A step of `n` tokens in which every request brings `q` query tokens.
struct TokenRowsInput {
  View<const std::int32_t, 2> block_table;  ///< [requests, width], page-128 block ids
  View<const std::int32_t, 1> seq_lens;     ///< [requests], keys including this step's
  std::int64_t q = 1;                       ///< query tokens a request
  std::int64_t n = 0;                       ///< tokens of the step
};

struct TokenRowsOutput {
  View<std::int32_t, 2> block_table;  ///< [rows, width]
  View<std::int32_t, 1> seq_lens;     ///< [rows]
};

struct TokenRowsShape {
  std::array<std::int64_t, 2> block_table{};
  std::array<std::int64_t, 1> seq_lens{};
};

/// The output shapes. q = 1: those of the inputs, whatever n is. Otherwise (n div q) * q rows.
///
/// Refuses q < 1, n < 0, a table or lengths of fewer than n div q requests (bug case T01), and a
/// length that would leave int32. Divisibility of n by q is the business of `admit_step`.
TokenRowsShape token_rows_shape(const TokenRowsInput& input);

/// Expands requests to tokens (mono-decode section 2; mono-runner: token_rows).
///
/// q = 1 copies both tables whole, padding rows included. Otherwise row r holds token j = r mod q
/// of request i = r div q: block-table row i and length seq_lens[i] - (q - 1 - j). Lengths of
/// padded or young requests become zero or negative and stay so (bug case T02): who reads them
/// clamps.
///
/// Every request has the same q. A ragged batch is not representable here, also not one whose token
/// count happens to divide evenly (bug case T03); it goes through the indexer's decode expansion.
///
/// Refuses what `token_rows_shape` refuses and outputs of other shapes, before it writes anything.
void token_rows(const TokenRowsInput& input, const TokenRowsOutput& output);

}  // namespace monoref
