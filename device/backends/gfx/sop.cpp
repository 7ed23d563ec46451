// Scalar arithmetic and control: SOP2, SOP1, SOPK, SOPC, SOPP.
#include <bit>

#include "device/backends/gfx/program.hpp"
#include "device/backends/gfx/table.hpp"
#include "device/backends/gfx/vector.hpp"

namespace monoref::device::gfx {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

constexpr i32 sign(u32 value) {
  return static_cast<i32>(value);
}
constexpr i64 sign(u64 value) {
  return static_cast<i64>(value);
}
/// SOPK's constant: 16 bits, with their sign.
i32 short_of(const Operand& operand) {
  return static_cast<std::int16_t>(operand.value);
}

/// 32 bits from two sources; SCC where the result is not zero.
template <auto F>
void bits2(Wave& w, const Inst& i) {
  const u32 value = F(scalar32(w, i.src[0]), scalar32(w, i.src[1]));
  set_scalar32(w, i.dst[0], value);
  w.scc = value != 0;
}
template <auto F>
void wide2(Wave& w, const Inst& i) {
  const u64 value = F(scalar64(w, i.src[0]), scalar64(w, i.src[1]));
  set_scalar64(w, i.dst[0], value);
  w.scc = value != 0;
}
/// Shifts of 64 bits: the distance is 32 bits wide.
template <auto F>
void shift64(Wave& w, const Inst& i) {
  const u64 value = F(scalar64(w, i.src[0]), scalar32(w, i.src[1]));
  set_scalar64(w, i.dst[0], value);
  w.scc = value != 0;
}
template <auto F>
void bits1(Wave& w, const Inst& i) {
  const u32 value = F(scalar32(w, i.src[0]));
  set_scalar32(w, i.dst[0], value);
  w.scc = value != 0;
}
template <auto F>
void wide1(Wave& w, const Inst& i) {
  const u64 value = F(scalar64(w, i.src[0]));
  set_scalar64(w, i.dst[0], value);
  w.scc = value != 0;
}
/// 32 bits that leave SCC alone.
template <auto F>
void quiet2(Wave& w, const Inst& i) {
  set_scalar32(w, i.dst[0], F(scalar32(w, i.src[0]), scalar32(w, i.src[1])));
}
template <auto F>
void quiet1(Wave& w, const Inst& i) {
  set_scalar32(w, i.dst[0], F(scalar32(w, i.src[0])));
}
template <auto F>
void quiet_wide1(Wave& w, const Inst& i) {
  set_scalar64(w, i.dst[0], F(scalar64(w, i.src[0])));
}
/// 32 bits of a 64-bit source.
template <auto F>
void narrow1(Wave& w, const Inst& i) {
  set_scalar32(w, i.dst[0], F(scalar64(w, i.src[0])));
}
template <auto F>
void compare(Wave& w, const Inst& i) {
  w.scc = F(scalar32(w, i.src[0]), scalar32(w, i.src[1]));
}
template <auto F>
void compare64(Wave& w, const Inst& i) {
  w.scc = F(scalar64(w, i.src[0]), scalar64(w, i.src[1]));
}
template <auto F>
void compare_short(Wave& w, const Inst& i) {
  w.scc = F(scalar32(w, i.src[0]), static_cast<u32>(i.src[1].value) & 0xffffU);
}
template <auto F>
void compare_short_signed(Wave& w, const Inst& i) {
  w.scc = F(sign(scalar32(w, i.src[0])), short_of(i.src[1]));
}

bool overflows(i64 exact) {
  return exact != static_cast<i32>(exact);
}
void set_sum(Wave& w, const Inst& i, i64 exact) {
  set_scalar32(w, i.dst[0], static_cast<u32>(exact));
  w.scc = overflows(exact);
}
void s_add_i32(Wave& w, const Inst& i) {
  set_sum(w, i, i64{sign(scalar32(w, i.src[0]))} + sign(scalar32(w, i.src[1])));
}
void s_sub_i32(Wave& w, const Inst& i) {
  set_sum(w, i, i64{sign(scalar32(w, i.src[0]))} - sign(scalar32(w, i.src[1])));
}
void s_addk_i32(Wave& w, const Inst& i) {
  set_sum(w, i, i64{sign(scalar32(w, i.dst[0]))} + short_of(i.src[0]));
}
void s_mulk_i32(Wave& w, const Inst& i) {
  set_scalar32(w, i.dst[0], scalar32(w, i.dst[0]) * static_cast<u32>(short_of(i.src[0])));
}
void s_movk_i32(Wave& w, const Inst& i) {
  set_scalar32(w, i.dst[0], static_cast<u32>(short_of(i.src[0])));
}
void s_cmovk_i32(Wave& w, const Inst& i) {
  if (w.scc) s_movk_i32(w, i);
}
template <bool kCarryIn>
void add_u32(Wave& w, const Inst& i) {
  const u64 sum = u64{scalar32(w, i.src[0])} + scalar32(w, i.src[1]) + (kCarryIn && w.scc ? 1 : 0);
  set_scalar32(w, i.dst[0], static_cast<u32>(sum));
  w.scc = sum >> 32 != 0;
}
template <bool kBorrowIn>
void sub_u32(Wave& w, const Inst& i) {
  const u64 difference =
      u64{scalar32(w, i.src[0])} - scalar32(w, i.src[1]) - (kBorrowIn && w.scc ? 1 : 0);
  set_scalar32(w, i.dst[0], static_cast<u32>(difference));
  w.scc = difference >> 32 != 0;
}
template <unsigned kShift>
void shift_add(Wave& w, const Inst& i) {
  const u64 sum = (u64{scalar32(w, i.src[0])} << kShift) + scalar32(w, i.src[1]);
  set_scalar32(w, i.dst[0], static_cast<u32>(sum));
  w.scc = sum >> 32 != 0;
}
/// The chosen source; SCC where it is the first.
template <auto Better>
void choose(Wave& w, const Inst& i) {
  const u32 a = scalar32(w, i.src[0]);
  const u32 b = scalar32(w, i.src[1]);
  w.scc = Better(a, b);
  set_scalar32(w, i.dst[0], w.scc ? a : b);
}
void s_abs_i32(Wave& w, const Inst& i) {
  const u32 a = scalar32(w, i.src[0]);
  const u32 value = sign(a) < 0 ? 0 - a : a;
  set_scalar32(w, i.dst[0], value);
  w.scc = value != 0;
}
void s_absdiff_i32(Wave& w, const Inst& i) {
  const u32 difference = scalar32(w, i.src[0]) - scalar32(w, i.src[1]);
  const u32 value = sign(difference) < 0 ? 0 - difference : difference;
  set_scalar32(w, i.dst[0], value);
  w.scc = value != 0;
}
void s_cselect_b32(Wave& w, const Inst& i) {
  set_scalar32(w, i.dst[0], scalar32(w, i.src[w.scc ? 0 : 1]));
}
void s_cselect_b64(Wave& w, const Inst& i) {
  set_scalar64(w, i.dst[0], scalar64(w, i.src[w.scc ? 0 : 1]));
}
void s_cmov_b32(Wave& w, const Inst& i) {
  if (w.scc) set_scalar32(w, i.dst[0], scalar32(w, i.src[0]));
}
void s_cmov_b64(Wave& w, const Inst& i) {
  if (w.scc) set_scalar64(w, i.dst[0], scalar64(w, i.src[0]));
}
/// The old EXEC is kept, and EXEC becomes F(source, EXEC).
template <auto F>
void save_exec(Wave& w, const Inst& i) {
  const u64 before = w.exec();
  const u64 value = F(scalar64(w, i.src[0]), before);
  set_scalar64(w, i.dst[0], before);
  w.set_pair(kExec, value);
  w.scc = value != 0;
}
/// EXEC becomes F(source, EXEC), and so does the destination.
template <auto F>
void write_exec(Wave& w, const Inst& i) {
  const u64 value = F(scalar64(w, i.src[0]), w.exec());
  w.set_pair(kExec, value);
  set_scalar64(w, i.dst[0], value);
  w.scc = value != 0;
}
void s_bitset0_b32(Wave& w, const Inst& i) {
  set_scalar32(w, i.dst[0], scalar32(w, i.dst[0]) & ~(1U << (scalar32(w, i.src[0]) & 31)));
}
void s_bitset1_b32(Wave& w, const Inst& i) {
  set_scalar32(w, i.dst[0], scalar32(w, i.dst[0]) | 1U << (scalar32(w, i.src[0]) & 31));
}
void s_bitset0_b64(Wave& w, const Inst& i) {
  set_scalar64(w, i.dst[0], scalar64(w, i.dst[0]) & ~(u64{1} << (scalar32(w, i.src[0]) & 63)));
}
void s_bitset1_b64(Wave& w, const Inst& i) {
  set_scalar64(w, i.dst[0], scalar64(w, i.dst[0]) | u64{1} << (scalar32(w, i.src[0]) & 63));
}
template <bool kWanted>
void bit_test32(Wave& w, const Inst& i) {
  w.scc = ((scalar32(w, i.src[0]) >> (scalar32(w, i.src[1]) & 31) & 1) != 0) == kWanted;
}
template <bool kWanted>
void bit_test64(Wave& w, const Inst& i) {
  w.scc = ((scalar64(w, i.src[0]) >> (scalar32(w, i.src[1]) & 63) & 1) != 0) == kWanted;
}

u32 field32(u32 value, u32 where) {
  const u32 width = where >> 16 & 0x7f;
  const u32 shifted = value >> (where & 31);
  return width >= 32 ? shifted : shifted & ((1U << width) - 1);
}
u32 signed_field32(u32 value, u32 where) {
  const u32 width = where >> 16 & 0x7f;
  if (width == 0) return 0;
  const u32 offset = where & 31;
  if (offset + width >= 32) return static_cast<u32>(sign(value) >> offset);
  return static_cast<u32>(sign(value << (32 - width - offset)) >> (32 - width));
}
u64 field64(u64 value, u32 where) {
  const u32 width = where >> 16 & 0x7f;
  const u64 shifted = value >> (where & 63);
  return width >= 64 ? shifted : shifted & ((u64{1} << width) - 1);
}
u64 signed_field64(u64 value, u32 where) {
  const u32 width = where >> 16 & 0x7f;
  if (width == 0) return 0;
  const u32 offset = where & 63;
  if (offset + width >= 64) return static_cast<u64>(sign(value) >> offset);
  return static_cast<u64>(sign(value << (64 - width - offset)) >> (64 - width));
}
void s_bfm_b64(Wave& w, const Inst& i) {
  const u64 ones = (u64{1} << (scalar32(w, i.src[0]) & 63)) - 1;
  set_scalar64(w, i.dst[0], ones << (scalar32(w, i.src[1]) & 63));
}
u32 reverse32(u32 x) {
  u32 value = 0;
  for (int bit = 0; bit < 32; ++bit, x >>= 1) value = value << 1 | (x & 1);
  return value;
}
u64 reverse64(u64 x) {
  return u64{reverse32(static_cast<u32>(x))} << 32 | reverse32(static_cast<u32>(x >> 32));
}
u32 first_one(u64 x) {
  return x == 0 ? ~0U : static_cast<u32>(std::countr_zero(x));
}
u32 leading_one32(u32 x) {
  return x == 0 ? ~0U : static_cast<u32>(std::countl_zero(x));
}
u32 leading_one64(u64 x) {
  return x == 0 ? ~0U : static_cast<u32>(std::countl_zero(x));
}
/// Leading bits equal to the sign.
u32 sign_bits32(u32 x) {
  return leading_one32(sign(x) < 0 ? ~x : x);
}
u32 sign_bits64(u64 x) {
  return leading_one64(sign(x) < 0 ? ~x : x);
}
u32 whole_quads(u32 x) {
  u32 value = 0;
  for (unsigned quad = 0; quad < 32; quad += 4)
    if ((x >> quad & 15) != 0) value |= 15U << quad;
  return value;
}
u64 whole_quads(u64 x) {
  return u64{whole_quads(static_cast<u32>(x >> 32))} << 32 | whole_quads(static_cast<u32>(x));
}

void s_branch(Wave& w, const Inst& i) {
  w.pc = i.target;
}
template <auto Taken>
void branch_if(Wave& w, const Inst& i) {
  if (Taken(w)) w.pc = i.target;
}
/// The instruction pointer here: where the next instruction lies.
void s_getpc_b64(Wave& w, const Inst& i) {
  set_scalar64(w, i.dst[0], w.program->address_of(w.pc));
}
void s_setpc_b64(Wave& w, const Inst& i) {
  w.pc = w.program->index_of(scalar64(w, i.src[0]));
}
void s_swappc_b64(Wave& w, const Inst& i) {
  const u64 target = scalar64(w, i.src[0]);
  s_getpc_b64(w, i);
  w.pc = w.program->index_of(target);
}
void s_nop(Wave&, const Inst&) {}
void s_endpgm(Wave& w, const Inst&) {
  w.state = WaveState::kEnded;
  w.stop = true;
}
void s_barrier(Wave& w, const Inst&) {
  w.state = WaveState::kAtBarrier;
  w.stop = true;
}
void s_sleep(Wave& w, const Inst&) {
  w.stop = true;
}
void s_trap(Wave&, const Inst& i) {
  throw Fault{"s_trap " + std::to_string(i.src[0].value)};
}

// The bits of MODE that s_setreg reaches, by their place in the register.
u32 mode_bits(const Mode& mode) {
  return mode.round32 | mode.round64 << 2 | mode.denorm32 << 4 | mode.denorm64 << 6 |
         (mode.dx10_clamp ? 1U << 8 : 0) | (mode.ieee ? 1U << 9 : 0) |
         (mode.fp16_overflow ? 1U << 23 : 0);
}
void set_mode_bits(Wave& w, u32 bits) {
  w.mode.round32 = bits & 3;
  w.mode.round64 = bits >> 2 & 3;
  w.mode.denorm32 = bits >> 4 & 3;
  w.mode.denorm64 = bits >> 6 & 3;
  w.mode.dx10_clamp = (bits >> 8 & 1) != 0;
  w.mode.ieee = (bits >> 9 & 1) != 0;
  w.mode.fp16_overflow = (bits >> 23 & 1) != 0;
  apply_mode(w);
}
/// hwreg's fields: identity in bits 0 to 5, offset in 6 to 10, width less one in 11 to 15.
constexpr u32 kModeRegister = 1;
void set_register(Wave& w, u64 hwreg, u32 value) {
  if ((hwreg & 63) != kModeRegister)
    throw Unsupported{"hardware register " + std::to_string(hwreg & 63)};
  const u32 offset = hwreg >> 6 & 31;
  const u32 width = (hwreg >> 11 & 31) + 1;
  const u32 mask = (width == 32 ? ~0U : (1U << width) - 1) << offset;
  set_mode_bits(w, (mode_bits(w.mode) & ~mask) | (value << offset & mask));
}
void s_setreg_b32(Wave& w, const Inst& i) {
  set_register(w, i.src[0].value, scalar32(w, i.src[1]));
}
void s_getreg_b32(Wave& w, const Inst& i) {
  const u64 hwreg = i.src[0].value;
  if ((hwreg & 63) != kModeRegister)
    throw Unsupported{"hardware register " + std::to_string(hwreg & 63)};
  set_scalar32(w, i.dst[0],
               field32(mode_bits(w.mode), (hwreg >> 6 & 31) | ((hwreg >> 11 & 31) + 1) << 16));
}

constexpr Entry kTable[] = {
    // SOP2
    {"s_add_u32", add_u32<false>},
    {"s_addc_u32", add_u32<true>},
    {"s_sub_u32", sub_u32<false>},
    {"s_subb_u32", sub_u32<true>},
    {"s_add_i32", s_add_i32},
    {"s_sub_i32", s_sub_i32},
    {"s_absdiff_i32", s_absdiff_i32},
    {"s_min_i32", choose<[](u32 a, u32 b) { return sign(a) < sign(b); }>},
    {"s_min_u32", choose<[](u32 a, u32 b) { return a < b; }>},
    {"s_max_i32", choose<[](u32 a, u32 b) { return (sign(a) > sign(b)); }>},
    {"s_max_u32", choose<[](u32 a, u32 b) { return (a > b); }>},
    {"s_cselect_b32", s_cselect_b32},
    {"s_cselect_b64", s_cselect_b64, 1, Type::kB64},
    {"s_and_b32", bits2<[](u32 a, u32 b) { return a & b; }>},
    {"s_and_b64", wide2<[](u64 a, u64 b) { return a & b; }>, 1, Type::kB64},
    {"s_or_b32", bits2<[](u32 a, u32 b) { return a | b; }>},
    {"s_or_b64", wide2<[](u64 a, u64 b) { return a | b; }>, 1, Type::kB64},
    {"s_xor_b32", bits2<[](u32 a, u32 b) { return a ^ b; }>},
    {"s_xor_b64", wide2<[](u64 a, u64 b) { return a ^ b; }>, 1, Type::kB64},
    {"s_andn2_b32", bits2<[](u32 a, u32 b) { return a & ~b; }>},
    {"s_andn2_b64", wide2<[](u64 a, u64 b) { return a & ~b; }>, 1, Type::kB64},
    {"s_orn2_b32", bits2<[](u32 a, u32 b) { return a | ~b; }>},
    {"s_orn2_b64", wide2<[](u64 a, u64 b) { return a | ~b; }>, 1, Type::kB64},
    {"s_nand_b32", bits2<[](u32 a, u32 b) { return ~(a & b); }>},
    {"s_nand_b64", wide2<[](u64 a, u64 b) { return ~(a & b); }>, 1, Type::kB64},
    {"s_nor_b32", bits2<[](u32 a, u32 b) { return ~(a | b); }>},
    {"s_nor_b64", wide2<[](u64 a, u64 b) { return ~(a | b); }>, 1, Type::kB64},
    {"s_xnor_b32", bits2<[](u32 a, u32 b) { return ~(a ^ b); }>},
    {"s_xnor_b64", wide2<[](u64 a, u64 b) { return ~(a ^ b); }>, 1, Type::kB64},
    {"s_lshl_b32", bits2<[](u32 a, u32 b) { return a << (b & 31); }>},
    {"s_lshl_b64", shift64<[](u64 a, u32 b) { return a << (b & 63); }>, 1, Type::kB64},
    {"s_lshr_b32", bits2<[](u32 a, u32 b) { return (a >> (b & 31)); }>},
    {"s_lshr_b64", shift64<[](u64 a, u32 b) { return (a >> (b & 63)); }>, 1, Type::kB64},
    {"s_ashr_i32", bits2<[](u32 a, u32 b) { return (static_cast<u32>(sign(a) >> (b & 31))); }>},
    {"s_ashr_i64", shift64<[](u64 a, u32 b) { return (static_cast<u64>(sign(a) >> (b & 63))); }>, 1,
     Type::kB64},
    {"s_bfm_b32",
     quiet2<[](u32 a, u32 b) { return ((1U << (a & 31)) - 1) << (b & 31); }>},
    {"s_bfm_b64", s_bfm_b64},
    {"s_mul_i32", quiet2<[](u32 a, u32 b) { return a * b; }>},
    {"s_mul_hi_u32", quiet2<[](u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); }>},
    {"s_mul_hi_i32",
     quiet2<[](u32 a, u32 b) { return static_cast<u32>(i64{sign(a)} * sign(b) >> 32); }>},
    {"s_bfe_u32", bits2<field32>},
    {"s_bfe_i32", bits2<signed_field32>},
    {"s_bfe_u64", shift64<field64>, 1, Type::kB64},
    {"s_bfe_i64", shift64<signed_field64>, 1, Type::kB64},
    {"s_lshl1_add_u32", shift_add<1>},
    {"s_lshl2_add_u32", shift_add<2>},
    {"s_lshl3_add_u32", shift_add<3>},
    {"s_lshl4_add_u32", shift_add<4>},
    {"s_pack_ll_b32_b16", quiet2<[](u32 a, u32 b) { return (a & 0xffff) | b << 16; }>},
    {"s_pack_lh_b32_b16", quiet2<[](u32 a, u32 b) { return (a & 0xffff) | (b & 0xffff0000); }>},
    {"s_pack_hh_b32_b16", quiet2<[](u32 a, u32 b) { return (a >> 16 | (b & 0xffff0000)); }>},
    // SOP1
    {"s_mov_b32", quiet1<[](u32 a) { return a; }>},
    {"s_mov_b64", quiet_wide1<[](u64 a) { return a; }>, 1, Type::kB64},
    {"s_cmov_b32", s_cmov_b32},
    {"s_cmov_b64", s_cmov_b64, 1, Type::kB64},
    {"s_not_b32", bits1<[](u32 a) { return ~a; }>},
    {"s_not_b64", wide1<[](u64 a) { return ~a; }>, 1, Type::kB64},
    {"s_wqm_b32", bits1<[](u32 a) { return whole_quads(a); }>},
    {"s_wqm_b64", wide1<[](u64 a) { return whole_quads(a); }>, 1, Type::kB64},
    {"s_brev_b32", quiet1<reverse32>},
    {"s_brev_b64", quiet_wide1<reverse64>, 1, Type::kB64},
    {"s_bcnt0_i32_b32", bits1<[](u32 a) { return (static_cast<u32>(std::popcount(~a))); }>},
    {"s_bcnt1_i32_b32", bits1<[](u32 a) { return (static_cast<u32>(std::popcount(a))); }>},
    {"s_bcnt0_i32_b64",
     [](Wave& w, const Inst& i) {
       narrow1<[](u64 a) { return (static_cast<u32>(std::popcount(~a))); }>(w, i);
       w.scc = scalar32(w, i.dst[0]) != 0;
     },
     1, Type::kB64},
    {"s_bcnt1_i32_b64",
     [](Wave& w, const Inst& i) {
       narrow1<[](u64 a) { return (static_cast<u32>(std::popcount(a))); }>(w, i);
       w.scc = scalar32(w, i.dst[0]) != 0;
     },
     1, Type::kB64},
    {"s_ff0_i32_b32", quiet1<[](u32 a) { return (first_one(static_cast<u32>(~a))); }>},
    {"s_ff0_i32_b64", narrow1<[](u64 a) { return first_one(~a); }>, 1, Type::kB64},
    {"s_ff1_i32_b32", quiet1<[](u32 a) { return first_one(a); }>},
    {"s_ff1_i32_b64", narrow1<first_one>, 1, Type::kB64},
    {"s_flbit_i32_b32", quiet1<leading_one32>},
    {"s_flbit_i32_b64", narrow1<leading_one64>, 1, Type::kB64},
    {"s_flbit_i32", quiet1<sign_bits32>},
    {"s_flbit_i32_i64", narrow1<sign_bits64>, 1, Type::kB64},
    {"s_sext_i32_i8", quiet1<[](u32 a) { return (static_cast<u32>(static_cast<std::int8_t>(a))); }>},
    {"s_sext_i32_i16",
     quiet1<[](u32 a) { return (static_cast<u32>(static_cast<std::int16_t>(a))); }>},
    {"s_bitset0_b32", s_bitset0_b32},
    {"s_bitset1_b32", s_bitset1_b32},
    {"s_bitset0_b64", s_bitset0_b64},
    {"s_bitset1_b64", s_bitset1_b64},
    {"s_abs_i32", s_abs_i32},
    {"s_and_saveexec_b64", save_exec<[](u64 a, u64 e) { return a & e; }>, 1, Type::kB64},
    {"s_or_saveexec_b64", save_exec<[](u64 a, u64 e) { return a | e; }>, 1, Type::kB64},
    {"s_xor_saveexec_b64", save_exec<[](u64 a, u64 e) { return a ^ e; }>, 1, Type::kB64},
    {"s_andn2_saveexec_b64", save_exec<[](u64 a, u64 e) { return a & ~e; }>, 1, Type::kB64},
    {"s_orn2_saveexec_b64", save_exec<[](u64 a, u64 e) { return a | ~e; }>, 1, Type::kB64},
    {"s_nand_saveexec_b64", save_exec<[](u64 a, u64 e) { return ~(a & e); }>, 1, Type::kB64},
    {"s_nor_saveexec_b64", save_exec<[](u64 a, u64 e) { return ~(a | e); }>, 1, Type::kB64},
    {"s_xnor_saveexec_b64", save_exec<[](u64 a, u64 e) { return ~(a ^ e); }>, 1, Type::kB64},
    {"s_andn1_saveexec_b64", save_exec<[](u64 a, u64 e) { return ~a & e; }>, 1, Type::kB64},
    {"s_orn1_saveexec_b64", save_exec<[](u64 a, u64 e) { return ~a | e; }>, 1, Type::kB64},
    {"s_andn1_wrexec_b64", write_exec<[](u64 a, u64 e) { return ~a & e; }>, 1, Type::kB64},
    {"s_andn2_wrexec_b64", write_exec<[](u64 a, u64 e) { return a & ~e; }>, 1, Type::kB64},
    {"s_setreg_b32", s_setreg_b32, 0},
    {"s_setreg_imm32_b32", s_setreg_b32, 0},
    {"s_getreg_b32", s_getreg_b32},
    {"s_getpc_b64", s_getpc_b64, 1, Type::kB64},
    {"s_setpc_b64", s_setpc_b64, 0, Type::kB64},
    {"s_swappc_b64", s_swappc_b64, 1, Type::kB64},
    // SOPK
    {"s_movk_i32", s_movk_i32},
    {"s_cmovk_i32", s_cmovk_i32},
    {"s_addk_i32", s_addk_i32},
    {"s_mulk_i32", s_mulk_i32},
    {"s_cmpk_eq_i32", compare_short_signed<[](i32 a, i32 b) { return a == b; }>, 0},
    {"s_cmpk_lg_i32", compare_short_signed<[](i32 a, i32 b) { return a != b; }>, 0},
    {"s_cmpk_gt_i32", compare_short_signed<[](i32 a, i32 b) { return (a > b); }>, 0},
    {"s_cmpk_ge_i32", compare_short_signed<[](i32 a, i32 b) { return (a >= b); }>, 0},
    {"s_cmpk_lt_i32", compare_short_signed<[](i32 a, i32 b) { return a < b; }>, 0},
    {"s_cmpk_le_i32", compare_short_signed<[](i32 a, i32 b) { return a <= b; }>, 0},
    {"s_cmpk_eq_u32", compare_short<[](u32 a, u32 b) { return a == b; }>, 0},
    {"s_cmpk_lg_u32", compare_short<[](u32 a, u32 b) { return a != b; }>, 0},
    {"s_cmpk_gt_u32", compare_short<[](u32 a, u32 b) { return (a > b); }>, 0},
    {"s_cmpk_ge_u32", compare_short<[](u32 a, u32 b) { return (a >= b); }>, 0},
    {"s_cmpk_lt_u32", compare_short<[](u32 a, u32 b) { return a < b; }>, 0},
    {"s_cmpk_le_u32", compare_short<[](u32 a, u32 b) { return a <= b; }>, 0},
    // SOPC
    {"s_cmp_eq_i32", compare<[](u32 a, u32 b) { return a == b; }>, 0},
    {"s_cmp_lg_i32", compare<[](u32 a, u32 b) { return a != b; }>, 0},
    {"s_cmp_gt_i32", compare<[](u32 a, u32 b) { return (sign(a) > sign(b)); }>, 0},
    {"s_cmp_ge_i32", compare<[](u32 a, u32 b) { return (sign(a) >= sign(b)); }>, 0},
    {"s_cmp_lt_i32", compare<[](u32 a, u32 b) { return sign(a) < sign(b); }>, 0},
    {"s_cmp_le_i32", compare<[](u32 a, u32 b) { return sign(a) <= sign(b); }>, 0},
    {"s_cmp_eq_u32", compare<[](u32 a, u32 b) { return a == b; }>, 0},
    {"s_cmp_lg_u32", compare<[](u32 a, u32 b) { return a != b; }>, 0},
    {"s_cmp_gt_u32", compare<[](u32 a, u32 b) { return (a > b); }>, 0},
    {"s_cmp_ge_u32", compare<[](u32 a, u32 b) { return (a >= b); }>, 0},
    {"s_cmp_lt_u32", compare<[](u32 a, u32 b) { return a < b; }>, 0},
    {"s_cmp_le_u32", compare<[](u32 a, u32 b) { return a <= b; }>, 0},
    {"s_cmp_eq_u64", compare64<[](u64 a, u64 b) { return a == b; }>, 0, Type::kB64},
    {"s_cmp_lg_u64", compare64<[](u64 a, u64 b) { return a != b; }>, 0, Type::kB64},
    {"s_bitcmp0_b32", bit_test32<false>, 0},
    {"s_bitcmp1_b32", bit_test32<true>, 0},
    {"s_bitcmp0_b64", bit_test64<false>, 0, Type::kB64},
    {"s_bitcmp1_b64", bit_test64<true>, 0, Type::kB64},
    // SOPP
    {"s_nop", s_nop, 0},
    {"s_waitcnt", s_nop, kNoOperands},
    {"s_setprio", s_nop, 0},
    {"s_icache_inv", s_nop, 0},
    {"s_sleep", s_sleep, 0},
    {"s_endpgm", s_endpgm, 0},
    {"s_barrier", s_barrier, 0},
    {"s_trap", s_trap, 0},
    {"s_branch", s_branch, 0},
    {"s_cbranch_scc0", branch_if<[](const Wave& w) { return !w.scc; }>, 0},
    {"s_cbranch_scc1", branch_if<[](const Wave& w) { return w.scc; }>, 0},
    {"s_cbranch_vccz", branch_if<[](const Wave& w) { return w.pair(kVcc) == 0; }>, 0},
    {"s_cbranch_vccnz", branch_if<[](const Wave& w) { return w.pair(kVcc) != 0; }>, 0},
    {"s_cbranch_execz", branch_if<[](const Wave& w) { return w.exec() == 0; }>, 0},
    {"s_cbranch_execnz", branch_if<[](const Wave& w) { return w.exec() != 0; }>, 0},
};

}  // namespace

std::span<const Entry> sop_table() {
  return kTable;
}

}  // namespace monoref::device::gfx
