#include "device/backends/guarded_layout.hpp"

#include "device/backends/buffer_request.hpp"

namespace monoref::device {
namespace {

constexpr std::uint64_t kCanary = 256;  ///< at least so many bytes before a buffer

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// The pages of the extents, and of the canary before the first.
std::vector<RegionRange> pages_of(const BufferRequest& request, std::uint64_t base) {
  std::vector<RegionRange> pages;
  for (const ByteExtent& extent : request.extents) {
    const std::uint64_t begin = base + extent.offset - (pages.empty() ? kCanary : 0);
    const std::uint64_t first = begin / kPageBytes * kPageBytes;
    const std::uint64_t end = round_up(base + extent.offset + extent.size, kPageBytes);
    if (!pages.empty() && first <= pages.back().end)
      pages.back().end = end;
    else
      pages.push_back({first, end});
  }
  return pages;
}

}  // namespace

GuardedLayout guarded_layout(const BufferRequest& request,
                             std::uint64_t (*region_size)(std::uint64_t bytes, bool sparse)) {
  GuardedLayout layout;
  layout.sparse = is_sparse(request);
  const std::uint64_t rounded = round_up(request.base_offset + span_of(request), request.alignment);
  layout.region = region_size(rounded + kCanary, layout.sparse);
  layout.base = layout.region - rounded + request.base_offset;
  if (layout.sparse)
    layout.accessible = pages_of(request, layout.base);
  else
    layout.accessible = {{0, layout.region}};
  auto extent = request.extents.begin();
  for (const RegionRange& range : layout.accessible) {
    std::uint64_t at = range.begin;
    for (; extent != request.extents.end() && layout.base + extent->offset < range.end; ++extent) {
      if (layout.base + extent->offset > at)
        layout.canaries.push_back({at, layout.base + extent->offset});
      at = layout.base + extent->offset + extent->size;
    }
    if (range.end > at) layout.canaries.push_back({at, range.end});
  }
  return layout;
}

}  // namespace monoref::device
