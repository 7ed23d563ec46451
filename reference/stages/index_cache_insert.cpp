#include "reference/stages/index_cache_insert.hpp"

#include <algorithm>
#include <cstring>

#include "reference/rules/stage_checks.hpp"
#include "reference/rules/stored_elements.hpp"

namespace monoref {
namespace {

/// One row that is stored: where it goes, in elements from the cache's base.
struct RowWrite {
  std::int64_t row;
  std::int64_t slot;
  std::int64_t offset;
};

bool is_empty_call(const IndexCacheInsertInput& input) {
  return input.index_k.empty() || input.index_cache.empty();
}

/// The argument errors of sparse-pa, in its order.
void check_arguments(const IndexCacheInsertInput& input) {
  if (input.index_k.rank() != 2)
    refuse("index_cache_insert: index_k has rank {}, must have 2", input.index_k.rank());
  if (input.index_cache.rank() != 3)
    refuse("index_cache_insert: index_cache has rank {}, must have 3", input.index_cache.rank());
  if (input.index_k.dim(1) != input.index_cache.dim(2))
    refuse("index_cache_insert: index_k has head dim {}, must have {} as index_cache has",
           input.index_k.dim(1), input.index_cache.dim(2));
  if (input.slot_mapping.rank() != 1)
    refuse("index_cache_insert: slot_mapping has rank {}, must have 1", input.slot_mapping.rank());
  if (input.out_of_range_slot == OutOfRangeSlot::kRefuse &&
      input.slot_mapping.dim(0) != input.index_k.dim(0))
    refuse(
        "index_cache_insert: slot_mapping has {} entries, must have {}, one for each row of "
        "index_k",
        input.slot_mapping.dim(0), input.index_k.dim(0));
  if (input.index_cache.layout().strides[2] != 1)
    refuse("index_cache_insert: index_cache has stride {} in its head dim, must have 1",
           input.index_cache.layout().strides[2]);
}

void check_types(const IndexCacheInsertInput& input) {
  if (input.index_k.type() != input.index_cache.type())
    refuse("index_cache_insert: index_k is {}, index_cache is {}, must be the same type",
           dtype_name(input.index_k.type()), dtype_name(input.index_cache.type()));
  if (input.index_k.element_size() > 4)
    refuse("index_cache_insert: index_k is {} of {} bytes, must have 1, 2 or 4",
           dtype_name(input.index_k.type()), input.index_k.element_size());
  const DType slots = input.slot_mapping.type();
  if (slots != DType::kInt32 && slots != DType::kInt64)
    refuse("index_cache_insert: slot_mapping is {}, must be int32 or int64", dtype_name(slots));
}

/// Different slots own different elements if each axis steps over all that lies inside it.
void check_slots_are_apart(const Layout& cache) {
  std::size_t outer = 0;
  std::size_t inner = 1;
  // A transposed cache is legal: the axis of the longer step is the outer one. An axis of one
  // element makes no step.
  if (cache.dims[0] == 1 || (cache.dims[1] > 1 && cache.strides[0] < cache.strides[1]))
    std::swap(outer, inner);
  std::int64_t reach = cache.dims[2];
  for (const std::size_t axis : {inner, outer}) {
    if (cache.dims[axis] == 1) continue;
    if (cache.strides[axis] < reach)
      refuse("index_cache_insert: index_cache has stride {} in dimension {}, must be at least {}",
             cache.strides[axis], axis, reach);
    reach += (cache.dims[axis] - 1) * cache.strides[axis];
  }
}

std::int64_t slot_at(const Tensor& slots, std::int64_t row) {
  if (slots.type() == DType::kInt32) return slots.view<std::int32_t, 1>()(row);
  return slots.view<std::int64_t, 1>()(row);
}

void check_key_is_stored(const Tensor& index_k, std::int64_t row) {
  const Layout& layout = index_k.layout();
  if (layout.extents.size() == 1) return;  // the layout itself vouches for one run
  for (std::int64_t d = 0; d < layout.dims[1]; ++d) {
    const std::int64_t offset = row * layout.strides[0] + d * layout.strides[1];
    if (!holds_run(layout, offset, 1))
      refuse(
          "index_cache_insert: index_k row {} dim {} is element {}, must be one that is stored, {}",
          row, d, offset, stored_text(layout));
  }
}

void check_slots_are_distinct(std::vector<RowWrite> writes) {
  std::stable_sort(writes.begin(), writes.end(),
                   [](const RowWrite& a, const RowWrite& b) { return a.slot < b.slot; });
  const auto twice =
      std::adjacent_find(writes.begin(), writes.end(),
                         [](const RowWrite& a, const RowWrite& b) { return a.slot == b.slot; });
  if (twice != writes.end())
    refuse("index_cache_insert: slot_mapping is {} in rows {} and {}, limit one row a slot",
           twice->slot, twice->row, (twice + 1)->row);
}

/// All rows that are stored, after every check. No offset can overflow: a tensor's layout is only
/// accepted if its last element's offset fits, and a slot below the capacity lies before it.
std::vector<RowWrite> plan(const IndexCacheInsertInput& input) {
  if (is_empty_call(input)) return {};
  check_arguments(input);
  check_types(input);
  const Layout& cache = input.index_cache.layout();
  check_slots_are_apart(cache);
  const std::int64_t block_size = cache.dims[1];
  const std::int64_t capacity = cache.dims[0] * block_size;
  const std::int64_t rows = std::min(input.index_k.dim(0), input.slot_mapping.dim(0));

  std::vector<RowWrite> writes;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t slot = slot_at(input.slot_mapping, row);
    if (slot < 0) continue;
    if (slot >= capacity) {
      if (input.out_of_range_slot == OutOfRangeSlot::kDrop) continue;
      refuse("index_cache_insert: slot_mapping[{}] is {}, limit {} ({} blocks of {})", row, slot,
             capacity - 1, cache.dims[0], block_size);
    }
    const std::int64_t offset =
        slot / block_size * cache.strides[0] + slot % block_size * cache.strides[1];
    if (!holds_run(cache, offset, cache.dims[2]))
      refuse(
          "index_cache_insert: slot_mapping[{}] is {}, its key of index_cache is elements {} to {},"
          " must lie in one run of its storage, {}",
          row, slot, offset, offset + cache.dims[2] - 1, stored_text(cache));
    check_key_is_stored(input.index_k, row);
    writes.push_back({row, slot, offset});
  }
  check_slots_are_distinct(writes);
  return writes;
}

void store(const Tensor& index_k, const RowWrite& write, Tensor& cache) {
  const std::size_t size = index_k.element_size();
  const Layout& keys = index_k.layout();
  for (std::int64_t d = 0; d < keys.dims[1]; ++d) {
    const std::int64_t from = write.row * keys.strides[0] + d * keys.strides[1];
    std::memcpy(cache.base() + static_cast<std::size_t>(write.offset + d) * size,
                index_k.base() + static_cast<std::size_t>(from) * size, size);
  }
}

}  // namespace

std::vector<std::int64_t> index_cache_insert_shape(const IndexCacheInsertInput& input) {
  static_cast<void>(plan(input));
  return input.index_cache.dims();
}

void index_cache_insert(const IndexCacheInsertInput& input, const IndexCacheInsertOutput& output) {
  const std::vector<RowWrite> writes = plan(input);
  Tensor& cache = output.index_cache;
  if (cache.type() != input.index_cache.type() || cache.layout() != input.index_cache.layout())
    refuse(
        "index_cache_insert: output index_cache is {} of {} stored elements, must be {} of {} in"
        " the layout of the input",
        dtype_name(cache.type()), cache.layout().stored(), dtype_name(input.index_cache.type()),
        input.index_cache.layout().stored());
  if (&cache != &input.index_cache) cache.set_image(input.index_cache.image());
  for (const RowWrite& write : writes) store(input.index_k, write, cache);
}

}  // namespace monoref
