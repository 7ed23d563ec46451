// expert_down: the second half of the experts, and the sum over those of a token.
//
// Source of the rule: mono-decode sections 7 (Down), 8, 9 and 10, upstream-semantics section 7.6.
//
// Order of the sum. A unit is one K step (128 columns) of one expert: an fma chain from 0 over
// ascending k of operands that are scaled before, whose result is multiplied by the route weight;
// the product is added to an accumulator of one of four waves. Two forms deal units to waves:
//
//   narrow   a token's unit j = steps * slot + step goes to wave j mod 4, one of the shared expert
//            to wave step mod 4 of accumulators of its own; every wave has as many units as the
//            first, for which the last unit stands in again with weight 0
//   wide     experts of the whole launch in ascending order, the shared one last; unit
//            j = steps * index + step goes to wave j mod 4. A token that is not routed to the
//            expert takes part with zeros at weight 0, which shows if the weights are not finite
//
// The waves' sums are added in order, starting from 0, the shared expert's behind the others.
//
// Work. A block computes tiles of 16 rows of the weights for up to 16 tokens. It goes through the
// units in order, in batches of up to 8 work items. An item is a few consecutive K steps of one
// expert, which a group of 16 lanes multiplies one after the other; the weights of the next batch
// are loaded while the last of this one are multiplied. Then the batch's products are added in
// order, each wave's accumulators by threads of their own. In the wide form all tokens of an expert
// share its item, in the narrow one those of the shared expert.

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

constexpr int kWaves = 4;      ///< of the order of the sum
constexpr int kPositions = 8;  ///< items of a batch at most
constexpr int kMaxThreads = kPositions * kGroupThreads;
constexpr int kMaxSlots = 16;
constexpr int kMaxExperts = 1024;  ///< the largest id
constexpr int kMaxInter = 1 << 17;
/// Products of an item, of all its steps and tokens.
constexpr int kItemProducts = 32;
/// Distance of two items' products; the padding puts what two groups store at once into different
/// banks.
constexpr int kProductsStride = kItemProducts * kTileRows + kTileRows;

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
  std::int32_t threads;  ///< of a block
  std::int32_t blocks;   ///< of the grid
  ExpertStack stack;

  MONOREF_MEMBER std::int32_t hidden() const { return stack.rows; }
  MONOREF_MEMBER std::int32_t inter() const { return stack.k; }
  MONOREF_MEMBER std::int32_t steps() const { return inter() / kStep; }
  /// Tiles of 16 rows of the weights times 16 tokens.
  MONOREF_MEMBER std::int64_t tiles() const {
    return std::int64_t{hidden() / kTileRows} * ((rows + kTileTokens - 1) / kTileTokens);
  }
  MONOREF_MEMBER bool is_wide() const {
    if (MONOREF_FAULT(down_narrow_order_in_wide, "D01",
                      "the wide form adds in the order of the narrow one"))
      return false;
    if (MONOREF_FAULT(down_wide_one_row_late, "own", "the wide form starts one row later"))
      return rows > wide_from;
    return rows >= wide_from;
  }
};

/// How an expert's steps are split into items.
struct Split {
  std::int32_t span;   ///< steps of an item; the last may have fewer
  std::int32_t items;  ///< of an expert
};

/// The items of a tile in the order of their units, the shared expert's last.
struct ItemList {
  std::int32_t count;
  std::int32_t shared_from;
  Split routed, shared;
  std::int32_t shared_unit;     ///< wide: the number of the shared expert's first unit
  std::uint32_t shared_tokens;  ///< bits of the tokens that have it

  MONOREF_MEMBER const Split& split_at(std::int32_t number) const {
    return number < shared_from ? routed : shared;
  }
};

/// What a batch's position holds while its products are added.
struct BatchEntry {
  std::uint32_t tokens;  ///< bit t: token t of the tile takes part
  std::int32_t steps;
  std::int32_t wave;  ///< of the first step; the next step goes to the next
  std::int32_t set;
};

