// vLLM's Triton SwiGLU (upstream-semantics section 7.3): gate | up halves, the gate clamped from
// above only, up on both sides, gate * sigmoid(alpha * gate) * (up + beta) in binary32, one
// rounding.
#include "reference/arithmetic/constants.hpp"
#include "reference/arithmetic/minmax.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/swiglu.hpp"

#include "fuzz/judges/judge.hpp"
#include "fuzz/judges/swiglu_bound.hpp"

namespace monoref {

Bounded swiglu_bound(float gate, float up, double alpha, double beta) {
  const Rounding& rn = kCorrectRoundingOrFlush;
  const Bounded g = Bounded::exactly(gate);
  const Bounded t = multiply(g, Bounded::exactly(static_cast<float>(alpha)), rn);
  const Bounded exponent = multiply(negate(t), Bounded::exactly(kLog2E), rn);
  const Bounded below = add(Bounded::exactly(1), exp2(exponent, kApproximateExp2), rn);
  const Bounded gain = add(Bounded::exactly(up), Bounded::exactly(static_cast<float>(beta)), rn);
  const Bounded quotient = divide(g, below, kApproximateDivision);
  const Bounded product = multiply(g, divide(Bounded::exactly(1), below, kApproximateDivision), rn);
  return multiply(either(quotient, product), gain, rn);
}

void judge_swiglu_oai(const RecordedCase& recorded, RunResult& result) {
  const Tensor& input =
      recorded.input("gate_up", {{DType::kBFloat16, DType::kFloat32}, {kAnyExtent, kAnyExtent}});
  const Tensor& act = recorded.output("act", {{input.type()}, {input.dim(0), input.dim(1) / 2}});
  const double alpha = recorded.real("alpha");
  const double beta = recorded.real("beta");
  const SwigluRule rule = swiglu_rule("swiglu_oai", recorded.real("limit"), alpha, beta, {});
  const bool bf16 = input.type() == DType::kBFloat16;
  const auto load = [&](std::int64_t row, std::int64_t column) {
    return bf16 ? float_from_bf16(input.view<std::uint16_t, 2>()(row, column))
                : input.view<float, 2>()(row, column);
  };
  OutputJudge output("act", result);
  const std::int64_t half = input.dim(1) / 2;
  for (std::int64_t row = 0; row < input.dim(0); ++row)
    for (std::int64_t i = 0; i < half; ++i) {
      const float gate = nan_min(load(row, i), rule.limit);
      const float up = nan_clamp(load(row, half + i), -rule.limit, rule.limit);
      const float own = swiglu(gate, up, rule);
      const Bounded range = swiglu_bound(gate, up, alpha, beta);
      const OutputJudge::Index index{{"row", row}, {"element", i}};
      if (bf16)
        output.code(index, bf16_from_float(own), code_range(range, kBF16, Overflow::kInfinity),
                    act.view<std::uint16_t, 2>()(row, i));
      else
        output.number(index, own, range, act.view<float, 2>()(row, i));
    }
}

}  // namespace monoref
