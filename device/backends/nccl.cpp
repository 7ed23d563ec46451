// NCCL, found at run time: a yardstick needs no header and no link.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "device/vendor_reduction.hpp"

namespace monoref::device {
namespace {

// What NCCL's interface says of the few things used here; the same in all of NCCL 2.
using Communicator = void*;
constexpr int kBFloat16 = 9;
constexpr int kSum = 0;

struct Failure {
  std::string message;
};

void check(cudaError_t status, std::string_view call) {
  if (status != cudaSuccess) throw Failure{fmt::format("{}: {}", call, cudaGetErrorString(status))};
}
void check(int status, std::string_view call) {
  if (status != 0) throw Failure{fmt::format("{}: NCCL error {}", call, status)};
}

struct Library {
  void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  int (*version)(int*) = nullptr;
  int (*init_all)(Communicator*, int, const int*) = nullptr;
  int (*destroy)(Communicator) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int, int, Communicator,
                    cudaStream_t) = nullptr;

  Library() {
    if (handle == nullptr) throw Failure{"there is no libnccl.so.2 here"};
    find("ncclGetVersion", version);
    find("ncclCommInitAll", init_all);
    find("ncclCommDestroy", destroy);
    find("ncclGroupStart", group_start);
    find("ncclGroupEnd", group_end);
    find("ncclAllReduce", all_reduce);
  }

  template <class Function>
  void find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr) throw Failure{fmt::format("libnccl.so.2 has no {}", name)};
  }

  std::string version_text() const {
    int number = 0;
    check(version(&number), "ncclGetVersion");
    return fmt::format("NCCL {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
  }
};

/// Every device's rank of the reduction.
class Reduction {
 public:
  Reduction(const Library& library, std::span<const int> devices, std::size_t elements)
      : library_(library), elements_(elements), ranks_(devices.size()) {
    std::vector<Communicator> communicators(devices.size());
    check(library.init_all(communicators.data(), static_cast<int>(devices.size()), devices.data()),
          "ncclCommInitAll");
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      rank.device = devices[i];
      rank.communicator = communicators[i];
      check(cudaSetDevice(rank.device), "cudaSetDevice");
      check(cudaMalloc(&rank.data, elements * 2), "cudaMalloc");
      check(cudaMemset(rank.data, 0, elements * 2), "cudaMemset");
      check(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking), "cudaStreamCreate");
      check(cudaEventCreate(&rank.start), "cudaEventCreate");
      check(cudaEventCreate(&rank.stop), "cudaEventCreate");
    }
    check(cudaMallocHost(&gate_, sizeof(std::uint32_t)), "cudaMallocHost");
  }
  ~Reduction() {
    for (const Rank& rank : ranks_) {
      library_.destroy(rank.communicator);
      cudaSetDevice(rank.device);
      cudaFree(rank.data);
      cudaStreamDestroy(rank.stream);
      cudaEventDestroy(rank.start);
      cudaEventDestroy(rank.stop);
    }
    cudaFreeHost(gate_);
  }
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  void enqueue(int repeats) {
    for (int i = 0; i < repeats; ++i) {
      check(library_.group_start(), "ncclGroupStart");
      for (const Rank& rank : ranks_)
        check(library_.all_reduce(rank.data, rank.data, elements_, kBFloat16, kSum,
                                  rank.communicator, rank.stream),
              "ncclAllReduce");
      check(library_.group_end(), "ncclGroupEnd");
    }
  }

  void wait() const {
    for (const Rank& rank : ranks_) check(cudaStreamSynchronize(rank.stream), "on the device");
  }

  /// Seconds from when all devices may begin until the last is done: they begin when everything is
  /// enqueued.
  double timed(int repeats) {
    decltype(&cuStreamWaitValue32) wait_value = nullptr;
    void* address = nullptr;
    check(
        cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &address, 12000, cudaEnableDefault),
        "cuStreamWaitValue32");
    wait_value = reinterpret_cast<decltype(wait_value)>(address);
    if (wait_value == nullptr) throw Failure{"cuStreamWaitValue32: not in this driver"};
    volatile std::uint32_t* const gate = static_cast<std::uint32_t*>(gate_);
    *gate = 0;
    for (const Rank& rank : ranks_) {
      check(cudaSetDevice(rank.device), "cudaSetDevice");
      wait_value(rank.stream, reinterpret_cast<CUdeviceptr>(gate_), 1, CU_STREAM_WAIT_VALUE_GEQ);
      check(cudaEventRecord(rank.start, rank.stream), "cudaEventRecord");
    }
    enqueue(repeats);
    for (const Rank& rank : ranks_) {
      check(cudaSetDevice(rank.device), "cudaSetDevice");
      check(cudaEventRecord(rank.stop, rank.stream), "cudaEventRecord");
    }
    *gate = 1;
    wait();
    float longest = 0;
    for (const Rank& rank : ranks_) {
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, rank.start, rank.stop), "cudaEventElapsedTime");
      longest = std::max(longest, milliseconds);
    }
    return longest * 1e-3;
  }

 private:
  struct Rank {
    int device = 0;
    Communicator communicator = nullptr;
    void* data = nullptr;
    cudaStream_t stream = nullptr;
    cudaEvent_t start = nullptr, stop = nullptr;
  };

  const Library& library_;
  std::size_t elements_;
  std::vector<Rank> ranks_;
  void* gate_ = nullptr;
};

}  // namespace

VendorReduction time_vendor_reduction(std::span<const int> devices, std::size_t elements,
                                      int repeats) {
  try {
    const Library library;
    Reduction reduction(library, devices, elements);
    reduction.enqueue(20);  // the first ones set up connections
    reduction.wait();
    return {reduction.timed(repeats) / repeats, library.version_text()};
  } catch (const Failure& failure) {
    return {0, failure.message};
  }
}

}  // namespace monoref::device
