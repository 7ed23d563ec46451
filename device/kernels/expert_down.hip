// expert_down: the second half of the experts, and the sum over those of a token.
//
// Source of the rule: mono-decode sections 7 (Down), 8, 9 and 10, upstream-semantics section 7.6.
//
// Order of the sum. A unit is one step of K = 128 of one expert: an fma chain from 0 over natural k
// of operands that are scaled before, whose result is multiplied by the route weight, and the
// product added to an accumulator of one of four waves. Two forms deal units to waves:
//
//   narrow   a token's unit j = steps * slot + step goes to wave j mod 4, one of the shared expert
//            to wave step mod 4 of accumulators of its own; every wave has as many units as the
//            first, for which the last unit stands in again with weight 0
//   wide     experts of the whole launch in ascending order, the shared one last; unit
//            j = steps * place + step goes to wave j mod 4. A token that is not routed to the
//            expert takes part with zeros at weight 0, which shows if the weights are not finite
//
// The waves' sums are added in order, starting from 0, the shared expert's behind the others.
//
// Work. A block makes tiles of 16 rows of the weights for up to 16 tokens. It goes through the
// units in their order, a batch of up to 16 at a time, each of which has a team of 16 threads; the
// weights of the next batch arrive while those of this one are multiplied. Then the batch's
// products are added in order, each wave's accumulators by threads of their own. In the wide form
// all tokens of an expert share its unit, in the narrow one those of the shared expert.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/expert_stack.hpp"
#include "device/kernels/expert_team.hpp"
#include "device/kernels/flat_grid.hpp"
#include "device/kernels/mx_words.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/registers.hpp"
#include "device/kernels/wave_sync.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr int kWaves = 4;       ///< of the order of the sum
constexpr int kPositions = 16;  ///< units of a batch at most
constexpr int kMaxThreads = kPositions * kTeamThreads;
constexpr int kMaxSlots = 16;
constexpr int kMaxExperts = 1024;  ///< the largest id
constexpr int kMaxInter = 1 << 17;

/// Accumulators: for the routed experts and, where the sum keeps them apart, the shared one.
constexpr int kSets = 2;
constexpr int kTileSums = kTileTokens * kTileRows;

/// Values of a kernel's `routed_scaling` parameter.
constexpr std::int32_t kScalingInWeights = 0;
constexpr std::int32_t kScalingOfOutput = 1;

/// The arguments of a launch.
struct Down {
  const std::uint8_t* mid8;
  const std::uint8_t* mid_scale;
  const std::int32_t* topk_ids;
  const float* topk_weights;
  std::uint16_t* partial;
  std::int32_t rows;
  std::int32_t slots;
  std::int32_t wide_from;
  std::int32_t routed_scaling;
  float scaling;
  std::int32_t threads;            ///< of a block
  std::int32_t blocks;             ///< of the grid
  std::uint32_t inverse_of_steps;  ///< 2^32 / steps, rounded up; 0 for 1
  ExpertStack stack;

  MONOREF_MEMBER std::int32_t hidden() const { return stack.rows; }
  MONOREF_MEMBER std::int32_t inter() const { return stack.k; }
  MONOREF_MEMBER std::int32_t steps() const { return inter() / kStep; }
  /// n / steps(), for n * steps() below 2^32, and what is left.
  MONOREF_MEMBER std::int32_t whole_steps(std::int32_t n) const {
    if (steps() == 1) return n;
    return static_cast<std::int32_t>(
        std::uint64_t{static_cast<std::uint32_t>(n)} * inverse_of_steps >> 32);
  }
  /// Tiles of 16 rows of the weights times 16 tokens.
  MONOREF_MEMBER std::int64_t tiles() const {
    return std::int64_t{hidden() / kTileRows} * ((rows + kTileTokens - 1) / kTileTokens);
  }
  MONOREF_MEMBER bool is_wide() const {
    if (MONOREF_FAULT(down_narrow_order_in_wide)) return false;
    if (MONOREF_FAULT(down_wide_one_row_late)) return rows > wide_from;
    return rows >= wide_from;
  }
};

