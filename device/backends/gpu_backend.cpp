// Cases on one GPU or on several. Each device has its part of a case in its own memory
// (gpu_memory.cpp) and does its launches in order; the devices meet before the first launch after
// buffers were filled, and before buffers come back.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "device/backends/buffer_request.hpp"
#include "device/backends/gpu_memory.hpp"
#include "device/backends/gpu_runtime.hpp"
#include "device/backends/kernel_table.hpp"

namespace monoref::device {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostDevices = 8;

/// What the backend keeps of a request: its image's size, and where its bytes come back from.
struct Placed {
  std::string name;
  std::size_t image_bytes = 0;
  std::vector<DeviceRun> runs;  ///< over the image; of all bytes, even if all devices have them
};

std::vector<int> devices_of(const DeviceRun& run) {
  std::vector<int> list;
  for (std::uint32_t left = run.devices; left != 0; left &= left - 1)
    list.push_back(std::countr_zero(left));
  return list;
}

/// Throws std::invalid_argument unless the runs are as BufferRequest has them.
void check_runs(const BufferRequest& request, int devices) {
  std::uint64_t end = 0;
  for (const DeviceRun& run : request.runs) {
    const bool source_has_it = run.source < 0 || (run.devices >> run.source & 1U) != 0;
    if (run.offset != end || run.devices == 0 || run.devices >> devices != 0 || !source_has_it)
      throw std::invalid_argument(
          fmt::format("buffer '{}': the run of {} bytes at {} must begin at {} and lie on devices "
                      "below {}, its "
                      "source among them",
                      request.name, run.size, run.offset, end, devices));
    end += run.size;
  }
  if (!request.runs.empty() && end != span_of(request))
    throw std::invalid_argument(fmt::format("buffer '{}': its runs end at {}, the buffer at {}",
                                            request.name, end, span_of(request)));
  if (is_sparse(request) && request.runs.size() > 1)
    throw std::invalid_argument(
        fmt::format("buffer '{}': {} runs, a buffer of several extents has one", request.name,
                    request.runs.size()));
}

Placed placed(const BufferRequest& request, int devices) {
  Placed buffer{request.name, request.image.size(), request.runs};
  const std::uint32_t all = (1U << devices) - 1;
  if (buffer.runs.empty()) buffer.runs = {{0, 0, all, -1}};
  if (buffer.runs.size() == 1) buffer.runs.front().size = request.image.size();
  return buffer;
}

class GpuBackend final : public Backend {
 public:
  explicit GpuBackend(std::vector<std::unique_ptr<GpuRuntime>> runtimes);
  ~GpuBackend() override;
  GpuBackend(const GpuBackend&) = delete;
  GpuBackend& operator=(const GpuBackend&) = delete;

  std::string name() const override { return first().name(); }
  int wave() const override { return first().wave(); }
  int devices() const override { return static_cast<int>(memories_.size()); }
  void place(std::span<const BufferRequest> buffers) override;
  void* address(std::size_t index, int device) const override {
    return memories_.at(static_cast<std::size_t>(device)).address(index);
  }
  void write(std::size_t index, std::span<const std::byte> image) override;
  void launch(std::string_view kernel, const Grid& grid, std::span<const KernelArgument> arguments,
              int device) override;
  void together(const std::function<void()>& enqueue) override;
  std::optional<double> device_seconds(const std::function<void()>& enqueue) override;
  RunReport finish() override;
  std::optional<std::string> damaged_guard() override;
  void read(std::size_t index, std::span<std::byte> image) override;

 private:
  GpuRuntime& first() const { return memories_.front().runtime(); }
  bool has_contents() const { return unusable_.empty() && !is_lost_; }
  void meet();
  void meet_if_filled();
  void reach_each_other();
  bool is_idle();
  std::optional<std::string> abandon();
  void wait();
  void fail(const GpuError& error);
  std::optional<std::string> unlike_copies() const;
  std::optional<std::size_t> first_difference(std::size_t index, const DeviceRun& run, int one,
                                              int other) const;
  std::span<const std::byte> image_on(int device, std::size_t index, std::size_t at,
                                      const DeviceRun& run) const;

