// Whether a tensor's storage holds what a stage is about to read (bug cases T18, T24, S06).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "reference/core/tensor.hpp"

namespace monoref {

/// True if `count` elements from `offset` on all lie in one of the layout's extents.
inline bool holds_run(const Layout& layout, std::int64_t offset, std::int64_t count) {
  return std::any_of(layout.extents.begin(), layout.extents.end(), [&](const Extent& extent) {
    return extent.offset <= offset && offset + count <= extent.offset + extent.count;
  });
}

/// What elements a layout stores, for messages: "0 to 4095", and of several runs the first three
/// and how many there are.
inline std::string stored_text(const Layout& layout) {
  constexpr std::size_t kShown = 3;
  if (layout.extents.empty()) return "no elements";
  std::string text = "elements";
  for (std::size_t i = 0; i < std::min(kShown, layout.extents.size()); ++i) {
    const Extent& run = layout.extents[i];
    text += fmt::format("{} {} to {}", i == 0 ? "" : ",", run.offset, run.offset + run.count - 1);
  }
  if (layout.extents.size() > kShown)
    text += fmt::format(", ... ({} runs up to {})", layout.extents.size(), layout.span() - 1);
  return text;
}

}  // namespace monoref
