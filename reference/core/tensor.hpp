// Tensors with named-dimension views over real (also strided, also sparse) storage.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "reference/core/dtype.hpp"
#include "reference/core/error.hpp"

namespace monoref {

/// A strided window on elements of type T. Strides count elements. Does not own.
template <class T, std::size_t Rank>
class View {
 public:
  View() = default;
  View(T* data, std::array<std::int64_t, Rank> dims, std::array<std::int64_t, Rank> strides)
      : data_(data), dims_(dims), strides_(strides) {}

  /// A view of mutable elements is also a view of constant ones.
  operator View<const T, Rank>() const
    requires(!std::is_const_v<T>)
  {
    return {data_, dims_, strides_};
  }

  std::int64_t dim(std::size_t axis) const { return dims_[axis]; }
  std::int64_t stride(std::size_t axis) const { return strides_[axis]; }
  T* data() const { return data_; }

  template <class... Index>
    requires(sizeof...(Index) == Rank)
  T& operator()(Index... index) const {
    const std::array<std::int64_t, Rank> at{static_cast<std::int64_t>(index)...};
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < Rank; ++axis) offset += at[axis] * strides_[axis];
    return data_[offset];
  }

 private:
  T* data_ = nullptr;
  std::array<std::int64_t, Rank> dims_{};
  std::array<std::int64_t, Rank> strides_{};
};

/// A run of elements that really exists in a tensor's address range.
struct Extent {
  std::int64_t offset = 0;  ///< first element, counted from the tensor's base
  std::int64_t count = 0;   ///< elements
  bool operator==(const Extent&) const = default;
};

/// Where a tensor's elements lie: dims and strides in elements, and the runs of storage behind
/// them.
///
/// A dense tensor has one extent. A row-padded one too (its padding is real storage and takes part
/// in whole-storage comparison). A tensor with large ids has several small extents far apart in one
/// virtual range: the gaps hold no memory, and touching one is a fault that the harness reports.
struct Layout {
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;
  std::vector<Extent> extents;  ///< ascending, disjoint, non-empty runs

  static Layout dense(std::vector<std::int64_t> dims);
  /// One extent that reaches exactly to the last addressed element: nothing real lies behind it.
  static Layout strided(std::vector<std::int64_t> dims, std::vector<std::int64_t> strides);

  std::int64_t elements() const;  ///< product of dims
  std::int64_t stored() const;    ///< elements in all extents
  std::int64_t span() const;      ///< end of the last extent, in elements
  bool is_dense() const;          ///< row-major without gaps
  /// Refuses a layout with overlapping runs or overflowing numbers, and, where there is only one
  /// run, one whose dims and strides address elements behind it.
  void validate(const std::string& name) const;
  bool operator==(const Layout&) const = default;
};

/// An owned tensor. Copying copies the stored elements only. The base is 64-byte aligned.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType type, Layout layout);
  /// A dense tensor filled from values in row-major order.
  template <class T>
  static Tensor of(DType type, std::vector<std::int64_t> dims, const std::vector<T>& values);

  /// Another layout on the elements of `owner` from `offset` on, for what one stage of a chain
  /// hands to the next. Shares the memory, also for writing; a copy of it is a tensor of its own.
  /// Refuses a layout of one run that reaches behind the owner's.
  static Tensor alias(const Tensor& owner, Layout layout, std::int64_t offset);

  Tensor(const Tensor& other);
  Tensor& operator=(const Tensor& other);
  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(Tensor&&) noexcept = default;
  ~Tensor() = default;

  DType type() const { return type_; }
  const Layout& layout() const { return layout_; }
  const std::vector<std::int64_t>& dims() const { return layout_.dims; }
  /// Refuses an axis that there is not: ranks of tensors in files are anybody's.
  std::int64_t dim(std::size_t axis) const {
    if (axis >= rank()) refuse("tensor has rank {}, asked for dimension {}", rank(), axis);
    return layout_.dims[axis];
  }
  std::size_t rank() const { return layout_.dims.size(); }
  std::size_t element_size() const { return dtype_size(type_); }

  /// The address of element offset 0. Only the extents behind it may be touched.
  std::byte* base() { return base_; }
  const std::byte* base() const { return base_; }
  /// The bytes of one extent.
  std::span<std::byte> bytes(const Extent& extent);
  std::span<const std::byte> bytes(const Extent& extent) const;
  /// All stored bytes, extents in order, as one block; and the inverse.
  std::vector<std::byte> image() const;
  void set_image(std::span<const std::byte> bytes);
  /// Every stored byte becomes `value`.
  void fill_bytes(std::byte value);

  /// A typed view. Refuses a wrong rank or element size, and numbers (float, double, int32, int64)
  /// of another type than the tensor's; unsigned elements are the bits of any type of their size.
  template <class T, std::size_t Rank>
  View<T, Rank> view();
  template <class T, std::size_t Rank>
  View<const T, Rank> view() const;

  bool empty() const { return layout_.elements() == 0; }

 private:
  void allocate();
  void check_view(std::size_t rank, std::size_t size, std::optional<DType> only) const;

  DType type_ = DType::kUInt8;
  Layout layout_;
  std::shared_ptr<std::byte> storage_;  ///< shared with aliases only; the deleter knows the kind
  std::byte* base_ = nullptr;
};

/// The one type that a view of numbers can be of.
template <class T>
constexpr std::optional<DType> type_of_numbers() {
  if (std::is_same_v<T, float>) return DType::kFloat32;
  if (std::is_same_v<T, double>) return DType::kFloat64;
  if (std::is_same_v<T, std::int32_t>) return DType::kInt32;
  if (std::is_same_v<T, std::int64_t>) return DType::kInt64;
  return std::nullopt;
}

template <class T, std::size_t Rank>
View<T, Rank> Tensor::view() {
  check_view(Rank, sizeof(T), type_of_numbers<T>());
  std::array<std::int64_t, Rank> dims{};
  std::array<std::int64_t, Rank> strides{};
  for (std::size_t axis = 0; axis < Rank; ++axis) {
    dims[axis] = layout_.dims[axis];
    strides[axis] = layout_.strides[axis];
  }
  return {reinterpret_cast<T*>(base_), dims, strides};
}

template <class T, std::size_t Rank>
View<const T, Rank> Tensor::view() const {
  return const_cast<Tensor*>(this)->view<T, Rank>();
}

template <class T>
Tensor Tensor::of(DType type, std::vector<std::int64_t> dims, const std::vector<T>& values) {
  Tensor tensor(type, Layout::dense(std::move(dims)));
  tensor.check_view(tensor.rank(), sizeof(T), std::nullopt);
  if (static_cast<std::int64_t>(values.size()) != tensor.layout().elements())
    refuse("tensor: {} values given for {} elements", values.size(), tensor.layout().elements());
  tensor.set_image(std::as_bytes(std::span(values)));
  return tensor;
}

}  // namespace monoref
