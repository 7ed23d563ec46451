// A code object: what its file says of itself, and its image in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/backends/gfx/program.hpp"

namespace monoref::device::gfx {

/// One argument of a kernel, as the metadata note has it.
struct KernelParameter {
  std::string kind;  ///< global_buffer, by_value, hidden_block_count_x, ...
  std::string name;
  std::uint32_t offset = 0, size = 0;
  /// The runtime's, not the caller's.
  bool is_hidden() const { return kind.starts_with("hidden_"); }
};

/// A kernel's descriptor and metadata.
struct Kernel {
  std::string name;
  std::uint64_t entry = 0;  ///< address in the file's own terms
  std::uint32_t shared_bytes = 0, private_bytes = 0, argument_bytes = 0;
  std::uint32_t vector_registers = 0, accumulators = 0, scalar_registers = 0;
  std::uint32_t max_threads = 0;
  Mode mode;
  bool private_buffer = false, dispatch_pointer = false, queue_pointer = false;
  bool argument_pointer = false, dispatch_id = false, flat_scratch = false, private_size = false;
  bool group_x = false, group_y = false, group_z = false, group_info = false;
  std::uint32_t item_ids = 0;  ///< 0: x, 1: x and y, 2: all three
  std::uint32_t preloaded_words = 0, preload_offset = 0;
  bool dynamic_stack = false;
  std::vector<KernelParameter> parameters;
};

/// Throws Unsupported, naming the file and what is wrong with it.
class CodeObject {
 public:
  explicit CodeObject(const std::filesystem::path& file);

  std::string chip;  ///< gfx950
  int version = 0;   ///< of the code object: 5, 6
  std::vector<Kernel> kernels;

  /// The program, decoded at the first call.
  const Program& program();
  /// Where a kernel starts.
  std::uint64_t address_of(const Kernel& kernel) const { return base() + kernel.entry; }
  /// The image, which kernels may read.
  std::uint64_t base() const { return reinterpret_cast<std::uintptr_t>(image_.data()); }
  std::size_t size() const { return image_.size() * sizeof(Page); }

 private:
  struct alignas(4096) Page {
    std::byte bytes[4096];
  };
  std::byte* image() { return reinterpret_cast<std::byte*>(image_.data()); }
  static std::uint64_t symbol_address(const std::filesystem::path& file, std::string_view bytes,
                                      const std::string& name);

  std::filesystem::path file_;
  std::vector<Page> image_;
  std::uint64_t text_ = 0, text_bytes_ = 0;
  std::unique_ptr<Program> program_;
};

}  // namespace monoref::device::gfx
