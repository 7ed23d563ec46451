#include "device/backends/host_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "device/backends/buffer_request.hpp"

namespace monoref::device {
namespace {

/// Addresses without access on either side of a region. They cost nothing, and an index that is off
/// by rows or pages still faults instead of hitting a stranger.
constexpr std::size_t kMargin = std::size_t{16} << 20;
/// Up to this size regions are kept by their exact number of pages; beyond, in steps of an eighth
/// of a power of two, so that the pool has few sizes and a canary before a buffer stays short.
constexpr std::size_t kExactRegion = 64 * kPageBytes;
/// Free regions are given back to the system beyond these limits.
constexpr std::size_t kMaxPooledBytes = std::size_t{1} << 30;
constexpr std::size_t kMaxPooledSparse = 64;

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::uint64_t region_size(std::uint64_t bytes, bool sparse) {
  const std::uint64_t pages = round_up(bytes, kPageBytes);
  if (sparse) return std::bit_ceil(pages);
  return pages <= kExactRegion ? pages : round_up(pages, std::bit_floor(pages) / 8);
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
  for (const Buffer& buffer : buffers_) {
    if (buffer.layout.sparse) {
      for (const RegionRange& run : buffer.layout.accessible)  // drops memory and access together
        if (mmap(buffer.region.begin + run.begin, run.end - run.begin, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
          no_memory("mmap");
      ++pooled_sparse_;
    } else {
      pooled_bytes_ += buffer.region.bytes;
    }
    (buffer.layout.sparse ? sparse_pool_ : dense_pool_)[buffer.region.bytes].push_back(
        buffer.region);
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
    buffer.span = span_of(request);
    buffer.poison = Poison(buffers_.size());
    buffer.layout = guarded_layout(request, region_size);
    buffer.region = take(buffer.layout.sparse ? sparse_pool_ : dense_pool_, buffer.layout.region,
                         !buffer.layout.sparse);
    buffer.base = buffer.region.begin + buffer.layout.base;
    if (buffer.layout.sparse)
      for (const RegionRange& run : buffer.layout.accessible)
        if (mprotect(buffer.region.begin + run.begin, run.end - run.begin,
                     PROT_READ | PROT_WRITE) != 0)
          no_memory("mprotect");
    for (const RegionRange& run : buffer.layout.canaries)
      buffer.poison.fill(buffer.region.begin + run.begin, buffer.region.begin + run.end);
    write(buffers_.size() - 1, request.image);
  }
}

void HostMemory::write(std::size_t index, std::span<const std::byte> image) {
  const Buffer& buffer = buffers_.at(index);
  check_image(buffer.name, image.size(), buffer.image_bytes);
  const std::byte* from = image.data();
  for (const ByteExtent& extent : buffer.extents) {
    std::memcpy(buffer.base + extent.offset, from, extent.size);
    from += extent.size;
  }
}

void HostMemory::read(std::size_t index, std::span<std::byte> image) const {
  const Buffer& buffer = buffers_.at(index);
  check_image(buffer.name, image.size(), buffer.image_bytes);
  std::byte* to = image.data();
  for (const ByteExtent& extent : buffer.extents) {
    std::memcpy(to, buffer.base + extent.offset, extent.size);
    to += extent.size;
  }
}

std::string HostMemory::place_of(const Buffer& buffer, std::uintptr_t address) const {
  const auto base = reinterpret_cast<std::uintptr_t>(buffer.base);
  return place_in_buffer(static_cast<std::int64_t>(address - base), buffer.span);
}

std::optional<std::string> HostMemory::damaged() const {
  for (const Buffer& buffer : buffers_)
    for (const RegionRange& run : buffer.layout.canaries) {
      const std::byte* const end = buffer.region.begin + run.end;
      const std::byte* const at =
          buffer.poison.first_difference(buffer.region.begin + run.begin, end);
      if (at != end)
        return fmt::format("buffer '{}': written {}", buffer.name,
                           place_of(buffer, reinterpret_cast<std::uintptr_t>(at)));
    }
  return std::nullopt;
}

std::string HostMemory::describe(std::uintptr_t address, bool is_write) const {
  const std::string_view verb = is_write ? "write" : "read";
  const Buffer* nearest = nullptr;
  std::uintptr_t distance = UINTPTR_MAX;
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
  if (address < kPageBytes || nearest == nullptr)
    return fmt::format("{} at address {:#x}, which no buffer is near", verb, address);
  return fmt::format("{} at an unmapped address; of all buffers '{}' is nearest: {}", verb,
                     nearest->name, place_of(*nearest, address));
}

}  // namespace monoref::device
