// Whether a tensor's storage holds what a stage is about to read (bug cases T18, T24, S06).
#pragma once

#include <algorithm>
#include <cstdint>

#include "reference/core/tensor.hpp"

namespace monoref {

/// True if `count` elements from `offset` on all lie in one of the layout's extents.
inline bool holds_run(const Layout& layout, std::int64_t offset, std::int64_t count) {
  return std::any_of(layout.extents.begin(), layout.extents.end(), [&](const Extent& extent) {
    return extent.offset <= offset && offset + count <= extent.offset + extent.count;
  });
}

}  // namespace monoref
