// Stage glm5next_indexer: the helpers around GLM-5-next's pooled indexer (glm5next-sparse-indexer).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"
#include "reference/rules/request_batch.hpp"

namespace monoref {

/// Values that share one E8M0 scale in an MXFP4 cache.
inline constexpr std::int64_t kMxfp4BlockSize = 32;

// --- Where each decode token belongs -------------------------------------------------------------

struct DecodeScatterIndicesInput {
  View<const std::int32_t, 1> decode_lens;  ///< [requests], query tokens; empty ones anywhere
  std::int64_t num_decode_tokens = 0;       ///< their sum
  LengthRule lengths = LengthRule::kAsSeed;
};

struct DecodeScatterIndicesOutput {
  View<std::int64_t, 1> req_id;  ///< [num_decode_tokens] request of the token
  View<std::int64_t, 1> intra;   ///< [num_decode_tokens] its place in the request, from 0
};

/// Refuses a batch of no requests under `kAsSeed`: the original repeats one start for no request,
/// which is an error.
void check_decode_requests(std::string_view stage, std::int64_t requests, LengthRule lengths);

/// Writes request and place of every token (`_build_decode_scatter_indices`). Refuses negative
/// lengths, a sum that is not num_decode_tokens, outputs of other sizes, and what
/// `check_decode_requests` does.
void decode_scatter_indices(const DecodeScatterIndicesInput& input,
                            const DecodeScatterIndicesOutput& output);

// --- Packing into the padded grid, and back
// -------------------------------------------------------

/// Refuses negative lengths, lengths above the grid's row, and a sum that is not `tokens`.
void check_decode_grid(std::string_view stage, View<const std::int32_t, 1> decode_lens,
                       std::int64_t tokens, std::int64_t row_length);

template <class T>
struct ScatterDecodeTokensInput {
  View<const std::int32_t, 1> decode_lens;  ///< [requests]
  View<const T, 2> tokens;                  ///< [num_decode_tokens, width], of any element type
  T pad_value{};
};

/// Writes `scattered` [requests, longest, width]: request r's tokens in row r in order, the places
/// behind them pad_value (`_scatter_decode_tokens_by_request`). Row (r, t) is token
/// start_of(r) + t, never r * longest + t. Refuses what `check_decode_grid` does, and a grid of
/// another size, before anything is written.
template <class T>
void scatter_decode_tokens_by_request(const ScatterDecodeTokensInput<T>& input,
                                      View<T, 3> scattered) {
  constexpr std::string_view stage = "scatter_decode_tokens_by_request";
  check_decode_grid(stage, input.decode_lens, input.tokens.dim(0), scattered.dim(1));
  check_extent(stage, "scattered", scattered.dim(0), input.decode_lens.dim(0));
  check_extent(stage, "scattered (width)", scattered.dim(2), input.tokens.dim(1));
  std::int64_t first = 0;
  for (std::int64_t request = 0; request < scattered.dim(0); ++request) {
    const std::int64_t live = input.decode_lens(request);
    for (std::int64_t place = 0; place < scattered.dim(1); ++place) {
      for (std::int64_t column = 0; column < scattered.dim(2); ++column)
        scattered(request, place, column) =
            place < live ? input.tokens(first + place, column) : input.pad_value;
    }
    first += live;
  }
}

template <class T>
struct GatherDecodeTokensInput {
  View<const std::int32_t, 1> decode_lens;  ///< [requests]
  View<const T, 3> scattered;               ///< [requests, longest, width]
};

/// The inverse: writes the live places of the grid back to `tokens` [num_decode_tokens, width].
/// Packing and unpacking decide by the same lengths, never by whether the token count divides (bug
/// case T03). Refuses as the packing does.
template <class T>
void gather_decode_tokens_by_request(const GatherDecodeTokensInput<T>& input, View<T, 2> tokens) {
  constexpr std::string_view stage = "gather_decode_tokens_by_request";
  check_decode_grid(stage, input.decode_lens, tokens.dim(0), input.scattered.dim(1));
  check_extent(stage, "scattered", input.scattered.dim(0), input.decode_lens.dim(0));
  check_extent(stage, "tokens (width)", tokens.dim(1), input.scattered.dim(2));
  std::int64_t token = 0;
  for (std::int64_t request = 0; request < input.scattered.dim(0); ++request) {
    for (std::int64_t place = 0; place < input.decode_lens(request); ++place, ++token) {
      for (std::int64_t column = 0; column < tokens.dim(1); ++column)
        tokens(token, column) = input.scattered(request, place, column);
    }
  }
}

// --- Lengths of the top-k rows -------------------------------------------------------------------

struct DecodeTopkSeqLensInput {
  /// [at least the tokens read], token positions from 0; -1 marks a token of nobody.
  View<const std::int64_t, 1> positions;
  View<const std::int32_t, 1> decode_lens;  ///< [batch], read with requires_padding only
  std::int64_t num_decode_tokens = 0;
  std::int64_t batch_size = 0;
  std::int64_t next_n = 1;
  bool requires_padding = false;
};

/// Writes `topk_seq_lens` [batch_size * next_n], each position + 1 (`_decode_topk_seq_lens`).
///
/// Uniform: row i is token i. Padded: rows follow the grid [batch_size, next_n], and a place
/// without a token has length 0. Refuses fewer positions than are read, a position below -1 or
/// whose length exceeds int32, lengths that do not fit the grid, and an output of another size.
void decode_topk_seq_lens(const DecodeTopkSeqLensInput& input, View<std::int32_t, 1> topk_seq_lens);

// --- Short contexts
// -------------------------------------------------------------------------------

struct ShortDecodeCausalFillInput {
  View<const std::int64_t, 1> positions;  ///< [tokens or more]; without entries nothing is filled
  std::int64_t num_decode_tokens = 0;
  std::int64_t max_seq_len = 0;  ///< of the step, tokens
};

/// Where top-k would select every token anyway (max_seq_len at most the buffer's width), writes the
/// causal row 0, 1, .., position, -1, .. for every decode token into `topk_buffer`
/// [rows, topk_tokens] and returns true; other rows keep what they held. Otherwise writes nothing
/// and returns false (`_fill_short_decode_causal_indices`). A position beyond the width fills the
/// row; -1 leaves -1 only. Refuses more tokens than positions or rows, and positions below -1 or
/// whose length exceeds int32.
bool short_decode_causal_fill(const ShortDecodeCausalFillInput& input,
                              View<std::int32_t, 2> topk_buffer);

// --- Workspaces and cache views
// -------------------------------------------------------------------

/// Sizes of the K-gather workspace; values are FP8 or packed MXFP4 bytes, scales are bytes.
struct GatherWorkspaceShapes {
  std::array<std::int64_t, 2> values{};
  std::array<std::int64_t, 2> scales{};
  DType values_type = DType::kFloat8E4M3FN;
  DType scales_type = DType::kUInt8;
  bool operator==(const GatherWorkspaceShapes&) const = default;
};

enum class IndexerCacheFormat : std::uint8_t {
  kFp8,    ///< head_dim E4M3 codes and one float32 scale a key
  kMxfp4,  ///< head_dim/2 bytes of codes and one E8M0 scale for 32 of them
};

/// FP8: [T, head_dim] values of `fp8_type` and [T, 4] bytes of float32 scale. MXFP4:
/// [T, head_dim div 2] bytes and [T, head_dim div 32] scales (`_gather_workspace_shapes`).
/// Refuses negative totals, a head_dim below 1, one that is no multiple of 32 with MXFP4, and an
/// fp8_type of more than one byte.
GatherWorkspaceShapes gather_workspace_shapes(std::int64_t total_seq_lens, std::int64_t head_dim,
                                              IndexerCacheFormat format,
                                              DType fp8_type = DType::kFloat8E4M3FN);

/// The 4-D view [num_blocks, block_size, 1, head_width] of a cache [num_blocks, block_size, width]
/// that the paged scorer expects (`kv_cache_as_quant_view`). Strides in elements.
///
/// FP8 inserts the axis and keeps the strides. MXFP4 lays keys of head_dim/2 + head_dim/32 bytes
/// side by side from each page's start; pages keep their distance, which may be larger than their
/// data. Refuses MXFP4 with elements of more than one byte, a head_dim that is no multiple of 32,
/// and keys that reach past their page.
Layout kv_cache_as_quant_view(const Layout& kv_cache, DType type, std::int64_t head_dim,
                              IndexerCacheFormat format);

}  // namespace monoref
