#include "fuzz/stages/content.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace monoref {
namespace {

constexpr std::byte kGapPoison{0xC3};

std::int32_t boundary_length(std::int64_t capacity, CounterRandom& random) {
  static constexpr std::int64_t kUnits[] = {16, 64, 128};
  const std::int64_t unit = kUnits[random.below(3)];
  const std::int64_t multiple =
      unit * random.between(0, std::max<std::int64_t>(capacity / unit, 1));
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(multiple + random.between(-1, 1), 0, capacity));
}

/// Copies one element, whatever its size.
void put(Tensor& tensor, std::int64_t offset, const void* value) {
  std::memcpy(tensor.base() + offset * static_cast<std::int64_t>(tensor.element_size()), value,
              tensor.element_size());
}

/// Elements of one row of axis 0, in row-major order, as bytes.
std::vector<std::byte> row_bytes(const Tensor& tensor, std::int64_t row) {
  const Layout& layout = tensor.layout();
  const std::size_t size = tensor.element_size();
  std::int64_t count = 1;
  for (std::size_t axis = 1; axis < layout.dims.size(); ++axis) count *= layout.dims[axis];
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size);
  for (std::int64_t position = 0; position < count; ++position) {
    std::int64_t rest = position;
    std::int64_t offset = row * layout.strides[0];
    for (std::size_t axis = layout.dims.size(); axis-- > 1;) {
      offset += rest % layout.dims[axis] * layout.strides[axis];
      rest /= layout.dims[axis];
    }
    std::memcpy(bytes.data() + static_cast<std::size_t>(position) * size,
                tensor.base() + offset * static_cast<std::int64_t>(size), size);
  }
  return bytes;
}

}  // namespace

Dimension table_ids_dimension() {
  return Dimension::choice("table_ids", {"shuffled", "decreasing", "around_2_16", "large"},
                           "ids in the block table");
}

std::vector<std::int32_t> make_block_ids(TableIds kind, std::int64_t count, std::int64_t limit,
                                         CounterRandom& random) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 1);
  switch (kind) {
    case TableIds::kShuffled:
      for (std::size_t i = ids.size(); i > 1; --i)
        std::swap(ids[i - 1],
                  ids[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
      break;
    case TableIds::kDecreasing:
      std::reverse(ids.begin(), ids.end());
      break;
    case TableIds::kAround2To16:
      for (std::size_t i = 0; i < ids.size(); ++i)
        ids[i] = static_cast<std::int32_t>(std::min<std::int64_t>(
            limit - 1, (i % 2 == 0 ? 0 : 65536) + static_cast<std::int64_t>(i / 2)));
      break;
    case TableIds::kLarge:
      for (std::size_t i = 0; i < ids.size(); ++i)
        ids[i] =
            static_cast<std::int32_t>(limit - 1 - random.below(4) - static_cast<std::int64_t>(i));
      break;
  }
  return ids;
}

Dimension defect_dimension(std::size_t sound, std::vector<std::string_view> defects) {
  defects.insert(defects.begin(), "none");
  Dimension dimension{
      "defect", 0, 0, 0, {}, std::move(defects), "a fault of the input that must be refused"};
  dimension.edges.assign(sound, 0);
  for (std::size_t i = 1; i < dimension.words.size(); ++i)
    dimension.edges.push_back(static_cast<std::int64_t>(i));
  return dimension;
}

Dimension lengths_dimension() {
  return Dimension::choice("lengths",
                           {"ordinary", "boundary", "first_empty", "middle_empty", "last_empty",
                            "all_empty", "short", "full"},
                           "sequence lengths of the batch");
}

std::vector<std::int32_t> make_lengths(Lengths kind, std::int64_t requests, std::int64_t capacity,
                                       std::int64_t q_len, CounterRandom& random) {
  std::vector<std::int32_t> lengths;
  for (std::int64_t i = 0; i < requests; ++i) {
    switch (kind) {
      case Lengths::kBoundary:
        lengths.push_back(boundary_length(capacity, random));
        break;
      case Lengths::kAllEmpty:
        lengths.push_back(0);
        break;
      case Lengths::kShort:
        lengths.push_back(static_cast<std::int32_t>(random.below(std::min(q_len, capacity) + 1)));
        break;
      case Lengths::kFull:
        lengths.push_back(static_cast<std::int32_t>(capacity));
        break;
      default:
        lengths.push_back(static_cast<std::int32_t>(
            random.between(std::min<std::int64_t>(1, capacity), capacity)));
    }
  }
  if (lengths.empty()) return lengths;
  if (kind == Lengths::kFirstEmpty) lengths.front() = 0;
  if (kind == Lengths::kMiddleEmpty) lengths[lengths.size() / 2] = 0;
  if (kind == Lengths::kLastEmpty) lengths.back() = 0;
  return lengths;
}

Tensor padded_rows(DType type, std::int64_t rows, std::int64_t width, std::int64_t gap,
                   const std::vector<std::int32_t>& values) {
  Tensor tensor(type, Layout::strided({rows, width}, {width + gap, 1}));
  tensor.fill_bytes(kGapPoison);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < width; ++column) {
      const std::int32_t value = values[static_cast<std::size_t>(row * width + column)];
      put(tensor, row * (width + gap) + column, &value);
    }
  return tensor;
}

Tensor strided_vector(DType type, const std::vector<std::int64_t>& values, std::int64_t step) {
  Tensor tensor(type, Layout::strided({static_cast<std::int64_t>(values.size())}, {step}));
  tensor.fill_bytes(kGapPoison);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto narrow = static_cast<std::int32_t>(values[i]);
    put(tensor, static_cast<std::int64_t>(i) * step,
        type == DType::kInt64 ? static_cast<const void*>(&values[i]) : &narrow);
  }
  return tensor;
}

Tensor take_rows(const Tensor& tensor, const std::vector<std::int64_t>& rows) {
  std::vector<std::int64_t> dims = tensor.dims();
  dims[0] = static_cast<std::int64_t>(rows.size());
  Tensor taken(tensor.type(), Layout::dense(dims));
  std::vector<std::byte> image;
  for (const std::int64_t row : rows) {
    const std::vector<std::byte> bytes = row_bytes(tensor, row);
    image.insert(image.end(), bytes.begin(), bytes.end());
  }
  taken.set_image(image);
  return taken;
}

bool same_row(const Tensor& a, std::int64_t row_a, const Tensor& b, std::int64_t row_b) {
  return row_bytes(a, row_a) == row_bytes(b, row_b);
}

}  // namespace monoref
