#include "device/backends/gfx/matrix.hpp"

#include <algorithm>

namespace monoref::device::gfx {
namespace {

/// value / 2^bits, toward minus infinity; times where bits are negative.
i128 floor_shift(i128 value, i32 bits) {
  if (bits <= 0) return value << -bits;
  return bits > 126 ? (value < 0 ? -1 : 0) : value >> bits;
}
/// The same toward zero.
i128 cut_shift(i128 value, i32 bits) {
  return value < 0 ? -floor_shift(-value, bits) : floor_shift(value, bits);
}

i32 length_of(u128 value) {
  const auto high = static_cast<u64>(value >> 64);
  return high != 0 ? 128 - std::countl_zero(high) : 64 - std::countl_zero(static_cast<u64>(value));
}

u32 round_signed(i128 value, i32 exponent) {
  return round_product(value < 0, value < 0 ? -static_cast<u128>(value) : static_cast<u128>(value),
                       exponent);
}

/// The place of the bit before the point, of numbers that are not normalised.
i32 exponent_of(const Factor& factor) {
  return factor.exponent + factor.fraction;
}

/// Whether a product is at least 2^128, which makes it infinite in the models of gfx942.
bool is_too_large(const Factor& a, const Factor& b) {
  const i64 product = i64{a.significand} * b.significand;
  return product != 0 &&
         length_of(static_cast<u128>(product < 0 ? -product : product)) + a.exponent + b.exponent >
             128;
}

/// What infinities and NaNs make of a sum; nothing where all is finite.
std::optional<u32> special_result(const Dot& dot, u32 c, bool products_overflow = false) {
  bool up = c == 0x7f800000U;
  bool down = c == 0xff800000U;
  bool bad = is_nan(c);
  for (std::size_t k = 0; k < dot.a.size(); ++k) {
    const Factor& a = dot.a[k];
    const Factor& b = dot.b[k];
    if (a.kind == Factor::Kind::kFinite && b.kind == Factor::Kind::kFinite) {
      if (products_overflow && is_too_large(a, b)) (a.negative != b.negative ? down : up) = true;
      continue;
    }
    const bool zero = (a.kind == Factor::Kind::kFinite && a.significand == 0) ||
                      (b.kind == Factor::Kind::kFinite && b.significand == 0);
    bad = bad || zero || a.kind == Factor::Kind::kNotANumber || b.kind == Factor::Kind::kNotANumber;
    (a.negative != b.negative ? down : up) = true;
  }
  if (bad || (up && down)) return kNan;
  if (up) return 0x7f800000U;
  if (down) return 0xff800000U;
  return std::nullopt;
}

u32 exact_dot(const Dot& dot) {
  if (const auto special = special_result(dot, dot.c)) return *special;
  ExactSum sum;
  bool negative = dot.c >> 31 != 0;  // as long as all are
  bool zeros = (dot.c << 1) == 0;
  const Factor c = factor_of(dot.c);
  sum.add(c.significand, c.exponent);
  for (std::size_t k = 0; k < dot.a.size(); ++k) {
    const Factor& a = dot.a[k];
    const Factor& b = dot.b[k];
    const i64 product = i64{a.significand} * b.significand;
    negative = negative && a.negative != b.negative;
    zeros = zeros && product == 0;
    if (product != 0) sum.add(product, a.exponent + b.exponent);
  }
  // Zeros alone keep their sign where they agree.
  return zeros && negative ? 0x80000000U : sum.rounded();
}

u32 portable_dot(const Dot& dot) {
  if (const auto special = special_result(dot, dot.c)) return *special;
  u32 sum = dot.c;
  for (std::size_t k = 0; k < dot.a.size(); ++k)
    sum = exact_dot({dot.a.subspan(k, 1), dot.b.subspan(k, 1), sum, false, false});
  return sum;
}

/// Products added as integers: aligned to the largest exponent among those that are not zero, each
/// cut toward zero 24 bits behind it.
struct Aligned {
  i128 sum = 0;
  std::optional<i32> exponent;
  i32 last() const { return exponent.value_or(0) - 24; }
};
Aligned aligned_sum(const Dot& dot, std::size_t first, std::size_t end, std::size_t step) {
  Aligned aligned;
  for (std::size_t k = first; k < end; k += step)
    if (dot.a[k].significand != 0 && dot.b[k].significand != 0) {
      const i32 exponent = exponent_of(dot.a[k]) + exponent_of(dot.b[k]);
      aligned.exponent = std::max(exponent, aligned.exponent.value_or(exponent));
    }
  for (std::size_t k = first; k < end && aligned.exponent; k += step) {
    const i64 product = i64{dot.a[k].significand} * dot.b[k].significand;
    aligned.sum += cut_shift(product, aligned.last() - (dot.a[k].exponent + dot.b[k].exponent));
  }
  return aligned;
}

/// Adds the accumulator to a group's sum, and rounds.
u32 join(const Aligned& group, u32 c, MatrixModel model) {
  const bool later = model == MatrixModel::kCdna3Peichenxie;
  const i32 group_bits = later ? 32 : 31;
  constexpr i32 kAccumulatorBits = 24;
  const Factor addend = factor_of(c);
  const bool has_c = addend.significand != 0;
  if (!group.exponent && !has_c) return c;
  i32 exponent = has_c ? exponent_of(addend) : *group.exponent;
  if (group.exponent) exponent = std::max(exponent, *group.exponent);
  // Both in units of the group's last place.
  const i32 last = exponent - group_bits;
  i128 sum = floor_shift(group.sum, last - group.last());
  const i128 c_part =
      floor_shift(addend.significand, exponent - kAccumulatorBits - addend.exponent);
  sum += c_part << (group_bits - kAccumulatorBits);
  if (sum == 0) return 0;
  if (!later) return round_signed(sum, last);
  const i32 leading = std::max(
      length_of(sum < 0 ? static_cast<u128>(-sum) : static_cast<u128>(sum)) - 1 + last, -126);
  const i32 normal_last = leading - 31;
  return normal_last <= last ? round_signed(sum, last)
                             : round_signed(floor_shift(sum, normal_last - last), normal_last);
}

u32 cdna3_halves(const Dot& dot, MatrixModel model) {
  constexpr std::size_t kGroup = 8;
  u32 sum = dot.c;
  for (std::size_t k = 0; k < dot.a.size(); k += kGroup) {
    const std::size_t count = std::min(kGroup, dot.a.size() - k);
    const Dot part{dot.a.subspan(k, count), dot.b.subspan(k, count), sum, false, true};
    if (const auto special = special_result(part, sum, true))
      sum = *special;
    else
      sum = join(aligned_sum(part, 0, count, 1), sum, model);
  }
  return sum;
}

/// Even and odd k are added by themselves first.
u32 cdna3_eights(const Dot& dot, MatrixModel model) {
  constexpr std::size_t kGroup = 16;
  constexpr i32 kTooSmall = 25;
  u32 sum = dot.c;
  for (std::size_t k = 0; k < dot.a.size(); k += kGroup) {
    const std::size_t count = std::min(kGroup, dot.a.size() - k);
    const Dot part{dot.a.subspan(k, count), dot.b.subspan(k, count), sum, true, false};
    if (const auto special = special_result(part, sum, true)) {
      sum = *special;
      continue;
    }
    const Aligned even = aligned_sum(part, 0, count, 2);
    const Aligned odd = aligned_sum(part, 1, count, 2);
    Aligned both;
    if (even.exponent || odd.exponent) {
      both.exponent =
          std::max(even.exponent.value_or(*(odd.exponent ? odd.exponent : even.exponent)),
                   odd.exponent.value_or(*(even.exponent ? even.exponent : odd.exponent)));
      if (even.exponent) both.sum += floor_shift(even.sum, both.last() - even.last());
      if (odd.exponent) both.sum += floor_shift(odd.sum, both.last() - odd.last());
    }
    const Factor c = factor_of(sum);
    const bool dropped =
        c.significand != 0 && both.exponent && exponent_of(c) < *both.exponent - kTooSmall;
    sum = join(both, dropped ? 0 : sum, model);
  }
  return sum;
}

}  // namespace

Factor factor_of(u32 bits) {
  Factor factor;
  factor.negative = bits >> 31 != 0;
  factor.fraction = 23;
  const u32 exponent = bits >> 23 & 0xff;
  const u32 fraction = bits & 0x7fffff;
  if (exponent == 0xff) {
    factor.kind = fraction == 0 ? Factor::Kind::kInfinite : Factor::Kind::kNotANumber;
    return factor;
  }
  const u32 magnitude = exponent == 0 ? fraction : fraction | 0x800000U;
  factor.significand = factor.negative ? -as_signed(magnitude) : as_signed(magnitude);
  factor.exponent = static_cast<std::int16_t>(static_cast<i32>(std::max(exponent, 1U)) - 150);
  return factor;
}

u32 round_product(bool negative, u128 significand, i32 exponent) {
  constexpr i32 kLeast = -149;  // the weight of the last bit of a subnormal
  const u32 sign = negative ? 0x80000000U : 0;
  if (significand == 0) return sign;
  const i32 length = length_of(significand);
  const i32 last = std::max(exponent + length - 24, kLeast);
  const i32 drop = last - exponent;
  u128 kept = 0;
  if (drop <= 0) {
    kept = significand << -drop;  // the significand is short, or 2^kLeast is far below
  } else if (drop <= 127) {
    kept = significand >> drop;
    const u128 rest = significand - (kept << drop);
    const u128 half = u128{1} << (drop - 1);
    if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
  }
  // A normal number's leading bit adds one to the exponent field; so does a carry.
  const i64 field = last - kLeast;
  const i64 bits = (field << 23) + static_cast<i64>(kept);
  return bits >= 0x7f800000 ? sign | 0x7f800000U : sign | static_cast<u32>(bits);
}

void ExactSum::add(i64 significand, i32 exponent) {
  const auto shift = static_cast<unsigned>(exponent - kLowest);
  const unsigned word = shift / kBits;
  const i128 placed = static_cast<i128>(significand) << (shift % kBits);
  // Three parts of 32 bits, the uppermost with the sign.
  words_[word] += static_cast<i64>(static_cast<u64>(placed) & 0xffffffff);
  words_[word + 1] += static_cast<i64>(static_cast<u64>(placed >> kBits) & 0xffffffff);
  words_[word + 2] += static_cast<i64>(placed >> (2 * kBits));
}

u32 ExactSum::rounded() const {
  std::array<i64, kWords> words = words_;
  const auto carry_all = [&] {
    for (int n = 0; n + 1 < kWords; ++n) {
      words[n + 1] += words[n] >> kBits;
      words[n] &= 0xffffffff;
    }
  };
  carry_all();
  const bool negative = words.back() < 0;
  if (negative) {
    for (i64& word : words) word = -word;
    carry_all();
  }
  int top = kWords - 1;
  while (top >= 0 && words[top] == 0) --top;
  if (top < 0) return 0;
  // The upper three words, and whether anything lies below them.
  u128 significand = 0;
  for (int n = top; n > top - 3; --n)
    significand = significand << kBits | static_cast<u64>(n >= 0 ? words[n] : 0);
  bool more = false;
  for (int n = top - 3; n >= 0; --n) more = more || words[n] != 0;
  return round_product(negative, significand << 1 | (more ? 1 : 0),
                       kLowest + kBits * (top - 2) - 1);
}

u32 dot(MatrixModel model, const Dot& dot) {
  switch (model) {
    case MatrixModel::kExact:
      return exact_dot(dot);
    case MatrixModel::kPortable:
      return portable_dot(dot);
    default:
      if (dot.eight_bits) return cdna3_eights(dot, model);
      if (dot.halves) return cdna3_halves(dot, model);
      throw Unsupported{"the model " + std::string(name_of(model)) +
                        " says nothing of products of binary32"};
  }
}

}  // namespace monoref::device::gfx
