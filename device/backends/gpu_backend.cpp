// Cases on a GPU. Small buffers share one arena that goes to the device in one copy and comes back
// in one copy, which decides how many cases a second there are; between them, canaries. A buffer of
// several extents has an address range of its own.

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
#include "device/backends/gpu_runtime.hpp"
#include "device/backends/kernel_table.hpp"
#include "device/backends/poison.hpp"

namespace monoref::device {
namespace {

constexpr std::size_t kCanary = 256;  ///< bytes before and after every buffer
constexpr std::size_t kArenaStep = std::size_t{1} << 20;
/// Where a sparse buffer begins in its range: room for the canary, and a multiple of any alignment.
constexpr std::uint64_t kSparseStart = 4096;

using Clock = std::chrono::steady_clock;

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Bytes that travel together: at `staged` of the staging memory, and on the device.
struct Piece {
  std::byte* device = nullptr;
  std::size_t staged = 0;
  std::size_t bytes = 0;
};

/// A buffer's bytes or its canaries within the staging memory. `offset` counts from its base.
struct Part {
  std::size_t staged = 0;
  std::int64_t offset = 0;
  std::size_t bytes = 0;
};

struct Buffer {
  std::string name;
  std::byte* base = nullptr;
  std::uint64_t span = 0;
  std::size_t image_bytes = 0;
  std::vector<Part> extents;
  std::vector<Part> canaries;
  Poison poison;
};

class GpuBackend final : public Backend {
 public:
  explicit GpuBackend(std::unique_ptr<GpuRuntime> runtime) : runtime_(std::move(runtime)) {}
  ~GpuBackend() override;
  GpuBackend(const GpuBackend&) = delete;
  GpuBackend& operator=(const GpuBackend&) = delete;

  std::string name() const override { return runtime_->name(); }
  int wave() const override { return runtime_->wave(); }
  void place(std::span<const BufferRequest> buffers) override;
  void* address(std::size_t index) const override { return buffers_.at(index).base; }
  void write(std::size_t index, std::span<const std::byte> image) override;
  void launch(std::string_view kernel, const Grid& grid,
              std::span<const KernelArgument> arguments) override;
  RunReport finish() override;
  std::optional<std::string> damaged_guard() override;
  void read(std::size_t index, std::span<std::byte> image) override;

 private:
  std::size_t lay_out(const BufferRequest& request, std::size_t at);
  std::size_t lay_out_sparse(Buffer& buffer, const BufferRequest& request, std::size_t at);
  void give_addresses(std::span<const BufferRequest> requests);
  void reserve_staging(std::size_t arena, std::size_t all);
  void stage(const Buffer& buffer, std::span<const std::byte> image);
  void copy_in();
  void wait();
  void fail(const GpuError& error);
  std::byte* staged(const Part& part) const { return staging_ + part.staged; }

