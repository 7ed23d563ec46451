// Multiplies experts' weights with the tokens that are routed to them.
//
// A group of 16 neighbouring lanes has the 16 rows of a tile of one or two matrices, and the fma
// chains of up to 16 tokens. It loads its weights 64 bytes a row at a time, well ahead of their
// use. The operands of its tokens are decoded once by all its threads into shared memory, from
// where each thread reads them; they are a chunk of k that is the longer the fewer tokens there
// are. Groups share waves but never wait for each other.
#pragma once

#include <cstdint>

#include "device/kernels/e4m3_words.hpp"
#include "device/kernels/expert_stack.hpp"
#include "device/kernels/mx_words.hpp"
#include "device/kernels/registers.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/kernels/vector_access.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

constexpr int kGroupThreads = kTileRows;

/// 16-byte vectors of a row that a thread has in flight at a time, and the columns in them.
constexpr int kLoadVectors = 4;
template <bool fp4>
constexpr int kLoadCodes = kLoadVectors * kVectorCodes<fp4>;

/// Operands that a group has in shared memory at a time: 16 from each of its threads.
constexpr int kGroupOperands = 16 * kGroupThreads;
/// Distance of two groups' operands; the padding puts what the groups of a wave read at once into
/// different banks.
constexpr int kGroupStride = kGroupOperands + 4;

/// kLoadCodes neighbouring columns of a thread's row, in flight from memory.
struct RowCodes {
  simt::Vec16 vector[kLoadVectors];
  std::uint32_t scale[kLoadVectors];  ///< of each block; half as many blocks of E4M3FN

  /// The columns of a row from `first` on, a multiple of their number.
  template <bool fp4>
  MONOREF_MEMBER void load(const MatrixRow& row, std::int32_t first) {
    MONOREF_UNROLL
    for (int i = 0; i < kLoadVectors; ++i)
      vector[i] = simt::load16(row.vector(fp4 ? first / 2 : first, i));
    // The first one last: where the branches of both formats join, the compiler for AMD joins their
    // last stores; to different slots, they would be kept in memory.
    MONOREF_UNROLL
    for (int i = kLoadCodes<fp4> / kMxBlock - 1; i >= 0; --i)
      scale[i] = row.scale(first / kMxBlock + i);
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
    for (int i = 0; i < kLoadVectors; ++i)
      for (const std::uint32_t word : vector[i].word)
        if (!fp4) add_fp8_nans(word, nans);
    return plain && no_fp8_nan(nans);
  }

  /// The scales as bytes of a word.
  template <bool fp4>
  MONOREF_MEMBER std::uint32_t packed_scales() const {
    std::uint32_t bytes = 0;
    MONOREF_UNROLL
    for (int i = 0; i < kLoadCodes<fp4> / kMxBlock; ++i) bytes |= scale[i] << 8 * i;
    return bytes;
  }
};

/// The weights that a thread multiplies next: the same columns of `rows` rows. The codes are staged
/// in shared memory, where a loop can index them, in 16-byte slots private to the thread; its slots
/// are `threads` apart, which is the size of the block.
template <int rows, int threads>
struct KeptCodes {
  const simt::Vec16* slots;  ///< [row][vector]
  std::uint32_t scales[rows];
  bool plain;

  /// Stages what has been loaded.
  template <bool fp4>
  MONOREF_MEMBER static KeptCodes of(const RowCodes (&codes)[rows], std::int32_t e8m0_zero,
                                     simt::Vec16* to) {
    KeptCodes kept{to, {}, true};
    MONOREF_UNROLL
    for (int row = 0; row < rows; ++row) {
      MONOREF_UNROLL
      for (int i = 0; i < kLoadVectors; ++i)
        simt::store16(to + (row * kLoadVectors + i) * threads, codes[row].vector[i]);
      kept.scales[row] = codes[row].template packed_scales<fp4>();
      kept.plain = codes[row].template are_plain<fp4>(e8m0_zero) && kept.plain;
    }
    return kept;
  }

  /// Continues the fma chains of the first `tokens` tokens by columns first .. first + n - 1 of
  /// these; the tokens' operands begin at `x` in shared memory, n apart.
  template <bool fp4, int tokens, int n, int size>
  MONOREF_MEMBER void add_to(float (&sums)[rows][size], const float* x, int first,
                             std::int32_t e8m0_zero) const {
    if (plain)
      add_plain<fp4, tokens, n>(sums, x, first);
    else
      add_any<fp4, tokens, n>(sums, x, first, e8m0_zero);
  }

  /// True if one of the operands is infinite or NaN.
  template <bool fp4>
  MONOREF_MEMBER bool any_not_finite(std::int32_t e8m0_zero) const {
    if (plain) return false;
    bool found = false;
    MONOREF_KEEP_LOOP
    for (int k = 0; k < kLoadCodes<fp4>; k += kWordCodes<fp4>) {
      for (int row = 0; row < rows; ++row) {
        float w[kWordCodes<fp4>];
        operands<fp4>(word<fp4>(row, k), mx_factor<fp4>(scale_of(row, k), e8m0_zero), w);
        for (const float value : w)
          found = found || !(magnitude_of(value) < simt::bit_cast<float>(kInfinityBits));
      }
    }
    return found;
  }

