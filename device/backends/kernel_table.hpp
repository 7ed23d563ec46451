// The kernels compiled into this program for the host, and the checks on a launch that every
// backend shares.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "device/backend.hpp"
#include "device/simt/host.hpp"

namespace monoref::device {

/// Shared memory that a block may have, static and dynamic together: what gfx950 has.
constexpr std::size_t kSharedLimit = std::size_t{160} << 10;
/// Threads that a block may have on every target.
constexpr std::uint32_t kBlockLimit = 1024;

/// The kernel of one variant; throws std::invalid_argument, naming it, if there is none.
const simt::host::KernelEntry& find_kernel(std::string_view name, int wave, bool with_faults);

/// Throws std::invalid_argument unless `grid` is a launch that every target can make and
/// `arguments` have the count and the sizes of the kernel's parameters.
void check_launch(const simt::host::KernelEntry& kernel, const Grid& grid,
                  std::span<const KernelArgument> arguments);

}  // namespace monoref::device
