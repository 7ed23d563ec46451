// qkv_projection: the fused q, k, v and index projection, FP8 by token times FP8 by channel.
//
// Source of the rule: mono-decode section 3, step 5, and sections 9 and 10.
//
// Order of the sum. K goes in chunks of 64, which are dealt to at most 8 slices: each takes
// ceil(chunks / 8) neighbouring ones. With hidden a multiple of 512 these are the eighths of the
// specification; a smaller hidden size has hidden / 64 slices of one chunk. A slice is one fma
// chain from 0. Inside a chunk k goes 0-7, 16-23, 32-39, 48-55, then 8-15, 24-31, 40-47, 56-63.
// The slices' sums are added in order, starting from 0.
//
// Work. A block computes tiles of 16 rows x up to 8 tokens. A thread has a row and a slice, for all
// of the tile's tokens, so that a block decodes a weight once. The weights of a tile and chunk lie
// in 1024 consecutive bytes and are read 16 bytes a lane; the next one or two chunks are in flight
// while as many are multiplied. Of the tokens as much as fits is decoded at once into shared
// memory, in the order in which the fma chains take it: 16 chunks of each slice if there is one
// token, 2 if there are 8.

#include <cstdint>

#include "device/kernels/e4m3_words.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/registers.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr int kSlices = 8;
constexpr int kChunk = 64;
constexpr int kPieces = kChunk / 16;  ///< vectors of 16 codes in a chunk
constexpr int kTileRows = 16;         ///< threads that share a slice
constexpr int kTileTokens = 8;
constexpr int kTileOutputs = kTileRows * kTileTokens;
constexpr int kPartials = kSlices * kTileOutputs;
/// Chunks of a slice that are staged in a step, those of all tokens counted.
constexpr int kStagedChunks = 16;
constexpr int kThreadPieces = kStagedChunks * kPieces / kTileRows;  ///< that a thread stages
/// Distance of two slices in shared memory. Four numbers of padding put what two slices read at
/// once into different banks.
constexpr int kStagedSlice = kStagedChunks * kChunk + 4;
constexpr int kStagedNumbers = kSlices * kStagedSlice;

/// Chunks of each of `tile_tokens` tokens that are staged in a step, and the distance of two
/// tokens.
template <int tile_tokens>
constexpr int kStepChunks = kStagedChunks / tile_tokens;
template <int tile_tokens>
constexpr int kTokenStride = kStepChunks<tile_tokens> * kChunk;

/// Chunks whose weights are read together, so that the loads in flight cover the latency of memory:
/// with more tokens a chunk takes longer, and there are fewer registers to spare.
template <int tile_tokens>
constexpr int kBatchChunks = tile_tokens <= 2 ? 2 : 1;

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
  std::int32_t hidden;
  E4m3 format;

  /// Whether 16 codes of a token can be loaded at once.
  MONOREF_MEMBER bool tokens_are_aligned() const {
    if (MONOREF_FAULT(qkv_wide_by_stride_only, "own",
                      "where the tokens begin is not looked at before they are loaded by 16 bytes"))
      return x8_row_stride % 16 == 0;
    return aligned16(x8) && x8_row_stride % 16 == 0;
  }
  MONOREF_MEMBER std::int32_t chunks() const { return hidden / kChunk; }
  MONOREF_MEMBER std::int32_t chunks_of_slice() const { return (chunks() + kSlices - 1) / kSlices; }
  MONOREF_MEMBER bool has_slice(std::int32_t slice) const {
    return slice * chunks_of_slice() < chunks();
  }
};

/// A tile, and this thread's row in it.
struct TileThread {
  std::int64_t row_tile;
  std::int64_t first_token;
  std::int32_t tokens;  ///< of the tile: 1 .. 8
  int row;              ///< 0 .. 15; also the thread's number among those of its slice
};

/// Neighbouring chunks.
struct ChunkRange {
  std::int32_t first, end;