 private:
  /// The scale of the block of column `k`.
  MONOREF_MEMBER std::uint32_t scale_of(int row, int k) const {
    return scales[row] >> k / kMxBlock * 8 & 0xFF;
  }

  /// The 16-byte vector of codes that has column `k`.
  template <bool fp4>
  MONOREF_MEMBER const simt::Vec16& vector(int row, int k) const {
    return slots[(row * kLoadVectors + k / kVectorCodes<fp4>)*threads];
  }

  /// The word of codes that begins with column `k`.
  template <bool fp4>
  MONOREF_MEMBER std::uint32_t word(int row, int k) const {
    return vector<fp4>(row, k).word[k % kVectorCodes<fp4> / kWordCodes<fp4>];
  }

  /// Continues the fma chains by a word's columns.
  template <bool fp4, int tokens, int n, int size>
  MONOREF_MEMBER static void add_word(float (&sums)[rows][size], const float* x,
                                      const float (&w)[rows][kWordCodes<fp4>]) {
    MONOREF_UNROLL
    for (int token = 0; token < tokens; ++token) {
      MONOREF_UNROLL
      for (int i = 0; i < kWordCodes<fp4>; i += 4) {
        const Four values = load_staged(x + token * n + i);
        MONOREF_UNROLL
        for (int row = 0; row < rows; ++row) {
          MONOREF_UNROLL
          for (int j = 0; j < 4; ++j)
            sums[row][token] = simt::fma(values.value[j], w[row][i + j], sums[row][token]);
        }
      }
      MONOREF_UNROLL
      for (int row = 0; row < rows; ++row) compute_here(sums[row][token]);
    }
  }

  /// An iteration takes a 16-byte vector or, with many tokens, whose operands fill the registers, a
  /// word.
  template <bool fp4, int tokens, int n, int size>
  MONOREF_MEMBER void add_plain(float (&sums)[rows][size], const float* x, int first) const {
    constexpr int kWord = kWordCodes<fp4>;
    if constexpr (tokens <= 2) {
      MONOREF_KEEP_LOOP
      for (int i = 0; i < n; i += 4 * kWord) {
        const int k = MONOREF_FAULT(mx_k_order_reversed, "D01", "a slice walks its k from the end",
                                    .stages = {"expert_up_gate"})
                          ? n - 4 * kWord - i
                          : i;
        add_plain_words<fp4, tokens, n, 4>(sums, x + k, first + k);
      }
    } else {
      MONOREF_KEEP_LOOP
      for (int i = 0; i < n; i += kWord) {
        const int k = MONOREF_FAULT_AT(mx_k_order_reversed) ? n - kWord - i : i;
        add_plain_words<fp4, tokens, n, 1>(sums, x + k, first + k);
      }
    }
  }

  /// `words` words from column `k` on, of one 16-byte vector.
  template <bool fp4, int tokens, int n, int words, int size>
  MONOREF_MEMBER void add_plain_words(float (&sums)[rows][size], const float* x, int k) const {
    constexpr int kWord = kWordCodes<fp4>;
    std::uint32_t codes[rows][words];
    float factor[rows];
    MONOREF_UNROLL
    for (int row = 0; row < rows; ++row) {
      factor[row] = plain_factor<fp4>(scale_of(row, k));
      if constexpr (words == 1) {
        codes[row][0] = word<fp4>(row, k);
      } else {
        const simt::Vec16 all = simt::load16(&vector<fp4>(row, k));
        for (int i = 0; i < words; ++i) codes[row][i] = all.word[i];
      }
    }
    MONOREF_UNROLL
    for (int i = 0; i < words; ++i) {
      float w[rows][kWord];
      MONOREF_UNROLL
      for (int row = 0; row < rows; ++row) plain_operands<fp4>(codes[row][i], factor[row], w[row]);
      add_word<fp4, tokens, n>(sums, x + i * kWord, w);
    }
  }

  template <bool fp4, int tokens, int n, int size>
  MONOREF_MEMBER void add_any(float (&sums)[rows][size], const float* x, int first,
                              std::int32_t e8m0_zero) const {
    MONOREF_KEEP_LOOP
    for (int i = 0; i < n; i += kWordCodes<fp4>) {
      float w[rows][kWordCodes<fp4>];
      MONOREF_UNROLL
      for (int row = 0; row < rows; ++row)
        operands<fp4>(word<fp4>(row, first + i),
                      mx_factor<fp4>(scale_of(row, first + i), e8m0_zero), w[row]);
      add_word<fp4, tokens, n>(sums, x + i, w);
    }
  }
};

