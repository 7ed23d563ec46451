// index_select: the blocks that a query row attends to, and its sparse page table.
//
// Source of the rule: mono-decode section 5 (keys, order, emission, context), section 10 (NaN,
// pinned blocks), section 4 (context parallelism).
//
//   key of block b    1e29 if b is one of the last `local` blocks, else 1e30 if b is one of the
//                     first `init`, else its score; scores of pinned blocks are not read
//   sort key          the key's bits as a signed integer, negative ones xor 0x7FFFFFFF, -0 as 0,
//                     NaN as INT_MIN; -b in a row that has no more blocks than it may keep
//   order             sort key descending, then id descending (or, by option, ascending)
//   table             the pages of the selected full blocks in that order, then those of the last
//                     block if it is selected, then zeros
//
// Work. A block of threads has one row and index head. It reads the scores once, into sort keys in
// shared memory, and finds the smallest selected one digit by digit (8 bits of sort key and id, the
// highest first) from histograms, until the blocks that share the digits found are just those that
// are still wanted. The selected ones are collected in any order, and each finds its slot by
// counting those before it: the order is total, so that no result depends on who comes first.

#include <cstdint>

#include "device/kernels/flat_grid.hpp"
#include "device/kernels/float_order.hpp"
#include "device/kernels/page_layout.hpp"
#include "device/kernels/registers.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/kernels/step_tables.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr std::int32_t kMaxBlocks = 8192;  ///< of a row: 2^20 keys
constexpr std::int32_t kMaxTopk = 64;
constexpr std::int32_t kMaxCandidates = 512;  ///< of a row, from all ranks

constexpr int kDigitBits = 8;
constexpr int kDigits = 6;  ///< four of the sort key, two of the id
constexpr int kBins = 1 << kDigitBits;
/// Scores have few different exponents. Lanes count into eight copies of a bin, so that at most an
/// eighth of a wave collides at one address.
constexpr int kCopies = 8;
constexpr int kCounters = kBins * kCopies;
constexpr int kIdBits = 16;
constexpr std::uint32_t kIdMask = 0xFFFF;

/// Values of `tie`: which of two blocks with equal sort keys comes first.
constexpr std::int32_t kTieHigherId = 0;

constexpr float kInitKey = 1e30F;
constexpr float kLocalKey = 1e29F;

/// A sort key, and behind it the id in the order of ties: larger means earlier, and no two blocks
/// of a row are equal.
using RankKey = std::uint64_t;
constexpr std::int64_t kNoCandidate = -1;

/// What all rows of a launch share.
struct Rules {
  std::int32_t topk;
  std::int32_t init;
  std::int32_t local;
  std::int32_t tie;

  MONOREF_MEMBER bool higher_id_first() const {
    return (tie == kTieHigherId) !=
           MONOREF_FAULT(select_tie_reversed, "S14", "equal keys rank by the other tie rule");
  }
  MONOREF_MEMBER RankKey rank_key_of(std::uint32_t key, std::int32_t id) const {
    const auto low = static_cast<std::uint32_t>(id);
    return RankKey{key} << kIdBits | (higher_id_first() ? low : kIdMask - low);
  }
  MONOREF_MEMBER std::int32_t id_of(RankKey rank_key) const {
    const std::uint32_t low = static_cast<std::uint32_t>(rank_key) & kIdMask;
    return static_cast<std::int32_t>(higher_id_first() ? low : kIdMask - low);
  }
};

/// The blocks of one row, of which this rank looks at first, first + step, ...
struct RowBlocks {
  std::int64_t context;  ///< keys
  std::int32_t blocks;   ///< that the context reaches into, all of them
  std::int32_t first;
  std::int32_t step;
  std::int32_t count;

  MONOREF_MEMBER std::int32_t id(std::int32_t i) const { return first + i * step; }
};

