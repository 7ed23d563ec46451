// attention_merge: combines the partitions of a row's attention.
//
// Source of the rule: mono-decode section 6 (merge) and section 10 (start of sums).
//
//   M      the largest m of the partitions (NaN: one of them is)
//   sl_i   l_i * exp2((m_i - M) * log2 e)
//   S      sum of sl_i in order, from the first; 1 if it is not positive
//   w_i    sl_i / S
//   out    sum of w_i * o_i in order, from 0: a product and an addition (or, by option, one fma);
//          then BF16
//
// Work. A thread has eight dims of a head, 16 bytes of every partition, and computes the
// weights of its head itself: that is faster than waiting for another thread.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/flat_grid.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/vector_access.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr std::int32_t kVectorDims = 8;
constexpr float kMaskedScore = -3.4e38F;

/// Values of `accumulate`.
constexpr std::int32_t kAccumulateFma = 1;

/// The partitions of one row and head: `stride` apart in m and l, stride * head_dim in o.
struct Partials {
  const std::uint16_t* o;
  const float* m;
  const float* l;
  std::int64_t stride;
  std::int32_t head_dim;
  std::int32_t count;

  /// Which partition comes n-th.
  MONOREF_MEMBER std::int32_t nth(std::int32_t n) const {
    return MONOREF_FAULT(merge_order_reversed, "D01", "partitions are added from the last")
               ? count - 1 - n
               : n;
  }
};

/// What a head's weights are made of.
struct Normaliser {
  float largest;  ///< M
  float sum;      ///< S
};

/// l_i brought to the common maximum.
MONOREF_DEVICE float scaled_l(const Partials& partials, std::int32_t i, float largest) {
  const float below = partials.m[i * partials.stride] - largest;
  const float exponent =
      MONOREF_FAULT(merge_natural_base, "T21", "weights by powers of 2 instead of e")
          ? below
          : below * kLog2E;
  return partials.l[i * partials.stride] * exp2_portable(exponent);
}

MONOREF_DEVICE Normaliser normaliser_of(const Partials& partials) {
  Normaliser normaliser{partials.m[0], 0.0F};
  for (std::int32_t i = 1; i < partials.count; ++i)
    normaliser.largest = max_or_nan(normaliser.largest, partials.m[i * partials.stride]);
  if (MONOREF_FAULT(merge_maximum_of_first, "T21",
                    "the first partition's maximum is taken for all"))
    normaliser.largest = partials.m[0];
  for (std::int32_t n = 0; n < partials.count; ++n) {
    const float sl = scaled_l(partials, partials.nth(n), normaliser.largest);
    normaliser.sum = n == 0 ? sl : normaliser.sum + sl;
  }
  if (!(normaliser.sum > 0.0F)) normaliser.sum = 1.0F;
  return normaliser;
}

/// Whether every partition's maximum is the score of masked keys.
MONOREF_DEVICE bool saw_no_key(const Partials& partials) {
  bool none = true;
  for (std::int32_t i = 0; i < partials.count; ++i)
    none &= partials.m[i * partials.stride] <= kMaskedScore;
  return none;
}

/// Merges dims dim .. dim + 7 of one head.
MONOREF_DEVICE void merge_vector(const Partials& partials, std::int32_t dim, bool fused,
                                 float (&merged)[kVectorDims]) {
  const Normaliser normaliser = normaliser_of(partials);
  for (std::int32_t n = 0; n < partials.count; ++n) {
    const std::int32_t i = partials.nth(n);
    float weight = scaled_l(partials, i, normaliser.largest) / normaliser.sum;
    if (MONOREF_FAULT(merge_weight_without_l, "T21", "weights without the sum of p"))
      weight = exp2_portable((partials.m[i * partials.stride] - normaliser.largest) * kLog2E) /
               static_cast<float>(partials.count);
    float values[kVectorDims];
    load_eight({partials.o + i * partials.stride * partials.head_dim, 1}, dim, values);
    for (int j = 0; j < kVectorDims; ++j) {
      const float product = weight * values[j];
      merged[j] = fused != MONOREF_FAULT(merge_contraction_swapped, "own",
                                         "fused and separate sums are swapped")
                      ? simt::fma(weight, values[j], merged[j])
                      : merged[j] + product;
    }
  }
}

}  // namespace

// Inputs   o bf16 [rows, partitions, heads, head_dim], m and l f32 [rows, partitions, heads], as
//          fp8_attention_partition leaves them; dense
// Outputs  out bf16 [rows, heads, head_dim], rows out_row_stride elements apart, the rest dense
// Sizes    partitions >= 1; head_dim a multiple of 8
// Options  accumulate 0: product and sum rounded; 1: fma
// Launch   any grid in x and any block of whole waves in one dimension; a thread makes eight
//          numbers at a time, so ceil(rows * heads * head_dim / 8 / threads of a block) blocks
//          suffice. No shared memory.
// Misuse   Other sizes write nothing.
MONOREF_KERNEL(1024, monoref_attention_merge)(const std::uint16_t* o, const float* m,
                                              const float* l, std::uint16_t* out,
                                              std::int64_t out_row_stride, std::int64_t rows,
                                              std::int32_t heads, std::int32_t head_dim,
                                              std::int32_t partitions, std::int32_t accumulate) {
  if (partitions < 1 || head_dim < kVectorDims || head_dim % kVectorDims != 0) return;
  const std::int32_t vectors = head_dim / kVectorDims;
  const std::int64_t row_items = std::int64_t{heads} * vectors;
  const std::int32_t used =
      MONOREF_FAULT(merge_last_partition_dropped, "S07", "the last partition does not take part") &&
              partitions > 1
          ? partitions - 1
          : partitions;
  for (std::int64_t item = thread_of_grid(); item < rows * row_items; item += threads_of_grid()) {
    const std::int64_t row = item / row_items;
    const auto in_row = static_cast<std::int32_t>(item - row * row_items);
    const std::int32_t head = in_row / vectors, dim = in_row % vectors * kVectorDims;
    const std::int64_t first = row * partitions * heads + head;
    const Partials partials{o + first * head_dim, m + first, l + first, heads, head_dim, used};
    if (MONOREF_FAULT(merge_empty_row_unwritten, "S26",
                      "a head of which no partition saw a key is not written") &&
        saw_no_key(partials))
      continue;
    float merged[kVectorDims] = {};
    merge_vector(partials, dim, accumulate == kAccumulateFma, merged);
    store_eight_bf16(out + row * out_row_stride + std::int64_t{head} * head_dim + dim, merged);
  }
}
MONOREF_REGISTER(monoref_attention_merge);

}  // namespace monoref::kernels
