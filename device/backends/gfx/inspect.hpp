// What a code object says of itself.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "device/backends/gfx/object.hpp"

namespace monoref::device::gfx {

/// A mnemonic without the suffix of its encoding, and how often a code object has it.
struct Opcode {
  std::string name;
  std::size_t count = 0;
  std::size_t unknown = 0;  ///< of these, what this executor has no meaning for
};

struct Description {
  std::string chip;
  int version = 0;  ///< of the code object
  std::vector<Kernel> kernels;
  std::vector<Opcode> opcodes;  ///< by name
};

/// Throws std::invalid_argument, naming the file and what is wrong with it, unless it is a code
/// object of gfx942 or gfx950; Unavailable in a build without LLVM.
Description describe(const std::filesystem::path& file);

/// The object itself. Throws Unsupported likewise.
std::unique_ptr<CodeObject> open_object(const std::filesystem::path& file);

}  // namespace monoref::device::gfx
