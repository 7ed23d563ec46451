// fp8_attention_partition: attention over 256 keys of the sparse table, for the query heads of one
// K/V head.
//
// Source of the rule: mono-decode section 6 and section 10 (start of sums, order of k, NaN),
// upstream-semantics section 3.4 (page-16 layout) and 6.1 (V not zeroed).
//
//   s      (sm_scale * k_scale) * dot(e4m3(q), k): one fma chain from 0 over natural k; -3.4e38 for
//          keys at or behind the context
//   m      the largest s of the partition's 256 keys, masked ones included (NaN: one of them is;
//          +0 is larger than -0)
//   p      exp2((s - m) * log2 e)
//   l      a wave has 32 keys; its lane i < 16 adds p of keys i and 16 + i; butterfly 8, 4, 2, 1;
//          waves in order, from the first wave's sum
//   p8     e4m3(p * largest), 0 for masked keys; `largest` is 448
//   acc    a wave's fma chain from 0 over its 32 keys; waves in order, from the first wave's sum
//   o      ((v_scale * (1 / largest)) * acc) * (1 / (l > 0 ? l : 1)), as BF16
//
// Work. A block of 256 threads has one partition. First a thread has two keys, 128 apart, and a
// chain for each of them and half of the heads: K is loaded 16 bytes a lane, neighbouring
// lanes taking neighbouring keys, and each value of q read from shared memory serves two keys. Then
// 16 threads share a head, 16 keys each, and turn scores into weights in place. Last a thread has a
// dim and half of the heads: a page of V holds 16 keys of a dim in 16 bytes, neighbouring lanes
// neighbouring dims. Loads run ahead of their use, those of the first V even of the weights. The
// specification's wave w is keys 32w .. 32w+31, whatever the wave of the chip.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/e4m3_words.hpp"
#include "device/kernels/float_order.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/page_layout.hpp"
#include "device/kernels/registers.hpp"
#include "device/kernels/vector_access.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr int kKeys = 256;  ///< of a partition: two selection slots
constexpr int kThreads = kKeys;
constexpr int kMaxHeads = 16;  ///< of a K/V head
constexpr int kMaxDim = 128;
constexpr int kPages = kKeys / kPageTokens;
constexpr int kWaveKeys = 32;
constexpr int kWaves = kKeys / kWaveKeys;
constexpr int kWavePages = kWaveKeys / kPageTokens;
constexpr int kHeadThreads = kThreads / kMaxHeads;
constexpr int kKeysApart = kKeys / 2;           ///< of the two that a thread has
constexpr int kHalves = kThreads / kKeysApart;  ///< of the heads
static_assert(kThreads / kMaxDim == kHalves);
/// Distance of two heads' scores. 16 numbers of padding put the two heads that 32 neighbouring
/// threads read at once into different banks.
constexpr int kHeadKeys = kKeys + 16;
constexpr int kScores = kMaxHeads * kHeadKeys;
constexpr int kQueryNumbers = kMaxHeads * kMaxDim;

constexpr float kMasked = -3.4e38F;

/// Values of `masked_values`: what becomes of V bytes at or behind the context.
constexpr std::int32_t kValuesZeroed = 0;

/// The arguments of a launch.
struct Attention {
  const std::uint16_t* q;
  std::int64_t q_row_stride;
  std::int64_t q_head_stride;
  const std::uint8_t* k_cache;
  const std::uint8_t* v_cache;
  std::int64_t pages;
  PageShape shape;
  const std::int32_t* page_table;
  std::int64_t table_row_stride;
  std::int64_t table_head_stride;
  const std::int32_t* context_lens;
  std::int64_t context_row_stride;
  std::int64_t context_head_stride;
  const float* k_scale;
  const float* v_scale;
  std::int64_t scale_stride;
  std::uint16_t* o;
  float* m;
  float* l;
  std::int32_t group;  ///< query heads of a K/V head
  std::int32_t partitions;
  float sm_scale;
  float largest;
  bool zeroes_values;
  E4m3 format;

