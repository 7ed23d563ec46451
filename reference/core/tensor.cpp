#include "reference/core/tensor.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

namespace monoref {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 11> kNames{{
    {DType::kInt32, "int32"},
    {DType::kInt64, "int64"},
    {DType::kUInt8, "uint8"},
    {DType::kFloat32, "float32"},
    {DType::kFloat64, "float64"},
    {DType::kBFloat16, "bfloat16"},
    {DType::kFloat8E4M3FN, "float8_e4m3fn"},
    {DType::kFloat8E4M3FNUZ, "float8_e4m3fnuz"},
    {DType::kFloat8E5M2, "float8_e5m2"},
    {DType::kFloat8E5M2FNUZ, "float8_e5m2fnuz"},
    {DType::kFloat8E8M0, "float8_e8m0fnu"},
}};

constexpr std::size_t kAlignment = 64;
/// No case of this project addresses more: it keeps every byte offset far inside 63 bits.
constexpr std::int64_t kMaxSpanBytes = std::int64_t{1} << 40;

/// The last addressed element's offset plus one, or nothing on overflow or negative numbers.
std::optional<std::int64_t> addressed_span(const Layout& layout) {
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < layout.dims.size(); ++axis) {
    if (layout.dims[axis] < 0 || layout.strides[axis] < 0) return std::nullopt;
    if (layout.dims[axis] == 0) return 0;
    std::int64_t step = 0;
    if (__builtin_mul_overflow(layout.dims[axis] - 1, layout.strides[axis], &step) ||
        __builtin_add_overflow(last, step, &last))
      return std::nullopt;
  }
  std::int64_t span = 0;
  if (__builtin_add_overflow(last, 1, &span)) return std::nullopt;
  return span;
}

}  // namespace

std::string_view dtype_name(DType type) {
  for (const auto& [value, name] : kNames)
    if (value == type) return name;
  return "unknown";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const auto& [value, known] : kNames)
    if (known == name) return value;
  return std::nullopt;
}

[[noreturn]] static void refuse_unaddressable(const std::string& name, const Layout& layout) {
  refuse("{}: dims are [{}], strides [{}], must not be negative nor have an offset beyond 63 bits",
         name, fmt::join(layout.dims, ", "), fmt::join(layout.strides, ", "));
}

bool is_floating(DType type) {
  return type != DType::kInt32 && type != DType::kInt64 && type != DType::kUInt8;
}

Layout Layout::dense(std::vector<std::int64_t> dims) {
  std::vector<std::int64_t> strides(dims.size(), 1);
  for (std::size_t axis = dims.size(); axis-- > 1;)
    if (__builtin_mul_overflow(strides[axis], dims[axis], &strides[axis - 1]))
      refuse("layout: dims are [{}], must not have an offset beyond 63 bits",
             fmt::join(dims, ", "));
  return strided(std::move(dims), std::move(strides));
}

Layout Layout::strided(std::vector<std::int64_t> dims, std::vector<std::int64_t> strides) {
  Layout layout{std::move(dims), std::move(strides), {}};
  if (layout.dims.size() != layout.strides.size())
    refuse("layout: {} dims, must be as many as strides, {}", layout.dims.size(),
           layout.strides.size());
  const auto span = addressed_span(layout);
  if (!span) refuse_unaddressable("layout", layout);
  if (*span > 0) layout.extents.push_back({0, *span});
  return layout;
}

std::int64_t Layout::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t dim : dims) product *= dim;
  return product;
}

std::int64_t Layout::stored() const {
  std::int64_t sum = 0;
  for (const Extent& extent : extents) sum += extent.count;
  return sum;
}

std::int64_t Layout::span() const {
  return extents.empty() ? 0 : extents.back().offset + extents.back().count;
}

bool Layout::is_dense() const {
  return extents.size() <= 1 && stored() == elements() && *this == dense(dims);
}

void Layout::validate(const std::string& name) const {
  if (dims.size() != strides.size())
    refuse("{}: {} dims, must be as many as strides, {}", name, dims.size(), strides.size());
  const auto addressed = addressed_span(*this);
  if (!addressed) refuse_unaddressable(name, *this);
  std::int64_t end = 0;
  for (const Extent& extent : extents) {
    if (extent.offset < end || extent.count <= 0 || extent.offset > kMaxSpanBytes ||
        extent.count > kMaxSpanBytes)
      refuse("{}: storage runs must ascend, be disjoint and end below {} elements", name,
             kMaxSpanBytes);
    end = extent.offset + extent.count;
  }
  if (extents.size() <= 1 && *addressed > end)
    refuse("{}: dims and strides address {} elements, must be at most those stored, {}", name,
           *addressed, end);
}

