#include "device/backends/gfx/vector.hpp"

#include <immintrin.h>

#include <cfenv>

namespace monoref::device::gfx {
namespace {

std::uint32_t special(const Wave& wave, unsigned index) {
  switch (index) {
    case kVccz:
      return wave.pair(kVcc) == 0 ? 1 : 0;
    case kExecz:
      return wave.exec() == 0 ? 1 : 0;
    default:
      return wave.scc ? 1 : 0;
  }
}

std::uint32_t select_bits(std::uint32_t value, Select select, bool extend) {
  switch (select) {
    case Select::kDword:
      return value;
    case Select::kWord0:
    case Select::kWord1: {
      const auto word = static_cast<std::uint16_t>(select == Select::kWord1 ? value >> 16 : value);
      return extend ? static_cast<std::uint32_t>(static_cast<std::int16_t>(word)) : word;
    }
    default: {
      const auto byte = static_cast<std::uint8_t>(value >> (8 * static_cast<unsigned>(select)));
      return extend ? static_cast<std::uint32_t>(static_cast<std::int8_t>(byte)) : byte;
    }
  }
}

bool is_subnormal(std::uint32_t bits) {
  return (bits & 0x7f800000U) == 0;
}

void fill(Lanes& space, std::uint32_t value) {
  space.at.fill(value);
}

/// The register's bits that SDWA's destination selects, and the shift to them.
std::pair<std::uint32_t, unsigned> place_of(Select select) {
  switch (select) {
    case Select::kDword:
      return {~0U, 0};
    case Select::kWord0:
      return {0xffffU, 0};
    case Select::kWord1:
      return {0xffff0000U, 16};
    default: {
      const unsigned shift = 8 * static_cast<unsigned>(select);
      return {0xffU << shift, shift};
    }
  }
}

/// What a register becomes when SDWA writes `value` into a part of it.
std::uint32_t merged(const Inst& inst, std::uint32_t before, std::uint32_t value) {
  const auto [mask, shift] = place_of(inst.dst_select);
  const std::uint32_t placed = (value << shift) & mask;
  if (inst.dst_unused == Unused::kPreserve) return (before & ~mask) | placed;
  if (inst.dst_unused == Unused::kSext) {
    const bool negative = (placed & (mask & ~(mask >> 1))) != 0;
    const std::uint32_t above = ~(mask | (mask - 1));  // the bits beyond the part
    return placed | (negative ? above : 0);
  }
  return placed;
}

}  // namespace

std::uint32_t scalar32(const Wave& wave, const Operand& operand) {
  if (operand.kind == OperandKind::kConstant) return static_cast<std::uint32_t>(operand.value);
  return operand.index < kScalarRegisters ? wave.scalar[operand.index]
                                          : special(wave, operand.index);
}

std::uint64_t scalar64(const Wave& wave, const Operand& operand) {
  if (operand.kind == OperandKind::kConstant) return operand.value;
  return operand.index < kScalarRegisters ? wave.pair(operand.index) : special(wave, operand.index);
}

void set_scalar32(Wave& wave, const Operand& operand, std::uint32_t value) {
  wave.scalar[operand.index] = value;
}

void set_scalar64(Wave& wave, const Operand& operand, std::uint64_t value) {
  wave.set_pair(operand.index, value);
}

void Wave::expand_mask() {
  mask_of = exec();
  spread_lanes(mask_of, mask_lanes);
}

void apply_mode(Wave& wave) {
  constexpr std::array<int, 4> kRoundings{FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  std::fesetround(kRoundings[wave.mode.round32]);
  wave.flush32 = wave.mode.denorm32 != 3;
}

void spread_lanes(std::uint64_t bits, Lanes& out) {
  const auto low = static_cast<std::uint32_t>(bits);
  const auto high = static_cast<std::uint32_t>(bits >> 32);
  for (unsigned l = 0; l < 32; ++l) out.at[l] = (low & (1U << l)) != 0 ? ~0U : 0U;
  for (unsigned l = 0; l < 32; ++l) out.at[l + 32] = (high & (1U << l)) != 0 ? ~0U : 0U;
}

std::uint64_t pack_lanes(const std::uint32_t* truths) {
  std::uint64_t bits = 0;
  for (unsigned l = 0; l < kLanes; l += 8) {
    const __m256i row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(truths + l));
    const auto eight = static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(row)));
    bits |= std::uint64_t{eight} << l;
  }
  return bits;
}

