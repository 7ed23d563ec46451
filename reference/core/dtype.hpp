// Element types of tensors: what the bits of one stored element mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace monoref {

/// The element types that cases carry. Names in files are the ones of `dtype_name`.
enum class DType : std::uint8_t {
  kInt32,
  kInt64,
  kUInt8,  ///< plain bytes; packed MXFP4 is bytes too (low nibble = even element)
  kFloat32,
  kFloat64,
  kBFloat16,
  kFloat8E4M3FN,
  kFloat8E4M3FNUZ,
  kFloat8E5M2,
  kFloat8E5M2FNUZ,
  kFloat8E8M0,
};

/// Bytes of one element.
constexpr std::size_t dtype_size(DType type) {
  switch (type) {
    case DType::kInt64:
    case DType::kFloat64:
      return 8;
    case DType::kInt32:
    case DType::kFloat32:
      return 4;
    case DType::kBFloat16:
      return 2;
    default:
      return 1;
  }
}

/// The name used in files and messages: int32, bfloat16, float8_e4m3fn, ...
std::string_view dtype_name(DType type);

/// The inverse of `dtype_name`; nothing if the name is unknown.
std::optional<DType> dtype_from_name(std::string_view name);

/// True for types whose NaN must be stored in the canonical form.
bool is_floating(DType type);

/// C++ types that can hold one element of a tensor. FP8 and BF16 are held as their bits.
template <class T>
constexpr bool holds(DType type) {
  return sizeof(T) == dtype_size(type);
}

}  // namespace monoref
