#include "reference/rules/swiglu.hpp"

#include <cmath>
#include <limits>

#include "reference/arithmetic/constants.hpp"
#include "reference/arithmetic/minmax.hpp"
#include "reference/arithmetic/portable.hpp"
#include "reference/core/error.hpp"

namespace monoref {

SwigluRule swiglu_rule(std::string_view stage, double limit, double alpha, double beta,
                       const Contract& contract) {
  SwigluRule rule{static_cast<float>(limit), static_cast<float>(alpha), static_cast<float>(beta)};
  if (!std::isfinite(rule.alpha))
    refuse("{}: alpha is {}, must be finite in binary32", stage, alpha);
  if (!std::isfinite(rule.beta)) refuse("{}: beta is {}, must be finite in binary32", stage, beta);
  if (rule.limit == 0 && contract.swiglu_limit_zero == SwigluLimitZero::kNoClamp)
    rule.limit = std::numeric_limits<float>::infinity();
  if (!(rule.limit > 0)) refuse("{}: limit is {}, must be above 0 in binary32", stage, limit);
  return rule;
}

float swiglu(float gate, float up, const SwigluRule& rule) {
  const float g = nan_min(gate, rule.limit);
  const float u = nan_clamp(up, -rule.limit, rule.limit);
  const float t = rule.alpha * g;
  const float d = 1.0f + portable_exp2(t * -kLog2E);
  return canonical((g * portable_rcp(d)) * (u + rule.beta));
}

}  // namespace monoref