  MONOREF_MEMBER std::int64_t heads() const { return std::int64_t{group} * shape.heads; }
};

/// One partition of one row and K/V head.
struct Partition {
  std::int64_t row;
  std::int32_t number;
  std::int32_t kv_head;
  std::int32_t keys;  ///< below the context, 0 .. 256

  /// Where the partition's first query head stands in m and l; times head_dim, in o.
  MONOREF_MEMBER std::int64_t output(const Attention& a) const {
    return (row * a.partitions + number) * a.heads() + std::int64_t{kv_head} * a.group;
  }
};

/// What the threads of a block share.
struct Workspace {
  float* q;             ///< [kMaxHeads][kMaxDim]: e4m3(q), carried
  float* scores;        ///< [kMaxHeads][kHeadKeys]: s, then e4m3(p * largest), carried
  float* normaliser;    ///< [kMaxHeads]: 1 / (l > 0 ? l : 1)
  std::int64_t* pages;  ///< [kPages]
};

MONOREF_DEVICE float scale_of(const float* scales, std::int64_t stride, std::int32_t kv_head) {
  if (scales == nullptr) return 1.0F;
  return in_global(scales)[(MONOREF_FAULT(attention_scale_of_head_0, "P18",
                                          "every K/V head has the scales of head 0")
                                ? 0
                                : kv_head) *
                           stride];
}

/// Keys of the partition that the row sees.
MONOREF_DEVICE std::int32_t keys_of_partition(const Attention& a, std::int64_t row,
                                              std::int32_t number, std::int32_t kv_head) {
  std::int64_t context =
      in_global(a.context_lens)[row * a.context_row_stride + kv_head * a.context_head_stride];
  if (MONOREF_FAULT(attention_future_key_admitted, "S06", "the key behind the context takes part"))
    context += 1;
  if (MONOREF_FAULT(attention_tail_as_full, "S06", "the last block counts as whole"))
    context = (context + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
  const std::int64_t keys = context - std::int64_t{number} * kKeys;
  return static_cast<std::int32_t>(keys < 0 ? 0 : keys < kKeys ? keys : kKeys);
}

/// Stages q, rounded to its codes, and the page ids in shared memory. Pages that begin at or behind
/// the context are page 0, as are those that the cache does not have.
MONOREF_DEVICE void stage_partition(const Attention& a, const Partition& at,
                                    const Workspace& work) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t dims = a.shape.head_dim;
  for (std::int32_t i = 8 * thread; i < a.group * dims; i += 8 * kThreads) {
    const std::int32_t head = i / dims, d = i % dims;
    const std::uint16_t* from = in_global(a.q) + at.row * a.q_row_stride +
                                (std::int64_t{at.kv_head} * a.group + head) * a.q_head_stride;
    float values[8];
    load_eight({from, 1}, d, values);
    for (float& value : values) value = carried_value(e4m3_of(value, a.format), a.format);
    float* to = work.q + head * kMaxDim + d;
    store_staged(to, {{values[0], values[1], values[2], values[3]}});
    store_staged(to + 4, {{values[4], values[5], values[6], values[7]}});
  }
  if (thread >= kPages) return;
  const std::int32_t table_head = MONOREF_FAULT(attention_selection_of_head_0, "S10",
                                                "every K/V head has the selection of head 0")
                                      ? 0
                                      : at.kv_head;
  std::int64_t page = 0;
  if (thread * kPageTokens < at.keys)
    page = in_global(a.page_table)[at.row * a.table_row_stride + table_head * a.table_head_stride +
                                   at.number * kPages + thread];
  if (MONOREF_FAULT(attention_page_16_bits, "O01", "page id cut to 16 bits")) page &= 0xFFFF;
  work.pages[thread] = page >= 0 && page < a.pages ? page : 0;
}

