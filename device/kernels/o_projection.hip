// o_projection: the attention row back to the hidden size, FP8 by token times FP8 by channel.
//
// Source of the rule: mono-decode section 6 (o_proj row), sections 9 and 10.
//
// Order of the sum. K goes in steps of 128, which are dealt to 4 slices: each takes ceil(steps / 4)
// neighbouring ones. With K a multiple of 512 these are the quarters of the specification; a
// smaller or odd K leaves the last slices shorter or empty. A slice is one fma chain from 0 over
// natural k. The slices' sums are added in order, starting from 0.
//
// Work. A block computes tiles of 16 rows. 64 threads have a row and a slice each, for up to 8
// tokens; with 128 threads the second half has 8 more. A step of a row is 128 bytes of weights in 8
// loads of 16, of which 16 neighbouring threads read 256 consecutive bytes; the loads of the next
// step are in flight while one is multiplied. The tokens of a step are decoded once into shared
// memory.

#include <cstdint>

#include "device/kernels/e4m3_words.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/registers.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr int kSlices = 4;
constexpr int kStep = 128;
constexpr int kStepVectors = kStep / 16;
constexpr int kTileRows = 16;
constexpr int kGroupThreads = kTileRows * kSlices;  ///< that share a set of tokens
constexpr int kGroupTokens = 8;
constexpr int kMaxTokenGroups = 2;
/// Distance of two slices, and of two tokens, in shared memory. Four numbers of padding put what
/// the slices read at once into different banks.
constexpr int kStagedSlice = kStep + 4;
constexpr int kStagedToken = kSlices * kStagedSlice;

/// The arguments of a launch.
struct Projection {
  const std::uint8_t* x8;
  std::int64_t x8_row_stride;
  const float* x_scale;
  const std::uint8_t* weights;
  const float* w_scale;
  std::uint16_t* out;
  std::int64_t out_row_stride;
  std::int64_t tokens;
  std::int32_t rows;
  std::int32_t width;
  E4m3 format;

  MONOREF_MEMBER std::int32_t steps() const { return width / kStep; }
  MONOREF_MEMBER std::int32_t steps_of_slice() const { return (steps() + kSlices - 1) / kSlices; }
};

/// A thread's coordinates in its tile.
struct TileThread {
  std::int64_t row_tile;
  std::int64_t first_token;
  std::int32_t tokens;  ///< of the tile
  int row;              ///< 0 .. 15
  int slice;            ///< 0 .. 3
  int group;            ///< 0 .. 1: has tokens 8 * group .. 8 * group + 7
};

/// The weights of one row and step.
struct StepWeights {
  simt::Vec16 vector[kStepVectors];
};

/// Step `step` of this thread's row; past the end the last step is repeated. In the layout of
/// shuffle_weight(16, 16) the 16 rows' codes of 16 k follow each other, then come the next 16 k.
MONOREF_DEVICE StepWeights load_weights(const Projection& p, const TileThread& at,
                                        std::int32_t step) {
  if (step >= p.steps()) step = p.steps() - 1;
  const std::uint8_t* tile = in_global(p.weights) + at.row_tile * kTileRows * p.width;
  const std::uint8_t* from = tile + std::int64_t{step} * kStep * kTileRows + at.row * 16;
  StepWeights weights;
  MONOREF_UNROLL
  for (int i = 0; i < kStepVectors; ++i) {
    weights.vector[i] = simt::load16(from + i * 16 * kTileRows);
    if (MONOREF_FAULT(oproj_weights_not_shuffled, "P07", "weights are read as if plain"))
      weights.vector[i] =
          simt::load16(tile + std::int64_t{at.row} * p.width + step * kStep + i * 16);
  }
  return weights;
}

/// The index of this thread's `n`-th 16-byte vector among the staged tokens.
struct StagedIndex {
  int token, slice, vector;
};
MONOREF_DEVICE StagedIndex staged_index(int n) {
  constexpr int kTokenVectors = kSlices * kStepVectors;
  const int i = static_cast<int>(threadIdx.x) + n * static_cast<int>(blockDim.x);
  return {i / kTokenVectors, i / kStepVectors % kSlices, i % kStepVectors};
}

/// A thread's part of the tokens of one step: every token has 32 vectors, eight tokens are shared
/// by 64 threads.
struct StepTokens {
  simt::Vec16 vector[kGroupTokens / 2];
};

/// Loads this thread's part of step `step` of every slice. Tokens and steps that do not exist give
/// zeros.
MONOREF_DEVICE StepTokens load_tokens(const Projection& p, const TileThread& at,
                                      std::int32_t step) {
  StepTokens tokens{};
  MONOREF_UNROLL
  for (int n = 0; n < kGroupTokens / 2; ++n) {
    const StagedIndex index = staged_index(n);
    const std::int32_t in_row = index.slice * p.steps_of_slice() + step;
    if (index.token >= at.tokens || in_row >= p.steps()) continue;
    const std::uint8_t* from = in_global(p.x8) + (at.first_token + index.token) * p.x8_row_stride +
                               std::int64_t{in_row} * kStep + index.vector * 16;
    if (aligned16(from)) {
      tokens.vector[n] = simt::load16(from);
    } else {
      for (int j = 0; j < 16; ++j)
        tokens.vector[n].word[j / 4] |= std::uint32_t{from[j]} << j % 4 * 8;
    }
  }
  return tokens;
}