/// What a batch's position holds while its products are added.
struct Placed {
  std::uint32_t tokens;  ///< bit t: token t of the tile takes part
  std::int32_t wave;
  std::int32_t set;
};

/// Shared memory of a block.
struct Work {
  simt::Vec16 codes[kLoadRuns * kMaxThreads];    ///< each thread's own
  float operands[kPositions * kTeamStride];      ///< then products [position][n-th token][row]
  float sums[kSets * kWaves * kTileSums];        ///< accumulators [set][wave][token][row]
  float weight[kPositions * kTileTokens];        ///< route weights of a batch
  std::int32_t steps[kPositions * kTileTokens];  ///< a unit's tokens: their steps of mid
  std::int32_t ids[kTileTokens * kMaxSlots];     ///< of the tile's tokens; -1: names no expert
  std::uint32_t groups[kMaxExperts + 1];         ///< wide: an expert, and its tokens' bits << 16
  std::int32_t starts[kTileTokens + 1];          ///< narrow: where a token's units start
  std::int32_t of_wave[kMaxThreads / 32];
  Placed placed[kPositions];
  std::uint8_t not_finite[kPositions * kTileRows];  ///< wide: a weight of a position and row is
};

/// Where a thread stands in its tile.
struct TilePlace {
  int thread, threads;  ///< of the block
  std::int32_t first_token;
  std::int32_t tokens;  ///< of the tile: 1 .. 16
  std::int32_t row_tile;
  int row;        ///< 0 .. 15
  int position;   ///< of its unit in a batch
  int positions;  ///< of a batch: 4, 8, 12 or 16
};

/// Where this thread stands in tile `i` of the launch.
MONOREF_DEVICE TilePlace place_of_tile(const Down& p, std::int32_t i) {
  const std::int32_t row_tiles = p.hidden() / kTileRows;
  const std::int32_t first = i / row_tiles * kTileTokens;
  const std::int32_t left = p.rows - first;
  const int thread = in_this_turn(static_cast<int>(threadIdx.x));
  const int threads = same_in_wave(p.threads);
  return {thread,
          threads,
          first,
          left < kTileTokens ? left : kTileTokens,
          i % row_tiles,
          thread % kTileRows,
          thread / kTileRows,
          threads / kTileRows};
}

/// The units of a tile in the order of their addition.
struct UnitList {
  std::int32_t count;
  std::int32_t shared_from;     ///< the shared expert's are the last
  std::uint32_t shared_tokens;  ///< narrow: bits of the tokens that have it
};

/// One unit; expert -1: none, or one of a slot that is not routed.
struct Unit {
  std::int32_t expert;
  std::int32_t step;
  bool fp4;              ///< as all units of its batch
  std::uint32_t tokens;  ///< bit t: token t of the tile takes part
  std::int32_t wave;
  std::int32_t set;
  bool weighs_nothing;
};

/// The id of pair `pair` of the launch as the kernel knows it: -1 if it names no expert, or the
/// shared one in another slot than the last.
MONOREF_DEVICE std::int32_t known_id(const Down& p, std::int32_t pair) {
  const std::int32_t id = p.topk_ids[pair];
  const bool is_shared = id == p.stack.n_routed;
  if (MONOREF_FAULT(down_shared_lost) && is_shared) return -1;
  if (is_shared && pair % p.slots != p.slots - 1) return -1;
  if (p.stack.names_expert(id)) return id;
  if (MONOREF_FAULT(down_id_of_padded_row_used))
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(id) %
                                     static_cast<std::uint32_t>(p.stack.n_routed));
  return -1;
}

/// Waits until the ids of the tile's tokens are in shared memory. All threads come here.
MONOREF_DEVICE void load_ids(const Down& p, const TilePlace& at, Work& work) {
  const int count = at.tokens * p.slots;
  MONOREF_KEEP_LOOP
  for (int i = at.thread; i < count; i += at.threads)
    work.ids[i] = known_id(p, at.first_token * p.slots + i);
  __syncthreads();
}

