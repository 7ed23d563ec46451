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
// Work. A block makes tiles of 16 gate rows and their 16 up rows, for up to 16 (row, slot) pairs of
// one expert, whose weights are read once for all of them: the block of an expert's first pair
// gathers the others, and those of the others have nothing to do. A slice's threads are 32
// neighbours, 16 rows times gate and up. Their weights arrive 16 bytes a lane, 256 consecutive
// bytes for 16 rows, a chunk of k ahead of their use. A chunk is as long as the pairs are few; its
// tokens are decoded once into shared memory.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/expert_stack.hpp"
#include "device/kernels/flat_grid.hpp"
#include "device/kernels/mx_words.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/registers.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr int kSlices = 8;
constexpr int kSliceThreads = 2 * kTileRows;
static_assert(kSlices * kSliceThreads == kMaxThreads);
constexpr int kMaxWaves = kMaxThreads / 32;

/// Operands of tokens that a slice has in shared memory at a time: 16 for each of its threads.
constexpr int kStagedOperands = 16 * kSliceThreads;
/// Distance of two slices there; the padding puts what two slices of a wave read at once into
/// different banks.
constexpr int kStagedSlice = kStagedOperands + 4;
constexpr int kPartials = 2 * kSlices * kTileTokens * kTileRows;
constexpr int kStaged = kSlices * kStagedSlice > kPartials ? kSlices* kStagedSlice : kPartials;

/// The arguments of a launch.
struct UpGate {
  const std::uint8_t* x8;
  std::int64_t x8_row_stride;
  const std::uint8_t* x_scale;
  const std::int32_t* topk_ids;
  std::uint16_t* mid;
  std::int64_t rows;
  std::int32_t slots;
  std::int32_t inter;
  float limit, alpha, beta;
  ExpertStack stack;

  MONOREF_MEMBER std::int32_t hidden() const { return stack.k; }
  MONOREF_MEMBER std::int64_t pairs() const { return rows * slots; }
  MONOREF_MEMBER std::int32_t steps() const { return hidden() / kStep; }
  MONOREF_MEMBER std::int32_t steps_of_slice() const { return (steps() + kSlices - 1) / kSlices; }
  MONOREF_MEMBER std::int32_t slices() const {
    return (steps() + steps_of_slice() - 1) / steps_of_slice();
  }
};

/// The pairs, numbered row * slots + slot, that a block works for.
struct Pairs {
  std::int64_t number[kTileTokens];
  std::int32_t of_wave[kMaxWaves];  ///< while they are gathered: how many each wave has found
};

/// Shared memory of a block.
struct Work {
  simt::Vec16 codes[kLoadRuns * kMaxThreads];  ///< each thread's own
  float staged[kStaged];                       ///< operands of tokens, then partial sums
  Pairs pairs;
};

/// Where a thread stands in its tile.
struct TilePlace {
  ExpertMatrix matrix;
  std::int32_t row_tile;  ///< of the gate, and of the up rows
  std::int32_t tokens;    ///< pairs of the tile: 1 .. 16
  int row;                ///< 0 .. 15
  int up;                 ///< 0: gate, 1: up
  int slice;              ///< 0 .. 7
  int worker;             ///< 0 .. 31: the thread's number in its slice

  /// The row of the matrix whose chains this thread has.
  MONOREF_MEMBER std::int32_t matrix_row(std::int32_t inter) const {
    if (MONOREF_FAULT(upg_halves_as_interleaved)) return (2 * row_tile + up) * kTileRows + row;
    return up * inter + row_tile * kTileRows + row;
  }
};

/// Lists the pairs of an expert from its `first`-th on, as many as a tile takes, in ascending
/// order, and returns how many pairs it has in all. All threads come here.
MONOREF_DEVICE std::int64_t gather_pairs(const UpGate& p, std::int32_t expert, std::int64_t first,
                                         Pairs& pairs) {
  const int waves = static_cast<int>(blockDim.x) / simt::kWave;
  std::int64_t found = 0;
  for (std::int64_t base = 0; base < p.pairs(); base += blockDim.x) {
    const std::int64_t pair = base + threadIdx.x;
    const bool match = pair < p.pairs() && p.topk_ids[pair] == expert;
    const std::uint64_t matches = simt::ballot(match);
    if (simt::lane() == 0) pairs.of_wave[simt::wave()] = lanes_of(matches);
    __syncthreads();
    std::int64_t place = found - first + lanes_of(matches & lanes_below());
    for (int wave = 0; wave < waves; ++wave) {
      if (wave < simt::wave()) place += pairs.of_wave[wave];
      found += pairs.of_wave[wave];
    }
    if (match && place >= 0 && place < kTileTokens) pairs.number[place] = pair;
    __syncthreads();
  }
  return found;
}

