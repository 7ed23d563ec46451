// vLLM's Triton RMSNorm, plain and with a residual (upstream-semantics section 3.1): a tree sum of
// unstated order, a real square root, Triton's division, (x * r) * (1 + w), one rounding to BF16.
#include "fuzz/judges/judge.hpp"
#include "reference/formats/convert.hpp"
#include "reference/stages/residual_norm_quant.hpp"

namespace monoref {
namespace {

/// 1 / sqrt(mean of squares + eps), however it is added up.
Bounded inverse_root(std::span<const float> row, float eps) {
  std::vector<Bounded> squares;
  for (const float x : row) squares.push_back(square(Bounded::exactly(x), kCorrectRoundingOrFlush));
  const Bounded total = sum(squares, kCorrectRoundingOrFlush);
  const Bounded mean =
      divide(total, Bounded::exactly(static_cast<double>(row.size())), kApproximateDivision);
  const Bounded root = square_root(add(mean, Bounded::exactly(eps), kCorrectRoundingOrFlush),
                                   kCorrectRoundingOrFlush);
  return divide(Bounded::exactly(1), root, kApproximateDivision);
}

void judge_row(std::span<const float> row, const View<const std::uint16_t, 1>& weight, float eps,
               std::int64_t at, const View<const std::uint16_t, 2>& got, OutputJudge& output) {
  const std::vector<float> ours = input_norm(row, weight, eps);
  const Bounded r = inverse_root(row, eps);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto column = static_cast<std::int64_t>(i);
    const Bounded scaled = multiply(Bounded::exactly(row[i]), r, kCorrectRoundingOrFlush);
    const Bounded gain = add(Bounded::exactly(1), Bounded::exactly(float_from_bf16(weight(column))),
                             kCorrectRoundingOrFlush);
    const Bounded y = multiply(scaled, gain, kCorrectRoundingOrFlush);
    output.code({{"row", at}, {"element", column}}, bf16_from_float(ours[i]),
                code_range(y, kBF16, Overflow::kInfinity), got(at, column));
  }
}

}  // namespace

void judge_gemma_rmsnorm(const RecordedCase& recorded, RunResult& result) {
  const std::vector<DType> bf16{DType::kBFloat16};
  const Tensor& rows = recorded.input("x", {bf16, {kAnyExtent, kAnyExtent}});
  const RecordedShape same{bf16, rows.dims()};
  const auto x = rows.view<std::uint16_t, 2>();
  const auto res = recorded.input("residual", same).view<std::uint16_t, 2>();
  const auto weight = recorded.input("weight", {bf16, {x.dim(1)}}).view<std::uint16_t, 1>();
  const auto norm = recorded.output("norm", same).view<std::uint16_t, 2>();
  const auto fused = recorded.output("fused_norm", same).view<std::uint16_t, 2>();
  const auto residual = recorded.output("residual_out", same).view<std::uint16_t, 2>();
  const auto eps = static_cast<float>(recorded.real("eps", 0, 1));
  OutputJudge plain("norm", result);
  OutputJudge with_residual("fused_norm", result);
  OutputJudge sums("residual_out", result);
  for (std::int64_t row = 0; row < x.dim(0); ++row) {
    std::vector<float> alone;
    std::vector<float> added;
    for (std::int64_t i = 0; i < x.dim(1); ++i) {
      alone.push_back(float_from_bf16(x(row, i)));
      added.push_back(alone.back() + float_from_bf16(res(row, i)));
      sums.bits({{"row", row}, {"element", i}}, bf16_from_float(added.back()), residual(row, i));
    }
    judge_row(alone, weight, eps, row, norm, plain);
    judge_row(added, weight, eps, row, fused, with_residual);
  }
}

}  // namespace monoref
