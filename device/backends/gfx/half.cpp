// Instructions on 16-bit numbers: binary16 in VOP1, VOP2 and VOP3, and whole numbers in VOP3.
#include "device/backends/gfx/half.hpp"

#include <algorithm>

#include "device/backends/gfx/table.hpp"

namespace monoref::device::gfx {

void check_half_mode(const Wave& w) {
  if (w.mode.round64 != 0 || w.mode.round32 != 0)
    throw Unsupported{"16-bit arithmetic that does not round to nearest"};
}

const u32* half_row(Wave& w, const Inst& i, unsigned n, bool high, Lanes& space) {
  const u32* const bits = source(w, i, n, space);
  MONOREF_EACH_LANE(l) space.at[l] = high ? bits[l] >> 16 : bits[l] & 0xffff;
  return space.at.data();
}

const u32* half_number_row(Wave& w, const Inst& i, unsigned n, bool high, bool negative,
                           bool absolute, Lanes& space) {
  half_row(w, i, n, high, space);
  const u32 keep = absolute ? 0x7fffU : 0xffffU;
  const u32 flip = negative ? 0x8000U : 0;
  const bool flush = (w.mode.denorm64 & 1) == 0;
  for (u32& value : space.at) {
    value = (value & keep) ^ flip;
    if (flush && (value & 0x7c00) == 0) value &= 0x8000;
  }
  return space.at.data();
}

void finish_half_numbers(const Wave& w, const Inst& i, Lanes& row) {
  constexpr std::array<double, 4> kFactors{1.0, 2.0, 4.0, 0.5};
  for (u32& value : row.at) {
    if (i.output_modifier != 0)
      value = half_result(half_value(value) * kFactors[i.output_modifier], value, value);
    if (i.clamp) {
      const double x = half_value(value);
      if (x != x)
        value = w.mode.dx10_clamp ? 0 : value;
      else
        value = x <= 0 ? 0 : x > 1 ? 0x3c00 : value;
    }
    if ((w.mode.denorm64 & 2) == 0 && (value & 0x7c00) == 0) value &= 0x8000;
  }
}

void write_half_row(Wave& w, const Inst& i, Lanes& row, Rest rest) {
  const u32* const before = w.row(i.dst[0].index);
  const bool high = (i.op_sel >> i.sources & 1) != 0;
  if (rest == Rest::kKeep || high) MONOREF_EACH_LANE(l) {
      row.at[l] = high ? (before[l] & 0xffff) | row.at[l] << 16
                       : (before[l] & 0xffff0000U) | (row.at[l] & 0xffff);
    }
  write_row(w, i, i.dst[0].index, row);
}
void write_half_number_row(Wave& w, const Inst& i, Lanes& row, Rest rest) {
  finish_half_numbers(w, i, row);
  write_half_row(w, i, row, rest);
}

namespace {

/// A function of up to three sources of binary16; op_sel chooses their halves.
template <unsigned kSources, auto F, Rest kRest = Rest::kZero>
void half_numbers(Wave& w, const Inst& i) {
  check_half_mode(w);
  std::array<Lanes, 3> space;
  Lanes out;
  for (unsigned n = 0; n < kSources; ++n)
    half_number_row(w, i, n, (i.op_sel >> n & 1) != 0, i.src[n].negate, i.src[n].absolute,
                    space[n]);
  for (unsigned l = 0; l < kLanes; ++l) {
    const u32 a = space[0].at[l];
    const u32 b = space[1].at[l];
    const u32 c = space[2].at[l];
    u32 value = 0;
    bool infinite = (a & 0x7fff) == 0x7c00;
    if constexpr (kSources == 1) {
      value = F(a);
    } else if constexpr (kSources == 2) {
      value = F(a, b);
      infinite = infinite || (b & 0x7fff) == 0x7c00;
    } else {
      value = F(a, b, c);
      infinite = infinite || (b & 0x7fff) == 0x7c00 || (c & 0x7fff) == 0x7c00;
    }
    // Where MODE says so, only infinities make infinities.
    if (w.mode.fp16_overflow && (value & 0x7fff) == 0x7c00 && !infinite) --value;
    out.at[l] = value;
  }
  write_half_number_row(w, i, out, kRest);
}

/// The same of whole numbers.
template <unsigned kSources, auto F, Rest kRest = Rest::kKeep>
void half_bits(Wave& w, const Inst& i) {
  if (i.clamp) throw Unsupported{"clamp of 16-bit whole numbers"};
  std::array<Lanes, 3> space;
  Lanes out;
  for (unsigned n = 0; n < kSources; ++n) half_row(w, i, n, (i.op_sel >> n & 1) != 0, space[n]);
  for (unsigned l = 0; l < kLanes; ++l) {
    const u32 a = space[0].at[l];
    const u32 b = space[1].at[l];
    if constexpr (kSources == 2)
      out.at[l] = static_cast<u32>(F(a, b)) & 0xffff;
    else
      out.at[l] = static_cast<u32>(F(a, b, space[2].at[l])) & 0xffff;
  }
  write_half_row(w, i, out, kRest);
}

constexpr i32 s16(u32 x) {
  return static_cast<i16>(x);
}

/// A function of real numbers, rounded once.
template <auto F>
u32 function(u32 x) {
  return half_result(F(half_value(x)), x, x);
}
u32 fraction_of(u32 x) {
  const double value = half_value(x);
  if (std::isinf(value)) return 0x7e00;
  return std::min(half_result(value - std::floor(value), x, x), 0x3bffU);
}
u32 middle_half(u32 a, u32 b, u32 c) {
  if (is_half_nan(a) || is_half_nan(b) || is_half_nan(c)) return min_half(min_half(a, b), c);
  return max_half(min_half(a, b), min_half(max_half(a, b), c));
}
constexpr i32 middle(i32 x, i32 y, i32 z) {
  return std::max(std::min(x, y), std::min(std::max(x, y), z));
}
/// To whole numbers: toward zero, to the nearest that fits, 0 for NaN.
u32 to_unsigned(u32 x) {
  const double value = half_value(x);
  return value > 0 ? static_cast<u32>(std::min(value, 65535.0)) : 0;
}
u32 to_signed(u32 x) {
  const double value = half_value(x);
  if (value != value) return 0;
  return static_cast<u32>(static_cast<i32>(std::clamp(value, -32768.0, 32767.0))) & 0xffff;
}
u32 mantissa_of(u32 x) {
  int exponent = 0;
  const double value = half_value(x);
  return std::isinf(value) ? x : half_result(std::frexp(value, &exponent), x, x);
}
u32 exponent_of(u32 x) {
  int exponent = 0;
  const double value = half_value(x);
  if (!std::isfinite(value)) return 0;
  std::frexp(value, &exponent);
  return static_cast<u32>(exponent) & 0xffff;
}
u32 scale_half(u32 x, u32 by) {
  return half_result(std::ldexp(half_value(x), s16(by)), x, x);
}

/// 16 bits in, binary16 out.
template <auto F>
void from_bits(Wave& w, const Inst& i) {
  check_half_mode(w);
  Lanes out;
  half_row(w, i, 0, false, out);
  for (u32& value : out.at) value = narrow(kBinary16, static_cast<double>(F(value)));
  write_half_number_row(w, i, out, Rest::kZero);
}
/// Binary16 in, 16 bits out.
template <auto F>
void to_bits(Wave& w, const Inst& i) {
  Lanes out;
  half_number_row(w, i, 0, false, i.src[0].negate, i.src[0].absolute, out);
  for (u32& value : out.at) value = F(value);
  write_half_row(w, i, out, Rest::kZero);
}
/// A binary16 source's exponent is scaled by a whole number.
void v_ldexp_f16(Wave& w, const Inst& i) {
  check_half_mode(w);
  Lanes number, by;
  half_number_row(w, i, 0, false, i.src[0].negate, i.src[0].absolute, number);
  half_row(w, i, 1, false, by);
  for (unsigned l = 0; l < kLanes; ++l) number.at[l] = scale_half(number.at[l], by.at[l]);
  write_half_number_row(w, i, number, Rest::kZero);
}
/// Two halves side by side.
void v_pack_b32_f16(Wave& w, const Inst& i) {
  Lanes low, high;
  half_number_row(w, i, 0, (i.op_sel & 1) != 0, i.src[0].negate, i.src[0].absolute, low);
  half_number_row(w, i, 1, (i.op_sel >> 1 & 1) != 0, i.src[1].negate, i.src[1].absolute, high);
  MONOREF_EACH_LANE(l) low.at[l] |= high.at[l] << 16;
  write_row(w, i, i.dst[0].index, low);
}
/// 16 bits times 16 bits added to 32 bits; op_sel chooses halves of the factors.
template <bool kSigned>
void mad_into_32(Wave& w, const Inst& i) {
  Lanes a, b, space, out;
  half_row(w, i, 0, (i.op_sel & 1) != 0, a);
  half_row(w, i, 1, (i.op_sel >> 1 & 1) != 0, b);
  const u32* const c = source(w, i, 2, space);
  MONOREF_EACH_LANE(l) {
    out.at[l] =
        c[l] + (kSigned ? static_cast<u32>(s16(a.at[l]) * s16(b.at[l])) : a.at[l] * b.at[l]);
  }
  write_row(w, i, i.dst[0].index, out);
}

constexpr auto kReciprocal = [](double x) { return 1 / x; };
constexpr auto kRoot = [](double x) { return std::sqrt(x); };
constexpr auto kReciprocalRoot = [](double x) { return 1 / std::sqrt(x); };
constexpr auto kExp2 = [](double x) { return std::exp2(x); };
constexpr auto kLog2 = [](double x) { return std::log2(x); };
constexpr auto kFloor = [](double x) { return std::floor(x); };
constexpr auto kCeil = [](double x) { return std::ceil(x); };
constexpr auto kTrunc = [](double x) { return std::trunc(x); };
constexpr auto kEven = [](double x) { return std::nearbyint(x); };

template <auto F>
constexpr Handler kOne = half_numbers<1, F>;
template <auto F>
constexpr Handler kTwo = half_numbers<2, F>;
template <auto F>
constexpr Handler kThree = half_numbers<3, F, Rest::kKeep>;

constexpr Entry kTable[] = {
    // VOP1
    {"v_rcp_f16", kOne<function<kReciprocal>>, 1, Type::kB16},
    {"v_sqrt_f16", kOne<function<kRoot>>, 1, Type::kB16},
    {"v_rsq_f16", kOne<function<kReciprocalRoot>>, 1, Type::kB16},
    {"v_exp_f16", kOne<function<kExp2>>, 1, Type::kB16},
    {"v_log_f16", kOne<function<kLog2>>, 1, Type::kB16},
    {"v_floor_f16", kOne<function<kFloor>>, 1, Type::kB16},
    {"v_ceil_f16", kOne<function<kCeil>>, 1, Type::kB16},
    {"v_trunc_f16", kOne<function<kTrunc>>, 1, Type::kB16},
    {"v_rndne_f16", kOne<function<kEven>>, 1, Type::kB16},
    {"v_fract_f16", kOne<fraction_of>, 1, Type::kB16},
    {"v_frexp_mant_f16", kOne<mantissa_of>, 1, Type::kB16},
    {"v_frexp_exp_i16_f16", to_bits<exponent_of>, 1, Type::kB16},
    {"v_cvt_u16_f16", to_bits<to_unsigned>, 1, Type::kB16},
    {"v_cvt_i16_f16", to_bits<to_signed>, 1, Type::kB16},
    {"v_cvt_f16_u16", from_bits<[](u32 x) { return x; }>, 1, Type::kB16},
    {"v_cvt_f16_i16", from_bits<s16>, 1, Type::kB16},
    // VOP2
    {"v_add_f16", kTwo<add_half>, 1, Type::kB16},
    {"v_sub_f16", kTwo<sub_half>, 1, Type::kB16},
    {"v_subrev_f16", kTwo<[](u32 a, u32 b) { return sub_half(b, a); }>, 1, Type::kB16},
    {"v_mul_f16", kTwo<mul_half>, 1, Type::kB16},
    {"v_min_f16", kTwo<min_half>, 1, Type::kB16},
    {"v_max_f16", kTwo<max_half>, 1, Type::kB16},
    {"v_ldexp_f16", v_ldexp_f16, 1, Type::kB16},
    // VOP3: the half that op_sel does not choose stays
    {"v_fma_f16", kThree<fma_half>, 1, Type::kB16},
    {"v_mad_f16", kThree<[](u32 a, u32 b, u32 c) { return add_half(mul_half(a, b), c); }>, 1,
     Type::kB16},
    {"v_min3_f16", kThree<[](u32 a, u32 b, u32 c) { return min_half(min_half(a, b), c); }>, 1,
     Type::kB16},
    {"v_max3_f16", kThree<[](u32 a, u32 b, u32 c) { return max_half(max_half(a, b), c); }>, 1,
     Type::kB16},
    {"v_med3_f16", kThree<middle_half>, 1, Type::kB16},
    {"v_pack_b32_f16", v_pack_b32_f16, 1, Type::kB16},
    {"v_mad_u16", half_bits<3, [](u32 a, u32 b, u32 c) { return a * b + c; }>, 1, Type::kB16},
    {"v_mad_i16", half_bits<3, [](u32 a, u32 b, u32 c) { return a * b + c; }>, 1, Type::kB16},
    {"v_add_i16", half_bits<2, [](u32 a, u32 b) { return a + b; }>, 1, Type::kB16},
    {"v_sub_i16", half_bits<2, [](u32 a, u32 b) { return a - b; }>, 1, Type::kB16},
    {"v_min3_i16",
     half_bits<3, [](u32 a, u32 b, u32 c) { return std::min({s16(a), s16(b), s16(c)}); }>, 1,
     Type::kB16},
    {"v_max3_i16",
     half_bits<3, [](u32 a, u32 b, u32 c) { return std::max({s16(a), s16(b), s16(c)}); }>, 1,
     Type::kB16},
    {"v_med3_i16", half_bits<3, [](u32 a, u32 b, u32 c) { return middle(s16(a), s16(b), s16(c)); }>,
     1, Type::kB16},
    {"v_min3_u16", half_bits<3, [](u32 a, u32 b, u32 c) { return std::min({a, b, c}); }>, 1,
     Type::kB16},
    {"v_max3_u16", half_bits<3, [](u32 a, u32 b, u32 c) { return std::max({a, b, c}); }>, 1,
     Type::kB16},
    {"v_med3_u16",
     half_bits<3,
               [](u32 a, u32 b, u32 c) {
                 return middle(static_cast<i32>(a), static_cast<i32>(b), static_cast<i32>(c));
               }>,
     1, Type::kB16},
    {"v_mad_u32_u16", mad_into_32<false>, 1, Type::kB16},
    {"v_mad_i32_i16", mad_into_32<true>, 1, Type::kB16},
};

}  // namespace

std::span<const Entry> half_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
