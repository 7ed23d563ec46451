// What a GPU backend needs of its vendor's runtime. Everything else is common (gpu_backend.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/backend.hpp"
#include "device/simt/host.hpp"

namespace monoref::device {

/// Where bytes of a case's buffer lie on the device, or canaries beside them.
struct DevicePart {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
  bool canary = false;
  std::string_view buffer;
};

/// One GPU and one stream on it. Work is enqueued and done in order. A call that cannot do its work
/// throws GpuError, and so does every call after a fault on the device, until `recover`. Runtimes
/// that work together are of one kind; "other" means another of that kind.
class GpuRuntime {
 public:
  virtual ~GpuRuntime() = default;
  virtual std::string name() const = 0;
  virtual int wave() const = 0;

  virtual std::byte* allocate(std::size_t bytes) = 0;  ///< device memory, aligned to 4096
  virtual void release(std::byte* memory) = 0;
  virtual std::byte* allocate_host(std::size_t bytes) = 0;  ///< that the device copies from and to
  virtual void release_host(std::byte* memory) = 0;

  /// Reserves `span` bytes of device addresses, aligned to 4096, and puts memory behind the runs
  /// given in it (and perhaps behind bytes next to them). Touching the rest is a fault.
  virtual std::byte* reserve(std::uint64_t span, std::span<const ByteExtent> backed) = 0;
  virtual void release_reserved() = 0;  ///< all of them; the stream is idle

  /// What the case's buffers are, before anything of it is launched. For runtimes that can tell a
  /// buffer from what lies beside it; the views stay valid until the next call.
  virtual void note_buffers(std::span<const DevicePart>) {}

  /// A kernel that is not of this program; null where the runtime has none of that name.
  virtual const simt::host::KernelEntry* own_kernel(std::string_view) { return nullptr; }

  virtual void copy_in(std::byte* device, const std::byte* host, std::size_t bytes) = 0;
  virtual void copy_out(std::byte* host, const std::byte* device, std::size_t bytes) = 0;
  /// `arguments` point to the values, in order.
  virtual void launch(const simt::host::KernelEntry& kernel, const Grid& grid,
                      void** arguments) = 0;
  /// Whether all that was enqueued is done; throws GpuError if something failed.
  virtual bool idle() = 0;

  /// Lets kernels of this device use the memory of another's. Throws GpuError if they cannot.
  virtual void reach(GpuRuntime& other) = 0;
  /// What is enqueued from now on begins when what another has been given until now is done.
  virtual void follow(GpuRuntime& other) = 0;

  /// Holds back what is enqueued from now on until `let_go`, which does not throw.
  virtual void hold() = 0;
  virtual void let_go() = 0;
  /// Starts and stops a clock on the device, between what is enqueued before and after.
  virtual void start_clock() = 0;
  virtual void stop_clock() = 0;
  /// What the clock has measured; the stream is idle.
  virtual double clocked_seconds() = 0;

  /// Stops what runs and drops what was enqueued, and says where it was; nothing where a device
  /// cannot be stopped.
  virtual std::optional<std::string> abandon() { return std::nullopt; }

  /// After a GpuError: gives up all memory and begins anew, reaching nobody. False if the device
  /// stays unusable.
  virtual bool recover() = 0;
};

struct GpuError {
  std::string message;
};

/// Throws Unavailable, naming the first that there is not, unless a backend has devices of all
/// these numbers.
void check_device_numbers(std::string_view backend, std::span<const int> devices, int count);

/// A backend on runtimes, one for each device. Throws GpuError where one cannot reach another.
std::unique_ptr<Backend> make_gpu_backend(std::vector<std::unique_ptr<GpuRuntime>> runtimes);
/// On one.
std::unique_ptr<Backend> make_gpu_backend(std::unique_ptr<GpuRuntime> runtime);

}  // namespace monoref::device
