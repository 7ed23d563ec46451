// kv_page_address: where every element of a token's K and V lies in a page-16 cache.
//
// Source of the rule: upstream-semantics section 3.4, mono-decode section 3.8. The address code
// itself is page_layout.hpp, which the kernels that write and read such caches share.

#include <cstdint>

#include "device/kernels/flat_grid.hpp"
#include "device/kernels/page_layout.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr std::int64_t kNoAddress = -1;

/// Byte offsets of one element in the buffers of K and of V.
struct ElementAddress {
  std::int64_t k;
  std::int64_t v;
};

/// The address of element (head, dim), number `element` of the token at `slot`.
MONOREF_DEVICE ElementAddress address_of(const PageShape& shape, std::int64_t slot,
                                         std::int32_t element) {
  if (slot < 0) {
    if (!MONOREF_FAULT(address_negative_slot, "P11", "slot -1 gets an address"))
      return {kNoAddress, kNoAddress};
    slot &= kBlockTokens - 1;
  }
  if (MONOREF_FAULT(address_slot_rebased_twice, "own", "slot rebased before it is used"))
    slot += kBlockTokens * (slot / kBlockTokens) * (shape.sides - 1);
  const std::int32_t dims = MONOREF_FAULT(address_heads_as_dims, "S22", "heads and dims exchanged")
                                ? shape.heads
                                : shape.head_dim;
  const std::int32_t head = element / dims;
  const std::int32_t dim = element - head * dims;
  const PagePosition position = position_of_slot(slot, shape.sides);
  const std::int64_t bytes =
      MONOREF_FAULT(address_elements_as_bytes, "own", "element offset taken for a byte offset")
          ? 1
          : shape.element_bytes;
  const std::int64_t k = k_element(shape, position, head, dim) * bytes;
  const std::int64_t v = (shape.v_view_start() + v_element(shape, position, head, dim)) * bytes;
  if (MONOREF_FAULT(address_32_bits, "O07", "offset in 32 bits"))
    return {static_cast<std::int32_t>(k), static_cast<std::int32_t>(v)};
  return {k, v};
}

}  // namespace

// Inputs   slots int64 [count], slot_stride elements apart; plain slots (block * 128 + token, not
//          rebased), negative: a token without a position
// Outputs  k_offsets int64 [count, heads, head_dim], dense: byte offset in the buffer of K
//          v_offsets the same for V: with interleaved sides from the start of the shared buffer, so
//          the 8 pages before the V view are counted in; with dense sides from that of V's own
//          plane. A token without a position has -1 everywhere.
// Sizes    element_bytes 1, 2, 4, 8 or 16; head_dim a multiple of 16 / element_bytes; sides 1
//          (dense) or 2 (interleaved); heads * head_dim below 2^31.
// Launch   any grid and any block of whole waves; x goes over slots, y over the elements of one.
// Misuse   None is read or written by these offsets here. Slots are below 2^63 / 32 / (bytes of a
//          token's K), or the numbers wrap.
MONOREF_KERNEL(1024, monoref_kv_page_address)(const std::int64_t* slots, std::int64_t slot_stride,
                                              std::int64_t* k_offsets, std::int64_t* v_offsets,
                                              std::int64_t count, std::int32_t heads,
                                              std::int32_t head_dim, std::int32_t element_bytes,
                                              std::int32_t sides) {
  const PageShape shape{heads, head_dim, element_bytes, sides};
  const std::int32_t elements = heads * head_dim;
  // Two offsets fill 16 bytes. Rows of an odd number of elements start on 8 every other time.
  const bool paired = elements % 2 == 0 && aligned16(k_offsets) && aligned16(v_offsets);
  const std::int32_t units = paired ? elements / 2 : 0;
  const std::int64_t first_column =
      MONOREF_FAULT(address_grid_y_ignored, "own",
                    "columns of the blocks behind the first in y are not made")
          ? std::int64_t{threadIdx.x}
          : column_of_grid();
  const std::int64_t slot_step = MONOREF_FAULT(address_grid_x_runs_once, "own",
                                               "the blocks of the grid take one slot each and stop")
                                     ? count
                                     : gridDim.x;
  for (std::int64_t n = blockIdx.x; n < count; n += slot_step) {
    const std::int64_t slot = slots[n * slot_stride];
    const std::int64_t at = n * elements;
    for (std::int64_t i = first_column; i < units; i += columns_of_grid()) {
      const auto element = static_cast<std::int32_t>(2 * i);
      const ElementAddress first = address_of(shape, slot, element);
      const ElementAddress second = address_of(shape, slot, element + 1);
      store_pair(k_offsets + at + 2 * i, first.k, second.k);
      store_pair(v_offsets + at + 2 * i, first.v, second.v);
    }
    for (std::int64_t i = 2 * units + first_column; i < elements; i += columns_of_grid()) {
      const ElementAddress address = address_of(shape, slot, static_cast<std::int32_t>(i));
      k_offsets[at + i] = address.k;
      v_offsets[at + i] = address.v;
    }
  }
}
MONOREF_REGISTER(monoref_kv_page_address);

}  // namespace monoref::kernels
