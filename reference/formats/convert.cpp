#include "reference/formats/convert.hpp"

#include "reference/core/error.hpp"

namespace monoref {
namespace {

constexpr int kFloatMantissaBits = 23;
constexpr int kFloatBias = 127;

/// The bits of 2^exponent in binary32.
constexpr std::uint32_t power_bits(int exponent) {
  return static_cast<std::uint32_t>(exponent + kFloatBias) << kFloatMantissaBits;
}

/// `a` if the condition holds, else `b`, as masks: with a conditional expression the compiler moves
/// the floating-point addition below into a branch, and the loop around it is not vectorised.
__attribute__((always_inline)) inline std::uint32_t select(bool condition, std::uint32_t a,
                                                           std::uint32_t b) {
  return b ^ ((a ^ b) & (0u - static_cast<std::uint32_t>(condition)));
}

/// `encode` without branches, for one 8-bit format and overflow rule fixed at compile time. Valid
/// for formats whose numbers are all normal in binary32.
template <const FloatFormat& Format, Overflow Rule>
__attribute__((always_inline)) inline std::uint32_t encode_one(float value) {
  constexpr int kShift = kFloatMantissaBits - Format.mantissa_bits;
  constexpr std::uint32_t kSmallestNormal = power_bits(Format.min_exponent());
  // Adding 2^23 quanta of the subnormals makes the sum's last place one quantum: the addition
  // itself rounds to nearest even, and the sum's low bits count the steps.
  constexpr std::uint32_t kMagic =
      power_bits(Format.min_exponent() - Format.mantissa_bits + kFloatMantissaBits);
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(kFloatBias - Format.bias)
                                    << Format.mantissa_bits;
  constexpr std::uint32_t kPastLargest = Rule == Overflow::kSaturate ? Format.largest()
                                         : Rule == Overflow::kInfinity && Format.has_infinity()
                                             ? Format.infinity()
                                             : Format.canonical_nan();
  // A NaN made by an overflow has no sign; a number or Inf keeps its own.
  constexpr std::uint32_t kPastLargestSign =
      kPastLargest == Format.canonical_nan() ? 0 : Format.sign_bit();

  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t sign = (bits >> (32 - Format.bits())) & Format.sign_bit();
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kMagic)) -
      kMagic;
  const std::uint32_t halfway = (1u << (kShift - 1)) - 1 + ((magnitude >> kShift) & 1u);
  const std::uint32_t normal = ((magnitude + halfway) >> kShift) - kRebias;
  std::uint32_t code = select(magnitude < kSmallestNormal, subnormal, normal);
  const std::uint32_t kept_sign = Format.has_negative_zero() ? sign : select(code == 0, 0, sign);
  code =
      select(code > Format.largest(), kPastLargest | (sign & kPastLargestSign), code | kept_sign);
  if constexpr (Rule == Overflow::kNan && Format.has_infinity())
    code = select(magnitude == 0x7F800000u, Format.infinity() | sign, code);
  return select(magnitude > 0x7F800000u, Format.canonical_nan(), code);
}

/// Calls `use.template operator()<Format, Rule>()` for the arguments' values.
template <const FloatFormat& Format, class Use>
auto with_rule(Overflow overflow, Use use) {
  switch (overflow) {
    case Overflow::kNan:
      return use.template operator()<Format, Overflow::kNan>();
    case Overflow::kInfinity:
      return use.template operator()<Format, Overflow::kInfinity>();
    default:
      return use.template operator()<Format, Overflow::kSaturate>();
  }
}

template <class Use>
auto with_format(const FloatFormat& format, Overflow overflow, Use use) {
  if (format == kE4M3FN) return with_rule<kE4M3FN>(overflow, use);
  if (format == kE4M3FNUZ) return with_rule<kE4M3FNUZ>(overflow, use);
  if (format == kE5M2) return with_rule<kE5M2>(overflow, use);
  if (format == kE5M2FNUZ) return with_rule<kE5M2FNUZ>(overflow, use);
  refuse("formats: format is {}, must be an FP8 format", format.name);
}

template <const FloatFormat& Format>
const std::array<float, 256>& table_of() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (std::uint32_t code = 0; code < 256; ++code)
      values[code] = decode(Format, code & (Format.codes() - 1));
    return values;
  }();
  return table;
}

template <class A, class B>
void check_sizes(std::span<A> from, std::span<B> to) {
  if (from.size() != to.size())
    refuse("formats: {} values are converted into {} places, must be as many", from.size(),
           to.size());
}

}  // namespace

const std::array<float, 256>& decode_table(const FloatFormat& format) {
  if (format == kE4M3FN) return table_of<kE4M3FN>();
  if (format == kE4M3FNUZ) return table_of<kE4M3FNUZ>();
  if (format == kE5M2) return table_of<kE5M2>();
  if (format == kE5M2FNUZ) return table_of<kE5M2FNUZ>();
  if (format == kE2M1) return table_of<kE2M1>();
  refuse("formats: format is {}, tables exist for FP8 and FP4 formats", format.name);
}

std::uint8_t encode_fp8(const FloatFormat& format, float value, Overflow overflow) {
  return with_format(format, overflow, [&]<const FloatFormat & F, Overflow R>() {
    return static_cast<std::uint8_t>(encode_one<F, R>(value));
  });
}

void decode_fp8(const FloatFormat& format, std::span<const std::uint8_t> codes,
                std::span<float> values) {
  check_sizes(codes, values);
  const std::array<float, 256>& table = decode_table(format);
  for (std::size_t i = 0; i < codes.size(); ++i) values[i] = table[codes[i]];
}

void encode_fp8(const FloatFormat& format, std::span<const float> values,
                std::span<std::uint8_t> codes, Overflow overflow, Isa isa) {
  check_sizes(values, codes);
  with_format(format, overflow, [&]<const FloatFormat & F, Overflow R>() {
    const float* __restrict from = values.data();
    std::uint8_t* __restrict to = codes.data();
    const std::size_t count = values.size();
    run_on(isa, [=]() MONOREF_INLINE_BODY {
      for (std::size_t i = 0; i < count; ++i)
        to[i] = static_cast<std::uint8_t>(encode_one<F, R>(from[i]));
    });
  });
}

void decode_bf16(std::span<const std::uint16_t> codes, std::span<float> values, Isa isa) {
  check_sizes(codes, values);
  const std::uint16_t* __restrict from = codes.data();
  float* __restrict to = values.data();
  const std::size_t count = codes.size();
  run_on(isa, [=]() MONOREF_INLINE_BODY {
    for (std::size_t i = 0; i < count; ++i) to[i] = float_from_bf16(from[i]);
  });
}

void encode_bf16(std::span<const float> values, std::span<std::uint16_t> codes, Isa isa) {
  check_sizes(values, codes);
  const float* __restrict from = values.data();
  std::uint16_t* __restrict to = codes.data();
  const std::size_t count = values.size();
  run_on(isa, [=]() MONOREF_INLINE_BODY {
    for (std::size_t i = 0; i < count; ++i) to[i] = bf16_from_float(from[i]);
  });
}

}  // namespace monoref
