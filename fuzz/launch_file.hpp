// A launch of somebody's kernel as a file: a safetensors file with memory before and after, whose
// metadata entry `launch` says how the kernel is launched (README, "Look at an .hsaco").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace monoref {

/// A tensor of a safetensors file.
struct StoredTensor {
  std::string dtype;  ///< F32, BF16, U8, ...
  std::size_t element_size = 1;
  std::vector<std::int64_t> dims;
  std::vector<std::byte> bytes;
};

/// One argument of a launch.
struct LaunchArgument {
  enum class Kind : std::uint8_t { kPointer, kNull, kValue, kHidden };

  std::string name;
  std::uint32_t offset = 0, size = 0;  ///< in the argument segment, bytes
  Kind kind = Kind::kValue;
  std::vector<std::byte> value;       ///< of kValue
  StoredTensor before;                ///< of kPointer: the buffer before the launch
  std::optional<StoredTensor> after;  ///< what it must be after it; else it stays as it was
};

struct LaunchFile {
  std::string kernel;
  std::array<std::uint32_t, 3> grid{}, threads{};
  std::uint32_t dynamic_lds = 0;
  /// What the file says of the kernel itself, to be held against its code object.
  std::uint32_t static_lds = 0, kernarg_bytes = 0, preloaded_dwords = 0, private_bytes = 0;
  std::vector<LaunchArgument> arguments;
};

/// Reads a launch. Throws Refusal, naming the file, the entry, its value and the limit.
LaunchFile read_launch_file(const std::filesystem::path& path);

}  // namespace monoref