/// The codes of one of the tile's tokens, and 16 of them on their way from memory.
struct TokenCodes {
  const std::uint8_t* row;  ///< null: this thread brings none
  const std::uint8_t* scales;
  simt::Vec16 codes;
  std::uint32_t scale;
  std::int32_t column;

  MONOREF_MEMBER static TokenCodes of(const UpGate& p, const Pairs& pairs, int token) {
    const std::int64_t row = pairs.number[token] / p.slots;
    const std::int64_t scaled = MONOREF_FAULT(upg_x_scale_of_first_token) ? 0 : row;
    return {p.x8 + row * p.x8_row_stride, p.x_scale + scaled * (p.hidden() / kMxBlock), {}, 0, 0};
  }

  /// Loads 16 codes, if they lie at a multiple of 16, and their scale.
  MONOREF_MEMBER void load(std::int32_t k) {
    if (row == nullptr) return;
    column = k;
    if (aligned16(row + k)) codes = simt::load16(row + k);
    scale = scales[k / kMxBlock];
  }

  /// Puts the operands of what was loaded to shared memory.
  MONOREF_MEMBER void stage(std::int32_t e8m0_zero, float* to) const {
    if (row == nullptr) return;
    if (aligned16(row + column)) {
      stage_mx_run(codes, scale, e8m0_zero, to);
      return;
    }
    const MxFactor factor = mx_factor<false>(scale, e8m0_zero);
    MONOREF_KEEP_LOOP
    for (int i = 0; i < 16; ++i) to[i] = fp8_operand(row[column + i], factor);
  }
};

/// Sums this thread's slice of its row for the tile's tokens into partials
/// [gate or up][slice][token][row], which take the place of what is staged. All threads come here.
template <bool fp4>
MONOREF_DEVICE void sum_slice(const UpGate& p, const TilePlace& at, Work& work) {
  constexpr int kLoad = kLoadCodes<fp4>;
  const int tokens = same_in_wave(tokens_of_text(at.tokens));
  const int chunk = chunk_of<fp4, kStagedOperands>(tokens);
  const std::int32_t length = p.steps_of_slice() * kStep;
  const std::int32_t begin = at.slice * length;
  const std::int32_t end = begin + length < p.hidden() ? begin + length : p.hidden();
  const int token = at.worker / (chunk / 16), first_of_run = at.worker % (chunk / 16) * 16;
  const MatrixRow row = MatrixRow::of(p.stack, at.matrix, at.matrix_row(p.inter));
  float* operands = work.staged + at.slice * kStagedSlice;
  float* staged = operands + token * chunk + first_of_run;

  RowCodes loading{};
  KeptCodes weights{};
  TokenCodes x{};
  if (token < at.tokens) x = TokenCodes::of(p, work.pairs, token);
  if (begin < end) loading.load<fp4>(row, begin);
  if (begin < end) x.load(begin + first_of_run);
  float sums[kTileTokens] = {};
  MONOREF_KEEP_LOOP
  for (std::int32_t k = begin; k < begin + length; k += chunk) {
    __syncthreads();  // what is staged has been used
    if (k < end) x.stage(p.stack.e8m0_zero, staged);
    __syncthreads();
    if (k + chunk < end) x.load(k + chunk + first_of_run);
    if (k < end && k % kLoad == 0) {
      weights = KeptCodes::of<fp4>(loading, p.stack.e8m0_zero, work.codes + threadIdx.x);
      if (k + kLoad < end) loading.load<fp4>(row, k + kLoad);
    }
    if (k < end)
      add_chunk<fp4, kStagedOperands>(weights, tokens, operands, k % kLoad, p.stack.e8m0_zero,
                                      sums);
  }

  __syncthreads();
  float* partials = work.staged + (at.up * kSlices + at.slice) * kTileTokens * kTileRows + at.row;
  MONOREF_UNROLL
  for (int i = 0; i < kTileTokens; ++i)
    if (i < at.tokens) partials[i * kTileRows] = sums[i];
  __syncthreads();
}

