// glm5next_indexer: regrouping of ragged decode tokens, exact rows of short decodes, and pools
// expanded to tokens.
//
// Source of the rule: glm5next-sparse-indexer; for the pool expansion the rule of recordings:
// glm5next_expand_pools. The tokens of request r of a decode batch are the flat tokens start_r ..
// start_r + decode_lens[r] - 1, start_r being the sum of the decode lengths before it. In the
// padded grid [requests, lmax] token t of request r is row (r, t); rows behind a request's tokens
// are padding.

#include <cstdint>

#include "device/kernels/flat_grid.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

/// Sum of decode_lens[0 .. request), in every lane.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE std::int64_t tokens_before(const std::int32_t* decode_lens,
                                                                  std::int64_t request) {
  std::int64_t sum = 0;
  const std::int64_t end =
      MONOREF_FAULT(grid_start_inclusive, "own", "a request's tokens start behind its own")
          ? request + 1
          : request;
  for (std::int64_t i = simt::lane(); i < end; i += simt::kWave) sum += decode_lens[i];
  for (int mask = simt::kWave / 2; mask > 0; mask /= 2) sum += simt::shuffle_xor(sum, mask);
  return sum;
}

/// One request's tokens in the flat batch.
struct RequestTokens {
  std::int64_t start;
  std::int64_t count;
};

/// The tokens of a request, of which only those below `lmax` and inside the batch of `tokens`
/// exist.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE RequestTokens tokens_of_request(
    const std::int32_t* decode_lens, std::int64_t request, std::int64_t lmax, std::int64_t tokens) {
  std::int64_t start = tokens_before(decode_lens, request);
  if (MONOREF_FAULT(grid_start_uniform, "T03",
                    "a request's tokens start at request times the grid's width"))
    start = request * lmax;
  std::int64_t count = decode_lens[request];
  if (count > lmax) count = lmax;
  if (count > tokens - start) count = tokens - start;
  return {start, count};
}

/// Scatters whole token rows into the padded grid; a wave moves one row at a time.
template <class Element>
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE void scatter_tokens(const Element* tokens,
                                                           std::int64_t token_stride,
                                                           const std::int32_t* decode_lens,
                                                           Element* grid, std::int64_t requests,
                                                           std::int64_t lmax, std::int64_t inner,
                                                           std::int64_t token_count, Element pad) {
  const std::int64_t waves = blockDim.x / simt::kWave;
  const std::int64_t stride =
      MONOREF_FAULT(grid_token_stride_ignored, "T05", "tokens read as if contiguous")
          ? inner
          : token_stride;
  for (std::int64_t request = blockIdx.x; request < requests; request += gridDim.x) {
    const RequestTokens of = tokens_of_request(decode_lens, request, lmax, token_count);
    for (std::int64_t t = simt::wave(); t < lmax; t += waves) {
      Element* to = grid + (request * lmax + t) * inner;
      if (t < of.count) {
        copy_row(tokens + (of.start + t) * stride, to, inner, simt::lane(), simt::kWave);
      } else if (!MONOREF_FAULT(grid_padding_stale, "D04",
                                "padding rows of the grid not written")) {
        for (std::int64_t i = simt::lane(); i < inner; i += simt::kWave) to[i] = pad;
      }
    }
  }
}

/// Token `column` of a row of expanded pools, before the tail; -1 where no pool was selected.
MONOREF_DEVICE std::int32_t token_of_pool(const std::int32_t* pools, std::int64_t pool_stride,
                                          std::int32_t column, std::int32_t pool_size,
                                          std::int32_t selected) {
  const bool transposed =
      MONOREF_FAULT(pools_token_major, "own", "columns ordered by token, then by pool");
  const std::int32_t j = transposed ? column % selected : column / pool_size;
  const std::int32_t t = transposed ? column / selected : column % pool_size;
  const std::int64_t stride =
      MONOREF_FAULT(pools_id_stride_ignored, "T05", "pool ids of a row read as if contiguous")
          ? 1
          : pool_stride;
  const std::int32_t pool = pools[j * stride];
  if (pool < 0 &&
      !MONOREF_FAULT(pools_negative_expanded, "own", "an unused place expands to negative tokens"))
    return -1;
  return static_cast<std::int32_t>(std::int64_t{pool} * pool_size + t);
}

