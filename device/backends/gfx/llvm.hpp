// What LLVM is used for: disassembly, and reading code objects. No header of LLVM reaches further.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace monoref::device::gfx {

/// LLVM's disassembler for one chip (gfx942, gfx950).
class Disassembler {
 public:
  struct Line {
    std::string text;  ///< the instruction in assembly, one space behind the mnemonic
    std::size_t bytes = 4;
  };

  explicit Disassembler(std::string_view chip);
  ~Disassembler();
  Disassembler(const Disassembler&) = delete;
  Disassembler& operator=(const Disassembler&) = delete;

  /// The instruction that `code` begins with. What is none is `.long` and its word.
  Line at(std::span<const std::byte> code, std::uint64_t address);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace monoref::device::gfx
