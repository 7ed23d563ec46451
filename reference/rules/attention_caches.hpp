// The K and V caches as the forms of the attention read them: by page and token.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"
#include "reference/stages/kv_page_address.hpp"

namespace monoref {

/// The caches of one layer, as kv_cache_insert leaves them: dense tensors [blocks, pages, kv_heads,
/// head_dim * page_size], perhaps with only some of their blocks stored. Interleaved: one tensor
/// serves as both, and a block's pages are those of K, then those of V.
struct AttentionCaches {
  const Tensor& k_cache;
  const Tensor& v_cache;
  /// [kv_heads] binary32; absent (a default view): all ones (bug case F13).
  View<const float, 1> k_scale{};
  View<const float, 1> v_scale{};
};

/// The caches' geometry. `stage` names the caller. Refuses caches of other ranks, types (the
/// contract's FP8 or BF16; bug case F15), dims or strides than above; one tensor for dense caches
/// and two for interleaved ones; and scales of another length than kv_heads.
KvPageShape attention_cache_shape(std::string_view stage, const AttentionCaches& caches,
                                  std::int64_t head_dim, const Contract& contract);

/// The scales of a kv head: 1 where absent.
float k_scale_of(const AttentionCaches& caches, std::int64_t kv_head);
float v_scale_of(const AttentionCaches& caches, std::int64_t kv_head);

/// Where a page table holds a page id, for messages.
struct PagePlaceInTable {
  std::string_view stage;
  std::int64_t row;
  std::int64_t kv_head;
  std::int64_t column;
};

/// The plain slot of token 0 of a page id. Refuses an id that the caches do not have or do not
/// store, or that is a page of V.
std::int64_t checked_page_slot(const AttentionCaches& caches, const KvPageShape& shape,
                               std::int64_t page, const PagePlaceInTable& place);

/// K and V of one key, [head_dim] each, decoded to numbers. The slot must have been checked.
void read_key(const AttentionCaches& caches, const KvPageShape& shape, std::int64_t slot,
              std::int64_t kv_head, std::span<float> values);
void read_value(const AttentionCaches& caches, const KvPageShape& shape, std::int64_t slot,
                std::int64_t kv_head, std::span<float> values);

}  // namespace monoref
