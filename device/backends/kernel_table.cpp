#include "device/backends/kernel_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>

namespace monoref::device {
namespace {

using simt::host::KernelEntry;

struct Key {
  std::string_view name;
  int wave;
  bool with_faults;
  auto operator<=>(const Key&) const = default;
};

/// Filled while the program starts, by one thread; only read after that.
std::map<Key, KernelEntry>& table() {
  static std::map<Key, KernelEntry> entries;
  return entries;
}

[[noreturn]] void refuse_program(const std::string& message) {
  std::fputs((message + "\n").c_str(), stderr);
  std::abort();
}

void check_axis(std::string_view name, std::uint32_t value, std::uint32_t limit) {
  if (value == 0 || value > limit)
    throw std::invalid_argument(
        fmt::format("launch: {} is {}, limits 1 and {}", name, value, limit));
}

}  // namespace

const KernelEntry& find_kernel(std::string_view name, int wave, bool with_faults) {
  const auto found = table().find(Key{name, wave, with_faults});
  if (found == table().end())
    throw std::invalid_argument(fmt::format("launch: there is no kernel '{}' for waves of {}{}",
                                            name, wave, with_faults ? " with faults" : ""));
  return found->second;
}

std::vector<std::string_view> kernel_names() {
  std::vector<std::string_view> names;
  for (const auto& [key, entry] : table())
    if (key.wave == 64 && !key.with_faults) names.push_back(key.name);
  return names;
}

void check_launch(const KernelEntry& kernel, const Grid& grid,
                  std::span<const KernelArgument> arguments) {
  check_axis("blocks_x", grid.blocks_x, 0x7fffffff);
  check_axis("blocks_y", grid.blocks_y, 0xffff);
  check_axis("blocks_z", grid.blocks_z, 0xffff);
  check_axis("threads_x", grid.threads_x, kBlockLimit);
  check_axis("threads_y", grid.threads_y, kBlockLimit);
  check_axis("threads_z", grid.threads_z, kBlockLimit);
  const auto threads = std::uint64_t{grid.threads_x} * grid.threads_y * grid.threads_z;
  if (threads > kernel.max_threads)
    throw std::invalid_argument(fmt::format("launch: a block of '{}' has {} threads, limit {}",
                                            kernel.name, threads, kernel.max_threads));
  if (grid.shared_bytes > kSharedLimit)
    throw std::invalid_argument(
        fmt::format("launch: shared_bytes is {}, limit {}", grid.shared_bytes, kSharedLimit));
  if (arguments.size() != kernel.argument_count)
    throw std::invalid_argument(fmt::format("launch: '{}' is given {} arguments and has {}",
                                            kernel.name, arguments.size(), kernel.argument_count));
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].size != kernel.argument_sizes[i])
      throw std::invalid_argument(
          fmt::format("launch: argument {} of '{}' has {} bytes, must be {}", i, kernel.name,
                      arguments[i].size, kernel.argument_sizes[i]));
}

}  // namespace monoref::device

namespace monoref::simt::host {

void register_kernel(KernelEntry entry) {
  if (entry.max_threads == 0 || entry.max_threads > device::kBlockLimit)
    device::refuse_program(
        fmt::format("MONOREF_KERNEL({0}, {1}): max_threads is {0}, limits 1 and {2}",
                    entry.max_threads, entry.name, device::kBlockLimit));
  const device::Key key{entry.name, entry.wave, entry.with_faults};
  if (!device::table().emplace(key, entry).second)
    device::refuse_program(fmt::format("MONOREF_REGISTER({}): there are two of them", entry.name));
}

}  // namespace monoref::simt::host
