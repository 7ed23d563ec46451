// What a foreign SwiGLU may compute, for the recordings that hold one.
#pragma once

#include "reference/arithmetic/bounded.hpp"

namespace monoref {

/// The range of gate * sigmoid(alpha * gate) * (up + beta) for arguments that are clamped already:
/// exp(-t) through exp2, with one folded constant or two; exp2 and division of 2 ulps, flushing;
/// the gate divided or multiplied by the reciprocal. alpha and beta are rounded to binary32.
Bounded swiglu_bound(float gate, float up, double alpha, double beta);

}  // namespace monoref