/// Shared memory of a block.
struct Work {
  simt::Vec16 codes[kLoadVectors * kMaxThreads];  ///< each thread's own
  float operands[kPositions * kGroupStride];
  float products[kPositions * kProductsStride];       ///< [position][step, n-th token][row]
  float sums[kSets * kWaves * kTileSums];             ///< accumulators [set][wave][token][row]
  float weight[kPositions * kTileTokens];             ///< route weights of a batch
  std::int32_t first_step[kPositions * kTileTokens];  ///< of mid, for an item's n-th token
  std::int32_t ids[kTileTokens * kMaxSlots];          ///< of the tile's tokens; -1: names no expert
  std::uint32_t experts[kMaxExperts + 1];  ///< wide: an expert, and its tokens' bits << 16
  std::int32_t starts[kTileTokens + 1];    ///< narrow: where a token's items start
  std::int32_t of_wave[kMaxThreads / 32];
  std::uint32_t poisoned[kTileRows];  ///< wide: bits of the tokens whose output is NaN
  std::int32_t most_tokens;           ///< wide: of a routed expert
  ItemList list;
  BatchEntry entries[kPositions];
  std::uint8_t not_finite[kPositions * kTileRows];  ///< wide: a weight of a position and row is
};

/// A thread's coordinates in its tile.
struct TileThread {
  int thread, threads;  ///< of the block
  std::int32_t first_token;
  std::int32_t tokens;  ///< of the tile: 1 .. 16
  std::int32_t row_tile;
  int row;        ///< 0 .. 15
  int position;   ///< of its group's item in a batch
  int positions;  ///< of a batch: 4 or 8
};

/// This thread's coordinates in tile `i` of the launch.
MONOREF_DEVICE TileThread thread_of_tile(const Down& p, std::int32_t i) {
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

/// Neighbouring steps of an expert; expert -1: there is none, or it is a slot that is not routed.
struct WorkItem {
  std::int32_t expert;
  std::int32_t first, steps;
  bool fp4;              ///< as all items of its batch
  std::uint32_t tokens;  ///< bit t: token t of the tile takes part
  std::int32_t wave;     ///< of the first step
  std::int32_t set;
  bool pads;  ///< narrow: the last step is a token's last unit, and stands in for others
};

/// The id of pair `pair` of the launch as the kernel knows it: -1 if it names no expert, or the
/// shared one in another slot than the last.
MONOREF_DEVICE std::int32_t known_id(const Down& p, std::int32_t pair) {
  const std::int32_t id = in_global(p.topk_ids)[pair];
  const bool is_shared = id == p.stack.n_routed;
  if (MONOREF_FAULT(down_shared_lost, "M14", "the shared expert is taken for an invalid id") &&
      is_shared)
    return -1;
  if (is_shared && pair % p.slots != p.slots - 1) return -1;
  if (p.stack.names_expert(id)) return id;
  if (MONOREF_FAULT(down_id_of_padded_row_used, "M15", "an id out of range is used"))
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(id) %
                                     static_cast<std::uint32_t>(p.stack.n_routed));
  return -1;
}

/// Waits until the ids of the tile's tokens are in shared memory.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void load_ids(const Down& p, const TileThread& at,
                                                      Work& work) {
  const int count = at.tokens * p.slots;
  MONOREF_KEEP_LOOP
  for (int i = at.thread; i < count; i += at.threads)
    work.ids[i] = known_id(p, at.first_token * p.slots + i);
  __syncthreads();
}

/// The bits of the tile's tokens that are routed to an expert.
MONOREF_DEVICE std::uint32_t tokens_of(const Down& p, const TileThread& at, const Work& work,
                                       std::int32_t expert) {
  std::uint32_t tokens = 0;
  MONOREF_KEEP_LOOP
  for (int i = 0; i < at.tokens * p.slots; ++i)
    if (work.ids[i] == expert) tokens |= std::uint32_t{1} << i / p.slots;
  return tokens;
}