/// `world` and `rank`: blocks are dealt to the ranks in turn; 1 and 0: all are this rank's.
MONOREF_DEVICE RowBlocks blocks_of_row(std::int64_t context, std::int32_t world,
                                       std::int32_t rank) {
  const std::int64_t blocks = blocks_of_context(context);
  const auto all = static_cast<std::int32_t>(blocks <= kMaxBlocks ? blocks : kMaxBlocks + 1);
  if (MONOREF_FAULT(candidates_of_next_rank, "T19", "a rank brings its neighbour's blocks"))
    rank = (rank + 1) % world;
  std::int32_t considered = all;
  if (MONOREF_FAULT(select_first_4096_blocks, "S17", "blocks from 4096 on are not looked at") &&
      considered > 4096)
    considered = 4096;
  const std::int32_t count = considered > rank ? (considered - rank + world - 1) / world : 0;
  return {context, all, rank, world, count};
}

/// Sort keys are kept as unsigned numbers of the same order.
MONOREF_DEVICE std::uint32_t unsigned_key(std::int32_t key) {
  return static_cast<std::uint32_t>(key) ^ 0x80000000;
}

MONOREF_DEVICE std::int32_t sort_key(float key) {
  if (key != key && !MONOREF_FAULT(select_nan_first, "S12", "a NaN ranks first")) return INT32_MIN;
  if (key == 0.0F && !MONOREF_FAULT(select_negative_zero_lower, "S14", "-0 ranks below +0"))
    return 0;
  return rank_of(key);
}

/// Whether a block's key is fixed, and its score not to be read.
MONOREF_DEVICE bool is_pinned(const Rules& rules, const RowBlocks& row, std::int32_t id) {
  return id < rules.init || id >= row.blocks - rules.local;
}

MONOREF_DEVICE std::int32_t key_of_block(const Rules& rules, const RowBlocks& row,
                                         const float* scores, std::int32_t id) {
  if (row.blocks <= rules.topk &&
      !MONOREF_FAULT(select_short_row_by_key, "own", "short contexts are ranked by score"))
    return -id;
  const bool local = id >= row.blocks - rules.local;
  const bool init = id < rules.init;
  if (MONOREF_FAULT(select_pinned_score_read, "S06", "the score of a pinned block is read") &&
      local)
    return sort_key(scores[id]);
  if (MONOREF_FAULT(select_init_wins_over_local, "own",
                    "a block that is both counts as an init block") &&
      init)
    return sort_key(kInitKey);
  if (local) return sort_key(kLocalKey);
  if (init) return sort_key(kInitKey);
  return sort_key(scores[id]);
}

/// Fills keys[0 .. count) with the sort keys of the row's blocks. Four neighbouring scores,
/// none of them pinned, are loaded as one vector.
MONOREF_DEVICE void load_keys(const Rules& rules, const RowBlocks& row, const float* scores,
                              std::uint32_t* keys) {
  const bool scored = row.blocks > rules.topk && row.step == 1;
  for (std::int32_t i = 4 * static_cast<std::int32_t>(threadIdx.x); i < row.count;
       i += 4 * static_cast<std::int32_t>(blockDim.x)) {
    const std::int32_t id = row.id(i);
    if (scored && i + 4 <= row.count && !is_pinned(rules, row, id) &&
        !is_pinned(rules, row, id + 3) && aligned16(scores + id)) {
      simt::Vec16 vector = simt::load16(scores + id);
      for (std::uint32_t& word : vector.word)
        word = unsigned_key(sort_key(simt::bit_cast<float>(word)));
      simt::store16(keys + i, vector);
      continue;
    }
    for (std::int32_t j = i; j < row.count && j < i + 4; ++j)
      keys[j] = unsigned_key(key_of_block(rules, row, scores, row.id(j)));
  }
}

/// What the threads of a block share.
struct Workspace {
  std::uint32_t* keys;       ///< [kMaxBlocks]
  std::uint32_t* histogram;  ///< [kBins][kCopies]
  std::int32_t* found;       ///< [kFoundWords], of `find_bin`
  RankKey* winners;          ///< [kMaxTopk], in any order
  std::int32_t* winner_count;
  std::int32_t* ranked;  ///< [kMaxTopk]: ids, best first
  std::int32_t* slots;   ///< [kMaxTopk]: physical blocks in the order of the table
};