  MONOREF_MEMBER std::int32_t count() const { return end - first; }
  /// The first `limit` of those from `start` on; none if `start` is not in the range.
  MONOREF_MEMBER ChunkRange from(std::int32_t start, std::int32_t limit) const {
    return {start, start + limit < end ? start + limit : end};
  }
};

MONOREF_DEVICE ChunkRange chunks_of(const Projection& p, std::int32_t slice) {
  const std::int32_t first = slice * p.chunks_of_slice();
  ChunkRange range = ChunkRange{first, p.chunks()}.from(first, p.chunks_of_slice());
  if (MONOREF_FAULT(qkv_last_chunk_dropped, "own", "a slice ends one chunk early") &&
      range.end == p.chunks())
    range.end -= 1;
  return range;
}

// ---- weights -----------------------------------------------------------------------------------

/// A row's weights of one chunk, in natural order.
struct ChunkWeights {
  simt::Vec16 piece[kPieces];
};

/// The chunks that a thread reads together.
template <int chunks>
struct ChunkBatch {
  ChunkWeights chunk[chunks];
};

/// Where this thread's row begins. In the layout of shuffle_weight(16, 16) the 16 rows' codes of 16
/// k follow each other, then come the next 16 k.
MONOREF_DEVICE const std::uint8_t* row_of_weights(const Projection& p, const TileThread& at) {
  const std::int64_t row_bytes =
      MONOREF_FAULT(qkv_weights_not_shuffled, "G05", "weights read as if in plain order") ? p.hidden
                                                                                          : 16;
  return in_global(p.weights + at.row_tile * kTileRows * p.hidden + at.row * row_bytes);
}

/// Fault qkv_k_order_natural: permutes a chunk so that the walk through it takes k in ascending
/// order.
MONOREF_DEVICE ChunkWeights in_natural_order(const ChunkWeights& weights) {
  ChunkWeights moved;
  for (int i = 0; i < 4 * kPieces; ++i)
    moved.piece[i / 2 % kPieces].word[i / 8 * 2 + i % 2] = weights.piece[i / 4].word[i % 4];
  return moved;
}

MONOREF_DEVICE ChunkWeights load_chunk(const std::uint8_t* row, std::int32_t chunk) {
  const int piece_bytes = MONOREF_FAULT_AT(qkv_weights_not_shuffled) ? 16 : 16 * kTileRows;
  const std::uint8_t* from = row + std::int64_t{chunk} * kPieces * piece_bytes;
  ChunkWeights weights;
  MONOREF_UNROLL
  for (int piece = 0; piece < kPieces; ++piece)
    weights.piece[piece] = simt::load16(from + piece * piece_bytes);
  return MONOREF_FAULT(qkv_k_order_natural, "own", "k ascending inside a chunk")
             ? in_natural_order(weights)
             : weights;
}

/// The batch of chunks that begins with `first`; past the end of the slice its last chunk is
/// repeated.
template <int chunks>
MONOREF_DEVICE void load_batch(const std::uint8_t* row, std::int32_t first, const ChunkRange& slice,
                               ChunkBatch<chunks>& batch) {
  const std::int32_t last = slice.end > 0 ? slice.end - 1 : 0;
  MONOREF_UNROLL
  for (int i = 0; i < chunks; ++i)
    batch.chunk[i] = load_chunk(row, first + i < last ? first + i : last);
}

// ---- tokens ------------------------------------------------------------------------------------

/// 16 codes that a thread stages as its number `i` in a step: the pieces of a slice are dealt out
/// in turn.
struct StagedPiece {
  int token, chunk, piece;
};

template <int tile_tokens>
MONOREF_DEVICE StagedPiece staged_piece(const TileThread& at, int i) {
  const int number = at.row + i * kTileRows;
  return {number / kPieces / kStepChunks<tile_tokens>, number / kPieces % kStepChunks<tile_tokens>,
          number % kPieces};
}