/// The bits of the tile's tokens that are routed to an expert.
MONOREF_DEVICE std::uint32_t tokens_of(const Down& p, const TilePlace& at, const Work& work,
                                       std::int32_t expert) {
  std::uint32_t tokens = 0;
  MONOREF_KEEP_LOOP
  for (int i = 0; i < at.tokens * p.slots; ++i)
    if (work.ids[i] == expert) tokens |= std::uint32_t{1} << i / p.slots;
  return tokens;
}

/// Marks the experts that any token of the launch is routed to. All threads come here.
MONOREF_DEVICE void mark_experts(const Down& p, const TilePlace& at, std::uint8_t* named) {
  const std::int32_t ids = p.stack.n_routed + 1;
  MONOREF_KEEP_LOOP
  for (int i = at.thread; i < ids; i += at.threads) named[i] = 0;
  __syncthreads();
  MONOREF_KEEP_LOOP
  for (int i = at.thread; i < p.rows * p.slots; i += at.threads) {
    const std::int32_t id = known_id(p, i);
    if (id >= 0) named[id] = 1;
  }
  __syncthreads();
}

/// Lists the experts of the launch with their tokens in this tile. All threads come here.
MONOREF_DEVICE UnitList list_groups(const Down& p, const TilePlace& at, Work& work) {
  auto* named = reinterpret_cast<std::uint8_t*>(work.operands);
  mark_experts(p, at, named);
  const int wave = at.thread / simt::kWave, waves = at.threads / simt::kWave;
  const std::int32_t ids = p.stack.n_routed + 1;
  std::int32_t count = 0;
  MONOREF_KEEP_LOOP
  for (std::int32_t base = 0; base < ids; base += at.threads) {
    std::int32_t id = base + at.thread;
    const bool known = id < ids;
    if (MONOREF_FAULT(down_experts_descending) && id < ids - 1) id = ids - 2 - id;
    const bool listed = known && named[id] != 0;
    const std::uint64_t all = simt::ballot(listed);
    if (simt::lane() == 0) work.of_wave[wave] = lanes_of(all);
    __syncthreads();
    std::int32_t place = count + lanes_of(all & lanes_below());
    for (int i = 0; i < waves; ++i) {
      if (i < wave) place += work.of_wave[i];
      count += work.of_wave[i];
    }
    if (listed)
      work.groups[place] = static_cast<std::uint32_t>(id) | tokens_of(p, at, work, id) << 16;
    __syncthreads();
  }
  const bool shared = named[p.stack.n_routed] != 0;
  __syncthreads();  // before something else is staged there
  if (MONOREF_FAULT(down_expert_grouped_twice) && count > 1) count += 1;
  return {count * p.steps(), (shared ? count - 1 : count) * p.steps(), 0};
}

/// `count` units padded to as many for each wave.
MONOREF_DEVICE std::int32_t padded_to_waves(std::int32_t count) {
  return (count + kWaves - 1) / kWaves * kWaves;
}

/// True if the last slot of a token is the shared expert's.
MONOREF_DEVICE bool has_shared(const Down& p, const Work& work, int token) {
  return work.ids[token * p.slots + p.slots - 1] == p.stack.n_routed;
}

MONOREF_DEVICE std::int32_t routed_units(const Down& p, const Work& work, int token) {
  return (p.slots - (has_shared(p, work, token) ? 1 : 0)) * p.steps();
}

/// Lists the units of the tile's tokens one after the other, then those of the shared expert. All
/// threads come here.
MONOREF_DEVICE UnitList list_tokens(const Down& p, const TilePlace& at, Work& work) {
  if (at.thread <= at.tokens) {
    std::int32_t start = 0;
    MONOREF_KEEP_LOOP
    for (int token = 0; token < at.thread; ++token)
      start += padded_to_waves(routed_units(p, work, token));
    work.starts[at.thread] = start;
  }
  std::uint32_t shared = 0;
  MONOREF_KEEP_LOOP
  for (int token = 0; token < at.tokens; ++token)
    if (has_shared(p, work, token)) shared |= std::uint32_t{1} << token;
  __syncthreads();
  const std::int32_t routed = work.starts[at.tokens];
  return {routed + (shared != 0 ? padded_to_waves(p.steps()) : 0), routed, shared};
}

