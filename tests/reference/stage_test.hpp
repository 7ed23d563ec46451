// What the tests of the integer stages share.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "reference/core/error.hpp"
#include "reference/core/tensor.hpp"

namespace monoref::testing {

/// The byte that fills outputs before a call: where it is still found, nothing was written.
inline constexpr std::byte kPoison{0x5A};
inline constexpr std::int64_t kPoison32 = 0x5A5A5A5A;

using Numbers = std::vector<std::int64_t>;

/// The message with which a call is refused; empty if it is not.
template <class Call>
std::string refusal_of(Call call) {
  try {
    call();
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return {};
}

/// Element offsets of a layout in row-major order.
inline Numbers offsets(const Layout& layout) {
  Numbers all{0};
  for (std::size_t axis = 0; axis < layout.dims.size(); ++axis) {
    Numbers next;
    for (const std::int64_t start : all)
      for (std::int64_t i = 0; i < layout.dims[axis]; ++i)
        next.push_back(start + i * layout.strides[axis]);
    all = std::move(next);
  }
  return all;
}

/// One element as a number: integers by value, everything else by its bits.
inline std::int64_t element(const Tensor& tensor, std::int64_t offset) {
  const std::byte* at = tensor.base() + offset * static_cast<std::int64_t>(tensor.element_size());
  std::int64_t value = 0;
  std::memcpy(&value, at, tensor.element_size());
  if (tensor.type() == DType::kInt32) return static_cast<std::int32_t>(value);
  return value;
}

inline void set_element(Tensor& tensor, std::int64_t offset, std::int64_t value) {
  std::memcpy(tensor.base() + offset * static_cast<std::int64_t>(tensor.element_size()), &value,
              tensor.element_size());
}

/// All elements in row-major order.
inline Numbers values(const Tensor& tensor) {
  Numbers all;
  for (const std::int64_t offset : offsets(tensor.layout())) all.push_back(element(tensor, offset));
  return all;
}

inline Tensor poisoned(DType type, Layout layout) {
  Tensor tensor(type, std::move(layout));
  tensor.fill_bytes(kPoison);
  return tensor;
}

/// A tensor with these elements in row-major order; storage between them is poisoned.
inline Tensor filled(DType type, Layout layout, const Numbers& elements) {
  Tensor tensor = poisoned(type, std::move(layout));
  const Numbers at = offsets(tensor.layout());
  if (at.size() != elements.size()) throw std::logic_error("a test gives a wrong element count");
  for (std::size_t i = 0; i < at.size(); ++i) set_element(tensor, at[i], elements[i]);
  return tensor;
}

inline Tensor ints(Numbers dims, const Numbers& elements) {
  return filled(DType::kInt32, Layout::dense(std::move(dims)), elements);
}

inline Tensor longs(const Numbers& elements) {
  return filled(DType::kInt64, Layout::dense({static_cast<std::int64_t>(elements.size())}),
                elements);
}

/// Read-only views, also of tensors that could be written.
template <std::size_t Rank>
View<const std::int32_t, Rank> reading(const Tensor& tensor) {
  return tensor.view<std::int32_t, Rank>();
}

/// `count` copies of a value, and concatenation, for expected rows.
inline Numbers repeated(std::int64_t value, std::size_t count) {
  return Numbers(count, value);
}
inline Numbers counting(std::int64_t first, std::int64_t count) {
  Numbers all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(first + i);
  return all;
}
inline Numbers joined(std::initializer_list<Numbers> parts) {
  Numbers all;
  for (const Numbers& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// A counter-based generator: number i of a seed is the same on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : seed_(seed) {}
  /// A number from `least` to `most`, both included. The slight bias of the remainder is harmless.
  std::int64_t between(std::int64_t least, std::int64_t most) {
    const auto width = static_cast<std::uint64_t>(most - least) + 1;
    return least +
           static_cast<std::int64_t>(mixed(seed_ * 0x9E3779B97F4A7C15u + ++counter_) % width);
  }

 private:
  /// Finaliser of splitmix64: every input bit moves every output bit.
  static std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  std::uint64_t seed_;
  std::uint64_t counter_ = 0;
};

}  // namespace monoref::testing