  std::unique_ptr<GpuRuntime> runtime_;
  std::vector<Buffer> buffers_;
  std::vector<Piece> pieces_;
  std::byte* arena_ = nullptr;
  std::byte* staging_ = nullptr;
  std::size_t arena_bytes_ = 0;
  std::size_t staging_bytes_ = 0;
  bool has_reserved_ = false;
  std::string kernel_;  ///< the last launched
  RunReport report_;
  std::string unusable_;  ///< why no case can run any more; empty while one can
};

GpuBackend::~GpuBackend() {
  if (!unusable_.empty()) return;  // releasing memory would wait for the device
  try {
    runtime_->release(arena_);
    runtime_->release_host(staging_);
    runtime_->release_reserved();
  } catch (const GpuError& error) {
    // The end of the process will give up what is left.
    std::fprintf(stderr, "%s backend: %s\n", runtime_->name().c_str(), error.message.c_str());
  }
}

/// Places a dense buffer at `at` or later in the arena; returns the end of what it takes.
std::size_t GpuBackend::lay_out(const BufferRequest& request, std::size_t at) {
  Buffer& buffer = buffers_.back();
  const std::size_t base = round_up(at + kCanary, request.alignment);
  const std::size_t end = round_up(base + buffer.span, request.alignment) + kCanary;
  const auto offset_of = [base](std::size_t staged) {
    return static_cast<std::int64_t>(staged) - static_cast<std::int64_t>(base);
  };
  if (buffer.span != 0) buffer.extents.push_back({base, 0, buffer.span});
  buffer.canaries.push_back({at, offset_of(at), base - at});
  const std::size_t behind = base + buffer.span;
  buffer.canaries.push_back({behind, offset_of(behind), end - behind});
  return end;
}

/// Stages the runs of a sparse buffer, each with canaries around it, as pieces of their own.
std::size_t GpuBackend::lay_out_sparse(Buffer& buffer, const BufferRequest& request,
                                       std::size_t at) {
  constexpr auto kMargin = static_cast<std::int64_t>(kCanary);
  const std::size_t first_piece = pieces_.size();
  std::vector<ByteExtent> backed;
  std::int64_t reached = -kMargin;  // offset up to which bytes are staged
  for (const ByteExtent& extent : request.extents) {
    const auto begin = static_cast<std::int64_t>(extent.offset);
    const auto size = static_cast<std::int64_t>(extent.size);
    const bool joins = !backed.empty() && begin - kMargin <= reached;
    if (!joins) {
      reached = begin - kMargin;
      pieces_.push_back({nullptr, at, 0});
      backed.push_back({static_cast<std::uint64_t>(reached) + kSparseStart, 0});
    } else {
      // The canary behind the previous extent becomes the one between the two.
      Part& between = buffer.canaries.back();
      const std::int64_t excess = reached - begin;
      if (excess > 0) {
        at -= static_cast<std::size_t>(excess);
        between.bytes -= static_cast<std::size_t>(excess);
        pieces_.back().bytes -= static_cast<std::size_t>(excess);
        reached = begin;
      }
    }
    const auto add = [&](std::vector<Part>& parts, std::int64_t bytes) {
      parts.push_back({at, reached, static_cast<std::size_t>(bytes)});
      at += static_cast<std::size_t>(bytes);
      reached += bytes;
      pieces_.back().bytes += static_cast<std::size_t>(bytes);
    };
    if (begin > reached) add(buffer.canaries, begin - reached);
    add(buffer.extents, size);
    add(buffer.canaries, kMargin);
    backed.back().size = static_cast<std::uint64_t>(reached) + kSparseStart - backed.back().offset;
  }
  std::byte* const range = runtime_->reserve(buffer.span + kSparseStart + kCanary, backed);
  has_reserved_ = true;
  buffer.base = range + kSparseStart;
  for (std::size_t i = 0; i < backed.size(); ++i)
    pieces_[first_piece + i].device = range + backed[i].offset;
  return at;
}

/// Grows the arena and the staging memory to at least so many bytes.
void GpuBackend::reserve_staging(std::size_t arena, std::size_t all) {
  if (arena > arena_bytes_) {
    runtime_->release(arena_);
    arena_ = nullptr;
    arena_bytes_ = round_up(std::max(arena, 2 * arena_bytes_), kArenaStep);
    arena_ = runtime_->allocate(arena_bytes_);
  }
  if (all > staging_bytes_) {
    runtime_->release_host(staging_);
    staging_ = nullptr;
    staging_bytes_ = round_up(std::max(all, 2 * staging_bytes_), kArenaStep);
    staging_ = runtime_->allocate_host(staging_bytes_);
  }
}

void GpuBackend::place(std::span<const BufferRequest> requests) {
  if (!unusable_.empty()) throw Unavailable{unusable_};
  for (const BufferRequest& request : requests) check_request(request);
  report_ = {};
  try {
    wait();
    if (!unusable_.empty()) return;
    if (has_reserved_) runtime_->release_reserved();
    has_reserved_ = false;
    give_addresses(requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      for (const Part& canary : buffers_[i].canaries)
        buffers_[i].poison.fill(staged(canary), staged(canary) + canary.bytes);
      stage(buffers_[i], requests[i].image);
    }
    copy_in();
  } catch (const GpuError& error) {
    fail(error);
  }
}

/// Decides where every buffer lies, in the arena or in a range of its own.
void GpuBackend::give_addresses(std::span<const BufferRequest> requests) {
  buffers_.clear();
  buffers_.reserve(requests.size());
  pieces_.assign(1, {});
  std::size_t at = 0;
  for (const BufferRequest& request : requests) {
    Buffer& buffer = buffers_.emplace_back();
    buffer.name = request.name;
    buffer.image_bytes = request.image.size();
    buffer.poison = Poison(buffers_.size());
    buffer.span = span_of(request);
    if (!is_sparse(request)) at = lay_out(request, at);
  }
  const std::size_t arena = at;
  for (std::size_t i = 0; i < requests.size(); ++i)
    if (is_sparse(requests[i])) at = lay_out_sparse(buffers_[i], requests[i], at);
  reserve_staging(arena, at);
  pieces_[0] = {arena_, 0, arena};
  for (std::size_t i = 0; i < requests.size(); ++i)
    if (!is_sparse(requests[i])) {
      const Part& behind = buffers_[i].canaries.back();
      buffers_[i].base = arena_ + (static_cast<std::int64_t>(behind.staged) - behind.offset);
    }
}

/// Puts an image into the staging memory.
void GpuBackend::stage(const Buffer& buffer, std::span<const std::byte> image) {
  const std::byte* from = image.data();
  for (const Part& extent : buffer.extents) {
    std::memcpy(staged(extent), from, extent.bytes);
    from += extent.bytes;
  }
}

/// The whole case, in one copy if it has no sparse buffers.
void GpuBackend::copy_in() {
  for (const Piece& piece : pieces_)
    if (piece.bytes != 0) runtime_->copy_in(piece.device, staging_ + piece.staged, piece.bytes);
}

void GpuBackend::write(std::size_t index, std::span<const std::byte> image) {
  const Buffer& buffer = buffers_.at(index);
  check_image(buffer.name, image.size(), buffer.image_bytes);
  if (report_.status != RunStatus::kOk) return;
  try {
    wait();  // the staging memory may still be on its way in
    if (!unusable_.empty()) return;
    stage(buffer, image);
    for (const Part& extent : buffer.extents)
      runtime_->copy_in(buffer.base + extent.offset, staged(extent), extent.bytes);
  } catch (const GpuError& error) {
    fail(error);
  }
}

void GpuBackend::launch(std::string_view kernel, const Grid& grid,
                        std::span<const KernelArgument> arguments) {
  const simt::host::KernelEntry& entry = find_kernel(kernel, wave(), false);
  check_launch(entry, grid, arguments);
  if (report_.status != RunStatus::kOk) return;
  std::vector<void*> pointers;
  for (const KernelArgument& argument : arguments)
    pointers.push_back(const_cast<void*>(argument.data));  // the runtime's type; it only reads
  kernel_ = kernel;
  try {
    runtime_->launch(entry, grid, pointers.data());
  } catch (const GpuError& error) {
    fail(error);
  }
}

/// Waits for the stream; after the time limit the device is given up. Only time in which this
/// process looks at the device counts: on a busy machine, or while the runtime is at work in a
/// launch or a question, a kernel may have ended long ago.
void GpuBackend::wait() {
  const auto limit = std::chrono::duration<double>(time_limit());
  constexpr auto kSpin = std::chrono::microseconds(500);
  constexpr Clock::duration kMostBetweenLooks = std::chrono::milliseconds(1);
  Clock::duration waited{};
  for (Clock::time_point before = Clock::now(); !runtime_->idle();) {
    const Clock::time_point now = Clock::now();
    waited += std::min(now - before, kMostBetweenLooks);
    before = now;
    if (waited > limit) {
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

/// A fault: the verdict, and a new beginning if the device allows one.
void GpuBackend::fail(const GpuError& error) {
  if (report_.status != RunStatus::kOk) return;
  report_ = {RunStatus::kCrashed, kernel_.empty()
                                      ? error.message
                                      : fmt::format("kernel '{}': {}", kernel_, error.message)};
  arena_ = staging_ = nullptr;
  arena_bytes_ = staging_bytes_ = 0;
  has_reserved_ = false;
  if (!runtime_->recover())
    unusable_ =
        fmt::format("{} backend: the device did not recover from: {}", name(), report_.message);
}

RunReport GpuBackend::finish() {
  if (report_.status == RunStatus::kOk) {
    try {
      for (const Piece& piece : pieces_)
        if (piece.bytes != 0)
          runtime_->copy_out(staging_ + piece.staged, piece.device, piece.bytes);
      wait();
    } catch (const GpuError& error) {
      fail(error);
    }
  }
  kernel_.clear();
  return std::exchange(report_, {});
}

std::optional<std::string> GpuBackend::damaged_guard() {
  if (staging_ == nullptr || !unusable_.empty()) return std::nullopt;
  for (const Buffer& buffer : buffers_)
    for (const Part& canary : buffer.canaries) {
      const std::byte* const begin = staged(canary);
      const std::byte* const end = begin + canary.bytes;
      const std::byte* const at = buffer.poison.first_difference(begin, end);
      if (at != end)
        return fmt::format("buffer '{}': written {}", buffer.name,
                           place_in_buffer(canary.offset + (at - begin), buffer.span));
    }
  return std::nullopt;
}

void GpuBackend::read(std::size_t index, std::span<std::byte> image) {
  const Buffer& buffer = buffers_.at(index);
  check_image(buffer.name, image.size(), buffer.image_bytes);
  if (staging_ == nullptr || !unusable_.empty()) return;  // contents are meaningless
  std::byte* to = image.data();
  for (const Part& extent : buffer.extents) {
    std::memcpy(to, staged(extent), extent.bytes);
    to += extent.bytes;
  }
}

}  // namespace

std::unique_ptr<Backend> make_gpu_backend(std::unique_ptr<GpuRuntime> runtime) {
  return std::make_unique<GpuBackend>(std::move(runtime));
}

}  // namespace monoref::device