const std::uint32_t* gather_source(Wave& wave, const Inst& inst, const Operand& operand,
                                   unsigned word, Lanes& space) {
  if (operand.kind == OperandKind::kConstant) {
    fill(space, static_cast<std::uint32_t>(operand.value >> (32 * word)));
  } else if (operand.kind == OperandKind::kScalar) {
    Operand part = operand;
    part.index = static_cast<std::uint16_t>(part.index + word);
    fill(space, scalar32(wave, part));
  } else {
    const std::uint32_t* const row = wave.row(operand.index + word);
    if (operand.permuted)
      for (unsigned l = 0; l < kLanes; ++l) {
        const int from = inst.moves->from[l];
        const bool there = from >= 0 && (wave.exec() >> from & 1) != 0;
        space.at[l] = there ? row[from] : 0;
      }
    else
      std::memcpy(space.at.data(), row, sizeof space.at);
  }
  if (operand.select != Select::kDword || operand.extend)
    for (std::uint32_t& value : space.at)
      value = select_bits(value, operand.select, operand.extend);
  return space.at.data();
}

const std::uint32_t* gather_float(Wave& wave, const Inst& inst, const Operand& operand,
                                  Lanes& space) {
  const std::uint32_t* const bits = gather_source(wave, inst, operand, 0, space);
  const std::uint32_t keep = operand.absolute ? 0x7fffffffU : ~0U;
  const std::uint32_t flip = operand.negate ? 0x80000000U : 0;
  const bool flush = (wave.mode.denorm32 & 1) == 0;
  for (unsigned l = 0; l < kLanes; ++l) {
    const std::uint32_t value = (bits[l] & keep) ^ flip;
    space.at[l] = flush && is_subnormal(value) ? value & 0x80000000U : value;
  }
  return space.at.data();
}

std::uint64_t written_lanes(const Wave& wave, const Inst& inst) {
  std::uint64_t lanes = wave.exec();
  if (inst.moves == nullptr) return lanes;
  lanes &= inst.moves->enabled;
  if (inst.moves->zero_where_none) return lanes;
  for (unsigned l = 0; l < kLanes; ++l) {
    const int from = inst.moves->from[l];
    if (from < 0 || (wave.exec() >> from & 1) == 0) lanes &= ~(std::uint64_t{1} << l);
  }
  return lanes;
}

void write_row(Wave& wave, const Inst& inst, unsigned index, const Lanes& row) {
  std::uint32_t* const d = wave.row(index);
  Lanes moved;
  const std::uint32_t* mask = wave.mask();
  if (inst.moves != nullptr) {
    spread_lanes(written_lanes(wave, inst), moved);
    mask = moved.at.data();
  }
  if (inst.sdwa) {
    for (unsigned l = 0; l < kLanes; ++l)
      if (mask[l] != 0) d[l] = merged(inst, d[l], row.at[l]);
    return;
  }
  MONOREF_EACH_LANE(l) d[l] = (row.at[l] & mask[l]) | (d[l] & ~mask[l]);
}

void write_float_row(Wave& wave, const Inst& inst, Lanes& row) {
  constexpr std::array<float, 4> kFactors{1.0F, 2.0F, 4.0F, 0.5F};
  if (inst.output_modifier != 0)
    for (std::uint32_t& value : row.at)
      value = as_bits(as_float(value) * kFactors[inst.output_modifier]);
  if (inst.clamp)
    for (std::uint32_t& value : row.at) {
      const float x = as_float(value);
      if (x != x)
        value = wave.mode.dx10_clamp ? 0 : value;
      else
        value = as_bits(x <= 0.0F ? 0.0F : x > 1.0F ? 1.0F : x);
    }
  if ((wave.mode.denorm32 & 2) == 0)
    for (std::uint32_t& value : row.at)
      if (is_subnormal(value)) value &= 0x80000000U;
  write_row(wave, inst, inst.dst[0].index, row);
}

void write_wide_row(Wave& wave, const Inst& inst, const WideLanes& rows) {
  write_row(wave, inst, inst.dst[0].index, rows.low);
  write_row(wave, inst, inst.dst[0].index + 1U, rows.high);
}

}  // namespace monoref::device::gfx