/// Marks the experts that any token of the launch is routed to.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void mark_experts(const Down& p, const TileThread& at,
                                                          std::uint8_t* named) {
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

/// Splits an expert's K steps into items: no more steps in one than the room for products takes
/// with `tokens` tokens, and few enough that `units` of them occupy every position of a batch.
MONOREF_DEVICE Split split_steps(const Down& p, const TileThread& at, int tokens,
                                 std::int32_t units) {
  std::int32_t span = kItemProducts / (tokens > 1 ? tokens : 1);
  const std::int32_t share = units / at.positions;
  if (span > share) span = share > 1 ? share : 1;
  if (span > p.steps()) span = p.steps();
  const std::int32_t items = (p.steps() + span - 1) / span;
  return {(p.steps() + items - 1) / items, items};
}

/// Lists the experts of the launch with their tokens in this tile.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE ItemList list_experts(const Down& p, const TileThread& at,
                                                              Work& work) {
  auto* named = reinterpret_cast<std::uint8_t*>(work.operands);
  mark_experts(p, at, named);
  const int wave = at.thread / simt::kWave, waves = at.threads / simt::kWave;
  const std::int32_t ids = p.stack.n_routed + 1;
  std::int32_t count = 0;
  MONOREF_KEEP_LOOP
  for (std::int32_t base = 0; base < ids; base += at.threads) {
    std::int32_t id = base + at.thread;
    const bool known = id < ids;
    if (MONOREF_FAULT(down_experts_descending, "D01",
                      "the wide form goes through the experts from the last") &&
        id < ids - 1)
      id = ids - 2 - id;
    const bool listed = known && named[id] != 0;
    const std::uint64_t all = simt::ballot(listed);
    if (simt::lane() == 0) work.of_wave[wave] = lanes_of(all);
    __syncthreads();
    std::int32_t index = count + lanes_of(all & lanes_below());
    for (int i = 0; i < waves; ++i) {
      if (i < wave) index += work.of_wave[i];
      count += work.of_wave[i];
    }
    if (listed) {
      const std::uint32_t tokens = tokens_of(p, at, work, id);
      work.experts[index] = static_cast<std::uint32_t>(id) | tokens << 16;
      if (id != p.stack.n_routed) simt::atomic_max(&work.most_tokens, lanes_of(tokens));
    }
    __syncthreads();
  }
  const bool has_shared = named[p.stack.n_routed] != 0;
  __syncthreads();  // before that shared memory is staged into again
  const std::uint32_t shared = has_shared ? work.experts[count - 1] >> 16 : 0;
  std::int32_t routed = has_shared ? count - 1 : count;
  if (MONOREF_FAULT(down_expert_grouped_twice, "M16",
                    "an expert of several rows stands twice in the list") &&
      routed > 0)
    routed += 1;
  const std::int32_t units = routed * p.steps();
  const Split split = split_steps(p, at, work.most_tokens, units);
  const Split shared_split = split_steps(p, at, lanes_of(shared), p.steps());
  const std::int32_t items = routed * split.items;
  return {items + (has_shared ? shared_split.items : 0), items, split, shared_split, units, shared};
}

/// True if the last slot of a token is the shared expert's.
MONOREF_DEVICE bool has_shared(const Down& p, const Work& work, int token) {
  return work.ids[token * p.slots + p.slots - 1] == p.stack.n_routed;
}

MONOREF_DEVICE std::int32_t routed_slots(const Down& p, const Work& work, int token) {
  return p.slots - (has_shared(p, work, token) ? 1 : 0);
}

