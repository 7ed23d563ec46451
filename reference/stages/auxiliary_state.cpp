#include "reference/stages/auxiliary_state.hpp"

#include "reference/formats/convert.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {

std::array<std::int64_t, 2> auxiliary_state_shape(const AuxiliaryStateInput& input) {
  const std::array<std::int64_t, 2> dims{input.hidden.dim(0), input.hidden.dim(1)};
  if (input.residual) require_dims("auxiliary_state: residual", *input.residual, dims);
  return dims;
}

void auxiliary_state(const AuxiliaryStateInput& input, const AuxiliaryStateOutput& output) {
  const auto dims = auxiliary_state_shape(input);
  require_dims("auxiliary_state: output state", output.state, dims);
  for (std::int64_t row = 0; row < dims[0]; ++row)
    for (std::int64_t i = 0; i < dims[1]; ++i) {
      const std::uint16_t hidden = input.hidden(row, i);
      output.state(row, i) = input.residual
                                 ? bf16_from_float(float_from_bf16(hidden) +
                                                   float_from_bf16((*input.residual)(row, i)))
                                 : hidden;
    }
}

}  // namespace monoref
