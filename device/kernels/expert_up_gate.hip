// expert_up_gate: the first half of the experts, gate and up rows times the tokens that are routed
// to them, and SwiGLU.
//
// Source of the rule: mono-decode sections 7 (up/gate, SwiGLU), 9 and 10, upstream-semantics
// sections 7.3 and 7.6.
//
// Order of the sum. K goes in steps of 128, which are dealt to 8 slices: each takes ceil(steps / 8)
// neighbouring ones. A slice is one fma chain from 0 over natural k of operands that are scaled
// before. The slices' sums are added in order, starting from 0, for gate and up apart.
//
// Work. A block computes tiles of 16 gate rows and their 16 up rows, for up to 16 (row, slot) pairs
// of one expert, whose weights are read once for all of them: the block of an expert's first pair
// gathers the others, and the blocks of the others return at once. A slice belongs to a group of 16
// lanes, each with a gate row and its up row.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/expert_group.hpp"
#include "device/kernels/expert_stack.hpp"
#include "device/kernels/flat_grid.hpp"
#include "device/kernels/mx_words.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/registers.hpp"
#include "device/kernels/wave_sync.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr int kSlices = 8;
constexpr int kMaxThreads = kSlices * kGroupThreads;
constexpr int kMaxWaves = kMaxThreads / 32;
constexpr int kMatrices = 2;  ///< gate and up
constexpr int kTileSums = kTileTokens * kTileRows;

/// The arguments of a launch.
struct UpGate {
  const std::uint8_t* x8;
  std::int64_t x8_row_stride;
  const std::uint8_t* x_scale;
  const std::int32_t* topk_ids;
  std::uint16_t* mid;
  std::int32_t rows;
  std::int32_t slots;
  std::int32_t inter;
  float limit, alpha, beta;
  ExpertStack stack;

  MONOREF_MEMBER std::int32_t hidden() const { return stack.k; }
  MONOREF_MEMBER std::int32_t pairs() const { return rows * slots; }
  MONOREF_MEMBER std::int32_t steps() const { return hidden() / kStep; }
  MONOREF_MEMBER std::int32_t steps_of_slice() const { return (steps() + kSlices - 1) / kSlices; }
  MONOREF_MEMBER std::int32_t slices() const {
    return (steps() + steps_of_slice() - 1) / steps_of_slice();
  }
};

/// The pairs, numbered row * slots + slot, that a block works for.
struct Pairs {
  std::int32_t number[kTileTokens];
  TokenRow row[kTileTokens];
  std::int32_t of_wave[kMaxWaves];  ///< while they are gathered: how many each wave has found

  MONOREF_MEMBER const TokenRow& operator()(int n) const { return row[n]; }
};

/// Shared memory of a block.
struct Work {
  union {
    simt::Vec16 codes[kMatrices * kLoadVectors * kMaxThreads];  ///< each thread's own
    float partials[kMatrices * kSlices * kTileSums];            ///< [gate or up][slice][token][row]
  };
  float operands[kSlices * kGroupStride];
  Pairs pairs;
};

/// A thread's coordinates in its tile.
struct TileThread {
  ExpertMatrix matrix;
  std::int32_t row_tile;  ///< of the gate, and of the up rows
  std::int32_t tokens;    ///< pairs of the tile: 1 .. 16
  int thread;             ///< of the block
  int row;                ///< 0 .. 15, and its number in its group
  int slice;              ///< 0 .. 7, its group's

  /// The gate row, or the up row, whose chains this thread has.
  MONOREF_MEMBER std::int32_t matrix_row(int up, std::int32_t inter) const {
    if (MONOREF_FAULT(upg_halves_as_interleaved, "G05", "gate and up rows are taken to alternate"))
      return (2 * row_tile + up) * kTileRows + row;
    return up * inter + row_tile * kTileRows + row;
  }
};

/// A pair of the tile.
MONOREF_DEVICE TokenRow token_row(const UpGate& p, std::int32_t pair) {
  const std::int64_t row = pair / p.slots;
  const std::int64_t scaled =
      MONOREF_FAULT(upg_x_scale_of_first_token, "P18", "every token has the scales of the first")
          ? 0
          : row;
  return {p.x8 + row * p.x8_row_stride, p.x_scale + scaled * (p.hidden() / kMxBlock)};
}