/// Decodes what `load_tokens` has loaded into staged [token][slice][k].
MONOREF_DEVICE void stage_tokens(const Projection& p, const TileThread& at,
                                 const StepTokens& tokens, float* staged) {
  MONOREF_UNROLL
  for (int n = 0; n < kGroupTokens / 2; ++n) {
    const StagedIndex index = staged_index(n);
    if (index.token >= at.tokens) continue;
    float* to =
        staged + index.token * kStagedToken + index.slice * kStagedSlice + index.vector * 16;
    for (int j = 0; j < 4; ++j)
      store_staged(to + 4 * j, carried_values(tokens.vector[n].word[j], p.format));
  }
}

/// Continues the chains of this thread's row with `tokens` tokens by 16 k, which begin at `x` in
/// the first of them.
template <int tokens>
MONOREF_DEVICE void add_vector(const simt::Vec16& codes, const float* x,
                               float (&sums)[kGroupTokens]) {
  MONOREF_UNROLL
  for (int i = 0; i < 4; ++i) {
    const Four w = field_values(codes.word[i]);
    for (int token = 0; token < tokens; ++token) {
      const Four values = load_staged(x + token * kStagedToken + 4 * i);
      for (int j = 0; j < 4; ++j) sums[token] = simt::fma(values.value[j], w.value[j], sums[token]);
      compute_here(sums[token]);
    }
  }
}

template <int tokens>
MONOREF_DEVICE void add_step(const StepWeights& weights, const float* x,
                             float (&sums)[kGroupTokens]) {
  MONOREF_UNROLL
  for (int i = 0; i < kStepVectors; ++i) {
    const int vector =
        MONOREF_FAULT(oproj_k_order_reversed, "D01", "a wave walks its quarter from the end")
            ? kStepVectors - 1 - i
            : i;
    add_vector<tokens>(weights.vector[vector], x + vector * 16, sums);
  }
}

/// Runs the smallest instantiation that holds the tile's tokens; results of surplus tokens are
/// discarded.
MONOREF_DEVICE void add_step(const StepWeights& weights, const float* x, std::int32_t tokens,
                             float (&sums)[kGroupTokens]) {
  if (tokens == 1)
    add_step<1>(weights, x, sums);
  else if (tokens <= 2)
    add_step<2>(weights, x, sums);
  else if (tokens <= 4)
    add_step<4>(weights, x, sums);
  else
    add_step<kGroupTokens>(weights, x, sums);
}

/// How many of the tile's tokens this thread's group has.
MONOREF_DEVICE std::int32_t tokens_of_group(const TileThread& at) {
  const std::int32_t left = at.tokens - at.group * kGroupTokens;
  return left < kGroupTokens ? left : kGroupTokens;
}

/// Sums this thread's slice of its row.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void sum_slice(const Projection& p, const TileThread& at,
                                                       float* staged, float (&sums)[kGroupTokens]) {
  const std::int32_t steps = p.steps_of_slice();
  int slice = at.slice;
  if (MONOREF_FAULT(oproj_slices_rotated, "own", "waves own each other's quarters"))
    slice = (slice + 1) % kSlices;
  const std::int32_t first = slice * steps;
  const std::int32_t tokens = tokens_of_group(at);
  const float* x = staged + at.group * kGroupTokens * kStagedToken + slice * kStagedSlice;
  StepTokens tokens_ahead = load_tokens(p, at, 0);
  StepWeights weights = load_weights(p, at, first);
  std::uint32_t marks = 0;
  MONOREF_KEEP_LOOP
  for (std::int32_t step = 0; step < steps; ++step) {
    const std::int32_t next = step + 1 < steps ? step + 1 : step;
    const StepWeights ahead = load_weights(p, at, first + next);
    __syncthreads();  // the staged operands have been used
    stage_tokens(p, at, tokens_ahead, staged);
    __syncthreads();
    tokens_ahead = load_tokens(p, at, next);
    if (tokens > 0 && first + step < p.steps()) {
      MONOREF_UNROLL
      for (int i = 0; i < kStepVectors; ++i) marks |= nan_marks(weights.vector[i], p.format);
      add_step(weights, x, tokens, sums);
    }
    weights = ahead;
  }
  for (float& sum : sums) sum = unless_nan(marks, sum);
}

