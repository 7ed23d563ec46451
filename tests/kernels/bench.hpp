// A bench for one kernel: typed buffers on the host backend, and launches on them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "device/backend.hpp"
#include "device/launch/launch.hpp"

namespace monoref::device {

/// Buffers first, then launches, then reads. Every launch is expected to end well and to leave the
/// guard regions alone.
class KernelBench {
 public:
  explicit KernelBench(int wave, std::size_t alignment = 16)
      : backend_(make_host_backend(wave)), alignment_(alignment) {}

  /// A buffer as a kernel argument.
  struct Buffer {
    std::size_t index;
  };

  template <class T>
  Buffer add(const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    images_.emplace_back(bytes.begin(), bytes.end());
    return {images_.size() - 1};
  }

  /// A launch by its arguments' names.
  template <class Args>
  void run(const Args& args, const device::launch::Shape& shape = {}) {
    run_on(grid_of(args, backend_->wave(), shape), args);
  }
  /// The same on any grid, also one that the kernel does not take.
  template <class Args>
  void run_on(const Grid& grid, const Args& args) {
    place();
    args.pass([&](const auto&... values) {
      const KernelArgument arguments[] = {device::launch::argument(values)...};
      backend_->launch(args.kernel(), grid, arguments);
    });
    finish(std::string(args.kernel()));
  }

  /// For kernels of no stage. Parameters in the kernel's order: buffers, and integers of exactly
  /// the parameter's type.
  template <class... Parameters>
  void launch(const std::string& kernel, const Grid& grid, Parameters... parameters) {
    place();
    std::vector<std::vector<std::byte>> values;
    (values.push_back(bytes_of(parameters)), ...);
    std::vector<KernelArgument> arguments;
    for (const auto& value : values)
      arguments.push_back({value.data(), static_cast<std::uint32_t>(value.size())});
    backend_->launch(kernel, grid, arguments);
    finish(kernel);
  }

  /// Where a buffer lies. All buffers have been added.
  template <class T>
  T* at(Buffer buffer) {
    place();
    return static_cast<T*>(backend_->address(buffer.index));
  }

  template <class T>
  std::vector<T> read(Buffer buffer) {
    std::vector<T> values(images_[buffer.index].size() / sizeof(T));
    backend_->read(buffer.index, std::as_writable_bytes(std::span(values)));
    return values;
  }

 private:
  void finish(const std::string& kernel) {
    const RunReport report = backend_->finish();
    ASSERT_EQ(report.status, RunStatus::kOk) << kernel << ": " << report.message;
    const std::string damage = backend_->damaged_guard().value_or("");
    ASSERT_EQ(damage, "") << kernel;
  }

  void place() {
    if (placed_) return;
    placed_ = true;
    std::vector<BufferRequest> requests;
    for (const auto& image : images_) {
      requests.push_back({.name = "buffer " + std::to_string(requests.size()),
                          .extents = {},
                          .alignment = alignment_,
                          .image = image});
      if (!image.empty()) requests.back().extents = {{0, image.size()}};
    }
    backend_->place(requests);
  }

  template <class T>
  std::vector<std::byte> bytes_of(T parameter) {
    if constexpr (std::is_same_v<T, Buffer>) {
      return bytes_of<void*>(backend_->address(parameter.index));
    } else {
      std::vector<std::byte> bytes(sizeof(T));
      std::memcpy(bytes.data(), static_cast<const void*>(&parameter), sizeof(T));
      return bytes;
    }
  }

  std::unique_ptr<Backend> backend_;
  std::size_t alignment_;
  std::deque<std::vector<std::byte>> images_;
  bool placed_ = false;
};

/// A launch of `blocks` blocks of `threads` threads.
inline Grid grid_of(std::uint32_t blocks, std::uint32_t threads, std::uint32_t blocks_y = 1) {
  return {.blocks_x = blocks, .blocks_y = blocks_y, .threads_x = threads};
}

/// Type names short enough for argument lists.
using i32 = std::int32_t;
using i64 = std::int64_t;

}  // namespace monoref::device
