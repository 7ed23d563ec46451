#include "reference/stages/fp8_attention_partition.hpp"

#include <algorithm>
#include <vector>

#include "reference/rules/attention_tile.hpp"
#include "reference/rules/integer_division.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

constexpr std::string_view kStage = "fp8_attention_partition";

KvPageShape geometry(const Fp8AttentionPartitionInput& input) {
  const KvPageShape shape =
      attention_cache_shape(kStage, input.caches, input.q.dim(2), input.contract);
  if (input.caches.k_cache.type() == DType::kBFloat16)
    refuse("{}: k_cache is bfloat16, must be {}", kStage, dtype_name(fp8_dtype(input.contract)));
  if (kPartitionKeys % shape.page_size != 0)
    refuse("{}: k_cache has pages of {} keys, must divide {}", kStage, shape.page_size,
           kPartitionKeys);
  if (input.q.dim(1) % shape.kv_heads != 0)
    refuse("{}: q has {} heads, must be a multiple of kv_heads {}", kStage, input.q.dim(1),
           shape.kv_heads);
  return shape;
}

bool keeps_v(const Fp8AttentionPartitionInput& input) {
  return input.contract.v_past_context == VPastContext::kKept;
}

/// Whether a page of the table is below the context. Others are not looked up.
bool is_read(const Fp8AttentionPartitionInput& input, const KvPageShape& shape, std::int64_t row,
             std::int64_t kv_head, std::int64_t column) {
  return column * shape.page_size < input.sparse_context_lens(row, kv_head);
}

void check_row(const Fp8AttentionPartitionInput& input, const KvPageShape& shape, std::int64_t row,
               std::int64_t kv_head) {
  const std::int64_t keys = input.sparse_block_table.dim(2) * shape.page_size;
  const std::int64_t context = input.sparse_context_lens(row, kv_head);
  if (context < 0 || context > keys)
    refuse("{}: sparse_context_lens[{}][{}] is {}, must be 0 to {}", kStage, row, kv_head, context,
           keys);
  for (std::int64_t column = 0; column < input.sparse_block_table.dim(2); ++column)
    if (is_read(input, shape, row, kv_head, column))
      static_cast<void>(checked_page_slot(input.caches, shape,
                                          input.sparse_block_table(row, kv_head, column),
                                          {kStage, row, kv_head, column}));
  if (keeps_v(input))
    static_cast<void>(checked_page_slot(input.caches, shape, 0, {kStage, row, kv_head, 0}));
}

/// The keys of one partition for one kv head; what is not read is zero.
AttentionTile gather(const Fp8AttentionPartitionInput& input, const KvPageShape& shape,
                     std::int64_t row, std::int64_t partition, std::int64_t kv_head) {
  AttentionTile tile;
  tile.dim = static_cast<std::size_t>(shape.head_dim);
  tile.k.assign(kPartitionKeys * tile.dim, 0.0f);
  tile.v.assign(kPartitionKeys * tile.dim, 0.0f);
  tile.valid.assign(kPartitionKeys, 0);
  for (std::size_t j = 0; j < tile.valid.size(); ++j) {
    const std::int64_t key = partition * kPartitionKeys + static_cast<std::int64_t>(j);
    const std::int64_t column = key / shape.page_size;
    tile.valid[j] = key < input.sparse_context_lens(row, kv_head);
    if (!is_read(input, shape, row, kv_head, column) && !keeps_v(input)) continue;
    const std::int64_t page = is_read(input, shape, row, kv_head, column)
                                  ? input.sparse_block_table(row, kv_head, column)
                                  : 0;
    const std::int64_t slot =
        checked_page_slot(input.caches, shape, page, {kStage, row, kv_head, column}) +
        key % shape.page_size;
    if (tile.valid[j])
      read_key(input.caches, shape, slot, kv_head, {&tile.k[j * tile.dim], tile.dim});
    if (tile.valid[j] || keeps_v(input))
      read_value(input.caches, shape, slot, kv_head, {&tile.v[j * tile.dim], tile.dim});
  }
  return tile;
}

void write_head(const Fp8AttentionPartitionInput& input, const Fp8AttentionPartitionOutput& output,
                const AttentionRules& rules, const AttentionTile& tile, std::int64_t row,
                std::int64_t partition, std::int64_t head) {
  std::vector<float> q(tile.dim);
  for (std::size_t d = 0; d < q.size(); ++d)
    q[d] = rules.query(float_from_bf16(input.q(row, head, d)));
  HeadState state(tile.dim);
  attend_tile(rules, q, tile, state);
  const std::vector<float> o = finished(rules, state);
  for (std::size_t d = 0; d < o.size(); ++d)
    output.o(row, partition, head, d) = bf16_from_float(o[d]);
  output.m(row, partition, head) = state.m;
  output.l(row, partition, head) = state.l;
}

void check_output(const Fp8AttentionPartitionInput& input,
                  const Fp8AttentionPartitionOutput& output) {
  const Fp8AttentionPartitionShape shape = fp8_attention_partition_shape(input);
  require_dims("fp8_attention_partition: output o", output.o, shape.o);
  require_dims("fp8_attention_partition: output m", output.m, shape.m);
  require_dims("fp8_attention_partition: output l", output.l, shape.m);
}

}  // namespace

void check_partition_contract(const Contract& contract) {
  if (contract.attention_plan != AttentionPlan::kPartitions)
    refuse("{}: attention_plan is {}, must be partitions", kStage,
           contract.attention_plan == AttentionPlan::kSplits ? "splits" : "chunks");
  if (contract.attention_operands != AttentionOperands::kFp8)
    refuse("{}: attention_operands is bf16, must be fp8", kStage);
  static_cast<void>(fp8_maximum(contract));
}

Fp8AttentionPartitionShape fp8_attention_partition_shape(const Fp8AttentionPartitionInput& input) {
  check_partition_contract(input.contract);
  const KvPageShape shape = geometry(input);
  const std::int64_t rows = input.q.dim(0);
  const std::int64_t pages = input.sparse_block_table.dim(2);
  require_dims("fp8_attention_partition: sparse_block_table", input.sparse_block_table,
               {rows, shape.kv_heads, pages});
  require_dims("fp8_attention_partition: sparse_context_lens", input.sparse_context_lens,
               {rows, shape.kv_heads});
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head)
      check_row(input, shape, row, kv_head);
  const std::int64_t partitions = ceil_divide(pages * shape.page_size, kPartitionKeys);
  return {{rows, partitions, input.q.dim(1), shape.head_dim}, {rows, partitions, input.q.dim(1)}};
}

void fp8_attention_partition(const Fp8AttentionPartitionInput& input,
                             const Fp8AttentionPartitionOutput& output) {
  check_output(input, output);
  const KvPageShape shape = geometry(input);
  const std::int64_t group = input.q.dim(1) / shape.kv_heads;
  for (std::int64_t row = 0; row < output.o.dim(0); ++row)
    for (std::int64_t partition = 0; partition < output.o.dim(1); ++partition)
      for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
        const AttentionTile tile = gather(input, shape, row, partition, kv_head);
        const AttentionRules rules(input.contract, input.sm_scale,
                                   k_scale_of(input.caches, kv_head),
                                   v_scale_of(input.caches, kv_head));
        for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
          write_head(input, output, rules, tile, row, partition, head);
      }
}

}  // namespace monoref
