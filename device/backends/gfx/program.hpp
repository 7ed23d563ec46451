// The instructions of one code object, decoded once.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/backends/gfx/wave.hpp"

namespace monoref::device::gfx {

/// A text section whose first byte lies at `address` when it runs.
class Program {
 public:
  /// Index of the instruction at `address`; throws Fault where none begins.
  std::uint32_t index_of(std::uint64_t address) const;
  std::uint64_t address_of(std::uint32_t index) const { return begin + offsets.at(index); }
  /// The instruction in assembly, with its offset in the section.
  std::string describe(std::uint32_t index) const;

  std::string chip;  ///< gfx942, gfx950
  std::uint64_t begin = 0;
  std::vector<Inst> code;  ///< ends with one that has no place in the section
  std::vector<std::uint32_t> offsets;
  std::vector<std::string> text;
  std::deque<LaneMoves> moves;
};

/// Decodes a text section for a chip; `loaded_at` is its address when it runs. What is not in the
/// tables becomes an instruction that throws Unsupported when it is reached.
std::unique_ptr<Program> decode(std::string_view chip, std::span<const std::byte> section,
                                std::uint64_t loaded_at);

/// The instructions of a program up to the last that ends it; padding follows.
struct Mnemonic {
  std::string name;  ///< without the suffix of its encoding
  bool known;
};
std::vector<Mnemonic> mnemonics(const Program& program);

/// The mnemonics of a program that are in no table, each once.
std::vector<std::string> unknown_mnemonics(const Program& program);

}  // namespace monoref::device::gfx
