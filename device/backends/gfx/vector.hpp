// How entries of the vector tables read their sources and write their results. A row of 64 lanes is
// an array, so that every entry becomes a short loop of vector instructions.
#pragma once

#include <cmath>
#include <limits>

#include "device/backends/gfx/wave.hpp"

namespace monoref::device::gfx {

// Rows of one register may be source and result at once, lane by lane: no loop over lanes carries
// anything from one lane to another.
#define MONOREF_EACH_LANE(lane) _Pragma("GCC ivdep") for (unsigned lane = 0; lane < kLanes; ++lane)

/// The scalar value of a source: a register, a constant, or lane 0 of nothing.
std::uint32_t scalar32(const Wave& wave, const Operand& operand);
std::uint64_t scalar64(const Wave& wave, const Operand& operand);
void set_scalar32(Wave& wave, const Operand& operand, std::uint32_t value);
void set_scalar64(Wave& wave, const Operand& operand, std::uint64_t value);

/// A source that is not a plain vector register: broadcast, selected by SDWA or moved by DPP.
const std::uint32_t* gather_source(Wave& wave, const Inst& inst, const Operand& operand,
                                   unsigned word, Lanes& space);
/// The same as binary32, with its modifiers, and flushed where MODE says so.
const std::uint32_t* gather_float(Wave& wave, const Inst& inst, const Operand& operand,
                                  Lanes& space);

/// Word `word` of source `n` of all lanes.
inline const std::uint32_t* source(Wave& wave, const Inst& inst, unsigned n, Lanes& space,
                                   unsigned word = 0) {
  const Operand& operand = inst.src[n];
  if (operand.kind == OperandKind::kVector && operand.select == Select::kDword && !operand.permuted)
      [[likely]]
    return wave.row(operand.index + word);
  return gather_source(wave, inst, operand, word, space);
}

inline bool is_plain(const Operand& operand) {
  return operand.kind == OperandKind::kVector && operand.select == Select::kDword &&
         !operand.permuted && !operand.negate && !operand.absolute;
}

inline const std::uint32_t* float_source(Wave& wave, const Inst& inst, unsigned n, Lanes& space) {
  const Operand& operand = inst.src[n];
  if (is_plain(operand) && !wave.flush32) [[likely]]
    return wave.row(operand.index);
  return gather_float(wave, inst, operand, space);
}

/// A 64-bit source as two rows.
struct WideRow {
  const std::uint32_t* low;
  const std::uint32_t* high;
  std::uint64_t operator[](unsigned lane) const {
    return low[lane] | (std::uint64_t{high[lane]} << 32);
  }
};
struct WideLanes {
  Lanes low, high;
};
inline WideRow wide_source(Wave& wave, const Inst& inst, unsigned n, WideLanes& space) {
  return {source(wave, inst, n, space.low, 0), source(wave, inst, n, space.high, 1)};
}

/// The lanes that an instruction writes: EXEC, less those that DPP switches off.
std::uint64_t written_lanes(const Wave& wave, const Inst& inst);

/// Writes a row into the active lanes of a register, by SDWA's rules if the instruction is SDWA.
void write_row(Wave& wave, const Inst& inst, unsigned index, const Lanes& row);
/// The same of binary32 results: output modifier, clamp and flushing first.
void write_float_row(Wave& wave, const Inst& inst, Lanes& row);
/// Two rows of 64-bit results.
void write_wide_row(Wave& wave, const Inst& inst, const WideLanes& rows);

/// Whether results may go straight to the register.
inline bool writes_directly(const Wave& wave, const Inst& inst) {
  return inst.direct && wave.exec() == ~std::uint64_t{0};
}

inline float as_float(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline std::uint32_t as_bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}
inline double as_double(std::uint64_t bits) {
  return std::bit_cast<double>(bits);
}

constexpr std::uint32_t kQuiet = 0x00400000;
constexpr std::uint32_t kNan = 0x7fc00000;

/// A NaN for a result: the first source that is one, made quiet, else the default one.
inline std::uint32_t nan_of(std::uint32_t a, std::uint32_t b) {
  const float x = as_float(a);
  const float y = as_float(b);
  return x != x ? a | kQuiet : y != y ? b | kQuiet : kNan;
}
inline std::uint32_t nan_of(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const float x = as_float(a);
  return x != x ? a | kQuiet : nan_of(b, c);
}

/// One source, 32-bit result, on bits.
template <auto F>
void unary(Wave& wave, const Inst& inst) {
  Lanes sa, out;
  const std::uint32_t* const a = source(wave, inst, 0, sa);
  const bool direct = writes_directly(wave, inst);
  std::uint32_t* const d = direct ? wave.row(inst.dst[0].index) : out.at.data();
  MONOREF_EACH_LANE(l) d[l] = static_cast<std::uint32_t>(F(a[l]));
  if (!direct) write_row(wave, inst, inst.dst[0].index, out);
}

template <auto F>
void binary(Wave& wave, const Inst& inst) {
  Lanes sa, sb, out;
  const std::uint32_t* const a = source(wave, inst, 0, sa);
  const std::uint32_t* const b = source(wave, inst, 1, sb);
  const bool direct = writes_directly(wave, inst);
  std::uint32_t* const d = direct ? wave.row(inst.dst[0].index) : out.at.data();
  MONOREF_EACH_LANE(l) d[l] = static_cast<std::uint32_t>(F(a[l], b[l]));
  if (!direct) write_row(wave, inst, inst.dst[0].index, out);
}

template <auto F>
void ternary(Wave& wave, const Inst& inst) {
  Lanes sa, sb, sc, out;
  const std::uint32_t* const a = source(wave, inst, 0, sa);
  const std::uint32_t* const b = source(wave, inst, 1, sb);
  const std::uint32_t* const c = source(wave, inst, 2, sc);
  const bool direct = writes_directly(wave, inst);
  std::uint32_t* const d = direct ? wave.row(inst.dst[0].index) : out.at.data();
  MONOREF_EACH_LANE(l) d[l] = static_cast<std::uint32_t>(F(a[l], b[l], c[l]));
  if (!direct) write_row(wave, inst, inst.dst[0].index, out);
}

/// Binary32 in, binary32 out: F works on bits and makes its own NaNs.
template <auto F>
void float_unary(Wave& wave, const Inst& inst) {
  Lanes sa, out;
  const std::uint32_t* const a = float_source(wave, inst, 0, sa);
  const bool direct = writes_directly(wave, inst) && !wave.flush32;
  std::uint32_t* const d = direct ? wave.row(inst.dst[0].index) : out.at.data();
  MONOREF_EACH_LANE(l) d[l] = F(a[l]);
  if (!direct) write_float_row(wave, inst, out);
}

template <auto F>
void float_binary(Wave& wave, const Inst& inst) {
  Lanes sa, sb, out;
  const std::uint32_t* const a = float_source(wave, inst, 0, sa);
  const std::uint32_t* const b = float_source(wave, inst, 1, sb);
  const bool direct = writes_directly(wave, inst) && !wave.flush32;
  std::uint32_t* const d = direct ? wave.row(inst.dst[0].index) : out.at.data();
  MONOREF_EACH_LANE(l) d[l] = F(a[l], b[l]);
  if (!direct) write_float_row(wave, inst, out);
}

template <auto F>
void float_ternary(Wave& wave, const Inst& inst) {
  Lanes sa, sb, sc, out;
  const std::uint32_t* const a = float_source(wave, inst, 0, sa);
  const std::uint32_t* const b = float_source(wave, inst, 1, sb);
  const std::uint32_t* const c = float_source(wave, inst, 2, sc);
  const bool direct = writes_directly(wave, inst) && !wave.flush32;
  std::uint32_t* const d = direct ? wave.row(inst.dst[0].index) : out.at.data();
  MONOREF_EACH_LANE(l) d[l] = F(a[l], b[l], c[l]);
  if (!direct) write_float_row(wave, inst, out);
}

/// One of two instructions, by MODE's IEEE bit.
template <Handler kIeee, Handler kPlain>
void by_ieee_mode(Wave& wave, const Inst& inst) {
  (wave.mode.ieee ? kIeee : kPlain)(wave, inst);
}

/// Binary32 in, bits out.
template <auto F>
void from_float(Wave& wave, const Inst& inst) {
  Lanes sa, out;
  const std::uint32_t* const a = float_source(wave, inst, 0, sa);
  const bool direct = writes_directly(wave, inst);
  std::uint32_t* const d = direct ? wave.row(inst.dst[0].index) : out.at.data();
  MONOREF_EACH_LANE(l) d[l] = static_cast<std::uint32_t>(F(a[l]));
  if (!direct) write_row(wave, inst, inst.dst[0].index, out);
}

/// Bits in, binary32 out.
template <auto F>
void to_float(Wave& wave, const Inst& inst) {
  Lanes sa, out;
  const std::uint32_t* const a = source(wave, inst, 0, sa);
  const bool direct = writes_directly(wave, inst);
  std::uint32_t* const d = direct ? wave.row(inst.dst[0].index) : out.at.data();
  MONOREF_EACH_LANE(l) d[l] = as_bits(F(a[l]));
  if (!direct) write_float_row(wave, inst, out);
}

/// 64-bit results of up to three sources; how each is read is the entry's business.
template <class F>
void write_wide(Wave& wave, const Inst& inst, F f) {
  const bool direct = writes_directly(wave, inst);
  WideLanes out;
  std::uint32_t* const low = direct ? wave.row(inst.dst[0].index) : out.low.at.data();
  std::uint32_t* const high = direct ? low + kLanes : out.high.at.data();
  MONOREF_EACH_LANE(l) {
    const std::uint64_t value = f(l);
    low[l] = static_cast<std::uint32_t>(value);
    high[l] = static_cast<std::uint32_t>(value >> 32);
  }
  if (!direct) write_wide_row(wave, inst, out);
}

/// One bit a lane of all 64 lanes, from a row of truth values.
std::uint64_t pack_lanes(const std::uint32_t* truths);
/// All ones in the lanes whose bit is set.
void spread_lanes(std::uint64_t bits, Lanes& out);

}  // namespace monoref::device::gfx