/// The format of the weights of unit `number`, which is one for all units of a batch.
MONOREF_DEVICE bool unit_is_fp4(const Down& p, const UnitList& list, std::int32_t number) {
  const bool separate = number >= list.shared_from && p.stack.shared_codes != nullptr;
  return p.stack.weights == kWeightsMxfp4 && !separate;
}

MONOREF_DEVICE Unit wide_unit(const Down& p, const UnitList& list, const Work& work,
                              std::int32_t number) {
  std::int32_t place = p.whole_steps(number);
  const std::int32_t step = number - place * p.steps();
  if (MONOREF_FAULT(down_expert_grouped_twice) && place > 0 && list.count > p.steps()) place -= 1;
  const std::uint32_t group = work.groups[place];
  const auto expert = static_cast<std::int32_t>(group & 0xFFFF);
  const bool apart = p.routed_scaling == kScalingOfOutput && expert == p.stack.n_routed;
  const std::int32_t dealt = MONOREF_FAULT(down_odd_places_as_even) ? step : number;
  return {expert,        step, unit_is_fp4(p, list, number), group >> 16, dealt % kWaves,
          apart ? 1 : 0, false};
}

MONOREF_DEVICE Unit shared_unit(const Down& p, const UnitList& list, std::int32_t number) {
  const std::int32_t j = number - list.shared_from, last = p.steps() - 1;
  return {p.stack.n_routed,
          j < last ? j : last,
          unit_is_fp4(p, list, number),
          list.shared_tokens,
          j % kWaves,
          1,
          j > last};
}

MONOREF_DEVICE Unit narrow_unit(const Down& p, const UnitList& list, const Work& work,
                                std::int32_t number) {
  int token = 0;
  MONOREF_KEEP_LOOP
  while (number >= work.starts[token + 1]) ++token;
  const std::int32_t j = number - work.starts[token], last = routed_units(p, work, token) - 1;
  const std::int32_t taken = j < last ? j : last;
  const std::int32_t slot = p.whole_steps(taken);
  const std::int32_t expert = work.ids[token * p.slots + slot];
  const std::uint32_t tokens = expert < 0 ? 0 : std::uint32_t{1} << token;
  return {expert,  taken - slot * p.steps(), unit_is_fp4(p, list, number), tokens, j % kWaves, 0,
          j > last};
}

MONOREF_DEVICE Unit unit_at(const Down& p, const UnitList& list, const Work& work,
                            std::int32_t number, std::int32_t end) {
  if (number >= end) return {-1, 0, unit_is_fp4(p, list, end - 1), 0, 0, 0, false};
  if (p.is_wide()) return wide_unit(p, list, work, number);
  if (number >= list.shared_from) return shared_unit(p, list, number);
  return narrow_unit(p, list, work, number);
}

/// Units begin .. end - 1, which are multiplied together.
struct Batch {
  std::int32_t begin, end;
};

/// The batch that starts at `begin`. The shared expert, which may have many more tokens, starts one
/// of its own.
MONOREF_DEVICE Batch batch_from(const TilePlace& at, const UnitList& list, std::int32_t begin) {
  const std::int32_t bound = begin < list.shared_from ? list.shared_from : list.count;
  return {begin, begin + at.positions < bound ? begin + at.positions : bound};
}

/// This thread's unit of a batch.
MONOREF_DEVICE Unit unit_of(const Down& p, const TilePlace& at, const UnitList& list,
                            const Batch& batch, const Work& work) {
  return unit_at(p, list, work, batch.begin + at.position, batch.end);
}

/// This thread's row of a unit's weights.
MONOREF_DEVICE MatrixRow row_of_unit(const Down& p, const TilePlace& at, const Unit& unit) {
  return MatrixRow::of(p.stack, p.stack.matrix(unit.expert), at.row_tile * kTileRows + at.row);
}