constexpr int kFoundDigit = 0, kFoundAbove = 1, kFoundInside = 2, kFoundWords = 3;

MONOREF_DEVICE std::int32_t count_of_bin(const std::uint32_t* histogram, std::int32_t bin) {
  std::uint32_t count = 0;
  for (int copy = 0; copy < kCopies; copy += 4) {
    const simt::Vec16 four = simt::load16(histogram + bin * kCopies + copy);
    for (int i = 0; i < 4; ++i) count += four.word[i];
  }
  return static_cast<std::int32_t>(count);
}

/// Finds the bin that holds the `wanted`th largest, how many lie in higher bins, and how many in
/// it. Called by one wave; its lanes take the bins from the highest down.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE void find_bin(const std::uint32_t* histogram,
                                                     std::int32_t wanted, std::int32_t* found) {
  constexpr int kBinsPerLane = kBins / simt::kWave;
  std::int32_t counts[kBinsPerLane];
  std::int32_t total = 0;
  const std::int32_t highest = kBins - 1 - simt::lane() * kBinsPerLane;
  for (int b = 0; b < kBinsPerLane; ++b) {
    counts[b] = count_of_bin(histogram, highest - b);
    total += counts[b];
  }
  std::int32_t above = total;
  for (int distance = 1; distance < simt::kWave; distance *= 2) {
    const std::int32_t before = simt::shuffle_up(above, distance);
    if (simt::lane() >= distance) above += before;
  }
  above -= total;
  for (int b = 0; b < kBinsPerLane; ++b) {
    if (above < wanted && wanted <= above + counts[b]) {
      found[kFoundDigit] = highest - b;
      found[kFoundAbove] = above;
      found[kFoundInside] = counts[b];
    }
    above += counts[b];
  }
}

MONOREF_DEVICE void count_digits(const Rules& rules, const RowBlocks& row, const Workspace& work,
                                 RankKey prefix, int shift) {
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < row.count;
       i += static_cast<std::int32_t>(blockDim.x)) {
    const RankKey rank_key = rules.rank_key_of(work.keys[i], row.id(i));
    if (rank_key >> shift >> kDigitBits != prefix) continue;
    const auto digit = static_cast<std::int32_t>(rank_key >> shift) & (kBins - 1);
    simt::atomic_add(work.histogram + digit * kCopies + simt::lane() % kCopies, 1U);
  }
}

/// A rank key that exactly `rules.topk` blocks of the row reach; it has more than that.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE RankKey smallest_winner(const Rules& rules,
                                                                const RowBlocks& row,
                                                                const Workspace& work) {
  RankKey prefix = 0;
  std::int32_t wanted = rules.topk;
  int shift = kDigits * kDigitBits;
  do {
    shift -= kDigitBits;
    for (int i = 4 * static_cast<int>(threadIdx.x); i < kCounters;
         i += 4 * static_cast<int>(blockDim.x))
      simt::store16(work.histogram + i, {});
    __syncthreads();
    count_digits(rules, row, work, prefix, shift);
    __syncthreads();
    if (simt::wave() == 0) find_bin(work.histogram, wanted, work.found);
    __syncthreads();
    prefix = prefix << kDigitBits | static_cast<std::uint32_t>(work.found[kFoundDigit]);
    wanted -= work.found[kFoundAbove];
  } while (work.found[kFoundInside] != wanted);
  return prefix << shift;
}

/// Collects the blocks of the row that reach `smallest`.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void collect_winners(const Rules& rules,
                                                             const RowBlocks& row, RankKey smallest,
                                                             const Workspace& work) {
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < row.count;
       i += static_cast<std::int32_t>(blockDim.x)) {
    const RankKey rank_key = rules.rank_key_of(work.keys[i], row.id(i));
    if (rank_key < smallest) continue;
    const std::int32_t at = simt::atomic_add(work.winner_count, 1);
    work.winners[at] = rank_key;
  }
}

