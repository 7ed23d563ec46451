// Conversions between binary32 and the small formats, with and without a scale.
#include "device/backends/gfx/half.hpp"
#include "device/backends/gfx/table.hpp"

namespace monoref::device::gfx {
namespace {

/// FP8 is another format on gfx942: without infinities, negative zeros, and with one NaN.
const Format& fp8(const Wave& w) {
  return w.fnuz ? kE4M3Fnuz : kE4M3;
}
const Format& bf8(const Wave& w) {
  return w.fnuz ? kE5M2Fnuz : kE5M2;
}
const Format& fp4(const Wave&) {
  return kE2M1;
}
const Format& binary16(const Wave&) {
  return kBinary16;
}
const Format& bfloat16(const Wave&) {
  return kBfloat16;
}
using Choice = const Format& (*)(const Wave&);

/// Numbers too large for FP8 become the largest where MODE's bit 23 is set.
u32 to_small(const Wave& w, const Format& format, double value) {
  return narrow(format, value, w.mode.fp16_overflow ? Overflow::kSaturate : Overflow::kSpecial);
}
double number(u32 bits) {
  return as_float(bits);
}

/// Rows of a result whose parts op_sel chooses: `bits` of the register from `shift` on.
void write_part(Wave& w, const Inst& i, Lanes& row, unsigned shift, u32 mask) {
  const u32* const before = w.row(i.dst[0].index);
  MONOREF_EACH_LANE(l)
  row.at[l] = (before[l] & ~(mask << shift)) | (row.at[l] & mask) << shift;
  write_row(w, i, i.dst[0].index, row);
}
/// A bit of op_sel: the sources' come first, then the destination's.
unsigned select_bit(const Inst& i, unsigned n) {
  return i.op_sel >> n & 1U;
}

/// Two numbers of a small format in the part of the register that op_sel chooses.
void write_packed(Wave& w, const Inst& i, Lanes& row, const Format& format) {
  if (format.bits() == 8)
    write_part(w, i, row, 16 * select_bit(i, i.sources), 0xffff);
  else
    write_part(w, i, row, 8 * (select_bit(i, 2) + 2 * select_bit(i, 3)), 0xff);
}

void v_cvt_f32_f16(Wave& w, const Inst& i) {
  Lanes out;
  half_number_row(w, i, 0, false, i.src[0].negate, i.src[0].absolute, out);
  for (u32& value : out.at) value = widen(kBinary16, value);
  write_float_row(w, i, out);
}
void v_cvt_f32_bf16(Wave& w, const Inst& i) {
  Lanes out;
  half_row(w, i, 0, false, out);
  for (u32& value : out.at) {
    if (i.src[0].absolute) value &= 0x7fff;
    if (i.src[0].negate) value ^= 0x8000;
    value = widen(kBfloat16, value);
  }
  write_float_row(w, i, out);
}
void v_cvt_f16_f32(Wave& w, const Inst& i) {
  check_half_mode(w);
  Lanes space, out;
  const u32* const a = float_source(w, i, 0, space);
  for (unsigned l = 0; l < kLanes; ++l) {
    out.at[l] = narrow(kBinary16, a[l]);
    const bool overflows = (out.at[l] & 0x7fff) == 0x7c00 && !std::isinf(as_float(a[l]));
    if (w.mode.fp16_overflow && overflows) --out.at[l];
  }
  write_half_number_row(w, i, out, Rest::kZero);
}

/// Two numbers of binary32 as halves of a register.
template <auto F>
void pack_two(Wave& w, const Inst& i) {
  check_half_mode(w);
  Lanes sa, sb, out;
  const u32* const a = float_source(w, i, 0, sa);
  const u32* const b = float_source(w, i, 1, sb);
  for (unsigned l = 0; l < kLanes; ++l) out.at[l] = F(a[l]) | F(b[l]) << 16;
  write_row(w, i, i.dst[0].index, out);
}
u32 to_half(u32 x) {
  return narrow(kBinary16, x);
}
u32 to_bfloat(u32 x) {
  return narrow(kBfloat16, x);
}
u32 to_half_toward_zero(u32 x) {
  return cut(kBinary16, x);
}

/// One FP8 number, in the byte that SDWA selects.
template <Choice kFormat>
void one_from_fp8(Wave& w, const Inst& i) {
  Lanes space, out;
  const u32* const a = source(w, i, 0, space);
  for (unsigned l = 0; l < kLanes; ++l) out.at[l] = widen(kFormat(w), a[l] & 0xff);
  write_float_row(w, i, out);
}
/// Two FP8 numbers, in the half that SDWA or op_sel selects.
template <Choice kFormat>
void two_from_fp8(Wave& w, const Inst& i) {
  Lanes space;
  WideLanes out;
  half_row(w, i, 0, select_bit(i, 0) != 0, space);
  for (unsigned l = 0; l < kLanes; ++l) {
    out.low.at[l] = widen(kFormat(w), space.at[l] & 0xff);
    out.high.at[l] = widen(kFormat(w), space.at[l] >> 8);
  }
  write_wide_row(w, i, out);
}
template <Choice kFormat>
void two_to_fp8(Wave& w, const Inst& i) {
  Lanes sa, sb, out;
  const u32* const a = float_source(w, i, 0, sa);
  const u32* const b = float_source(w, i, 1, sb);
  for (unsigned l = 0; l < kLanes; ++l)
    out.at[l] = to_small(w, kFormat(w), number(a[l])) | to_small(w, kFormat(w), number(b[l])) << 8;
  write_part(w, i, out, 16 * select_bit(i, i.sources), 0xffff);
}

// With a scale, of which only the exponent counts: what becomes small is divided by it, what
// becomes large is multiplied.

/// `kCount` numbers that lie side by side in the source, from the part that op_sel chooses.
template <Choice kFrom, unsigned kCount>
void scaled_to_f32(Wave& w, const Inst& i) {
  Lanes sa, sb;
  std::array<Lanes, 2> out;
  const u32* const a = source(w, i, 0, sa);
  const u32* const scale = source(w, i, 1, sb);
  const Format& from = kFrom(w);
  const unsigned step = kCount * from.bits();
  const unsigned part = step == 16 ? select_bit(i, 0) : select_bit(i, 0) + 2 * select_bit(i, 1);
  for (unsigned l = 0; l < kLanes; ++l)
    for (unsigned n = 0; n < kCount; ++n) {
      const u32 code = a[l] >> (step * part + from.bits() * n) & ((1U << from.bits()) - 1);
      const u32 wide = widen(from, code);
      const double value = number(wide) * power_of_scale(scale[l]);
      out[n].at[l] = value != value ? wide | kNan : as_bits(static_cast<float>(value));
    }
  Inst upper = i;
  upper.dst[0].index = static_cast<u16>(upper.dst[0].index + 1);
  write_float_row(w, i, out[0]);
  if (kCount == 2) write_float_row(w, upper, out[1]);
}
/// The same as two binary16 or bfloat16 in one register.
template <Choice kFrom, Choice kTo>
void scaled_to_halves(Wave& w, const Inst& i) {
  check_half_mode(w);
  Lanes sa, sb, out;
  const u32* const a = source(w, i, 0, sa);
  const u32* const scale = source(w, i, 1, sb);
  const Format& from = kFrom(w);
  const unsigned step = 2 * from.bits();
  const unsigned part = step == 16 ? select_bit(i, 0) : select_bit(i, 0) + 2 * select_bit(i, 1);
  for (unsigned l = 0; l < kLanes; ++l) {
    u32 both = 0;
    for (unsigned n = 0; n < 2; ++n) {
      const u32 code = a[l] >> (step * part + from.bits() * n) & ((1U << from.bits()) - 1);
      const double value = number(widen(from, code)) * power_of_scale(scale[l]);
      both |= narrow(kTo(w), value) << (16 * n);
    }
    out.at[l] = both;
  }
  write_row(w, i, i.dst[0].index, out);
}
/// Two numbers of binary32 to a small format.
template <Choice kTo>
void scaled_from_f32(Wave& w, const Inst& i) {
  Lanes sa, sb, sc, out;
  const u32* const a = float_source(w, i, 0, sa);
  const u32* const b = float_source(w, i, 1, sb);
  const u32* const scale = source(w, i, 2, sc);
  const Format& to = kTo(w);
  for (unsigned l = 0; l < kLanes; ++l) {
    const double by = power_of_scale(scale[l]);
    out.at[l] = to_small(w, to, number(a[l]) / by) | to_small(w, to, number(b[l]) / by)
                                                         << to.bits();
  }
  write_packed(w, i, out, to);
}
/// The same of two binary16 or bfloat16 in one register.
template <Choice kFrom, Choice kTo>
void scaled_from_halves(Wave& w, const Inst& i) {
  Lanes sa, sb, out;
  const u32* const a = source(w, i, 0, sa);
  const u32* const scale = source(w, i, 1, sb);
  const Format& from = kFrom(w);
  const Format& to = kTo(w);
  for (unsigned l = 0; l < kLanes; ++l) {
    const double by = power_of_scale(scale[l]);
    const double low = number(widen(from, a[l] & 0xffff)) / by;
    const double high = number(widen(from, a[l] >> 16)) / by;
    out.at[l] = to_small(w, to, low) | to_small(w, to, high) << to.bits();
  }
  write_packed(w, i, out, to);
}

constexpr Entry kTable[] = {
    {"v_cvt_f32_f16", v_cvt_f32_f16, 1, Type::kB16},
    {"v_cvt_f16_f32", v_cvt_f16_f32},
    {"v_cvt_f32_bf16", v_cvt_f32_bf16, 1, Type::kB16},
    {"v_cvt_pk_f16_f32", pack_two<to_half>},
    {"v_cvt_pk_bf16_f32", pack_two<to_bfloat>},
    {"v_cvt_pkrtz_f16_f32", pack_two<to_half_toward_zero>},
    {"v_cvt_f32_fp8", one_from_fp8<fp8>},
    {"v_cvt_f32_bf8", one_from_fp8<bf8>},
    {"v_cvt_pk_f32_fp8", two_from_fp8<fp8>},
    {"v_cvt_pk_f32_bf8", two_from_fp8<bf8>},
    {"v_cvt_pk_fp8_f32", two_to_fp8<fp8>},
    {"v_cvt_pk_bf8_f32", two_to_fp8<bf8>},
    // With a scale
    {"v_cvt_scalef32_f32_fp8", scaled_to_f32<fp8, 1>},
    {"v_cvt_scalef32_f32_bf8", scaled_to_f32<bf8, 1>},
    {"v_cvt_scalef32_pk_f32_fp8", scaled_to_f32<fp8, 2>},
    {"v_cvt_scalef32_pk_f32_bf8", scaled_to_f32<bf8, 2>},
    {"v_cvt_scalef32_pk_f32_fp4", scaled_to_f32<fp4, 2>},
    {"v_cvt_scalef32_pk_f16_fp8", scaled_to_halves<fp8, binary16>},
    {"v_cvt_scalef32_pk_f16_bf8", scaled_to_halves<bf8, binary16>},
    {"v_cvt_scalef32_pk_f16_fp4", scaled_to_halves<fp4, binary16>},
    {"v_cvt_scalef32_pk_bf16_fp8", scaled_to_halves<fp8, bfloat16>},
    {"v_cvt_scalef32_pk_bf16_bf8", scaled_to_halves<bf8, bfloat16>},
    {"v_cvt_scalef32_pk_bf16_fp4", scaled_to_halves<fp4, bfloat16>},
    {"v_cvt_scalef32_pk_fp8_f32", scaled_from_f32<fp8>},
    {"v_cvt_scalef32_pk_bf8_f32", scaled_from_f32<bf8>},
    {"v_cvt_scalef32_pk_fp4_f32", scaled_from_f32<fp4>},
    {"v_cvt_scalef32_pk_fp8_f16", scaled_from_halves<binary16, fp8>},
    {"v_cvt_scalef32_pk_bf8_f16", scaled_from_halves<binary16, bf8>},
    {"v_cvt_scalef32_pk_fp4_f16", scaled_from_halves<binary16, fp4>},
    {"v_cvt_scalef32_pk_fp8_bf16", scaled_from_halves<bfloat16, fp8>},
    {"v_cvt_scalef32_pk_bf8_bf16", scaled_from_halves<bfloat16, bf8>},
    {"v_cvt_scalef32_pk_fp4_bf16", scaled_from_halves<bfloat16, fp4>},
};

}  // namespace

std::span<const Entry> convert_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