/// One 16-byte vector of K: 16 dims of a key.
MONOREF_DEVICE simt::Vec16 load_key(const Attention& a, const Partition& at, const Workspace& work,
                                    std::int32_t key, std::int32_t dim) {
  const PagePosition position{work.pages[key / kPageTokens], key % kPageTokens};
  return simt::load16(in_global(a.k_cache) + k_element(a.shape, position, at.kv_head, dim));
}

/// Continues the dots of `keys` keys with `heads` heads by a 16-byte vector of each. `q` is where
/// its dims begin in the first head.
template <int keys, int heads>
MONOREF_DEVICE void dot_vectors(const simt::Vec16 (&vectors)[keys], const float* q,
                                float (&dots)[2][heads]) {
  MONOREF_UNROLL
  for (int i = 0; i < 4; ++i) {
    Four k[keys];
    for (int n = 0; n < keys; ++n) k[n] = field_values(vectors[n].word[i]);
    for (int h = 0; h < heads; ++h) {
      const Four x = load_staged(q + h * kMaxDim + 4 * i);
      for (int n = 0; n < keys; ++n) {
        for (int j = 0; j < 4; ++j) dots[n][h] = simt::fma(x.value[j], k[n].value[j], dots[n][h]);
        compute_here(dots[n][h]);
      }
    }
  }
}

/// The dots of `keys` keys, kKeysApart apart, with `heads` heads. `q` is the first head's, `first`
/// the first key.
template <int keys, int heads>
MONOREF_DEVICE void dot_keys(const Attention& a, const Partition& at, const Workspace& work,
                             const float* q, std::int32_t first, float (&dots)[2][heads]) {
  E4m3 format = a.format;
  if (MONOREF_FAULT(attention_k_fnuz_as_fn, "F01", "FNUZ keys are read as FN"))
    format = e4m3_format(kEncodingFn, kOverflowNan);
  const std::int32_t dims = a.shape.head_dim;
  std::uint32_t marks[keys] = {};
  simt::Vec16 ahead[keys];
  for (int n = 0; n < keys; ++n) ahead[n] = load_key(a, at, work, first + n * kKeysApart, 0);
  MONOREF_KEEP_LOOP
  for (std::int32_t d = 0; d < dims; d += kVectorBytes) {
    simt::Vec16 vectors[keys];
    const std::int32_t next = d + kVectorBytes < dims ? d + kVectorBytes : d;
    for (int n = 0; n < keys; ++n) {
      vectors[n] = ahead[n];
      marks[n] |= nan_marks(vectors[n], format);
      ahead[n] = load_key(a, at, work, first + n * kKeysApart, next);
    }
    dot_vectors(vectors, q + d, dots);
  }
  for (int n = 0; n < keys; ++n)
    for (float& dot : dots[n]) dot = unless_nan(marks[n], dot);
}

/// Scores of this thread's keys with its `heads` heads. Keys at or behind the context need no dot;
/// those of the second half of the partition are left out where none is below it.
template <int heads>
MONOREF_DEVICE void score_keys(const Attention& a, const Partition& at, const Workspace& work) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t key = thread % kKeysApart, first_head = thread / kKeysApart * heads;
  const float k_scale =
      MONOREF_FAULT(attention_k_scale_dropped, "F10", "the scale of K is not applied")
          ? 1.0F
          : scale_of(a.k_scale, a.scale_stride, at.kv_head);
  const float scale = a.sm_scale * k_scale;
  const std::int32_t below =
      MONOREF_FAULT(attention_mask_after_maximum, "F07", "masked keys take part in the maximum")
          ? kKeys
          : at.keys;
  const float* q = work.q + first_head * kMaxDim;
  float dots[2][heads] = {};
  if (below > kKeysApart)
    dot_keys<2>(a, at, work, q, key, dots);
  else if (key < below)
    dot_keys<1>(a, at, work, q, key, dots);
  for (int n = 0; n < 2; ++n) {
    const bool valid = key + n * kKeysApart < below;
    float* to = work.scores + first_head * kHeadKeys + key + n * kKeysApart;
    for (int h = 0; h < heads; ++h)
      to[h * kHeadKeys] = valid ? scale * true_sum(dots[n][h], a.format) : kMasked;
  }
}

