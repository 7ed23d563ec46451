// Where the experts' weights lie: a stack of matrices in the layouts of shuffle_weight(16, 16) and
// shuffle_scale, with the shared expert in a matrix of its own or as the stack's last (mono-decode
// sections 7 and 9, upstream-semantics section 7.6).
#pragma once

#include <cstdint>

#include "device/kernels/mx_words.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

constexpr int kStep = 128;       ///< k of a matrix-core step, a multiple of which all widths are
constexpr int kTileRows = 16;    ///< rows whose codes of 16 bytes follow each other
constexpr int kTileTokens = 16;  ///< that a block multiplies with the weights it has read

/// Values of a kernel's `weights` parameter.
constexpr std::int32_t kWeightsMxfp8 = 0;
constexpr std::int32_t kWeightsMxfp4 = 1;

/// One expert's matrix [rows, k].
struct ExpertMatrix {
  const std::uint8_t* codes;   ///< null: there is no such expert
  const std::uint8_t* scales;  ///< of the whole stack that it belongs to
  std::int64_t first_row;      ///< its first row among those of the stack
  bool fp4;
};

/// The experts of a launch.
struct ExpertStack {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  const std::uint8_t* shared_codes;  ///< null: the shared expert is in the stack, or there is none
  const std::uint8_t* shared_scales;
  std::int32_t experts;   ///< of the stack
  std::int32_t n_routed;  ///< the shared expert's id
  std::int32_t rows;      ///< of one expert
  std::int32_t k;
  std::int32_t weights;
  std::int32_t e8m0_zero;

  MONOREF_MEMBER bool has_shared() const { return shared_codes != nullptr || experts > n_routed; }

  /// True if an id names an expert; any id may be asked for.
  MONOREF_MEMBER bool names_expert(std::int32_t id) const {
    return id >= 0 && (id < n_routed || (id == n_routed && has_shared()));
  }

  /// Columns of the scales, padding included.
  MONOREF_MEMBER std::int32_t scale_columns() const {
    const std::int32_t blocks = k / kMxBlock;
    if (MONOREF_FAULT(mx_scale_padding_forgotten)) return blocks;
    return (blocks + 7) / 8 * 8;
  }

  /// The matrix of an id that names an expert.
  MONOREF_MEMBER ExpertMatrix matrix(std::int32_t id) const {
    if (id == n_routed && shared_codes != nullptr) return {shared_codes, shared_scales, 0, false};
    const bool fp4 = weights == kWeightsMxfp4;
    const std::int64_t bytes = std::int64_t{rows} * k / (fp4 ? 2 : 1);
    return {codes + id * bytes, scales, std::int64_t{id} * rows, fp4};
  }

  /// True for sizes and options that the kernels serve.
  MONOREF_MEMBER bool is_valid() const {
    return k >= kStep && k % kStep == 0 && rows >= 1 && rows % 32 == 0 && n_routed >= 1 &&
           (experts == n_routed || (experts == n_routed + 1 && shared_codes == nullptr)) &&
           (weights == kWeightsMxfp8 || weights == kWeightsMxfp4);
  }
};

/// Where a row of a matrix lies: 16 bytes of its codes, then 16 * kTileRows further on the next 16
/// of it; and the first of its scales.
struct MatrixRow {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  std::int32_t blocks;  ///< of the row, without the padding
  std::int32_t scale_columns;

  MONOREF_MEMBER static MatrixRow of(const ExpertStack& stack, const ExpertMatrix& matrix,
                                     std::int32_t row) {
    const std::int32_t row_bytes = matrix.fp4 ? stack.k / 2 : stack.k;
    std::int64_t at = std::int64_t{row / kTileRows} * kTileRows * row_bytes + row % kTileRows * 16;
    if (MONOREF_FAULT(mx_weights_not_shuffled)) at = std::int64_t{row} * row_bytes;
    const std::int32_t columns = stack.scale_columns();
    return {matrix.codes + at, matrix.scales + shuffled_scale_row(matrix.first_row + row, columns),
            stack.k / kMxBlock, columns};
  }

  /// The codes from byte `byte` of the row on, a multiple of 16, and `i` runs further.
  MONOREF_MEMBER const std::uint8_t* run(std::int32_t byte, int i) const {
    if (MONOREF_FAULT(mx_weights_not_shuffled)) return codes + byte + 16 * i;
    return codes + std::int64_t{byte} * kTileRows + i * 16 * kTileRows;
  }

  MONOREF_MEMBER std::uint32_t scale(std::int32_t block) const {
    if (MONOREF_FAULT(mx_pad_column_read) && block == blocks - 1 && blocks < scale_columns)
      block += 1;
    return scales[shuffled_scale_column(block)];
  }
};