/// How many of `rank_keys` come before `rank_key`.
MONOREF_DEVICE std::int32_t count_before(const RankKey* rank_keys, std::int32_t count,
                                         RankKey rank_key) {
  std::int32_t before = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    if (MONOREF_FAULT(select_equal_keys_collide, "S12", "equal keys take one place"))
      before += rank_keys[i] >> kIdBits > rank_key >> kIdBits ? 1 : 0;
    else
      before += rank_keys[i] > rank_key ? 1 : 0;
  }
  return before;
}

/// Selects of the row's blocks those that it keeps into work.winners, in any order, and returns how
/// many.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE std::int32_t select_winners(const Rules& rules,
                                                                    const RowBlocks& row,
                                                                    const float* scores,
                                                                    const Workspace& work) {
  load_keys(rules, row, scores, work.keys);
  if (threadIdx.x == 0) *work.winner_count = 0;
  __syncthreads();
  const RankKey smallest = row.count > rules.topk ? smallest_winner(rules, row, work) : 0;
  collect_winners(rules, row, smallest, work);
  __syncthreads();
  return row.count < rules.topk ? row.count : rules.topk;
}

/// Where a selection goes: row by row, and for each index head.
struct SelectionOutputs {
  std::int32_t* topk_idx;
  std::int64_t topk_row_stride;
  std::int64_t topk_head_stride;
  std::int32_t* page_table;
  std::int64_t page_row_stride;
  std::int64_t page_head_stride;
  std::int32_t* context_lens;
  std::int64_t context_row_stride;
  std::int64_t context_head_stride;
  std::int32_t page_stride;
};

/// Keys that the selected blocks give access to.
MONOREF_DEVICE std::int64_t selected_context(const RowBlocks& row, std::int32_t count,
                                             bool has_tail) {
  if (!has_tail) {
    const std::int64_t keys = std::int64_t{count} * kBlockTokens;
    return keys < row.context ? keys : row.context;
  }
  const std::int64_t full = std::int64_t{count - 1} * kBlockTokens;
  if (MONOREF_FAULT(select_tail_counted_full, "S03", "the last block counts as whole"))
    return full + kBlockTokens;
  return full + row.context - std::int64_t{row.blocks - 1} * kBlockTokens;
}

/// Puts the physical blocks of ranked[0 .. count) into work.slots: full ones in their order, the
/// last block of the row behind them. Returns whether it is among them.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE bool fill_slots(const RowBlocks& row, std::int32_t count,
                                                        const std::int32_t* table_row,
                                                        const Workspace& work) {
  std::int32_t tail_rank = count;
  for (std::int32_t i = 0; i < count; ++i)
    if (work.ranked[i] == row.blocks - 1) tail_rank = i;
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < count;
       i += static_cast<std::int32_t>(blockDim.x)) {
    std::int32_t slot = i == tail_rank ? count - 1 : i - (i > tail_rank ? 1 : 0);
    if (MONOREF_FAULT(select_tail_in_place, "own", "the last block stays where it was ranked"))
      slot = i;
    work.slots[slot] = table_row[work.ranked[i]];
  }
  return tail_rank < count;
}

/// Writes the pages of the slots, eight a slot in two vectors of four; page ids wrap as int32 does.
/// Two instantiations: in one body the compiler merges aligned and unaligned stores into narrow
/// ones. `wide`: the row starts on 16 bytes.
template <bool wide>
MONOREF_DEVICE void write_pages(const std::int32_t* slots, std::int32_t count, std::int32_t topk,
                                std::int32_t page_stride, std::int32_t* row) {
  if (MONOREF_FAULT(select_page_stride_8, "P05", "page stride 8 for packed sides"))
    page_stride = kPagesPerSide;
  const std::int32_t end =
      MONOREF_FAULT(select_stale_slots, "S06", "slots without a block are not written") ? count
                                                                                        : topk;
  for (std::int32_t vector = static_cast<std::int32_t>(threadIdx.x); vector < 2 * end;
       vector += static_cast<std::int32_t>(blockDim.x)) {
    const std::int32_t slot = vector / 2;
    simt::Vec16 pages{};
    if (slot < count ||
        MONOREF_FAULT(select_unused_slots_minus_one, "S12", "slots without a block hold -1")) {
      const std::int32_t block = slot < count ? slots[slot] : -1;
      const std::uint32_t first =
          static_cast<std::uint32_t>(block) * static_cast<std::uint32_t>(page_stride) +
          4 * static_cast<std::uint32_t>(vector % 2);
      pages = {{first, first + 1, first + 2, first + 3}};
    }
    std::int32_t* columns = row + std::int64_t{vector} * 4;
    if constexpr (wide) {
      simt::store16(columns, pages);
    } else {
      for (int i = 0; i < 4; ++i) columns[i] = static_cast<std::int32_t>(pages.word[i]);
    }
  }
}

