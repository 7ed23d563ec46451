// Packed instructions: two numbers a register, or two registers.
#include "device/backends/gfx/half.hpp"
#include "device/backends/gfx/table.hpp"

namespace monoref::device::gfx {
namespace {

/// The row of a packed binary32 source that one half of the result uses, with its sign.
const u32* half_source(Wave& w, const Inst& i, unsigned n, bool high, Lanes& space) {
  const bool second = ((high ? i.op_sel_hi : i.op_sel) >> n & 1) != 0;
  const bool negative = ((high ? i.neg_hi : i.neg_lo) >> n & 1) != 0;
  const Operand& operand = i.src[n];
  // A constant stands for the lower half alone.
  const unsigned word = second && operand.kind != OperandKind::kConstant ? 1 : 0;
  if (operand.kind == OperandKind::kVector && !negative && !w.flush32)
    return w.row(operand.index + word);
  Operand part = operand;
  part.index = static_cast<u16>(part.index + (operand.kind == OperandKind::kConstant ? 0 : word));
  part.negate = negative;
  return gather_float(w, i, part, space);
}

template <unsigned kSources, auto F>
void packed_float(Wave& w, const Inst& i) {
  std::array<Lanes, 2> out;
  std::array<Lanes, 3> space;
  for (unsigned half = 0; half < 2; ++half) {
    std::array<const u32*, 3> s{};
    for (unsigned n = 0; n < kSources; ++n) s[n] = half_source(w, i, n, half != 0, space[n]);
    u32* const d = out[half].at.data();
    const u32* const a = s[0];
    const u32* const b = s[1];
    const u32* const c = s[2];
    if constexpr (kSources == 2) {
      MONOREF_EACH_LANE(l) d[l] = F(a[l], b[l]);
    } else {
      MONOREF_EACH_LANE(l) d[l] = F(a[l], b[l], c[l]);
    }
  }
  Inst upper = i;
  upper.dst[0].index = static_cast<u16>(upper.dst[0].index + 1);
  write_float_row(w, i, out[0]);
  write_float_row(w, upper, out[1]);
}

/// The low word of the first source and the high word of the second, or as op_sel says.
void v_pk_mov_b32(Wave& w, const Inst& i) {
  std::array<Lanes, 2> out;
  Lanes space;
  for (unsigned half = 0; half < 2; ++half) {
    const u32 word = i.op_sel >> half & 1;
    const u32* const from = source(w, i, half, space, word);
    std::memcpy(out[half].at.data(), from, sizeof out[half].at);
  }
  write_row(w, i, i.dst[0].index, out[0]);
  write_row(w, i, i.dst[0].index + 1U, out[1]);
}

/// Two halves a register, each with halves of the sources that op_sel chooses.
template <unsigned kSources, auto F>
void packed_half_numbers(Wave& w, const Inst& i) {
  check_half_mode(w);
  std::array<Lanes, 3> space;
  Lanes both{};
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned select = half == 0 ? i.op_sel : i.op_sel_hi;
    const unsigned negative = half == 0 ? i.neg_lo : i.neg_hi;
    for (unsigned n = 0; n < kSources; ++n)
      half_number_row(w, i, n, (select >> n & 1) != 0, (negative >> n & 1) != 0, false, space[n]);
    Lanes out;
    for (unsigned l = 0; l < kLanes; ++l) {
      u32 value = 0;
      if constexpr (kSources == 2)
        value = F(space[0].at[l], space[1].at[l]);
      else
        value = F(space[0].at[l], space[1].at[l], space[2].at[l]);
      out.at[l] = value;
    }
    finish_half_numbers(w, i, out);
    MONOREF_EACH_LANE(l) both.at[l] |= out.at[l] << (16 * half);
  }
  write_row(w, i, i.dst[0].index, both);
}
/// The same of whole numbers.
template <unsigned kSources, auto F>
void packed_half_bits(Wave& w, const Inst& i) {
  if (i.clamp) throw Unsupported{"clamp of packed whole numbers"};
  std::array<Lanes, 3> space;
  Lanes both{};
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned select = half == 0 ? i.op_sel : i.op_sel_hi;
    for (unsigned n = 0; n < kSources; ++n) half_row(w, i, n, (select >> n & 1) != 0, space[n]);
    MONOREF_EACH_LANE(l) {
      const u32 a = space[0].at[l];
      const u32 b = space[1].at[l];
      u32 value = 0;
      if constexpr (kSources == 2)
        value = static_cast<u32>(F(a, b));
      else
        value = static_cast<u32>(F(a, b, space[2].at[l]));
      both.at[l] |= (value & 0xffff) << (16 * half);
    }
  }
  write_row(w, i, i.dst[0].index, both);
}
constexpr i32 s16(u32 x) {
  return static_cast<i16>(x);
}