/// The clamped SwiGLU: the gate from above, up on both sides; NaN passes both. An infinite limit
/// clamps nothing.
MONOREF_DEVICE float swiglu(float gate, float up, float limit, float alpha, float beta) {
  if (MONOREF_FAULT(upg_limit_ignored)) limit = simt::bit_cast<float>(kInfinityBits);
  if (MONOREF_FAULT(upg_alpha_dropped)) alpha = 1.0F;
  if (MONOREF_FAULT(upg_beta_dropped)) beta = 0.0F;
  float g = gate > limit ? limit : gate;
  if (MONOREF_FAULT(upg_gate_clamped_below) && g < -limit) g = -limit;
  float u = up > limit ? limit : up;
  if (u < -limit && !MONOREF_FAULT(upg_up_clamped_above_only)) u = -limit;
  const float t = alpha * g;
  return (g * rcp(1.0F + exp2_portable(t * -kLog2E))) * (u + beta);
}

/// Adds the slices' sums of the tile's outputs and stores their SwiGLU.
MONOREF_DEVICE void store_tile(const UpGate& p, const TilePlace& at, const Work& work) {
  constexpr int kOfSlice = kTileTokens * kTileRows;
  const int count = at.tokens * kTileRows;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    float sum[2] = {};
    for (int slice = 0; slice < p.slices(); ++slice) {
      const int taken = MONOREF_FAULT(upg_partials_reversed) ? p.slices() - 1 - slice : slice;
      for (int up = 0; up < 2; ++up) {
        const float part = work.staged[(up * kSlices + taken) * kOfSlice + i];
        sum[up] += MONOREF_FAULT(upg_partials_in_bf16) ? rounded_to_bf16(part) : part;
      }
    }
    const std::int64_t place = work.pairs.number[i / kTileRows] * p.inter + at.row_tile * kTileRows;
    p.mid[place + i % kTileRows] = bf16_of(swiglu(sum[0], sum[1], p.limit, p.alpha, p.beta));
  }
}

/// What a pair without an expert gets: zeros.
MONOREF_DEVICE void store_zeros(const UpGate& p, std::int64_t pair, std::int32_t row_tile) {
  if (threadIdx.x < kTileRows) p.mid[pair * p.inter + row_tile * kTileRows + threadIdx.x] = 0;
}

/// One tile of rows for all pairs of the expert of `pair`, if that is the first of them. All
/// threads come here.
MONOREF_DEVICE void make_tiles(const UpGate& p, std::int64_t pair, TilePlace& at, Work& work) {
  std::int32_t expert = p.topk_ids[pair];
  if (MONOREF_FAULT(upg_id_of_padded_row_used) && !p.stack.names_expert(expert)) {
    expert = static_cast<std::int32_t>(static_cast<std::uint32_t>(expert) %
                                       static_cast<std::uint32_t>(p.stack.n_routed));
    at.tokens = 1;
  }
  const bool shared_lost = MONOREF_FAULT(upg_shared_lost) && expert == p.stack.n_routed;
  if (!p.stack.names_expert(expert) || shared_lost) {
    store_zeros(p, pair, at.row_tile);
    return;
  }
  at.matrix = p.stack.matrix(expert);
  std::int64_t count = 1;
  for (std::int64_t first = 0; first < count; first += kTileTokens) {
    count = gather_pairs(p, p.topk_ids[pair], first, work.pairs);
    if (first == 0 && work.pairs.number[0] != pair) return;
    if (MONOREF_FAULT(upg_only_first_tile_of_tokens) && first > 0) return;
    at.tokens =
        static_cast<std::int32_t>(count - first < kTileTokens ? count - first : kTileTokens);
    if (at.matrix.fp4)
      sum_slice<true>(p, at, work);
    else
      sum_slice<false>(p, at, work);
    store_tile(p, at, work);
    __syncthreads();  // the next tile takes the place of this one
  }
}

}  // namespace

