// Where a kernel runs. A backend holds the buffers of one case at a time and launches kernels on
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace monoref::device {

/// A run of bytes that really exists in a buffer's address range.
struct ByteExtent {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// Which of several devices have a run of a buffer's bytes.
struct DeviceRun {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::uint32_t devices = 0;  ///< a bit each
  /// The device whose bytes the buffer has in the end; -1: all of them must have the same.
  std::int32_t source = -1;
  bool operator==(const DeviceRun&) const = default;
};

/// One buffer of a case. The bytes of all extents, in order, are its image.
struct BufferRequest {
  std::string name;
  std::vector<ByteExtent> extents;   ///< ascending and disjoint; empty for a buffer of no bytes
  std::size_t alignment = 16;        ///< of the base address; a power of two
  std::span<const std::byte> image;  ///< first content
  /// For a backend of several devices. Each has the buffer at an address of its own, and of its
  /// bytes those of the runs that name it, at the offsets that they have in the whole; the others
  /// are guards. The runs follow each other without gaps from 0 to the buffer's end; one of no
  /// bytes gives its devices an address. A buffer of several extents is one run. Empty: all devices
  /// have all of it.
  std::vector<DeviceRun> runs;
  /// Bytes, below `alignment`, from a multiple of it to the base address.
  std::size_t base_offset = 0;
};

/// Grid and block of a launch, in blocks and threads.
struct Grid {
  std::uint32_t blocks_x = 1, blocks_y = 1, blocks_z = 1;
  std::uint32_t threads_x = 1, threads_y = 1, threads_z = 1;
  std::uint32_t shared_bytes = 0;  ///< dynamic shared memory
  bool cooperative = false;        ///< all blocks are resident together and may wait for each other
};

/// One kernel argument by value: its bytes, in the kernel's own parameter order.
struct KernelArgument {
  const void* data;
  std::uint32_t size;
};

enum class RunStatus { kOk, kCrashed, kHung };

/// What became of a launch. A divergent barrier or a fault is `kCrashed`; the message says where.
struct RunReport {
  RunStatus status = RunStatus::kOk;
  std::string message;
};

/// Thrown when this machine or this build has no such backend: exit code 3.
struct Unavailable {
  std::string message;
};

/// Life of a case: place -> (write | launch)* -> finish -> read* -> (place again ...).
///
/// Of several devices each does its launches in order, and waits for no other of its own accord:
/// kernels wait for each other by flags in buffers.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  /// Lanes of a wave in the kernels of this backend.
  virtual int wave() const = 0;
  virtual int devices() const { return 1; }

  /// Lays out all buffers anew, with poisoned guard regions before and after each, and copies the
  /// images in. Addresses of an earlier case are no longer valid.
  virtual void place(std::span<const BufferRequest> buffers) = 0;
  /// The address to hand to a kernel as buffer `index`'s base, of the buffer on `device`; null
  /// where that has none of it. Kernels on all devices can use it.
  virtual void* address(std::size_t index, int device) const = 0;
  void* address(std::size_t index) const { return address(index, 0); }
  /// Replaces a buffer's whole image; what a step through reused buffers does.
  virtual void write(std::size_t index, std::span<const std::byte> image) = 0;
  /// Enqueues a kernel on `device`. Unknown kernels and wrong argument lists are
  /// `std::invalid_argument`.
  virtual void launch(std::string_view kernel, const Grid& grid,
                      std::span<const KernelArgument> arguments, int device) = 0;
  void launch(std::string_view kernel, const Grid& grid,
              std::span<const KernelArgument> arguments) {
    launch(kernel, grid, arguments, 0);
  }
  /// Calls `enqueue`; what it launches on different devices begins together.
  virtual void together(const std::function<void()>& enqueue) { enqueue(); }
  /// Seconds on the devices from when all can begin until all have done what `enqueue` launches,
  /// which is held back until all of it is enqueued: at most kMostTimed launches a device. Nothing
  /// where the backend has no clock on its device or a launch failed.
  virtual std::optional<double> device_seconds(const std::function<void()>& enqueue);
  static constexpr int kMostTimed = 500;
  /// Waits for everything launched. After anything but kOk buffer contents are meaningless. The
  /// host backend can then be placed again; a GPU may be lost to this process, and if so `place`
  /// throws Unavailable.
  virtual RunReport finish() = 0;
  /// A description of the first damaged guard byte, if any: buffer, distance, before or after. The
  /// same of bytes that devices have and should have alike.
  virtual std::optional<std::string> damaged_guard() = 0;
  /// A buffer's image after finish().
  virtual void read(std::size_t index, std::span<std::byte> image) = 0;

  /// Seconds after which a launch counts as hung.
  void set_time_limit(double seconds) { time_limit_ = seconds; }
  double time_limit() const { return time_limit_; }

 private:
  double time_limit_ = 10.0;
};

/// The kernels that a backend runs.
enum class KernelBuild {
  kShipped,     ///< as every build ships them
  kWithFaults,  ///< the same text with its planted faults switchable, for `monoref mutants`
};

/// The CPU executor. `wave` is 64 or 32 (faults: 64 only).
std::unique_ptr<Backend> make_host_backend(int wave, KernelBuild kernels = KernelBuild::kShipped);
/// HIP runtime on the devices of these numbers; throws Unavailable where this build has none, one
/// of them does not answer, or one cannot reach the memory of another.
std::unique_ptr<Backend> make_amd_backend(std::span<const int> devices);
/// CUDA runtime; throws Unavailable likewise.
std::unique_ptr<Backend> make_nvidia_backend(std::span<const int> devices,
                                             KernelBuild kernels = KernelBuild::kShipped);

/// The names of all kernels in this program, in order.
std::vector<std::string_view> kernel_names();

/// Switches on one planted fault in the kernels built with faults; empty switches all off.
void set_active_fault(std::string_view name);
/// Whether that fault is on: for faults of host code that launches kernels.
bool is_active_fault(std::string_view name);

}  // namespace monoref::device
