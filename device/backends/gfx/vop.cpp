// Vector instructions of one and two sources: VOP1, VOP2.
#include "device/backends/gfx/number.hpp"
#include "device/backends/gfx/table.hpp"

namespace monoref::device::gfx {
namespace {

/// F of whole numbers' bits, of which SDWA and DPP may be part.
constexpr u32 low16(u32 x) {
  return x & 0xffff;
}
constexpr i32 s16(u32 x) {
  return static_cast<i16>(x);
}
constexpr i32 s24(u32 x) {
  return as_signed(x << 8) >> 8;
}
constexpr u32 u24(u32 x) {
  return x & 0xffffff;
}
u32 reverse(u32 x) {
  x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
  x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
  x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
  x = (x >> 8 & 0x00ff00ff) | (x & 0x00ff00ff) << 8;
  return x >> 16 | x << 16;
}
u32 truncate(u32 x) {
  return is_nan(x) ? x | kQuiet : as_bits(std::trunc(as_float(x)));
}
u32 floor_of(u32 x) {
  return is_nan(x) ? x | kQuiet : as_bits(std::floor(as_float(x)));
}
u32 ceil_of(u32 x) {
  return is_nan(x) ? x | kQuiet : as_bits(std::ceil(as_float(x)));
}
/// What is left above the floor, less than 1.
u32 fraction_of(u32 x) {
  if (is_nan(x)) return x | kQuiet;
  const float value = as_float(x);
  if (std::isinf(value)) return kNan;
  return as_bits(std::min(value - std::floor(value), 0x1.fffffep-1F));
}
u32 mantissa_of(u32 x) {
  if (is_nan(x)) return x | kQuiet;
  int exponent = 0;
  const float value = as_float(x);
  return std::isinf(value) ? x : as_bits(std::frexp(value, &exponent));
}
u32 exponent_of(u32 x) {
  const float value = as_float(x);
  int exponent = 0;
  if (!std::isfinite(value)) return 0;
  std::frexp(value, &exponent);
  return static_cast<u32>(exponent);
}
u32 first_high(u32 x) {
  return x == 0 ? ~0U : static_cast<u32>(std::countl_zero(x));
}
u32 first_high_signed(u32 x) {
  const u32 same = static_cast<u32>(std::countl_zero(as_signed(x) < 0 ? ~x : x));
  return same == 32 ? ~0U : same;
}
u32 first_low(u32 x) {
  return x == 0 ? ~0U : static_cast<u32>(std::countr_zero(x));
}

/// The destination is a source, too.
template <auto F>
void accumulate(Wave& w, const Inst& i) {
  Lanes sa, sb, sc, out;
  const u32* const a = float_source(w, i, 0, sa);
  const u32* const b = float_source(w, i, 1, sb);
  Operand accumulator = i.dst[0];
  const u32* const c = w.flush32 ? gather_float(w, i, accumulator, sc) : w.row(accumulator.index);
  const bool direct = writes_directly(w, i) && !w.flush32;
  u32* const d = direct ? w.row(i.dst[0].index) : out.at.data();
  MONOREF_EACH_LANE(l) d[l] = F(a[l], b[l], c[l]);
  if (!direct) write_float_row(w, i, out);
}

/// Sums with a carry: F gives 33 bits of which the uppermost is the carry.
template <auto F>
void carry_out(Wave& w, const Inst& i) {
  Lanes sa, sb, out, carries;
  const u32* const a = source(w, i, 0, sa);
  const u32* const b = source(w, i, 1, sb);
  MONOREF_EACH_LANE(l) {
    const u64 sum = F(a[l], b[l], 0);
    out.at[l] = static_cast<u32>(sum);
    carries.at[l] = (sum >> 32 & 1) != 0 ? ~0U : 0;
  }
  const u64 lanes = written_lanes(w, i);
  write_row(w, i, i.dst[0].index, out);
  set_scalar64(w, i.dst[1], pack_lanes(carries.at.data()) & lanes);
}
template <auto F>
void carry_in_out(Wave& w, const Inst& i) {
  Lanes sa, sb, in, out, carries;
  const u32* const a = source(w, i, 0, sa);
  const u32* const b = source(w, i, 1, sb);
  spread_lanes(scalar64(w, i.src[2]), in);
  MONOREF_EACH_LANE(l) {
    const u64 sum = F(a[l], b[l], in.at[l] & 1);
    out.at[l] = static_cast<u32>(sum);
    carries.at[l] = (sum >> 32 & 1) != 0 ? ~0U : 0;
  }
  const u64 lanes = written_lanes(w, i);
  write_row(w, i, i.dst[0].index, out);
  set_scalar64(w, i.dst[1], pack_lanes(carries.at.data()) & lanes);
}
constexpr u64 add3(u32 a, u32 b, u32 c) {
  return u64{a} + b + c;
}
constexpr u64 sub3(u32 a, u32 b, u32 c) {
  return u64{a} - b - c;
}
constexpr u64 subrev3(u32 a, u32 b, u32 c) {
  return u64{b} - a - c;
}

/// Sums that clamp to what fits.
template <auto F, auto Saturated>
void sum(Wave& w, const Inst& i) {
  if (i.clamp)
    binary<Saturated>(w, i);
  else
    binary<F>(w, i);
}
u32 add_saturated(u32 a, u32 b) {
  return a + b < a ? ~0U : a + b;
}
u32 sub_saturated(u32 a, u32 b) {
  return a < b ? 0 : a - b;
}

void v_cndmask_b32(Wave& w, const Inst& i) {
  Lanes sa, sb, chosen, out;
  const bool modified =
      i.src[0].negate || i.src[0].absolute || i.src[1].negate || i.src[1].absolute;
  const u32* a = source(w, i, 0, sa);
  const u32* b = source(w, i, 1, sb);
  if (modified) {
    const auto apply = [](const u32* row, const Operand& operand, Lanes& space) {
      for (unsigned l = 0; l < kLanes; ++l)
        space.at[l] =
            (row[l] & (operand.absolute ? 0x7fffffffU : ~0U)) ^ (operand.negate ? 0x80000000U : 0);
      return static_cast<const u32*>(space.at.data());
    };
    a = apply(a, i.src[0], sa);
    b = apply(b, i.src[1], sb);
  }
  spread_lanes(scalar64(w, i.src[2]), chosen);
  const bool direct = writes_directly(w, i);
  u32* const d = direct ? w.row(i.dst[0].index) : out.at.data();
  MONOREF_EACH_LANE(l) d[l] = chosen.at[l] != 0 ? b[l] : a[l];
  if (!direct) write_row(w, i, i.dst[0].index, out);
}

void v_mov_b64(Wave& w, const Inst& i) {
  WideLanes space;
  const WideRow a = wide_source(w, i, 0, space);
  write_wide(w, i, [&](unsigned l) { return a[l]; });
}

void v_readfirstlane_b32(Wave& w, const Inst& i) {
  Lanes space;
  const unsigned lane = w.exec() == 0 ? 0 : static_cast<unsigned>(std::countr_zero(w.exec()));
  set_scalar32(w, i.dst[0], source(w, i, 0, space)[lane]);
}

/// Parts of `kPart` lanes change places: the second, fourth, ... of the first operand with the
/// first, third, ... of the second.
template <unsigned kPart>
void swap_parts(Wave& w, const Inst& i) {
  Lanes first, second;
  std::memcpy(first.at.data(), w.row(i.dst[0].index), sizeof first.at);
  std::memcpy(second.at.data(), w.row(i.dst[1].index), sizeof second.at);
  for (unsigned l = 0; l < kLanes; ++l)
    if ((l & kPart) == 0) std::swap(first.at[l + kPart], second.at[l]);
  write_row(w, i, i.dst[0].index, first);
  write_row(w, i, i.dst[1].index, second);
}
void v_swap_b32(Wave& w, const Inst& i) {
  Lanes first, second;
  std::memcpy(first.at.data(), w.row(i.dst[0].index), sizeof first.at);
  std::memcpy(second.at.data(), w.row(i.dst[1].index), sizeof second.at);
  write_row(w, i, i.dst[0].index, second);
  write_row(w, i, i.dst[1].index, first);
}

template <unsigned kByte>
float byte_of(u32 x) {
  return static_cast<float>(static_cast<i32>(x >> (8 * kByte) & 0xff));
}

float from_u32(u32 x) {
  // Both halves are exact in binary64, and so is their sum: one rounding.
  return static_cast<float>(static_cast<double>(x >> 16) * 65536.0 +
                            static_cast<double>(x & 0xffff));
}
u32 to_u32_bits(u32 x) {
  return to_u32(as_float(x));
}
u32 to_i32_bits(u32 x) {
  return static_cast<u32>(to_i32(as_float(x)));
}

constexpr Entry kTable[] = {
    // VOP1
    {"v_nop", [](Wave&, const Inst&) {}, 0},
    {"v_mov_b32", unary<[](u32 a) { return a; }>},
    {"v_mov_b64", v_mov_b64, 1, Type::kB64},
    {"v_accvgpr_mov_b32", unary<[](u32 a) { return a; }>},
    {"v_accvgpr_read_b32", unary<[](u32 a) { return a; }>},
    {"v_accvgpr_write_b32", unary<[](u32 a) { return a; }>},
    {"v_swap_b32", v_swap_b32, 2},
    {"v_permlane16_swap_b32", swap_parts<16>, 2},
    {"v_permlane32_swap_b32", swap_parts<32>, 2},
    {"v_readfirstlane_b32", v_readfirstlane_b32},
    {"v_not_b32", unary<[](u32 a) { return ~a; }>},
    {"v_bfrev_b32", unary<reverse>},
    {"v_ffbh_u32", unary<first_high>},
    {"v_ffbl_b32", unary<first_low>},
    {"v_ffbh_i32", unary<first_high_signed>},
    {"v_cvt_f32_i32", to_float<[](u32 a) { return (static_cast<float>(as_signed(a))); }>},
    {"v_cvt_f32_u32", to_float<from_u32>},
    {"v_cvt_u32_f32", from_float<to_u32_bits>},
    {"v_cvt_i32_f32", from_float<to_i32_bits>},
    {"v_cvt_rpi_i32_f32", from_float<[](u32 a) { return to_i32(std::floor(as_float(a) + 0.5F)); }>},
    {"v_cvt_flr_i32_f32", from_float<[](u32 a) { return to_i32(std::floor(as_float(a))); }>},
    {"v_cvt_f32_ubyte0", to_float<byte_of<0>>},
    {"v_cvt_f32_ubyte1", to_float<byte_of<1>>},
    {"v_cvt_f32_ubyte2", to_float<byte_of<2>>},
    {"v_cvt_f32_ubyte3", to_float<byte_of<3>>},
    {"v_fract_f32", float_unary<fraction_of>},
    {"v_trunc_f32", float_unary<truncate>},
    {"v_ceil_f32", float_unary<ceil_of>},
    {"v_rndne_f32", float_unary<round_even>},
    {"v_floor_f32", float_unary<floor_of>},
    {"v_exp_f32", float_unary<exp2_of>},
    {"v_log_f32", float_unary<log2_of>},
    {"v_rcp_f32", float_unary<reciprocal>},
    {"v_rcp_iflag_f32", float_unary<reciprocal>},
    {"v_rsq_f32", float_unary<reciprocal_root>},
    {"v_sqrt_f32", float_unary<root>},
    {"v_sin_f32", float_unary<sin_of>},
    {"v_cos_f32", float_unary<cos_of>},
    {"v_frexp_mant_f32", float_unary<mantissa_of>},
    {"v_frexp_exp_i32_f32", from_float<exponent_of>},
    // VOP2, binary32
    {"v_add_f32", float_binary<add_float>},
    {"v_sub_f32", float_binary<sub_float>},
    {"v_subrev_f32", float_binary<[](u32 a, u32 b) { return sub_float(b, a); }>},
    {"v_mul_f32", float_binary<mul_float>},
    {"v_mul_legacy_f32", float_binary<[](u32 a, u32 b) {
       return (a << 1) == 0 || (b << 1) == 0 ? 0 : mul_float(a, b);
     }>},
    {"v_min_f32", by_ieee_mode<float_binary<min_float_ieee>, float_binary<min_float>>},
    {"v_max_f32", by_ieee_mode<float_binary<max_float_ieee>, float_binary<max_float>>},
    {"v_fmac_f32", accumulate<fma_float>},
    {"v_fmaak_f32", float_ternary<fma_float>},
    {"v_fmamk_f32", float_ternary<fma_float>},
    // VOP2, whole numbers
    {"v_cndmask_b32", v_cndmask_b32},
    {"v_and_b32", binary<[](u32 a, u32 b) { return a & b; }>},
    {"v_or_b32", binary<[](u32 a, u32 b) { return a | b; }>},
    {"v_xor_b32", binary<[](u32 a, u32 b) { return a ^ b; }>},
    {"v_xnor_b32", binary<[](u32 a, u32 b) { return ~(a ^ b); }>},
    {"v_lshlrev_b32", binary<[](u32 a, u32 b) { return b << (a & 31); }>},
    {"v_lshrrev_b32", binary<[](u32 a, u32 b) { return (b >> (a & 31)); }>},
    {"v_ashrrev_i32", binary<[](u32 a, u32 b) { return (as_signed(b) >> (a & 31)); }>},
    {"v_min_i32", binary<[](u32 a, u32 b) { return as_signed(a) < as_signed(b) ? a : b; }>},
    {"v_max_i32", binary<[](u32 a, u32 b) { return (as_signed(a) > as_signed(b) ? a : b); }>},
    {"v_min_u32", binary<[](u32 a, u32 b) { return a < b ? a : b; }>},
    {"v_max_u32", binary<[](u32 a, u32 b) { return (a > b ? a : b); }>},
    {"v_mul_i32_i24", binary<[](u32 a, u32 b) { return static_cast<u32>(i64{s24(a)} * s24(b)); }>},
    {"v_mul_hi_i32_i24",
     binary<[](u32 a, u32 b) { return static_cast<u32>(i64{s24(a)} * s24(b) >> 32); }>},
    {"v_mul_u32_u24", binary<[](u32 a, u32 b) { return u24(a) * u24(b); }>},
    {"v_mul_hi_u32_u24",
     binary<[](u32 a, u32 b) { return static_cast<u32>(u64{u24(a)} * u24(b) >> 32); }>},
    {"v_add_u32", sum<[](u32 a, u32 b) { return a + b; }, add_saturated>},
    {"v_sub_u32", sum<[](u32 a, u32 b) { return a - b; }, sub_saturated>},
    {"v_subrev_u32",
     sum<[](u32 a, u32 b) { return b - a; }, [](u32 a, u32 b) { return sub_saturated(b, a); }>},
    {"v_add_co_u32", carry_out<add3>, 2},
    {"v_sub_co_u32", carry_out<sub3>, 2},
    {"v_subrev_co_u32", carry_out<subrev3>, 2},
    {"v_addc_co_u32", carry_in_out<add3>, 2},
    {"v_subb_co_u32", carry_in_out<sub3>, 2},
    {"v_subbrev_co_u32", carry_in_out<subrev3>, 2},
    // VOP2, 16 bits: the upper half of the result is zero
    {"v_add_u16", binary<[](u32 a, u32 b) { return low16(a + b); }>, 1, Type::kB16},
    {"v_sub_u16", binary<[](u32 a, u32 b) { return low16(a - b); }>, 1, Type::kB16},
    {"v_subrev_u16", binary<[](u32 a, u32 b) { return low16(b - a); }>, 1, Type::kB16},
    {"v_mul_lo_u16", binary<[](u32 a, u32 b) { return low16(a * b); }>, 1, Type::kB16},
    {"v_lshlrev_b16", binary<[](u32 a, u32 b) { return low16(b << (a & 15)); }>, 1, Type::kB16},
    {"v_lshrrev_b16", binary<[](u32 a, u32 b) { return (low16(b) >> (a & 15)); }>, 1, Type::kB16},
    {"v_ashrrev_i16",
     binary<[](u32 a, u32 b) { return (low16(static_cast<u32>(s16(b) >> (a & 15)))); }>, 1,
     Type::kB16},
    {"v_min_u16", binary<[](u32 a, u32 b) { return low16(a) < low16(b) ? low16(a) : low16(b); }>, 1,
     Type::kB16},
    {"v_max_u16", binary<[](u32 a, u32 b) { return (low16(a) > low16(b) ? low16(a) : low16(b)); }>,
     1, Type::kB16},
    {"v_min_i16", binary<[](u32 a, u32 b) { return s16(a) < s16(b) ? low16(a) : low16(b); }>, 1,
     Type::kB16},
    {"v_max_i16", binary<[](u32 a, u32 b) { return (s16(a) > s16(b) ? low16(a) : low16(b)); }>, 1,
     Type::kB16},
};

}  // namespace

std::span<const Entry> vop_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
