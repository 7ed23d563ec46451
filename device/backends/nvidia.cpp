// The nvidia backend: the CUDA runtime, and of the driver the calls that reserve addresses.
#include <cuda.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "device/backends/gpu_runtime.hpp"

namespace monoref::simt::cuda {
namespace {

/// Filled while the program starts.
std::map<std::string_view, const void*>& functions() {
  static std::map<std::string_view, const void*> table;
  return table;
}

}  // namespace

/// Declared in device/simt/cuda.hpp, which only nvcc can read.
void register_kernel(std::string_view name, const void* function) {
  functions().emplace(name, function);
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

  Driver() {
    find("cuMemAddressReserve", address_reserve);
    find("cuMemAddressFree", address_free);
    find("cuMemCreate", create);
    find("cuMemRelease", release);
    find("cuMemMap", map);
    find("cuMemUnmap", unmap);
    find("cuMemSetAccess", set_access);
    find("cuMemGetAllocationGranularity", granularity);
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
  explicit CudaRuntime(int device) : device_(device) { begin(); }

  std::string name() const override { return "nvidia"; }
  int wave() const override { return 32; }

  std::byte* allocate(std::size_t bytes) override {
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory) override { check(cudaFree(memory), "cudaFree"); }

  std::byte* allocate_host(std::size_t bytes) override {
    void* memory = nullptr;
    check(cudaMallocHost(&memory, bytes), "cudaMallocHost");
    return static_cast<std::byte*>(memory);
  }
  void release_host(std::byte* memory) override { check(cudaFreeHost(memory), "cudaFreeHost"); }

  std::byte* reserve(std::uint64_t span, std::span<const ByteExtent> backed) override;
  void release_reserved() override;

  void copy_in(std::byte* device, const std::byte* host, std::size_t bytes) override {
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "copy to device");
  }
  void copy_out(std::byte* host, const std::byte* device, std::size_t bytes) override {
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_),
          "copy from device");
  }

  void launch(const simt::host::KernelEntry& kernel, const Grid& grid, void** arguments) override;

  bool idle() override {
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status == cudaErrorNotReady) return false;
    check(status, "on the device");
    return true;
  }

  bool recover() override;

 private:
  struct Range {
    CUdeviceptr begin = 0;
    std::uint64_t bytes = 0;
    std::vector<ByteExtent> mapped;  ///< whole granules
  };

  void begin() {
    check(cudaSetDevice(device_), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  CUmemAllocationProp properties() const {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = device_;
    return wanted;
  }
  CUmemGenericAllocationHandle take_granule();

  int device_;
  cudaStream_t stream_ = nullptr;
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
    check(driver_->create(&handle, granule_, &wanted, 0), "cuMemCreate");
  } else {
    handle = free_granules_.back();
    free_granules_.pop_back();
  }
  used_granules_.push_back(handle);
  return handle;
}

std::byte* CudaRuntime::reserve(std::uint64_t span, std::span<const ByteExtent> backed) {
  if (driver_ == nullptr) {
    driver_ = std::make_unique<Driver>();
    const CUmemAllocationProp wanted = properties();
    check(driver_->granularity(&granule_, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
          "cuMemGetAllocationGranularity");
  }
  Range range;
  range.bytes = (span + granule_ - 1) / granule_ * granule_;
  check(driver_->address_reserve(&range.begin, range.bytes, granule_, 0, 0), "cuMemAddressReserve");
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
      check(driver_->map(at, granule_, 0, take_granule(), 0), "cuMemMap");
      mapped.push_back({index * granule_, granule_});
      check(driver_->set_access(at, granule_, &access, 1), "cuMemSetAccess");
    }
    next = end;
  }
  return reinterpret_cast<std::byte*>(range.begin);
}

void CudaRuntime::release_reserved() {
  for (const Range& range : ranges_) {
    for (const ByteExtent& granule : range.mapped)
      check(driver_->unmap(range.begin + granule.offset, granule.size), "cuMemUnmap");
    check(driver_->address_free(range.begin, range.bytes), "cuMemAddressFree");
  }
  ranges_.clear();
  free_granules_.insert(free_granules_.end(), used_granules_.begin(), used_granules_.end());
  used_granules_.clear();
}

void CudaRuntime::launch(const simt::host::KernelEntry& kernel, const Grid& grid,
                         void** arguments) {
  const auto& functions = simt::cuda::functions();
  const auto found = functions.find(kernel.name);
  if (found == functions.end())
    throw GpuError{fmt::format("kernel '{}' was not compiled for CUDA", kernel.name)};
  const void* const function = found->second;
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
  ranges_.clear();
  used_granules_.clear();
  free_granules_.clear();
  driver_.reset();
  stream_ = nullptr;
  cudaGetLastError();
  if (cudaDeviceReset() != cudaSuccess) return false;
  try {
    begin();
    check(cudaFree(nullptr), "cudaFree");  // creates the context now, so that a failure shows here
  } catch (const GpuError&) {
    return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<Backend> make_nvidia_backend() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess)
    throw Unavailable{fmt::format("nvidia backend: {}", cudaGetErrorString(status))};
  if (devices == 0) throw Unavailable{"nvidia backend: there is no device"};
  try {
    return make_gpu_backend(std::make_unique<CudaRuntime>(0));
  } catch (const GpuError& error) {
    throw Unavailable{fmt::format("nvidia backend: {}", error.message)};
  }
}

}  // namespace monoref::device