// Inputs   x8 E4M3FN [rows, hidden], rows x8_row_stride bytes apart, innermost stride 1
//          x_scale E8M0 [rows, hidden / 32], dense
//          topk_ids int32 [rows, slots], dense: below n_routed a routed expert, n_routed the shared
//          one, which is shared_w13 or, if that is null, w13's expert n_routed. Other ids, and
//          n_routed where there is no shared expert, are not routed. An id that stands twice in a
//          row is worked out twice.
//          w13 [experts, 2 * inter, hidden] E4M3FN, or packed E2M1 in half the bytes (the low
//          nibble is the even one): gate rows, then up rows, each expert in the layout of
//          shuffle_weight(16, 16), at a multiple of 16
//          s13 E8M0 [experts * 2 * inter, hidden / 32] in the layout of shuffle_scale
//          shared_w13 E4M3FN [2 * inter, hidden], shared_s13: the same for one expert, or null
// Outputs  mid bf16 [rows, slots, inter], dense; +0 in slots that are not routed. Bytes of experts
//          that no pair names are not read.
// Sizes    hidden a multiple of 256; inter a multiple of 32; experts n_routed, or n_routed + 1 with
//          the shared expert as the last
// Options  weights 0: MXFP8; 1: MXFP4, of w13
//          e8m0_zero 0: scale byte 0 is 2^-127; 1: it is 0
//          limit above 0, infinite or 0 for no clamp; alpha, beta
// Launch   any grid; x goes over tiles of 16 rows of gate, y over the pairs. Blocks of whole waves
//          in one dimension, at most 256 threads, and at least 32 for each slice: 256 for a full
//          row, 32 * (hidden / 128) below 1024.
// Misuse   Other sizes, options and blocks write nothing; likewise a limit that is negative or NaN.
MONOREF_KERNEL(256)
monoref_expert_up_gate(const std::uint8_t* x8, std::int64_t x8_row_stride,
                       const std::uint8_t* x_scale, const std::int32_t* topk_ids,
                       const std::uint8_t* w13, const std::uint8_t* s13,
                       const std::uint8_t* shared_w13, const std::uint8_t* shared_s13,
                       std::uint16_t* mid, std::int64_t rows, std::int32_t slots,
                       std::int32_t hidden, std::int32_t inter, std::int32_t experts,
                       std::int32_t n_routed, std::int32_t weights, std::int32_t e8m0_zero,
                       float limit, float alpha, float beta) {
  MONOREF_SHARED(Work, work, 1);
  MONOREF_SHARED(UpGate, kept, 1);
  const ExpertStack stack{w13,      s13,       shared_w13, shared_s13, experts,
                          n_routed, 2 * inter, hidden,     weights,    e8m0_zero};
  if (!stack.is_valid() || hidden % 256 != 0 || inter % kMxBlock != 0 || slots < 1) return;
  if (!(limit >= 0.0F)) return;
  if (limit == 0.0F) limit = simt::bit_cast<float>(kInfinityBits);
  const UpGate launch{x8,    x8_row_stride, x_scale, topk_ids, mid,  rows,
                      slots, inter,         limit,   alpha,    beta, stack};
  if (blockDim.x > kMaxThreads) return;
  if (static_cast<int>(blockDim.x) < launch.slices() * kSliceThreads) return;
  const UpGate& p = kept_in_shared(kept, launch);
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t pair = blockIdx.y; pair < p.pairs(); pair += gridDim.y) {
    for (std::int64_t tile = blockIdx.x; tile < inter / kTileRows; tile += gridDim.x) {
      if (MONOREF_FAULT(upg_last_tile_lost) && tile == inter / kTileRows - 1) continue;
      TilePlace at{{},
                   static_cast<std::int32_t>(tile),
                   0,
                   thread % kTileRows,
                   thread / kTileRows % 2,
                   thread / kSliceThreads,
                   thread % kSliceThreads};
      make_tiles(p, pair, at, work[0]);
    }
  }
}
MONOREF_REGISTER(monoref_expert_up_gate);

}  // namespace monoref::kernels