/// Loads the first columns of this thread's unit of the batch that starts at `begin`, if there is
/// one.
MONOREF_DEVICE void load_batch(const Down& p, const TilePlace& at, const UnitList& list,
                               std::int32_t begin, const Work& work, RowCodes& loading) {
  if (begin >= list.count) return;
  const Unit unit = unit_of(p, at, list, batch_from(at, list, begin), work);
  if (unit.expert < 0) return;
  if (unit.fp4)
    loading.load<true>(row_of_unit(p, at, unit), unit.step * kStep);
  else
    loading.load<false>(row_of_unit(p, at, unit), unit.step * kStep);
}

/// The place of the `n`-th of some bits.
MONOREF_DEVICE int bit_at(std::uint32_t bits, int n) {
  MONOREF_KEEP_LOOP
  for (int i = 0; i < n; ++i) bits &= bits - 1;
  return lanes_of((bits & (0U - bits)) - 1);
}

/// What a unit's product with a pair is multiplied by.
MONOREF_DEVICE float weight_of(const Down& p, const Unit& unit, std::int32_t pair) {
  if (unit.weighs_nothing) return 0.0F;
  if (MONOREF_FAULT(down_weight_of_wrong_slot)) pair = pair / p.slots * p.slots;
  if (MONOREF_FAULT(down_shared_weighs_as_routed) && unit.expert == p.stack.n_routed)
    pair = pair / p.slots * p.slots;
  return p.topk_weights[pair];
}

/// The tokens of a unit, for its team. Their steps are numbered through the launch.
struct UnitTokens {
  const Down& p;
  const std::int32_t* steps;

  MONOREF_MEMBER TokenRow operator()(int n) const {
    const std::int64_t step = steps[n];
    std::int64_t scaled = step;
    if (MONOREF_FAULT(down_mid_scale_of_first_slot))
      scaled -= step / p.steps() % p.slots * p.steps();
    return {p.mid8 + step * kStep, p.mid_scale + scaled * (kStep / kMxBlock)};
  }
};

/// Finds the `count` tokens of the thread's unit, and their route weights: each thread of the team
/// one. All lanes of the wave come here.
MONOREF_DEVICE UnitTokens find_tokens(const Down& p, const TilePlace& at, const Unit& unit,
                                      int count, Work& work) {
  if (at.row < count) {
    const int token = bit_at(unit.tokens, at.row);
    int slot = 0;
    MONOREF_KEEP_LOOP
    while (work.ids[token * p.slots + slot] != unit.expert) ++slot;
    const std::int32_t pair = (at.first_token + token) * p.slots + slot;
    work.steps[at.position * kTileTokens + at.row] = pair * p.steps() + unit.step;
    work.weight[at.position * kTileTokens + at.row] = weight_of(p, unit, pair);
  }
  wave_sync();
  return {p, work.steps + at.position * kTileTokens};
}

/// For how many tokens the units of this wave are multiplied: what most of them have, or more. All
/// lanes of the wave come here.
MONOREF_DEVICE int tokens_of_wave(int count) {
  if (!simt::any(count > 1)) return 1;
  if (!simt::any(count > 2)) return 2;
  if (!simt::any(count > 4)) return 4;
  return simt::any(count > 8) ? 16 : 8;
}

/// Whether weights that are not finite reach tokens that are not routed to their expert.
MONOREF_DEVICE bool shows_non_finite(const Down& p) {
  return p.is_wide() && !MONOREF_FAULT(down_zero_columns_left_out);
}

/// Leaves the products of a unit, weighted, in the place of its operands. All threads come here.
MONOREF_DEVICE void store_products(const TilePlace& at, int count,
                                   const float (&sums)[1][kTileTokens], Work& work) {
  wave_sync();  // the operands have been used
  const float* weight = work.weight + at.position * kTileTokens;
  float* products = work.operands + at.position * kTeamStride + at.row;
  MONOREF_UNROLL
  for (int i = 0; i < kTileTokens; ++i) {
    if (i >= count) continue;
    const float product = sums[0][i] * weight[i];
    products[i * kTileRows] =
        MONOREF_FAULT(down_products_in_bf16) ? rounded_to_bf16(product) : product;
  }
  __syncthreads();
}