/// Writes ids, pages and context of one row and head from ranked[0 .. count). After a barrier;
/// another must lie between this and the next use of the workspace.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void emit_selection(
    const SelectionOutputs& out, const Rules& rules, const RowBlocks& row, std::int32_t count,
    std::int64_t n, std::int64_t head, const std::int32_t* table_row, const Workspace& work) {
  const bool has_tail = fill_slots(row, count, table_row, work);
  if (out.topk_idx != nullptr) {
    std::int32_t* ids =
        in_global(out.topk_idx) + n * out.topk_row_stride + head * out.topk_head_stride;
    for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < rules.topk;
         i += static_cast<std::int32_t>(blockDim.x))
      ids[i] = i < count ? work.ranked[i] : -1;
  }
  __syncthreads();
  std::int32_t* pages =
      in_global(out.page_table) + n * out.page_row_stride + head * out.page_head_stride;
  if (aligned16(pages)) {
    write_pages<true>(work.slots, count, rules.topk, out.page_stride, pages);
  } else {
    write_pages<false>(work.slots, count, rules.topk, out.page_stride, pages);
  }
  if (threadIdx.x == 0)
    in_global(out.context_lens)[n * out.context_row_stride + head * out.context_head_stride] =
        static_cast<std::int32_t>(selected_context(row, count, has_tail));
}

/// Orders work.winners[0 .. count) into work.ranked.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void rank_winners(const Rules& rules, std::int32_t count,
                                                          const Workspace& work) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto threads = static_cast<std::int32_t>(blockDim.x);
  if (MONOREF_FAULT_AT(select_equal_keys_collide)) {
    for (std::int32_t i = thread; i < count; i += threads) work.ranked[i] = 0;
    __syncthreads();
  }
  for (std::int32_t i = thread; i < count; i += threads) {
    const RankKey rank_key = work.winners[i];
    work.ranked[count_before(work.winners, count, rank_key)] = rules.id_of(rank_key);
  }
  __syncthreads();
}

/// Orders the candidates of all ranks into work.ranked, and returns how many are kept.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE std::int32_t merge_candidates(
    const Rules& rules, const RowBlocks& row, const std::int64_t* from, std::int64_t rank_stride,
    std::int32_t world, const Workspace& work) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto threads = static_cast<std::int32_t>(blockDim.x);
  const std::int32_t brought = world * rules.topk;
  const std::int32_t last =
      MONOREF_FAULT(merge_last_rank_ignored, "T19", "the last rank's candidates are not merged")
          ? brought - rules.topk
          : brought;
  const std::int32_t count = row.blocks < rules.topk ? row.blocks : rules.topk;
  if (thread == 0) *work.winner_count = 0;
  for (std::int32_t i = thread; i < count; i += threads) work.ranked[i] = 0;
  __syncthreads();
  for (std::int32_t i = thread; i < last; i += threads) {
    const std::int64_t candidate = from[i / rules.topk * rank_stride + i % rules.topk];
    if (candidate == kNoCandidate) continue;
    work.winners[simt::atomic_add(work.winner_count, 1)] = static_cast<RankKey>(candidate);
  }
  __syncthreads();
  const std::int32_t present = *work.winner_count;
  for (std::int32_t i = thread; i < present; i += threads) {
    const std::int32_t before = count_before(work.winners, present, work.winners[i]);
    if (before < count) work.ranked[before] = rules.id_of(work.winners[i]);
  }
  __syncthreads();
  return count;
}

/// The arguments of a launch that emits selections.
struct Selecting {
  Rules rules;
  StepTables tables;
  SelectionOutputs out;
};

