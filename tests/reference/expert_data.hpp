// Experts' weights that tests set element by element, in the terms of the plain matrices.
#pragma once

#include <cstring>
#include <optional>

#include "reference/formats/convert.hpp"
#include "reference/rules/expert_weights.hpp"
#include "reference/rules/weight_layouts.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {

/// All bytes of a dense tensor.
inline std::span<std::byte> stored(Tensor& tensor) {
  return {tensor.base(),
          static_cast<std::size_t>(tensor.layout().stored()) * tensor.element_size()};
}

enum class SharedExpert { kNone, kFused, kSeparate };

/// A stack of [rows, k] matrices of zeros with scales of 1. Columns of scales that only fill up the
/// layout hold 0xFF, so that reading one makes a NaN (bug case X01).
class ExpertData {
 public:
  ExpertData(MxElement element, std::int64_t n_routed, SharedExpert shared, std::int64_t rows,
             std::int64_t k)
      : element_(element), n_routed_(n_routed), rows_(rows), k_(k) {
    const std::int64_t experts = n_routed + (shared == SharedExpert::kFused ? 1 : 0);
    const std::int64_t bytes = element == MxElement::kFp8 ? k : k / 2;
    weight_ = zeros({experts, rows, bytes});
    scale_ = ones(experts * rows);
    if (shared != SharedExpert::kSeparate) return;
    shared_weight_ = zeros({rows, k});
    shared_scale_ = ones(rows);
  }

  ExpertWeights weights() const {
    return {element_,
            n_routed_,
            weight_,
            scale_,
            shared_weight_ ? &*shared_weight_ : nullptr,
            shared_scale_ ? &*shared_scale_ : nullptr};
  }
  std::int64_t shared_id() const { return n_routed_; }

  /// The number must be one of the element's format.
  void set(std::int64_t id, std::int64_t row, std::int64_t k, float value) {
    const bool fp8 = is_fp8(id);
    set_code(id, row, k, encode(fp8 ? kE4M3FN : kE2M1, value, Overflow::kNan));
  }
  void set_code(std::int64_t id, std::int64_t row, std::int64_t k, std::uint32_t code) {
    const std::int64_t columns = is_fp8(id) ? k_ : k_ / 2;
    const std::int64_t column = is_fp8(id) ? k : k / 2;
    std::byte& byte =
        is_separate(id)
            ? shared_weight_->base()[shuffled_weight_offset(row, column, columns)]
            : weight_.base()[id * rows_ * columns + shuffled_weight_offset(row, column, columns)];
    if (is_fp8(id))
      byte = static_cast<std::byte>(code);
    else if (k % 2 == 0)
      byte = (byte & std::byte{0xF0}) | static_cast<std::byte>(code);
    else
      byte = (byte & std::byte{0x0F}) | static_cast<std::byte>(code << 4);
  }
  void set_scale(std::int64_t id, std::int64_t row, std::int64_t block, std::int64_t byte) {
    Tensor& scale = is_separate(id) ? *shared_scale_ : scale_;
    const std::int64_t at = is_separate(id) ? row : id * rows_ + row;
    scale.base()[shuffled_scale_offset(at, block, scale.dim(1))] = static_cast<std::byte>(byte);
  }
  /// Any code but NaN, in one of eight any; scales of many binades.
  void randomise(Random& random) {
    for (Tensor* codes : {&weight_, shared_weight_ ? &*shared_weight_ : nullptr})
      if (codes != nullptr)
        for (std::byte& byte : stored(*codes)) {
          const std::int64_t code = random.between(0, 255);
          const bool nan = (code & 0x7F) == 0x7F && random.between(0, 7) > 0;
          byte = static_cast<std::byte>(nan ? 0x3C : code);
        }
    const std::int64_t experts = weight_.dim(0) + (shared_weight_ ? 1 : 0);
    for (std::int64_t id = 0; id < experts; ++id)
      for (std::int64_t row = 0; row < rows_; ++row)
        for (std::int64_t block = 0; block < k_ / 32; ++block)
          set_scale(
              id, row, block,
              random.between(0, 2000) == 0 ? 255 * random.between(0, 1) : random.between(117, 137));
  }

  Tensor& weight() { return weight_; }
  Tensor& scale() { return scale_; }
  std::optional<Tensor>& shared_scale() { return shared_scale_; }

 private:
  bool is_separate(std::int64_t id) const { return id == n_routed_ && shared_weight_.has_value(); }
  bool is_fp8(std::int64_t id) const { return is_separate(id) || element_ == MxElement::kFp8; }

  static Tensor zeros(std::vector<std::int64_t> dims) {
    return Tensor(DType::kUInt8, Layout::dense(std::move(dims)));
  }
  Tensor ones(std::int64_t rows) const {
    const std::int64_t columns = (k_ / 32 + 7) / 8 * 8;
    Tensor scale = zeros({rows, columns});
    scale.fill_bytes(std::byte{0xFF});
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t block = 0; block < k_ / 32; ++block)
        scale.base()[shuffled_scale_offset(row, block, columns)] = std::byte{127};
    return scale;
  }

  MxElement element_;
  std::int64_t n_routed_;
  std::int64_t rows_;
  std::int64_t k_;
  Tensor weight_;
  Tensor scale_;
  std::optional<Tensor> shared_weight_;
  std::optional<Tensor> shared_scale_;
};

/// MXFP8 activations of zeros with scales of 1.
struct Activations {
  Tensor codes;
  Tensor scales;

  explicit Activations(std::vector<std::int64_t> dims)
      : codes(DType::kFloat8E4M3FN, Layout::dense(dims)) {
    dims.back() /= 32;
    scales = Tensor(DType::kUInt8, Layout::dense(dims));
    scales.fill_bytes(std::byte{127});
  }
  /// Element `i` and block `block` in row-major order.
  void set(std::int64_t i, float value) {
    codes.base()[i] = static_cast<std::byte>(encode(kE4M3FN, value, Overflow::kNan));
  }
  void set_scale(std::int64_t block, std::int64_t byte) {
    scales.base()[block] = static_cast<std::byte>(byte);
  }
  void randomise(Random& random) {
    for (std::byte& byte : stored(codes)) {
      const std::int64_t code = random.between(0, 255);
      byte = static_cast<std::byte>((code & 0x7F) == 0x7F && random.between(0, 99) > 0 ? 1 : code);
    }
    for (std::byte& byte : stored(scales)) byte = static_cast<std::byte>(random.between(112, 130));
  }
};

}  // namespace monoref::testing
