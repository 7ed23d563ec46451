// Packed instructions: two numbers a register, or two registers.
#include "device/backends/gfx/number.hpp"
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

constexpr Entry kTable[] = {
    {"v_pk_fma_f32", packed_float<3, fma_float>},
    {"v_pk_mul_f32", packed_float<2, mul_float>},
    {"v_pk_add_f32", packed_float<2, add_float>},
    {"v_pk_mov_b32", v_pk_mov_b32},
};

}  // namespace

std::span<const Entry> vop3p_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
