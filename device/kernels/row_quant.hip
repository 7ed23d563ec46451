// row_quant: a row in FP8 with one scale, as the output projection takes it.
//
// Source of the rule: mono-decode section 6 (per-token quant of the merged row).
//
//   amax   the largest magnitude of the row (NaN: one of its numbers is)
//   scale  amax * f32(1 / largest)
//   a8     e4m3(a * rcp(scale)); zeros, with scale 0, for a row of zeros
//
// Work. A block of threads has one row, a thread eight numbers of it at a time. The row is read
// twice; the second time it is in the cache.

#include <cstdint>

#include "device/kernels/arithmetic.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/reductions.hpp"
#include "device/kernels/vector_access.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr std::int32_t kVector = 8;

/// The largest magnitude among the numbers of a row that this thread has.
MONOREF_DEVICE float amax_of_thread(const Row<const std::uint16_t>& row, std::int32_t width) {
  if (MONOREF_FAULT(quant_amax_of_first_head, "own",
                    "the largest magnitude of the first head only") &&
      width > 128)
    width = 128;
  float amax = 0.0F;
  for (std::int32_t i = kVector * static_cast<std::int32_t>(threadIdx.x); i < width;
       i += kVector * static_cast<std::int32_t>(blockDim.x)) {
    float values[kVector];
    load_eight(row, i, values);
    for (float value : values) {
      if (MONOREF_FAULT(quant_nan_ignored, "own", "a NaN does not reach the scale") &&
          value != value)
        continue;
      amax = max_or_nan(amax, MONOREF_FAULT(quant_amax_signed, "own",
                                            "the largest number instead of the largest magnitude")
                                  ? value
                                  : magnitude_of(value));
    }
  }
  return amax;
}

/// The row's codes.
MONOREF_DEVICE void quantise_row(const Row<const std::uint16_t>& row, std::int32_t width,
                                 float amax, float scale, const E4m3& format, std::uint8_t* to) {
  const float factor = rcp(scale);
  const bool zeros = amax == 0.0F && !MONOREF_FAULT(quant_zero_row_divided, "F18",
                                                    "a row of zeros is divided by its scale of 0");
  for (std::int32_t i = kVector * static_cast<std::int32_t>(threadIdx.x); i < width;
       i += kVector * static_cast<std::int32_t>(blockDim.x)) {
    float values[kVector];
    load_eight(row, i, values);
    for (float& value : values) {
      const float quotient =
          MONOREF_FAULT(quant_divides, "own", "elements are divided by the scale") ? value / scale
                                                                                   : value * factor;
      value = zeros ? 0.0F : quotient;
    }
    store_eight_e4m3(to + i, values, format);
  }
}

}  // namespace

// Inputs   x bf16 [rows, width], rows x_row_stride elements apart, innermost stride 1
// Outputs  x8 codes [rows, width], rows x8_row_stride bytes apart, innermost stride 1; scale f32
//          [rows], dense
// Sizes    width a multiple of 8; `largest` 448 (or 240, 224)
// Options  encoding 0: E4M3FN; 1: E4M3FNUZ
//          overflow 0: NaN; 1: saturate
// Launch   any grid in x, which goes over rows; any block of whole waves in one dimension: a thread
//          has 8 numbers at a time, so width / 8 threads suffice.
// Misuse   Other widths write nothing.
MONOREF_KERNEL(1024, monoref_row_quant)(const std::uint16_t* x, std::int64_t x_row_stride,
                                        std::uint8_t* x8, std::int64_t x8_row_stride, float* scale,
                                        std::int64_t rows, std::int32_t width, float largest,
                                        std::int32_t encoding, std::int32_t overflow) {
  MONOREF_SHARED(float, maxima, kMaxGroups);
  if (width < kVector || width % kVector != 0) return;
  const E4m3 format = e4m3_format(encoding, overflow);
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const Row<const std::uint16_t> from{x + row * x_row_stride, 1};
    const float amax = block_max(amax_of_thread(from, width), maxima);
    const float row_scale =
        MONOREF_FAULT(quant_scale_divided, "own", "the scale is a quotient by 448")
            ? amax / largest
            : amax * (1.0F / largest);
    quantise_row(from, width, amax, row_scale, format, x8 + row * x8_row_stride);
    if (threadIdx.x == 0) scale[row] = canonical(row_scale);
    __syncthreads();  // the maxima of the next row overwrite these
  }
}
MONOREF_REGISTER(monoref_row_quant);

}  // namespace monoref::kernels
