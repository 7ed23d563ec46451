#include "reference/stages/kv_cache_insert.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>
#include <vector>

#include "reference/arithmetic/portable.hpp"
#include "reference/rules/fp8_rules.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/rules/stored_elements.hpp"
#include "reference/stages/index_cache_insert.hpp"

namespace monoref {
namespace {

/// One row that is stored.
struct RowWrite {
  std::int64_t row;
  std::int64_t slot;
};

bool drops(const KvCacheInsertInput& input) {
  return input.contract.out_of_range_slot == OutOfRangeSlot::kDrop;
}

void check_type(const KvCacheInsertInput& input, std::string_view name, const Tensor& cache) {
  const DType fp8 = fp8_dtype(input.contract);
  if (cache.type() != fp8 && cache.type() != DType::kBFloat16)
    refuse("kv_cache_insert: {} is {}, must be {} or bfloat16", name, dtype_name(cache.type()),
           dtype_name(fp8));
}

void check_kv_cache(const KvCacheInsertInput& input, std::string_view name, const Tensor& cache) {
  check_type(input, name, cache);
  if (cache.rank() != 4) refuse("kv_cache_insert: {} has rank {}, must have 4", name, cache.rank());
  if (cache.layout().strides != Layout::dense(cache.dims()).strides)
    refuse("kv_cache_insert: {} has gaps between its elements, must be dense", name);
}

void check_kv_caches(const KvCacheInsertInput& input) {
  check_kv_cache(input, "k_cache", input.k_cache);
  check_kv_cache(input, "v_cache", input.v_cache);
  const bool shared = &input.k_cache == &input.v_cache;
  if (shared != (input.contract.kv_layout == KvLayout::kInterleaved))
    refuse("kv_cache_insert: k_cache and v_cache are {}, must be {}",
           shared ? "1 tensor" : "2 tensors",
           shared ? "2 under kv_layout=dense" : "1 under kv_layout=interleaved");
  if (input.k_cache.type() != input.v_cache.type() || input.k_cache.dims() != input.v_cache.dims())
    refuse("kv_cache_insert: v_cache is {} of [{}], must be as k_cache is, {} of [{}]",
           dtype_name(input.v_cache.type()), fmt::join(input.v_cache.dims(), ", "),
           dtype_name(input.k_cache.type()), fmt::join(input.k_cache.dims(), ", "));
}

/// The geometry that the dims of the caches and of k stand for.
KvPageShape geometry(const KvCacheInsertInput& input) {
  const std::vector<std::int64_t>& dims = input.k_cache.dims();
  const std::int64_t sides = input.contract.kv_layout == KvLayout::kInterleaved ? 2 : 1;
  const std::int64_t head_dim = input.k.dim(2);
  if (dims[1] % sides != 0)
    refuse("kv_cache_insert: k_cache has {} pages a block, must be a multiple of {}", dims[1],
           sides);
  if (head_dim < 1 || dims[3] % head_dim != 0)
    refuse("kv_cache_insert: k_cache has {} elements a page and head, must be a multiple of {}",
           dims[3], head_dim);
  const std::int64_t page_size = dims[3] / head_dim;
  const KvPageShape shape{.layout = input.contract.kv_layout,
                          .blocks = dims[0],
                          .kv_heads = dims[2],
                          .head_dim = head_dim,
                          .element_size = static_cast<std::int64_t>(input.k_cache.element_size()),
                          .block_size = dims[1] / sides * page_size,
                          .page_size = page_size};
  shape.validate();
  return shape;
}

void check_rows(const KvCacheInsertInput& input, const KvPageShape& shape) {
  const std::int64_t n = input.k.dim(0);
  require_dims("kv_cache_insert: k", input.k, {n, shape.kv_heads, shape.head_dim});
  require_dims("kv_cache_insert: v", input.v, {n, shape.kv_heads, shape.head_dim});
  require_dims("kv_cache_insert: index_k", input.index_k, {n, 1, shape.head_dim});
  const Tensor& slots = input.slot_mapping;
  if (slots.type() != DType::kInt64 || slots.rank() != 1)
    refuse("kv_cache_insert: slot_mapping is {} of rank {}, must be int64 of rank 1",
           dtype_name(slots.type()), slots.rank());
  if (!drops(input) && slots.dim(0) != n)
    refuse("kv_cache_insert: slot_mapping has {} entries, must have {}, one for each row of k",
           slots.dim(0), n);
}

void check_index_cache(const KvCacheInsertInput& input, const KvPageShape& shape) {
  const Tensor& cache = input.index_cache;
  check_type(input, "index_cache", cache);
  if (cache.rank() != 3)
    refuse("kv_cache_insert: index_cache has rank {}, must have 3", cache.rank());
  const std::array<std::int64_t, 3> dims{shape.blocks, shape.block_size, shape.head_dim};
  for (std::size_t axis = 0; axis < dims.size(); ++axis)
    if (cache.dim(axis) != dims[axis])
      refuse("kv_cache_insert: index_cache has {} in dimension {}, must have {}", cache.dim(axis),
             axis, dims[axis]);
}

float checked_scale(const KvCacheInsertInput& input, std::string_view name, double scale) {
  const auto narrow = static_cast<float>(scale);
  if (!(narrow > 0.0f) || !std::isfinite(narrow))
    refuse("kv_cache_insert: {} is {}, must be above 0 and finite in binary32", name, scale);
  if (input.k_cache.type() == DType::kBFloat16 && narrow != 1.0f)
    refuse("kv_cache_insert: {} is {}, must be 1 for a bfloat16 cache", name, scale);
  return narrow;
}

/// Refuses a slot whose page is not in the storage of a cache.
void check_page_is_stored(const KvPageShape& shape, const RowWrite& write, std::string_view name,
                          const Tensor& cache, std::int64_t first_byte) {
  const std::int64_t page = first_byte / shape.page_bytes() * shape.page_bytes();
  const std::int64_t offset = page / shape.element_size;
  const std::int64_t count = shape.page_bytes() / shape.element_size;
  if (!holds_run(cache.layout(), offset, count))
    refuse(
        "kv_cache_insert: slot_mapping[{}] is {}, its page {} of {} is elements {} to {}, must lie"
        " in one run of its storage, {}",
        write.row, write.slot, page / shape.page_bytes(), name, offset, offset + count - 1,
        stored_text(cache.layout()));
}

/// All rows that are stored, after every check of slots.
std::vector<RowWrite> plan(const KvCacheInsertInput& input, const KvPageShape& shape) {
  const auto slots = input.slot_mapping.view<std::int64_t, 1>();
  const std::int64_t capacity = shape.blocks * shape.block_size;
  std::vector<RowWrite> writes;
  std::map<std::int64_t, std::int64_t> row_of_slot;
  for (std::int64_t row = 0; row < std::min(input.k.dim(0), slots.dim(0)); ++row) {
    const std::int64_t slot = slots(row);
    if (slot < 0 || (slot >= capacity && drops(input))) continue;
    if (slot >= capacity)
      refuse("kv_cache_insert: slot_mapping[{}] is {}, limit {} ({} blocks of {})", row, slot,
             capacity - 1, shape.blocks, shape.block_size);
    const auto [earlier, fresh] = row_of_slot.emplace(slot, row);
    if (!fresh)
      refuse("kv_cache_insert: slot_mapping is {} in rows {} and {}, limit one row a slot", slot,
             earlier->second, row);
    writes.push_back({row, slot});
    const KvElement first{slot, 0, 0};
    check_page_is_stored(shape, writes.back(), "k_cache", input.k_cache, k_byte(shape, first));
    check_page_is_stored(shape, writes.back(), "v_cache", input.v_cache,
                         v_byte(shape, first) + shape.v_view_offset());
  }
  return writes;
}

float key_source(const KvCacheInsertInput& input, float k) {
  return input.contract.key_source == KeySource::kBf16 ? round_to_bf16(k) : k;
}

float scaled(const KvCacheInsertInput& input, float value, float scale) {
  return input.contract.kv_scale == KvScale::kReciprocal ? value * portable_rcp(scale)
                                                         : portable_div(value, scale);
}

/// Index keys as the index cache stores them, [n, head_dim].
Tensor index_keys(const KvCacheInsertInput& input) {
  const Fp8Rules fp8 = fp8_rules(input.contract);
  const std::int64_t n = input.index_k.dim(0);
  const std::int64_t head_dim = input.index_k.dim(2);
  Tensor keys(input.index_cache.type(), Layout::dense({n, head_dim}));
  for (std::int64_t row = 0; row < n; ++row)
    for (std::int64_t d = 0; d < head_dim; ++d) {
      const float value = input.index_k(row, 0, d);
      if (keys.type() == DType::kBFloat16)
        keys.view<std::uint16_t, 2>()(row, d) = bf16_from_float(value);
      else
        keys.view<std::uint8_t, 2>()(row, d) = fp8.encode(key_source(input, value));
    }
  return keys;
}

IndexCacheInsertInput index_input(const KvCacheInsertInput& input, const Tensor& keys) {
  return {keys, input.index_cache, input.slot_mapping, input.contract.out_of_range_slot};
}

template <class Code>
void put(Tensor& cache, std::int64_t byte, Code code) {
  std::memcpy(cache.base() + byte, &code, sizeof(code));
}

void store_element(const KvCacheInsertInput& input, const KvCacheInsertOutput& output,
                   const KvPageShape& shape, std::int64_t row, const KvElement& at) {
  const float k = input.k(row, at.head, at.dim);
  const std::uint16_t v = input.v(row, at.head, at.dim);
  const std::int64_t to_k = k_byte(shape, at);
  const std::int64_t to_v = v_byte(shape, at) + shape.v_view_offset();
  if (shape.element_size == 2) {
    put(output.k_cache, to_k, bf16_from_float(k));
    put(output.v_cache, to_v, v);
    return;
  }
  const Fp8Rules fp8 = fp8_rules(input.contract);
  const auto k_scale = static_cast<float>(input.k_scale);
  const auto v_scale = static_cast<float>(input.v_scale);
  put(output.k_cache, to_k, fp8.encode(scaled(input, key_source(input, k), k_scale)));
  put(output.v_cache, to_v, fp8.encode(scaled(input, float_from_bf16(v), v_scale)));
}

void check_output(std::string_view name, const Tensor& before, const Tensor& after) {
  if (after.type() != before.type() || after.layout() != before.layout())
    refuse(
        "kv_cache_insert: output {} is {} of {} stored elements, must be {} of {} in the layout of"
        " the input",
        name, dtype_name(after.type()), after.layout().stored(), dtype_name(before.type()),
        before.layout().stored());
}

void check_outputs(const KvCacheInsertInput& input, const KvCacheInsertOutput& output) {
  if ((&output.k_cache == &output.v_cache) != (&input.k_cache == &input.v_cache))
    refuse("kv_cache_insert: output k_cache and v_cache must be as many tensors as in the input");
  check_output("k_cache", input.k_cache, output.k_cache);
  check_output("v_cache", input.v_cache, output.v_cache);
  check_output("index_cache", input.index_cache, output.index_cache);
}

void copy_content(const Tensor& before, Tensor& after) {
  if (&after != &before) after.set_image(before.image());
}

/// The geometry, all checks done.
KvPageShape checked(const KvCacheInsertInput& input) {
  check_kv_caches(input);
  const KvPageShape shape = geometry(input);
  check_rows(input, shape);
  check_index_cache(input, shape);
  checked_scale(input, "k_scale", input.k_scale);
  checked_scale(input, "v_scale", input.v_scale);
  return shape;
}

}  // namespace

KvPageShape kv_cache_insert_shape(const KvCacheInsertInput& input) {
  const KvPageShape shape = checked(input);
  static_cast<void>(plan(input, shape));
  static_cast<void>(index_cache_insert_shape(index_input(input, index_keys(input))));
  return shape;
}

void kv_cache_insert(const KvCacheInsertInput& input, const KvCacheInsertOutput& output) {
  const KvPageShape shape = kv_cache_insert_shape(input);
  check_outputs(input, output);
  copy_content(input.k_cache, output.k_cache);
  copy_content(input.v_cache, output.v_cache);
  for (const RowWrite& write : plan(input, shape))
    for (std::int64_t head = 0; head < shape.kv_heads; ++head)
      for (std::int64_t dim = 0; dim < shape.head_dim; ++dim)
        store_element(input, output, shape, write.row, {write.slot, head, dim});
  index_cache_insert(index_input(input, index_keys(input)), {output.index_cache});
}

}  // namespace monoref
