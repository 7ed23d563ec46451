// The amd backend: the HIP runtime, which loads the code objects that the build has made.
#include <fmt/format.h>
#include <hip/hip_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device/backends/code_objects.hpp"
#include "device/backends/gpu_runtime.hpp"

namespace monoref::device {
namespace {

void check(hipError_t status, std::string_view call) {
  if (status == hipSuccess) return;
  throw GpuError{fmt::format("{}: {}", call, hipGetErrorString(status))};
}

class HipRuntime final : public GpuRuntime {
 public:
  /// `is_reached`: other devices use its memory while kernels run.
  HipRuntime(int device, bool is_reached) : device_(device), is_reached_(is_reached) { begin(); }

  std::string name() const override { return "amd"; }
  int wave() const override { return 64; }

  std::byte* allocate(std::size_t bytes) override {
    select();
    void* memory = nullptr;
    // Stores to ordinary memory are seen by another device when the kernel ends, not before.
    if (is_reached_)
      check(hipExtMallocWithFlags(&memory, bytes, hipDeviceMallocFinegrained),
            "hipExtMallocWithFlags");
    else
      check(hipMalloc(&memory, bytes), "hipMalloc");
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory) override { check(hipFree(memory), "hipFree"); }

  std::byte* allocate_host(std::size_t bytes) override {
    select();
    void* memory = nullptr;
    check(hipHostMalloc(&memory, bytes, hipHostMallocDefault), "hipHostMalloc");
    return static_cast<std::byte*>(memory);
  }
  void release_host(std::byte* memory) override {
    if (memory != nullptr) check(hipHostFree(memory), "hipHostFree");
  }

  std::byte* reserve(std::uint64_t span, std::span<const ByteExtent> backed) override;
  void release_reserved() override;

  void copy_in(std::byte* device, const std::byte* host, std::size_t bytes) override {
    select();
    check(hipMemcpyAsync(device, host, bytes, hipMemcpyHostToDevice, stream_), "copy to device");
  }
  void copy_out(std::byte* host, const std::byte* device, std::size_t bytes) override {
    select();
    check(hipMemcpyAsync(host, device, bytes, hipMemcpyDeviceToHost, stream_), "copy from device");
  }

  void launch(const simt::host::KernelEntry& kernel, const Grid& grid, void** arguments) override;

  bool idle() override {
    select();
    const hipError_t status = hipStreamQuery(stream_);
    if (status == hipErrorNotReady) return false;
    check(status, "on the device");
    return true;
  }

  void reach(GpuRuntime& other) override;
  void follow(GpuRuntime& other) override;
  void hold() override;
  void let_go() override { is_held_ = false; }
  void start_clock() override {
    select();
    check(hipEventRecord(clock_start_, stream_), "hipEventRecord");
  }
  void stop_clock() override {
    select();
    check(hipEventRecord(clock_stop_, stream_), "hipEventRecord");
  }
  double clocked_seconds() override;
  bool recover() override;

 private:
  /// One piece of memory behind a part of a range.
  struct Granule {
    std::byte* at = nullptr;
    std::size_t bytes = 0;
    hipMemGenericAllocationHandle_t memory = nullptr;
  };
  struct Range {
    std::byte* begin = nullptr;
    std::uint64_t bytes = 0;
    std::vector<Granule> granules;
  };

  void select() const { check(hipSetDevice(device_), "hipSetDevice"); }
  void begin();
  void load_modules();
  hipFunction_t function_of(std::string_view kernel);
  hipMemAllocationProp properties() const {
    hipMemAllocationProp wanted{};
    wanted.type = hipMemAllocationTypePinned;
    wanted.location.type = hipMemLocationTypeDevice;
    wanted.location.id = device_;
    return wanted;
  }

