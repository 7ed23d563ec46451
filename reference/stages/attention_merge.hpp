// Stage attention_merge: partial results of each row and head into one.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

struct AttentionMergeInput {
  View<const std::uint16_t, 4> o;  ///< [rows, partitions, heads, head_dim] BF16, any strides
  View<const float, 3> m;          ///< [rows, partitions, heads], largest score or log-sum
  View<const float, 3> l;          ///< the same, sum of p; not read where m is a log-sum
  Contract contract{};
};

struct AttentionMergeOutput {
  View<std::uint16_t, 3> out;  ///< [rows, heads, head_dim] BF16
};

/// The dims of the output. Refuses no partitions at all and sums of other dims than the partial
/// results have.
std::array<std::int64_t, 3> attention_merge_shape(const AttentionMergeInput& input);

/// Per row and head, in binary32 (mono-decode sections 6 and 10):
///
///   M     = max m[i], NaN wins
///   sl[i] = l[i] * exp2((m[i] - M) * log2 e)
///   S     = sl[0] + sl[1] + ... in order, from the first; 1 instead of anything not above 0
///   w[i]  = sl[i] / S, correctly rounded
///   out   = bf16(0 + w[0] * o[0] + w[1] * o[1] + ...) in order, products and sums rounded
///           separately, or fused by the contract
///
/// Log-sums (upstream-semantics section 6.2): sl[i] = exp2(m[i] - M) in base 2, exp2((m[i] - M) *
/// log2 e) in base e.
///
/// A partition of masked keys alone has m = -3.4e38, l = 256 and o = 0 under the finite mask, and
/// vanishes by arithmetic. Where the contract skips empty partial results, one with m at most
/// -FLT_MAX, -Inf included, has sl = 0 and its o is not read (bug case T21); a row of nothing else
/// is 0 (bug case S26).
///
/// Refuses what the shape function refuses and an output of other dims, before it writes anything.
void attention_merge(const AttentionMergeInput& input, const AttentionMergeOutput& output);

}  // namespace monoref
