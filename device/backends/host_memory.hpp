// Buffers of the host backend: every one ends at a page without access, and every byte around it
// that can be touched is a canary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/backend.hpp"
#include "device/backends/guarded_layout.hpp"
#include "device/backends/poison.hpp"

namespace monoref::device {

/// Lays out the buffers of one case after the other, as in guarded_layout.hpp, in mappings that are
/// used again. A read or write past a buffer's end faults at once; a write into a canary is found
/// by `damaged`.
class HostMemory {
 public:
  HostMemory() = default;
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  /// Throws std::invalid_argument, naming the buffer, where extents are not ascending and disjoint,
  /// an image has another size than they have, or an alignment is no power of two up to 4096.
  void place(std::span<const BufferRequest> buffers);
  void* address(std::size_t index) const { return buffers_.at(index).base; }
  void write(std::size_t index, std::span<const std::byte> image);
  void read(std::size_t index, std::span<std::byte> image) const;
  /// The first canary byte of any buffer that was written.
  std::optional<std::string> damaged() const;
  /// What an access at `address` would have hit, in words.
  std::string describe(std::uintptr_t address, bool is_write) const;

 private:
  /// A mapping: pages between margins that are never accessible.
  struct Region {
    std::byte* begin = nullptr;  ///< of the pages between
    std::size_t bytes = 0;
  };
  struct Buffer {
    std::string name;
    std::vector<ByteExtent> extents;
    std::size_t image_bytes = 0;
    std::uint64_t span = 0;  ///< end of the last extent
    std::byte* base = nullptr;
    Region region;
    GuardedLayout layout;
    Poison poison;
  };

  Region take(std::map<std::size_t, std::vector<Region>>& pool, std::size_t bytes, bool accessible);
  void release_all();
  void trim();
  std::string place_of(const Buffer& buffer, std::uintptr_t address) const;

  std::vector<Buffer> buffers_;
  std::map<std::size_t, std::vector<Region>> dense_pool_;  ///< free regions by their bytes
  std::map<std::size_t, std::vector<Region>> sparse_pool_;
  std::size_t pooled_bytes_ = 0;   ///< of dense_pool_
  std::size_t pooled_sparse_ = 0;  ///< regions in sparse_pool_
};

}  // namespace monoref::device