/// Turns the scores of a head into weights. Sixteen threads share a head, number `lane` of them has
/// keys lane, lane + 16, ...
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void weigh_keys(const Attention& a, const Partition& at,
                                                        const Workspace& work) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t head = thread / kHeadThreads, lane = thread % kHeadThreads;
  const bool exists = head < a.group;
  float* scores = work.scores + head * kHeadKeys + lane;
  std::int32_t rank = kLowestRank;
  for (int i = 0; i < kKeys && exists; i += kHeadThreads)
    rank = larger_rank(rank, rank_of(scores[i]));
  const float m = float_of_rank(largest_rank_of_lanes<kHeadThreads>(rank));
  float used = m;
  if (MONOREF_FAULT(attention_maximum_of_neighbour_head, "S10",
                    "the maximum is that of the next head"))
    used = simt::shuffle_xor(m, kHeadThreads);
  const float masked = exp2_portable((kMasked - used) * kLog2E);
  const bool unscaled =
      MONOREF_FAULT(attention_p_unscaled, "F07", "probabilities are rounded unscaled");
  const float largest = unscaled ? 1.0F : a.largest;
  float sums[kWaves];
  MONOREF_UNROLL
  for (int w = 0; w < kWaves; ++w) {
    sums[w] = 0.0F;
    for (int i = w * kWaveKeys; i < (w + 1) * kWaveKeys && exists; i += kHeadThreads) {
      const bool valid = i + lane < at.keys;
      const float p = valid ? exp2_portable((scores[i] - used) * kLog2E) : masked;
      const std::uint32_t code = valid ? e4m3_of(p * largest, a.format) : 0;
      scores[i] = carried_value(code, a.format);
      sums[w] += MONOREF_FAULT(attention_l_of_rounded_p, "F07", "l sums the rounded probabilities")
                     ? float_of_e4m3(code, a.format) / largest
                     : p;
    }
  }
  float l = 0.0F;
  MONOREF_UNROLL
  for (int w = 0; w < kWaves; ++w) {
    for (int mask = kHeadThreads / 2; mask > 0; mask /= 2)
      sums[w] += simt::shuffle_xor(sums[w], mask);
    if (MONOREF_FAULT(attention_l_of_masked_waves_skipped, "own",
                      "waves of masked keys are left out of l") &&
        w * kWaveKeys >= at.keys)
      sums[w] = 0.0F;
    l = w == 0 ? sums[0] : l + sums[w];
  }
  if (!exists || lane != 0) return;
  work.normaliser[head] = rcp(l > 0.0F ? l : 1.0F);
  in_global(a.m)[at.output(a) + head] = canonical(m);
  in_global(a.l)[at.output(a) + head] = canonical(l);
}

/// A 16-byte vector of V with the bytes of keys at or behind the context zeroed. `keys`: those of
/// its page that are below it.
MONOREF_DEVICE simt::Vec16 zero_behind(simt::Vec16 vector, std::int32_t keys) {
  for (int i = 0; i < 4; ++i) {
    const std::int32_t kept = keys - 4 * i;
    if (kept < 4) vector.word[i] &= kept <= 0 ? 0 : (1U << 8 * kept) - 1;
  }
  return vector;
}

