// How a rank's indexer cache keeps keys, as the kernels of its metadata take it.
#pragma once

#include <cstdint>

namespace monoref::device::launch {

/// See CacheSharing in device/kernels/cache_length.hpp.
struct CacheSharing {
  std::int64_t compress_ratio = 1, world = 1, rank = 0, interleave = 1;
};

}  // namespace monoref::device::launch