/// Whether there is such a piece in the step.
MONOREF_DEVICE bool exists(const StagedPiece& piece, const TileThread& at, const ChunkRange& step) {
  return piece.token < at.tokens && piece.chunk < step.count();
}

/// Where the codes of the piece lie.
MONOREF_DEVICE const std::uint8_t* codes_of(const Projection& p, const TileThread& at,
                                            const ChunkRange& step, const StagedPiece& piece) {
  const std::int64_t stride = MONOREF_FAULT(qkv_token_stride_ignored, "N01",
                                            "tokens taken to be as far apart as they are wide")
                                  ? p.hidden
                                  : p.x8_row_stride;
  std::int32_t chunk = step.first + piece.chunk;
  if (MONOREF_FAULT(qkv_wrong_eighth, "own", "a wave reads another wave's slice"))
    chunk = p.chunks() - 1 - chunk;
  return in_global(p.x8 + (at.first_token + piece.token) * stride + std::int64_t{chunk} * kChunk +
                   piece.piece * 16);
}

/// 16 bytes from any address.
MONOREF_DEVICE simt::Vec16 load_bytes(const std::uint8_t* from) {
  simt::Vec16 codes{};
  MONOREF_KEEP_LOOP
  for (int i = 0; i < 16; i += 4) {
    const std::uint32_t low = from[i] | std::uint32_t{from[i + 1]} << 8;
    const std::uint32_t high = from[i + 2] | std::uint32_t{from[i + 3]} << 8;
    codes = {{codes.word[1], codes.word[2], codes.word[3], low | high << 16}};
  }
  return codes;
}

/// What a thread stages in one step.
struct StepCodes {
  simt::Vec16 piece[kThreadPieces];
};

/// Starts the loads of the thread's codes of a step, if tokens are aligned.
template <int tile_tokens>
MONOREF_DEVICE void load_tokens(const Projection& p, const TileThread& at, const ChunkRange& step,
                                StepCodes& codes) {
  if (!p.tokens_are_aligned()) return;
  MONOREF_UNROLL
  for (int i = 0; i < kThreadPieces; ++i) {
    const StagedPiece piece = staged_piece<tile_tokens>(at, i);
    if (exists(piece, at, step)) codes.piece[i] = simt::load16(codes_of(p, at, step, piece));
  }
}

/// Decodes 16 codes to where the fma chains read them: in a chunk, the first eight of all pieces
/// come before the second eight of any.
MONOREF_DEVICE void stage_piece(const simt::Vec16& codes, const E4m3& format, int piece,
                                float* chunk) {
  MONOREF_UNROLL
  for (int word = 0; word < 4; ++word) {
    int k = word / 2 * (kChunk / 2) + piece * 8 + word % 2 * 4;
    if (MONOREF_FAULT(qkv_tokens_not_permuted, "own",
                      "weights in walking order, activations ascending") ||
        MONOREF_FAULT_AT(qkv_k_order_natural))
      k = piece * 16 + word * 4;
    store_staged(chunk + k, carried_values(codes.word[word], format));
  }
}

/// Stages this thread's codes of a step. Like other long bodies this one stays a loop: with few
/// blocks on a multiprocessor, a kernel this short is bound by the fetch of its instructions.
template <int tile_tokens>
MONOREF_DEVICE void stage_tokens(const Projection& p, const TileThread& at, const ChunkRange& step,
                                 StepCodes codes, float* staged) {
  MONOREF_KEEP_LOOP
  for (int i = 0; i < kThreadPieces; ++i) {
    const StagedPiece piece = staged_piece<tile_tokens>(at, i);
    if (exists(piece, at, step)) {
      if (!p.tokens_are_aligned()) codes.piece[0] = load_bytes(codes_of(p, at, step, piece));
      float* token = staged + piece.token * kTokenStride<tile_tokens>;
      stage_piece(codes.piece[0], p.format, piece.piece, token + piece.chunk * kChunk);
    }
    MONOREF_UNROLL
    for (int next = 1; next < kThreadPieces; ++next) codes.piece[next - 1] = codes.piece[next];
  }
}

