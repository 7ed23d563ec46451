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
// Work. A block makes tiles of 16 rows x 16 tokens. 64 threads share a slice: 16 rows x 4 groups of
// tokens, each thread with the chains of one row and up to 4 tokens. The weights of a tile and
// chunk lie in 1024 consecutive bytes and are read once, 16 bytes a lane, one chunk ahead; the
// tokens of the chunk are decoded once into shared memory, in the order in which the chains take
// them.

#include <cstdint>

#include "device/kernels/number_formats.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr int kSlices = 8;
constexpr int kChunk = 64;
constexpr int kPieces = kChunk / 16;  ///< units of 16 codes in a chunk
constexpr int kTileRows = 16;
constexpr int kTileTokens = 16;
constexpr int kTokenGroups = 4;
constexpr int kThreadTokens = kTileTokens / kTokenGroups;
constexpr int kSliceThreads = kTileRows * kTokenGroups;
/// Distance of two tokens in shared memory. The four numbers of padding put the four tokens that
/// the threads of a slice read at once into different banks.
constexpr int kStagedStride = kChunk + 4;
constexpr int kStagedSlice = kTileTokens * kStagedStride;
constexpr int kStagedNumbers = kSlices * kStagedSlice;
constexpr int kTileOutputs = kTileRows * kTileTokens;
constexpr int kPartials = kSlices * kTileOutputs;

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

  MONOREF_MEMBER std::int32_t chunks() const { return hidden / kChunk; }
  MONOREF_MEMBER std::int32_t chunks_of_slice() const { return (chunks() + kSlices - 1) / kSlices; }
  MONOREF_MEMBER std::int32_t slices() const {
    return (chunks() + chunks_of_slice() - 1) / chunks_of_slice();
  }
};

/// Where a thread stands in its tile: its slice's threads are 64 neighbours.
struct TilePlace {
  std::int64_t row_tile;
  std::int64_t first_token;
  std::int32_t tokens;  ///< of the tile: 1 .. 16
  int row;              ///< 0 .. 15
  int group;            ///< 0 .. 3; has tokens group, group + 4, group + 8, group + 12
};

/// The chunks of one slice.
struct ChunkRange {
  std::int32_t first, end;
};

MONOREF_DEVICE ChunkRange chunks_of(const Projection& p, std::int32_t slice) {
  const std::int32_t first = slice * p.chunks_of_slice();
  const std::int32_t end = first + p.chunks_of_slice();
  ChunkRange range{first, end < p.chunks() ? end : p.chunks()};
  if (MONOREF_FAULT(qkv_last_chunk_dropped) && range.end == p.chunks()) range.end -= 1;
  return range;
}

/// This thread's row of a chunk: 64 codes. In the layout of shuffle_weight(16, 16) the 16 rows'
/// codes of 16 k follow each other, then come the next 16 k.
MONOREF_DEVICE void load_weights(const Projection& p, const TilePlace& at, std::int32_t chunk,
                                 simt::Vec16 (&weights)[kPieces]) {
  const std::int64_t tile = at.row_tile * kTileRows * p.hidden;
  const std::uint8_t* from =
      p.weights + tile + std::int64_t{chunk} * kChunk * kTileRows + at.row * 16;
  for (int piece = 0; piece < kPieces; ++piece) {
    weights[piece] = simt::load16(from + piece * 16 * kTileRows);
    if (MONOREF_FAULT(qkv_weights_not_shuffled))
      weights[piece] = simt::load16(p.weights + tile + std::int64_t{at.row} * p.hidden +
                                    chunk * kChunk + piece * 16);
  }
}

/// The 16 codes of x that this thread, number `worker` of its slice, brings to shared memory: piece
/// worker mod 4 of token worker div 4.
MONOREF_DEVICE simt::Vec16 load_tokens(const Projection& p, const TilePlace& at, int worker,
                                       std::int32_t chunk) {
  const std::int64_t stride = MONOREF_FAULT(qkv_token_stride_ignored) ? p.hidden : p.x8_row_stride;
  if (MONOREF_FAULT(qkv_wrong_eighth)) chunk = p.chunks() - 1 - chunk;
  const std::uint8_t* from = p.x8 + (at.first_token + worker / kPieces) * stride +
                             std::int64_t{chunk} * kChunk + worker % kPieces * 16;
  if (aligned16(from)) return simt::load16(from);
  simt::Vec16 codes{};
  for (int i = 0; i < 16; ++i) codes.word[i / 4] |= std::uint32_t{from[i]} << i % 4 * 8;
  return codes;
}