/// Lists the items of the tile's tokens one after the other, then those of the shared expert.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE ItemList list_tokens(const Down& p, const TileThread& at,
                                                             Work& work) {
  std::uint32_t shared = 0;
  std::int32_t slots = 0;
  MONOREF_KEEP_LOOP
  for (int token = 0; token < at.tokens; ++token) {
    if (has_shared(p, work, token)) shared |= std::uint32_t{1} << token;
    slots += routed_slots(p, work, token);
  }
  const Split split = split_steps(p, at, 1, slots * p.steps());
  const Split shared_split = split_steps(p, at, lanes_of(shared), p.steps());
  if (at.thread <= at.tokens) {
    std::int32_t start = 0;
    MONOREF_KEEP_LOOP
    for (int token = 0; token < at.thread; ++token)
      start += routed_slots(p, work, token) * split.items;
    work.starts[at.thread] = start;
  }
  __syncthreads();
  const std::int32_t items = slots * split.items;
  return {items + (shared != 0 ? shared_split.items : 0), items, split, shared_split, 0, shared};
}

/// The format of the weights of item `number`, which is one for all items of a batch.
MONOREF_DEVICE bool item_is_fp4(const Down& p, const ItemList& list, std::int32_t number) {
  const bool separate = number >= list.shared_from && p.stack.shared_codes != nullptr;
  return p.stack.weights == kWeightsMxfp4 && !separate;
}

/// WorkItem `range` of an expert, whose first unit in the order of the sum is `unit`.
MONOREF_DEVICE WorkItem item_of(const Down& p, std::int32_t expert, const Split& split,
                                std::int32_t range, std::int32_t unit) {
  const std::int32_t first = range * split.span, left = p.steps() - first;
  return {expert, first, left < split.span ? left : split.span, false, 0, (unit + first) % kWaves,
          0,      false};
}

MONOREF_DEVICE WorkItem wide_item(const Down& p, const ItemList& list, const Work& work,
                                  std::int32_t number) {
  std::int32_t index = number / list.routed.items;
  const std::int32_t range = number - index * list.routed.items;
  const std::int32_t unit =
      MONOREF_FAULT(down_odd_places_as_even, "D01", "every expert's units start with wave 0")
          ? 0
          : index * p.steps();
  if (MONOREF_FAULT_AT(down_expert_grouped_twice) && index > 0) index -= 1;
  const std::uint32_t expert = work.experts[index];
  WorkItem item = item_of(p, static_cast<std::int32_t>(expert & 0xFFFF), list.routed, range, unit);
  item.tokens = expert >> 16;
  return item;
}

MONOREF_DEVICE WorkItem shared_item(const Down& p, const ItemList& list, std::int32_t number) {
  const bool wide = p.is_wide();
  WorkItem item = item_of(p, p.stack.n_routed, list.shared, number - list.shared_from,
                          wide ? list.shared_unit : 0);
  item.tokens = list.shared_tokens;
  item.set = !wide || p.routed_scaling == kScalingOfOutput ? 1 : 0;
  item.pads = !wide && p.steps() % kWaves != 0 && item.first + item.steps == p.steps();
  return item;
}

MONOREF_DEVICE WorkItem narrow_item(const Down& p, const ItemList& list, const Work& work,
                                    std::int32_t number) {
  int token = 0;
  MONOREF_KEEP_LOOP
  while (number >= work.starts[token + 1]) ++token;
  const std::int32_t in_token = number - work.starts[token];
  const std::int32_t slot = in_token / list.routed.items;
  const std::int32_t expert = work.ids[token * p.slots + slot];
  WorkItem item =
      item_of(p, expert, list.routed, in_token - slot * list.routed.items, slot * p.steps());
  if (expert >= 0) item.tokens = std::uint32_t{1} << token;
  const std::int32_t units = routed_slots(p, work, token) * p.steps();
  item.pads = units % kWaves != 0 && slot * p.steps() + item.first + item.steps == units;
  return item;
}

/// Items begin .. end - 1, which are multiplied together.
struct Batch {
  std::int32_t begin, end;
};

/// The batch that starts at `begin`. The shared expert, which may have many more tokens, starts one
/// of its own.
MONOREF_DEVICE Batch batch_from(const TileThread& at, const ItemList& list, std::int32_t begin) {
  const std::int32_t bound = begin < list.shared_from ? list.shared_from : list.count;
  return {begin, begin + at.positions < bound ? begin + at.positions : bound};
}

