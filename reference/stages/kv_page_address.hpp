// Stage kv_page_address: where a key's or a value's element lies in the page-16 caches.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

/// The K and V caches of one layer on one rank (upstream-semantics section 3.4, mono-decode section
/// 3.8). The K view starts at the buffer's first byte. Dense: V is a buffer of its own.
/// Interleaved: a block is its K pages, then its V pages, and the V view is the same buffer seen
/// from `v_view_offset()` on, so that one page id serves both.
struct KvPageShape {
  KvLayout layout = KvLayout::kInterleaved;
  std::int64_t blocks = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 128;    ///< a multiple of unit()
  std::int64_t element_size = 1;  ///< bytes: 1 for FP8, 2 for BF16
  std::int64_t block_size = 128;  ///< keys, a multiple of page_size
  std::int64_t page_size = 16;    ///< keys, a multiple of unit()

  /// Elements of the 16-byte unit that both page forms are made of: 16 for FP8, 8 for BF16.
  std::int64_t unit() const { return 16 / element_size; }
  /// Pages that one side of a block owns.
  std::int64_t pages_per_block() const { return block_size / page_size; }
  /// Page ids that a block spans.
  std::int64_t block_page_stride() const;
  /// Bytes of one page of one side, all heads.
  std::int64_t page_bytes() const { return kv_heads * head_dim * page_size * element_size; }
  /// Pages of the two views, and where the V view starts: bytes after the K view, 0 if dense.
  std::int64_t k_view_pages() const { return blocks * block_page_stride(); }
  std::int64_t v_view_pages() const;
  std::int64_t v_view_offset() const;

  /// Refuses numbers outside the ranges above, none or too many of something, and caches whose
  /// bytes do not fit int64.
  void validate() const;
};

/// One element of a K or V cache, in the terms of the model.
struct KvElement {
  std::int64_t slot = 0;  ///< plain (not rebased): block * block_size + key in the block
  std::int64_t head = 0;
  std::int64_t dim = 0;
  bool operator==(const KvElement&) const = default;
};

/// Byte offset of the element's first byte in the K view and in the V view.
///
/// Page p and key t in it from the slot; then, in elements of x = unit(),
///   K: p * page + head * (head_dim * page_size) + (dim div x) * (page_size * x) + t * x + dim mod
///   x V: p * page + head * (head_dim * page_size) + (t div x) * (head_dim * x) + dim * x + t mod
///   x.
/// Refuses an invalid shape and a slot, head or dim outside it.
std::int64_t k_byte(const KvPageShape& shape, const KvElement& element);
std::int64_t v_byte(const KvPageShape& shape, const KvElement& element);

/// The element that a byte of the K view or V view belongs to (any of its bytes), or nothing if it
/// belongs to the other side. Derived on its own, by taking the offset apart digit by digit; it
/// shares no expression with the functions above. Refuses a byte outside the view.
std::optional<KvElement> k_element(const KvPageShape& shape, std::int64_t byte);
std::optional<KvElement> v_element(const KvPageShape& shape, std::int64_t byte);

/// The stage: n elements at once.
struct KvPageAddressInput {
  View<const std::int64_t, 1> slot_mapping;  ///< [n]; negative: a padding row, it has no address
  View<const std::int32_t, 1> head;          ///< [n]
  View<const std::int32_t, 1> dim;           ///< [n]
  KvPageShape shape{};
};

struct KvPageAddressOutput {
  View<std::int64_t, 1> k_byte;  ///< [n], -1 where the slot is negative
  View<std::int64_t, 1> v_byte;  ///< [n], likewise
};

/// The dims of both outputs. Refuses heads and dims of other lengths than the slots, an invalid
/// shape, and elements outside it (heads and dims of padding rows too).
std::array<std::int64_t, 1> kv_page_address_shape(const KvPageAddressInput& input);

/// `k_byte` and `v_byte` of every element. Refuses what the shape function refuses and outputs of
/// other dims, before it writes anything.
void kv_page_address(const KvPageAddressInput& input, const KvPageAddressOutput& output);

}  // namespace monoref
