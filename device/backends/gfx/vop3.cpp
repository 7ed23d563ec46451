// Vector instructions of three sources, and those that only VOP3 encodes.
#include "device/backends/gfx/format.hpp"
#include "device/backends/gfx/table.hpp"

namespace monoref::device::gfx {
namespace {

constexpr i32 exponent_field(u32 x) {
  return static_cast<i32>(x >> 23 & 0xff);
}
constexpr bool is_subnormal(u32 x) {
  return exponent_field(x) == 0 && (x << 1) != 0;
}
bool vanishes(double x) {
  return x != 0 && std::abs(x) < 0x1p-126;
}

u32 alignbit(u32 a, u32 b, u32 c) {
  return static_cast<u32>((u64{a} << 32 | b) >> (c & 31));
}
u32 alignbyte(u32 a, u32 b, u32 c) {
  return static_cast<u32>((u64{a} << 32 | b) >> (8 * (c & 3)));
}
u32 bfe_u(u32 a, u32 b, u32 c) {
  return a >> (b & 31) & ((1U << (c & 31)) - 1);
}
u32 bfe_i(u32 a, u32 b, u32 c) {
  const u32 width = c & 31;
  const u32 value = bfe_u(a, b, c);
  const u32 top = 1U << ((width - 1) & 31);
  // The sign bit is the field's last, or the last there is where the field reaches beyond.
  const u32 offset = b & 31;
  const u32 reached = offset + width > 32 ? static_cast<u32>(as_signed(a) >> offset) : 0;
  return width == 0 ? 0 : offset + width > 32 ? reached : (value ^ top) - top;
}
u32 permute_byte(u32 a, u32 b, u32 selector) {
  const u64 both = u64{a} << 32 | b;
  if (selector < 8) return static_cast<u32>(both >> (8 * selector) & 0xff);
  if (selector > 12) return 0xff;
  if (selector == 12) return 0;
  return (both >> (16 * (selector - 8) + 15) & 1) != 0 ? 0xff : 0;
}
u32 permute(u32 a, u32 b, u32 c) {
  u32 value = 0;
  for (unsigned byte = 0; byte < 4; ++byte)
    value |= permute_byte(a, b, c >> (8 * byte) & 0xff) << (8 * byte);
  return value;
}
u32 middle(u32 a, u32 b, u32 c) {
  const i32 x = as_signed(a), y = as_signed(b), z = as_signed(c);
  return static_cast<u32>(std::max(std::min(x, y), std::min(std::max(x, y), z)));
}
u32 middle_u(u32 a, u32 b, u32 c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}
u32 smallest(u32 a, u32 b, u32 c) {
  return min_float(min_float(a, b), c);
}
u32 smallest_ieee(u32 a, u32 b, u32 c) {
  return min_float_ieee(min_float_ieee(a, b), c);
}
u32 largest(u32 a, u32 b, u32 c) {
  return max_float(max_float(a, b), c);
}
u32 largest_ieee(u32 a, u32 b, u32 c) {
  return max_float_ieee(max_float_ieee(a, b), c);
}
u32 middle_f(u32 a, u32 b, u32 c) {
  if (is_nan(a) || is_nan(b) || is_nan(c)) return min_float(min_float(a, b), c);
  return max_float(min_float(a, b), min_float(max_float(a, b), c));
}
u32 sad_u8(u32 a, u32 b, u32 c) {
  for (unsigned byte = 0; byte < 32; byte += 8) {
    const auto x = static_cast<i32>(a >> byte & 0xff);
    const auto y = static_cast<i32>(b >> byte & 0xff);
    c += static_cast<u32>(x < y ? y - x : x - y);
  }
  return c;
}

/// Any function of three bits, by its truth table.
void v_bitop3_b32(Wave& w, const Inst& i) {
  Lanes sa, sb, sc, out;
  const u32* const a = source(w, i, 0, sa);
  const u32* const b = source(w, i, 1, sb);
  const u32* const c = source(w, i, 2, sc);
  std::array<u32, 8> term{};
  for (unsigned t = 0; t < 8; ++t) term[t] = (i.table >> t & 1) != 0 ? ~0U : 0;
  const bool direct = writes_directly(w, i);
  u32* const d = direct ? w.row(i.dst[0].index) : out.at.data();
  MONOREF_EACH_LANE(l) {
    const u32 x = a[l], y = b[l], z = c[l];
    d[l] =
        (x & ((y & ((z & term[7]) | (~z & term[6]))) | (~y & ((z & term[5]) | (~z & term[4]))))) |
        (~x & ((y & ((z & term[3]) | (~z & term[2]))) | (~y & ((z & term[1]) | (~z & term[0])))));
  }
  if (!direct) write_row(w, i, i.dst[0].index, out);
}
/// The same of 16 bits; the upper half of the result is zero.
void v_bitop3_b16(Wave& w, const Inst& i) {
  if ((i.op_sel & 15) != 0) throw Unsupported{"op_sel of v_bitop3_b16"};
  Lanes sa, sb, sc, out;
  const u32* const a = source(w, i, 0, sa);
  const u32* const b = source(w, i, 1, sb);
  const u32* const c = source(w, i, 2, sc);
  for (unsigned l = 0; l < kLanes; ++l) {
    u32 value = 0;
    for (unsigned bit = 0; bit < 16; ++bit) {
      const u32 key = (a[l] >> bit & 1) << 2 | (b[l] >> bit & 1) << 1 | (c[l] >> bit & 1);
      value |= (i.table >> key & 1U) << bit;
    }
    out.at[l] = value;
  }
  write_row(w, i, i.dst[0].index, out);
}

void v_readlane_b32(Wave& w, const Inst& i) {
  Lanes space;
  set_scalar32(w, i.dst[0], source(w, i, 0, space)[scalar32(w, i.src[1]) & 63]);
}
/// Whatever EXEC says.
void v_writelane_b32(Wave& w, const Inst& i) {
  w.row(i.dst[0].index)[scalar32(w, i.src[1]) & 63] = scalar32(w, i.src[0]);
}

/// The number of lanes of a mask below each lane, added to a source.
template <unsigned kHalf>
void mask_count(Wave& w, const Inst& i) {
  Lanes sa, sb, out;
  const u32* const a = source(w, i, 0, sa);
  const u32* const b = source(w, i, 1, sb);
  for (unsigned l = 0; l < kLanes; ++l) {
    const u64 below = (u64{1} << l) - 1;
    out.at[l] =
        static_cast<u32>(std::popcount(a[l] & static_cast<u32>(below >> (32 * kHalf)))) + b[l];
  }
  if (writes_directly(w, i))
    std::memcpy(w.row(i.dst[0].index), out.at.data(), sizeof out.at);
  else
    write_row(w, i, i.dst[0].index, out);
}

// Shifts of 64 bits: the distance comes first.
template <auto F>
void shift_wide(Wave& w, const Inst& i) {
  Lanes distance;
  WideLanes space;
  const u32* const by = source(w, i, 0, distance);
  const WideRow a = wide_source(w, i, 1, space);
  write_wide(w, i, [&](unsigned l) { return F(a[l], by[l] & 63); });
}
void v_lshl_add_u64(Wave& w, const Inst& i) {
  WideLanes sa, sc;
  Lanes sb;
  const WideRow a = wide_source(w, i, 0, sa);
  const u32* const b = source(w, i, 1, sb);
  const WideRow c = wide_source(w, i, 2, sc);
  write_wide(w, i, [&](unsigned l) { return (a[l] << (b[l] & 7)) + c[l]; });
}
void v_mad_u64_u32(Wave& w, const Inst& i) {
  Lanes sa, sb, carries;
  WideLanes sc;
  const u32* const a = source(w, i, 0, sa);
  const u32* const b = source(w, i, 1, sb);
  const WideRow c = wide_source(w, i, 2, sc);
  for (unsigned l = 0; l < kLanes; ++l) carries.at[l] = u64{a[l]} * b[l] + c[l] < c[l] ? ~0U : 0;
  const u64 bits = pack_lanes(carries.at.data()) & written_lanes(w, i);
  write_wide(w, i, [&](unsigned l) { return u64{a[l]} * b[l] + c[l]; });
  set_scalar64(w, i.dst[1], bits);
}
void v_mad_i64_i32(Wave& w, const Inst& i) {
  Lanes sa, sb, carries;
  WideLanes sc;
  const u32* const a = source(w, i, 0, sa);
  const u32* const b = source(w, i, 1, sb);
  const WideRow c = wide_source(w, i, 2, sc);
  const auto product = [&](unsigned l) { return i64{as_signed(a[l])} * as_signed(b[l]); };
  for (unsigned l = 0; l < kLanes; ++l) {
    i64 sum = 0;
    carries.at[l] = __builtin_add_overflow(product(l), as_signed(c[l]), &sum) ? ~0U : 0;
  }
  const u64 bits = pack_lanes(carries.at.data()) & written_lanes(w, i);
  write_wide(w, i, [&](unsigned l) { return static_cast<u64>(product(l)) + c[l]; });
  set_scalar64(w, i.dst[1], bits);
}

/// One operand of a division, scaled so that the steps between neither overflow nor underflow.
/// VCC tells v_div_fmas where to undo it. Sources: the operand, the denominator, the numerator.
u32 div_scale(u32 operand, u32 denominator, u32 numerator, bool& scaled) {
  const double n = as_float(numerator);
  const double d = as_float(denominator);
  const i32 apart = exponent_field(numerator) - exponent_field(denominator);
  scaled = false;
  if (n == 0 || d == 0) return kNan;
  if (apart >= 96) {
    scaled = true;
    return operand == denominator ? scale_by(operand, 64) : operand;
  }
  if (is_subnormal(denominator)) return scale_by(operand, 64);
  if (vanishes(1 / d) && vanishes(n / d)) {
    scaled = true;
    return operand == denominator ? scale_by(operand, -64) : operand;
  }
  if (vanishes(1 / d)) return scale_by(operand, -64);
  if (vanishes(n / d)) {
    scaled = true;
    return operand == numerator ? scale_by(operand, 64) : operand;
  }
  if (exponent_field(numerator) <= 23) return scale_by(operand, 64);
  return operand;
}
void v_div_scale_f32(Wave& w, const Inst& i) {
  Lanes sa, sb, sc, out, flags;
  const u32* const a = float_source(w, i, 0, sa);
  const u32* const b = float_source(w, i, 1, sb);
  const u32* const c = float_source(w, i, 2, sc);
  for (unsigned l = 0; l < kLanes; ++l) {
    bool scaled = false;
    out.at[l] = div_scale(a[l], b[l], c[l], scaled);
    flags.at[l] = scaled ? ~0U : 0;
  }
  const u64 bits = pack_lanes(flags.at.data()) & written_lanes(w, i);
  write_float_row(w, i, out);
  set_scalar64(w, i.dst[1], bits);
}

/// a * b + c times a power of two, with one rounding.
u32 scaled_fma(u32 a, u32 b, u32 c) {
  const double factor = exponent_field(c) > 127 ? 0x1p64 : 0x1p-64;
  const double product = static_cast<double>(as_float(a)) * as_float(b);
  const double sum = sum_to_odd(product, as_float(c));
  if (sum != sum) return nan_of(a, b, c);
  return as_bits(static_cast<float>(sum * factor));
}
void v_div_fmas_f32(Wave& w, const Inst& i) {
  Lanes sa, sb, sc, out;
  const u32* const a = float_source(w, i, 0, sa);
  const u32* const b = float_source(w, i, 1, sb);
  const u32* const c = float_source(w, i, 2, sc);
  const u64 vcc = w.pair(kVcc);
  for (unsigned l = 0; l < kLanes; ++l)
    out.at[l] = (vcc >> l & 1) != 0 ? scaled_fma(a[l], b[l], c[l]) : fma_float(a[l], b[l], c[l]);
  write_float_row(w, i, out);
}
/// The quotient of special operands; else the one that was computed, with its sign.
u32 div_fixup(u32 quotient, u32 denominator, u32 numerator) {
  constexpr u32 kInfinity = 0x7f800000;
  constexpr u32 kInvalid = 0xffc00000;
  const u32 sign = (denominator ^ numerator) & 0x80000000U;
  const u32 d = denominator & 0x7fffffffU;
  const u32 n = numerator & 0x7fffffffU;
  if (is_nan(numerator)) return numerator | kQuiet;
  if (is_nan(denominator)) return denominator | kQuiet;
  if ((d == 0 && n == 0) || (d == kInfinity && n == kInfinity)) return kInvalid;
  if (d == 0 || n == kInfinity) return sign | kInfinity;
  if (d == kInfinity || n == 0) return sign;
  if (exponent_field(n) - exponent_field(d) < -150) return sign;
  // The steps between make a NaN of a quotient that overflowed.
  if (exponent_field(quotient) == 255) return sign | kInfinity;
  return sign | (quotient & 0x7fffffffU);
}

constexpr Entry kTable[] = {
    {"v_fma_f32", float_ternary<fma_float>},
    {"v_mad_f32", float_ternary<[](u32 a, u32 b, u32 c) { return add_float(mul_float(a, b), c); }>},
    {"v_mad_i32_i24", ternary<[](u32 a, u32 b, u32 c) {
       return static_cast<u32>(i64{as_signed(a << 8) >> 8} * (as_signed(b << 8) >> 8)) + c;
     }>},
    {"v_mad_u32_u24",
     ternary<[](u32 a, u32 b, u32 c) { return (a & 0xffffff) * (b & 0xffffff) + c; }>},
    {"v_bfe_u32", ternary<bfe_u>},
    {"v_bfe_i32", ternary<bfe_i>},
    {"v_bfi_b32", ternary<[](u32 a, u32 b, u32 c) { return (a & b) | (~a & c); }>},
    {"v_alignbit_b32", ternary<alignbit>},
    {"v_alignbyte_b32", ternary<alignbyte>},
    {"v_min3_f32", by_ieee_mode<float_ternary<smallest_ieee>, float_ternary<smallest>>},
    {"v_min3_i32", ternary<[](u32 a, u32 b, u32 c) {
       return std::min(std::min(as_signed(a), as_signed(b)), as_signed(c));
     }>},
    {"v_min3_u32", ternary<[](u32 a, u32 b, u32 c) { return std::min(std::min(a, b), c); }>},
    {"v_max3_f32", by_ieee_mode<float_ternary<largest_ieee>, float_ternary<largest>>},
    {"v_max3_i32", ternary<[](u32 a, u32 b, u32 c) {
       return std::max(std::max(as_signed(a), as_signed(b)), as_signed(c));
     }>},
    {"v_max3_u32", ternary<[](u32 a, u32 b, u32 c) { return std::max(std::max(a, b), c); }>},
    {"v_minimum3_f32",
     float_ternary<[](u32 a, u32 b, u32 c) { return minimum_float(minimum_float(a, b), c); }>},
    {"v_maximum3_f32",
     float_ternary<[](u32 a, u32 b, u32 c) { return maximum_float(maximum_float(a, b), c); }>},
    {"v_med3_f32", float_ternary<middle_f>},
    {"v_med3_i32", ternary<middle>},
    {"v_med3_u32", ternary<middle_u>},
    {"v_sad_u8", ternary<sad_u8>},
    {"v_sad_u32", ternary<[](u32 a, u32 b, u32 c) { return (a < b ? b - a : a - b) + c; }>},
    {"v_perm_b32", ternary<permute>},
    {"v_bitop3_b32", v_bitop3_b32},
    {"v_bitop3_b16", v_bitop3_b16, 1, Type::kB16},
    {"v_lshl_add_u32", ternary<[](u32 a, u32 b, u32 c) { return (a << (b & 31)) + c; }>},
    {"v_add_lshl_u32", ternary<[](u32 a, u32 b, u32 c) { return (a + b) << (c & 31); }>},
    {"v_add3_u32", ternary<[](u32 a, u32 b, u32 c) { return a + b + c; }>},
    {"v_lshl_or_b32", ternary<[](u32 a, u32 b, u32 c) { return a << (b & 31) | c; }>},
    {"v_and_or_b32", ternary<[](u32 a, u32 b, u32 c) { return (a & b) | c; }>},
    {"v_or3_b32", ternary<[](u32 a, u32 b, u32 c) { return a | b | c; }>},
    {"v_xad_u32", ternary<[](u32 a, u32 b, u32 c) { return (a ^ b) + c; }>},
    {"v_mul_lo_u32", binary<[](u32 a, u32 b) { return a * b; }>},
    {"v_mul_hi_u32", binary<[](u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); }>},
    {"v_mul_hi_i32",
     binary<[](u32 a, u32 b) { return static_cast<u32>(i64{as_signed(a)} * as_signed(b) >> 32); }>},
    {"v_bfm_b32", binary<[](u32 a, u32 b) { return ((1U << (a & 31)) - 1) << (b & 31); }>},
    {"v_bcnt_u32_b32",
     binary<[](u32 a, u32 b) { return (static_cast<u32>(std::popcount(a)) + b); }>},
    {"v_mbcnt_lo_u32_b32", mask_count<0>},
    {"v_mbcnt_hi_u32_b32", mask_count<1>},
    {"v_ldexp_f32",
     [](Wave& w, const Inst& i) {
       Lanes sa, sb, out;
       const u32* const a = float_source(w, i, 0, sa);
       const u32* const b = source(w, i, 1, sb);
       for (unsigned l = 0; l < kLanes; ++l) out.at[l] = scale_by(a[l], as_signed(b[l]));
       write_float_row(w, i, out);
     }},
    {"v_readlane_b32", v_readlane_b32},
    {"v_writelane_b32", v_writelane_b32},
    {"v_lshlrev_b64", shift_wide<[](u64 a, u32 b) { return a << b; }>, 1, Type::kB64},
    {"v_lshrrev_b64", shift_wide<[](u64 a, u32 b) { return (a >> b); }>, 1, Type::kB64},
    {"v_ashrrev_i64",
     shift_wide<[](u64 a, u32 b) { return (static_cast<u64>(as_signed(a) >> b)); }>, 1, Type::kB64},
    {"v_lshl_add_u64", v_lshl_add_u64, 1, Type::kB64},
    {"v_mad_u64_u32", v_mad_u64_u32, 2, Type::kB64},
    {"v_mad_i64_i32", v_mad_i64_i32, 2, Type::kB64},
    {"v_div_scale_f32", v_div_scale_f32, 2},
    {"v_div_fmas_f32", v_div_fmas_f32},
    {"v_div_fixup_f32", float_ternary<div_fixup>},
};

}  // namespace

std::span<const Entry> vop3_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
