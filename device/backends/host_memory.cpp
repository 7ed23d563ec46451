#include "device/backends/host_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace monoref::device {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kCanary = 256;  ///< at least so many bytes before a buffer
/// Addresses without access on either side of a region. They cost nothing, and an index that is off
/// by rows or pages still faults instead of hitting a stranger.
constexpr std::size_t kMargin = std::size_t{16} << 20;
/// Up to this size regions are kept by their exact number of pages; beyond, in steps of an eighth
/// of a power of two, so that the pool has few sizes and a canary before a buffer stays short.
constexpr std::size_t kExactRegion = 64 * kPage;
/// Free regions are given back to the system beyond these limits.
constexpr std::size_t kMaxPooledBytes = std::size_t{1} << 30;
constexpr std::size_t kMaxPooledSparse = 64;
/// The largest span of a sparse buffer: a process has 128 TiB of addresses.
constexpr std::uint64_t kMaxSpan = std::uint64_t{1} << 45;

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::size_t region_size(std::size_t bytes) {
  const std::size_t pages = round_up(bytes, kPage);
  return pages <= kExactRegion ? pages : round_up(pages, std::bit_floor(pages) / 8);
}

std::byte* page_floor(std::byte* address) {
  return address - reinterpret_cast<std::uintptr_t>(address) % kPage;
}

std::byte* page_ceil(std::byte* address) {
  return page_floor(address + kPage - 1);
}

void check_request(const BufferRequest& request) {
  if (!std::has_single_bit(request.alignment) || request.alignment > kPage)
    throw std::invalid_argument(
        fmt::format("buffer '{}': alignment is {}, must be a power of two up to {}", request.name,
                    request.alignment, kPage));
  std::uint64_t end = 0;
  std::uint64_t bytes = 0;
  for (const ByteExtent& extent : request.extents) {
    if (extent.offset < end || extent.size == 0 || extent.size > kMaxSpan ||
        extent.offset > kMaxSpan - extent.size)
      throw std::invalid_argument(fmt::format(
          "buffer '{}': extent of {} bytes at {}, must be non-empty, begin at {} or later and end "
          "at {} or before",
          request.name, extent.size, extent.offset, end, kMaxSpan));
    end = extent.offset + extent.size;
    bytes += extent.size;
  }
  if (request.image.size() != bytes)
    throw std::invalid_argument(fmt::format("buffer '{}': image has {} bytes, its extents have {}",
                                            request.name, request.image.size(), bytes));
}

[[noreturn]] void no_memory(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

}  // namespace

HostMemory::~HostMemory() {
  release_all();
  for (auto* pool : {&dense_pool_, &sparse_pool_})
    for (const auto& [bytes, regions] : *pool)
      for (const Region& region : regions)
        munmap(region.begin - kMargin, region.bytes + 2 * kMargin);
}

HostMemory::Region HostMemory::take(std::map<std::size_t, std::vector<Region>>& pool,
                                    std::size_t bytes, bool accessible) {
  std::vector<Region>& free = pool[bytes];
  if (!free.empty()) {
    const Region region = free.back();
    free.pop_back();
    if (accessible)
      pooled_bytes_ -= bytes;
    else
      --pooled_sparse_;
    return region;
  }
  void* const memory = mmap(nullptr, bytes + 2 * kMargin, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) no_memory("mmap");
  const Region region{static_cast<std::byte*>(memory) + kMargin, bytes};
  if (accessible && mprotect(region.begin, bytes, PROT_READ | PROT_WRITE) != 0)
    no_memory("mprotect");
  return region;
}