Tensor::Tensor(DType type, Layout layout) : type_(type), layout_(std::move(layout)) {
  layout_.validate("tensor");
  allocate();
}

Tensor Tensor::alias(const Tensor& owner, Layout layout, std::int64_t offset) {
  layout.validate("alias");
  const bool is_whole = offset == 0 && layout.extents == owner.layout_.extents;
  if (!is_whole && owner.layout_.extents.size() > 1)
    refuse("alias: a tensor of {} runs of storage can only be taken whole",
           owner.layout_.extents.size());
  if (offset < 0 || layout.span() > owner.layout_.span() - offset)
    refuse("alias: elements {} to {} of a tensor, must lie below {}", offset,
           offset + layout.span() - 1, owner.layout_.span());
  Tensor tensor;
  tensor.type_ = owner.type_;
  tensor.layout_ = std::move(layout);
  tensor.storage_ = owner.storage_;
  tensor.base_ = owner.base_ + offset * static_cast<std::int64_t>(owner.element_size());
  return tensor;
}

Tensor::Tensor(const Tensor& other) : type_(other.type_), layout_(other.layout_) {
  allocate();
  for (const Extent& extent : layout_.extents)
    std::memcpy(bytes(extent).data(), other.bytes(extent).data(), bytes(extent).size());
}

Tensor& Tensor::operator=(const Tensor& other) {
  if (this != &other) *this = Tensor(other);
  return *this;
}

void Tensor::allocate() {
  const std::int64_t span = layout_.span();
  if (span > kMaxSpanBytes / static_cast<std::int64_t>(element_size()))
    refuse("tensor: {} elements of {} exceed the limit of {} bytes", span, dtype_name(type_),
           kMaxSpanBytes);
  const std::size_t size =
      std::max<std::size_t>(static_cast<std::size_t>(span) * element_size(), kAlignment);
  const bool starts_at_base = layout_.extents.empty() || layout_.extents.front().offset == 0;
  if (layout_.extents.size() <= 1 && starts_at_base) {
    auto* memory = static_cast<std::byte*>(::operator new(size, std::align_val_t{kAlignment}));
    storage_ = {memory, [](std::byte* p) { ::operator delete(p, std::align_val_t{kAlignment}); }};
    std::memset(memory, 0, size);
  } else {  // reserve the whole range, back only what is touched
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) refuse("tensor: cannot reserve {} bytes of address space", size);
    storage_ = {static_cast<std::byte*>(memory), [size](std::byte* p) { munmap(p, size); }};
  }
  base_ = storage_.get();
}

std::span<std::byte> Tensor::bytes(const Extent& extent) {
  const std::size_t size = element_size();
  return {base_ + static_cast<std::size_t>(extent.offset) * size,
          static_cast<std::size_t>(extent.count) * size};
}

std::span<const std::byte> Tensor::bytes(const Extent& extent) const {
  return const_cast<Tensor*>(this)->bytes(extent);
}

std::vector<std::byte> Tensor::image() const {
  std::vector<std::byte> all;
  all.reserve(static_cast<std::size_t>(layout_.stored()) * element_size());
  for (const Extent& extent : layout_.extents) {
    const auto run = bytes(extent);
    all.insert(all.end(), run.begin(), run.end());
  }
  return all;
}

void Tensor::set_image(std::span<const std::byte> image) {
  const std::size_t expected = static_cast<std::size_t>(layout_.stored()) * element_size();
  if (image.size() != expected)
    refuse("tensor: an image of {} bytes given for {} stored bytes", image.size(), expected);
  std::size_t at = 0;
  for (const Extent& extent : layout_.extents) {
    const auto run = bytes(extent);
    std::memcpy(run.data(), image.data() + at, run.size());
    at += run.size();
  }
}

void Tensor::fill_bytes(std::byte value) {
  for (const Extent& extent : layout_.extents) {
    const auto run = bytes(extent);
    std::memset(run.data(), std::to_integer<int>(value), run.size());
  }
}

void Tensor::check_view(std::size_t wanted_rank, std::size_t size,
                        std::optional<DType> only) const {
  if (wanted_rank != rank()) refuse("tensor has rank {}, must have {}", rank(), wanted_rank);
  if (size != element_size())
    refuse("tensor is {}, must have elements of {} bytes", dtype_name(type_), size);
  if (only && *only != type_)
    refuse("tensor is {}, must be {}", dtype_name(type_), dtype_name(*only));
}

}  // namespace monoref