/// Lists the pairs of an expert from its `first`-th on, as many as a tile takes, in ascending
/// order, and returns how many pairs it has in all.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE std::int32_t gather_pairs(const UpGate& p,
                                                                  std::int32_t expert,
                                                                  std::int32_t first,
                                                                  Pairs& pairs) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int wave = thread / simt::kWave, waves = threads / simt::kWave;
  std::int32_t found = 0;
  MONOREF_KEEP_LOOP
  for (std::int32_t base = 0; base < p.pairs(); base += threads) {
    const std::int32_t pair = base + thread;
    const bool match = pair < p.pairs() && in_global(p.topk_ids)[pair] == expert;
    const std::uint64_t matches = simt::ballot(match);
    if (simt::lane() == 0) pairs.of_wave[wave] = lanes_of(matches);
    __syncthreads();
    std::int32_t index = found - first + lanes_of(matches & lanes_below());
    MONOREF_KEEP_LOOP
    for (int i = 0; i < waves; ++i) {
      if (i < wave) index += pairs.of_wave[i];
      found += pairs.of_wave[i];
    }
    if (match && index >= 0 && index < kTileTokens) {
      pairs.number[index] = pair;
      pairs.row[index] = token_row(p, pair);
    }
    __syncthreads();
  }
  return found;
}

/// Sums this thread's slice of its rows for the tile's tokens.
template <bool fp4>
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void sum_slice(const UpGate& p, const TileThread& at,
                                                       Work& work,
                                                       float (&sums)[kMatrices][kTileTokens]) {
  constexpr int kLoad = kLoadCodes<fp4>;
  const int tokens = same_in_wave(instantiated_tokens(at.tokens)), bits = chunk_bits<fp4>(tokens);
  const std::int32_t length = p.steps_of_slice() * kStep;
  const std::int32_t begin = at.slice * length;
  const std::int32_t end = begin + length < p.hidden() ? begin + length : p.hidden();
  const int staged = begin < end ? at.tokens : 0;
  float* operands = work.operands + at.slice * kGroupStride;
  const MatrixRow rows[kMatrices] = {MatrixRow::of(p.stack, at.matrix, at.matrix_row(0, p.inter)),
                                     MatrixRow::of(p.stack, at.matrix, at.matrix_row(1, p.inter))};

  RowCodes loading[kMatrices] = {};
  KeptCodes<kMatrices, kMaxThreads> codes{};
  TokenWords x{};
  const auto load = [&](std::int32_t k) {
    MONOREF_UNROLL
    for (int up = 0; up < kMatrices; ++up)
      if (k < end) loading[up].template load<fp4>(rows[up], k);
  };
  load(begin);
  x.load<false>(work.pairs, staged, bits, at.row, begin);
  MONOREF_KEEP_LOOP
  for (std::int32_t k = begin; k < begin + length; k += 1 << bits) {
    wave_sync();  // the staged operands have been used
    const int count = k < end ? staged : 0;
    x.stage(count, bits, at.row, p.stack.e8m0_zero, operands);
    wave_sync();
    const std::int32_t next = k + (1 << bits);
    x.load<false>(work.pairs, next < end ? staged : 0, bits, at.row, next);
    if (k < end && k % kLoad == 0) {
      codes = KeptCodes<kMatrices, kMaxThreads>::of<fp4>(loading, p.stack.e8m0_zero,
                                                         work.codes + at.thread);
      load(k + kLoad);
    }
    if (k < end) add_chunk<fp4>(codes, tokens, operands, k % kLoad, p.stack.e8m0_zero, sums);
  }
}

/// Stores this thread's sums over the staged codes, which are no longer needed.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void store_sums(const TileThread& at,
                                                        const float (&sums)[kMatrices][kTileTokens],
                                                        Work& work) {
  __syncthreads();
  MONOREF_UNROLL
  for (int up = 0; up < kMatrices; ++up) {
    float* partials = work.partials + (up * kSlices + at.slice) * kTileSums + at.row;
    MONOREF_UNROLL
    for (int i = 0; i < kTileTokens; ++i)
      if (i < at.tokens) partials[i * kTileRows] = sums[up][i];
  }
  __syncthreads();
}

