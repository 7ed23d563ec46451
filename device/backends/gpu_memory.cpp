#include "device/backends/gpu_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "device/backends/buffer_request.hpp"

namespace monoref::device {
namespace {

constexpr std::size_t kCanary = 256;  ///< bytes before and after every buffer
constexpr std::size_t kArenaStep = std::size_t{1} << 20;
/// Where a sparse buffer begins in its range: room for the canary, and a multiple of any alignment.
constexpr std::uint64_t kSparseStart = 4096;

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

bool names(const DeviceRun& run, int device) {
  return (run.devices >> device & 1U) != 0;
}

/// The runs of a dense buffer's bytes that a device has, neighbours joined.
std::vector<ByteExtent> bytes_on(const BufferRequest& request, int device) {
  if (request.runs.empty()) return request.extents;
  std::vector<ByteExtent> own;
  for (const DeviceRun& run : request.runs) {
    if (!names(run, device) || run.size == 0) continue;
    if (!own.empty() && own.back().offset + own.back().size == run.offset)
      own.back().size += run.size;
    else
      own.push_back({run.offset, run.size});
  }
  return own;
}

}  // namespace

bool GpuMemory::has_any_of(const BufferRequest& request) const {
  return request.runs.empty() ||
         std::any_of(request.runs.begin(), request.runs.end(),
                     [&](const DeviceRun& run) { return names(run, device_); });
}

/// Places a dense buffer at `at` or later in the arena; returns the end of what it takes.
std::size_t GpuMemory::lay_out(const BufferRequest& request, Buffer& buffer, std::size_t at) const {
  const std::size_t base = round_up(at + kCanary, request.alignment) + request.base_offset;
  const std::size_t end = round_up(base + buffer.span, request.alignment) + kCanary;
  std::size_t reached = at;
  const auto guard_until = [&](std::size_t next) {
    if (next > reached)
      buffer.canaries.push_back(
          {reached, static_cast<std::int64_t>(reached) - static_cast<std::int64_t>(base),
           next - reached, 0});
  };
  for (const ByteExtent& own : bytes_on(request, device_)) {
    guard_until(base + own.offset);
    buffer.extents.push_back(
        {base + own.offset, static_cast<std::int64_t>(own.offset), own.size, own.offset});
    reached = base + own.offset + own.size;
  }
  guard_until(end);
  return end;
}

/// Stages the runs of a sparse buffer, each with canaries around it, as pieces of their own.
std::size_t GpuMemory::lay_out_sparse(Buffer& buffer, const BufferRequest& request,
                                      std::size_t at) {
  constexpr auto kMargin = static_cast<std::int64_t>(kCanary);
  const std::uint64_t start = kSparseStart + request.base_offset;
  const std::size_t first_piece = pieces_.size();
  std::vector<ByteExtent> backed;
  std::int64_t reached = -kMargin;  // offset up to which bytes are staged
  std::size_t image = 0;
  for (const ByteExtent& extent : request.extents) {
    const auto begin = static_cast<std::int64_t>(extent.offset);
    const auto size = static_cast<std::int64_t>(extent.size);
    const bool joins = !backed.empty() && begin - kMargin <= reached;
    if (!joins) {
      reached = begin - kMargin;
      pieces_.push_back({nullptr, at, 0});
      backed.push_back({static_cast<std::uint64_t>(reached) + start, 0});
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
      parts.push_back({at, reached, static_cast<std::size_t>(bytes), image});
      at += static_cast<std::size_t>(bytes);
      reached += bytes;
      pieces_.back().bytes += static_cast<std::size_t>(bytes);
    };
    if (begin > reached) add(buffer.canaries, begin - reached);
    add(buffer.extents, size);
    image += extent.size;
    add(buffer.canaries, kMargin);
    backed.back().size = static_cast<std::uint64_t>(reached) + start - backed.back().offset;
  }
  std::byte* const range = runtime_->reserve(buffer.span + start + kCanary, backed);
  has_reserved_ = true;
  buffer.base = range + start;
  for (std::size_t i = 0; i < backed.size(); ++i)
    pieces_[first_piece + i].device = range + backed[i].offset;
  return at;
}

/// Grows the arena and the staging memory to at least so many bytes.
void GpuMemory::reserve_staging(std::size_t arena, std::size_t all) {
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

/// Decides where every buffer lies, in the arena or in a range of its own.
void GpuMemory::give_addresses(std::span<const BufferRequest> requests) {
  buffers_.clear();
  buffers_.reserve(requests.size());
  pieces_.assign(1, {});
  std::size_t at = 0;
  for (const BufferRequest& request : requests) {
    Buffer& buffer = buffers_.emplace_back();
    buffer.name = request.name;
    buffer.poison = Poison(buffers_.size());
    buffer.span = span_of(request);
    if (!is_sparse(request) && has_any_of(request)) at = lay_out(request, buffer, at);
  }
  const std::size_t arena = at;
  for (std::size_t i = 0; i < requests.size(); ++i)
    if (is_sparse(requests[i]) && has_any_of(requests[i]))
      at = lay_out_sparse(buffers_[i], requests[i], at);
  reserve_staging(arena, at);
  pieces_[0] = {arena_, 0, arena};
  for (std::size_t i = 0; i < requests.size(); ++i)
    if (!is_sparse(requests[i]) && !buffers_[i].canaries.empty()) {
      const Part& behind = buffers_[i].canaries.back();
      buffers_[i].base = arena_ + (static_cast<std::int64_t>(behind.staged) - behind.offset);
    }
}

/// Tells the runtime which bytes are whose.
void GpuMemory::note_buffers() {
  std::vector<DevicePart> parts;
  for (const Buffer& buffer : buffers_) {
    for (const Part& extent : buffer.extents)
      parts.push_back({buffer.base + extent.offset, extent.bytes, false, buffer.name});
    for (const Part& canary : buffer.canaries)
      parts.push_back({buffer.base + canary.offset, canary.bytes, true, buffer.name});
  }
  runtime_->note_buffers(parts);
}

void GpuMemory::place(std::span<const BufferRequest> requests) {
  if (has_reserved_) runtime_->release_reserved();
  has_reserved_ = false;
  give_addresses(requests);
  note_buffers();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (const Part& canary : buffers_[i].canaries)
      buffers_[i].poison.fill(staged(canary), staged(canary) + canary.bytes);
    stage(buffers_[i], requests[i].image);
  }
  for (const Piece& piece : pieces_)
    if (piece.bytes != 0) runtime_->copy_in(piece.device, staging_ + piece.staged, piece.bytes);
}

/// Puts what the device has of an image into the staging memory.
void GpuMemory::stage(const Buffer& buffer, std::span<const std::byte> image) {
  for (const Part& extent : buffer.extents)
    std::memcpy(staged(extent), image.data() + extent.image, extent.bytes);
}

void GpuMemory::write(std::size_t index, std::span<const std::byte> image) {
  const Buffer& buffer = buffers_.at(index);
  stage(buffer, image);
  for (const Part& extent : buffer.extents)
    runtime_->copy_in(buffer.base + extent.offset, staged(extent), extent.bytes);
}

void GpuMemory::copy_out() {
  for (const Piece& piece : pieces_)
    if (piece.bytes != 0) runtime_->copy_out(staging_ + piece.staged, piece.device, piece.bytes);
}

std::span<const std::byte> GpuMemory::image(std::size_t index, std::size_t offset) const {
  for (const Part& extent : buffers_.at(index).extents)
    if (offset >= extent.image && offset - extent.image < extent.bytes)
      return {staged(extent) + (offset - extent.image), extent.bytes - (offset - extent.image)};
  throw std::logic_error(fmt::format("buffer '{}': byte {} of its image is not on device {}",
                                     buffers_[index].name, offset, device_));
}

std::optional<std::string> GpuMemory::damaged_guard() const {
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

bool GpuMemory::recover() {
  arena_ = staging_ = nullptr;
  arena_bytes_ = staging_bytes_ = 0;
  has_reserved_ = false;
  pieces_.clear();
  for (Buffer& buffer : buffers_) buffer = Buffer();
  return runtime_->recover();
}

void GpuMemory::release() {
  runtime_->release(arena_);
  runtime_->release_host(staging_);
  runtime_->release_reserved();
}

}  // namespace monoref::device