/// One dim of a page of V.
MONOREF_DEVICE simt::Vec16 load_page(const Attention& a, const Partition& at, const Workspace& work,
                                     std::int32_t page, std::int32_t dim) {
  const PagePosition position{work.pages[page], 0};
  const std::uint8_t* cache = in_global(a.v_cache);
  simt::Vec16 vector = simt::load16(cache + v_element(a.shape, position, at.kv_head, dim));
  if (MONOREF_FAULT(attention_v_in_k_layout, "P16", "V is read in the order of K")) {
    vector = {};
    for (std::int32_t key = 0; key < kPageTokens; ++key)
      vector.word[key / 4] |=
          std::uint32_t{cache[k_element(a.shape, {position.page, key}, at.kv_head, dim)]}
          << key % 4 * 8;
  }
  if (!a.zeroes_values ||
      MONOREF_FAULT(attention_v_not_zeroed, "F09", "V of masked keys counts as what memory holds"))
    return vector;
  return zero_behind(vector, at.keys - page * kPageTokens);
}

/// One dim of a wave's keys.
struct WaveValues {
  simt::Vec16 page[kWavePages];
};

/// Loads this thread's dim of a wave's keys; below a head_dim of 128 surplus threads load
/// the last dim as well.
MONOREF_DEVICE WaveValues load_wave(const Attention& a, const Partition& at, const Workspace& work,
                                    std::int32_t wave) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t dim = thread % kMaxDim, last = a.shape.head_dim - 1;
  WaveValues values;
  MONOREF_UNROLL
  for (int i = 0; i < kWavePages; ++i)
    values.page[i] = load_page(a, at, work, wave * kWavePages + i, dim < last ? dim : last);
  return values;
}

/// Waves whose values are summed. Those without a key below the context would add products of
/// zeros, which change nothing; so they are left out, unless V is not zeroed and may hold NaN.
MONOREF_DEVICE std::int32_t waves_of_partition(const Attention& a, const Partition& at) {
  if (!a.zeroes_values || MONOREF_FAULT_AT(attention_v_not_zeroed)) return kWaves;
  return (at.keys + kWaveKeys - 1) / kWaveKeys;
}

/// The wave that comes after `step` others in the order of the sum.
MONOREF_DEVICE std::int32_t wave_of_step(std::int32_t step, std::int32_t waves) {
  return MONOREF_FAULT(attention_waves_reversed, "D01", "waves are added from the last") &&
                 waves > 0
             ? waves - 1 - step
             : step;
}

/// Continues the chains of a dim with `heads` heads by the keys of one page. `weights` is where the
/// page begins in the first of them.
template <int heads>
MONOREF_DEVICE void weigh_page(const simt::Vec16& vector, const float* weights,
                               float (&sums)[heads]) {
  MONOREF_UNROLL
  for (int i = 0; i < 4; ++i) {
    const Four v = field_values(vector.word[i]);
    for (int h = 0; h < heads; ++h) {
      const Four p = load_staged(weights + h * kHeadKeys + 4 * i);
      for (int j = 0; j < 4; ++j) sums[h] = simt::fma(p.value[j], v.value[j], sums[h]);
      compute_here(sums[h]);
    }
  }
}

/// Sums the values of this thread's dim with heads first_head .. first_head + heads - 1. `ahead`
/// has the first wave's V, which was loaded ahead.
template <int heads>
MONOREF_DEVICE void sum_values(const Attention& a, const Partition& at, const Workspace& work,
                               WaveValues ahead, std::int32_t first_head, float (&totals)[heads]) {
  const std::int32_t waves = waves_of_partition(a, at);
  std::uint32_t marks = 0;
  MONOREF_KEEP_LOOP
  for (std::int32_t step = 0; step < waves; ++step) {
    const WaveValues values = ahead;
    ahead = load_wave(a, at, work, wave_of_step(step + 1 < waves ? step + 1 : step, waves));
    const float* weights =
        work.scores + first_head * kHeadKeys + wave_of_step(step, waves) * kWaveKeys;
    float sums[heads] = {};
    MONOREF_UNROLL
    for (int i = 0; i < kWavePages; ++i) {
      marks |= nan_marks(values.page[i], a.format);
      weigh_page(values.page[i], weights + i * kPageTokens, sums);
    }
    for (int h = 0; h < heads; ++h) totals[h] = step == 0 ? sums[h] : totals[h] + sums[h];
  }
  for (float& total : totals) total = unless_nan(marks, total);
}

