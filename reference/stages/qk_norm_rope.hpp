// Stage qk_norm_rope: norm of each head and partial NeoX rotation of q, k, index q and index k.
#pragma once

#include <cstdint>

#include "reference/core/tensor.hpp"

namespace monoref {

/// Heads of one row of the fused projection, in this order: q, k, v, index q, and one index k, each
/// head_dim wide.
struct HeadShape {
  std::int64_t q_heads = 16;
  std::int64_t kv_heads = 1;
  std::int64_t index_q_heads = 4;
  std::int64_t head_dim = 128;   ///< a multiple of 4 up to 128: 32 lanes own 4 dims each
  std::int64_t rotary_dim = 64;  ///< the first dims of a head; even, at most head_dim

  std::int64_t row_width() const { return (q_heads + 2 * kv_heads + index_q_heads + 1) * head_dim; }
  /// Where a part starts in a row.
  std::int64_t k_start() const { return q_heads * head_dim; }
  std::int64_t v_start() const { return k_start() + kv_heads * head_dim; }
  std::int64_t index_q_start() const { return v_start() + kv_heads * head_dim; }
  std::int64_t index_k_start() const { return index_q_start() + index_q_heads * head_dim; }

  /// Refuses numbers outside the ranges above; q, kv and index q heads are 1 to 1024.
  void validate() const;
};

struct QkNormRopeInput {
  View<const std::uint16_t, 2> qkv;      ///< [n, row_width] BF16, any strides; v is not read
  View<const std::int64_t, 1> position;  ///< [n]
  View<const std::uint16_t, 2> cos_sin;  ///< [positions, rotary_dim] BF16: the cosines, the sines
  View<const std::uint16_t, 1> q_gamma;  ///< [head_dim] BF16 each; the weight is gamma + 1
  View<const std::uint16_t, 1> k_gamma;
  View<const std::uint16_t, 1> index_q_gamma;
  View<const std::uint16_t, 1> index_k_gamma;
  double eps = 1e-6;  ///< rounded to binary32 once
  HeadShape shape{};
};

/// Queries are rounded; keys stay binary32, because what becomes of them (rounded to BF16 first or
/// not) is a choice of the cache insertion, which also takes v straight from the projection.
struct QkNormRopeOutput {
  View<std::uint16_t, 3> q;        ///< [n, q_heads, head_dim] BF16
  View<float, 3> k;                ///< [n, kv_heads, head_dim] binary32, unrounded
  View<std::uint16_t, 3> index_q;  ///< [n, index_q_heads, head_dim] BF16
  View<float, 3> index_k;          ///< [n, 1, head_dim] binary32, unrounded
};

/// The number of rows n. Refuses an invalid shape; arguments of other dims; an eps that is not
/// above 0 and finite in binary32; and a position below 0 or at or past the table's end, whatever
/// the row's slot is (bug case N07).
std::int64_t qk_norm_rope_rows(const QkNormRopeInput& input);

/// Per row and head e, in binary32 (mono-decode sections 3.6, 3.7 and 10; upstream-semantics 3.3):
///
///   ss   = lane l of 32 runs an fma chain from 0 over e[4l..4l+3]^2 (lanes past head_dim hold 0),
///          then an xor butterfly 16, 8, 4, 2, 1
///   rr   = rsq(ss / head_dim + eps)
///   n[d] = (e[d] * rr) * (gamma[d] + 1), with the gamma of the head's kind
///   with half = rotary_dim / 2 and i = d mod half:
///   out[d] = fma(n[d], cos[i], -(n[d + half] * sin[i]))  for d < half
///   out[d] = fma(n[d], cos[i], n[d - half] * sin[i])     for half <= d < rotary_dim
///   out[d] = n[d]                                        for d >= rotary_dim (bug case N05)
///
/// with cos and sin of the row's position and nothing rounded between norm and rotation. The pairs
/// are (i, i + half), not (2i, 2i + 1) (bug case N04). q and index_q are then rounded to BF16; a
/// NaN is canonical in all outputs.
///
/// Refuses what the rows function refuses and outputs of other dims, before it writes anything.
void qk_norm_rope(const QkNormRopeInput& input, const QkNormRopeOutput& output);

}  // namespace monoref
