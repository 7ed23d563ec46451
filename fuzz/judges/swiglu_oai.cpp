// vLLM's Triton SwiGLU (upstream-semantics section 7.3): gate | up halves, the gate clamped from
// above only, up on both sides, gate * sigmoid(alpha * gate) * (up + beta) in binary32, one
// rounding.
#include <cmath>

#include "fuzz/judges/judge.hpp"
#include "reference/arithmetic/portable.hpp"
#include "reference/formats/convert.hpp"

namespace monoref {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;

/// The specification's own sequence (mono-decode section 7): two rounded products in the exponent.
float ours(float gate, float up, float alpha, float beta) {
  const float t = alpha * gate;
  const float exponential = portable_exp2(t * -kLog2E);
  return (gate * portable_rcp(1 + exponential)) * (up + beta);
}

/// exp(-t) through exp2, with one folded constant or two, and a division.
Bounded bound(float gate, float up, double alpha, double beta) {
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

float clamped(float x, float low, float high) {
  return x != x ? x : std::fmin(std::fmax(x, low), high);
}

}  // namespace

void judge_swiglu_oai(const RecordedCase& recorded, RunResult& result) {
  const Tensor& input = recorded.input("gate_up");
  const Tensor& act = recorded.output("act");
  const auto limit = static_cast<float>(recorded.real("limit"));
  const double alpha = recorded.real("alpha");
  const double beta = recorded.real("beta");
  const bool bf16 = input.type() == DType::kBFloat16;
  const auto load = [&](std::int64_t row, std::int64_t column) {
    return bf16 ? float_from_bf16(input.view<std::uint16_t, 2>()(row, column))
                : input.view<float, 2>()(row, column);
  };
  OutputJudge output("act", result);
  const std::int64_t half = input.dim(1) / 2;
  for (std::int64_t row = 0; row < input.dim(0); ++row)
    for (std::int64_t i = 0; i < half; ++i) {
      const float gate = clamped(load(row, i), -INFINITY, limit);
      const float up = clamped(load(row, half + i), -limit, limit);
      const float own = ours(gate, up, static_cast<float>(alpha), static_cast<float>(beta));
      const Bounded range = bound(gate, up, alpha, beta);
      const OutputJudge::Index index{{"row", row}, {"element", i}};
      if (bf16)
        output.code(index, bf16_from_float(own), code_range(range, kBF16, Overflow::kInfinity),
                    act.view<std::uint16_t, 2>()(row, i));
      else
        output.number(index, own, range, act.view<float, 2>()(row, i));
    }
}

}  // namespace monoref