/// A source that is binary32, or where op_sel_hi says so a half that op_sel chooses. The bits that
/// negate high halves elsewhere take the absolute value here.
const u32* mixed_source(Wave& w, const Inst& i, unsigned n, Lanes& space) {
  if ((i.op_sel_hi >> n & 1) == 0) return gather_float(w, i, i.src[n], space);
  half_number_row(w, i, n, (i.op_sel >> n & 1) != 0, i.src[n].negate, i.src[n].absolute, space);
  for (u32& value : space.at) value = widen(kBinary16, value);
  return space.at.data();
}
void v_fma_mix_f32(Wave& w, const Inst& i) {
  std::array<Lanes, 3> space;
  Lanes out;
  std::array<const u32*, 3> s{};
  for (unsigned n = 0; n < 3; ++n) s[n] = mixed_source(w, i, n, space[n]);
  for (unsigned l = 0; l < kLanes; ++l) out.at[l] = fma_float(s[0][l], s[1][l], s[2][l]);
  write_float_row(w, i, out);
}
/// The same with a result of binary16, rounded once, in one half of the register.
template <bool kHigh>
void fma_mix_half(Wave& w, const Inst& i) {
  check_half_mode(w);
  std::array<Lanes, 3> space;
  Lanes out;
  std::array<const u32*, 3> s{};
  for (unsigned n = 0; n < 3; ++n) s[n] = mixed_source(w, i, n, space[n]);
  for (unsigned l = 0; l < kLanes; ++l) {
    const double product = static_cast<double>(as_float(s[0][l])) * as_float(s[1][l]);
    const double sum = sum_to_odd(product, as_float(s[2][l]));
    out.at[l] = narrow(kBinary16, sum != sum ? as_float(nan_of(s[0][l], s[1][l], s[2][l])) : sum);
  }
  Inst to = i;
  to.op_sel = kHigh ? 1U << i.sources : 0;
  write_half_number_row(w, to, out, Rest::kKeep);
}

constexpr Entry kTable[] = {
    {"v_pk_fma_f32", packed_float<3, fma_float>},
    {"v_pk_mul_f32", packed_float<2, mul_float>},
    {"v_pk_add_f32", packed_float<2, add_float>},
    {"v_pk_mov_b32", v_pk_mov_b32},
    // Halves: binary16
    {"v_pk_fma_f16", packed_half_numbers<3, fma_half>, 1, Type::kB16},
    {"v_pk_add_f16", packed_half_numbers<2, add_half>, 1, Type::kB16},
    {"v_pk_mul_f16", packed_half_numbers<2, mul_half>, 1, Type::kB16},
    {"v_pk_min_f16", packed_half_numbers<2, min_half>, 1, Type::kB16},
    {"v_pk_max_f16", packed_half_numbers<2, max_half>, 1, Type::kB16},
    {"v_pk_minimum3_f16",
     packed_half_numbers<3,
                         [](u32 a, u32 b, u32 c) { return minimum_half(minimum_half(a, b), c); }>,
     1, Type::kB16},
    {"v_pk_maximum3_f16",
     packed_half_numbers<3,
                         [](u32 a, u32 b, u32 c) { return maximum_half(maximum_half(a, b), c); }>,
     1, Type::kB16},
    // Halves: whole numbers
    {"v_pk_add_u16", packed_half_bits<2, [](u32 a, u32 b) { return a + b; }>, 1, Type::kB16},
    {"v_pk_add_i16", packed_half_bits<2, [](u32 a, u32 b) { return a + b; }>, 1, Type::kB16},
    {"v_pk_sub_u16", packed_half_bits<2, [](u32 a, u32 b) { return a - b; }>, 1, Type::kB16},
    {"v_pk_sub_i16", packed_half_bits<2, [](u32 a, u32 b) { return a - b; }>, 1, Type::kB16},
    {"v_pk_mul_lo_u16", packed_half_bits<2, [](u32 a, u32 b) { return a * b; }>, 1, Type::kB16},
    {"v_pk_mad_u16", packed_half_bits<3, [](u32 a, u32 b, u32 c) { return a * b + c; }>, 1,
     Type::kB16},
    {"v_pk_mad_i16", packed_half_bits<3, [](u32 a, u32 b, u32 c) { return a * b + c; }>, 1,
     Type::kB16},
    {"v_pk_min_u16", packed_half_bits<2, [](u32 a, u32 b) { return a < b ? a : b; }>, 1,
     Type::kB16},
    {"v_pk_max_u16", packed_half_bits<2, [](u32 a, u32 b) { return a < b ? b : a; }>, 1,
     Type::kB16},
    {"v_pk_min_i16", packed_half_bits<2, [](u32 a, u32 b) { return s16(a) < s16(b) ? a : b; }>, 1,
     Type::kB16},
    {"v_pk_max_i16", packed_half_bits<2, [](u32 a, u32 b) { return s16(a) < s16(b) ? b : a; }>, 1,
     Type::kB16},
    {"v_pk_lshlrev_b16", packed_half_bits<2, [](u32 a, u32 b) { return b << (a & 15); }>, 1,
     Type::kB16},
    {"v_pk_lshrrev_b16", packed_half_bits<2, [](u32 a, u32 b) { return (b >> (a & 15)); }>, 1,
     Type::kB16},
    {"v_pk_ashrrev_i16", packed_half_bits<2, [](u32 a, u32 b) { return (s16(b) >> (a & 15)); }>, 1,
     Type::kB16},
    // Mixed: sources of 32 or 16 bits
    {"v_fma_mix_f32", v_fma_mix_f32, 1, Type::kB32, 0},
    {"v_fma_mixlo_f16", fma_mix_half<false>, 1, Type::kB32, 0},
    {"v_fma_mixhi_f16", fma_mix_half<true>, 1, Type::kB32, 0},
};

}  // namespace

std::span<const Entry> vop3p_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