MONOREF_DEVICE bool legal_rules(const Rules& rules) {
  return rules.topk >= 1 && rules.topk <= kMaxTopk && rules.init >= 0 && rules.local >= 0;
}

/// The scores of one row and index head.
MONOREF_DEVICE const float* scores_of(const float* scores, std::int64_t row_stride,
                                      std::int64_t head_stride, std::int64_t row,
                                      std::int64_t head) {
  if (MONOREF_FAULT(select_scores_of_head_0, "S10", "every head selects by the scores of head 0"))
    head = 0;
  return scores + row * row_stride + head * head_stride;
}

/// The context of a row; by the fault, that of its request's last row.
MONOREF_DEVICE std::int64_t context_of_row(const StepTables& tables, std::int64_t row) {
  if (MONOREF_FAULT(select_context_of_last_row, "T11",
                    "every row is as long as its request's last row"))
    return tables.context_of(tables.last_row_of(tables.request_of(row)));
  return tables.context_of(row);
}

MONOREF_DEVICE const std::int32_t* table_of_row(const StepTables& tables, std::int64_t row) {
  return tables.blocks_of(
      MONOREF_FAULT(select_table_of_row_0, "T01", "pages of the first row's table") ? 0 : row);
}

}  // namespace

// Inputs   scores f32 [rows, heads, blocks], rows score_row_stride and heads score_head_stride
//          elements apart, innermost stride 1; read in the blocks of the row that are not pinned,
//          and not at all in rows of at most topk blocks
//          block_table int32 [.., width], rows table_row_stride elements apart; seq_lens int32
//          [..], seq_lens_stride elements apart, in keys, lengths below 1 count as 1
// Outputs  topk_idx int32 [rows, heads, topk]: selected ids, best first, then -1; null: not written
//          page_table int32 [rows, heads, 8 * topk]: page ids
//          context_lens int32 [rows, heads]: keys; each with its strides, in elements, innermost
//          stride 1
// Sizes    topk 1 .. 64; at most 8192 blocks a row; row n is query n mod q_len of request
//          n div q_len; page_stride page ids a block (8 dense sides, 16 interleaved)
// Options  tables_of 0: tables and lengths have a row for each of `rows`; 1: for each request, the
//                    length being that of its last row
//          tie       0: of equal keys the higher id comes first; 1: the lower
// Launch   any grid, x over rows, y over heads; any block of whole waves in one dimension, 64
//          threads for short contexts to 1024 for long ones. 41 KiB of static shared memory.
// Misuse   Rows of more than 8192 blocks or of more than the table is wide are left as they are, as
//          is everything if topk or q_len is out of range. Page ids wrap as int32 does.
MONOREF_KERNEL(1024, monoref_index_select)(
    const float* scores, std::int64_t score_row_stride, std::int64_t score_head_stride,
    const std::int32_t* block_table, std::int64_t table_row_stride, const std::int32_t* seq_lens,
    std::int64_t seq_lens_stride, std::int32_t* topk_idx, std::int64_t topk_row_stride,
    std::int64_t topk_head_stride, std::int32_t* page_table, std::int64_t page_row_stride,
    std::int64_t page_head_stride, std::int32_t* context_lens, std::int64_t context_row_stride,
    std::int64_t context_head_stride, std::int64_t rows, std::int32_t heads, std::int32_t width,
    std::int32_t q_len, std::int32_t topk, std::int32_t init_blocks, std::int32_t local_blocks,
    std::int32_t page_stride, std::int32_t tables_of, std::int32_t tie) {
  MONOREF_SHARED(std::uint32_t, keys, kMaxBlocks);
  MONOREF_SHARED(std::uint32_t, histogram, kCounters);
  MONOREF_SHARED(RankKey, winners, kMaxTopk);
  MONOREF_SHARED(std::int32_t, ranked, kMaxTopk);
  MONOREF_SHARED(std::int32_t, slots, kMaxTopk);
  MONOREF_SHARED(std::int32_t, found, kFoundWords);
  MONOREF_SHARED(std::int32_t, winner_count, 1);
  const Rules rules{topk, init_blocks, local_blocks, tie};
  if (!legal_rules(rules) || q_len < 1) return;
  const Workspace work{keys, histogram, found, winners, winner_count, ranked, slots};
  MONOREF_SHARED(Selecting, kept, 1);
  const Selecting given{
      rules,
      {block_table, table_row_stride, seq_lens, seq_lens_stride, width, q_len, tables_of},
      {topk_idx, topk_row_stride, topk_head_stride, page_table, page_row_stride, page_head_stride,
       context_lens, context_row_stride, context_head_stride, page_stride}};
  const Selecting& a = kept_in_shared(kept, given);
  const std::int64_t head_step = MONOREF_FAULT(select_grid_y_runs_once, "own",
                                               "the blocks of the grid take one head each and stop")
                                     ? heads
                                     : gridDim.y;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const RowBlocks blocks = blocks_of_row(context_of_row(a.tables, row), 1, 0);
    if (blocks.blocks > kMaxBlocks || blocks.blocks > a.tables.width) continue;
    if (MONOREF_FAULT(select_empty_row_unwritten, "S26", "a row without tokens is not written") &&
        a.tables.length_of(row) < 1)
      continue;
    for (std::int64_t head = blockIdx.y; head < heads; head += head_step) {
      const std::int32_t count = select_winners(
          a.rules, blocks, scores_of(scores, score_row_stride, score_head_stride, row, head), work);
      rank_winners(a.rules, count, work);
      emit_selection(a.out, a.rules, blocks, count, row, head, table_of_row(a.tables, row), work);
      __syncthreads();
    }
  }
}
MONOREF_REGISTER(monoref_index_select);

