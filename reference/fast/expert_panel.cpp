// Memory holds 16 rows of 16 bytes at a time; the panel wants the 16 bytes of a column together.
// Bytes are transposed before they are decoded, four times less work than transposing numbers. Left
// to itself the compiler makes scalars of most of this, so the vector forms are written out.
#include "reference/fast/expert_panel.hpp"

#include <array>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "reference/formats/canonical_nan.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/weight_layouts.hpp"

namespace monoref {
namespace {

constexpr std::size_t kLanes = kPanelLanes;
constexpr std::size_t kHalf = 16 * kLanes;  ///< bytes of 16 columns of 16 rows
constexpr std::size_t kBlocks = kExpertStep / kMxBlock;

static_assert(kLanes == 16, "a panel holds one group of 16 rows of the weight layout");

/// Decodes the 32 k of a block, whose codes are two halves (MXFP8) or one (MXFP4), into
/// [32][16 rows]; `scales` is [16 rows].
using DecodeBlock = void (*)(const std::uint8_t* codes, const float* scales, float* panel);

void decode_fp8_block(const std::uint8_t* codes, const float* scales, float* panel) {
  const std::array<float, 256>& table = decode_table(kE4M3FN);
  for (std::size_t k = 0; k < kMxBlock; ++k)
    for (std::size_t row = 0; row < kLanes; ++row)
      panel[k * kLanes + row] = table[codes[k / 16 * kHalf + row * 16 + k % 16]] * scales[row];
}

void decode_fp4_block(const std::uint8_t* codes, const float* scales, float* panel) {
  const std::array<float, 256>& table = decode_table(kE2M1);
  for (std::size_t pair = 0; pair < kMxBlock / 2; ++pair)
    for (std::size_t row = 0; row < kLanes; ++row) {
      const std::uint8_t byte = codes[row * 16 + pair];
      panel[2 * pair * kLanes + row] = table[even_fp4(byte)] * scales[row];
      panel[(2 * pair + 1) * kLanes + row] = table[odd_fp4(byte)] * scales[row];
    }
}

#if defined(__x86_64__)
#define MONOREF_V3 __attribute__((target("avx2,f16c")))

/// [16 rows][16 bytes] to [16 bytes][16 rows]: four times interleave the first eight rows with the
/// last eight, which rotates the 8-bit address of every byte by one bit each time. Registers hold
/// two rows; in the last round partners meet inside a register.
MONOREF_V3 inline void transpose_v3(const std::uint8_t* from, std::uint8_t* to) {
  __m256i now[8];
  __m256i next[8];
  for (int i = 0; i < 8; ++i)
    now[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * i));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) {
      next[2 * i] = _mm256_unpacklo_epi8(now[i], now[i + 4]);
      next[2 * i + 1] = _mm256_unpackhi_epi8(now[i], now[i + 4]);
    }
    for (int i = 0; i < 8; ++i) now[i] = next[i];
  }
  const __m256i interleave = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  for (int i = 0; i < 8; ++i) {
    const __m256i halves = _mm256_permute4x64_epi64(now[i], 0b11011000);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32 * i),
                        _mm256_shuffle_epi8(halves, interleave));
  }
}

/// 16 E4M3FN codes by way of binary16, whose exponent is biased by 8 more: the code's magnitude in
/// place is the number times 2^-8, subnormals included. `scales` make up for it.
MONOREF_V3 inline void decode_fp8_column(__m128i codes, const __m256 (&scales)[2], float* column) {
  const __m256i magnitude = _mm256_set1_epi16(0x3F80);
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8);
  const __m256i placed =
      _mm256_and_si256(_mm256_srai_epi16(wide, 1), _mm256_set1_epi16(static_cast<short>(0xBF80)));
  const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(placed, magnitude), magnitude);
  const __m256i halves = _mm256_or_si256(placed, nan);
  const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
  const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  _mm256_storeu_ps(column, _mm256_mul_ps(low, scales[0]));
  _mm256_storeu_ps(column + 8, _mm256_mul_ps(high, scales[1]));
}