/// Token `index` of the tail: the keys behind the last whole pool; -1 behind the last of them.
MONOREF_DEVICE std::int32_t token_of_tail(std::int32_t index, std::int32_t seq_len,
                                          std::int32_t pool_size) {
  if (MONOREF_FAULT(pools_tail_missing, "own", "tokens behind the last whole pool dropped"))
    return -1;
  if (seq_len < 0) return -1;
  std::int32_t whole = seq_len / pool_size * pool_size;
  if (MONOREF_FAULT(pools_tail_of_full_pool, "own", "a complete last pool repeated as the tail") &&
      whole == seq_len && whole > 0)
    whole -= pool_size;
  const std::int64_t token = std::int64_t{whole} + index;
  if (MONOREF_FAULT(pools_tail_past_end, "own", "the tail runs past the sequence"))
    return static_cast<std::int32_t>(token);
  return token < seq_len ? static_cast<std::int32_t>(token) : -1;
}

}  // namespace

// Inputs   decode_lens int32 [requests], dense; in tokens, 0 for a padded request
// Outputs  req_id, intra int64 [tokens], dense: request of each token, and its number there
// Sizes    tokens = the sum of decode_lens.
// Launch   any grid in x and any block of whole waves; x goes over requests.
// Misuse   Tokens at or behind `tokens` are not written; if the sum is smaller, the rest stays.
MONOREF_KERNEL(1024, monoref_decode_scatter_indices)(const std::int32_t* decode_lens,
                                                     std::int64_t* req_id, std::int64_t* intra,
                                                     std::int64_t requests, std::int64_t tokens) {
  for (std::int64_t request = blockIdx.x; request < requests; request += gridDim.x) {
    const RequestTokens of = tokens_of_request(decode_lens, request, tokens, tokens);
    for (std::int64_t t = threadIdx.x; t < of.count; t += blockDim.x) {
      req_id[of.start + t] = request;
      intra[of.start + t] =
          MONOREF_FAULT(grid_intra_from_batch, "own", "places counted from the batch's first token")
              ? of.start + t
              : t;
    }
  }
}
MONOREF_REGISTER(monoref_decode_scatter_indices);

// Inputs   tokens [token_count, inner], rows token_stride elements apart, innermost stride 1
//          decode_lens int32 [requests], dense
// Outputs  grid [requests, lmax, inner], dense; `pad` in the rows that no token has
// Sizes    inner elements a token, moved as bits, one kernel for each size (b8 .. b64: bits);
//          token_count = the sum of decode_lens; every decode length at most lmax.
// Launch   any grid in x and any block of whole waves; x goes over requests, the waves of a block
//          over their rows.
// Misuse   Tokens at or behind token_count or lmax are not read: their rows are padding, or do not
//          exist.
#define MONOREF_DECODE_SCATTER(name, Element)                                               \
  MONOREF_KERNEL(1024, name)(const Element* tokens, std::int64_t token_stride,              \
                             const std::int32_t* decode_lens, Element* grid,                \
                             std::int64_t requests, std::int64_t lmax, std::int64_t inner,  \
                             std::int64_t token_count, Element pad) {                       \
    scatter_tokens<Element>(tokens, token_stride, decode_lens, grid, requests, lmax, inner, \
                            token_count, pad);                                              \
  }                                                                                         \
  MONOREF_REGISTER(name)

MONOREF_DECODE_SCATTER(monoref_decode_scatter_b8, std::uint8_t);
MONOREF_DECODE_SCATTER(monoref_decode_scatter_b16, std::uint16_t);
MONOREF_DECODE_SCATTER(monoref_decode_scatter_b32, std::uint32_t);
MONOREF_DECODE_SCATTER(monoref_decode_scatter_b64, std::uint64_t);

// Inputs   positions int64 [tokens], position_stride elements apart; cut to int32 as in the
//          original
//          decode_lens int32 [requests], dense; read only if padded
// Outputs  topk_seq_lens int32 [requests, next_n], dense: position + 1, and 0 in padding rows
// Sizes    padded 1: row (r, t) is token t of request r of the ragged batch of `tokens` tokens;
//          padded 0: row (r, t) is flat token r * next_n + t, and tokens >= requests * next_n.
// Launch   any grid in x and any block of whole waves; x goes over requests.
// Misuse   Tokens at or behind `tokens` are not read: their rows are padding.
MONOREF_KERNEL(1024, monoref_decode_topk_seq_lens)(const std::int64_t* positions,
                                                   std::int64_t position_stride,
                                                   const std::int32_t* decode_lens,
                                                   std::int32_t* topk_seq_lens,
                                                   std::int64_t requests, std::int64_t next_n,
                                                   std::int64_t tokens, std::int32_t padded) {
  const std::int64_t stride =
      MONOREF_FAULT(topk_lens_stride_ignored, "T05", "positions read as if contiguous")
          ? 1
          : position_stride;
  for (std::int64_t request = blockIdx.x; request < requests; request += gridDim.x) {
    RequestTokens of{request * next_n, next_n};
    if (padded != 0) of = tokens_of_request(decode_lens, request, next_n, tokens);
    for (std::int64_t t = threadIdx.x; t < next_n; t += blockDim.x) {
      const bool live = t < of.count && of.start + t < tokens;
      const auto position =
          live ? static_cast<std::uint32_t>(positions[(of.start + t) * stride]) : ~0U;
      const std::uint32_t length =
          MONOREF_FAULT(topk_lens_are_positions, "own", "lengths without the token itself")
              ? position
              : position + 1;
      topk_seq_lens[request * next_n + t] = static_cast<std::int32_t>(length);
    }
  }
}
MONOREF_REGISTER(monoref_decode_topk_seq_lens);