// Under context parallelism: the candidates of one rank, the best topk of its blocks
// rank, rank + world, ...
// Inputs   scores as for index_select, in columns of block ids; only this rank's are read
//          seq_lens as for index_select
// Outputs  candidates int64 [rows, heads, topk], candidate_row_stride and candidate_head_stride
//          elements apart, innermost stride 1: the sort key with its sign turned, times 2^16, plus
//          the id (by option `tie` 1: plus 0xFFFF - id), so that of two candidates the larger comes
//          first; best first, then -1
// Sizes    world >= 1, 0 <= rank < world; the rest, and Options and Launch, as for index_select
// Misuse   Rows of more than 8192 blocks are left as they are.
MONOREF_KERNEL(1024, monoref_index_candidates)(
    const float* scores, std::int64_t score_row_stride, std::int64_t score_head_stride,
    const std::int32_t* seq_lens, std::int64_t seq_lens_stride, std::int64_t* candidates,
    std::int64_t candidate_row_stride, std::int64_t candidate_head_stride, std::int64_t rows,
    std::int32_t heads, std::int32_t q_len, std::int32_t topk, std::int32_t init_blocks,
    std::int32_t local_blocks, std::int32_t world, std::int32_t rank, std::int32_t tables_of,
    std::int32_t tie) {
  MONOREF_SHARED(std::uint32_t, keys, kMaxBlocks);
  MONOREF_SHARED(std::uint32_t, histogram, kCounters);
  MONOREF_SHARED(RankKey, winners, kMaxTopk);
  MONOREF_SHARED(std::int32_t, found, kFoundWords);
  MONOREF_SHARED(std::int32_t, winner_count, 1);
  const Rules rules{topk, init_blocks, local_blocks, tie};
  if (!legal_rules(rules) || q_len < 1 || world < 1 || rank < 0 || rank >= world) return;
  const Workspace work{keys, histogram, found, winners, winner_count, nullptr, nullptr};
  const StepTables tables{nullptr, 0, seq_lens, seq_lens_stride, 0, q_len, tables_of};
  const std::int64_t head_step = MONOREF_FAULT_AT(select_grid_y_runs_once) ? heads : gridDim.y;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const RowBlocks blocks = blocks_of_row(context_of_row(tables, row), world, rank);
    if (blocks.blocks > kMaxBlocks) continue;
    for (std::int64_t head = blockIdx.y; head < heads; head += head_step) {
      const std::int32_t count = select_winners(
          rules, blocks, scores_of(scores, score_row_stride, score_head_stride, row, head), work);
      std::int64_t* to = candidates + row * candidate_row_stride + head * candidate_head_stride;
      for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < topk;
           i += static_cast<std::int32_t>(blockDim.x)) {
        if (i < count)
          to[count_before(winners, count, winners[i])] = static_cast<std::int64_t>(winners[i]);
        else
          to[i] = kNoCandidate;
      }
      __syncthreads();
    }
  }
}
MONOREF_REGISTER(monoref_index_candidates);

