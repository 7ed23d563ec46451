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

/// The codes of columns `first` on of a matrix's row; 16 bytes of the row lie there, the next 16 of
/// it 16 * kTileRows bytes later. `first` is a multiple of what 16 bytes hold.
MONOREF_DEVICE const std::uint8_t* codes_at(const ExpertStack& stack, const ExpertMatrix& matrix,
                                            std::int32_t row, std::int32_t first) {
  const std::int32_t row_bytes = matrix.fp4 ? stack.k / 2 : stack.k;
  const std::int32_t byte = matrix.fp4 ? first / 2 : first;
  if (MONOREF_FAULT(mx_weights_not_shuffled))
    return matrix.codes + (std::int64_t{row} * row_bytes + byte) / 16 * 16;
  return matrix.codes + std::int64_t{row / kTileRows} * kTileRows * row_bytes +
         std::int64_t{byte} * kTileRows + row % kTileRows * 16;
}

/// The scale of a block of a matrix's row.
MONOREF_DEVICE std::uint32_t scale_at(const ExpertStack& stack, const ExpertMatrix& matrix,
                                      std::int32_t row, std::int32_t block) {
  const std::int32_t columns = stack.scale_columns();
  if (MONOREF_FAULT(mx_pad_column_read) && block == stack.k / kMxBlock - 1 && block + 1 < columns)
    block += 1;
  return matrix.scales[shuffled_scale_at(matrix.first_row + row, block, columns)];
}

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

  /// The columns from `first` on, a multiple of their number, of row `row` of `matrix`.
  template <bool fp4>
  MONOREF_MEMBER void load(const ExpertStack& stack, const ExpertMatrix& matrix, std::int32_t row,
                           std::int32_t first) {
    const std::uint8_t* from = codes_at(stack, matrix, row, first);
    MONOREF_UNROLL
    for (int i = 0; i < kLoadRuns; ++i) run[i] = simt::load16(from + i * 16 * kTileRows);
    MONOREF_UNROLL
    for (int i = 0; i < kLoadCodes<fp4> / kMxBlock; ++i)
      scale[i] = scale_at(stack, matrix, row, first / kMxBlock + i);
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

  template <bool fp4, int tokens, int n, int size>
  MONOREF_MEMBER void add_plain(float (&sums)[size], const float* x, int first) const {
    constexpr int kRun = kRunCodes<fp4>, kWord = kWordCodes<fp4>;
    MONOREF_KEEP_LOOP
    for (int i = 0; i < n; i += kRun) {
      const int k = MONOREF_FAULT(mx_k_order_reversed) ? n - kRun - i : i;
      const simt::Vec16 codes = simt::load16(runs + (first + k) / kRun * kMaxThreads);
      const float factor = plain_factor<fp4>(scale_of(first + k));
      MONOREF_UNROLL
      for (int j = 0; j < 4; ++j) {
        float w[kWord];
        plain_operands<fp4>(codes.word[j], factor, w);
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
      operands<fp4>(word_of<fp4>(first + i), mx_factor<fp4>(scale_of(first + i), e8m0_zero), w);
      add_word<fp4, tokens>(w, x + i, n, sums);
    }
  }

  /// The word of codes that starts with column `k`.
  template <bool fp4>
  MONOREF_MEMBER std::uint32_t word_of(int k) const {
    const simt::Vec16& run = runs[k / kRunCodes<fp4> * kMaxThreads];
    return run.word[k % kRunCodes<fp4> / kWordCodes<fp4>];
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
      operands<fp4>(word_of<fp4>(k), mx_factor<fp4>(scale_of(k), e8m0_zero), w);
      for (const float value : w)
        found = found || !(magnitude_of(value) < simt::bit_cast<float>(kInfinityBits));
    }
    return found;
  }
};

}  // namespace
}  // namespace monoref::kernels