// ---- sums --------------------------------------------------------------------------------------

/// A thread's fma chains. A weight that is NaN makes the sums of all tokens NaN: the chains skip
/// it, and are marked.
template <int tile_tokens>
struct Chains {
  float sum[tile_tokens];
  std::uint32_t nan_marks;
};

/// Half a chunk's weights as field values, as the chains take them.
struct HalfWeights {
  Four four[2 * kPieces];
};

/// Decodes the first eight codes of all pieces at once, so that independent instructions cover each
/// result's latency.
template <int tile_tokens>
MONOREF_DEVICE HalfWeights decode_half(const ChunkWeights& weights, const E4m3& format,
                                       Chains<tile_tokens>& chains) {
  HalfWeights half;
  MONOREF_UNROLL
  for (int i = 0; i < 2 * kPieces; ++i) {
    const std::uint32_t word = weights.piece[i / 2].word[i % 2];
    half.four[i] = field_values(word);
    chains.nan_marks |= nan_marks(word, format);
  }
  return half;
}

/// Continues the chains by half a chunk, which begins at `x` in the first token.
template <int tile_tokens>
MONOREF_DEVICE void add_half(const HalfWeights& weights, const float* x,
                             Chains<tile_tokens>& chains) {
  MONOREF_UNROLL
  for (int i = 0; i < 2 * kPieces; ++i) {
    MONOREF_UNROLL
    for (int token = 0; token < tile_tokens; ++token) {
      const Four values = load_staged(x + token * kTokenStride<tile_tokens> + i * 4);
      float& sum = chains.sum[token];
      for (int k = 0; k < 4; ++k) sum = simt::fma(values.value[k], weights.four[i].value[k], sum);
      compute_here(sum);
    }
  }
}

/// Continues the chains by one chunk, which begins at `x` in the first token.
template <int tile_tokens>
MONOREF_DEVICE void add_chunk(ChunkWeights weights, const E4m3& format, const float* x,
                              Chains<tile_tokens>& chains) {
  MONOREF_KEEP_LOOP
  for (int half = 0; half < 2; ++half) {
    add_half(decode_half(weights, format, chains), x + half * (kChunk / 2), chains);
    for (simt::Vec16& piece : weights.piece) piece = {{piece.word[2], piece.word[3]}};
  }
}

/// Continues the chains by the chunks of a step. `weights` are those of its first batch on entry,
/// and of the batch that follows the step on return.
template <int tile_tokens, int batch_chunks>
MONOREF_DEVICE void add_step(const Projection& p, const ChunkRange& slice, const ChunkRange& step,
                             const std::uint8_t* row, const float* staged,
                             ChunkBatch<batch_chunks>& weights, Chains<tile_tokens>& chains) {
  MONOREF_KEEP_LOOP
  for (std::int32_t chunk = step.first; chunk < step.end; chunk += batch_chunks) {
    ChunkBatch<batch_chunks> ahead;
    load_batch(row, chunk + batch_chunks, slice, ahead);
    MONOREF_KEEP_LOOP
    for (int i = 0; i < batch_chunks && chunk + i < step.end; ++i) {
      add_chunk(weights.chunk[0], p.format, staged + (chunk + i - step.first) * kChunk, chains);
      weights.chunk[0] = weights.chunk[batch_chunks - 1];
    }
    weights = ahead;
  }
}