MONOREF_DEVICE float output_scale(const Attention& a, std::int32_t kv_head) {
  float v_scale = scale_of(a.v_scale, a.scale_stride, kv_head);
  if (MONOREF_FAULT(attention_v_scale_dropped, "F10", "the scale of V is not applied"))
    v_scale = 1.0F;
  if (MONOREF_FAULT(attention_v_scale_twice, "F10", "the scale of V is applied twice"))
    v_scale *= v_scale;
  return v_scale * (1.0F / (MONOREF_FAULT_AT(attention_p_unscaled) ? 1.0F : a.largest));
}

/// The outputs of this thread's dim and `heads` heads.
template <int heads>
MONOREF_DEVICE void make_outputs(const Attention& a, const Partition& at, const Workspace& work,
                                 const WaveValues& first_wave) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t dim = thread % kMaxDim, first_head = thread / kMaxDim * heads;
  if (dim >= a.shape.head_dim || first_head >= a.group) return;
  float totals[heads] = {};
  sum_values(a, at, work, first_wave, first_head, totals);
  const float scale = output_scale(a, at.kv_head);
  std::uint16_t* to = in_global(a.o) + at.output(a) * a.shape.head_dim + dim;
  for (int h = 0; h < heads; ++h) {
    const std::int32_t head = first_head + h;
    const float value = (scale * true_sum(totals[h], a.format)) * work.normaliser[head];
    if (head < a.group) to[std::int64_t{head} * a.shape.head_dim] = bf16_of(value);
  }
}

/// One whole partition, for at most `heads` heads.
template <int heads>
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void attend(const Attention& a, const Partition& at,
                                                    const Workspace& work) {
  stage_partition(a, at, work);
  __syncthreads();
  score_keys<heads / kHalves>(a, at, work);
  const WaveValues first_wave = load_wave(a, at, work, wave_of_step(0, waves_of_partition(a, at)));
  __syncthreads();
  weigh_keys(a, at, work);
  __syncthreads();
  make_outputs<heads / kHalves>(a, at, work, first_wave);
  __syncthreads();  // the next partition overwrites what this one had in shared memory
}

/// All partitions of this block.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void attend_all(const Attention& a, std::int64_t rows,
                                                        const Workspace& work) {
  const std::int64_t row_step = MONOREF_FAULT(attention_grid_y_runs_once, "own",
                                              "the blocks of the grid take one row each and stop")
                                    ? rows
                                    : gridDim.y;
  for (std::int64_t row = blockIdx.y; row < rows; row += row_step) {
    for (auto head = static_cast<std::int32_t>(blockIdx.z); head < a.shape.heads;
         head += static_cast<std::int32_t>(gridDim.z)) {
      for (auto number = static_cast<std::int32_t>(blockIdx.x); number < a.partitions;
           number += static_cast<std::int32_t>(gridDim.x)) {
        const Partition at{row, number, head, keys_of_partition(a, row, number, head)};
        if (MONOREF_FAULT(attention_empty_partition_unwritten, "S26",
                          "a partition without keys is not written") &&
            at.keys == 0)
          continue;
        if (a.group <= 4)
          attend<4>(a, at, work);
        else
          attend<kMaxHeads>(a, at, work);
      }
    }
  }
}

MONOREF_DEVICE bool is_legal(const Attention& a) {
  const std::int32_t dim = a.shape.head_dim;
  return blockDim.x == kThreads && dim >= kVectorBytes && dim <= kMaxDim &&
         dim % kVectorBytes == 0 && a.group >= 1 && a.group <= kMaxHeads &&
         (a.shape.sides == 1 || a.shape.sides == 2) && a.pages >= 1;
}

}  // namespace