  int device_;
  bool is_reached_;
  hipStream_t stream_ = nullptr;
  hipEvent_t done_ = nullptr;  ///< of all that another runtime waits for
  hipEvent_t clock_start_ = nullptr;
  hipEvent_t clock_stop_ = nullptr;
  std::atomic<bool> is_held_ = false;
  std::vector<hipModule_t> modules_;
  std::map<std::string, hipFunction_t, std::less<>> functions_;
  std::vector<Range> ranges_;
};

void HipRuntime::begin() {
  select();
  check(hipStreamCreateWithFlags(&stream_, hipStreamNonBlocking), "hipStreamCreate");
  check(hipEventCreateWithFlags(&done_, hipEventDisableTiming), "hipEventCreate");
  check(hipEventCreate(&clock_start_), "hipEventCreate");
  check(hipEventCreate(&clock_stop_), "hipEventCreate");
  load_modules();
}

/// Loads every code object of the device's chip: <kernel file>.<chip>.co.
void HipRuntime::load_modules() {
  hipDeviceProp_t device{};
  check(hipGetDeviceProperties(&device, device_), "hipGetDeviceProperties");
  const std::string_view full = device.gcnArchName;  // gfx950:sramecc+:xnack-
  const std::string_view chip = full.substr(0, full.find(':'));
  for (const std::filesystem::path& file : code_objects_of(chip)) {
    hipModule_t module = nullptr;
    check(hipModuleLoad(&module, file.c_str()), file.string());
    modules_.push_back(module);
  }
  if (modules_.empty())
    throw GpuError{
        fmt::format("no code objects *.{}.co in {}", chip, code_object_directory().string())};
}

std::byte* HipRuntime::reserve(std::uint64_t span, std::span<const ByteExtent> backed) {
  select();
  const hipMemAllocationProp wanted = properties();
  std::size_t granule = 0;
  check(hipMemGetAllocationGranularity(&granule, &wanted, hipMemAllocationGranularityMinimum),
        "hipMemGetAllocationGranularity");
  Range range;
  range.bytes = (span + granule - 1) / granule * granule;
  void* start = nullptr;
  check(hipMemAddressReserve(&start, range.bytes, granule, nullptr, 0), "hipMemAddressReserve");
  range.begin = static_cast<std::byte*>(start);
  ranges_.push_back(range);
  hipMemAccessDesc access{};
  access.location = wanted.location;
  access.flags = hipMemAccessFlagsProtReadWrite;
  std::uint64_t next = 0;  // the first granule that no run has reached
  for (const ByteExtent& run : backed) {
    const std::uint64_t end = (run.offset + run.size + granule - 1) / granule;
    for (std::uint64_t index = std::max(next, run.offset / granule); index < end; ++index) {
      Granule mapped{range.begin + index * granule, granule, nullptr};
      check(hipMemCreate(&mapped.memory, granule, &wanted, 0), "hipMemCreate");
      check(hipMemMap(mapped.at, granule, 0, mapped.memory, 0), "hipMemMap");
      ranges_.back().granules.push_back(mapped);
      check(hipMemSetAccess(mapped.at, granule, &access, 1), "hipMemSetAccess");
    }
    next = end;
  }
  return range.begin;
}

void HipRuntime::release_reserved() {
  for (const Range& range : ranges_) {
    for (const Granule& mapped : range.granules) {
      check(hipMemUnmap(mapped.at, mapped.bytes), "hipMemUnmap");
      check(hipMemRelease(mapped.memory), "hipMemRelease");
    }
    check(hipMemAddressFree(range.begin, range.bytes), "hipMemAddressFree");
  }
  ranges_.clear();
}

hipFunction_t HipRuntime::function_of(std::string_view kernel) {
  if (const auto found = functions_.find(kernel); found != functions_.end()) return found->second;
  const std::string name(kernel);
  for (const hipModule_t module : modules_) {
    hipFunction_t function = nullptr;
    if (hipModuleGetFunction(&function, module, name.c_str()) == hipSuccess)
      return functions_.emplace(name, function).first->second;
  }
  throw GpuError{fmt::format("kernel '{}' is in no code object", kernel)};
}

void HipRuntime::launch(const simt::host::KernelEntry& kernel, const Grid& grid, void** arguments) {
  select();
  const hipFunction_t function = function_of(kernel.name);
  if (grid.cooperative)
    check(hipModuleLaunchCooperativeKernel(function, grid.blocks_x, grid.blocks_y, grid.blocks_z,
                                           grid.threads_x, grid.threads_y, grid.threads_z,
                                           grid.shared_bytes, stream_, arguments),
          "hipModuleLaunchCooperativeKernel");
  else
    check(hipModuleLaunchKernel(function, grid.blocks_x, grid.blocks_y, grid.blocks_z,
                                grid.threads_x, grid.threads_y, grid.threads_z, grid.shared_bytes,
                                stream_, arguments, nullptr),
          "hipModuleLaunchKernel");
}

void HipRuntime::reach(GpuRuntime& other) {
  const int peer = static_cast<HipRuntime&>(other).device_;
  int can = 0;
  check(hipDeviceCanAccessPeer(&can, device_, peer), "hipDeviceCanAccessPeer");
  if (can == 0)
    throw GpuError{
        fmt::format("device {} cannot reach the memory of device {}: there is no peer "
                    "access between them",
                    device_, peer)};
  select();
  const hipError_t status = hipDeviceEnablePeerAccess(peer, 0);
  if (status == hipErrorPeerAccessAlreadyEnabled)
    static_cast<void>(hipGetLastError());  // it is no error here, and must not be found later
  else
    check(status, "hipDeviceEnablePeerAccess");
}

void HipRuntime::follow(GpuRuntime& other) {
  auto& first = static_cast<HipRuntime&>(other);
  first.select();
  check(hipEventRecord(first.done_, first.stream_), "hipEventRecord");
  select();
  check(hipStreamWaitEvent(stream_, first.done_, 0), "hipStreamWaitEvent");
}

void HipRuntime::hold() {
  is_held_ = true;
  const auto wait = [](void* held) {
    while (*static_cast<const std::atomic<bool>*>(held)) std::this_thread::yield();
  };
  select();
  check(hipLaunchHostFunc(stream_, wait, &is_held_), "hipLaunchHostFunc");
}

double HipRuntime::clocked_seconds() {
  select();
  float milliseconds = 0;
  check(hipEventElapsedTime(&milliseconds, clock_start_, clock_stop_), "hipEventElapsedTime");
  return milliseconds * 1e-3;
}

/// Destroys the device's state, and with it all memory and modules, and begins anew.
bool HipRuntime::recover() {
  is_held_ = false;
  ranges_.clear();
  modules_.clear();
  functions_.clear();
  stream_ = nullptr;
  static_cast<void>(hipGetLastError());
  if (hipSetDevice(device_) != hipSuccess || hipDeviceReset() != hipSuccess) return false;
  try {
    begin();
  } catch (const GpuError&) {
    return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<Backend> make_amd_backend(std::span<const int> devices) {
  int count = 0;
  const hipError_t status = hipGetDeviceCount(&count);
  if (status != hipSuccess)
    throw Unavailable{fmt::format("amd backend: {}", hipGetErrorString(status))};
  check_device_numbers("amd", devices, count);
  try {
    std::vector<std::unique_ptr<GpuRuntime>> runtimes;
    for (const int device : devices)
      runtimes.push_back(std::make_unique<HipRuntime>(device, devices.size() > 1));
    return make_gpu_backend(std::move(runtimes));
  } catch (const GpuError& error) {
    throw Unavailable{fmt::format("amd backend: {}", error.message)};
  }
}

}  // namespace monoref::device
