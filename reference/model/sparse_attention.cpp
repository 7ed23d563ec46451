#include "reference/model/sparse_attention.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "reference/rules/attention_tile.hpp"
#include "reference/rules/block_selection.hpp"
#include "reference/rules/integer_division.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/stages/attention_merge.hpp"
#include "reference/stages/fp8_attention_partition.hpp"
#include "reference/stages/sparse_block_table.hpp"

namespace monoref {
namespace {

constexpr std::string_view kStage = "sparse_attention";
constexpr std::int64_t kTile = kPartitionKeys;
constexpr std::int64_t kMostSplits = 8;
constexpr std::int64_t kMostChunks = 256;

/// A selected block of a row: where its keys lie, and how many the row sees.
struct SelectedBlock {
  std::int64_t first_slot;
  std::int64_t keys;
};

/// Keys of one part that are evaluated together: `slots`, -1 where there is none.
struct PartTile {
  std::vector<std::int64_t> slots;
  std::vector<std::uint8_t> valid;
};
using Part = std::vector<PartTile>;

bool in_chunks(const SparseAttentionInput& input) {
  return input.contract.attention_plan == AttentionPlan::kChunks;
}

std::int64_t context(const SparseAttentionInput& input, std::int64_t row) {
  const std::int64_t length =
      input.seq_lens(row / input.q_len) - (input.q_len - 1 - row % input.q_len);
  return context_of(length, input.contract.empty_row);
}

KvPageShape geometry(const SparseAttentionInput& input) {
  const KvPageShape shape =
      attention_cache_shape(kStage, input.caches, input.q.dim(2), input.contract);
  if (shape.kv_heads != 1)
    refuse("{}: k_cache has {} kv heads, must have 1", kStage, shape.kv_heads);
  if (in_chunks(input) != (input.contract.attention_operands == AttentionOperands::kBf16))
    refuse("{}: attention_operands must be {}", kStage, in_chunks(input) ? "bf16" : "fp8");
  return shape;
}

SparseBlockTableDecodeInput table_input(const SparseAttentionInput& input,
                                        const KvPageShape& shape) {
  return {input.topk_idx, input.block_table,         input.seq_lens,
          input.q_len,    shape.block_page_stride(), {shape.block_size, shape.pages_per_block()}};
}

/// The block behind a logical id, with every check of its pages.
SelectedBlock resolved(const SparseAttentionInput& input, const KvPageShape& shape,
                       std::int64_t row, std::int64_t id) {
  const std::int64_t block = input.block_table(row / input.q_len, id);
  const std::int64_t keys = std::min(shape.block_size, context(input, row) - id * shape.block_size);
  for (std::int64_t page = 0; page * shape.page_size < keys; ++page)
    static_cast<void>(checked_page_slot(
        input.caches, shape, block * shape.block_page_stride() + page, {kStage, row, 0, page}));
  return {block * shape.block_size, keys};
}

/// Blocks in the order of sparse_block_table: the tail last.
std::vector<SelectedBlock> compacted(const SparseAttentionInput& input, const KvPageShape& shape,
                                     std::int64_t row) {
  const std::int64_t keys = context(input, row);
  const std::int64_t own = (keys - 1) / shape.block_size;
  std::vector<SelectedBlock> blocks;
  bool tail = false;
  for (std::int64_t rank = 0; keys > 0 && rank < input.topk_idx.dim(2); ++rank) {
    const std::int64_t id = input.topk_idx(0, row, rank);
    tail = tail || id == own;
    if (id >= 0 && id < own) blocks.push_back(resolved(input, shape, row, id));
  }
  if (tail) blocks.push_back(resolved(input, shape, row, own));
  return blocks;
}

/// Blocks as selected, the first of them that the row can have.
std::vector<SelectedBlock> as_selected(const SparseAttentionInput& input, const KvPageShape& shape,
                                       std::int64_t row) {
  const std::int64_t own = ceil_divide(context(input, row), shape.block_size);
  std::vector<SelectedBlock> blocks;
  for (std::int64_t rank = 0; rank < std::min(input.topk_idx.dim(2), own); ++rank) {
    const std::int64_t id = input.topk_idx(0, row, rank);
    if (id < 0 || id >= own)
      refuse("{}: topk_idx of row {} holds block {}, must be 0 to {}", kStage, row, id, own - 1);
    blocks.push_back(resolved(input, shape, row, id));
  }
  return blocks;
}

std::vector<SelectedBlock> selected(const SparseAttentionInput& input, const KvPageShape& shape,
                                    std::int64_t row) {
  return in_chunks(input) ? as_selected(input, shape, row) : compacted(input, shape, row);
}

/// All keys below the context, by slot.
std::vector<std::int64_t> key_slots(const std::vector<SelectedBlock>& blocks) {
  std::vector<std::int64_t> slots;
  for (const SelectedBlock& block : blocks)
    for (std::int64_t key = 0; key < block.keys; ++key) slots.push_back(block.first_slot + key);
  return slots;
}

/// Slots of a tile of compacted keys, of which [begin, end) are the part's own. Past the context
/// lie the rest of the last page, then page 0 (what a zero in the page table names).
PartTile compact_tile(const std::vector<std::int64_t>& slots, const KvPageShape& shape,
                      std::int64_t first, std::int64_t begin, std::int64_t end) {
  PartTile tile;
  const auto count = static_cast<std::int64_t>(slots.size());
  const std::int64_t paged = ceil_divide(count, shape.page_size) * shape.page_size;
  for (std::int64_t key = first; key < first + kTile; ++key) {
    std::int64_t slot = key % shape.page_size;
    if (key < count)
      slot = slots[static_cast<std::size_t>(key)];
    else if (key < paged)
      slot = slots.back() + key - (count - 1);
    tile.slots.push_back(slot);
    tile.valid.push_back(begin <= key && key < end);
  }
  return tile;
}

std::vector<Part> split_parts(const SparseAttentionInput& input, const KvPageShape& shape,
                              std::int64_t row) {
  const std::vector<std::int64_t> slots = key_slots(compacted(input, shape, row));
  const auto count = static_cast<std::int64_t>(slots.size());
  const std::int64_t splits =
      std::min(ceil_divide(2 * input.compute_units, input.q.dim(0)), kMostSplits);
  const std::int64_t length = ceil_divide(count, splits);
  std::vector<Part> parts(static_cast<std::size_t>(splits));
  for (std::int64_t i = 0; i < splits; ++i) {
    const std::int64_t begin = i * length;
    const std::int64_t end = std::min(count, begin + length);
    for (std::int64_t first = begin / kTile * kTile; begin < end && first < end; first += kTile)
      parts[static_cast<std::size_t>(i)].push_back(compact_tile(slots, shape, first, begin, end));
  }
  return parts;
}

std::vector<Part> chunk_parts(const SparseAttentionInput& input, const KvPageShape& shape,
                              std::int64_t row) {
  const std::vector<SelectedBlock> blocks = as_selected(input, shape, row);
  const std::int64_t topk = input.topk_idx.dim(2);
  const auto chunks = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(
      std::max<std::int64_t>(1, std::min(topk, kMostChunks / input.q.dim(0))))));
  const std::int64_t run = ceil_divide(topk, chunks);
  std::vector<Part> parts(static_cast<std::size_t>(chunks));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    PartTile tile;
    for (std::int64_t key = 0; key < shape.block_size; ++key) {
      tile.slots.push_back(blocks[i].first_slot + key);
      tile.valid.push_back(key < blocks[i].keys);
    }
    parts[static_cast<std::size_t>(static_cast<std::int64_t>(i) / run)].push_back(std::move(tile));
  }
  return parts;
}