/// Sums one slice for this thread's row and all tokens of the tile into partials [slice][token]
/// [row]. Threads whose slice does not exist only keep the barriers.
template <int tile_tokens>
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void sum_slice(const Projection& p, const TileThread& at,
                                                       std::int32_t slice, float* staged,
                                                       float* partials) {
  constexpr int kStep = kStepChunks<tile_tokens>;
  const ChunkRange range = chunks_of(p, slice);
  const std::uint8_t* row = row_of_weights(p, at);
  StepCodes codes{};
  Chains<tile_tokens> chains{};
  load_tokens<tile_tokens>(p, at, range.from(range.first, kStep), codes);
  ChunkBatch<kBatchChunks<tile_tokens>> weights;
  load_batch(row, range.first, range, weights);
  MONOREF_KEEP_LOOP
  for (std::int32_t done = 0; done < p.chunks_of_slice(); done += kStep) {
    const ChunkRange step = range.from(range.first + done, kStep);
    if (done > 0) __syncthreads();  // the staged operands have been used
    stage_tokens<tile_tokens>(p, at, step, codes, staged);
    __syncthreads();
    load_tokens<tile_tokens>(p, at, range.from(step.first + kStep, kStep), codes);
    add_step(p, range, step, row, staged, weights, chains);
  }
  if (!p.has_slice(slice)) return;
  bool is_nan = (chains.nan_marks & kNanMarks) != 0;
  if (MONOREF_FAULT(qkv_nan_weight_as_number, "own",
                    "a NaN weight counts as the number its bits would be"))
    is_nan = false;
  for (int token = 0; token < tile_tokens; ++token)
    partials[slice * kTileOutputs + token * kTileRows + at.row] =
        is_nan ? simt::bit_cast<float>(kCanonicalNanBits) : true_sum(chains.sum[token], p.format);
}

/// The sum of the slices' sums of output `i` of the tile.
MONOREF_DEVICE float sum_partials(const Projection& p, const float* partials, int i) {
  float dot = 0.0F;
  std::int32_t chunks = p.chunks();  // of this and the slices behind it
  compute_here(chunks);
  MONOREF_UNROLL
  for (std::int32_t slice = 0; slice < kSlices; ++slice, chunks -= p.chunks_of_slice()) {
    if (chunks <= 0) continue;
    std::int32_t taken = slice;
    if (MONOREF_FAULT(qkv_partials_reversed, "own", "partial sums added from the last wave on"))
      taken = (p.chunks() - 1) / p.chunks_of_slice() - slice;
    const float part = partials[taken * kTileOutputs + i];
    dot += MONOREF_FAULT(qkv_partials_in_bf16, "N02", "partial sums rounded to BF16")
               ? rounded_to_bf16(part)
               : part;
  }
  return dot;
}

/// Applies the scales to the tile's sums and stores them.
MONOREF_DEVICE void store_tile(const Projection& p, const TileThread& at, const float* partials) {
  const int count = at.tokens * kTileRows;
  MONOREF_KEEP_LOOP
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const std::int64_t token = at.first_token + i / kTileRows;
    const std::int64_t row = at.row_tile * kTileRows + i % kTileRows;
    const float x_scale =
        in_global(p.x_scale)[MONOREF_FAULT(qkv_x_scale_of_first_token, "P18",
                                           "every token takes the first one's scale")
                                 ? 0
                                 : token];
    const float w_scale = in_global(p.w_scale)[MONOREF_FAULT(qkv_w_scale_of_wrong_row, "P18",
                                                             "a row takes its neighbour's scale")
                                                   ? row ^ 1
                                                   : row];
    in_global(p.out)[token * p.out_row_stride + row] =
        bf16_of((sum_partials(p, partials, i) * x_scale) * w_scale);
  }
}

/// All slices of one tile, then its outputs. The next tile may follow at once: when it is staged,
/// all have used what was, and its partial sums come after a barrier.
template <int tile_tokens>
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void make_tile(const Projection& p, const TileThread& at,
                                                       float* staged, float* partials) {
  const int group = static_cast<int>(threadIdx.x) / kTileRows;
  const int groups = static_cast<int>(blockDim.x) / kTileRows;
  MONOREF_KEEP_LOOP
  for (std::int32_t first = 0; p.has_slice(first); first += groups) {
    if (first > 0) __syncthreads();  // the staged operands have been used
    sum_slice<tile_tokens>(p, at, first + group, staged + group * kStagedSlice, partials);
  }
  __syncthreads();
  store_tile(p, at, partials);
}