// The selection from the candidates of all ranks; equal to that of index_select over all blocks.
// Inputs   candidates int64 [world, rows, heads, topk], as index_candidates leaves them, ranks
//          candidate_rank_stride, rows candidate_row_stride and heads candidate_head_stride
//          elements apart
//          block_table, seq_lens as for index_select
// Outputs  as for index_select
// Sizes    world * topk at most 512; the rest, and Options, as for index_select
// Launch   any grid, x over rows, y over heads; any block of whole waves in one dimension, 64
//          threads for 4 ranks of 16.
// Misuse   as for index_select
MONOREF_KERNEL(1024, monoref_index_merge)(
    const std::int64_t* candidates, std::int64_t candidate_rank_stride,
    std::int64_t candidate_row_stride, std::int64_t candidate_head_stride,
    const std::int32_t* block_table, std::int64_t table_row_stride, const std::int32_t* seq_lens,
    std::int64_t seq_lens_stride, std::int32_t* topk_idx, std::int64_t topk_row_stride,
    std::int64_t topk_head_stride, std::int32_t* page_table, std::int64_t page_row_stride,
    std::int64_t page_head_stride, std::int32_t* context_lens, std::int64_t context_row_stride,
    std::int64_t context_head_stride, std::int64_t rows, std::int32_t heads, std::int32_t width,
    std::int32_t q_len, std::int32_t topk, std::int32_t world, std::int32_t page_stride,
    std::int32_t tables_of, std::int32_t tie) {
  MONOREF_SHARED(RankKey, rank_keys, kMaxCandidates);
  MONOREF_SHARED(std::int32_t, rank_key_count, 1);
  MONOREF_SHARED(std::int32_t, ranked, kMaxTopk);
  MONOREF_SHARED(std::int32_t, slots, kMaxTopk);
  const Rules rules{topk, 0, 0, tie};
  if (!legal_rules(rules) || q_len < 1 || world < 1 || world > kMaxCandidates / topk) return;
  const Workspace work{nullptr, nullptr, nullptr, rank_keys, rank_key_count, ranked, slots};
  MONOREF_SHARED(Selecting, kept, 1);
  const Selecting given{
      rules,
      {block_table, table_row_stride, seq_lens, seq_lens_stride, width, q_len, tables_of},
      {topk_idx, topk_row_stride, topk_head_stride, page_table, page_row_stride, page_head_stride,
       context_lens, context_row_stride, context_head_stride, page_stride}};
  const Selecting& a = kept_in_shared(kept, given);
  const std::int64_t head_step = MONOREF_FAULT_AT(select_grid_y_runs_once) ? heads : gridDim.y;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const RowBlocks blocks = blocks_of_row(a.tables.context_of(row), 1, 0);
    if (blocks.blocks > kMaxBlocks || blocks.blocks > a.tables.width) continue;
    if (MONOREF_FAULT_AT(select_empty_row_unwritten) && a.tables.length_of(row) < 1) continue;
    for (std::int64_t head = blockIdx.y; head < heads; head += head_step) {
      const std::int64_t* from =
          candidates + row * candidate_row_stride + head * candidate_head_stride;
      const std::int32_t count =
          merge_candidates(a.rules, blocks, from, candidate_rank_stride, world, work);
      emit_selection(a.out, a.rules, blocks, count, row, head, table_of_row(a.tables, row), work);
      __syncthreads();
    }
  }
}
MONOREF_REGISTER(monoref_index_merge);

}  // namespace monoref::kernels