/// This thread's item of a batch.
MONOREF_DEVICE WorkItem item_in(const Down& p, const TileThread& at, const ItemList& list,
                                const Batch& batch, const Work& work) {
  const std::int32_t number = batch.begin + at.position;
  WorkItem item{-1, 0, 0, false, 0, 0, 0, false};
  if (number < batch.end) {
    if (number >= list.shared_from)
      item = shared_item(p, list, number);
    else
      item = p.is_wide() ? wide_item(p, list, work, number) : narrow_item(p, list, work, number);
  }
  item.fp4 = item_is_fp4(p, list, batch.begin);
  return item;
}

/// This thread's row of the weights of an item, whose columns begin with the expert's first.
MONOREF_DEVICE MatrixRow row_of(const Down& p, const TileThread& at, const WorkItem& item) {
  return MatrixRow::of(p.stack, p.stack.matrix(item.expert), at.row_tile * kTileRows + at.row);
}

/// Loads the first columns of this thread's item of the batch that starts at `begin`, if there is
/// one.
MONOREF_DEVICE void load_batch(const Down& p, const TileThread& at, const ItemList& list,
                               std::int32_t begin, const Work& work, RowCodes& loading) {
  if (begin >= list.count) return;
  const WorkItem item = item_in(p, at, list, batch_from(at, list, begin), work);
  if (item.expert < 0) return;
  if (item.fp4)
    loading.load<true>(row_of(p, at, item), item.first * kStep);
  else
    loading.load<false>(row_of(p, at, item), item.first * kStep);
}

/// The index of the `n`-th set bit.
MONOREF_DEVICE int bit_at(std::uint32_t bits, int n) {
  MONOREF_KEEP_LOOP
  for (int i = 0; i < n; ++i) bits &= bits - 1;
  return lanes_of((bits & (0U - bits)) - 1);
}

/// The weight of an item's products with a pair.
MONOREF_DEVICE float weight_of(const Down& p, const WorkItem& item, std::int32_t pair) {
  if (MONOREF_FAULT(down_weight_of_wrong_slot, "own", "a slot has its neighbour's route weight"))
    pair = pair / p.slots * p.slots;
  if (MONOREF_FAULT(down_shared_weighs_as_routed, "M11",
                    "the shared expert has a routed one's weight") &&
      item.expert == p.stack.n_routed)
    pair = pair / p.slots * p.slots;
  return in_global(p.topk_weights)[pair];
}

/// The tokens of an item, for its group. Their steps of mid are numbered through the launch.
struct ItemTokens {
  const Down& p;
  const std::int32_t* first_step;

  MONOREF_MEMBER TokenRow operator()(int n) const {
    const std::int64_t step = first_step[n];
    std::int64_t scaled = step;
    if (MONOREF_FAULT(down_mid_scale_of_first_slot, "P18",
                      "every slot has the scales of the first"))
      scaled -= step / p.steps() % p.slots * p.steps();
    return {p.mid8 + step * kStep, p.mid_scale + scaled * (kStep / kMxBlock)};
  }
};

/// Finds the `count` tokens of the group's item and their route weights, one token a thread.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE ItemTokens find_tokens(const Down& p, const TileThread& at,
                                                              const WorkItem& item, int count,
                                                              Work& work) {
  if (at.row < count) {
    const int token = bit_at(item.tokens, at.row);
    int slot = 0;
    MONOREF_KEEP_LOOP
    while (work.ids[token * p.slots + slot] != item.expert) ++slot;
    const std::int32_t pair = (at.first_token + token) * p.slots + slot;
    work.first_step[at.position * kTileTokens + at.row] = pair * p.steps() + item.first;
    work.weight[at.position * kTileTokens + at.row] = weight_of(p, item, pair);
  }
  wave_sync();
  return {p, work.first_step + at.position * kTileTokens};
}