/// Multiplies this thread's unit of a batch with its tokens and leaves the products. The unit's
/// first columns are in `loading`, where those of the next batch are afterwards. All threads come
/// here.
template <bool fp4>
MONOREF_DEVICE void multiply(const Down& p, const TilePlace& at, const UnitList& list,
                             const Batch& batch, const Unit& unit, RowCodes (&loading)[1],
                             Work& work) {
  constexpr int kLoad = kLoadCodes<fp4>;
  const int count = lanes_of(unit.tokens);
  const int tokens = same_in_wave(tokens_of_wave(count)), bits = chunk_bits<fp4>(tokens);
  const UnitTokens rows = find_tokens(p, at, unit, count, work);
  float* operands = work.operands + at.position * kTeamStride;

  float sums[1][kTileTokens] = {};
  KeptCodes<1, kMaxThreads> codes{};
  TokenWords x{};
  bool not_finite = false;
  x.load<true>(rows, count, bits, at.row, 0);
  MONOREF_KEEP_LOOP
  for (int k = 0; k < kStep; k += 1 << bits) {
    wave_sync();  // what is staged has been used
    x.stage(count, bits, at.row, p.stack.e8m0_zero, operands);
    wave_sync();
    const int following = k + (1 << bits);
    if (following < kStep) x.load<true>(rows, count, bits, at.row, following);
    if (k % kLoad == 0) {
      codes =
          KeptCodes<1, kMaxThreads>::of<fp4>(loading, p.stack.e8m0_zero, work.codes + at.thread);
      if (unit.expert >= 0 && shows_non_finite(p))
        not_finite = codes.any_not_finite<fp4>(p.stack.e8m0_zero) || not_finite;
      if (k + kLoad >= kStep)
        load_batch(p, at, list, batch.end, work, loading[0]);
      else if (unit.expert >= 0)
        loading[0].load<fp4>(row_of_unit(p, at, unit), unit.step * kStep + k + kLoad);
    }
    if (count > 0) add_chunk<fp4>(codes, tokens, operands, k % kLoad, p.stack.e8m0_zero, sums);
  }
  work.not_finite[at.position * kTileRows + at.row] = not_finite ? 1 : 0;
  store_products(at, count, sums, work);
}

/// Adds the products of unit `i` of a batch to its wave's accumulators of this thread's row, for
/// every `shares`-th token from number `share` on.
MONOREF_DEVICE void add_unit(const TilePlace& at, int i, const Placed& unit, int share, int shares,
                             Work& work) {
  float* sums = work.sums + (unit.set * kWaves + unit.wave) * kTileSums + at.row;
  const float* products = work.operands + i * kTeamStride + at.row;
  MONOREF_KEEP_LOOP
  for (std::uint32_t left = unit.tokens; left != 0; left &= left - 1) {
    const int token = bit_at(left, 0);
    if (token % shares == share) sums[token * kTileRows] += *products;
    products += kTileRows;
  }
  if (work.not_finite[i * kTileRows + at.row] == 0) return;
  MONOREF_KEEP_LOOP
  for (int token = share; token < at.tokens; token += shares)
    if ((unit.tokens >> token & 1) == 0)
      sums[token * kTileRows] = simt::bit_cast<float>(kCanonicalNanBits);
}

/// Adds the products of a batch of `count` units to the accumulators in their order: each wave and
/// row by threads of their own, which share tokens if one has many. All threads come here.
///
/// In the wide form a token that is not routed to an expert multiplies its weights by 0, and that
/// by 0 once more: this adds 0, or NaN, if one of the weights is not finite.
MONOREF_DEVICE void add_products(const TilePlace& at, std::int32_t count, Work& work) {
  constexpr int kFewTokens = 2;
  const int wave = at.position % kWaves, share = at.position / kWaves;
  const int first = (wave - work.placed[0].wave) & (kWaves - 1);
  int most = 0;
  MONOREF_KEEP_LOOP
  for (int i = first; i < count; i += kWaves) {
    const int tokens = lanes_of(work.placed[i].tokens);
    most = tokens > most ? tokens : most;
  }
  const int shares = most > kFewTokens ? at.positions / kWaves : 1;
  if (share < shares) {
    MONOREF_KEEP_LOOP
    for (int i = first; i < count; i += kWaves)
      add_unit(at, i, work.placed[i], share, shares, work);
  }
  __syncthreads();
}