/// Runs the smallest instantiation that holds the tile's tokens; results of surplus tokens are
/// discarded.
MONOREF_DEVICE void make_tile(const Projection& p, const TileThread& at, float* staged,
                              float* partials) {
  if (at.tokens == 1)
    make_tile<1>(p, at, staged, partials);
  else if (at.tokens == 2)
    make_tile<2>(p, at, staged, partials);
  else if (at.tokens <= 4)
    make_tile<4>(p, at, staged, partials);
  else
    make_tile<kTileTokens>(p, at, staged, partials);
}

}  // namespace

// Inputs   x8 codes [tokens, hidden], rows x8_row_stride bytes apart, innermost stride 1
//          x_scale f32 [tokens], dense
//          weights codes [rows, hidden] in the layout of shuffle_weight(16, 16), dense, at a
//          multiple of 16
//          w_scale f32 [rows], dense
// Outputs  out bf16 [tokens, rows], rows out_row_stride elements apart, innermost stride 1:
//          bf16((dot * x_scale) * w_scale), each product rounded
// Sizes    hidden a multiple of 64; rows a multiple of 16.
// Options  encoding 0: E4M3FN; 1: E4M3FNUZ; of both operands
// Launch   any grid; x goes over tiles of 16 rows, y over tiles of 8 tokens. Blocks in one
//          dimension, a multiple of 16 threads, at most 128: as many slices at a time as there are
//          16 threads; 128 for a full row, 16 per chunk below that.
// Misuse   Other sizes and blocks write nothing.
MONOREF_KERNEL(128, monoref_qkv_projection)(const std::uint8_t* x8, std::int64_t x8_row_stride,
                                            const float* x_scale, const std::uint8_t* weights,
                                            const float* w_scale, std::uint16_t* out,
                                            std::int64_t out_row_stride, std::int64_t tokens,
                                            std::int32_t rows, std::int32_t hidden,
                                            std::int32_t encoding) {
  MONOREF_SHARED(float, staged, kStagedNumbers);
  MONOREF_SHARED(float, partials, kPartials);
  MONOREF_SHARED(Projection, kept, 1);
  if (hidden < kChunk || hidden % kChunk != 0 || rows % kTileRows != 0) return;
  if (blockDim.x % kTileRows != 0 || blockDim.x > kSlices * kTileRows) return;
  const Projection given{x8,
                         x8_row_stride,
                         x_scale,
                         weights,
                         w_scale,
                         out,
                         out_row_stride,
                         tokens,
                         rows,
                         hidden,
                         e4m3_format(encoding, kOverflowNan)};
  const Projection& p = kept_in_shared(kept, given);
  const int row = static_cast<int>(threadIdx.x) % kTileRows;
  const std::int64_t tile_step = MONOREF_FAULT(qkv_grid_x_runs_once, "own",
                                               "the blocks of the grid take one tile each and stop")
                                     ? rows / kTileRows
                                     : gridDim.x;
  for (std::int64_t tile = blockIdx.x; tile < rows / kTileRows; tile += tile_step) {
    for (std::int64_t first = std::int64_t{blockIdx.y} * kTileTokens; first < tokens;
         first += std::int64_t{gridDim.y} * kTileTokens) {
      const std::int64_t left = tokens - first;
      const TileThread at{tile, first,
                          left < kTileTokens ? static_cast<std::int32_t>(left) : kTileTokens,
                          in_this_turn(row)};
      make_tile(p, at, staged, partials);
    }
  }
}
MONOREF_REGISTER(monoref_qkv_projection);

}  // namespace monoref::kernels