/// The token count that this wave's items are multiplied for: the largest that one of them has,
/// rounded up to an instantiated one.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE int tokens_of_wave(int count) {
  if (!simt::any(count > 1)) return 1;
  if (!simt::any(count > 2)) return 2;
  if (!simt::any(count > 4)) return 4;
  return simt::any(count > 8) ? 16 : 8;
}

/// Whether weights that are not finite reach tokens that are not routed to their expert.
MONOREF_DEVICE bool shows_non_finite(const Down& p) {
  return p.is_wide() && !MONOREF_FAULT(down_zero_columns_left_out, "own",
                                       "rows that are not routed to an expert skip it");
}

/// Stores products begin .. end - 1 of a step, as far as there are tokens; `pads` as in an item.
///
/// In the narrow form a token's last unit may stand in for others, with weight 0. That adds 0, or
/// NaN if its dot is not finite; the NaN may as well be its own product.
template <int begin, int end>
MONOREF_DEVICE void store_some(const float (&sums)[kTileTokens], const float* weight, int count,
                               bool pads, float* products) {
  MONOREF_UNROLL
  for (int i = begin; i < end; ++i) {
    if (i >= count) continue;
    float product = sums[i] * weight[i];
    if (pads && !(magnitude_of(sums[i]) < simt::bit_cast<float>(kInfinityBits)))
      product = simt::bit_cast<float>(kCanonicalNanBits);
    if (MONOREF_FAULT(down_products_in_bf16, "own", "weighted products are rounded to BF16"))
      product = rounded_to_bf16(product);
    products[i * kTileRows] = product;
  }
}

/// Stores the weighted products of step `step` of an item and resets the sums.
MONOREF_DEVICE void store_products(const TileThread& at, const WorkItem& item, int step, int count,
                                   float (&sums)[1][kTileTokens], Work& work) {
  const bool pads = item.pads && step == item.steps - 1;
  const float* weight = work.weight + at.position * kTileTokens;
  float* products =
      work.products + at.position * kProductsStride + step * count * kTileRows + at.row;
  store_some<0, 2>(sums[0], weight, count, pads, products);
  if (count > 2) store_some<2, 4>(sums[0], weight, count, pads, products);
  if (count > 4) store_some<4, kTileTokens>(sums[0], weight, count, pads, products);
  MONOREF_UNROLL
  for (int i = 0; i < kTileTokens; ++i) sums[0][i] = 0.0F;
}

/// Multiplies this thread's item of a batch with its tokens and stores the products. `loading` has
/// the item's first columns on entry, and those of the next batch on return.
template <bool fp4>
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void multiply(const Down& p, const TileThread& at,
                                                      const ItemList& list, const Batch& batch,
                                                      const WorkItem& item, RowCodes (&loading)[1],
                                                      Work& work) {
  constexpr int kLoad = kLoadCodes<fp4>;
  const int count = lanes_of(item.tokens);
  const int tokens = same_in_wave(tokens_of_wave(count)), bits = chunk_bits<fp4>(tokens);
  const ItemTokens rows = find_tokens(p, at, item, count, work);
  const int columns = item.expert < 0 ? 0 : item.steps * kStep;
  const int longest = same_in_wave(list.split_at(batch.begin).span) * kStep;
  const MatrixRow weights = item.expert < 0 ? MatrixRow{} : row_of(p, at, item);
  float* operands = work.operands + at.position * kGroupStride;

  float sums[1][kTileTokens] = {};
  KeptCodes<1, kMaxThreads> codes{};
  TokenWords x{};
  bool not_finite = false;
  x.load<true>(rows, count, bits, at.row, 0);
  MONOREF_KEEP_LOOP
  for (int k = 0; k < longest; k += 1 << bits) {
    const int here = k < columns ? count : 0, following = k + (1 << bits);
    wave_sync();  // the staged operands have been used
    x.stage(here, bits, at.row, p.stack.e8m0_zero, operands);
    wave_sync();
    x.load<true>(rows, following < columns ? count : 0, bits, at.row, following);
    if (k % kLoad == 0 && (k < columns || k == 0)) {
      codes =
          KeptCodes<1, kMaxThreads>::of<fp4>(loading, p.stack.e8m0_zero, work.codes + at.thread);
      if (columns > 0 && shows_non_finite(p))
        not_finite = codes.any_not_finite<fp4>(p.stack.e8m0_zero) || not_finite;
      if (k + kLoad < columns)
        loading[0].load<fp4>(weights, item.first * kStep + k + kLoad);
      else
        load_batch(p, at, list, batch.end, work, loading[0]);
    }
    if (here > 0) add_chunk<fp4>(codes, tokens, operands, k % kLoad, p.stack.e8m0_zero, sums);
    if (here > 0 && following % kStep == 0) store_products(at, item, k / kStep, count, sums, work);
  }
  work.not_finite[at.position * kTileRows + at.row] = not_finite ? 1 : 0;
  __syncthreads();
}

