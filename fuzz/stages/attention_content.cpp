#include "fuzz/stages/attention_content.hpp"

#include <algorithm>

#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"
#include "fuzz/stages/kv_content.hpp"
#include "reference/rules/fp8_rules.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBlock = 128;

/// Calls use(slot) for every key that some request reaches.
template <class Use>
void for_each_reached_key(const ReachedBlocks& blocks, Use use) {
  for (std::int64_t block = 0; block < blocks.count(); ++block)
    for (std::int64_t key = 0; key < blocks.reaches[static_cast<std::size_t>(block)]; ++key)
      use(block * kBlock + key);
}

Tensor all_nan(DType type, std::vector<std::int64_t> dims) {
  Tensor cache(type, Layout::dense(std::move(dims)));
  cache.fill_bytes(std::byte{static_cast<std::uint8_t>(float_format(type).canonical_nan())});
  return cache;
}

}  // namespace

ReachedBlocks::ReachedBlocks(const std::vector<std::int32_t>& lengths, std::int64_t columns,
                             CounterRandom& random)
    : width(columns),
      ids(make_block_ids(TableIds::kShuffled, static_cast<std::int64_t>(lengths.size()) * columns,
                         0, random)),
      reaches(ids.size() + 1, 0) {
  reaches[0] = 1;  // key 0 of page 0, which rows of padding attend to
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::size_t request = i / static_cast<std::size_t>(width);
    const std::int64_t first = static_cast<std::int64_t>(i) % width * kBlock;
    reaches[static_cast<std::size_t>(ids[i])] =
        std::clamp<std::int64_t>(std::max(lengths[request], 1) - first, 0, kBlock);
  }
}

KvCaches reached_kv_caches(const ReachedBlocks& blocks, std::int64_t head_dim,
                           const Contract& contract, CounterRandom& random) {
  const DType type = fp8_dtype(contract);
  const FloatFormat& format = float_format(type);
  const KvPageShape shape{
      .layout = contract.kv_layout, .blocks = blocks.count(), .head_dim = head_dim};
  const std::vector<std::int64_t> dims{shape.blocks, shape.block_page_stride(), 1,
                                       head_dim * shape.page_size};
  KvCaches caches{all_nan(type, dims), std::nullopt};
  if (shape.layout == KvLayout::kDense) caches.v = all_nan(type, dims);
  Tensor& v_side = caches.v ? *caches.v : caches.k;
  for_each_reached_key(blocks, [&](std::int64_t slot) {
    const KeyBytes key(shape, slot, 0);
    for (std::int64_t d = 0; d < head_dim; ++d) {
      caches.k.base()[key.k(d)] = std::byte{draw_code(format, false, random)};
      v_side.base()[shape.v_view_offset() + key.v(d)] = std::byte{draw_code(format, false, random)};
    }
  });
  return caches;
}

Tensor reached_index_cache(const ReachedBlocks& blocks, std::int64_t head_dim,
                           const Contract& contract, CounterRandom& random) {
  const DType type = fp8_dtype(contract);
  const FloatFormat& format = float_format(type);
  Tensor cache = all_nan(type, {blocks.count(), kBlock, head_dim});
  for_each_reached_key(blocks, [&](std::int64_t slot) {
    for (std::int64_t d = 0; d < head_dim; ++d)
      cache.base()[slot * head_dim + d] = std::byte{draw_code(format, false, random)};
  });
  return cache;
}

}  // namespace monoref
