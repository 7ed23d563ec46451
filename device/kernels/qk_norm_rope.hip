// qk_norm_rope: per-head gemma RMSNorm and partial NeoX rotation of q, k, index q and index k.
//
// Source of the rule: mono-decode section 3, step 6, and sections 8 and 10; upstream-semantics
// section 3.3. 32 lanes make one head of one token, lane l owning dims 4l .. 4l+3. Nothing is
// rounded between the norm and the rotation, and k is stored as f32: whether it is rounded to
// BF16 is up to the cache insertion.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/flat_grid.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/reductions.hpp"
#include "device/kernels/vector_access.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr int kLaneDims = 4;

/// The heads of a token that are normed, in this order.
enum class HeadType : std::int32_t { kQ, kK, kIndexQ, kIndexK };

/// Sizes that all tokens share.
struct HeadShape {
  std::int32_t q_heads, kv_heads, index_heads, head_dim, rotary_dim;

  /// Index heads come with one index key head.
  MONOREF_MEMBER std::int32_t heads() const {
    return q_heads + kv_heads + (index_heads > 0 ? index_heads + 1 : 0);
  }
};

/// One head: its type, its number within the type, and its number within a row of the projection.
struct Head {
  HeadType type;
  std::int32_t number;
  std::int32_t column;
};

/// Head `n` of a token's heads() that are normed. The row has the V heads behind those of K.
MONOREF_DEVICE Head head_of(const HeadShape& shape, std::int32_t n) {
  const std::int32_t behind_k = n - shape.q_heads - shape.kv_heads;
  const std::int32_t skipped =
      MONOREF_FAULT(rope_v_heads_not_skipped, "own", "index heads read from where v lies")
          ? 0
          : shape.kv_heads;
  if (n < shape.q_heads) return {HeadType::kQ, n, n};
  if (behind_k < 0) return {HeadType::kK, n - shape.q_heads, n};
  if (behind_k < shape.index_heads) return {HeadType::kIndexQ, behind_k, n + skipped};
  return {HeadType::kIndexK, 0, n + skipped};
}

/// The weight of a type.
MONOREF_DEVICE const std::uint16_t* gamma_of(HeadType type, const std::uint16_t* q,
                                             const std::uint16_t* k, const std::uint16_t* index_q,
                                             const std::uint16_t* index_k) {
  if (MONOREF_FAULT(rope_gamma_of_q, "N08", "every head takes the weight of q")) return q;
  if (MONOREF_FAULT(rope_index_gammas_swapped, "N08", "weights of index q and index k exchanged")) {
    const std::uint16_t* kept = index_q;
    index_q = index_k;
    index_k = kept;
  }
  const std::uint16_t* main = type == HeadType::kQ ? q : k;
  const std::uint16_t* index = type == HeadType::kIndexQ ? index_q : index_k;
  return type == HeadType::kQ || type == HeadType::kK ? main : index;
}

/// The cos|sin table: rows of rotary_dim bf16, the cosines first.
struct RotaryTable {
  const std::uint16_t* data;
  std::int64_t row_stride;
  std::int64_t rows;
};

/// The outputs, by type.
struct HeadOutputs {
  std::uint16_t* q;
  std::int64_t q_row_stride;
  std::uint16_t* index_q;
  std::int64_t index_q_row_stride;
  float* k;
  std::int64_t k_row_stride;
  float* index_k;
  std::int64_t index_k_row_stride;
};

/// Turns four dims of a head into norm output. `live`: the lane has dims.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE void normalise_head(const std::uint16_t* gamma,
                                                           std::int32_t head_dim, float eps,
                                                           std::int32_t dim, bool live,
                                                           float (&e)[kLaneDims]) {
  float sum = 0.0F;
  for (const float value : e) sum = simt::fma(value, value, sum);
  const float mean = group_sum(sum) / static_cast<float>(head_dim);
  const float rr = MONOREF_FAULT(rope_eps_outside_root, "own", "eps added to the root")
                       ? 1.0F / (simt::sqrt_rn(mean) + eps)
                       : rsq(mean + eps);
  if (!live) return;
  float weight[kLaneDims];
  load_four({gamma, 1}, dim, weight);
  for (int i = 0; i < kLaneDims; ++i) {
    if (!MONOREF_FAULT(rope_weight_without_one, "own", "weight gamma instead of gamma + 1"))
      weight[i] += 1.0F;
    e[i] = (e[i] * rr) * weight[i];
    if (MONOREF_FAULT(rope_norm_rounded, "own", "the norm rounded to BF16 before the rotation"))
      e[i] = rounded_to_bf16(e[i]);
  }
}