/// Adds the products of item `i` of a batch that go to `wave` to the accumulators of this thread's
/// row, for every `shares`-th token, a power of two, from number `share` on.
MONOREF_DEVICE void add_item(const TileThread& at, int i, int wave, int share, int shares,
                             Work& work) {
  const BatchEntry item = work.entries[i];
  float* sums = work.sums + (item.set * kWaves + wave) * kTileSums + at.row;
  const float* products = work.products + i * kProductsStride + at.row;
  const int count = lanes_of(item.tokens), first = (wave - item.wave) & (kWaves - 1);
  MONOREF_KEEP_LOOP
  for (int step = first; step < item.steps; step += kWaves) {
    const float* product = products + step * count * kTileRows;
    MONOREF_KEEP_LOOP
    for (std::uint32_t left = item.tokens; left != 0; left &= left - 1) {
      const int token = bit_at(left, 0);
      if ((token & (shares - 1)) == share) sums[token * kTileRows] += *product;
      product += kTileRows;
    }
  }
}

/// Adds the products of a batch of `count` items to the accumulators in the order of the units:
/// each wave, row and share of the tokens by a thread of its own.
///
/// In the wide form a token that is not routed to an expert multiplies its weights by 0, and that
/// by 0 once more: this adds 0, or NaN, if one of the weights is not finite.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void add_products(const TileThread& at, std::int32_t count,
                                                          Work& work) {
  const int wave = at.position % kWaves;
  const int share = at.position / kWaves, shares = at.positions / kWaves;
  MONOREF_KEEP_LOOP
  for (int i = 0; i < count; ++i) {
    add_item(at, i, wave, share, shares, work);
    if (at.position == 0 && work.not_finite[i * kTileRows + at.row] != 0)
      work.poisoned[at.row] |= ~work.entries[i].tokens;
  }
  __syncthreads();
}

/// Multiplies a batch and adds its products. `loading` has the first columns of this thread's item
/// on entry, and those of the next batch on return.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void make_batch(const Down& p, const TileThread& tile,
                                                        const ItemList& list, const Batch& batch,
                                                        RowCodes (&loading)[1], Work& work) {
  TileThread at = tile;
  at.row = in_this_turn(at.row);
  at.row_tile = in_this_turn(at.row_tile);
  const WorkItem item = item_in(p, at, list, batch, work);
  if (at.row == 0) work.entries[at.position] = {item.tokens, item.steps, item.wave, item.set};
  if (same_in_wave(item.fp4 ? 1 : 0) != 0)
    multiply<true>(p, at, list, batch, item, loading, work);
  else
    multiply<false>(p, at, list, batch, item, loading, work);
  add_products(at, batch.end - batch.begin, work);
}