/// The clamped SwiGLU: the gate from above, up on both sides; NaN passes both. An infinite limit
/// clamps nothing.
MONOREF_DEVICE float swiglu(float gate, float up, float limit, float alpha, float beta) {
  if (MONOREF_FAULT(upg_limit_ignored, "G02", "nothing is clamped"))
    limit = simt::bit_cast<float>(kInfinityBits);
  if (MONOREF_FAULT(upg_alpha_dropped, "G01", "alpha is 1")) alpha = 1.0F;
  if (MONOREF_FAULT(upg_beta_dropped, "G01", "beta is 0")) beta = 0.0F;
  float g = gate > limit ? limit : gate;
  if (MONOREF_FAULT(upg_gate_clamped_below, "G01", "the gate is clamped on both sides") &&
      g < -limit)
    g = -limit;
  float u = up > limit ? limit : up;
  if (u < -limit &&
      !MONOREF_FAULT(upg_up_clamped_above_only, "G01", "up is clamped from above only"))
    u = -limit;
  const float t = alpha * g;
  return (g * rcp(1.0F + exp2_portable(t * -kLog2E))) * (u + beta);
}

/// Adds the slices' sums of the tile's outputs and stores their SwiGLU.
MONOREF_DEVICE void store_tile(const UpGate& p, const TileThread& at, const Work& work) {
  const int count = at.tokens * kTileRows;
  MONOREF_KEEP_LOOP
  for (int i = at.thread; i < count; i += static_cast<int>(blockDim.x)) {
    float sum[kMatrices] = {};
    for (int slice = 0; slice < p.slices(); ++slice) {
      const int taken =
          MONOREF_FAULT(upg_partials_reversed, "D01", "partial sums are added from the last slice")
              ? p.slices() - 1 - slice
              : slice;
      for (int up = 0; up < kMatrices; ++up) {
        const float part = work.partials[(up * kSlices + taken) * kTileSums + i];
        sum[up] += MONOREF_FAULT(upg_partials_in_bf16, "own", "partial sums are rounded to BF16")
                       ? rounded_to_bf16(part)
                       : part;
      }
    }
    const std::int64_t index =
        std::int64_t{work.pairs.number[i / kTileRows]} * p.inter + at.row_tile * kTileRows;
    in_global(p.mid)[index + i % kTileRows] =
        bf16_of(swiglu(sum[0], sum[1], p.limit, p.alpha, p.beta));
  }
}

/// What a pair without an expert gets: zeros.
MONOREF_DEVICE void store_zeros(const UpGate& p, std::int32_t pair, const TileThread& at) {
  if (at.thread < kTileRows)
    in_global(p.mid)[std::int64_t{pair} * p.inter + at.row_tile * kTileRows + at.thread] = 0;
}

/// One tile of rows for all pairs of the expert of `pair`, if that is the first of them.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void make_tiles(const UpGate& p, std::int32_t pair,
                                                        TileThread& at, Work& work) {
  std::int32_t expert = in_global(p.topk_ids)[pair];
  if (MONOREF_FAULT(upg_id_of_padded_row_used, "M15", "an id out of range is used") &&
      !p.stack.names_expert(expert)) {
    expert = static_cast<std::int32_t>(static_cast<std::uint32_t>(expert) %
                                       static_cast<std::uint32_t>(p.stack.n_routed));
    at.tokens = 1;
  }
  const bool shared_lost =
      MONOREF_FAULT(upg_shared_lost, "M14", "the shared expert is taken for an invalid id") &&
      expert == p.stack.n_routed;
  if (!p.stack.names_expert(expert) || shared_lost) {
    store_zeros(p, pair, at);
    return;
  }
  at.matrix = p.stack.matrix(expert);
  std::int32_t count = 1;
  for (std::int32_t first = 0; first < count; first += kTileTokens) {
    count = gather_pairs(p, in_global(p.topk_ids)[pair], first, work.pairs);
    if (first == 0 && work.pairs.number[0] != pair) return;
    if (MONOREF_FAULT(upg_only_first_tile_of_tokens, "own",
                      "an expert serves its first 16 tokens only") &&
        first > 0)
      return;
    at.tokens = count - first < kTileTokens ? count - first : kTileTokens;
    float sums[kMatrices][kTileTokens] = {};
    if (at.matrix.fp4)
      sum_slice<true>(p, at, work, sums);
    else
      sum_slice<false>(p, at, work, sums);
    store_sums(at, sums, work);
    store_tile(p, at, work);
    __syncthreads();  // the next tile overwrites what this one had in shared memory
  }
}

}  // namespace

