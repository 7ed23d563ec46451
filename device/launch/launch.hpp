// How a kernel is launched, as data: its arguments by name, the grid that suits them, and all grids
// under which it computes the same bits. One header a kernel file stands beside this one; each has
// a struct for every kernel that its caller fills in and hands to `enqueue`:
//
//   using namespace device::launch;
//   enqueue(RouterNorm{.sum = sum, .rows = 4, ...}, wave, put_on_my_stream);
//
// Such a struct has
//   kernel()     the kernel's name
//   grid(wave)   the default grid, for waves of so many lanes
//   legal(wave)  the grids that give the same bits
//   pass(take)   calls `take` with the arguments in the order of the kernel's parameters
//   shared_bytes(threads), where the kernel takes dynamic shared memory
// What the arguments mean, their shapes and units, is said in the kernel's file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "device/backend.hpp"

namespace monoref::device::launch {

constexpr std::uint32_t kMostBlocks = 65535;  ///< of a grid, in y and z on every device

/// A number from `least` to `most`.
struct Range {
  std::uint32_t least = 1, most = 1;

  constexpr std::uint32_t nearest(std::uint32_t value) const {
    return std::clamp(value, least, most);
  }
  constexpr bool has(std::uint32_t value) const { return nearest(value) == value; }
};

/// The grids under which a kernel computes the same bits: blocks in x, y and z, and threads a block
/// in one dimension, a multiple of `threads_step`.
struct Legal {
  Range x, y, z, threads;
  std::uint32_t threads_step = 1;

  constexpr bool has(const Grid& grid) const {
    return x.has(grid.blocks_x) && y.has(grid.blocks_y) && z.has(grid.blocks_z) &&
           threads.has(grid.threads_x) && grid.threads_x % threads_step == 0 &&
           grid.threads_y == 1 && grid.threads_z == 1;
  }
};

/// Any grid in x, or in x and y, of any blocks of whole waves up to `most_threads`.
constexpr Legal any_x(int wave, std::uint32_t most_threads = 1024) {
  const auto lanes = static_cast<std::uint32_t>(wave);
  return {{1, kMostBlocks}, {1, 1}, {1, 1}, {lanes, most_threads}, lanes};
}
constexpr Legal any_xy(int wave, std::uint32_t most_threads = 1024) {
  Legal legal = any_x(wave, most_threads);
  legal.y.most = kMostBlocks;
  return legal;
}

/// What somebody wants instead of the default grid; 0 leaves the default. Where a kernel takes no
/// such grid it gets the nearest that it takes. `blocks_y` is meant for z too.
struct Shape {
  std::uint32_t blocks_x = 0, blocks_y = 0, waves = 0;
  bool operator==(const Shape&) const = default;
};

constexpr Grid shaped(Grid grid, const Legal& legal, const Shape& shape, int wave) {
  if (shape.blocks_x > 0) grid.blocks_x = legal.x.nearest(shape.blocks_x);
  if (shape.blocks_y > 0) {
    grid.blocks_y = legal.y.nearest(shape.blocks_y);
    grid.blocks_z = legal.z.nearest(shape.blocks_y);
  }
  if (shape.waves > 0) {
    const std::uint32_t threads =
        legal.threads.nearest(std::min(shape.waves, 1024u) * static_cast<std::uint32_t>(wave));
    grid.threads_x = threads / legal.threads_step * legal.threads_step;
  }
  return grid;
}

/// An address that must be a multiple of 16: the kernel has no other path.
template <class T>
struct On16 {
  T* address;
};
template <class T>
On16(T*) -> On16<T>;

/// A size as kernels take it; std::invalid_argument where int32 does not hold it.
inline std::int32_t narrow(std::int64_t value) {
  if (value < std::numeric_limits<std::int32_t>::min() ||
      value > std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument("launch: a size is " + std::to_string(value) +
                                ", must be -2147483648 to 2147483647");
  return static_cast<std::int32_t>(value);
}

template <class T>
KernelArgument argument(const T& value) {
  return {static_cast<const void*>(&value), static_cast<std::uint32_t>(sizeof(value))};
}
template <class T>
KernelArgument argument(const On16<T>& value) {
  if (reinterpret_cast<std::uintptr_t>(value.address) % 16 != 0)
    throw std::invalid_argument("launch: an address is no multiple of 16, which its kernel needs");
  return argument(value.address);
}

/// The grid of a launch that somebody wants in this shape.
template <class Args>
Grid grid_of(const Args& args, int wave, const Shape& shape = {}) {
  Grid grid = shaped(args.grid(wave), args.legal(wave), shape, wave);
  if constexpr (requires { args.shared_bytes(grid.threads_x); })
    grid.shared_bytes = args.shared_bytes(grid.threads_x);
  return grid;
}

/// Calls `put(kernel, grid, arguments)`, which enqueues a kernel where its caller wants it:
/// arguments are a span of KernelArgument, good until `put` returns. Throws std::invalid_argument
/// for a size beyond int32 and for an address that its kernel cannot take.
template <class Args, class Put>
void enqueue(const Args& args, int wave, const Put& put, const Shape& shape = {}) {
  const Grid grid = grid_of(args, wave, shape);
  args.pass([&](const auto&... values) {
    const KernelArgument list[] = {argument(values)...};
    put(std::string_view(args.kernel()), grid, std::span<const KernelArgument>(list));
  });
}

/// The same on a device of a backend.
template <class Args>
void enqueue(const Args& args, Backend& backend, const Shape& shape = {}, int device = 0) {
  enqueue(
      args, backend.wave(),
      [&](std::string_view kernel, const Grid& grid, std::span<const KernelArgument> arguments) {
        backend.launch(kernel, grid, arguments, device);
      },
      shape);
}

/// One block for each of `units`, at least one and at most what a grid may have.
constexpr std::uint32_t blocks(std::int64_t units, std::int64_t most = kMostBlocks) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(units, 1, most));
}
/// How many parts of `size` hold `count`.
constexpr std::int64_t parts(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size;
}
/// A thread for each of `items` in whole waves, of both sizes that there are, up to `most`.
constexpr std::uint32_t threads_for(std::int64_t items, std::int64_t most = 256) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(parts(items, 64) * 64, 64, most));
}
/// The same in waves of so many lanes.
constexpr std::uint32_t waves_for(std::int64_t items, int wave, std::int64_t most) {
  return static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(parts(items, wave) * wave, wave, most));
}

/// Kernels whose block has a row and whose threads have eight elements of it each: the default
/// grid, and the legal ones.
constexpr Grid grid_of_rows(std::int64_t rows, std::int64_t hidden, int wave) {
  return {.blocks_x = blocks(rows), .threads_x = waves_for(hidden / 8, wave, 1024)};
}
constexpr Legal legal_of_rows(std::int64_t hidden, int wave) {
  Legal legal = any_x(wave);
  legal.threads.least = waves_for(hidden / 8, wave, 1024);
  return legal;
}

}  // namespace monoref::device::launch
