#include "fuzz/compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace monoref {
namespace {

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

std::uint64_t element_bits(const Tensor& tensor, std::int64_t offset) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, tensor.base() + offset * static_cast<std::int64_t>(tensor.element_size()),
              tensor.element_size());
  return bits;
}

bool is_nan(DType type, std::uint64_t bits) {
  switch (type) {
    case DType::kFloat32:
      return (bits & 0x7FFFFFFF) > 0x7F800000;
    case DType::kFloat64:
      return (bits & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000;
    case DType::kBFloat16:
      return (bits & 0x7FFF) > 0x7F80;
    case DType::kFloat8E4M3FN:
      return (bits & 0x7F) == 0x7F;
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2FNUZ:
      return bits == 0x80;
    case DType::kFloat8E5M2:
      return (bits & 0x7F) > 0x7C;
    case DType::kFloat8E8M0:
      return bits == 0xFF;
    default:
      return false;
  }
}

/// Coordinates of a storage offset, or nothing if it lies in padding.
std::optional<std::vector<std::int64_t>> coordinates(const Layout& layout, std::int64_t offset) {
  std::vector<std::size_t> order(layout.dims.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return layout.strides[a] > layout.strides[b];
  });
  std::vector<std::int64_t> at(layout.dims.size(), 0);
  for (const std::size_t axis : order) {
    if (layout.strides[axis] == 0 || layout.dims[axis] == 1) continue;
    at[axis] = offset / layout.strides[axis];
    if (at[axis] >= layout.dims[axis]) return std::nullopt;
    offset -= at[axis] * layout.strides[axis];
  }
  if (offset != 0) return std::nullopt;
  return at;
}

Difference describe(const OutputSpec& spec, const Tensor& expected, std::int64_t expected_offset,
                    const Tensor& got, std::int64_t got_offset) {
  Difference difference;
  difference.output = spec.name;
  if (const auto at = coordinates(got.layout(), got_offset)) {
    for (std::size_t axis = 0; axis < at->size(); ++axis)
      difference.index.emplace_back(
          axis < spec.axes.size() ? std::string(spec.axes[axis]) : fmt::format("axis{}", axis),
          (*at)[axis]);
  } else {
    difference.index.emplace_back("storage_offset", got_offset);
  }
  difference.expected = element_text(expected, expected_offset);
  difference.got = element_text(got, got_offset);
  difference.made_by = spec.made_by;
  return difference;
}

/// Calls fn(offset in a, offset in b, row-major position) for each element of tensors of equal
/// dims.
template <class Fn>
void for_each_pair(const Layout& a, const Layout& b, Fn&& fn) {
  const std::int64_t count = a.elements();
  std::vector<std::int64_t> at(a.dims.size(), 0);
  std::int64_t offset_a = 0;
  std::int64_t offset_b = 0;
  for (std::int64_t position = 0; position < count; ++position) {
    fn(offset_a, offset_b, position);
    for (std::size_t axis = at.size(); axis-- > 0;) {
      offset_a += a.strides[axis];
      offset_b += b.strides[axis];
      if (++at[axis] < a.dims[axis]) break;
      offset_a -= a.strides[axis] * a.dims[axis];
      offset_b -= b.strides[axis] * a.dims[axis];
      at[axis] = 0;
    }
  }
}

bool same_image(const Tensor& a, const Tensor& b) {
  for (const Extent& extent : a.layout().extents) {
    const auto left = a.bytes(extent);
    if (std::memcmp(left.data(), b.bytes(extent).data(), left.size()) != 0) return false;
  }
  return true;
}

/// One output under comparison.
class Comparison {
 public:
  Comparison(const OutputSpec& spec, const Tensor& expected, const Tensor* specified,
             const Tensor& got, bool any_nan)
      : spec_(spec), expected_(expected), specified_(specified), got_(got), any_nan_(any_nan) {
    tally_.name = spec.name;
  }

  void run(RunResult& result) {
    if (expected_.type() != got_.type() || expected_.dims() != got_.dims()) {
      mismatch(result);
    } else if (expected_.layout() == got_.layout() && specified_ == nullptr) {
      compare_storage(result);
    } else if (expected_.layout().extents.size() > 1 || got_.layout().extents.size() > 1) {
      mismatch(result);  // where a tensor has holes, only the same storage can be compared
    } else {
      for_each_pair(expected_.layout(), got_.layout(),
                    [&](std::int64_t a, std::int64_t b, std::int64_t position) {
                      if (is_specified(position)) compare_element(a, b, result);
                    });
    }
    if (tally_.wrong > 0) result.verdict = std::max(result.verdict, Verdict::kWrong);
    result.outputs.push_back(tally_);
  }

