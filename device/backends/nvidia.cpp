// The nvidia backend: the CUDA runtime, and of the driver the calls that reserve addresses.
#include <cuda.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "device/backends/gpu_runtime.hpp"

namespace monoref::simt::cuda {
namespace {

/// A kernel, and the variable by which its text knows the planted fault in force; null where it
/// has none.
struct Function {
  const void* kernel;
  const void* active_fault;
};

/// The kernels as shipped or with faults. Filled while the program starts.
std::map<std::string_view, Function>& functions(bool with_faults) {
  static std::map<std::string_view, Function> tables[2];
  return tables[with_faults ? 1 : 0];
}

}  // namespace

/// Declared in device/simt/cuda.hpp, which only nvcc can read.
void register_kernel(std::string_view name, const void* function, const void* active_fault) {
  functions(active_fault != nullptr).emplace(name, Function{function, active_fault});
}

}  // namespace monoref::simt::cuda

namespace monoref::device {
namespace {

void check(cudaError_t status, std::string_view call) {
  if (status == cudaSuccess) return;
  throw GpuError{fmt::format("{}: {}", call, cudaGetErrorString(status))};
}

/// The driver's calls, found through the runtime, so that a program for machines without an NVIDIA
/// driver need not link it.
struct Driver {
  decltype(&cuMemAddressReserve) address_reserve;
  decltype(&cuMemAddressFree) address_free;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuStreamWaitValue32) wait_value;

  Driver() {
    find("cuMemAddressReserve", address_reserve);
    find("cuMemAddressFree", address_free);
    find("cuMemCreate", create);
    find("cuMemRelease", release);
    find("cuMemMap", map);
    find("cuMemUnmap", unmap);
    find("cuMemSetAccess", set_access);
    find("cuMemGetAllocationGranularity", granularity);
    find("cuStreamWaitValue32", wait_value);
  }

  template <class Function>
  static void find(const char* name, Function& function) {
    constexpr unsigned kVersion = 12000;  // all of them are older
    void* address = nullptr;
    check(cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault), name);
    if (address == nullptr) throw GpuError{fmt::format("{}: not in this driver", name)};
    function = reinterpret_cast<Function>(address);
  }
};

void check(CUresult status, std::string_view call) {
  if (status != CUDA_SUCCESS)
    throw GpuError{fmt::format("{}: driver error {}", call, static_cast<int>(status))};
}

class CudaRuntime final : public GpuRuntime {
 public:
  CudaRuntime(int device, KernelBuild kernels) : device_(device), kernels_(kernels) { begin(); }

  std::string name() const override { return "nvidia"; }
  int wave() const override { return 32; }

  std::byte* allocate(std::size_t bytes) override {
    select();
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory) override { check(cudaFree(memory), "cudaFree"); }

  std::byte* allocate_host(std::size_t bytes) override {
    select();
    void* memory = nullptr;
    check(cudaMallocHost(&memory, bytes), "cudaMallocHost");
    return static_cast<std::byte*>(memory);
  }
  void release_host(std::byte* memory) override { check(cudaFreeHost(memory), "cudaFreeHost"); }

  std::byte* reserve(std::uint64_t span, std::span<const ByteExtent> backed) override;
  void release_reserved() override;