/// The accumulators of one output, in order.
MONOREF_DEVICE float total_of(const Down& p, const float* sums) {
  float total[kSets] = {};
  MONOREF_UNROLL
  for (int set = 0; set < kSets; ++set) {
    if (set == 1 && p.routed_scaling == kScalingInWeights) total[1] = total[0];
    for (int wave = 0; wave < kWaves; ++wave) {
      const int taken =
          MONOREF_FAULT(down_partials_reversed, "D01", "partial sums are added from the last wave")
              ? kWaves - 1 - wave
              : wave;
      total[set] += sums[(set * kWaves + taken) * kTileSums];
    }
  }
  if (p.routed_scaling == kScalingInWeights) return total[1];
  if (MONOREF_FAULT(down_factor_missing, "M12", "the routed experts' factor is not applied"))
    return total[0] + total[1];
  if (MONOREF_FAULT(down_factor_on_shared, "M11", "the factor is applied to the shared expert too"))
    return (total[0] + total[1]) * p.scaling;
  if (MONOREF_FAULT(down_factor_twice, "M11", "the factor is applied twice")) total[0] *= p.scaling;
  return total[0] * p.scaling + total[1];
}

MONOREF_DEVICE void store_tile(const Down& p, const TileThread& at, const Work& work) {
  const int count = at.tokens * kTileRows;
  MONOREF_KEEP_LOOP
  for (int i = at.thread; i < count; i += at.threads) {
    const std::int64_t token = at.first_token + i / kTileRows;
    const std::int32_t row = at.row_tile * kTileRows + i % kTileRows;
    const bool poisoned = (work.poisoned[i % kTileRows] >> i / kTileRows & 1) != 0;
    in_global(p.partial)[token * p.hidden() + row] =
        poisoned ? kCanonicalBf16Nan : bf16_of(total_of(p, work.sums + i));
  }
}

/// One whole tile.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void make_tile(const Down& p, const TileThread& at,
                                                       Work& work) {
  MONOREF_KEEP_LOOP
  for (int i = at.thread; i < kSets * kWaves * kTileSums; i += at.threads) work.sums[i] = 0.0F;
  if (at.thread < kTileRows) work.poisoned[at.thread] = 0;
  if (at.thread == 0) work.most_tokens = 0;
  load_ids(p, at, work);
  const ItemList found = p.is_wide() ? list_experts(p, at, work) : list_tokens(p, at, work);
  if (at.thread == 0) work.list = found;
  __syncthreads();
  const ItemList& list = work.list;
  RowCodes loading[1] = {};
  load_batch(p, at, list, 0, work, loading[0]);
  MONOREF_KEEP_LOOP
  for (Batch batch = batch_from(at, list, 0); same_in_wave(list.count - batch.begin) > 0;
       batch = batch_from(at, list, batch.end))
    make_batch(p, at, list, batch, loading, work);
  store_tile(p, at, work);
  __syncthreads();  // the next tile overwrites what this one had in shared memory
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
//          tokens have hidden / 16 of them. Blocks of 64 or 128 threads in one dimension: 16 for
//          each item of a batch.
// Misuse   Other sizes, options and blocks write nothing.
MONOREF_RESIDENT_KERNEL(128, 3, monoref_expert_down)(
    const std::uint8_t* mid8, const std::uint8_t* mid_scale, const std::int32_t* topk_ids,
    const float* topk_weights, const std::uint8_t* w2, const std::uint8_t* s2,
    const std::uint8_t* shared_w2, const std::uint8_t* shared_s2, std::uint16_t* partial,
    std::int64_t rows, std::int32_t slots, std::int32_t inter, std::int32_t hidden,
    std::int32_t experts, std::int32_t n_routed, std::int32_t weights, std::int32_t e8m0_zero,
    std::int32_t wide_from, std::int32_t routed_scaling, float scaling) {
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
                    stack};
  if (launch.tiles() > INT32_MAX - launch.blocks) return;
  const Down& p = kept_in_shared(kept, launch);
  for (std::int32_t i = static_cast<std::int32_t>(blockIdx.x); i < p.tiles();
       i = same_in_wave(i + p.blocks)) {
    if (MONOREF_FAULT(down_last_tile_lost, "X03", "the last tile of rows is not written") &&
        i == p.tiles() - 1)
      continue;
    make_tile(p, thread_of_tile(p, i), work[0]);
  }
}
MONOREF_REGISTER(monoref_expert_down);

}  // namespace monoref::kernels
