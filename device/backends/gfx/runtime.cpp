// The executor as a GpuRuntime. Device memory is memory of the process. What is enqueued is done a
// slice at a time, whenever somebody asks whether it is done, so that a kernel without an end can
// be given up.
#include <fmt/format.h>
#include <sys/mman.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <unordered_map>

#include "device/backends/code_objects.hpp"
#include "device/backends/gfx/backend.hpp"
#include "device/backends/gfx/execution.hpp"
#include "device/backends/gfx/inspect.hpp"
#include "device/backends/gpu_runtime.hpp"

namespace monoref::device {
namespace {

/// Instructions between two looks at the clock: about a millisecond.
constexpr std::uint64_t kSlice = 20'000;
constexpr std::size_t kPage = 4096;

std::size_t shared_limit(std::string_view chip) {
  return std::size_t{chip == "gfx950" ? 160U : 64U} << 10;
}

class GfxRuntime final : public GpuRuntime {
 public:
  GfxRuntime(std::string_view chip, const gfx::Manner& manner) : chip_(chip), manner_(manner) {
    for (const std::filesystem::path& file : code_objects_of(chip))
      add(std::make_unique<gfx::CodeObject>(file));
    if (objects_.empty())
      throw gfx::Unsupported{
          fmt::format("no code objects *.{}.co in {}", chip, code_object_directory().string())};
  }
  /// Has the kernels of this object alone.
  GfxRuntime(std::unique_ptr<gfx::CodeObject> object, const gfx::Manner& manner)
      : chip_(object->chip), manner_(manner) {
    add(std::move(object));
    for (const gfx::Kernel& kernel : objects_.front()->kernels) {
      OwnKernel& own = own_kernels_[kernel.name];
      for (const gfx::KernelParameter& parameter : kernel.parameters)
        if (!parameter.is_hidden()) own.sizes.push_back(parameter.size);
      own.entry = {.name = kernel.name,
                   .wave = 64,
                   .with_faults = false,
                   .max_threads = kernel.max_threads,
                   .argument_sizes = own.sizes.data(),
                   .argument_count = static_cast<std::uint32_t>(own.sizes.size()),
                   .run = nullptr};
    }
  }
  ~GfxRuntime() override { GfxRuntime::release_reserved(); }
  GfxRuntime(const GfxRuntime&) = delete;
  GfxRuntime& operator=(const GfxRuntime&) = delete;

  std::string name() const override { return chip_; }
  int wave() const override { return 64; }
  const simt::host::KernelEntry* own_kernel(std::string_view name) override {
    const auto found = own_kernels_.find(std::string(name));
    return found == own_kernels_.end() ? nullptr : &found->second.entry;
  }

  std::byte* allocate(std::size_t bytes) override {
    auto* const memory = static_cast<std::byte*>(
        std::aligned_alloc(kPage, std::max(kPage, (bytes + kPage - 1) / kPage * kPage)));
    if (memory == nullptr) throw GpuError{fmt::format("no memory for {} bytes", bytes)};
    device_.emplace(memory, Owned{{memory, &std::free}, bytes});
    return memory;
  }
  void release(std::byte* memory) override { device_.erase(memory); }
  std::byte* allocate_host(std::size_t bytes) override {
    auto* const memory = static_cast<std::byte*>(std::malloc(std::max<std::size_t>(bytes, 1)));
    if (memory == nullptr) throw GpuError{fmt::format("no memory for {} bytes", bytes)};
    host_.emplace(memory, Owned{{memory, &std::free}, bytes});
    return memory;
  }
  void release_host(std::byte* memory) override { host_.erase(memory); }

  std::byte* reserve(std::uint64_t span, std::span<const ByteExtent> backed) override;
  void release_reserved() override;

  void note_buffers(std::span<const DevicePart> parts) override {
    parts_.clear();
    for (const DevicePart& part : parts) {
      const auto at = reinterpret_cast<std::uintptr_t>(part.begin);
      parts_.push_back({at, at + part.bytes, !part.canary, true, part.buffer});
    }
  }