/// Four neighbouring numbers.
struct Four {
  float value[4];
};

/// The codes of a word as numbers.
MONOREF_DEVICE Four decode_four(std::uint32_t word, const E4m3& format) {
  Four numbers;
  for (int i = 0; i < 4; ++i) numbers.value[i] = float_of_e4m3(word >> 8 * i & 0xFF, format);
  return numbers;
}

/// Puts 16 decoded codes where the chains look for them: the first eight of all pieces come before
/// the second eight of any.
MONOREF_DEVICE void stage_tokens(const simt::Vec16& codes, const E4m3& format, int worker,
                                 float* staged) {
  float* token = staged + worker / kPieces * kStagedStride;
  const int piece = worker % kPieces;
  for (int i = 0; i < 4; ++i) {
    int at = i / 2 * (kChunk / 2) + piece * 8 + i % 2 * 4;
    if (MONOREF_FAULT(qkv_tokens_not_permuted)) at = piece * 16 + i * 4;
    simt::store16(token + at, simt::bit_cast<simt::Vec16>(decode_four(codes.word[i], format)));
  }
}

/// Continues the thread's chains by eight k: weights in two words, tokens from `x` on.
MONOREF_DEVICE void add_eight(std::uint32_t low, std::uint32_t high, const E4m3& format,
                              const float* x, int tokens, float (&sums)[kThreadTokens]) {
  const Four w[2] = {decode_four(low, format), decode_four(high, format)};
  for (int j = 0; j < kThreadTokens; ++j) {
    if (j >= tokens) continue;
    const float* token = x + j * kTokenGroups * kStagedStride;
    const Four values[2] = {simt::bit_cast<Four>(simt::load16(token)),
                            simt::bit_cast<Four>(simt::load16(token + 4))};
    for (int i = 0; i < 8; ++i)
      sums[j] = simt::fma(values[i / 4].value[i % 4], w[i / 4].value[i % 4], sums[j]);
  }
}

/// Continues the thread's chains by one chunk. `x` is its first token's staged row; it has `tokens`
/// of them.
MONOREF_DEVICE void add_chunk(const simt::Vec16 (&weights)[kPieces], const E4m3& format,
                              const float* x, int tokens, float (&sums)[kThreadTokens]) {
  for (int half = 0; half < 2; ++half) {
    for (int piece = 0; piece < kPieces; ++piece) {
      int from = 2 * half, unit = piece;
      int staged = half * (kChunk / 2) + piece * 8;
      if (MONOREF_FAULT(qkv_k_order_natural)) {
        unit = 2 * half + piece / 2;
        from = piece % 2 * 2;
        staged = piece % 2 * (kChunk / 2) + unit * 8;
      }
      add_eight(weights[unit].word[from], weights[unit].word[from + 1], format, x + staged, tokens,
                sums);
    }
  }
}

/// How many of the tile's tokens a group of threads has.
MONOREF_DEVICE int tokens_of_group(const TilePlace& at) {
  return (at.tokens - at.group + kTokenGroups - 1) / kTokenGroups;
}

/// Sums one slice for all outputs of the tile into partials [slice][token][row]. All threads of the
/// block come here; those whose slice does not exist only keep the barriers.
MONOREF_DEVICE void sum_slice(const Projection& p, const TilePlace& at, std::int32_t slice,
                              int worker, float* staged, float* partials) {
  const ChunkRange range = chunks_of(p, slice);
  const int tokens = tokens_of_group(at);
  const bool multiplies = tokens > 0, stages = worker / kPieces < at.tokens;
  simt::Vec16 weights[kPieces] = {}, codes{};
  float sums[kThreadTokens] = {};
  if (range.first < range.end && multiplies) load_weights(p, at, range.first, weights);
  if (range.first < range.end && stages) codes = load_tokens(p, at, worker, range.first);
  const std::int32_t steps = p.chunks_of_slice();
  for (std::int32_t chunk = range.first; chunk < range.first + steps; ++chunk) {
    __syncthreads();  // what is staged has been used
    if (chunk < range.end && stages) stage_tokens(codes, p.format, worker, staged);
    __syncthreads();
    simt::Vec16 next[kPieces] = {};
    if (chunk + 1 < range.end && multiplies) load_weights(p, at, chunk + 1, next);
    if (chunk + 1 < range.end && stages) codes = load_tokens(p, at, worker, chunk + 1);
    if (chunk < range.end && multiplies)
      add_chunk(weights, p.format, staged + at.group * kStagedStride, tokens, sums);
    for (int piece = 0; piece < kPieces; ++piece) weights[piece] = next[piece];
  }
  if (slice >= p.slices()) return;
  for (int j = 0; j < kThreadTokens; ++j)
    if (j < tokens)
      partials[slice * kTileOutputs + (at.group + j * kTokenGroups) * kTileRows + at.row] = sums[j];
}

