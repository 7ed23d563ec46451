#include "reference/arithmetic/dot_hopper.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "reference/formats/canonical_nan.hpp"
#include "reference/formats/convert.hpp"

namespace monoref {
namespace {

/// A number as significand * 2^(exponent - fraction bits of its format). The significand of a
/// normal number is in [1, 2) by that reading; zero has significand 0.
struct Parts {
  std::int32_t significand;  ///< signed
  std::int32_t exponent;
};

constexpr int kBF16Fraction = 7;
constexpr int kE4M3Fraction = 3;
constexpr int kFloatFraction = 23;
/// Lower than any exponent of a product or of c: what zero contributes to the largest exponent.
constexpr std::int32_t kNoExponent = std::numeric_limits<std::int32_t>::min() / 2;

Parts split_bf16(std::uint16_t code) {
  const std::int32_t field = (code >> kBF16Fraction) & 0xFF;
  const std::int32_t mantissa = code & 0x7F;
  const std::int32_t magnitude = field == 0 ? mantissa : mantissa | 0x80;
  return {code & 0x8000 ? -magnitude : magnitude, std::max(field, 1) - 127};
}

/// An E4M3 subnormal as it is: exponent -6 and a significand below 1.
Parts split_e4m3(std::uint8_t code) {
  const std::int32_t field = code >> kE4M3Fraction & 0x0F;
  const std::int32_t mantissa = code & 0x07;
  const std::int32_t magnitude = field == 0 ? mantissa : mantissa | 0x08;
  return {code & 0x80 ? -magnitude : magnitude, std::max(field, 1) - 7};
}

/// The same number with a significand in [1, 2): what becomes of a subnormal in FP16.
Parts split_e4m3_as_fp16(std::uint8_t code) {
  Parts parts = split_e4m3(code);
  for (; parts.significand != 0 && std::abs(parts.significand) < 0x08; --parts.exponent)
    parts.significand *= 2;
  return parts;
}

using PartsTable = std::array<Parts, 256>;

template <Parts (*Split)(std::uint8_t)>
const PartsTable& e4m3_parts() {
  static const PartsTable table = [] {
    PartsTable parts{};
    for (std::size_t code = 0; code < 256; ++code)
      parts[code] = Split(static_cast<std::uint8_t>(code));
    return parts;
  }();
  return table;
}

Parts split_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto field = static_cast<std::int32_t>(bits >> kFloatFraction & 0xFF);
  const auto mantissa = static_cast<std::int32_t>(bits & 0x7FFFFF);
  const std::int32_t magnitude = field == 0 ? mantissa : mantissa | 0x800000;
  return {std::signbit(value) ? -magnitude : magnitude, std::max(field, 1) - 127};
}

/// `significand` with `from` fractional bits, moved `right` places down the scale and cut toward
/// zero at `to` fractional bits.
std::int64_t cut(std::int64_t significand, int from, int to, std::int32_t right) {
  const std::int64_t magnitude = std::abs(significand);
  const std::int32_t shift = right + from - to;
  const std::int64_t moved = shift <= 0 ? magnitude << -shift : magnitude >> std::min(shift, 63);
  return significand < 0 ? -moved : moved;
}

/// sum * 2^unit, cut toward zero to `kept` significant bits and to the quantum of binary32; +0 for
/// zero.
float cut_to_float(std::int64_t sum, std::int32_t unit, int kept) {
  const auto magnitude = static_cast<std::uint64_t>(std::abs(sum));
  constexpr std::int32_t kSmallestUnit = -149;
  const std::int32_t drop = std::max(
      {static_cast<std::int32_t>(std::bit_width(magnitude)) - kept, kSmallestUnit - unit, 0});
  if (drop > 63 || magnitude >> drop == 0) return 0.0f;
  // At most 24 bits are left, so both conversions are exact unless the number is past binary32:
  // Inf.
  const auto value =
      static_cast<float>(std::ldexp(static_cast<double>(magnitude >> drop), unit + drop));
  return sum < 0 ? -value : value;
}

/// How one group is added.
struct GroupRule {
  int product_fraction;  ///< fractional bits of the products
  int fraction;          ///< fractional bits kept after alignment
  int kept;              ///< significant bits of the result
};

constexpr GroupRule kBF16Rule{2 * kBF16Fraction, 25, 24};
constexpr GroupRule kMmaE4M3Rule{2 * kE4M3Fraction, 25, 24};
constexpr GroupRule kWgmmaE4M3Rule{2 * kE4M3Fraction, 13, 14};

/// A group of finite products and c.
template <std::size_t N>
float add_group(const std::array<Parts, N>& products, float c, const GroupRule& rule) {
  const Parts start = split_float(c);
  std::int32_t largest = start.significand == 0 ? kNoExponent : start.exponent;
  for (const Parts& product : products)
    if (product.significand != 0) largest = std::max(largest, product.exponent);
  if (largest == kNoExponent) return 0.0f;
  std::int64_t sum = start.significand == 0 ? 0
                                            : cut(start.significand, kFloatFraction, rule.fraction,
                                                  largest - start.exponent);
  for (const Parts& product : products)
    if (product.significand != 0)
      sum += cut(product.significand, rule.product_fraction, rule.fraction,
                 largest - product.exponent);
  return cut_to_float(sum, largest - rule.fraction, rule.kept);
}

Parts product_of(Parts a, Parts b) {
  return {a.significand * b.significand, a.exponent + b.exponent};
}

constexpr bool is_special_bf16(std::uint16_t code) {
  return (code & 0x7F80) == 0x7F80;
}
constexpr bool is_nan_e4m3(std::uint8_t code) {
  return (code & 0x7F) == 0x7F;
}

/// What Inf and NaN make of a group, by IEEE rules: the sum of the products in any order, in double
/// so that finite products do not overflow.
float special_sum(std::span<const std::uint16_t> a, std::span<const std::uint16_t> b, float c) {
  double sum = c;
  for (std::size_t k = 0; k < a.size(); ++k)
    sum += static_cast<double>(float_from_bf16(a[k])) * float_from_bf16(b[k]);
  return canonical(static_cast<float>(sum));
}

constexpr std::size_t kBF16Step = 16;
constexpr std::size_t kE4M3Step = 32;

float bf16_step(std::span<const std::uint16_t> a, std::span<const std::uint16_t> b, float c) {
  const bool special = !std::isfinite(c) || std::ranges::any_of(a, is_special_bf16) ||
                       std::ranges::any_of(b, is_special_bf16);
  if (special) return special_sum(a, b, c);
  std::array<Parts, kBF16Step> products;
  for (std::size_t k = 0; k < kBF16Step; ++k)
    products[k] = product_of(split_bf16(a[k]), split_bf16(b[k]));
  return add_group(products, c, kBF16Rule);
}

float bf16_dot(std::span<const std::uint16_t> a, std::span<const std::uint16_t> b, float c) {
  float sum = c;
  for (std::size_t k = 0; k < a.size(); k += kBF16Step)
    sum = bf16_step(a.subspan(k, kBF16Step), b.subspan(k, kBF16Step), sum);
  return sum;
}

bool has_nan(std::span<const std::uint8_t> codes) {
  return std::ranges::any_of(codes, is_nan_e4m3);
}

float mma_e4m3_step(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b, float c) {
  if (has_nan(a) || has_nan(b)) return kCanonicalNan;
  const PartsTable& parts = e4m3_parts<split_e4m3_as_fp16>();
  std::array<std::array<Parts, kE4M3Step / 2>, 2> halves;
  for (std::size_t k = 0; k < kE4M3Step; ++k)
    halves[k % 4 / 2][k / 4 * 2 + k % 2] = product_of(parts[a[k]], parts[b[k]]);
  const float first = add_group(halves[0], 0.0f, kMmaE4M3Rule);
  return add_group(halves[1], first, kMmaE4M3Rule) + c;
}

float wgmma_e4m3_step(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b, float c) {
  if (has_nan(a) || has_nan(b)) return kCanonicalNan;
  if (!std::isfinite(c)) return canonical(c);
  const PartsTable& parts = e4m3_parts<split_e4m3>();
  std::array<Parts, kE4M3Step> products;
  for (std::size_t k = 0; k < kE4M3Step; ++k) products[k] = product_of(parts[a[k]], parts[b[k]]);
  return add_group(products, c, kWgmmaE4M3Rule);
}

template <float (*Step)(std::span<const std::uint8_t>, std::span<const std::uint8_t>, float)>
float e4m3_dot(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b, float c) {
  float sum = c;
  for (std::size_t k = 0; k < a.size(); k += kE4M3Step)
    sum = Step(a.subspan(k, kE4M3Step), b.subspan(k, kE4M3Step), sum);
  return sum;
}

}  // namespace

DotProfile hopper_mma_dot_profile() {
  return {.name = "hopper-mma",
          .grounds = "measured on an H200: mma.sync m16n8k16 BF16 and m16n8k32 E4M3",
          .provisional = false,
          .bf16_step = kBF16Step,
          .e4m3_step = kE4M3Step,
          .bf16 = bf16_dot,
          .e4m3 = e4m3_dot<mma_e4m3_step>};
}

DotProfile hopper_wgmma_dot_profile() {
  return {.name = "hopper-wgmma",
          .grounds = "measured on an H200: wgmma m64n8k16 BF16 and m64n8k32 E4M3",
          .provisional = false,
          .bf16_step = kBF16Step,
          .e4m3_step = kE4M3Step,
          .bf16 = bf16_dot,
          .e4m3 = e4m3_dot<wgmma_e4m3_step>};
}

}  // namespace monoref
