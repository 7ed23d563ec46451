#include "reference/stages/mx_quant.hpp"

#include <vector>

#include "reference/formats/convert.hpp"
#include "reference/formats/mx_block.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

constexpr auto kBlock = static_cast<std::int64_t>(kMxBlock);

/// One row as binary32 numbers.
std::vector<float> numbers(const Tensor& x, std::int64_t row) {
  std::vector<float> values(static_cast<std::size_t>(x.dim(1)));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = x.type() == DType::kFloat32 ? x.view<float, 2>()(row, i)
                                            : float_from_bf16(x.view<std::uint16_t, 2>()(row, i));
  return values;
}

}  // namespace

std::array<std::int64_t, 2> mx_quant_shape(const MxQuantInput& input) {
  if (input.x.rank() != 2) refuse("mx_quant: x has rank {}, must be 2", input.x.rank());
  if (input.x.type() != DType::kBFloat16 && input.x.type() != DType::kFloat32)
    refuse("mx_quant: x is {}, must be bfloat16 or float32", dtype_name(input.x.type()));
  if (input.x.dim(1) < kBlock || input.x.dim(1) % kBlock != 0)
    refuse("mx_quant: x has {} elements a row, must be a multiple of {}", input.x.dim(1), kBlock);
  return {input.x.dim(0), input.x.dim(1)};
}

void mx_quant(const MxQuantInput& input, const MxQuantOutput& output) {
  const auto [rows, width] = mx_quant_shape(input);
  require_dims("mx_quant: output codes", output.codes, {rows, width});
  require_dims("mx_quant: output scales", output.scales, {rows, width / kBlock});
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(width));
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(width / kBlock));
  for (std::int64_t row = 0; row < rows; ++row) {
    mx_quantize(MxElement::kFp8, input.contract.mx_rule, Overflow::kSaturate, numbers(input.x, row),
                codes, scales);
    for (std::size_t i = 0; i < codes.size(); ++i) output.codes(row, i) = codes[i];
    for (std::size_t i = 0; i < scales.size(); ++i) output.scales(row, i) = scales[i];
  }
}

}  // namespace monoref