/// Rounds a token count, 1 to 16, up to the next instantiated one: 1, 2, 4, 8, 16.
MONOREF_DEVICE int instantiated_tokens(int tokens) {
  return tokens <= 2 ? tokens : tokens <= 4 ? 4 : tokens <= 8 ? 8 : kTileTokens;
}

/// Columns that a group multiplies between two barriers: one load's worth, or fewer if the operands
/// of `tokens` tokens would not fit into its shared memory.
template <bool fp4, int tokens>
constexpr int kChunkOf =
    kGroupOperands / tokens < kLoadCodes<fp4> ? kGroupOperands / tokens : kLoadCodes<fp4>;

/// Its binary logarithm, for an instantiated token count.
template <bool fp4>
MONOREF_DEVICE int chunk_bits(int tokens) {
  static_assert(kChunkOf<true, 1> == 128 && kChunkOf<true, 2> == 128 && kChunkOf<true, 4> == 64 &&
                kChunkOf<true, 8> == 32 && kChunkOf<true, 16> == 16);
  static_assert(kChunkOf<false, 1> == 64 && kChunkOf<false, 2> == 64 && kChunkOf<false, 4> == 64 &&
                kChunkOf<false, 8> == 32 && kChunkOf<false, 16> == 16);
  return tokens <= 2 ? (fp4 ? 7 : 6) : tokens == 4 ? 6 : tokens == 8 ? 5 : 4;
}

/// Continues the fma chains of `tokens` tokens, an instantiated count, by the chunk that begins at
/// `first` among the staged columns.
template <bool fp4, int rows, int threads>
MONOREF_DEVICE void add_chunk(const KeptCodes<rows, threads>& codes, int tokens, const float* x,
                              int first, std::int32_t e8m0_zero, float (&sums)[rows][kTileTokens]) {
  if (tokens == 1)
    codes.template add_to<fp4, 1, kChunkOf<fp4, 1>>(sums, x, first, e8m0_zero);
  else if (tokens == 2)
    codes.template add_to<fp4, 2, kChunkOf<fp4, 2>>(sums, x, first, e8m0_zero);
  else if (tokens == 4)
    codes.template add_to<fp4, 4, kChunkOf<fp4, 4>>(sums, x, first, e8m0_zero);
  else if (tokens == 8)
    codes.template add_to<fp4, 8, kChunkOf<fp4, 8>>(sums, x, first, e8m0_zero);
  else
    codes.template add_to<fp4, 16, kChunkOf<fp4, 16>>(sums, x, first, e8m0_zero);
}

/// A token's E4M3FN codes, and the scales of their blocks.
struct TokenRow {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
};

/// A thread's share of a chunk of the group's tokens, in flight from memory: four words of four
/// codes. The words of a chunk, token by token, are dealt to the threads in turn.
struct TokenWords {
  static constexpr int kWords = kGroupOperands / kGroupThreads / 4;

  std::uint32_t word[kWords];
  std::uint32_t scale[kWords];

  /// Loads columns k .. k + 2^bits - 1 of `count` tokens; `rows(n)` is the n-th, at a multiple of 4
  /// if it is `aligned`.
  template <bool aligned, class Rows>
  MONOREF_MEMBER void load(const Rows& rows, int count, int bits, int thread, std::int32_t k) {
    MONOREF_UNROLL
    for (int i = 0; i < kWords; ++i) {
      const int at = 4 * (thread + i * kGroupThreads);
      if (at >> bits >= count) continue;
      const TokenRow row = rows(at >> bits);
      const std::int32_t column = k + (at & ((1 << bits) - 1));
      word[i] = load_word<aligned>(in_global(row.codes + column));
      scale[i] = *in_global(row.scales + column / kMxBlock);
    }
  }

  /// Decodes them to where the group reads its operands.
  MONOREF_MEMBER void stage(int count, int bits, int thread, std::int32_t e8m0_zero,
                            float* to) const {
    MONOREF_UNROLL
    for (int i = 0; i < kWords; ++i) {
      const int at = 4 * (thread + i * kGroupThreads);
      if (at >> bits >= count) continue;
      Four numbers;
      std::uint32_t nans = 0;
      add_fp8_nans(word[i], nans);
      if (no_fp8_nan(nans) && is_plain_scale<false>(scale[i], e8m0_zero))
        plain_operands<false>(word[i], plain_factor<false>(scale[i]), numbers.value);
      else
        operands<false>(word[i], mx_factor<false>(scale[i], e8m0_zero), numbers.value);
      store_staged(to + at, numbers);
    }
  }

 private:
  template <bool aligned>
  MONOREF_MEMBER static std::uint32_t load_word(const std::uint8_t* from) {
    if (aligned || (reinterpret_cast<std::uintptr_t>(from) & 3) == 0)
      return *reinterpret_cast<const std::uint32_t*>(from);
    return from[0] | std::uint32_t{from[1]} << 8 | std::uint32_t{from[2]} << 16 |
           std::uint32_t{from[3]} << 24;
  }
};

}  // namespace
}  // namespace monoref::kernels