/// Adds the slices' sums of the tile's outputs, applies the scales and stores.
MONOREF_DEVICE void store_tile(const Projection& p, const TilePlace& at, const float* partials) {
  const int count = at.tokens * kTileRows;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    const std::int64_t token = at.first_token + i / kTileRows;
    const std::int64_t row = at.row_tile * kTileRows + i % kTileRows;
    float dot = 0.0F;
    for (std::int32_t slice = 0; slice < p.slices(); ++slice) {
      const std::int32_t taken =
          MONOREF_FAULT(qkv_partials_reversed) ? p.slices() - 1 - slice : slice;
      const float part = partials[taken * kTileOutputs + i];
      dot += MONOREF_FAULT(qkv_partials_in_bf16) ? rounded_to_bf16(part) : part;
    }
    const float x_scale = p.x_scale[MONOREF_FAULT(qkv_x_scale_of_first_token) ? 0 : token];
    const float w_scale = p.w_scale[MONOREF_FAULT(qkv_w_scale_of_wrong_row) ? row ^ 1 : row];
    p.out[token * p.out_row_stride + row] = bf16_of((dot * x_scale) * w_scale);
  }
}

/// All slices of one tile, then its outputs.
MONOREF_DEVICE void make_tile(const Projection& p, const TilePlace& at, float* staged,
                              float* partials) {
  const int worker = static_cast<int>(threadIdx.x) % kSliceThreads;
  const int team = static_cast<int>(threadIdx.x) / kSliceThreads;
  const int teams = static_cast<int>(blockDim.x) / kSliceThreads;
  for (std::int32_t first = 0; first < p.slices(); first += teams)
    sum_slice(p, at, first + team, worker, staged + team * kStagedSlice, partials);
  __syncthreads();
  store_tile(p, at, partials);
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
// Launch   any grid; x goes over tiles of 16 rows, y over tiles of 16 tokens. Blocks of whole waves
//          in one dimension, a multiple of 64 threads, at most 512: as many slices at a time as
//          there are 64 threads; 512 for a full row, 64 per chunk below that.
// Misuse   Other sizes and blocks write nothing.
MONOREF_KERNEL(512)
monoref_qkv_projection(const std::uint8_t* x8, std::int64_t x8_row_stride, const float* x_scale,
                       const std::uint8_t* weights, const float* w_scale, std::uint16_t* out,
                       std::int64_t out_row_stride, std::int64_t tokens, std::int32_t rows,
                       std::int32_t hidden, std::int32_t encoding) {
  MONOREF_SHARED(float, staged, kStagedNumbers);
  MONOREF_SHARED(float, partials, kPartials);
  if (hidden < kChunk || hidden % kChunk != 0 || rows % kTileRows != 0) return;
  if (blockDim.x % kSliceThreads != 0 || blockDim.x > kSlices * kSliceThreads) return;
  const Projection p{x8,
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
  const int worker = static_cast<int>(threadIdx.x) % kSliceThreads;
  for (std::int64_t tile = blockIdx.x; tile < rows / kTileRows; tile += gridDim.x) {
    for (std::int64_t first = std::int64_t{blockIdx.y} * kTileTokens; first < tokens;
         first += std::int64_t{gridDim.y} * kTileTokens) {
      const std::int64_t left = tokens - first;
      const TilePlace at{tile, first,
                         left < kTileTokens ? static_cast<std::int32_t>(left) : kTileTokens,
                         worker % kTileRows, worker / kTileRows};
      make_tile(p, at, staged, partials);
    }
  }
}
MONOREF_REGISTER(monoref_qkv_projection);

}  // namespace monoref::kernels
