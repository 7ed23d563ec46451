// The common part of the GPU backends, on a "device" that is this machine's memory and executor.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "device/backends/gpu_runtime.hpp"
#include "device/backends/host_executor.hpp"
#include "tests/device/behaviour.hpp"
#include "tests/device/launcher.hpp"

namespace monoref::device {
namespace {

/// What a test wants to know of the runtime, or to happen in it.
struct Script {
  bool stuck = false;  ///< work never ends
  int looks = 0;       ///< after which work ends
  std::chrono::milliseconds between_looks{0};
  bool recovers = true;
  int copies_in = 0;
  int copies_out = 0;
};

class PretendRuntime final : public GpuRuntime {
 public:
  explicit PretendRuntime(Script& script) : script_(script) {}
  ~PretendRuntime() override { PretendRuntime::release_reserved(); }

  std::string name() const override { return "pretend"; }
  int wave() const override { return 32; }

  std::byte* allocate(std::size_t bytes) override {
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(4096, bytes));
    memory_.emplace(memory, std::unique_ptr<std::byte, void (*)(void*)>(memory, &std::free));
    return memory;
  }
  void release(std::byte* memory) override { memory_.erase(memory); }
  std::byte* allocate_host(std::size_t bytes) override { return allocate(bytes); }
  void release_host(std::byte* memory) override { release(memory); }

