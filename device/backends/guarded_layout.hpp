// How a buffer lies between pages without access.
#pragma once

#include <cstdint>
#include <vector>

#include "device/backend.hpp"

namespace monoref::device {

/// Bytes from the begin of a region.
struct RegionRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// A region of whole pages that holds one buffer, with pages without access before and after it:
///
///   no access | canary, 256 bytes or more | the buffer | canary up to the alignment | no access
///
/// Of a sparse buffer (is_sparse) only the pages that its extents touch are accessible.
struct GuardedLayout {
  std::uint64_t region = 0;  ///< bytes
  std::uint64_t base = 0;    ///< of the buffer
  bool sparse = false;
  std::vector<RegionRange> accessible;  ///< whole pages, ascending
  std::vector<RegionRange> canaries;    ///< what is accessible and in no extent
};

constexpr std::uint64_t kPageBytes = 4096;

/// Lays a checked request out. `region_size` says how large a region to use for a number of bytes:
/// at least so many, and whole pages.
GuardedLayout guarded_layout(const BufferRequest& request,
                             std::uint64_t (*region_size)(std::uint64_t bytes, bool sparse));

}  // namespace monoref::device
