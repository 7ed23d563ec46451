// Proven ranges of what a foreign implementation may compute: running error analysis.
//
// A `Bounded` is an interval in double that holds every number some computation can give when the
// order of its additions, the use of fused multiply-adds and the errors of its hardware functions
// are not known. Each operation here takes the intervals of its arguments and returns one for its
// result: the exact operation on the intervals, rounded outward in double, widened by the error
// that one binary32 operation may add. A foreign result outside the final interval is wrong; no
// tolerance is picked anywhere.
//
// Every operation admits the unrounded result too, so that a product that a compiler contracted
// into the following addition stays inside.
#pragma once

#include <span>

namespace monoref {

/// What one binary32 operation of the foreign implementation may do to its exact result.
struct Rounding {
  /// Largest error in units of the last place of the exact result; 0.5 is correct rounding.
  double ulps = 0.5;
  /// Subnormal arguments and results may be taken for zero.
  bool may_flush = false;
  /// `dot` only: an operand that is smaller than this, and not zero, counts as this in the error. A
  /// unit that aligns products by their exponent fields cuts as if a subnormal operand were the
  /// first normal.
  double operand_floor = 0;
};

inline constexpr Rounding kCorrectRounding{0.5, false};
inline constexpr Rounding kCorrectRoundingOrFlush{0.5, true};
/// Approximate instructions of an H200, as stated with the recordings (largest errors
/// measured: 1.84, 0.94, 1.32 ulps), and Triton's division.
inline constexpr Rounding kApproximateExp2{2.0, true};
inline constexpr Rounding kApproximateRcp{1.0, true};
inline constexpr Rounding kApproximateRsq{2.0, true};
inline constexpr Rounding kApproximateDivision{2.0, true};
/// Additions inside Hopper's matrix units (matrix-cores section 4) with BF16 operands, and with FP8
/// under mma.sync: in a group of n addends each is cut by less than 2^-25 of the largest and the
/// sum by less than 2^-23 of itself, together at most n/4 + 1 ulps of the sum of magnitudes, which
/// 1.5 (n - 1) covers for every n >= 2. A single addend is exact.
inline constexpr Rounding kHopperMatrixUnit{1.5, false, 0x1p-126};
/// FP8 wgmma keeps 13 fractional and 14 significant bits: at most (n + 1) 2^10 ulps by the same
/// count, which 3 (n - 1) 2^10 covers.
inline constexpr Rounding kHopperFp8Wgmma{3.0 * 1024, false, 0x1p-6};

/// Every number from low to high, both included, and NaN if `may_be_nan`. low > high: NaN alone. An
/// interval that ends at zero holds both zeros.
struct Bounded {
  double low = 0;
  double high = 0;
  bool may_be_nan = false;

  /// One number, or NaN.
  static Bounded exactly(double value);
  static Bounded only_nan();
  /// Every number, Inf and NaN.
  static Bounded anything();
  /// Both ends given, in either order.
  static Bounded between(double a, double b);

  bool has_numbers() const { return low <= high; }
  double middle() const { return low + (high - low) / 2; }
  /// Half the width, rounded up.
  double radius() const;
  /// Could the computation have given this?
  bool admits(float result) const;
};

/// One operation each. An argument that is NaN gives NaN.
Bounded negate(const Bounded& x);
Bounded absolute(const Bounded& x);
Bounded add(const Bounded& a, const Bounded& b, const Rounding& rounding);
Bounded subtract(const Bounded& a, const Bounded& b, const Rounding& rounding);
Bounded multiply(const Bounded& a, const Bounded& b, const Rounding& rounding);
/// x * x for one x: never negative.
Bounded square(const Bounded& x, const Rounding& rounding);
Bounded divide(const Bounded& a, const Bounded& b, const Rounding& rounding);
Bounded square_root(const Bounded& x, const Rounding& rounding);
/// 1/x and 1/sqrt(x), each as one function with one error. A portable rsq is two operations: divide
/// 1 by square_root.
Bounded reciprocal(const Bounded& x, const Rounding& rounding);
Bounded reciprocal_square_root(const Bounded& x, const Rounding& rounding);
Bounded exp2(const Bounded& x, const Rounding& rounding);
/// No rounding. NaN wins over numbers, as in the contract; an implementation whose maximum ignores
/// NaN must be told so by its caller.
Bounded maximum(const Bounded& a, const Bounded& b);
Bounded minimum(const Bounded& a, const Bounded& b);
Bounded clamp(const Bounded& x, double low, double high);
/// Whatever either computation may give.
Bounded either(const Bounded& a, const Bounded& b);

/// The sum of all terms in any order and any association: n - 1 additions for n terms, of which
/// exact zeros do not count. With u = ulps * 2^-23 the error is at most ((1 + u)^(n-1) - 1) times
/// the sum of magnitudes, for every order (Higham, Accuracy and Stability of Numerical Algorithms,
/// 4.2). If a partial sum could overflow, anything is admitted.
Bounded sum(std::span<const Bounded> terms, const Rounding& rounding);

/// start + a[0] b[0] + a[1] b[1] + ..., in any order, with fused or separate products. Refuses
/// lengths that differ. Products that binary32 holds exactly (all of BF16 and FP8 that do not
/// underflow) add no error of their own. Under more than 0.5 ulps adding zero to `start` counts as
/// an operation, since a matrix unit may cut it.
Bounded dot(std::span<const float> a, std::span<const float> b, float start,
            const Rounding& rounding);

}  // namespace monoref