/// Multiplies a batch and adds its products. The first columns of this thread's unit are in
/// `loading`, where those of the next batch are afterwards. All threads come here.
MONOREF_DEVICE void make_batch(const Down& p, const TilePlace& at, const UnitList& list,
                               const Batch& batch, RowCodes (&loading)[1], Work& work) {
  const Unit unit = unit_of(p, at, list, batch, work);
  if (at.row == 0) work.placed[at.position] = {unit.tokens, unit.wave, unit.set};
  if (same_in_wave(unit.fp4 ? 1 : 0) != 0)
    multiply<true>(p, at, list, batch, unit, loading, work);
  else
    multiply<false>(p, at, list, batch, unit, loading, work);
  add_products(at, batch.end - batch.begin, work);
}

/// The accumulators of one output, in order.
MONOREF_DEVICE float total_of(const Down& p, const float* sums) {
  float total[kSets] = {};
  MONOREF_UNROLL
  for (int set = 0; set < kSets; ++set) {
    if (set == 1 && p.routed_scaling == kScalingInWeights) total[1] = total[0];
    for (int wave = 0; wave < kWaves; ++wave) {
      const int taken = MONOREF_FAULT(down_partials_reversed) ? kWaves - 1 - wave : wave;
      total[set] += sums[(set * kWaves + taken) * kTileSums];
    }
  }
  if (p.routed_scaling == kScalingInWeights) return total[1];
  if (MONOREF_FAULT(down_factor_missing)) return total[0] + total[1];
  if (MONOREF_FAULT(down_factor_on_shared)) return (total[0] + total[1]) * p.scaling;
  if (MONOREF_FAULT(down_factor_twice)) total[0] *= p.scaling;
  return total[0] * p.scaling + total[1];
}

MONOREF_DEVICE void store_tile(const Down& p, const TilePlace& at, const Work& work) {
  const int count = at.tokens * kTileRows;
  MONOREF_KEEP_LOOP
  for (int i = at.thread; i < count; i += at.threads) {
    const std::int64_t token = at.first_token + i / kTileRows;
    const std::int32_t row = at.row_tile * kTileRows + i % kTileRows;
    p.partial[token * p.hidden() + row] = bf16_of(total_of(p, work.sums + i));
  }
}

/// All of one tile. All threads come here.
MONOREF_DEVICE void make_tile(const Down& p, const TilePlace& at, Work& work) {
  MONOREF_KEEP_LOOP
  for (int i = at.thread; i < kSets * kWaves * kTileSums; i += at.threads) work.sums[i] = 0.0F;
  load_ids(p, at, work);
  UnitList list = p.is_wide() ? list_groups(p, at, work) : list_tokens(p, at, work);
  list.count = same_in_wave(list.count);
  list.shared_from = same_in_wave(list.shared_from);
  RowCodes loading[1] = {};
  load_batch(p, at, list, 0, work, loading[0]);
  MONOREF_KEEP_LOOP
  for (Batch batch = batch_from(at, list, 0); batch.begin < list.count;
       batch = batch_from(at, list, batch.end))
    make_batch(p, at, list, batch, loading, work);
  store_tile(p, at, work);
  __syncthreads();  // the next tile takes the place of this one
}

}  // namespace

