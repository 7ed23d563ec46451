// residual_norm_quant: residual addition, gemma RMSNorm and FP8 by token, one block a row.
//
// Source of the rule: mono-decode section 3, steps 1 to 4, and section 10. Logical thread t owns
// elements 8t .. 8t + 7 of the row; sums go by fma chain, then by the butterfly of 32 threads, then
// by the butterfly of the groups' sums. rsq is the portable contract's 1 / sqrt: "1/sqrt" and "rsq"
// are one choice here.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/reductions.hpp"
#include "device/kernels/vector_access.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr int kThreadElements = 8;

/// Value of the `norm_input` parameter: the norm continues with the stored residual.
constexpr std::int32_t kNormRounded = 1;

/// The inputs of a launch.
struct NormInputs {
  Row<const std::uint16_t> ar, residual, gamma;  ///< of row 0
  std::int64_t ar_row_stride, residual_row_stride;
  std::int32_t hidden;
  float eps;
  bool rounded;
};

/// Elements first .. first + 7 of ar + residual of a row.
MONOREF_DEVICE void add_residual(const NormInputs& in, std::int64_t row, std::int64_t first,
                                 float (&acc)[kThreadElements]) {
  const bool dense = MONOREF_FAULT(norm_row_stride_ignored, "N01",
                                   "rows taken to be as far apart as they are wide");
  const std::int64_t ar_offset = row * (dense ? in.hidden : in.ar_row_stride);
  float residual[kThreadElements];
  load_eight({in.ar.data + ar_offset, in.ar.stride}, first, acc);
  load_eight({in.residual.data + row * in.residual_row_stride, in.residual.stride}, first,
             residual);
  for (int i = 0; i < kThreadElements; ++i) acc[i] += residual[i];
}

/// This thread's part of the sum of squares.
MONOREF_DEVICE float sum_of_squares(const float (&acc)[kThreadElements]) {
  float sum = 0.0F;
  for (int i = 0; i < kThreadElements; ++i) {
    sum = MONOREF_FAULT(norm_square_not_fused, "own", "squares rounded before they are added")
              ? sum + acc[i] * acc[i]
              : simt::fma(acc[i], acc[i], sum);
    if (MONOREF_FAULT(norm_sum_in_bf16, "N02", "sum of squares accumulated in BF16"))
      sum = rounded_to_bf16(sum);
  }
  return sum;
}

/// Turns this thread's elements of a row from ar + residual into the norm's output. `live`: the
/// thread has elements.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE void normalise(const NormInputs& in, std::int64_t first,
                                                       bool live, float* sums,
                                                       float (&acc)[kThreadElements]) {
  if (in.rounded)
    for (float& value : acc) value = rounded_to_bf16(value);
  const float sum = block_sum(sum_of_squares(acc), sums);
  const float mean = sum / static_cast<float>(in.hidden);
  const float rstd = MONOREF_FAULT(norm_eps_outside_root, "own", "eps added to the root")
                         ? 1.0F / (simt::sqrt_rn(mean) + in.eps)
                         : rsq(mean + in.eps);
  if (!live) return;
  float gamma[kThreadElements];
  load_eight(in.gamma, first, gamma);
  for (int i = 0; i < kThreadElements; ++i) {
    const float weight =
        MONOREF_FAULT(norm_weight_without_one, "own", "weight gamma instead of gamma + 1")
            ? gamma[i]
            : gamma[i] + 1.0F;
    acc[i] = (acc[i] * rstd) * weight;
  }
}

/// The largest magnitude of the block's elements.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE float amax_of_row(const float (&values)[kThreadElements],
                                                          float* largest) {
  float amax = 0.0F;
  for (const float value : values) amax = max_or_nan(magnitude_of(value), amax);
  if (MONOREF_FAULT(norm_amax_of_first_group, "own", "largest element of the first 256 only") &&
      group_of_block() > 0)
    amax = 0.0F;
  return block_max(amax, largest);
}

/// What a row is divided by before its conversion.
MONOREF_DEVICE float scale_of_amax(float amax, std::int32_t fp8_max) {
  if (amax == 0.0F && !MONOREF_FAULT(norm_zero_row_scale_zero, "F18", "a zero row's scale is 0"))
    return 1.0F;
  const auto most = static_cast<float>(
      MONOREF_FAULT(norm_fp8_max_240, "F02", "240 as the maximum, whatever the contract says")
          ? 240
          : fp8_max);
  return MONOREF_FAULT(norm_scale_by_reciprocal, "N08",
                       "product with the reciprocal for a division")
             ? amax * (1.0F / most)
             : amax / most;
}

}  // namespace