/// Adds the slices' sums of the tile's outputs, applies the scales and stores. `partials` is
/// [token][slice][row].
MONOREF_DEVICE void store_tile(const Projection& p, const TileThread& at, const float* partials) {
  const int count = at.tokens * kTileRows;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const std::int64_t token = at.first_token + i / kTileRows;
    const std::int64_t row = at.row_tile * kTileRows + i % kTileRows;
    const float* of_token = partials + i / kTileRows * kGroupThreads + i % kTileRows;
    float dot = 0.0F;
    for (int slice = 0; slice < kSlices; ++slice) {
      const int taken =
          MONOREF_FAULT(oproj_partials_reversed, "D01", "partial sums are added from the last wave")
              ? kSlices - 1 - slice
              : slice;
      const float part = of_token[taken * kTileRows];
      dot += MONOREF_FAULT(oproj_partials_in_bf16, "own", "partial sums are rounded to BF16")
                 ? rounded_to_bf16(part)
                 : part;
    }
    const float x_scale =
        in_global(p.x_scale)[MONOREF_FAULT(oproj_x_scale_of_first_token, "P18",
                                           "every token has the scale of the first")
                                 ? 0
                                 : token];
    const float w_scale = in_global(p.w_scale)[MONOREF_FAULT(oproj_w_scale_of_wrong_row, "P18",
                                                             "a row has its neighbour's scale")
                                                   ? row ^ 1
                                                   : row];
    in_global(p.out)[token * p.out_row_stride + row] = bf16_of((dot * x_scale) * w_scale);
  }
}

/// One whole tile. Shared memory holds the tile's staged tokens, and when those are used the
/// partial sums.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void make_tile(const Projection& p, const TileThread& at,
                                                       float* shared) {
  float sums[kGroupTokens] = {};
  sum_slice(p, at, shared, sums);
  __syncthreads();
  const std::int32_t tokens = tokens_of_group(at);
  for (int token = 0; token < kGroupTokens; ++token)
    if (token < tokens)
      shared[(at.group * kGroupTokens + token) * kGroupThreads + at.slice * kTileRows + at.row] =
          true_sum(sums[token], p.format);
  __syncthreads();
  store_tile(p, at, shared);
  __syncthreads();  // the next tile overwrites what this one had in shared memory
}

}  // namespace

// Inputs   x8 codes [tokens, width], rows x8_row_stride bytes apart, innermost stride 1
//          x_scale f32 [tokens], dense
//          weights codes [rows, width] in the layout of shuffle_weight(16, 16), dense, at a
//          multiple of 16
//          w_scale f32 [rows], dense
// Outputs  out bf16 [tokens, rows], rows out_row_stride elements apart, innermost stride 1:
//          bf16((dot * x_scale) * w_scale), each product rounded
// Sizes    width (query heads * head_dim) a multiple of 128; rows a multiple of 16
// Options  encoding 0: E4M3FN; 1: E4M3FNUZ; of both operands
// Launch   any grid; x goes over tiles of 16 rows, y over tiles of as many tokens as the block
//          takes. Blocks of 64 threads (8 tokens) or 128 (16) in one dimension. Dynamic shared
//          memory: 2112 bytes times 1, 2, 4, 8 or 16, the first that is not below a tile's tokens,
//          which are min(tokens, 8) or min(tokens, 16).
// Misuse   Other sizes and blocks write nothing.
MONOREF_KERNEL(128, monoref_o_projection)(const std::uint8_t* x8, std::int64_t x8_row_stride,
                                          const float* x_scale, const std::uint8_t* weights,
                                          const float* w_scale, std::uint16_t* out,
                                          std::int64_t out_row_stride, std::int64_t tokens,
                                          std::int32_t rows, std::int32_t width,
                                          std::int32_t encoding) {
  MONOREF_SHARED(Projection, kept, 1);
  MONOREF_DYNAMIC_SHARED(float, shared);
  static_assert(kStagedToken * sizeof(float) == 2112);
  if (width < kStep || width % kStep != 0 || rows % kTileRows != 0) return;
  const int groups = static_cast<int>(blockDim.x) / kGroupThreads;
  if (blockDim.x % kGroupThreads != 0 || groups > kMaxTokenGroups) return;
  const Projection given{x8,
                         x8_row_stride,
                         x_scale,
                         weights,
                         w_scale,
                         out,
                         out_row_stride,
                         tokens,
                         rows,
                         width,
                         e4m3_format(encoding, kOverflowNan)};
  const Projection& p = kept_in_shared(kept, given);
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t tile_tokens = std::int64_t{groups} * kGroupTokens;
  const std::int64_t tile_step =
      MONOREF_FAULT(o_grid_x_runs_once, "own", "the blocks of the grid take one tile each and stop")
          ? rows / kTileRows
          : gridDim.x;
  for (std::int64_t tile = blockIdx.x; tile < rows / kTileRows; tile += tile_step) {
    for (std::int64_t first = blockIdx.y * tile_tokens; first < tokens;
         first += gridDim.y * tile_tokens) {
      const std::int64_t left = tokens - first;
      const TileThread at{tile,
                          first,
                          static_cast<std::int32_t>(left < tile_tokens ? left : tile_tokens),
                          thread % kTileRows,
                          thread / kTileRows % kSlices,
                          thread / kGroupThreads};
      make_tile(p, at, shared);
    }
  }
}
MONOREF_REGISTER(monoref_o_projection);

}  // namespace monoref::kernels