  std::byte* reserve(std::uint64_t span, std::span<const ByteExtent> backed) override {
    constexpr std::uint64_t kPage = 4096;
    void* const range =
        mmap(nullptr, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(range, MAP_FAILED);
    auto* const begin = static_cast<std::byte*>(range);
    for (const ByteExtent& run : backed) {
      const std::uint64_t first = run.offset / kPage * kPage;
      EXPECT_EQ(mprotect(begin + first, run.offset + run.size - first, PROT_READ | PROT_WRITE), 0);
    }
    ranges_[begin] = span;
    return begin;
  }
  void release_reserved() override {
    for (const auto& [begin, span] : ranges_) munmap(begin, span);
    ranges_.clear();
  }

  void copy_in(std::byte* device, const std::byte* host, std::size_t bytes) override {
    ++script_.copies_in;
    std::memcpy(device, host, bytes);
  }
  void copy_out(std::byte* host, const std::byte* device, std::size_t bytes) override {
    ++script_.copies_out;
    std::memcpy(host, device, bytes);
  }
  void launch(const simt::host::KernelEntry& kernel, const Grid& grid, void** arguments) override {
    const RunReport report = run_on_host(
        {&kernel, grid, arguments, 10, [](std::uintptr_t, bool) { return std::string("fault"); }});
    if (report.status != RunStatus::kOk) error_ = report.message;
  }
  bool idle() override {
    if (!error_.empty()) throw GpuError{std::exchange(error_, {})};
    std::this_thread::sleep_for(script_.between_looks);
    return !script_.stuck && script_.looks-- <= 0;
  }
  bool recover() override {
    memory_.clear();
    return script_.recovers;
  }

 private:
  Script& script_;
  std::string error_;
  std::map<std::byte*, std::uint64_t> ranges_;
  std::map<std::byte*, std::unique_ptr<std::byte, void (*)(void*)>> memory_;
};

class GpuBehaviour : public testing::TestWithParam<BehaviourTest> {};

TEST_P(GpuBehaviour, IsRight) {
  Script script;
  GetParam().run(*make_gpu_backend(std::make_unique<PretendRuntime>(script)));
}

INSTANTIATE_TEST_SUITE_P(Gpu, GpuBehaviour, testing::ValuesIn(behaviour_tests()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST(GpuBackend, MovesACaseInOneCopyEachWay) {
  Script script;
  const auto backend = make_gpu_backend(std::make_unique<PretendRuntime>(script));
  const std::vector<std::uint8_t> bytes(1000, 3);
  backend->place(std::vector{buffer("a", bytes), buffer("b", bytes, 4096), buffer("c", bytes)});
  run(*backend, "monoref_test_store", row(1, 1), pointer<std::uint8_t>(*backend, 1),
      std::int64_t{1}, 24U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(backend->address(1)) % 4096, 0U);
  EXPECT_EQ(content<std::uint8_t>(*backend, 1, 1000)[1], 24);
  EXPECT_EQ(content<std::uint8_t>(*backend, 2, 1000), bytes);
  EXPECT_EQ(script.copies_in, 1);
  EXPECT_EQ(script.copies_out, 1);
}

TEST(GpuBackend, NeighbouringExtentsShareACanary) {
  Script script;
  const auto backend = make_gpu_backend(std::make_unique<PretendRuntime>(script));
  const std::vector<std::uint8_t> image{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto place = [&] {
    backend->place(std::vector{BufferRequest{"cache",
                                             {{0, 2}, {2, 2}, {100, 2}, {450, 2}, {5000, 1}},
                                             16,
                                             std::as_bytes(std::span(image))}});
  };
  const auto store = [&](std::int64_t index) {
    place();
    run(*backend, "monoref_test_store", row(1, 1), pointer<std::uint8_t>(*backend, 0), index, 24U);
    return backend->damaged_guard().value_or("none");
  };
  EXPECT_EQ(store(3), "none");
  EXPECT_EQ(content<std::uint8_t>(*backend, 0, 9),
            (std::vector<std::uint8_t>{1, 2, 3, 24, 5, 6, 7, 8, 9}));
  EXPECT_EQ(store(451), "none");
  EXPECT_EQ(content<std::uint8_t>(*backend, 0, 9),
            (std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6, 7, 24, 9}));
  for (const std::int64_t between : {4, 99, 102, 449, 452, 4999})
    EXPECT_EQ(store(between), "buffer 'cache': written at byte " + std::to_string(between) +
                                  ", between its extents");
  EXPECT_EQ(store(-1), "buffer 'cache': written 1 bytes before its start");
  EXPECT_EQ(store(5001), "buffer 'cache': written 0 bytes past its end (5001 bytes)");
}

TEST(GpuBackend, CrashAndRecovery) {
  Script script;
  const auto backend = make_gpu_backend(std::make_unique<PretendRuntime>(script));
  const std::vector<std::uint8_t> bytes(8, 3);
  std::uint8_t* const null = nullptr;
  backend->place(std::vector{buffer("a", bytes)});
  RunReport report = run(*backend, "monoref_test_store", row(1, 1), null, std::int64_t{8}, 1U);
  EXPECT_EQ(report.status, RunStatus::kCrashed);
  EXPECT_NE(report.message.find("kernel 'monoref_test_store': "), std::string::npos);
  backend->place(std::vector{buffer("a", bytes)});
  report = run(*backend, "monoref_test_store", row(1, 1), pointer<std::uint8_t>(*backend, 0),
               std::int64_t{0}, 24U);
  EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
  EXPECT_EQ(content<std::uint8_t>(*backend, 0, 8)[0], 24);
  script.recovers = false;
  backend->place(std::vector{buffer("a", bytes)});
  report = run(*backend, "monoref_test_store", row(1, 1), null, std::int64_t{8}, 1U);
  EXPECT_EQ(report.status, RunStatus::kCrashed);
  EXPECT_THROW(backend->place(std::vector{buffer("a", bytes)}), Unavailable);
}

TEST(GpuBackend, TimeBetweenLooksIsNotTheKernels) {
  Script script;
  const auto backend = make_gpu_backend(std::make_unique<PretendRuntime>(script));
  backend->set_time_limit(0.1);
  const std::vector<std::uint8_t> bytes(8, 3);
  backend->place(std::vector{buffer("a", bytes)});
  script.between_looks = std::chrono::milliseconds(10);
  script.looks = 30;  // 0.3 s as the clock says, 0.03 s of looking
  const RunReport report = run(*backend, "monoref_test_store", row(1, 1),
                               pointer<std::uint8_t>(*backend, 0), std::int64_t{0}, 24U);
  EXPECT_EQ(report.status, RunStatus::kOk) << report.message;
}

TEST(GpuBackend, Hang) {
  Script script;
  const auto backend = make_gpu_backend(std::make_unique<PretendRuntime>(script));
  backend->set_time_limit(0.05);
  const std::vector<std::uint8_t> bytes(8, 3);
  backend->place(std::vector{buffer("a", bytes)});
  script.stuck = true;
  const RunReport report = run(*backend, "monoref_test_store", row(1, 1),
                               pointer<std::uint8_t>(*backend, 0), std::int64_t{0}, 24U);
  EXPECT_EQ(report.status, RunStatus::kHung);
  EXPECT_NE(report.message.find("the device must be reset"), std::string::npos);
  EXPECT_THROW(backend->place(std::vector{buffer("a", bytes)}), Unavailable);
}

}  // namespace
}  // namespace monoref::device
