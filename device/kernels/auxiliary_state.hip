// auxiliary_state: the hidden state of a token as other models take it.
//
// Source of the rule: mono-decode sections 2 and 10: hidden + residual, one addition in binary32,
// then BF16; hidden alone where there is no residual yet.

#include <cstdint>

#include "device/kernels/flat_grid.hpp"
#include "device/kernels/number_formats.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/kernels/vector_access.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr std::int32_t kVector = 8;

/// Writes the sum of two rows, shared among `step` threads of which this one is number `first`.
MONOREF_DEVICE void add_rows(const std::uint16_t* hidden, const std::uint16_t* residual,
                             std::uint16_t* out, std::int32_t width, std::int64_t first,
                             std::int64_t step) {
  for (std::int64_t i = first * kVector; i < width; i += step * kVector) {
    if (i + kVector > width) {  // what is left of the row
      for (std::int64_t j = i; j < width; ++j)
        out[j] = bf16_of(float_of_bf16(hidden[j]) + float_of_bf16(residual[j]));
      return;
    }
    float sum[kVector], other[kVector];
    load_eight({hidden, 1}, i, sum);
    load_eight({residual, 1}, i, other);
    for (int j = 0; j < kVector; ++j) sum[j] += other[j];
    store_eight_bf16(out + i, sum);
  }
}

}  // namespace

// Inputs   hidden bf16 [rows, width], rows hidden_row_stride elements apart
//          residual bf16 [rows, width], rows residual_row_stride elements apart; or null
// Outputs  out bf16 [rows, width], rows out_row_stride elements apart: the sum, or without a
//          residual the bits of hidden
// Sizes    any
// Launch   any grid, any block of whole waves in one dimension; x goes over rows, y over columns. A
//          thread has 8 elements at a time.
MONOREF_KERNEL(1024, monoref_auxiliary_state)(const std::uint16_t* hidden,
                                              std::int64_t hidden_row_stride,
                                              const std::uint16_t* residual,
                                              std::int64_t residual_row_stride, std::uint16_t* out,
                                              std::int64_t out_row_stride, std::int64_t rows,
                                              std::int32_t width) {
  const bool alone =
      residual == nullptr ||
      MONOREF_FAULT(aux_residual_missing, "own", "hidden alone, also where there is a residual");
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const std::uint16_t* from = hidden + row * hidden_row_stride;
    std::uint16_t* to = out + row * out_row_stride;
    if (alone) {
      copy_row(from, to, width, column_of_grid(), columns_of_grid());
      continue;
    }
    const std::int64_t of =
        MONOREF_FAULT(aux_residual_of_first_row, "own", "the residual of the first row for all")
            ? 0
            : row;
    add_rows(from, residual + of * residual_row_stride, to, width, column_of_grid(),
             columns_of_grid());
  }
}
MONOREF_REGISTER(monoref_auxiliary_state);

}  // namespace monoref::kernels