  std::vector<GpuMemory> memories_;
  std::vector<Placed> buffers_;
  bool is_held_ = false;    ///< all devices are held back
  bool is_filled_ = false;  ///< and the devices have not met since
  bool is_lost_ = false;    ///< by a fault: there are no contents until the next place
  std::string kernel_;      ///< the last launched
  RunReport report_;
  std::string unusable_;  ///< why no case can run any more; empty while one can
};

GpuBackend::GpuBackend(std::vector<std::unique_ptr<GpuRuntime>> runtimes) {
  if (runtimes.empty() || runtimes.size() > kMostDevices)
    throw std::invalid_argument(
        fmt::format("gpu backend: {} devices, limits 1 and {}", runtimes.size(), kMostDevices));
  for (auto& runtime : runtimes)
    memories_.emplace_back(std::move(runtime), static_cast<int>(memories_.size()));
  reach_each_other();
}

GpuBackend::~GpuBackend() {
  if (!unusable_.empty()) return;  // releasing memory would wait for the device
  try {
    for (GpuMemory& memory : memories_) memory.release();
  } catch (const GpuError& error) {
    // The end of the process will give up what is left.
    std::fprintf(stderr, "%s backend: %s\n", name().c_str(), error.message.c_str());
  }
}

void GpuBackend::reach_each_other() {
  for (GpuMemory& memory : memories_)
    for (GpuMemory& other : memories_)
      if (&memory != &other) memory.runtime().reach(other.runtime());
}

/// Lets no device go on before all have done what they have been given.
void GpuBackend::meet() {
  for (GpuMemory& memory : memories_)
    for (GpuMemory& other : memories_)
      if (&memory != &other) memory.runtime().follow(other.runtime());
}

/// A kernel may store to another device's buffers: not before those are filled.
void GpuBackend::meet_if_filled() {
  if (std::exchange(is_filled_, false)) meet();
}

void GpuBackend::place(std::span<const BufferRequest> requests) {
  if (!unusable_.empty()) throw Unavailable{unusable_};
  for (const BufferRequest& request : requests) {
    check_request(request);
    check_runs(request, devices());
  }
  report_ = {};
  try {
    wait();
    if (!unusable_.empty()) return;
    is_lost_ = false;
    buffers_.clear();
    for (const BufferRequest& request : requests) buffers_.push_back(placed(request, devices()));
    for (GpuMemory& memory : memories_) memory.place(requests);
    is_filled_ = true;
  } catch (const GpuError& error) {
    fail(error);
  }
}

void GpuBackend::write(std::size_t index, std::span<const std::byte> image) {
  check_image(buffers_.at(index).name, image.size(), buffers_.at(index).image_bytes);
  if (report_.status != RunStatus::kOk) return;
  try {
    wait();  // the staging memory may still be on its way in
    if (!unusable_.empty()) return;
    for (GpuMemory& memory : memories_) memory.write(index, image);
    is_filled_ = true;
  } catch (const GpuError& error) {
    fail(error);
  }
}

void GpuBackend::launch(std::string_view kernel, const Grid& grid,
                        std::span<const KernelArgument> arguments, int device) {
  const simt::host::KernelEntry* const own = first().own_kernel(kernel);
  const simt::host::KernelEntry& entry = own != nullptr ? *own : find_kernel(kernel, wave(), false);
  check_launch(entry, grid, arguments);
  if (report_.status != RunStatus::kOk) return;
  std::vector<void*> pointers;
  for (const KernelArgument& argument : arguments)
    pointers.push_back(const_cast<void*>(argument.data));  // the runtime's type; it only reads
  kernel_ = kernel;
  try {
    meet_if_filled();
    memories_.at(static_cast<std::size_t>(device)).runtime().launch(entry, grid, pointers.data());
  } catch (const GpuError& error) {
    fail(error);
  }
}

/// Holds all devices back for as long as it lives.
class Held {
 public:
  Held(std::vector<GpuMemory>& memories, bool& is_held) : memories_(memories), is_held_(is_held) {
    is_held_ = true;
    try {
      for (GpuMemory& memory : memories_) memory.runtime().hold();
    } catch (...) {
      let_go();
      throw;
    }
  }
  ~Held() { let_go(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  void let_go() {
    is_held_ = false;
    for (GpuMemory& memory : memories_) memory.runtime().let_go();
  }

  std::vector<GpuMemory>& memories_;
  bool& is_held_;
};

void GpuBackend::together(const std::function<void()>& enqueue) {
  if (memories_.size() == 1 || is_held_ || report_.status != RunStatus::kOk) return enqueue();
  try {
    meet_if_filled();
    const Held held(memories_, is_held_);
    enqueue();
  } catch (const GpuError& error) {
    fail(error);
  }
}

std::optional<double> GpuBackend::device_seconds(const std::function<void()>& enqueue) {
  if (report_.status != RunStatus::kOk) return std::nullopt;
  double longest = 0;
  try {
    meet_if_filled();
    {
      const Held held(memories_, is_held_);
      for (GpuMemory& memory : memories_) memory.runtime().start_clock();
      enqueue();
      for (GpuMemory& memory : memories_) memory.runtime().stop_clock();
    }
    if (report_.status == RunStatus::kOk) wait();
    if (report_.status != RunStatus::kOk) return std::nullopt;
    for (GpuMemory& memory : memories_)
      longest = std::max(longest, memory.runtime().clocked_seconds());
  } catch (const GpuError& error) {
    fail(error);
    return std::nullopt;
  }
  return longest;
}

/// Asks every device, so that no fault goes unseen while another device waits.
bool GpuBackend::is_idle() {
  bool idle = true;
  for (GpuMemory& memory : memories_) idle = memory.runtime().idle() && idle;
  return idle;
}

/// Stops all devices, and says where they were; nothing if one of them cannot be stopped.
std::optional<std::string> GpuBackend::abandon() {
  std::string places;
  for (GpuMemory& memory : memories_) {
    const std::optional<std::string> where = memory.runtime().abandon();
    if (!where) return std::nullopt;
    places += *where;
  }
  return places;
}

/// Waits for all streams; after the time limit the devices are given up. Only time in which this
/// process looks at the devices counts: on a busy machine, or while the runtime is at work in a
/// launch or a question, a kernel may have ended long ago.
void GpuBackend::wait() {
  const auto limit = std::chrono::duration<double>(time_limit());
  constexpr auto kSpin = std::chrono::microseconds(500);
  constexpr Clock::duration kMostBetweenLooks = std::chrono::milliseconds(1);
  Clock::duration waited{};
  for (Clock::time_point before = Clock::now(); !is_idle();) {
    const Clock::time_point now = Clock::now();
    waited += std::min(now - before, kMostBetweenLooks);
    before = now;
    if (waited > limit) {
      if (const std::optional<std::string> where = abandon()) {
        report_ = {RunStatus::kHung, fmt::format("kernel '{}' still runs after {} s: {}", kernel_,
                                                 time_limit(), *where)};
        is_lost_ = true;
        return;
      }
      unusable_ = fmt::format(
          "{} backend: kernel '{}' still runs after {} s; the device must be reset and this "
          "process "
          "cannot use it any more",
          name(), kernel_, time_limit());
      report_ = {RunStatus::kHung, unusable_};
      return;
    }
    if (waited > kSpin) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// A fault: the verdict, and a new beginning if the devices allow one.
void GpuBackend::fail(const GpuError& error) {
  if (report_.status != RunStatus::kOk) return;
  report_ = {RunStatus::kCrashed, kernel_.empty()
                                      ? error.message
                                      : fmt::format("kernel '{}': {}", kernel_, error.message)};
  is_lost_ = true;
  is_filled_ = false;
  bool recovered = true;
  for (GpuMemory& memory : memories_) recovered = memory.recover() && recovered;
  try {
    if (recovered) reach_each_other();
  } catch (const GpuError&) {
    recovered = false;
  }
  if (!recovered)
    unusable_ =
        fmt::format("{} backend: the device did not recover from: {}", name(), report_.message);
}

RunReport GpuBackend::finish() {
  if (report_.status == RunStatus::kOk) {
    try {
      meet();  // the last stores to another device's buffers are done
      for (GpuMemory& memory : memories_) memory.copy_out();
      wait();
    } catch (const GpuError& error) {
      fail(error);
    }
  }
  kernel_.clear();
  return std::exchange(report_, {});
}

/// The first byte that devices have and should have alike, but have not.
std::optional<std::string> GpuBackend::unlike_copies() const {
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    for (const DeviceRun& run : buffers_[i].runs) {
      if (run.source >= 0) continue;
      const std::vector<int> holders = devices_of(run);
      for (std::size_t n = 1; n < holders.size(); ++n)
        if (const auto at = first_difference(i, run, holders.front(), holders[n]))
          return fmt::format("buffer '{}': byte {} on device {} is not what it is on device {}",
                             buffers_[i].name, *at, holders[n], holders.front());
    }
  return std::nullopt;
}

std::optional<std::size_t> GpuBackend::first_difference(std::size_t index, const DeviceRun& run,
                                                        int one, int other) const {
  for (std::size_t at = run.offset; at < run.offset + run.size;) {
    const auto a = image_on(one, index, at, run);
    const auto b = image_on(other, index, at, run);
    const std::size_t bytes = std::min(a.size(), b.size());
    if (std::memcmp(a.data(), b.data(), bytes) != 0)
      return at + static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first -
                                           a.begin());
    at += bytes;
  }
  return std::nullopt;
}

/// What a device has from `at` on of a run, as far as it lies together.
std::span<const std::byte> GpuBackend::image_on(int device, std::size_t index, std::size_t at,
                                                const DeviceRun& run) const {
  const auto found = memories_[static_cast<std::size_t>(device)].image(index, at);
  return found.first(std::min<std::size_t>(found.size(), run.offset + run.size - at));
}

std::optional<std::string> GpuBackend::damaged_guard() {
  if (!has_contents()) return std::nullopt;
  for (std::size_t device = 0; device < memories_.size(); ++device)
    if (const auto damage = memories_[device].damaged_guard())
      return memories_.size() == 1 ? *damage : fmt::format("{} on device {}", *damage, device);
  return unlike_copies();
}

void GpuBackend::read(std::size_t index, std::span<std::byte> image) {
  const Placed& buffer = buffers_.at(index);
  check_image(buffer.name, image.size(), buffer.image_bytes);
  if (!has_contents()) return;  // contents are meaningless
  for (const DeviceRun& run : buffer.runs) {
    const int device = run.source >= 0 ? run.source : devices_of(run).front();
    for (std::size_t at = run.offset; at < run.offset + run.size;) {
      const auto bytes = image_on(device, index, at, run);
      std::memcpy(image.data() + at, bytes.data(), bytes.size());
      at += bytes.size();
    }
  }
}

}  // namespace

void check_device_numbers(std::string_view backend, std::span<const int> devices, int count) {
  if (count == 0) throw Unavailable{fmt::format("{} backend: there is no device", backend)};
  for (const int device : devices)
    if (device < 0 || device >= count)
      throw Unavailable{fmt::format("{} backend: there is no device {}; there are {}, from 0 on",
                                    backend, device, count)};
}

std::unique_ptr<Backend> make_gpu_backend(std::vector<std::unique_ptr<GpuRuntime>> runtimes) {
  return std::make_unique<GpuBackend>(std::move(runtimes));
}

std::unique_ptr<Backend> make_gpu_backend(std::unique_ptr<GpuRuntime> runtime) {
  std::vector<std::unique_ptr<GpuRuntime>> one;
  one.push_back(std::move(runtime));
  return make_gpu_backend(std::move(one));
}

}  // namespace monoref::device
