// The buffers of a case in the memory of one GPU. Small buffers share one arena that goes to the
// device in one copy and comes back in one copy, which decides how many cases a second there are;
// between them, canaries. A buffer of several extents has an address range of its own.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/backends/gpu_runtime.hpp"
#include "device/backends/poison.hpp"

namespace monoref::device {

/// One GPU's memory. A GpuError thrown here leaves it unusable until `recover`.
class GpuMemory {
 public:
  /// `device` is its place among the devices, for DeviceRun.
  GpuMemory(std::unique_ptr<GpuRuntime> runtime, int device)
      : runtime_(std::move(runtime)), device_(device) {}

  GpuRuntime& runtime() const { return *runtime_; }

  /// Lays out anew what this device has of all buffers, and enqueues the copy there. The stream is
  /// idle.
  void place(std::span<const BufferRequest> requests);
  /// Null where the device has nothing of the buffer.
  void* address(std::size_t index) const { return buffers_.at(index).base; }
  /// Replaces what the device has of an image. The stream is idle.
  void write(std::size_t index, std::span<const std::byte> image);
  /// Enqueues the copy of everything back.
  void copy_out();

  // After copy_out has been waited for.

  /// What the device has of an image from `offset` on, as far as it lies together; it has that
  /// byte.
  std::span<const std::byte> image(std::size_t index, std::size_t offset) const;
  /// "buffer 'x': written 4 bytes past its end (100 bytes)".
  std::optional<std::string> damaged_guard() const;

  /// Gives up all memory and begins anew; false if the device stays unusable.
  bool recover();
  void release();

 private:
  /// Bytes that travel together: at `staged` of the staging memory, and on the device.
  struct Piece {
    std::byte* device = nullptr;
    std::size_t staged = 0;
    std::size_t bytes = 0;
  };
  /// A buffer's bytes or its canaries within the staging memory. `offset` counts from its base.
  struct Part {
    std::size_t staged = 0;
    std::int64_t offset = 0;
    std::size_t bytes = 0;
    std::size_t image = 0;  ///< of bytes: where they are in the buffer's image
  };
  struct Buffer {
    std::string name;
    std::byte* base = nullptr;
    std::uint64_t span = 0;
    std::vector<Part> extents;
    std::vector<Part> canaries;
    Poison poison;
  };

  std::size_t lay_out(const BufferRequest& request, Buffer& buffer, std::size_t at) const;
  std::size_t lay_out_sparse(Buffer& buffer, const BufferRequest& request, std::size_t at);
  void give_addresses(std::span<const BufferRequest> requests);
  void note_buffers();
  void reserve_staging(std::size_t arena, std::size_t all);
  void stage(const Buffer& buffer, std::span<const std::byte> image);
  bool has_any_of(const BufferRequest& request) const;
  std::byte* staged(const Part& part) const { return staging_ + part.staged; }

  std::unique_ptr<GpuRuntime> runtime_;
  int device_;
  std::vector<Buffer> buffers_;
  std::vector<Piece> pieces_;
  std::byte* arena_ = nullptr;
  std::byte* staging_ = nullptr;
  std::size_t arena_bytes_ = 0;
  std::size_t staging_bytes_ = 0;
  bool has_reserved_ = false;
};

}  // namespace monoref::device