// Inputs   positions int64 [rows], dense
// Outputs  topk_indices int32 [rows, width], rows row_stride elements apart; columns behind width
//          stay as they are: 0 .. position, then -1
// Sizes    rows = the decode tokens of the step. The host calls this only if the longest sequence
//          fits into width; a longer one fills its whole row.
// Launch   any grid and any block of whole waves; x goes over rows, y over columns.
// Misuse   A negative position makes a row of -1.
MONOREF_KERNEL(1024, monoref_fill_causal_indices)(const std::int64_t* positions,
                                                  std::int32_t* topk_indices,
                                                  std::int64_t row_stride, std::int64_t rows,
                                                  std::int32_t width) {
  const std::int64_t stride = MONOREF_FAULT(causal_fill_stride_ignored, "T08",
                                            "rows taken to be as far apart as they are wide")
                                  ? width
                                  : row_stride;
  const std::int64_t first_column =
      MONOREF_FAULT(causal_fill_grid_y_ignored, "own",
                    "columns of the blocks behind the first in y are not made")
          ? std::int64_t{threadIdx.x}
          : column_of_grid();
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const std::int64_t position = positions[row];
    std::int64_t keys = position < 0 ? 0 : position + 1;
    if (MONOREF_FAULT(causal_fill_own_key_missing, "own", "a row without the token itself"))
      keys = position;
    std::int32_t* to = topk_indices + row * stride;
    for (std::int64_t i = first_column; i < width; i += columns_of_grid()) {
      if (i >= keys &&
          MONOREF_FAULT(causal_fill_stale_tail, "D04", "columns behind the position not written"))
        continue;
      to[i] = i < keys ? static_cast<std::int32_t>(i) : -1;
    }
  }
}
MONOREF_REGISTER(monoref_fill_causal_indices);

// Inputs   pool_ids int32 [rows, selected], elements pool_row_stride and pool_id_stride apart;
//          negative: not selected
//          seq_lens int32 [rows], dense; in keys, 0 for a padded row
// Outputs  token_ids int32 [rows, selected * pool_size + pool_size - 1], rows token_row_stride
//          elements apart: the tokens of each pool in selection order, then those behind the last
//          whole pool, -1 elsewhere
// Sizes    pool_size >= 1 tokens a pool; token ids below 2^31.
// Launch   any grid and any block of whole waves; x goes over rows, y over columns.
// Misuse   Ids are numbers only, nothing is read through them. Products wrap as int32 does.
MONOREF_KERNEL(1024, monoref_expand_pools)(const std::int32_t* pool_ids,
                                           std::int64_t pool_row_stride,
                                           std::int64_t pool_id_stride,
                                           const std::int32_t* seq_lens, std::int32_t* token_ids,
                                           std::int64_t token_row_stride, std::int64_t rows,
                                           std::int32_t selected, std::int32_t pool_size) {
  if (pool_size < 1) return;
  const std::int32_t tail = selected * pool_size;
  const std::int64_t from_stride =
      MONOREF_FAULT(pools_row_stride_ignored, "T05", "rows of pools read as if dense")
          ? selected
          : pool_row_stride;
  const std::int64_t first_column =
      MONOREF_FAULT(pools_grid_y_ignored, "own",
                    "columns of the blocks behind the first in y are not made")
          ? std::int64_t{threadIdx.x}
          : column_of_grid();
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    std::int32_t* to = token_ids + row * token_row_stride;
    for (std::int64_t i = first_column; i < tail + pool_size - 1; i += columns_of_grid()) {
      const auto column = static_cast<std::int32_t>(i);
      to[i] = column < tail ? token_of_pool(pool_ids + row * from_stride, pool_id_stride, column,
                                            pool_size, selected)
                            : token_of_tail(column - tail, seq_lens[row], pool_size);
    }
  }
}
MONOREF_REGISTER(monoref_expand_pools);

}  // namespace monoref::kernels
