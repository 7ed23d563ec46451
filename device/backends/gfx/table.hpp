// What every instruction does, as tables arranged like the ISA manual: one entry an instruction.
#pragma once

#include <span>
#include <string_view>

#include "device/backends/gfx/wave.hpp"

namespace monoref::device::gfx {

/// How constants among an instruction's sources are read: 1.0 is another pattern in each.
/// A literal of binary64 is its upper half.
enum class Type : std::uint8_t { kB32, kB16, kB64, kF64 };

/// Operands that an instruction writes come first in assembly.
constexpr int kByReturn = -1;    ///< one, if it is an atomic with sc0
constexpr int kNoOperands = -2;  ///< what follows the mnemonic says nothing to this executor

struct Entry {
  std::string_view name;  ///< without the suffix of the encoding
  Handler run = nullptr;
  int results = 1;
  Type type = Type::kB32;
  std::uint8_t op_sel_hi = 0xff;  ///< where assembly does not say
};

std::span<const Entry> sop_table();      ///< SOP1, SOP2, SOPK, SOPC, SOPP
std::span<const Entry> smem_table();     ///< scalar memory
std::span<const Entry> vop_table();      ///< VOP1, VOP2
std::span<const Entry> vopc_table();     ///< comparisons
std::span<const Entry> vop3_table();     ///< VOP3
std::span<const Entry> half_table();     ///< VOP1 to VOP3 of 16 bits
std::span<const Entry> convert_table();  ///< between number formats
std::span<const Entry> wide_table();     ///< VOP1 to VOP3 of binary64
std::span<const Entry> vop3p_table();    ///< packed
std::span<const Entry> mfma_table();     ///< matrix instructions
std::span<const Entry> ds_table();       ///< LDS
std::span<const Entry> flat_table();     ///< FLAT, GLOBAL, SCRATCH
std::span<const Entry> mubuf_table();    ///< through buffer descriptors

/// The entry of a mnemonic without its encoding's suffix; null if there is none.
const Entry* find_entry(std::string_view name);

}  // namespace monoref::device::gfx
