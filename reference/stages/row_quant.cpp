#include "reference/stages/row_quant.hpp"

#include <cmath>

#include "reference/arithmetic/minmax.hpp"
#include "reference/arithmetic/portable.hpp"
#include "reference/rules/fp8_rules.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {

std::array<std::int64_t, 2> row_quant_shape(const RowQuantInput& input) {
  if (input.a.dim(1) < 1)
    refuse("row_quant: a has {} elements a row, must be at least 1", input.a.dim(1));
  static_cast<void>(fp8_maximum(input.contract));
  return {input.a.dim(0), input.a.dim(1)};
}

void row_quant(const RowQuantInput& input, const RowQuantOutput& output) {
  const auto dims = row_quant_shape(input);
  require_dims("row_quant: output a8", output.a8, dims);
  require_dims("row_quant: output a_scale", output.a_scale, {dims[0]});
  const Fp8Rules fp8 = fp8_rules(input.contract);
  const float per_maximum = 1.0f / fp8_maximum(input.contract);
  for (std::int64_t row = 0; row < dims[0]; ++row) {
    float amax = 0.0f;
    for (std::int64_t i = 0; i < dims[1]; ++i)
      amax = nan_max(amax, std::fabs(float_from_bf16(input.a(row, i))));
    const float scale = canonical(amax * per_maximum);
    const float inverse = portable_rcp(scale);
    output.a_scale(row) = scale;
    for (std::int64_t i = 0; i < dims[1]; ++i)
      output.a8(row, i) =
          amax == 0.0f ? std::uint8_t{0} : fp8.encode(float_from_bf16(input.a(row, i)) * inverse);
  }
}

}  // namespace monoref
