// final_norm: the model's last norm, of hidden + residual.
//
// Source of the rule: mono-decode section 2 (after the last layer) and section 3, steps 1 to 3 (the
// order of the sum). Logical thread t owns elements 8t .. 8t + 7 of the row; sums go by fma chain,
// then by the butterfly of 32 threads, then by the butterfly of the groups' sums.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/reductions.hpp"
#include "device/kernels/vector_access.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr int kThreadElements = 8;
constexpr std::int32_t kMaxHidden = kMaxGroups * kGroupLanes * kThreadElements;

/// Adds eight elements of the residual to those of hidden.
MONOREF_DEVICE void add_residual(const std::uint16_t* hidden, const std::uint16_t* residual,
                                 std::int64_t first, float (&acc)[kThreadElements]) {
  float other[kThreadElements];
  load_eight({hidden, 1}, first, acc);
  load_eight({residual, 1}, first, other);
  for (int i = 0; i < kThreadElements; ++i) {
    if (!MONOREF_FAULT(final_norm_residual_missing, "own", "the layer output alone is normalised"))
      acc[i] += other[i];
    if (MONOREF_FAULT(final_norm_of_rounded_sum, "own", "the norm goes on with the rounded sum"))
      acc[i] = rounded_to_bf16(acc[i]);
  }
}

/// The reciprocal root mean square (rstd) of a row.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE float rstd_of_row(const float (&acc)[kThreadElements],
                                                          std::int32_t hidden, float eps,
                                                          float* sums) {
  float sum = 0.0F;
  for (const float value : acc) sum = simt::fma(value, value, sum);
  const float mean = block_sum(sum, sums) / static_cast<float>(hidden);
  if (MONOREF_FAULT(final_norm_eps_outside_root, "own", "eps added to the root"))
    return 1.0F / (simt::sqrt_rn(mean) + eps);
  return rsq(mean + eps);
}

}  // namespace

// Inputs   hidden_states, residual bf16 [rows, hidden], rows *_row_stride elements apart
//          gamma bf16 [hidden], dense; the norm's weight is gamma + 1
// Outputs  out bf16 [rows, hidden], rows out_row_stride elements apart:
//          bf16((acc * rstd) * (gamma + 1)), acc the unrounded sum. May be one of the inputs, in
//          the same place.
// Sizes    hidden a multiple of 8, at most 8192; threads that a last group of 32 lacks count as
//          zeros, and so do the groups up to 32.
// Launch   any grid in x, which goes over rows; blocks of whole waves, in one dimension, with at
//          least hidden / 8 threads (768 for 6144).
// Misuse   Other sizes and blocks write nothing.
// NaN      A NaN in a row makes all of the row NaN.
MONOREF_KERNEL(1024,
               monoref_final_norm)(const std::uint16_t* hidden_states,
                                   std::int64_t hidden_row_stride, const std::uint16_t* residual,
                                   std::int64_t residual_row_stride, const std::uint16_t* gamma,
                                   std::uint16_t* out, std::int64_t out_row_stride,
                                   std::int64_t rows, std::int32_t hidden, float eps) {
  MONOREF_SHARED(float, sums, kMaxGroups);
  if (hidden < kThreadElements || hidden > kMaxHidden || hidden % kThreadElements != 0) return;
  if (static_cast<std::int32_t>(blockDim.x) < hidden / kThreadElements) return;
  if (blockDim.x % simt::kWave != 0) return;
  const std::int64_t first = std::int64_t{threadIdx.x} * kThreadElements;
  const bool live = first < hidden;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float acc[kThreadElements] = {};
    if (live)
      add_residual(hidden_states + row * hidden_row_stride, residual + row * residual_row_stride,
                   first, acc);
    const float rstd = rstd_of_row(acc, hidden, eps, sums);
    if (live) {
      float gamma_of[kThreadElements];
      load_eight({gamma, 1}, first, gamma_of);
      for (int i = 0; i < kThreadElements; ++i) {
        const float weight =
            MONOREF_FAULT(final_norm_gamma_without_one, "own", "weight gamma instead of gamma + 1")
                ? gamma_of[i]
                : gamma_of[i] + 1.0F;
        acc[i] = (acc[i] * rstd) * weight;
      }
      store_eight_bf16(out + row * out_row_stride + first, acc);
    }
    __syncthreads();  // the sums of the next row overwrite these
  }
}
MONOREF_REGISTER(monoref_final_norm);

}  // namespace monoref::kernels