// Inputs   x8 E4M3FN [rows, hidden], rows x8_row_stride bytes apart, innermost stride 1
//          x_scale E8M0 [rows, hidden / 32], dense
//          topk_ids int32 [rows, slots], dense: below n_routed a routed expert, n_routed the shared
//          one, which is shared_w13 or, if that is null, w13's expert n_routed. Other ids, and
//          n_routed where there is no shared expert, are not routed. An id that stands twice in a
//          row is computed twice.
//          w13 [experts, 2 * inter, hidden] E4M3FN, or packed E2M1 in half the bytes (the low
//          nibble is the even one): gate rows, then up rows, each expert in the layout of
//          shuffle_weight(16, 16), at a multiple of 16
//          s13 E8M0 [experts * 2 * inter, hidden / 32] in the layout of shuffle_scale
//          shared_w13 E4M3FN [2 * inter, hidden], shared_s13: the same for one expert, or null
// Outputs  mid bf16 [rows, slots, inter], dense; +0 in slots that are not routed. Bytes of experts
//          that no pair names are not read.
// Sizes    hidden a multiple of 256; inter a multiple of 32; experts n_routed, or n_routed + 1 with
//          the shared expert as the last; rows * slots below 2^31
// Options  weights 0: MXFP8; 1: MXFP4, of w13
//          e8m0_zero 0: scale byte 0 is 2^-127; 1: it is 0
//          limit above 0, infinite or 0 for no clamp; alpha, beta
// Launch   any grid; x goes over tiles of 16 rows of gate, y over the pairs. Blocks of whole waves
//          in one dimension, at most 128 threads, and at least 16 for each slice: 128 for a full
//          row, 16 * (hidden / 128) below 1024.
// Misuse   Other sizes, options and blocks write nothing; likewise a limit that is negative or NaN.
MONOREF_RESIDENT_KERNEL(128, 3, monoref_expert_up_gate)(
    const std::uint8_t* x8, std::int64_t x8_row_stride, const std::uint8_t* x_scale,
    const std::int32_t* topk_ids, const std::uint8_t* w13, const std::uint8_t* s13,
    const std::uint8_t* shared_w13, const std::uint8_t* shared_s13, std::uint16_t* mid,
    std::int64_t rows, std::int32_t slots, std::int32_t hidden, std::int32_t inter,
    std::int32_t experts, std::int32_t n_routed, std::int32_t weights, std::int32_t e8m0_zero,
    float limit, float alpha, float beta) {
  MONOREF_SHARED(Work, work, 1);
  MONOREF_SHARED(UpGate, kept, 1);
  const ExpertStack stack{w13,      s13,       shared_w13, shared_s13, experts,
                          n_routed, 2 * inter, hidden,     weights,    e8m0_zero};
  if (!stack.is_valid() || hidden % 256 != 0 || inter % kMxBlock != 0 || slots < 1) return;
  if (!(limit >= 0.0F) || rows * slots > INT32_MAX) return;
  if (limit == 0.0F) limit = simt::bit_cast<float>(kInfinityBits);
  const UpGate launch{
      x8,    x8_row_stride, x_scale, topk_ids, mid,  static_cast<std::int32_t>(rows),
      slots, inter,         limit,   alpha,    beta, stack};
  if (blockDim.x > kMaxThreads || blockDim.x % simt::kWave != 0) return;
  if (static_cast<int>(blockDim.x) < launch.slices() * kGroupThreads) return;
  const UpGate& p = kept_in_shared(kept, launch);
  for (std::int64_t pair = blockIdx.y; pair < p.pairs(); pair += gridDim.y) {
    for (std::int64_t tile = blockIdx.x; tile < inter / kTileRows; tile += gridDim.x) {
      if (MONOREF_FAULT(upg_last_tile_lost, "X03", "the last tile of rows is not written") &&
          tile == inter / kTileRows - 1)
        continue;
      const int thread = in_this_turn(static_cast<int>(threadIdx.x));
      TileThread at{
          {}, static_cast<std::int32_t>(tile), 0, thread, thread % kTileRows, thread / kTileRows};
      make_tiles(p, static_cast<std::int32_t>(pair), at, work[0]);
    }
  }
}
MONOREF_REGISTER(monoref_expert_up_gate);

}  // namespace monoref::kernels