// Inputs   ar, residual bf16 [rows, hidden], rows *_row_stride and elements *_stride apart
//          gamma bf16 [hidden], elements gamma_stride apart; the norm's weight is gamma + 1
// Outputs  residual_out bf16 [rows, hidden], rows residual_out_row_stride elements apart, innermost
//          stride 1: bf16(ar + residual). May be `residual` itself, in the same place.
//          x8 codes [rows, hidden], rows x8_row_stride bytes apart: e4m3(n / scale), the division
//          correctly rounded
//          x_scale f32 [rows], dense: amax / fp8_max, or 1 for a row of zeros
// Sizes    hidden a multiple of 8, at most 8192 (32 groups of 32 logical threads of 8 elements);
//          threads that a last group lacks count as zeros, and so do the groups up to 32.
// Options  norm_input  0: the norm continues with the unrounded sum; 1: with the stored residual
//          fp8_max     448, 240 or 224, the number that amax is divided by
//          encoding    0: E4M3FN; 1: E4M3FNUZ
//          overflow    0: NaN; 1: saturate. Only a scale that is subnormal, or an fp8_max beyond
//                      the format's, lets a quotient get there.
// Launch   any grid in x; blocks of whole waves, in one dimension, with at least hidden / 8
//          threads (768 for 6144). The block's rows follow each other; nothing is read twice.
// Misuse   A block too small for the row, or a hidden size that is no multiple of 8, writes
//          nothing.
// NaN      A NaN in a row makes its scale and all of its codes NaN.
MONOREF_KERNEL(1024, monoref_residual_norm_quant)(
    const std::uint16_t* ar, std::int64_t ar_row_stride, std::int64_t ar_stride,
    const std::uint16_t* residual, std::int64_t residual_row_stride, std::int64_t residual_stride,
    const std::uint16_t* gamma, std::int64_t gamma_stride, std::uint16_t* residual_out,
    std::int64_t residual_out_row_stride, std::uint8_t* x8, std::int64_t x8_row_stride,
    float* x_scale, std::int64_t rows, std::int32_t hidden, float eps, std::int32_t norm_input,
    std::int32_t fp8_max, std::int32_t encoding, std::int32_t overflow) {
  MONOREF_SHARED(float, sums, kMaxGroups);
  MONOREF_SHARED(float, largest, kMaxGroups);
  const std::int32_t threads = hidden / kThreadElements;
  if (hidden % kThreadElements != 0 || static_cast<std::int32_t>(blockDim.x) < threads) return;
  const E4m3 format = e4m3_format(encoding, overflow);
  const NormInputs in{
      {ar, ar_stride},
      {residual, residual_stride},
      {gamma, gamma_stride},
      ar_row_stride,
      residual_row_stride,
      hidden,
      eps,
      norm_input == kNormRounded ||
          MONOREF_FAULT(norm_of_rounded_sum, "own", "the norm continues with the rounded sum")};
  const std::int64_t first = std::int64_t{threadIdx.x} * kThreadElements;
  const bool live = first < hidden;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float values[kThreadElements] = {};
    if (live) {
      add_residual(in, row, first, values);
      store_eight_bf16(residual_out + row * residual_out_row_stride + first, values);
    }
    normalise(in, first, live, sums, values);
    float amax = amax_of_row(values, largest);
    if (MONOREF_FAULT(norm_amax_of_next_row, "own", "scale from another row's largest element")) {
      float other[kThreadElements] = {};
      if (live) add_residual(in, (row + 1) % rows, first, other);
      normalise(in, first, live, sums, other);
      amax = amax_of_row(other, largest);
    }
    const float scale = scale_of_amax(amax, fp8_max);
    if (threadIdx.x == 0) x_scale[row] = canonical(scale);
    if (!live) continue;
    for (float& value : values) value /= scale;
    store_eight_e4m3(x8 + row * x8_row_stride + first, values, format);
  }
}
MONOREF_REGISTER(monoref_residual_norm_quant);

}  // namespace monoref::kernels
