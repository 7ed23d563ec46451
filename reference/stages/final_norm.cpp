#include "reference/stages/final_norm.hpp"

#include <vector>

#include "reference/formats/convert.hpp"
#include "reference/rules/rms.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/stages/residual_norm_quant.hpp"

namespace monoref {

std::array<std::int64_t, 2> final_norm_shape(const FinalNormInput& input) {
  const std::array<std::int64_t, 2> dims{input.ar.dim(0), input.ar.dim(1)};
  if (dims[1] < kNormElementsPerThread || dims[1] > kNormMaxHidden ||
      dims[1] % kNormElementsPerThread != 0)
    refuse("final_norm: hidden is {}, must be a multiple of {} up to {}", dims[1],
           kNormElementsPerThread, kNormMaxHidden);
  require_dims("final_norm: res", input.res, dims);
  require_dims("final_norm: gamma", input.gamma, {dims[1]});
  static_cast<void>(checked_eps("final_norm", input.eps));
  return dims;
}

void final_norm(const FinalNormInput& input, const FinalNormOutput& output) {
  const auto dims = final_norm_shape(input);
  require_dims("final_norm: output out", output.out, dims);
  const float eps = checked_eps("final_norm", input.eps);
  for (std::int64_t row = 0; row < dims[0]; ++row) {
    std::vector<float> sums;
    for (std::int64_t i = 0; i < dims[1]; ++i)
      sums.push_back(float_from_bf16(input.ar(row, i)) + float_from_bf16(input.res(row, i)));
    const std::vector<float> y = input_norm(sums, input.gamma, eps);
    for (std::size_t i = 0; i < y.size(); ++i) output.out(row, i) = bf16_from_float(y[i]);
  }
}

}  // namespace monoref