  void copy_in(std::byte* device, const std::byte* host, std::size_t bytes) override {
    select();
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "copy to device");
  }
  void copy_out(std::byte* host, const std::byte* device, std::size_t bytes) override {
    select();
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_),
          "copy from device");
  }

  void launch(const simt::host::KernelEntry& kernel, const Grid& grid, void** arguments) override;

  bool idle() override {
    select();
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status == cudaErrorNotReady) return false;
    check(status, "on the device");
    return true;
  }

  void reach(GpuRuntime& other) override;
  void follow(GpuRuntime& other) override;
  void hold() override;
  void let_go() override { pinned_->gate = holds_; }
  void start_clock() override {
    select();
    check(cudaEventRecord(clock_start_, stream_), "cudaEventRecord");
  }
  void stop_clock() override {
    select();
    check(cudaEventRecord(clock_stop_, stream_), "cudaEventRecord");
  }
  double clocked_seconds() override;
  bool recover() override;

 private:
  /// What the device reads of the host's memory.
  struct Pinned {
    volatile std::uint32_t gate;  ///< the number of the last hold that is over
    std::uint64_t active_fault;   ///< changes while the stream is idle only
  };
  struct Range {
    CUdeviceptr begin = 0;
    std::uint64_t bytes = 0;
    std::vector<ByteExtent> mapped;  ///< whole granules
  };

  void select() const { check(cudaSetDevice(device_), "cudaSetDevice"); }
  void begin() {
    select();
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "cudaEventCreate");
    check(cudaEventCreate(&clock_start_), "cudaEventCreate");
    check(cudaEventCreate(&clock_stop_), "cudaEventCreate");
    void* pinned = nullptr;
    check(cudaMallocHost(&pinned, sizeof(Pinned)), "cudaMallocHost");
    pinned_ = new (pinned) Pinned{holds_, 0};
  }
  Driver& driver() {
    if (driver_ == nullptr) driver_ = std::make_unique<Driver>();
    return *driver_;
  }
  CUmemAllocationProp properties() const {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = device_;
    return wanted;
  }
  CUmemGenericAllocationHandle take_granule();

  const simt::cuda::Function& function_of(std::string_view kernel);
  void set_active_fault(const void* variable);
  void load_all();

  int device_;
  KernelBuild kernels_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr;  ///< of all that another runtime waits for
  cudaEvent_t clock_start_ = nullptr;
  cudaEvent_t clock_stop_ = nullptr;
  Pinned* pinned_ = nullptr;
  std::uint32_t holds_ = 0;
  std::map<const void*, std::uint64_t> faults_;  ///< what the variables of this device hold
  std::unique_ptr<Driver> driver_;
  std::uint64_t granule_ = 0;
  std::vector<Range> ranges_;
  /// Memory of one granule each: those mapped, in order of mapping, and those free for the next
  /// case.
  std::vector<CUmemGenericAllocationHandle> used_granules_;
  std::vector<CUmemGenericAllocationHandle> free_granules_;
};

CUmemGenericAllocationHandle CudaRuntime::take_granule() {
  CUmemGenericAllocationHandle handle = 0;
  if (free_granules_.empty()) {
    const CUmemAllocationProp wanted = properties();
    check(driver().create(&handle, granule_, &wanted, 0), "cuMemCreate");
  } else {
    handle = free_granules_.back();
    free_granules_.pop_back();
  }
  used_granules_.push_back(handle);
  return handle;
}

std::byte* CudaRuntime::reserve(std::uint64_t span, std::span<const ByteExtent> backed) {
  select();
  if (granule_ == 0) {
    const CUmemAllocationProp wanted = properties();
    check(driver().granularity(&granule_, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
          "cuMemGetAllocationGranularity");
  }
  Range range;
  range.bytes = (span + granule_ - 1) / granule_ * granule_;
  check(driver().address_reserve(&range.begin, range.bytes, granule_, 0, 0), "cuMemAddressReserve");
  ranges_.push_back(range);
  std::vector<ByteExtent>& mapped = ranges_.back().mapped;
  CUmemAccessDesc access{};
  access.location = properties().location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  std::uint64_t next = 0;  // the first granule that no run has reached
  for (const ByteExtent& run : backed) {
    const std::uint64_t end = (run.offset + run.size + granule_ - 1) / granule_;
    for (std::uint64_t index = std::max(next, run.offset / granule_); index < end; ++index) {
      const CUdeviceptr at = range.begin + index * granule_;
      check(driver().map(at, granule_, 0, take_granule(), 0), "cuMemMap");
      mapped.push_back({index * granule_, granule_});
      check(driver().set_access(at, granule_, &access, 1), "cuMemSetAccess");
    }
    next = end;
  }
  return reinterpret_cast<std::byte*>(range.begin);
}

void CudaRuntime::release_reserved() {
  if (ranges_.empty()) return;
  select();
  for (const Range& range : ranges_) {
    for (const ByteExtent& granule : range.mapped)
      check(driver().unmap(range.begin + granule.offset, granule.size), "cuMemUnmap");
    check(driver().address_free(range.begin, range.bytes), "cuMemAddressFree");
  }
  ranges_.clear();
  free_granules_.insert(free_granules_.end(), used_granules_.begin(), used_granules_.end());
  used_granules_.clear();
}

const simt::cuda::Function& CudaRuntime::function_of(std::string_view kernel) {
  const auto& functions = simt::cuda::functions(kernels_ == KernelBuild::kWithFaults);
  const auto found = functions.find(kernel);
  if (found == functions.end())
    throw GpuError{fmt::format("kernel '{}' was not compiled for CUDA{}", kernel,
                               kernels_ == KernelBuild::kWithFaults ? " with faults" : "")};
  if (found->second.active_fault != nullptr) set_active_fault(found->second.active_fault);
  return found->second;
}

/// The fault in force becomes that of a kernel's text, in order with launches.
void CudaRuntime::set_active_fault(const void* variable) {
  const std::uint64_t fault = simt::host::active_fault;
  const auto [known, is_new] = faults_.try_emplace(variable, fault);
  if (!is_new && known->second == fault) return;
  known->second = pinned_->active_fault = fault;
  check(cudaMemcpyToSymbolAsync(variable, &pinned_->active_fault, sizeof(fault), 0,
                                cudaMemcpyHostToDevice, stream_),
        "cudaMemcpyToSymbol");
}

/// Loads every kernel. Else the driver loads one at its first launch, for which it may wait for the
/// device, while a kernel there waits for the one to be loaded.
void CudaRuntime::load_all() {
  for (const auto& [name, function] : simt::cuda::functions(kernels_ == KernelBuild::kWithFaults)) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, function.kernel), "cudaFuncGetAttributes");
  }
}

