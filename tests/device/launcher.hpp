// Small words for launching kernels in tests.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/backend.hpp"

namespace monoref::device {

/// A grid of blocks in a row, threads in a row.
inline Grid row(std::uint32_t blocks, std::uint32_t threads, std::uint32_t shared_bytes = 0) {
  Grid grid;
  grid.blocks_x = blocks;
  grid.threads_x = threads;
  grid.shared_bytes = shared_bytes;
  return grid;
}

/// All blocks resident together.
inline Grid cooperative(std::uint32_t blocks, std::uint32_t threads) {
  Grid grid = row(blocks, threads);
  grid.cooperative = true;
  return grid;
}

/// A dense buffer with this content.
template <class T>
BufferRequest buffer(std::string name, const std::vector<T>& content, std::size_t alignment = 16) {
  BufferRequest request{std::move(name), {}, alignment, std::as_bytes(std::span(content))};
  if (!content.empty()) request.extents = {{0, content.size() * sizeof(T)}};
  return request;
}

/// The address of buffer `index` as a kernel argument.
template <class T>
T* pointer(const Backend& backend, std::size_t index) {
  return static_cast<T*>(backend.address(index));
}

/// A value as a kernel argument; it outlives the launch.
template <class T>
KernelArgument argument(const T& value, std::uint32_t size = sizeof(T)) {
  return {static_cast<const void*>(&value), size};
}

/// Launches, waits, and reports. The arguments have exactly the types of the kernel's parameters.
template <class... Args>
RunReport run(Backend& backend, std::string_view kernel, const Grid& grid, const Args&... args) {
  const std::vector<KernelArgument> list{argument(args)...};
  backend.launch(kernel, grid, list);
  return backend.finish();
}

/// A buffer's content.
template <class T>
std::vector<T> content(Backend& backend, std::size_t index, std::size_t count) {
  std::vector<T> values(count);
  backend.read(index, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace monoref::device
