// A GPU that is this machine's memory and executor: for the common part of the GPU backends.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "device/backends/gpu_runtime.hpp"
#include "device/backends/host_executor.hpp"

namespace monoref::device {

/// What a test wants to know of the runtimes, or to happen in them.
struct Script {
  std::atomic<bool> stuck = false;  ///< work never ends
  int looks = 0;                    ///< after which work ends
  int looks_of_launch = 0;          ///< after which it ends from the next launch on
  std::chrono::milliseconds between_looks{0};
  bool recovers = true;
  bool stops = false;          ///< when it is asked to
  bool stops_for_good = true;  ///< and later launches are quick
  bool reaches = true;         ///< other devices
  std::atomic<int> copies_in = 0;
  std::atomic<int> copies_out = 0;
};

/// One such device. A thread of its own does its work, so that kernels on two of them can wait for
/// each other.
class PretendRuntime final : public GpuRuntime {
 public:
  explicit PretendRuntime(Script& script)
      : script_(script), worker_([this](const std::stop_token& stop) { work(stop); }) {}
  ~PretendRuntime() override {
    PretendRuntime::let_go();
    {
      const std::lock_guard lock(mutex_);  // or the worker, about to wait, would miss it
      worker_.request_stop();
    }
    changed_.notify_all();
    worker_.join();
    PretendRuntime::release_reserved();
  }

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
    enqueue([=] { std::memcpy(device, host, bytes); });
  }
  void copy_out(std::byte* host, const std::byte* device, std::size_t bytes) override {
    ++script_.copies_out;
    enqueue([=] { std::memcpy(host, device, bytes); });
  }
  void launch(const simt::host::KernelEntry& kernel, const Grid& grid, void** arguments) override {
    script_.looks = std::max(script_.looks, script_.looks_of_launch);
    struct alignas(16) Value {
      std::byte bytes[1024];
    };
    auto values = std::make_shared<std::vector<Value>>(kernel.argument_count);
    for (std::uint32_t i = 0; i < kernel.argument_count; ++i)
      std::memcpy((*values)[i].bytes, arguments[i], kernel.argument_sizes[i]);
    enqueue([this, &kernel, grid, values] {
      std::vector<const void*> pointers;
      for (const Value& value : *values) pointers.push_back(value.bytes);
      const RunReport report =
          run_on_host({&kernel, grid, pointers.data(), 10,
                       [](std::uintptr_t, bool) { return std::string("fault"); }});
      const std::lock_guard lock(mutex_);
      if (report.status != RunStatus::kOk) error_ = report.message;
    });
  }
  bool idle() override {
    std::this_thread::sleep_for(script_.between_looks);
    const std::lock_guard lock(mutex_);
    if (queue_.empty() && !error_.empty()) throw GpuError{std::exchange(error_, {})};
    return queue_.empty() && !script_.stuck && script_.looks-- <= 0;
  }

  void reach(GpuRuntime&) override {
    if (!script_.reaches) throw GpuError{"device 0 cannot reach the memory of device 1"};
  }
  void follow(GpuRuntime& other) override {
    auto done = std::make_shared<std::promise<void>>();
    static_cast<PretendRuntime&>(other).enqueue([done] { done->set_value(); });
    enqueue([done] { done->get_future().wait(); });
  }
  void hold() override {
    gate_ = std::make_shared<std::promise<void>>();
    enqueue([gate = gate_] { gate->get_future().wait(); });
  }
  void let_go() override {
    if (gate_ != nullptr) gate_->set_value();
    gate_ = nullptr;
  }
  void start_clock() override {
    enqueue([this] { start_ = std::chrono::steady_clock::now(); });
  }
  void stop_clock() override {
    enqueue([this] { stop_ = std::chrono::steady_clock::now(); });
  }
  double clocked_seconds() override {
    return std::chrono::duration<double>(stop_ - start_).count();
  }
  std::optional<std::string> abandon() override {
    if (!script_.stops) return std::nullopt;
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return queue_.empty(); });
    script_.looks = 0;
    if (script_.stops_for_good) script_.looks_of_launch = 0;
    return "somewhere";
  }
  bool recover() override {
    memory_.clear();
    return script_.recovers;
  }

 private:
  void enqueue(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }
  /// What is done leaves the queue after it was done.
  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop.stop_requested() || !queue_.empty(); });
      if (stop.stop_requested()) return;
      const std::function<void()> next = queue_.front();
      lock.unlock();
      next();
      lock.lock();
      queue_.pop_front();
      done_.notify_all();
    }
  }

  Script& script_;
  std::mutex mutex_;
  std::condition_variable changed_, done_;
  std::deque<std::function<void()>> queue_;
  std::string error_;
  std::shared_ptr<std::promise<void>> gate_;
  std::chrono::steady_clock::time_point start_, stop_;
  std::map<std::byte*, std::uint64_t> ranges_;
  std::map<std::byte*, std::unique_ptr<std::byte, void (*)(void*)>> memory_;
  std::jthread worker_;
};

/// A backend on so many of them.
inline std::unique_ptr<Backend> make_pretend_backend(Script& script, int devices = 1) {
  std::vector<std::unique_ptr<GpuRuntime>> runtimes;
  for (int i = 0; i < devices; ++i) runtimes.push_back(std::make_unique<PretendRuntime>(script));
  return make_gpu_backend(std::move(runtimes));
}

}  // namespace monoref::device