AttentionRules rules_of(const SparseAttentionInput& input) {
  return {input.contract, input.sm_scale, k_scale_of(input.caches, 0), v_scale_of(input.caches, 0)};
}

AttentionTile gather(const SparseAttentionInput& input, const KvPageShape& shape,
                     const AttentionRules& rules, const PartTile& part) {
  AttentionTile tile;
  tile.dim = static_cast<std::size_t>(shape.head_dim);
  tile.valid = part.valid;
  tile.k.assign(part.slots.size() * tile.dim, 0.0f);
  tile.v.assign(part.slots.size() * tile.dim, 0.0f);
  const bool keeps_v = input.contract.v_past_context == VPastContext::kKept;
  for (std::size_t j = 0; j < part.slots.size(); ++j) {
    const std::span<float> k(&tile.k[j * tile.dim], tile.dim);
    const std::span<float> v(&tile.v[j * tile.dim], tile.dim);
    if (part.valid[j]) read_key(input.caches, shape, part.slots[j], 0, k);
    if (part.valid[j] || keeps_v) read_value(input.caches, shape, part.slots[j], 0, v);
    for (float& value : k) value = rules.key(value);
    for (float& value : v) value = rules.value(value);
  }
  return tile;
}

/// Partial results of one row, as stage attention_merge takes them.
struct PartialRow {
  Tensor o, m, l;

  PartialRow(std::int64_t parts, std::int64_t heads, std::int64_t dim)
      : o(DType::kBFloat16, Layout::dense({1, parts, heads, dim})),
        m(DType::kFloat32, Layout::dense({1, parts, heads})),
        l(DType::kFloat32, Layout::dense({1, parts, heads})) {}

  void set(const AttentionRules& rules, std::int64_t part, std::int64_t head,
           const HeadState& state) {
    float weight = state.m;
    if (!state.empty && rules.contract.merge_weights == MergeWeights::kLseBase2)
      weight = state.m + static_cast<float>(std::log2(static_cast<double>(state.l)));
    if (!state.empty && rules.contract.merge_weights == MergeWeights::kLseBaseE)
      weight = state.m + static_cast<float>(std::log(static_cast<double>(state.l)));
    m.view<float, 3>()(0, part, head) = weight;
    l.view<float, 3>()(0, part, head) = state.l;
    const std::vector<float> values = finished(rules, state);
    for (std::size_t d = 0; d < values.size(); ++d)
      o.view<std::uint16_t, 4>()(0, part, head, d) = bf16_from_float(values[d]);
  }
};

