// Runs one kernel launch on the CPU: a fibre for every thread that has to wait, OpenMP over blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "device/backend.hpp"
#include "device/simt/host.hpp"

namespace monoref::device {

/// One launch. The arguments point to values aligned to 16 bytes that outlive it.
struct HostLaunch {
  const simt::host::KernelEntry* kernel = nullptr;
  Grid grid;
  const void* const* arguments = nullptr;
  double time_limit = 0;  ///< seconds of processor time that each OS thread may take
  /// Says in words what lies at an address at which the kernel faulted.
  std::function<std::string(std::uintptr_t address, bool is_write)> describe_address;
};

/// Runs the launch to its end, or to the first thing that is wrong with it: threads that diverge at
/// a barrier or in a cross-lane operation, a fault, a full stack, the time limit. The message names
/// block, thread and place. Whatever happened, the next launch finds the executor as new.
/// Throws std::system_error or std::bad_alloc where the machine has no memory for the launch.
RunReport run_on_host(const HostLaunch& launch);

}  // namespace monoref::device