MONOREF_V3 void decode_fp8_block_v3(const std::uint8_t* codes, const float* scales, float* panel) {
  const __m256 raise = _mm256_set1_ps(256.0f);
  const __m256 raised[2] = {_mm256_mul_ps(_mm256_loadu_ps(scales), raise),
                            _mm256_mul_ps(_mm256_loadu_ps(scales + 8), raise)};
  const __m256 infinity = _mm256_set1_ps(std::numeric_limits<float>::infinity());
  const __m256 overflows = _mm256_or_ps(_mm256_cmp_ps(raised[0], infinity, _CMP_EQ_OQ),
                                        _mm256_cmp_ps(raised[1], infinity, _CMP_EQ_OQ));
  if (_mm256_movemask_ps(overflows) != 0) return decode_fp8_block(codes, scales, panel);
  alignas(32) std::uint8_t bytes[2 * kHalf];
  transpose_v3(codes, bytes);
  transpose_v3(codes + kHalf, bytes + kHalf);
  for (std::size_t k = 0; k < kMxBlock; ++k)
    decode_fp8_column(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes + k * kLanes)), raised,
                      panel + k * kLanes);
}

/// Eight E2M1 codes in the low nibbles of `codes`: the magnitude by a table, the sign into place.
MONOREF_V3 inline __m256 decode_fp4(__m256i codes) {
  const __m256 table = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(8)), 28);
  return _mm256_or_ps(_mm256_permutevar8x32_ps(table, codes), _mm256_castsi256_ps(sign));
}

MONOREF_V3 void decode_fp4_block_v3(const std::uint8_t* codes, const float* scales, float* panel) {
  alignas(32) std::uint8_t bytes[kHalf];
  transpose_v3(codes, bytes);
  for (std::size_t first = 0; first < kLanes; first += 8) {
    const __m256 own_scales = _mm256_loadu_ps(scales + first);
    for (std::size_t pair = 0; pair < kMxBlock / 2; ++pair) {
      const __m256i packed = _mm256_cvtepu8_epi32(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + pair * kLanes + first)));
      float* even = panel + 2 * pair * kLanes + first;
      _mm256_storeu_ps(even, _mm256_mul_ps(decode_fp4(packed), own_scales));
      _mm256_storeu_ps(even + kLanes,
                       _mm256_mul_ps(decode_fp4(_mm256_srli_epi32(packed, 4)), own_scales));
    }
  }
}

#undef MONOREF_V3
#endif

DecodeBlock decode_block_for(MxElement element, [[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa != Isa::kBaseline)
    return element == MxElement::kFp8 ? decode_fp8_block_v3 : decode_fp4_block_v3;
#endif
  return element == MxElement::kFp8 ? decode_fp8_block : decode_fp4_block;
}

std::array<float, 256> scale_table(E8M0Zero zero) {
  std::array<float, 256> table;
  for (std::size_t code = 0; code < table.size(); ++code)
    table[code] = decode_e8m0(static_cast<std::uint8_t>(code), zero);
  return table;
}

/// The scales of a panel, [block][row].
std::array<float, kBlocks * kLanes> panel_scales(const ExpertMatrix& matrix, std::int64_t first_row,
                                                 std::int64_t first_k, E8M0Zero zero) {
  static const std::array<float, 256> tables[] = {scale_table(E8M0Zero::kSmallest),
                                                  scale_table(E8M0Zero::kZero)};
  const std::array<float, 256>& table = tables[zero == E8M0Zero::kZero ? 1 : 0];
  std::array<float, kBlocks * kLanes> scales;
  for (std::size_t block = 0; block < kBlocks; ++block) {
    // The scales of 16 neighbouring rows lie four bytes apart.
    const std::uint8_t* bytes =
        matrix.scales + shuffled_scale_offset(matrix.first_scale_row + first_row,
                                              first_k / static_cast<std::int64_t>(kMxBlock) +
                                                  static_cast<std::int64_t>(block),
                                              matrix.scale_columns);
    for (std::size_t row = 0; row < kLanes; ++row)
      scales[block * kLanes + row] = table[bytes[4 * row]];
  }
  return scales;
}

}  // namespace

void decode_expert_panel(const ExpertMatrix& matrix, std::int64_t first_row, std::int64_t first_k,
                         E8M0Zero zero, float* panel, Isa isa) {
  const bool fp8 = matrix.element == MxElement::kFp8;
  const std::int64_t row_bytes = fp8 ? matrix.k : matrix.k / 2;
  const std::int64_t first_column = fp8 ? first_k : first_k / 2;
  const std::uint8_t* const codes =
      matrix.codes + shuffled_weight_offset(first_row, first_column, row_bytes);
  const auto scales = panel_scales(matrix, first_row, first_k, zero);
  const DecodeBlock decode_block = decode_block_for(matrix.element, isa);
  const std::size_t block_bytes = fp8 ? 2 * kHalf : kHalf;
  for (std::size_t block = 0; block < kBlocks; ++block)
    decode_block(codes + block * block_bytes, scales.data() + block * kLanes,
                 panel + block * kMxBlock * kLanes);
}

}  // namespace monoref
