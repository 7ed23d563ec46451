// Bytes of K/V caches, for generators that fill them key by key.
#pragma once

#include <cstdint>

#include "reference/stages/kv_page_address.hpp"

namespace monoref {

/// Where the elements of one key lie in FP8 caches. The addresses of three dims say all: K has runs
/// of 16 dims, V the same step from each dim to the next.
class KeyBytes {
 public:
  KeyBytes(const KvPageShape& shape, std::int64_t slot, std::int64_t head)
      : k_(k_byte(shape, {slot, head, 0})),
        k_run_(shape.head_dim > kRun ? k_byte(shape, {slot, head, kRun}) - k_ : 0),
        v_(v_byte(shape, {slot, head, 0})),
        v_step_(v_byte(shape, {slot, head, 1}) - v_) {}

  /// Offset in the K view.
  std::int64_t k(std::int64_t dim) const { return k_ + dim / kRun * k_run_ + dim % kRun; }
  /// Offset in the V view.
  std::int64_t v(std::int64_t dim) const { return v_ + dim * v_step_; }

 private:
  static constexpr std::int64_t kRun = 16;

  std::int64_t k_;
  std::int64_t k_run_;
  std::int64_t v_;
  std::int64_t v_step_;
};

}  // namespace monoref