/// The rotation of one number `n`, with its partner, of the first or the second half.
MONOREF_DEVICE float rotate(float n, float partner, float cos, float sin, bool second) {
  if (MONOREF_FAULT(rope_cos_sin_swapped, "N04", "sines taken for cosines")) {
    const float kept = cos;
    cos = sin;
    sin = kept;
  }
  const float turned = partner * sin;
  const float added = second != MONOREF_FAULT(rope_sine_sign, "N04", "rotation the other way round")
                          ? turned
                          : -turned;
  if (MONOREF_FAULT(rope_product_not_fused, "own", "both products rounded before the sum"))
    return n * cos + added;
  return simt::fma(n, cos, added);
}

/// A fault: rotates neighbours (d, d xor 1) instead of halves.
MONOREF_DEVICE void rotate_neighbours(const std::uint16_t* cos_sin, std::int32_t half,
                                      std::int32_t dim, float (&n)[kLaneDims]) {
  for (int i = 0; i < kLaneDims; i += 2) {
    const float cos = float_of_bf16(cos_sin[(dim + i) / 2]);
    const float sin = float_of_bf16(cos_sin[half + (dim + i) / 2]);
    const float first = rotate(n[i], n[i + 1], cos, sin, false);
    n[i + 1] = rotate(n[i + 1], n[i], cos, sin, true);
    n[i] = first;
  }
}

/// Rotates the dims below rotary_dim with the partner rotary_dim / 2 away; the others stay. `row`
/// is the position's row of the table, or nothing where no dim of this group is kept.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE void rotate_head(const std::uint16_t* row,
                                                        const HeadShape& shape, std::int32_t dim,
                                                        float (&n)[kLaneDims]) {
  const std::int32_t half = shape.rotary_dim / 2;
  const bool whole = MONOREF_FAULT(rope_whole_head, "N05", "whole head rotated");
  const std::int32_t distance = whole ? shape.head_dim / 2 : half;
  const bool second = dim >= distance;
  const bool rotated = row != nullptr && dim < 2 * distance;
  const int lane = simt::lane();
  const int step = distance / kLaneDims;
  const int source = dim >= 2 * distance ? lane : second ? lane - step : lane + step;
  float partner[kLaneDims];
  for (int i = 0; i < kLaneDims; ++i) partner[i] = simt::shuffle(n[i], source);
  if (!rotated) return;
  if (MONOREF_FAULT(rope_interleaved_pairs, "N04", "pairs (2i, 2i + 1) instead of halves"))
    return rotate_neighbours(row, half, dim, n);
  const std::int32_t column = dim % distance % half;
  float cos[kLaneDims], sin[kLaneDims];
  load_four({row, 1}, column, cos);
  load_four({row, 1}, half + column, sin);
  for (int i = 0; i < kLaneDims; ++i) n[i] = rotate(n[i], partner[i], cos[i], sin[i], second);
}

/// Stores four dims of a head of token `token`: bf16 for queries, f32 for keys.
MONOREF_DEVICE void store_head(const HeadOutputs& out, const HeadShape& shape, const Head& head,
                               std::int64_t token, std::int32_t dim, const float (&n)[kLaneDims]) {
  const std::int64_t at = std::int64_t{head.number} * shape.head_dim + dim;
  switch (head.type) {
    case HeadType::kQ:
      return store_four_bf16(out.q + token * out.q_row_stride + at, n);
    case HeadType::kIndexQ:
      return store_four_bf16(out.index_q + token * out.index_q_row_stride + at, n);
    case HeadType::kK:
      return store_four_f32(out.k + token * out.k_row_stride + at, n);
    case HeadType::kIndexK:
      return store_four_f32(out.index_k + token * out.index_k_row_stride + at, n);
  }
}

/// A token's row of the table; nothing if the table has none.
MONOREF_DEVICE const std::uint16_t* table_row(const RotaryTable& table, std::int64_t position) {
  if (MONOREF_FAULT(rope_position_8_bits, "N07", "positions cut to 8 bits")) position &= 0xFF;
  if (position < 0 || position >= table.rows) return nullptr;
  return table.data + position * table.row_stride;
}

/// One head of one token, by the 32 lanes of a group. `exists`: there is such a head; a group
/// without one only takes part in the exchanges of its wave.
MONOREF_DEVICE MONOREF_WAVE_COLLECTIVE void make_head(const Row<const std::uint16_t>& qkv,
                                                      const HeadShape& shape,
                                                      const std::uint16_t* gamma,
                                                      const std::uint16_t* table_row,
                                                      const HeadOutputs& out, std::int64_t token,
                                                      const Head& head, float eps, bool exists) {
  const std::int32_t dim = lane_of_group() * kLaneDims;
  const bool live = exists && dim < shape.head_dim;
  float values[kLaneDims] = {};
  if (live) load_four(qkv, std::int64_t{head.column} * shape.head_dim + dim, values);
  normalise_head(gamma, shape.head_dim, eps, dim, live, values);
  rotate_head(live ? table_row : nullptr, shape, dim, values);
  if (live && table_row != nullptr) store_head(out, shape, head, token, dim, values);
}

}  // namespace

