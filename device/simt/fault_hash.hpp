// The number that stands for a planted fault in kernels built with faults.
#pragma once

#include <cstdint>
#include <string_view>

namespace monoref::simt {

/// FNV-1a of a fault's name, without the quotes that a stringified string literal has.
constexpr std::uint64_t fault_hash(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char letter : name) {
    if (letter == '"') continue;
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;
  }
  return hash;
}

}  // namespace monoref::simt
