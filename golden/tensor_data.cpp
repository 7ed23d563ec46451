#include "golden/tensor_data.hpp"

#include <algorithm>

#include "reference/core/error.hpp"
#include "reference/core/excerpt.hpp"

namespace monoref {
namespace {

/// Elements that a layout may address, and the largest dim or stride: far below overflow of any
/// sum of a few products, far above every tensor of the target model.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;

}  // namespace

AttributeReader::AttributeReader(const std::vector<TreeAttribute>& attributes, FilePlace place)
    : attributes_(attributes), asked_(attributes.size(), false), place_(std::move(place)) {}

template <class T>
const T& AttributeReader::get(std::string_view name, std::string_view kind) {
  for (std::size_t i = 0; i < attributes_.size(); ++i) {
    if (attributes_[i].name != name) continue;
    asked_[i] = true;
    const T* value = std::get_if<T>(&attributes_[i].value);
    if (value == nullptr) content_error(place_, "attribute '{}' must be {}", name, kind);
    return *value;
  }
  content_error(place_, "has no attribute '{}'", name);
}

const std::string& AttributeReader::text(std::string_view name) {
  return get<std::string>(name, "a text");
}

std::int64_t AttributeReader::integer(std::string_view name) {
  return get<std::int64_t>(name, "an integer of 64 bits with sign");
}

std::uint64_t AttributeReader::natural(std::string_view name) {
  return get<std::uint64_t>(name, "an integer of 64 bits without sign");
}

const std::vector<std::int64_t>& AttributeReader::list(std::string_view name) {
  return get<std::vector<std::int64_t>>(name, "a list of integers of 64 bits with sign");
}

void AttributeReader::finish() const {
  for (std::size_t i = 0; i < attributes_.size(); ++i)
    if (!asked_[i])
      content_error(place_, "has an attribute '{}', which this format does not know",
                    attributes_[i].name);
}

StoredType stored_type(DType type) {
  switch (type) {
    case DType::kInt32:
      return StoredType::kInt32;
    case DType::kInt64:
      return StoredType::kInt64;
    case DType::kFloat32:
      return StoredType::kFloat32;
    case DType::kFloat64:
      return StoredType::kFloat64;
    case DType::kBFloat16:
      return StoredType::kUInt16;
    default:
      return StoredType::kUInt8;
  }
}

DType dtype_from_attribute(const std::string& name, StoredType stored, const FilePlace& place) {
  const auto type = dtype_from_name(name);
  if (!type) content_error(place, "attribute 'dtype' is '{}', must be a known type", excerpt(name));
  if (stored_type(*type) != stored)
    content_error(place, "attribute 'dtype' is '{}', must be one that the stored elements have",
                  excerpt(name));
  return *type;
}

void check_layout(const Layout& layout, DType type, const FilePlace& place) {
  if (layout.dims.size() > file_limits::kRank)
    content_error(place, "has {} dims, the limit is {}", layout.dims.size(), file_limits::kRank);
  if (layout.strides.size() != layout.dims.size())
    content_error(place, "has {} dims, must have as many as strides, {}", layout.dims.size(),
                  layout.strides.size());
  std::int64_t product = 1;
  for (std::size_t axis = 0; axis < layout.dims.size(); ++axis) {
    const std::int64_t dim = layout.dims[axis];
    const std::int64_t stride = layout.strides[axis];
    if (dim < 0 || stride < 0 || stride > kMaxElements)
      content_error(place, "axis {} has dim {} and stride {}, which must be 0 to {}", axis, dim,
                    stride, kMaxElements);
    if (dim != 0 && product > kMaxElements / dim)
      content_error(place, "its dims address more than {} elements, the limit", kMaxElements);
    product *= std::max<std::int64_t>(dim, 1);
  }
  try {
    layout.validate("layout");
  } catch (const Refusal& refusal) {
    content_error(place, "{}", refusal.what());
  }
  // One run of storage is allocated whole, from element 0 on; several are reserved, not allocated.
  const auto size = static_cast<std::int64_t>(dtype_size(type));
  const auto limit = static_cast<std::int64_t>(file_limits::kDatasetBytes) / size;
  if (layout.extents.size() == 1 && layout.span() > limit)
    content_error(place, "its storage ends at element {}, the limit is {}", layout.span(), limit);
  if (layout.span() > kMaxElements / size)
    content_error(place, "its storage ends at element {}, the limit is {}", layout.span(),
                  kMaxElements / size);
}

Tensor dense_tensor(DType type, const TreeDataset& dataset, const FilePlace& place) {
  Layout probe{dataset.dims, std::vector<std::int64_t>(dataset.dims.size(), 0), {}};
  // Dense strides are products of dims: bound the dims before they are multiplied.
  probe.extents.push_back({0, 1});
  check_layout(probe, type, place);
  return laid_out_tensor(type, Layout::dense(dataset.dims), dataset, place);
}

Tensor laid_out_tensor(DType type, const Layout& layout, const TreeDataset& dataset,
                       const FilePlace& place) {
  check_layout(layout, type, place);
  const std::size_t stored = dataset.bytes.size() / dtype_size(type);
  if (dataset.bytes.size() % dtype_size(type) != 0 ||
      static_cast<std::int64_t>(stored) != layout.stored())
    content_error(place, "holds {} bytes, but its layout has {} elements of {} bytes",
                  dataset.bytes.size(), layout.stored(), dtype_size(type));
  try {
    Tensor tensor(type, layout);
    tensor.set_image(dataset.bytes);
    return tensor;
  } catch (const Refusal& refusal) {
    content_error(place, "{}", refusal.what());
  }
}

}  // namespace monoref