/// Continues the chains of one row with the first `tokens` tokens by a word of its operands; the
/// tokens' own begin at `x` in shared memory, `token_stride` apart.
template <bool fp4, int tokens, int size>
MONOREF_DEVICE void add_word(const float (&w)[kWordCodes<fp4>], const float* x, int token_stride,
                             float (&sums)[size]) {
  MONOREF_UNROLL
  for (int token = 0; token < tokens; ++token) {
    MONOREF_UNROLL
    for (int i = 0; i < kWordCodes<fp4>; i += 4) {
      const Four values = load_staged(x + token * token_stride + i);
      MONOREF_UNROLL
      for (int j = 0; j < 4; ++j) sums[token] = simt::fma(values.value[j], w[i + j], sums[token]);
    }
    compute_here(sums[token]);
  }
}

/// Runs of 16 bytes that a thread has on their way at a time, and what columns they hold.
constexpr int kLoadRuns = 4;
template <bool fp4>
constexpr int kLoadCodes = kLoadRuns * kRunCodes<fp4>;

/// Threads of the largest block, each of which keeps its runs in shared memory.
constexpr int kMaxThreads = 256;

/// Neighbouring columns of a thread's row on their way from memory: kLoadCodes of them.
struct RowCodes {
  simt::Vec16 run[kLoadRuns];
  std::uint32_t scale[kLoadRuns];  ///< of each block; half as many blocks of E4M3FN

  /// The columns of a row from `first` on, a multiple of their number.
  template <bool fp4>
  MONOREF_MEMBER void load(const MatrixRow& row, std::int32_t first) {
    MONOREF_UNROLL
    for (int i = 0; i < kLoadRuns; ++i) run[i] = simt::load16(row.run(fp4 ? first / 2 : first, i));
    MONOREF_UNROLL
    for (int i = 0; i < kLoadCodes<fp4> / kMxBlock; ++i) scale[i] = row.scale(first / kMxBlock + i);
  }

  /// True if no code is NaN and all scales are plain.
  template <bool fp4>
  MONOREF_MEMBER bool are_plain(std::int32_t e8m0_zero) const {
    bool plain = true;
    std::uint32_t nans = 0;
    MONOREF_UNROLL
    for (int i = 0; i < kLoadCodes<fp4> / kMxBlock; ++i)
      plain = plain && is_plain_scale<fp4>(scale[i], e8m0_zero);
    MONOREF_UNROLL
    for (int i = 0; i < kLoadRuns; ++i)
      for (const std::uint32_t word : run[i].word)
        if (!fp4) add_fp8_nans(word, nans);
    return plain && no_fp8_nan(nans);
  }
};

/// What has arrived and is multiplied next. The runs are in shared memory, where a loop can choose
/// among them, in a place that is this thread's alone.
struct KeptCodes {
  const simt::Vec16* runs;  ///< kMaxThreads apart
  std::uint32_t scales;     ///< a byte a block
  bool plain;

  template <bool fp4>
  MONOREF_MEMBER static KeptCodes of(const RowCodes& codes, std::int32_t e8m0_zero,
                                     simt::Vec16* place) {
    std::uint32_t scales = 0;
    MONOREF_UNROLL
    for (int i = 0; i < kLoadRuns; ++i) simt::store16(place + i * kMaxThreads, codes.run[i]);
    MONOREF_UNROLL
    for (int i = 0; i < kLoadCodes<fp4> / kMxBlock; ++i) scales |= codes.scale[i] << 8 * i;
    return {place, scales, codes.are_plain<fp4>(e8m0_zero)};
  }

  /// Continues the chains of the first `tokens` tokens by columns first .. first + n - 1 of these;
  /// the tokens' operands begin at `x` in shared memory, n apart.
  template <bool fp4, int tokens, int n, int size>
  MONOREF_MEMBER void add_to(float (&sums)[size], const float* x, int first,
                             std::int32_t e8m0_zero) const {
    if (plain)
      add_plain<fp4, tokens, n>(sums, x, first);
    else
      add_any<fp4, tokens, n>(sums, x, first, e8m0_zero);
  }

 private:
  /// The scale of the block of column `k`.
  MONOREF_MEMBER std::uint32_t scale_of(int k) const { return scales >> k / kMxBlock * 8 & 0xFF; }

  /// Takes a run in a turn, or with many tokens, whose operands fill the registers, a word.
  template <bool fp4, int tokens, int n, int size>
  MONOREF_MEMBER void add_plain(float (&sums)[size], const float* x, int first) const {
    constexpr int kWord = kWordCodes<fp4>;
    constexpr int kWords = tokens <= 2 ? 4 : 1;
    MONOREF_KEEP_LOOP
    for (int i = 0; i < n; i += kWords * kWord) {
      const int k = MONOREF_FAULT(mx_k_order_reversed) ? n - kWords * kWord - i : i;
      const float factor = plain_factor<fp4>(scale_of(first + k));
      std::uint32_t words[kWords];
      load_words<fp4>(first + k, words);
      MONOREF_UNROLL
      for (int j = 0; j < kWords; ++j) {
        float w[kWord];
        plain_operands<fp4>(words[j], factor, w);
        add_word<fp4, tokens>(w, x + k + j * kWord, n, sums);
      }
    }
  }

