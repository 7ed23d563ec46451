#include "fuzz/laws/law.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>

namespace monoref::laws {
namespace {

/// Axes with more than one part, the one of the widest strides first.
std::vector<std::size_t> axes_by_stride(const Layout& layout) {
  std::vector<std::size_t> axes;
  for (std::size_t axis = 0; axis < layout.dims.size(); ++axis)
    if (layout.dims[axis] > 1) axes.push_back(axis);
  std::stable_sort(axes.begin(), axes.end(), [&](std::size_t a, std::size_t b) {
    return layout.strides[a] > layout.strides[b];
  });
  return axes;
}

/// Takes an offset apart; false for padding.
bool find_index(const Layout& layout, const std::vector<std::size_t>& axes, std::int64_t offset,
                std::vector<std::int64_t>& index) {
  for (const std::size_t axis : axes) {
    index[axis] = offset / layout.strides[axis];
    if (index[axis] >= layout.dims[axis]) return false;
    offset %= layout.strides[axis];
  }
  return offset == 0;
}

std::optional<std::string> difference_of(const NamedTensor& before, const Tensor& after,
                                         const OutputRegion& compared) {
  if (before.tensor.dims() != after.dims()) return before.name + " has other dims";
  if (!compared && before.tensor.layout() == after.layout() &&
      before.tensor.image() == after.image())
    return std::nullopt;
  std::optional<std::string> found;
  each_element(before.tensor.layout(), [&](Index index, std::int64_t offset) {
    if (found || (compared && !compared(before.name, index))) return;
    std::int64_t other = 0;
    for (std::size_t axis = 0; axis < index.size(); ++axis)
      other += index[axis] * after.layout().strides[axis];
    if (bits_at(before.tensor, offset) != bits_at(after, other))
      found = place_of(before.name, index);
  });
  return found;
}

}  // namespace

Property property(
    std::string name, std::string statement,
    std::function<std::optional<std::string>(const Case&, const Outputs&, const Evaluate&)> check) {
  static std::deque<std::string> texts;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const std::string_view kept_name = texts.emplace_back(std::move(name));
  const std::string_view kept_statement = texts.emplace_back(std::move(statement));
  return {kept_name, kept_statement, std::move(check)};
}

void each_element(const Layout& layout, const std::function<void(Index, std::int64_t)>& visit) {
  const std::vector<std::size_t> axes = axes_by_stride(layout);
  const bool has_rows = !axes.empty() && layout.strides[axes.back()] == 1;
  std::vector<std::int64_t> index(layout.dims.size(), 0);
  for (const Extent& extent : layout.extents) {
    const std::int64_t end = extent.offset + extent.count;
    for (std::int64_t offset = extent.offset; offset < end; ++offset) {
      if (!find_index(layout, axes, offset, index)) continue;
      visit(index, offset);
      if (!has_rows) continue;
      std::int64_t& column = index[axes.back()];
      for (++column; column < layout.dims[axes.back()] && offset + 1 < end; ++column)
        visit(index, ++offset);
    }
  }
}

std::uint64_t bits_at(const Tensor& tensor, std::int64_t offset) {
  const std::size_t size = tensor.element_size();
  std::uint64_t bits = 0;
  std::memcpy(&bits, tensor.base() + offset * static_cast<std::int64_t>(size), size);
  return bits;
}

void put_bits(Tensor& tensor, std::int64_t offset, std::uint64_t bits) {
  const std::size_t size = tensor.element_size();
  std::memcpy(tensor.base() + offset * static_cast<std::int64_t>(size), &bits, size);
}

std::string place_of(std::string_view tensor, Index index) {
  return fmt::format("{}[{}]", tensor, fmt::join(index, ", "));
}

std::optional<std::string> first_difference(const Outputs& before, const Outputs& after,
                                            const std::vector<std::string_view>& only,
                                            const OutputRegion& compared) {
  for (const NamedTensor& named : before)
    if (is_listed(only, named.name))
      if (auto place = difference_of(named, output(after, named.name), compared)) return place;
  return std::nullopt;
}

bool is_listed(const std::vector<std::string_view>& only, std::string_view name) {
  return only.empty() || std::find(only.begin(), only.end(), name) != only.end();
}

}  // namespace monoref::laws