// Inputs   mid8 E4M3FN [rows, slots, inter], dense, at a multiple of 16
//          mid_scale E8M0 [rows, slots, inter / 32], dense
//          topk_ids int32 [rows, slots], dense: below n_routed a routed expert, n_routed the shared
//          one, in the last slot, which is shared_w2 or, if that is null, w2's expert n_routed.
//          Other ids, and n_routed where there is no shared expert, are not routed: their slots
//          have no units. No id stands twice in a row.
//          topk_weights f32 [rows, slots], dense
//          w2 [experts, hidden, inter] E4M3FN, or packed E2M1 in half the bytes (the low nibble is
//          the even one), each expert in the layout of shuffle_weight(16, 16), at a multiple of 16
//          s2 E8M0 [experts * hidden, inter / 32 padded to a multiple of 8] in the layout of
//          shuffle_scale; the padding is not looked at
//          shared_w2 E4M3FN [hidden, inter], shared_s2: the same for one expert, or null
// Outputs  partial bf16 [rows, hidden], dense. Bytes of experts that no pair names are not read.
// Sizes    inter a multiple of 128, at most 2^17; hidden a multiple of 32; experts n_routed, or
//          n_routed + 1 with the shared expert as the last; n_routed at most 1024, slots at most
//          16, rows * slots * inter below 2^38
// Options  weights 0: MXFP8; 1: MXFP4, of w2
//          e8m0_zero 0: scale byte 0 is 2^-127; 1: it is 0
//          wide_from: that many rows or more are summed in the wide form
//          routed_scaling 0: the weights have the routed experts' factor; 1: total = (routed total
//          * scaling) + shared total, each summed from 0
// Launch   any grid in x, which goes over tiles of 16 rows of the weights times 16 tokens: up to 16
//          tokens have hidden / 16 of them. Blocks of 64, 128, 192 or 256 threads in one dimension:
//          16 for each unit of a batch.
// Misuse   Other sizes, options and blocks write nothing.
MONOREF_RESIDENT_KERNEL(256, 2)
monoref_expert_down(const std::uint8_t* mid8, const std::uint8_t* mid_scale,
                    const std::int32_t* topk_ids, const float* topk_weights, const std::uint8_t* w2,
                    const std::uint8_t* s2, const std::uint8_t* shared_w2,
                    const std::uint8_t* shared_s2, std::uint16_t* partial, std::int64_t rows,
                    std::int32_t slots, std::int32_t inter, std::int32_t hidden,
                    std::int32_t experts, std::int32_t n_routed, std::int32_t weights,
                    std::int32_t e8m0_zero, std::int32_t wide_from, std::int32_t routed_scaling,
                    float scaling) {
  MONOREF_SHARED(Work, work, 1);
  MONOREF_SHARED(Down, kept, 1);
  const ExpertStack stack{w2,       s2,     shared_w2, shared_s2, experts,
                          n_routed, hidden, inter,     weights,   e8m0_zero};
  if (!stack.is_valid() || inter > kMaxInter || n_routed > kMaxExperts || slots < 1 ||
      slots > kMaxSlots)
    return;
  if (routed_scaling != kScalingInWeights && routed_scaling != kScalingOfOutput) return;
  if (rows * slots * (inter / kStep) > INT32_MAX) return;
  if (blockDim.x % (kWaves * kTileRows) != 0 || blockDim.x > kMaxThreads) return;
  const Down launch{mid8,
                    mid_scale,
                    topk_ids,
                    topk_weights,
                    partial,
                    static_cast<std::int32_t>(rows),
                    slots,
                    wide_from,
                    routed_scaling,
                    scaling,
                    static_cast<std::int32_t>(blockDim.x),
                    static_cast<std::int32_t>(gridDim.x),
                    0xFFFFFFFFU / static_cast<std::uint32_t>(inter / kStep) + 1,
                    stack};
  if (launch.tiles() > INT32_MAX - launch.blocks) return;
  const Down& p = kept_in_shared(kept, launch);
  for (std::int32_t i = static_cast<std::int32_t>(blockIdx.x); i < p.tiles();
       i = same_in_wave(i + p.blocks)) {
    if (MONOREF_FAULT(down_last_tile_lost) && i == p.tiles() - 1) continue;
    make_tile(p, place_of_tile(p, i), work[0]);
  }
}
MONOREF_REGISTER(monoref_expert_down);

}  // namespace monoref::kernels
