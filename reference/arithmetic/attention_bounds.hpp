// A proven range of what a foreign attention over BF16 operands may give, element by element.
#pragma once

#include <span>
#include <vector>

#include "reference/arithmetic/bounded.hpp"

namespace monoref {

/// One row and head. Operands are those that enter the products.
struct AttentionToBound {
  std::span<const float> q;  ///< [dim]
  std::span<const float> k;  ///< [keys][dim]
  std::span<const float> v;  ///< [keys][dim]
  Bounded score_factor;      ///< what a dot is multiplied by; scores are exponents of 2
  std::size_t tiles = 1;     ///< most tiles whose maxima are found one after another
};

/// What is granted beyond the order of every sum.
struct AttentionFreedom {
  Rounding dots = kHopperMatrixUnit;  ///< additions of the matrix units
  Rounding exp2 = kApproximateExp2;   ///< of weights and rescales
  Rounding division = kApproximateDivision;
  /// lg2.approx: 2^-22 absolute for arguments in (1/2, 2), 2^-22 relative elsewhere (PTX ISA).
  double log2_error = 0x1p-22;
};

/// The range of every dim of the output before its last rounding, for any dealing of the keys to
/// partial results that are rounded to BF16 and merged by their log-sums, p being rounded to BF16.
///
/// In exact arithmetic the output is sum_j 2^(s_j) v_j / sum_j 2^(s_j), whatever the maxima that
/// are subtracted and however keys are dealt. Each key's term is multiplied by factors 1 + e, one
/// for each operation that it passes through: the score's error, the subtraction and exp2, every
/// rescale, the roundings of p and of the partial result, additions, log-sum, weight and division.
/// With R_j a bound on the sum of |log(1 + e)| of key j's factors above and below the fraction, the
/// output is within sum_j 2^(s_j) |v_j| (exp(R_j) - 1) / sum_j 2^(s_j) of the exact one. Weights
/// that underflow are bounded by an absolute term. No keys, or operands that are not finite, give
/// no bound: anything.
std::vector<Bounded> attention_bound(const AttentionToBound& head,
                                     const AttentionFreedom& freedom = {});

}  // namespace monoref