  template <bool fp4, int tokens, int n, int size>
  MONOREF_MEMBER void add_any(float (&sums)[size], const float* x, int first,
                              std::int32_t e8m0_zero) const {
    constexpr int kWord = kWordCodes<fp4>;
    MONOREF_KEEP_LOOP
    for (int i = 0; i < n; i += kWord) {
      float w[kWord];
      std::uint32_t word[1];
      load_words<fp4>(first + i, word);
      operands<fp4>(word[0], mx_factor<fp4>(scale_of(first + i), e8m0_zero), w);
      add_word<fp4, tokens>(w, x + i, n, sums);
    }
  }

  /// The word of codes that starts with column `k`, or all four of a run.
  template <bool fp4>
  MONOREF_MEMBER void load_words(int k, std::uint32_t (&words)[1]) const {
    const simt::Vec16& run = runs[k / kRunCodes<fp4> * kMaxThreads];
    words[0] = run.word[k % kRunCodes<fp4> / kWordCodes<fp4>];
  }
  template <bool fp4>
  MONOREF_MEMBER void load_words(int k, std::uint32_t (&words)[4]) const {
    const simt::Vec16 run = simt::load16(runs + k / kRunCodes<fp4> * kMaxThreads);
    for (int i = 0; i < 4; ++i) words[i] = run.word[i];
  }

 public:
  /// True if one of the operands that these are is infinite or NaN.
  template <bool fp4>
  MONOREF_MEMBER bool any_not_finite(std::int32_t e8m0_zero) const {
    if (plain) return false;
    bool found = false;
    MONOREF_KEEP_LOOP
    for (int k = 0; k < kLoadCodes<fp4>; k += kWordCodes<fp4>) {
      float w[kWordCodes<fp4>];
      std::uint32_t word[1];
      load_words<fp4>(k, word);
      operands<fp4>(word[0], mx_factor<fp4>(scale_of(k), e8m0_zero), w);
      for (const float value : w)
        found = found || !(magnitude_of(value) < simt::bit_cast<float>(kInfinityBits));
    }
    return found;
  }
};

/// How many columns are multiplied between two barriers: those that were loaded together, or as
/// many as `operands` places in shared memory hold for `tokens` tokens.
template <bool fp4, int tokens, int operands>
constexpr int kChunkOf = operands / tokens < kLoadCodes<fp4> ? operands / tokens : kLoadCodes<fp4>;

/// The fewest tokens that `add_chunk` can be asked for of `tokens` or more.
MONOREF_DEVICE int tokens_of_text(int tokens) {
  return tokens <= 2 ? tokens : tokens <= 4 ? 4 : tokens <= 8 ? 8 : kTileTokens;
}

template <bool fp4, int operands>
MONOREF_DEVICE int chunk_of(int tokens) {
  return tokens <= 1   ? kChunkOf<fp4, 1, operands>
         : tokens == 2 ? kChunkOf<fp4, 2, operands>
         : tokens == 4 ? kChunkOf<fp4, 4, operands>
         : tokens == 8 ? kChunkOf<fp4, 8, operands>
                       : kChunkOf<fp4, kTileTokens, operands>;
}

/// Continues the chains of `tokens` tokens, a number of `tokens_of_text` and at most `size`, by the
/// `chunk_of` columns that begin at `first` among the loaded ones.
template <bool fp4, int operands, int size>
MONOREF_DEVICE void add_chunk(const KeptCodes& weights, int tokens, const float* x, int first,
                              std::int32_t e8m0_zero, float (&sums)[size]) {
  if (tokens == 1)
    weights.add_to<fp4, 1, kChunkOf<fp4, 1, operands>>(sums, x, first, e8m0_zero);
  else if (tokens == 2)
    weights.add_to<fp4, 2, kChunkOf<fp4, 2, operands>>(sums, x, first, e8m0_zero);
  else if (tokens == 4)
    weights.add_to<fp4, 4, kChunkOf<fp4, 4, operands>>(sums, x, first, e8m0_zero);
  else if (tokens == 8)
    weights.add_to<fp4, 8, kChunkOf<fp4, 8, operands>>(sums, x, first, e8m0_zero);
  else if constexpr (size >= kTileTokens)
    weights.add_to<fp4, kTileTokens, kChunkOf<fp4, kTileTokens, operands>>(sums, x, first,
                                                                           e8m0_zero);
}

}  // namespace
}  // namespace monoref::kernels
