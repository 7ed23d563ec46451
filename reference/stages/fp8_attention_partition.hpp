// Stage fp8_attention_partition: partial attention of each row over 256 keys of its page table.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"
#include "reference/fast/isa.hpp"
#include "reference/rules/attention_caches.hpp"

namespace monoref {

/// Keys of one partition: slots 2t and 2t+1 of a selection of 128-key blocks.
inline constexpr std::int64_t kPartitionKeys = 256;

struct Fp8AttentionPartitionInput {
  View<const std::uint16_t, 3> q;                   ///< [rows, heads, head_dim] BF16, any strides
  View<const std::int32_t, 3> sparse_block_table;   ///< [rows, kv_heads, pages], K page ids
  View<const std::int32_t, 2> sparse_context_lens;  ///< [rows, kv_heads], keys
  AttentionCaches caches;
  double sm_scale = 0.08838834764831845;  ///< rounded to binary32 once
  Contract contract{};
};

struct Fp8AttentionPartitionOutput {
  View<std::uint16_t, 4> o;  ///< [rows, partitions, heads, head_dim] BF16
  View<float, 3> m;          ///< [rows, partitions, heads] binary32, largest score
  View<float, 3> l;          ///< [rows, partitions, heads] binary32, sum of p
};

struct Fp8AttentionPartitionShape {
  std::array<std::int64_t, 4> o{};
  std::array<std::int64_t, 3> m{};  ///< of m and of l
};

/// Refuses a contract whose attention is not dealt in partitions or not of FP8 operands, and one
/// that `fp8_maximum` refuses.
void check_partition_contract(const Contract& contract);

/// The output shapes, after every check of the input; partitions = ceil(16 * pages / 256).
///
/// Refuses: what `check_partition_contract` and `attention_cache_shape` refuse; heads that are not
/// whole groups of kv_heads; pages that do not divide 256 keys; tables and contexts of other row
/// counts than q; a context that is negative or longer than the table; a page below the context
/// that the caches do not have or do not store, or that is a page of V; and under the contract's
/// `kept` caches that do not store page 0.
Fp8AttentionPartitionShape fp8_attention_partition_shape(const Fp8AttentionPartitionInput& input);

/// The definition. Every kv head has its own selection (bug case S10); a stride of 0 shares one.
/// Key j of a row lies in page sparse_block_table[row][kv head][j div 16], token j mod 16 (16 being
/// the caches' page size), and is masked from the row's context on; partition t holds keys 256 t to
/// 256 t + 255. Head h reads kv head h div (heads / kv_heads). Each partition and head runs
/// `attend_tile` once, from q8 = fp8(q) at unit scale and the caches' codes, and stores
///
///   o = bf16(((v_scale * f32(1/448)) * acc) * (1 / (l > 0 ? l : 1))), m and l
///
/// (mono-decode sections 6 and 10). A partition past the context runs like others: with the finite
/// mask m = -3.4e38, l = 256 and o = 0. 448 is the contract's FP8 maximum, or 1 if p is not scaled;
/// conversions do not clamp unless the contract saturates. Table entries past the context are not
/// looked at, nor is memory of masked keys; under `kept`, V of masked keys is: in the last page
/// what it holds there, in pages past the context that of page 0, which a zero-filled table names.
///
/// Refuses what the shape function refuses and outputs of other dims, before it writes anything.
void fp8_attention_partition(const Fp8AttentionPartitionInput& input,
                             const Fp8AttentionPartitionOutput& output);

/// Bit for bit the same, vectorised across keys, heads and dims: each chain stays sequential.
void fp8_attention_partition_fast(const Fp8AttentionPartitionInput& input,
                                  const Fp8AttentionPartitionOutput& output, Isa isa = best_isa());

}  // namespace monoref
