// Memory holds 16 rows of 16 bytes at a time; the panel wants 16 bytes of a column together. Bytes
// are transposed first, four times less work than transposing decoded numbers.
#include "reference/expert_panel.hpp"

#include <array>
#include <bit>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "reference/formats/canonical_nan.hpp"
#include "reference/weight_layouts.hpp"

namespace monoref {
namespace {

#define MONOREF_INLINE [[gnu::always_inline]] inline

constexpr std::size_t kLanes = kPanelLanes;
constexpr std::size_t kHalf = 16 * kLanes;  ///< bytes of 16 columns of 16 rows
constexpr std::size_t kBlocks = kExpertStep / kMxBlock;

static_assert(kLanes == 16, "a panel holds one group of 16 rows of the weight layout");

/// [16 rows][16 bytes] to [16 bytes][16 rows]. Interleaving the first eight registers with the last
/// eight rotates the 8-bit address of every byte by one; four times swaps row and column.
MONOREF_INLINE void transpose(const std::uint8_t* from, std::uint8_t* to) {
#if defined(__x86_64__)
  __m128i now[16];
  __m128i next[16];
  for (int i = 0; i < 16; ++i)
    now[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * i));
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = _mm_unpacklo_epi8(now[i], now[i + 8]);
      next[2 * i + 1] = _mm_unpackhi_epi8(now[i], now[i + 8]);
    }
    for (int i = 0; i < 16; ++i) now[i] = next[i];
  }
  for (int i = 0; i < 16; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * i), now[i]);
#else
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 16; ++column) to[16 * column + row] = from[16 * row + column];
#endif
}

/// `a` if the condition holds, else `b`, as masks: a conditional expression keeps the loop around
/// it from being vectorised.
MONOREF_INLINE std::uint32_t select(bool condition, std::uint32_t a, std::uint32_t b) {
  return b ^ ((a ^ b) & (0u - static_cast<std::uint32_t>(condition)));
}

/// `decode` without branches. A subnormal code is read as if its exponent field were 1, which adds
/// the smallest normal number.
template <const FloatFormat& Format>
MONOREF_INLINE float number(std::uint32_t code) {
  constexpr std::uint32_t kExponentOne = 1u << 23;
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - Format.bias) << 23;
  constexpr float kSmallestNormal =
      std::bit_cast<float>(static_cast<std::uint32_t>(127 + Format.min_exponent()) << 23);
  const std::uint32_t magnitude = code & Format.magnitude_mask();
  const std::uint32_t normal = (magnitude << (23 - Format.mantissa_bits)) + kRebias;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(normal + kExponentOne) - kSmallestNormal);
  std::uint32_t bits = select(magnitude < (1u << Format.mantissa_bits), subnormal, normal);
  if constexpr (Format.has_nan())
    bits = select(magnitude == Format.magnitude_mask(), kCanonicalNanBits, bits);
  return std::bit_cast<float>(bits | (code & Format.sign_bit()) << (32 - Format.bits()));
}

/// One column of 16 rows.
template <const FloatFormat& Format>
MONOREF_INLINE void decode_column(const std::uint8_t* codes, int shift, const float* scales,
                                  float* column) {
  for (std::size_t row = 0; row < kLanes; ++row)
    column[row] = number<Format>(static_cast<std::uint32_t>(codes[row]) >> shift) * scales[row];
}

/// A block of 32 k.
MONOREF_INLINE void decode_fp8_block(const std::uint8_t* codes, const float* scales, float* panel) {
  std::uint8_t bytes[2 * kHalf];
  transpose(codes, bytes);
  transpose(codes + kHalf, bytes + kHalf);
  for (std::size_t k = 0; k < kMxBlock; ++k)
    decode_column<kE4M3FN>(bytes + k * kLanes, 0, scales, panel + k * kLanes);
}

MONOREF_INLINE void decode_fp4_block(const std::uint8_t* codes, const float* scales, float* panel) {
  std::uint8_t bytes[kHalf];
  transpose(codes, bytes);
  for (std::size_t pair = 0; pair < kMxBlock / 2; ++pair) {
    decode_column<kE2M1>(bytes + pair * kLanes, 0, scales, panel + 2 * pair * kLanes);
    decode_column<kE2M1>(bytes + pair * kLanes, 4, scales, panel + (2 * pair + 1) * kLanes);
  }
}

#undef MONOREF_INLINE

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
  for (std::size_t i = 0; i < scales.size(); ++i)
    scales[i] = table[matrix.scales[shuffled_scale_offset(
        matrix.first_scale_row + first_row + static_cast<std::int64_t>(i % kLanes),
        first_k / static_cast<std::int64_t>(kMxBlock) + static_cast<std::int64_t>(i / kLanes),
        matrix.scale_columns)]];
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
  const float* const first_scale = scales.data();
  const auto each_block = [=](auto decode_block, std::size_t bytes) MONOREF_INLINE_BODY {
    for (std::size_t block = 0; block < kBlocks; ++block)
      decode_block(codes + block * bytes, first_scale + block * kLanes,
                   panel + block * kMxBlock * kLanes);
  };
  run_on(isa, [=]() MONOREF_INLINE_BODY {
    if (fp8)
      each_block([](auto... arguments) MONOREF_INLINE_BODY { decode_fp8_block(arguments...); },
                 2 * kHalf);
    else
      each_block([](auto... arguments) MONOREF_INLINE_BODY { decode_fp4_block(arguments...); },
                 kHalf);
  });
}

}  // namespace monoref