  void copy_in(std::byte* device, const std::byte* host, std::size_t bytes) override {
    enqueue([=] { std::memcpy(device, host, bytes); });
  }
  void copy_out(std::byte* host, const std::byte* device, std::size_t bytes) override {
    enqueue([=] { std::memcpy(host, device, bytes); });
  }
  void launch(const simt::host::KernelEntry& kernel, const Grid& grid, void** arguments) override;
  bool idle() override;
  std::optional<std::string> abandon() override;

  /// There is one of its kind.
  void reach(GpuRuntime&) override {
    throw GpuError{fmt::format("{} is one device and reaches no other", chip_)};
  }
  void follow(GpuRuntime&) override {}
  // Nothing is done before somebody asks whether it is.
  void hold() override { is_held_ = true; }
  void let_go() override { is_held_ = false; }
  void start_clock() override {
    enqueue([this] { started_ = Clock::now(); });
  }
  void stop_clock() override {
    enqueue([this] { clocked_ = Clock::now() - started_; });
  }
  double clocked_seconds() override { return clocked_.count(); }

  bool recover() override {
    work_.clear();
    device_.clear();
    host_.clear();
    parts_.clear();
    is_held_ = false;
    release_reserved();
    return true;
  }

 private:
  struct Found {
    gfx::CodeObject* object;
    const gfx::Kernel* kernel;
  };
  /// A kernel's arguments as the launch checks need them.
  struct OwnKernel {
    std::vector<std::uint32_t> sizes;
    simt::host::KernelEntry entry{};
  };
  struct Owned {
    std::unique_ptr<std::byte, void (*)(void*)> memory;
    std::size_t bytes;
  };
  struct Range {
    std::byte* begin;
    std::size_t bytes;
  };
  /// A copy, or a launch under way.
  struct Work {
    std::function<void()> copy;
    std::unique_ptr<gfx::Execution> launch;
    Found found{};
    std::vector<std::byte> arguments;
    Grid grid;
  };

  void enqueue(std::function<void()> copy) {
    if (work_.empty() && !is_held_) return copy();
    work_.emplace_back().copy = std::move(copy);
  }
  void add(std::unique_ptr<gfx::CodeObject> object) {
    objects_.push_back(std::move(object));
    for (const gfx::Kernel& kernel : objects_.back()->kernels)
      kernels_.emplace(kernel.name, Found{objects_.back().get(), &kernel});
  }
  void begin(Work& work);
  bool advance(gfx::Execution& launch);

  using Clock = std::chrono::steady_clock;