void CudaRuntime::reach(GpuRuntime& other) {
  const int peer = static_cast<CudaRuntime&>(other).device_;
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, device_, peer), "cudaDeviceCanAccessPeer");
  if (can == 0)
    throw GpuError{
        fmt::format("device {} cannot reach the memory of device {}: there is no peer "
                    "access between them",
                    device_, peer)};
  select();
  const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();  // it is no error here, and must not be found by the next call
  else
    check(status, "cudaDeviceEnablePeerAccess");
  load_all();
}

void CudaRuntime::follow(GpuRuntime& other) {
  auto& first = static_cast<CudaRuntime&>(other);
  first.select();
  check(cudaEventRecord(first.done_, first.stream_), "cudaEventRecord");
  select();
  check(cudaStreamWaitEvent(stream_, first.done_, 0), "cudaStreamWaitEvent");
}

void CudaRuntime::hold() {
  select();
  ++holds_;
  check(driver().wait_value(stream_, reinterpret_cast<CUdeviceptr>(&pinned_->gate), holds_,
                            CU_STREAM_WAIT_VALUE_GEQ),
        "cuStreamWaitValue32");
}

double CudaRuntime::clocked_seconds() {
  select();
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, clock_start_, clock_stop_), "cudaEventElapsedTime");
  return milliseconds * 1e-3;
}

void CudaRuntime::launch(const simt::host::KernelEntry& kernel, const Grid& grid,
                         void** arguments) {
  select();
  const void* const function = function_of(kernel.name).kernel;
  const dim3 blocks(grid.blocks_x, grid.blocks_y, grid.blocks_z);
  const dim3 threads(grid.threads_x, grid.threads_y, grid.threads_z);
  constexpr std::uint32_t kSharedWithoutAsking = 48 * 1024;
  if (grid.shared_bytes > kSharedWithoutAsking)
    check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.shared_bytes)),
          "cudaFuncSetAttribute");
  if (grid.cooperative)
    check(cudaLaunchCooperativeKernel(function, blocks, threads, arguments, grid.shared_bytes,
                                      stream_),
          "cudaLaunchCooperativeKernel");
  else
    check(cudaLaunchKernel(function, blocks, threads, arguments, grid.shared_bytes, stream_),
          "cudaLaunchKernel");
}

/// Destroys the context, and with it all memory, and opens a new one. The driver allows that after
/// errors of a launch; after a fault on the device the process has to end (seen with 580).
bool CudaRuntime::recover() {
  if (pinned_ != nullptr) let_go();
  pinned_ = nullptr;
  ranges_.clear();
  used_granules_.clear();
  free_granules_.clear();
  driver_.reset();
  faults_.clear();
  stream_ = nullptr;
  cudaGetLastError();
  if (cudaSetDevice(device_) != cudaSuccess || cudaDeviceReset() != cudaSuccess) return false;
  try {
    begin();
    check(cudaFree(nullptr), "cudaFree");  // creates the context now, so that a failure shows here
  } catch (const GpuError&) {
    return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<Backend> make_nvidia_backend(std::span<const int> devices, KernelBuild kernels) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess)
    throw Unavailable{fmt::format("nvidia backend: {}", cudaGetErrorString(status))};
  check_device_numbers("nvidia", devices, count);
  try {
    std::vector<std::unique_ptr<GpuRuntime>> runtimes;
    for (const int device : devices)
      runtimes.push_back(std::make_unique<CudaRuntime>(device, kernels));
    return make_gpu_backend(std::move(runtimes));
  } catch (const GpuError& error) {
    throw Unavailable{fmt::format("nvidia backend: {}", error.message)};
  }
}

}  // namespace monoref::device