void HostMemory::release_all() {
  for (Buffer& buffer : buffers_) {
    const Region& region = buffer.region;
    for (const Run& run : buffer.accessible)  // drops the memory and the access together
      if (mmap(run.begin, static_cast<std::size_t>(run.end - run.begin), PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        no_memory("mmap");
    (buffer.sparse ? sparse_pool_ : dense_pool_)[region.bytes].push_back(region);
    if (buffer.sparse)
      ++pooled_sparse_;
    else
      pooled_bytes_ += region.bytes;
  }
  buffers_.clear();
}

/// Gives free regions back, the largest first.
void HostMemory::trim() {
  const auto shrink = [](auto& pool, auto too_many) {
    for (auto size = pool.rbegin(); size != pool.rend(); ++size)
      for (; !size->second.empty() && too_many(size->first); size->second.pop_back()) {
        const Region& region = size->second.back();
        munmap(region.begin - kMargin, region.bytes + 2 * kMargin);
      }
  };
  shrink(dense_pool_, [this](std::size_t bytes) {
    if (pooled_bytes_ <= kMaxPooledBytes) return false;
    pooled_bytes_ -= bytes;
    return true;
  });
  shrink(sparse_pool_, [this](std::size_t) {
    if (pooled_sparse_ <= kMaxPooledSparse) return false;
    --pooled_sparse_;
    return true;
  });
}

void HostMemory::place_dense(Buffer& buffer, std::size_t rounded) {
  buffer.region = take(dense_pool_, region_size(rounded + kCanary), true);
  buffer.base = buffer.region.begin + buffer.region.bytes - rounded;
}

void HostMemory::place_sparse(Buffer& buffer, std::size_t rounded) {
  buffer.sparse = true;
  buffer.region = take(sparse_pool_, std::bit_ceil(round_up(rounded + kCanary, kPage)), false);
  buffer.base = buffer.region.begin + buffer.region.bytes - rounded;
  for (const ByteExtent& extent : buffer.extents) {
    std::byte* const begin = buffer.base + extent.offset;
    const bool first = &extent == &buffer.extents.front();
    const Run run{page_floor(first ? begin - kCanary : begin), page_ceil(begin + extent.size)};
    if (!buffer.accessible.empty() && run.begin <= buffer.accessible.back().end)
      buffer.accessible.back().end = run.end;
    else
      buffer.accessible.push_back(run);
  }
  for (const Run& run : buffer.accessible)
    if (mprotect(run.begin, static_cast<std::size_t>(run.end - run.begin),
                 PROT_READ | PROT_WRITE) != 0)
      no_memory("mprotect");
}

/// What is accessible and in no extent.
void HostMemory::list_canaries(Buffer& buffer) const {
  std::vector<Run> runs = buffer.accessible;
  if (!buffer.sparse) runs = {{buffer.region.begin, buffer.region.begin + buffer.region.bytes}};
  auto extent = buffer.extents.begin();
  for (const Run& run : runs) {
    std::byte* at = run.begin;
    for (; extent != buffer.extents.end() && buffer.base + extent->offset < run.end; ++extent) {
      buffer.canaries.push_back({at, buffer.base + extent->offset});
      at = buffer.base + extent->offset + extent->size;
    }
    buffer.canaries.push_back({at, run.end});
  }
}

void HostMemory::place(std::span<const BufferRequest> buffers) {
  for (const BufferRequest& request : buffers) check_request(request);
  release_all();
  trim();
  buffers_.reserve(buffers.size());
  for (const BufferRequest& request : buffers) {
    Buffer& buffer = buffers_.emplace_back();
    buffer.name = request.name;
    buffer.extents = request.extents;
    buffer.image_bytes = request.image.size();
    buffer.poison = Poison(buffers_.size());
    if (!buffer.extents.empty())
      buffer.span = buffer.extents.back().offset + buffer.extents.back().size;
    const std::size_t rounded = round_up(buffer.span, request.alignment);
    if (buffer.extents.size() > 1 || (buffer.extents.size() == 1 && buffer.extents[0].offset > 0))
      place_sparse(buffer, rounded);
    else
      place_dense(buffer, rounded);
    list_canaries(buffer);
    for (const Run& run : buffer.canaries) buffer.poison.fill(run.begin, run.end);
    write(buffers_.size() - 1, request.image);
  }
}

void HostMemory::write(std::size_t index, std::span<const std::byte> image) {
  const Buffer& buffer = buffers_.at(index);
  if (image.size() != buffer.image_bytes)
    throw std::invalid_argument(fmt::format("buffer '{}': write of {} bytes, its image has {}",
                                            buffer.name, image.size(), buffer.image_bytes));
  const std::byte* from = image.data();
  for (const ByteExtent& extent : buffer.extents) {
    std::memcpy(buffer.base + extent.offset, from, extent.size);
    from += extent.size;
  }
}

void HostMemory::read(std::size_t index, std::span<std::byte> image) const {
  const Buffer& buffer = buffers_.at(index);
  if (image.size() != buffer.image_bytes)
    throw std::invalid_argument(fmt::format("buffer '{}': read of {} bytes, its image has {}",
                                            buffer.name, image.size(), buffer.image_bytes));
  std::byte* to = image.data();
  for (const ByteExtent& extent : buffer.extents) {
    std::memcpy(to, buffer.base + extent.offset, extent.size);
    to += extent.size;
  }
}

std::string HostMemory::place_of(const Buffer& buffer, std::uintptr_t address) const {
  const auto base = reinterpret_cast<std::uintptr_t>(buffer.base);
  if (address < base) return fmt::format("{} bytes before its start", base - address);
  const std::uint64_t offset = address - base;
  if (offset >= buffer.span)
    return fmt::format("{} bytes past its end ({} bytes)", offset - buffer.span, buffer.span);
  return fmt::format("at byte {}, between its extents", offset);
}

std::optional<std::string> HostMemory::damaged() const {
  for (const Buffer& buffer : buffers_)
    for (const Run& run : buffer.canaries)
      if (const std::byte* const at = buffer.poison.first_difference(run.begin, run.end);
          at != run.end)
        return fmt::format("buffer '{}': written {}", buffer.name,
                           place_of(buffer, reinterpret_cast<std::uintptr_t>(at)));
  return std::nullopt;
}

std::string HostMemory::describe(std::uintptr_t address, bool is_write) const {
  const std::string_view verb = is_write ? "write" : "read";
  const Buffer* nearest = nullptr;
  std::uintptr_t distance = kMaxSpan;
  for (const Buffer& buffer : buffers_) {
    const auto begin = reinterpret_cast<std::uintptr_t>(buffer.region.begin) - kMargin;
    const std::uintptr_t end = begin + buffer.region.bytes + 2 * kMargin;
    if (address >= begin && address < end)
      return fmt::format("buffer '{}': {} {}", buffer.name, verb, place_of(buffer, address));
    const std::uintptr_t gap = address < begin ? begin - address : address - end;
    if (gap < distance) {
      distance = gap;
      nearest = &buffer;
    }
  }
  if (address < kPage || nearest == nullptr)
    return fmt::format("{} at address {:#x}, which no buffer is near", verb, address);
  return fmt::format("{} at an unmapped address; of all buffers '{}' is nearest: {}", verb,
                     nearest->name, place_of(*nearest, address));
}

}  // namespace monoref::device