// Inputs   q bf16 [rows, kv_heads * group, head_dim], rows q_row_stride and heads q_head_stride
//          elements apart, innermost stride 1; unit scale
//          k_cache, v_cache codes in the page-16 layout, at multiples of 16: with dense sides two
//          planes of `pages` pages, with interleaved sides the same buffer twice (V finds its view,
//          8 pages behind, by itself), `pages` being those that a K id may name and have V
//          page_table int32 [rows, kv_heads, 16 * partitions], context_lens int32 [rows, kv_heads],
//          with their strides in elements; head strides of 0: one selection for all K/V heads. Page
//          ids at or behind the context are not read.
//          k_scale, v_scale f32 [kv_heads], scale_stride elements apart; 0: one for all; null: 1
// Outputs  o bf16 [rows, partitions, kv_heads * group, head_dim], m and l f32
//          [rows, partitions, kv_heads * group], dense; written for every partition, a partition
//          without keys having o 0, m -3.4e38 and l 256
// Sizes    group 1 .. 16 query heads of a K/V head; head_dim a multiple of 16, 16 .. 128;
//          contexts from 0; sides 1 (dense) or 2 (interleaved); `largest` 448 (or 240, 224): what p
//          is multiplied by before it is rounded
// Options  masked_values 0: V bytes at or behind the context count as 0; 1: as what they are, of
//                        page 0 where a whole page is behind it
//          encoding      0: E4M3FN; 1: E4M3FNUZ; of q, K, V and p
//          overflow      0: NaN; 1: saturate; of q and p
// Launch   Blocks of exactly 256 threads. Any grid; x goes over partitions, y over rows, z over K/V
//          heads. 26 KiB of static shared memory.
// Misuse   Other sizes and blocks write nothing. A page id that the cache does not have reads page
//          0. Offsets are 64-bit throughout.
MONOREF_KERNEL(256, monoref_fp8_attention_partition)(
    const std::uint16_t* q, std::int64_t q_row_stride, std::int64_t q_head_stride,
    const std::uint8_t* k_cache, const std::uint8_t* v_cache, std::int64_t pages,
    const std::int32_t* page_table, std::int64_t table_row_stride, std::int64_t table_head_stride,
    const std::int32_t* context_lens, std::int64_t context_row_stride,
    std::int64_t context_head_stride, const float* k_scale, const float* v_scale,
    std::int64_t scale_stride, std::uint16_t* o, float* m, float* l, std::int64_t rows,
    std::int32_t kv_heads, std::int32_t group, std::int32_t head_dim, std::int32_t partitions,
    std::int32_t sides, float sm_scale, float largest, std::int32_t masked_values,
    std::int32_t encoding, std::int32_t overflow) {
  MONOREF_SHARED(float, shared_q, kQueryNumbers);
  MONOREF_SHARED(float, scores, kScores);
  MONOREF_SHARED(float, normaliser, kMaxHeads);
  MONOREF_SHARED(std::int64_t, shared_pages, kPages);
  MONOREF_SHARED(Attention, kept, 1);
  Attention a{q,
              q_row_stride,
              q_head_stride,
              k_cache,
              v_cache,
              pages,
              {kv_heads, head_dim, 1, sides},
              page_table,
              table_row_stride,
              table_head_stride,
              context_lens,
              context_row_stride,
              context_head_stride,
              k_scale,
              v_scale,
              scale_stride,
              o,
              m,
              l,
              group,
              partitions,
              sm_scale,
              largest,
              masked_values == kValuesZeroed,
              e4m3_format(encoding, overflow)};
  if (!is_legal(a)) return;
  a.v_cache += a.shape.v_view_start();
  const Workspace work{shared_q, scores, normaliser, shared_pages};
  attend_all(kept_in_shared(kept, a), rows, work);
}
MONOREF_REGISTER(monoref_fp8_attention_partition);

}  // namespace monoref::kernels
