#include "reference/rules/attention_caches.hpp"

#include <cstring>

#include "reference/rules/fp8_rules.hpp"
#include "reference/rules/stored_elements.hpp"

namespace monoref {
namespace {

void check_cache(std::string_view stage, std::string_view name, const Tensor& cache,
                 const Contract& contract) {
  const DType fp8 = fp8_dtype(contract);
  if (cache.type() != fp8 && cache.type() != DType::kBFloat16)
    refuse("{}: {} is {}, must be {} or bfloat16", stage, name, dtype_name(cache.type()),
           dtype_name(fp8));
  if (cache.rank() != 4) refuse("{}: {} has rank {}, must be 4", stage, name, cache.rank());
  if (cache.layout().strides != Layout::dense(cache.dims()).strides)
    refuse("{}: {} has gaps between its elements, must be dense", stage, name);
}

void check_pair(std::string_view stage, const AttentionCaches& caches, const Contract& contract) {
  const bool shared = &caches.k_cache == &caches.v_cache;
  if (shared != (contract.kv_layout == KvLayout::kInterleaved))
    refuse("{}: k_cache and v_cache are {}, must be {}", stage, shared ? "1 tensor" : "2 tensors",
           shared ? "2 under kv_layout=dense" : "1 under kv_layout=interleaved");
  if (caches.k_cache.type() != caches.v_cache.type() ||
      caches.k_cache.dims() != caches.v_cache.dims())
    refuse("{}: v_cache is {} of [{}], must be as k_cache is, {} of [{}]", stage,
           dtype_name(caches.v_cache.type()), fmt::join(caches.v_cache.dims(), ", "),
           dtype_name(caches.k_cache.type()), fmt::join(caches.k_cache.dims(), ", "));
}

void check_scale(std::string_view stage, std::string_view name, const View<const float, 1>& scale,
                 std::int64_t kv_heads) {
  if (scale.data() != nullptr && scale.dim(0) != kv_heads)
    refuse("{}: {} has {} entries, must have one for each of {} kv heads", stage, name,
           scale.dim(0), kv_heads);
}

void check_stored(std::string_view stage, std::string_view name, const Tensor& cache,
                  std::int64_t byte, std::int64_t bytes, std::int64_t page) {
  const auto size = static_cast<std::int64_t>(cache.element_size());
  if (!holds_run(cache.layout(), byte / size, bytes / size))
    refuse("{}: page {} of {} is elements {} to {}, must lie in one run of its storage, {}", stage,
           page, name, byte / size, (byte + bytes) / size - 1, stored_text(cache.layout()));
}

float decoded(const Tensor& cache, std::int64_t byte) {
  const std::byte* at = cache.base() + byte;
  if (cache.type() != DType::kBFloat16)
    return decode_fp8(float_format(cache.type()), std::to_integer<std::uint8_t>(*at));
  std::uint16_t code;
  std::memcpy(&code, at, sizeof(code));
  return float_from_bf16(code);
}

}  // namespace

KvPageShape attention_cache_shape(std::string_view stage, const AttentionCaches& caches,
                                  std::int64_t head_dim, const Contract& contract) {
  check_cache(stage, "k_cache", caches.k_cache, contract);
  check_cache(stage, "v_cache", caches.v_cache, contract);
  check_pair(stage, caches, contract);
  const std::vector<std::int64_t>& dims = caches.k_cache.dims();
  const std::int64_t sides = contract.kv_layout == KvLayout::kInterleaved ? 2 : 1;
  if (dims[1] % sides != 0)
    refuse("{}: k_cache has {} pages a block, must be a multiple of {}", stage, dims[1], sides);
  if (head_dim < 1 || dims[3] % head_dim != 0)
    refuse("{}: k_cache has {} elements a page and head, must be a multiple of head_dim {}", stage,
           dims[3], head_dim);
  check_scale(stage, "k_scale", caches.k_scale, dims[2]);
  check_scale(stage, "v_scale", caches.v_scale, dims[2]);
  const std::int64_t page_size = dims[3] / head_dim;
  const KvPageShape shape{.layout = contract.kv_layout,
                          .blocks = dims[0],
                          .kv_heads = dims[2],
                          .head_dim = head_dim,
                          .element_size = static_cast<std::int64_t>(caches.k_cache.element_size()),
                          .block_size = dims[1] / sides * page_size,
                          .page_size = page_size};
  shape.validate();
  return shape;
}

float k_scale_of(const AttentionCaches& caches, std::int64_t kv_head) {
  return caches.k_scale.data() == nullptr ? 1.0f : caches.k_scale(kv_head);
}

float v_scale_of(const AttentionCaches& caches, std::int64_t kv_head) {
  return caches.v_scale.data() == nullptr ? 1.0f : caches.v_scale(kv_head);
}

std::int64_t checked_page_slot(const AttentionCaches& caches, const KvPageShape& shape,
                               std::int64_t page, const PagePlaceInTable& place) {
  const auto& [stage, row, kv_head, column] = place;
  if (page < 0 || page >= shape.k_view_pages())
    refuse("{}: sparse_block_table[{}][{}][{}] is {}, must be 0 to {}", stage, row, kv_head, column,
           page, shape.k_view_pages() - 1);
  const std::int64_t in_block = page % shape.block_page_stride();
  if (in_block >= shape.pages_per_block())
    refuse(
        "{}: sparse_block_table[{}][{}][{}] is {}, a page of V: it is page {} of its block, limit"
        " {}",
        stage, row, kv_head, column, page, in_block, shape.pages_per_block() - 1);
  const std::int64_t slot =
      page / shape.block_page_stride() * shape.block_size + in_block * shape.page_size;
  check_stored(stage, "k_cache", caches.k_cache, k_byte(shape, {slot, 0, 0}), shape.page_bytes(),
               page);
  check_stored(stage, "v_cache", caches.v_cache,
               shape.v_view_offset() + v_byte(shape, {slot, 0, 0}), shape.page_bytes(), page);
  return slot;
}

void read_key(const AttentionCaches& caches, const KvPageShape& shape, std::int64_t slot,
              std::int64_t kv_head, std::span<float> values) {
  for (std::size_t d = 0; d < values.size(); ++d)
    values[d] =
        decoded(caches.k_cache, k_byte(shape, {slot, kv_head, static_cast<std::int64_t>(d)}));
}

void read_value(const AttentionCaches& caches, const KvPageShape& shape, std::int64_t slot,
                std::int64_t kv_head, std::span<float> values) {
  for (std::size_t d = 0; d < values.size(); ++d)
    values[d] =
        decoded(caches.v_cache, shape.v_view_offset() +
                                    v_byte(shape, {slot, kv_head, static_cast<std::int64_t>(d)}));
}

}  // namespace monoref