 private:
  void mismatch(RunResult& result) {
    tally_.elements = tally_.wrong =
        static_cast<std::uint64_t>(std::max(std::int64_t{1}, expected_.layout().elements()));
    if (!result.first_difference)
      result.first_difference =
          Difference{spec_.name, {}, shape_text(expected_), shape_text(got_), "", spec_.made_by};
  }

  static std::string shape_text(const Tensor& tensor) {
    return fmt::format("{} [{}]", dtype_name(tensor.type()), fmt::join(tensor.dims(), ", "));
  }

  void compare_storage(RunResult& result) {
    if (same_image(expected_, got_)) {
      tally_.elements = tally_.exact = static_cast<std::uint64_t>(got_.layout().stored());
      return;
    }
    for (const Extent& extent : got_.layout().extents)
      for (std::int64_t i = extent.offset; i < extent.offset + extent.count; ++i)
        compare_element(i, i, result);
  }

  bool is_specified(std::int64_t position) const {
    return specified_ == nullptr || specified_->base()[position] != std::byte{0};
  }

  void compare_element(std::int64_t a, std::int64_t b, RunResult& result) {
    const std::uint64_t left = element_bits(expected_, a);
    const std::uint64_t right = element_bits(got_, b);
    ++tally_.elements;
    if (left == right ||
        (any_nan_ && is_nan(expected_.type(), left) && is_nan(expected_.type(), right))) {
      ++tally_.exact;
      return;
    }
    ++tally_.wrong;
    if (!result.first_difference) result.first_difference = describe(spec_, expected_, a, got_, b);
  }

  const OutputSpec& spec_;
  const Tensor& expected_;
  const Tensor* specified_;
  const Tensor& got_;
  bool any_nan_;
  OutputTally tally_;
};

}  // namespace

Outputs make_outputs(const Case& item, std::span<const OutputSpec> specs, std::byte poison) {
  Outputs outputs;
  for (const OutputSpec& spec : specs) {
    Tensor tensor;
    if (!spec.starts_as.empty()) {
      tensor = item.input(spec.starts_as);
    } else {
      tensor = Tensor(spec.type, spec.layout);
      tensor.fill_bytes(spec.layout.is_dense() ? poison : kOutputPoison);
      if (!spec.layout.is_dense() && poison != kOutputPoison)
        for_each_pair(
            spec.layout, spec.layout, [&](std::int64_t offset, std::int64_t, std::int64_t) {
              std::memset(tensor.base() + offset * static_cast<std::int64_t>(tensor.element_size()),
                          std::to_integer<int>(poison), tensor.element_size());
            });
    }
    outputs.push_back({spec.name, std::move(tensor)});
  }
  return outputs;
}

void compare_outputs(std::span<const OutputSpec> specs, std::span<const Tensor* const> expected,
                     std::span<const Tensor* const> specified, std::span<const Tensor* const> got,
                     bool any_nan, RunResult& result) {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (expected[i] == nullptr || got[i] == nullptr) continue;
    Comparison(specs[i], *expected[i], specified[i], *got[i], any_nan).run(result);
  }
}

void copy_elements(const Tensor& from, Tensor& to) {
  const auto size = static_cast<std::int64_t>(from.element_size());
  for_each_pair(from.layout(), to.layout(), [&](std::int64_t a, std::int64_t b, std::int64_t) {
    std::memcpy(to.base() + b * size, from.base() + a * size, static_cast<std::size_t>(size));
  });
}

std::string element_text(const Tensor& tensor, std::int64_t storage_offset) {
  const std::byte* at =
      tensor.base() + storage_offset * static_cast<std::int64_t>(tensor.element_size());
  switch (tensor.type()) {
    case DType::kInt32:
      return fmt::format("{}", load<std::int32_t>(at));
    case DType::kInt64:
      return fmt::format("{}", load<std::int64_t>(at));
    case DType::kFloat32:
      return fmt::format("{} (0x{:08x})", load<float>(at), load<std::uint32_t>(at));
    case DType::kFloat64:
      return fmt::format("{} (0x{:016x})", load<double>(at), load<std::uint64_t>(at));
    case DType::kBFloat16: {
      const std::uint32_t bits = load<std::uint16_t>(at);
      const std::uint32_t wide = bits << 16;
      float value;
      std::memcpy(&value, &wide, sizeof(value));
      return fmt::format("{} (0x{:04x})", value, bits);
    }
    default:
      return fmt::format("0x{:02x}", load<std::uint8_t>(at));
  }
}

}  // namespace monoref