void write_row(const SparseAttentionInput& input, const KvPageShape& shape,
               const std::vector<Part>& parts, std::int64_t row,
               const SparseAttentionOutput& output) {
  const AttentionRules rules = rules_of(input);
  const std::int64_t heads = input.q.dim(1);
  PartialRow partial(static_cast<std::int64_t>(parts.size()), heads, shape.head_dim);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    std::vector<HeadState> states(static_cast<std::size_t>(heads),
                                  HeadState(static_cast<std::size_t>(shape.head_dim)));
    for (const PartTile& tile : parts[part]) {
      const AttentionTile gathered = gather(input, shape, rules, tile);
      for (std::int64_t head = 0; head < heads; ++head) {
        std::vector<float> q(gathered.dim);
        for (std::size_t d = 0; d < q.size(); ++d)
          q[d] = rules.query(float_from_bf16(input.q(row, head, d)));
        attend_tile(rules, q, gathered, states[static_cast<std::size_t>(head)]);
      }
    }
    for (std::int64_t head = 0; head < heads; ++head)
      partial.set(rules, static_cast<std::int64_t>(part), head,
                  states[static_cast<std::size_t>(head)]);
  }
  const View<std::uint16_t, 3> one_row(
      &output.out(row, 0, 0), {1, heads, shape.head_dim},
      {output.out.stride(0), output.out.stride(1), output.out.stride(2)});
  attention_merge({partial.o.view<std::uint16_t, 4>(), partial.m.view<float, 3>(),
                   partial.l.view<float, 3>(), input.contract},
                  {one_row});
}

/// The plan of the mono kernels: the stages themselves, row by row.
std::vector<Part> partition_parts(const SparseAttentionInput& input, const KvPageShape& shape,
                                  std::int64_t row) {
  const std::vector<std::int64_t> slots = key_slots(compacted(input, shape, row));
  const auto count = static_cast<std::int64_t>(slots.size());
  const std::int64_t keys = input.topk_idx.dim(2) * shape.block_size;
  std::vector<Part> parts;
  for (std::int64_t first = 0; first < keys; first += kTile)
    parts.push_back({compact_tile(slots, shape, first, 0, count)});
  return parts;
}

std::vector<Part> parts_of(const SparseAttentionInput& input, const KvPageShape& shape,
                           std::int64_t row) {
  switch (input.contract.attention_plan) {
    case AttentionPlan::kSplits:
      return split_parts(input, shape, row);
    case AttentionPlan::kChunks:
      return chunk_parts(input, shape, row);
    default:
      return partition_parts(input, shape, row);
  }
}

}  // namespace

std::array<std::int64_t, 3> sparse_attention_shape(const SparseAttentionInput& input) {
  const KvPageShape shape = geometry(input);
  const auto table = sparse_block_table_decode_shape(table_input(input, shape));
  if (input.compute_units < 1)
    refuse("{}: compute_units is {}, must be at least 1", kStage, input.compute_units);
  const std::int64_t rows = table.sparse_context_lens[0];
  require_dims("sparse_attention: q", input.q, {rows, input.q.dim(1), shape.head_dim});
  if (input.contract.v_past_context == VPastContext::kKept && rows > 0)
    static_cast<void>(checked_page_slot(input.caches, shape, 0, {kStage, 0, 0, 0}));
  for (std::int64_t row = 0; row < rows; ++row) static_cast<void>(selected(input, shape, row));
  return {rows, input.q.dim(1), shape.head_dim};
}

void sparse_attention(const SparseAttentionInput& input, const SparseAttentionOutput& output) {
  const auto dims = sparse_attention_shape(input);
  require_dims("sparse_attention: output out", output.out, dims);
  const KvPageShape shape = geometry(input);
  for (std::int64_t row = 0; row < dims[0]; ++row)
    write_row(input, shape, parts_of(input, shape, row), row, output);
}

AttendedKeys attended_keys(const SparseAttentionInput& input, std::int64_t row) {
  const KvPageShape shape = geometry(input);
  const AttentionRules rules = rules_of(input);
  AttendedKeys keys;
  keys.dim = static_cast<std::size_t>(shape.head_dim);
  const std::vector<std::int64_t> slots = key_slots(selected(input, shape, row));
  keys.k.resize(slots.size() * keys.dim);
  keys.v.resize(slots.size() * keys.dim);
  for (std::size_t j = 0; j < slots.size(); ++j) {
    read_key(input.caches, shape, slots[j], 0, {&keys.k[j * keys.dim], keys.dim});
    read_value(input.caches, shape, slots[j], 0, {&keys.v[j * keys.dim], keys.dim});
  }
  for (float& value : keys.k) value = rules.key(value);
  for (float& value : keys.v) value = rules.value(value);
  return keys;
}

}  // namespace monoref
