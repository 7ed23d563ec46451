// The clamped SwiGLU of the experts (mono-decode section 7, upstream-semantics section 7.3).
#pragma once

#include <string_view>

#include "reference/core/contract.hpp"

namespace monoref {

/// The function's parameters, in binary32. The defaults are MiniMax-M3's.
struct SwigluRule {
  float limit = 7.0f;  ///< above 0; infinite: no clamp
  float alpha = 1.702f;
  float beta = 1.0f;
};

/// The parameters of a case, each rounded to binary32 once. Refuses a limit that is NaN or
/// negative, one that is 0 (bug case G04) unless the contract takes that for no clamp, and an alpha
/// or beta that is not finite in binary32. `stage` names the caller.
SwigluRule swiglu_rule(std::string_view stage, double limit, double alpha, double beta,
                       const Contract& contract);

/// In binary32, one rounding an operation:
///
///   g = min(gate, limit);  u = clamp(up, -limit, limit)
///   t = alpha * g;  d = 1 + exp2(t * -log2e)
///   y = (g * (1 / d)) * (u + beta)
///
/// exp2 and the reciprocal are the portable ones (mono-decode section 8). The gate is clamped from
/// above only; both clamps let NaN through. Two products are rounded in the exponent: alpha and
/// log2(e) are not folded into one constant. A NaN result is canonical.
float swiglu(float gate, float up, const SwigluRule& rule);

}  // namespace monoref
