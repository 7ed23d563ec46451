// The page-16 layout of the K/V cache, as kernels address it (upstream-semantics section 3.4,
// mono-decode section 3.8).
//
// A block holds 128 tokens, a page 16. Each side of a block (its K, its V) owns 8 pages. Dense
// sides are planes of their own: block b owns pages 8b .. 8b+7 of both. Interleaved sides share a
// block of 16 pages: K at pages 16b .. 16b+7, V in the 8 pages behind them, reached from the same
// page id through a view of the buffer that starts 8 pages later.
#pragma once

#include <cstdint>

#include "device/simt.hpp"

namespace monoref::kernels {
namespace {  // each variant of a kernel has its own

constexpr std::int32_t kBlockTokens = 128;
constexpr std::int32_t kPageTokens = 16;
constexpr std::int32_t kPagesPerSide = kBlockTokens / kPageTokens;
/// Bytes of the innermost vector of both layouts: what one lane loads at once.
constexpr std::int32_t kVectorBytes = 16;

/// The shape of one K/V cache. All numbers are positive; element_bytes divides 16, and head_dim is
/// a multiple of 16 / element_bytes.
struct PageShape {
  std::int32_t heads;
  std::int32_t head_dim;
  std::int32_t element_bytes;
  std::int32_t sides;  ///< 1: dense planes, 2: K and V interleaved block by block

  /// x of the layout: elements in 16 bytes.
  MONOREF_MEMBER std::int32_t vector_elements() const {
    return MONOREF_FAULT(address_run_of_8, "own", "unit of 8 elements for FP8",
                         .stages = {"kv_page_address"})
               ? 8
               : kVectorBytes / element_bytes;
  }
  MONOREF_MEMBER std::int64_t head_elements() const { return std::int64_t{head_dim} * kPageTokens; }
  MONOREF_MEMBER std::int64_t page_elements() const { return head_elements() * heads; }
  /// Where the V view starts, in elements of the buffer that holds V.
  MONOREF_MEMBER std::int64_t v_view_start() const {
    return MONOREF_FAULT(address_v_view_start, "P16",
                         "V view starts at the buffer instead of 8 pages later",
                         .stages = {"kv_page_address"})
               ? 0
               : (sides - 1) * kPagesPerSide * page_elements();
  }
};

/// A token's position: its page id and its number in the page.
struct PagePosition {
  std::int64_t page;
  std::int32_t token;
};

/// The position of a plain slot (block * 128 + token). Slots are not negative.
MONOREF_DEVICE PagePosition position_of_slot(std::int64_t slot, std::int32_t sides) {
  const auto bits = static_cast<std::uint64_t>(slot);
  const std::int64_t pages =
      MONOREF_FAULT(address_pages_of_one_side, "P05", "8 pages a block for packed sides",
                    .stages = {"kv_page_address"})
          ? kPagesPerSide
          : std::int64_t{kPagesPerSide} * sides;
  const auto block = static_cast<std::int64_t>(bits / kBlockTokens);
  const auto token = static_cast<std::int32_t>(bits % kBlockTokens);
  const std::int64_t page = block * pages + token / kPageTokens;
  return {MONOREF_FAULT(address_page_16_bits, "O01", "page id cut to 16 bits",
                        .stages = {"kv_page_address"})
              ? page & 0xFFFF
              : page,
          token % kPageTokens};
}

/// K, shape [page, head, head_dim/x, 16, x]: element offset in the K view.
MONOREF_DEVICE std::int64_t k_element(const PageShape& shape, PagePosition position,
                                      std::int32_t head, std::int32_t dim) {
  const std::int32_t x = shape.vector_elements();
  return position.page * shape.page_elements() + head * shape.head_elements() +
         std::int64_t{dim / x} * (kPageTokens * x) + position.token * x + dim % x;
}

/// V, shape [page, head, 16/x, head_dim, x]: element offset in the V view.
MONOREF_DEVICE std::int64_t v_element(const PageShape& shape, PagePosition position,
                                      std::int32_t head, std::int32_t dim) {
  if (MONOREF_FAULT(address_v_as_k, "P07", "V laid out as K", .stages = {"kv_page_address"}))
    return k_element(shape, position, head, dim);
  const std::int32_t x = shape.vector_elements();
  return position.page * shape.page_elements() + head * shape.head_elements() +
         std::int64_t{position.token / x} * shape.head_dim * x + std::int64_t{dim} * x +
         position.token % x;
}

}  // namespace
}  // namespace monoref::kernels