// Inputs   qkv bf16 [tokens, (q_heads + 2 kv_heads + index_heads + 1) * head_dim]: q, k, v, index
//          q, index k; rows qkv_row_stride and elements qkv_stride apart. Without index heads
//          there is no index key either.
//          positions int64 [tokens], dense
//          cos_sin bf16 [table_rows, rotary_dim], rows cos_sin_row_stride elements apart: the
//          rotary_dim / 2 cosines of a position, then its sines
//          *_gamma bf16 [head_dim], dense; the norm's weight is gamma + 1
// Outputs  q bf16 [tokens, q_heads * head_dim], index_q bf16 [tokens, index_heads * head_dim],
//          k f32 [tokens, kv_heads * head_dim] and index_k f32 [tokens, head_dim], not rounded, NaN
//          canonical; rows *_row_stride elements apart, innermost stride 1
// Sizes    head_dim a multiple of 4, at most 128; rotary_dim a multiple of 8, from 8 to head_dim.
//          The lanes that a smaller head does not fill count as zeros in its sum. Fewer than 2^31
//          heads in all.
// Launch   any grid in x and any block of whole waves in one dimension; 32 threads a head.
// Misuse   Other sizes write nothing. A token whose position the table does not have gets no
//          output; positions count with all 64 bits.
MONOREF_KERNEL(1024, monoref_qk_norm_rope)(
    const std::uint16_t* qkv, std::int64_t qkv_row_stride, std::int64_t qkv_stride,
    const std::int64_t* positions, const std::uint16_t* cos_sin, std::int64_t cos_sin_row_stride,
    std::int64_t table_rows, const std::uint16_t* q_gamma, const std::uint16_t* k_gamma,
    const std::uint16_t* index_q_gamma, const std::uint16_t* index_k_gamma, std::uint16_t* q,
    std::int64_t q_row_stride, std::uint16_t* index_q, std::int64_t index_q_row_stride, float* k,
    std::int64_t k_row_stride, float* index_k, std::int64_t index_k_row_stride, std::int64_t tokens,
    std::int32_t q_heads, std::int32_t kv_heads, std::int32_t index_heads, std::int32_t head_dim,
    std::int32_t rotary_dim, float eps) {
  const HeadShape shape{q_heads, kv_heads, index_heads, head_dim, rotary_dim};
  if (head_dim % kLaneDims != 0 || head_dim > kGroupLanes * kLaneDims) return;
  if (rotary_dim % (2 * kLaneDims) != 0 || rotary_dim <= 0 || rotary_dim > head_dim) return;
  const RotaryTable table{cos_sin, cos_sin_row_stride, table_rows};
  const HeadOutputs out{q, q_row_stride, index_q, index_q_row_stride,
                        k, k_row_stride, index_k, index_k_row_stride};
  const std::int64_t stride =
      MONOREF_FAULT(rope_element_stride_ignored, "N01", "elements of a row taken to be contiguous")
          ? 1
          : qkv_stride;
  const auto total = static_cast<std::int32_t>(tokens * shape.heads());
  // Waves of 64 have two groups, which stay together to the end: exchanges need all lanes.
  constexpr std::int32_t kWaveGroups = simt::kWave / kGroupLanes;
  const std::int32_t in_wave = simt::lane() / kGroupLanes;
  for (std::int64_t wave = wave_of_grid(); wave * kWaveGroups < total; wave += waves_of_grid()) {
    const std::int32_t group = static_cast<std::int32_t>(wave) * kWaveGroups + in_wave;
    const bool exists = group < total;
    const std::int32_t item = exists ? group : total - 1;
    const std::int32_t token = item / shape.heads();
    const Head head = head_of(shape, item - token * shape.heads());
    const std::uint16_t* gamma =
        gamma_of(head.type, q_gamma, k_gamma, index_q_gamma, index_k_gamma);
    const std::int64_t position = positions[MONOREF_FAULT(rope_position_of_first_token, "own",
                                                          "every token at the first one's position")
                                                ? 0
                                                : token];
    make_head({qkv + token * qkv_row_stride, stride}, shape, gamma, table_row(table, position), out,
              token, head, eps, exists);
  }
}
MONOREF_REGISTER(monoref_qk_norm_rope);

}  // namespace monoref::kernels