  std::string chip_;
  gfx::Manner manner_;
  bool is_held_ = false;
  Clock::time_point started_;
  std::chrono::duration<double> clocked_{};
  std::vector<std::unique_ptr<gfx::CodeObject>> objects_;
  std::unordered_map<std::string, Found> kernels_;
  std::unordered_map<std::string, OwnKernel> own_kernels_;
  std::map<std::byte*, Owned> device_, host_;
  std::vector<Range> ranges_;
  std::vector<gfx::Extent> parts_;  ///< the case's buffers and the canaries beside them
  std::deque<Work> work_;
  gfx::Memory memory_;
  gfx::Pools pools_;
};

std::byte* GfxRuntime::reserve(std::uint64_t span, std::span<const ByteExtent> backed) {
  const std::size_t bytes = (span + kPage - 1) / kPage * kPage;
  void* const range =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) throw GpuError{fmt::format("no addresses for {} bytes", bytes)};
  auto* const begin = static_cast<std::byte*>(range);
  ranges_.push_back({begin, bytes});
  for (const ByteExtent& run : backed) {
    const std::uint64_t first = run.offset / kPage * kPage;
    if (mprotect(begin + first, run.offset + run.size - first, PROT_READ | PROT_WRITE) != 0)
      throw GpuError{fmt::format("no memory for {} bytes", run.size)};
  }
  return begin;
}

void GfxRuntime::release_reserved() {
  for (const Range& range : ranges_) munmap(range.begin, range.bytes);
  ranges_.clear();
}

void GfxRuntime::launch(const simt::host::KernelEntry& kernel, const Grid& grid, void** arguments) {
  const auto found = kernels_.find(std::string(kernel.name));
  if (found == kernels_.end())
    throw GpuError{fmt::format("kernel '{}' is in no code object", kernel.name)};
  const gfx::Kernel& wanted = *found->second.kernel;
  const std::size_t shared = std::size_t{wanted.shared_bytes} + grid.shared_bytes;
  if (shared > shared_limit(chip_))
    throw GpuError{fmt::format("a block needs {} bytes of shared memory, {} has {}", shared, chip_,
                               shared_limit(chip_))};
  std::vector<std::span<const std::byte>> values;
  for (std::uint32_t n = 0; n < kernel.argument_count; ++n)
    values.push_back({static_cast<const std::byte*>(arguments[n]), kernel.argument_sizes[n]});
  Work& work = work_.emplace_back();
  work.found = found->second;
  work.grid = grid;
  try {
    work.arguments = gfx::argument_segment(wanted, grid, values);
  } catch (const gfx::Unsupported& unsupported) {
    work_.pop_back();
    throw GpuError{unsupported.message};
  }
}

/// Tells the executor what memory there is, and starts a launch.
void GfxRuntime::begin(Work& work) {
  gfx::CodeObject& object = *work.found.object;
  std::vector<gfx::Extent> extents = parts_;
  const auto arguments = reinterpret_cast<std::uintptr_t>(work.arguments.data());
  extents.push_back({arguments, arguments + work.arguments.size(), true, false, {}});
  extents.push_back({object.base(), object.base() + object.size(), true, false, {}});
  std::sort(extents.begin(), extents.end(),
            [](const gfx::Extent& a, const gfx::Extent& b) { return a.begin < b.begin; });
  memory_.set(std::move(extents));
  work.launch = std::make_unique<gfx::Execution>(
      object, *work.found.kernel, work.grid, std::move(work.arguments), memory_, pools_, manner_);
}

/// Runs a slice, and reports what was seen; true at the launch's end.
bool GfxRuntime::advance(gfx::Execution& launch) {
  const bool ended = launch.run(kSlice);
  if (ended && manner_.observed != nullptr) {
    const gfx::Observations seen = launch.observed();
    manner_.observed->instructions += seen.instructions;
    manner_.observed->has_float_matrix |= seen.has_float_matrix;
  }
  return ended;
}

bool GfxRuntime::idle() {
  if (is_held_) return false;
  try {
    while (!work_.empty()) {
      Work& work = work_.front();
      if (work.copy) {
        work.copy();
      } else {
        if (work.launch == nullptr) begin(work);
        if (!advance(*work.launch)) return false;
      }
      work_.pop_front();
    }
  } catch (const gfx::Fault& fault) {
    work_.clear();
    throw GpuError{fault.message};
  } catch (const gfx::Unsupported& unsupported) {
    work_.clear();
    throw Unavailable{fmt::format("{} backend: {}", chip_, unsupported.message)};
  }
  return true;
}

std::optional<std::string> GfxRuntime::abandon() {
  std::string where;
  if (!work_.empty() && work_.front().launch != nullptr)
    where = work_.front().launch->whereabouts();
  work_.clear();
  return where;
}

}  // namespace

namespace {

void check_processor(std::string_view chip) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
    throw Unavailable{fmt::format("{} backend: this CPU has no AVX2 and FMA", chip)};
}

}  // namespace

std::unique_ptr<Backend> make_gfx_backend(std::string_view chip, const gfx::Manner& manner) {
  check_processor(chip);
  try {
    return make_gpu_backend(std::make_unique<GfxRuntime>(chip, manner));
  } catch (const gfx::Unsupported& unsupported) {
    throw Unavailable{fmt::format("{} backend: {}", chip, unsupported.message)};
  }
}

std::unique_ptr<Backend> make_gfx_backend_of(const std::filesystem::path& code_object,
                                             const gfx::Manner& manner) {
  check_processor("gfx");
  try {
    return make_gpu_backend(std::make_unique<GfxRuntime>(gfx::open_object(code_object), manner));
  } catch (const gfx::Unsupported& unsupported) {
    throw std::invalid_argument(unsupported.message);
  }
}

}  // namespace monoref::device
