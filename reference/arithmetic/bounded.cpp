#include "reference/arithmetic/bounded.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <vector>

#include "reference/core/error.hpp"

namespace monoref {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kLargest = std::numeric_limits<float>::max();
constexpr double kSmallestNormal = std::numeric_limits<float>::min();
constexpr double kSmallest = std::numeric_limits<float>::denorm_min();
constexpr double kDoubleUnit = 0x1p-53;  // relative error of one operation in double
/// Below this, the tests for exactness may themselves underflow.
constexpr double kTiny = 0x1p-900;

double down(double x) {
  return std::nextafter(x, -kInf);
}
double up(double x) {
  return std::nextafter(x, kInf);
}

/// A bound from below of result + error, where the error is known by its sign.
double below(double result, double error) {
  if (std::isnan(result)) return -kInf;
  return error < 0 && !std::isinf(result) ? down(result) : result;
}

/// Error of a + b as a double sum, exact (Knuth).
double sum_error(double a, double b, double sum) {
  const double b_part = sum - a;
  return (a - (sum - b_part)) + (b - b_part);
}

double add_below(double a, double b) {
  return below(a + b, sum_error(a, b, a + b));
}

/// A product with an infinite factor and a zero one counts as 0: the ends that make it are limits.
double multiply_below(double a, double b) {
  if (a == 0 || b == 0) return 0;
  const double product = a * b;
  return std::fabs(product) < kTiny ? down(product) : below(product, std::fma(a, b, -product));
}

double divide_below(double a, double b) {
  if (std::isinf(b)) return std::isinf(a) ? -kInf : 0.0;  // the limit; other ends bound the rest
  const double quotient = a / b;
  if (quotient != 0 && std::fabs(quotient) < kTiny) return down(quotient);
  const double remainder = std::fma(-quotient, b, a);  // exact: a - quotient * b
  return below(quotient, b < 0 ? -remainder : remainder);
}

double root_below(double x) {
  const double root = std::sqrt(x);
  return below(root, std::fma(-root, root, x));
}

double root_above(double x) {
  const double root = std::sqrt(x);
  return std::fma(-root, root, x) > 0 ? up(root) : root;
}

/// Spacing of binary32 at a finite magnitude.
double ulp(double magnitude) {
  const int exponent = magnitude == 0 ? -126 : std::clamp(std::ilogb(magnitude), -126, 127);
  return std::ldexp(1.0, exponent - 23);
}

/// The least result of one operation whose exact result is at least `low`.
double rounded_low(double low, const Rounding& rounding) {
  if (std::isinf(low)) return low;
  double result = low;
  if (rounding.ulps <= 0.5) {
    // Rounding to nearest is monotone: nothing above `low` is rounded below where `low` goes.
    result = std::min(low, static_cast<double>(static_cast<float>(low)));
  } else {
    // Just below a power of two, results from above it may err by its larger ulp.
    const double near = std::fabs(low) + 2 * rounding.ulps * ulp(std::fabs(low));
    result = std::min(down(low - up(rounding.ulps * ulp(near))), kLargest);
    if (low >= 0) result = std::max(result, 0.0);
  }
  if (result < -kLargest && rounding.ulps > 0.5) result = -kInf;
  if (rounding.may_flush && result > 0 && result < kSmallestNormal) result = 0;
  return result;
}

Bounded rounded(const Bounded& exact, const Rounding& rounding) {
  if (!exact.has_numbers()) return exact;
  return {rounded_low(exact.low, rounding), -rounded_low(-exact.high, rounding), exact.may_be_nan};
}

/// An argument as the operation may see it.
Bounded argument(const Bounded& x, const Rounding& rounding) {
  if (!rounding.may_flush || !x.has_numbers()) return x;
  Bounded seen = x;
  if (x.low > 0 && x.low < kSmallestNormal) seen.low = 0;
  if (x.high < 0 && x.high > -kSmallestNormal) seen.high = 0;
  return seen;
}

bool holds_zero(const Bounded& x) {
  return x.low <= 0 && x.high >= 0;
}
bool holds_infinity(const Bounded& x) {
  return std::isinf(x.low) || std::isinf(x.high);
}

/// Least and largest over a few candidates, of which `lower` bounds from below and `-upper` from
/// above.
Bounded span_of(std::initializer_list<double> lower, std::initializer_list<double> upper,
                bool may_be_nan) {
  return {std::min(lower), std::max(upper), may_be_nan};
}

Bounded exact_product(const Bounded& a, const Bounded& b) {
  const bool nan = a.may_be_nan || b.may_be_nan || (holds_zero(a) && holds_infinity(b)) ||
                   (holds_zero(b) && holds_infinity(a));
  return span_of({multiply_below(a.low, b.low), multiply_below(a.low, b.high),
                  multiply_below(a.high, b.low), multiply_below(a.high, b.high)},
                 {-multiply_below(-a.low, b.low), -multiply_below(-a.low, b.high),
                  -multiply_below(-a.high, b.low), -multiply_below(-a.high, b.high)},
                 nan);
}

/// a / b for a divisor that is nowhere zero.
Bounded quotient_by_nonzero(const Bounded& a, const Bounded& b, bool nan) {
  return span_of({divide_below(a.low, b.low), divide_below(a.low, b.high),
                  divide_below(a.high, b.low), divide_below(a.high, b.high)},
                 {-divide_below(-a.low, b.low), -divide_below(-a.low, b.high),
                  -divide_below(-a.high, b.low), -divide_below(-a.high, b.high)},
                 nan);
}

/// a / b for a divisor that reaches from zero to a positive number.
Bounded quotient_by_zero_to(const Bounded& a, double b_high, bool nan) {
  if (a.low >= 0) return {std::max(divide_below(a.low, b_high), 0.0), kInf, nan};
  if (a.high <= 0) return {-kInf, std::min(-divide_below(-a.high, b_high), 0.0), nan};
  return {-kInf, kInf, nan};
}

Bounded exact_quotient(const Bounded& a, const Bounded& b) {
  const bool nan = a.may_be_nan || b.may_be_nan || (holds_zero(a) && holds_zero(b)) ||
                   (holds_infinity(a) && holds_infinity(b));
  if (!holds_zero(b)) return quotient_by_nonzero(a, b, nan);
  if (b.low == 0 && b.high > 0) return quotient_by_zero_to(a, b.high, nan);
  if (b.high == 0 && b.low < 0) return quotient_by_zero_to(negate(a), -b.low, nan);
  return {-kInf, kInf, nan};
}

/// NaN below zero; the root of -0 is -0.
Bounded exact_root(const Bounded& x) {
  if (!x.has_numbers() || x.high < 0) return Bounded::only_nan();
  return {root_below(std::max(x.low, 0.0)), root_above(x.high), x.may_be_nan || x.low < 0};
}

bool one_is_only_nan(const Bounded& a, const Bounded& b) {
  return !a.has_numbers() || !b.has_numbers();
}

/// Terms summed up in double, and what a bound for any other order needs to know of them.
struct Total {
  double sum = 0;
  double low_spread = 0;  ///< how far the terms' ends reach below what was summed
  double high_spread = 0;
  double magnitude = 0;                ///< sum of magnitudes
  double absolute = 0;                 ///< errors that do not scale with the terms
  std::size_t terms = 0;               ///< that are not exactly zero
  std::size_t roundings_of_terms = 0;  ///< 1 if a term may be rounded by itself before it is added
  bool nonnegative = true;

  /// Adds one exact term.
  void count(double term) {
    if (term == 0) return;
    ++terms;
    sum += term;
    magnitude += std::fabs(term);
    nonnegative = nonnegative && term > 0;
  }
};

/// One product of two floats, exact in double.
struct Product {
  double value = 0;
  bool exact = true;            ///< binary32 holds it
  double absolute_error = 0;    ///< of a separate or flushed product that underflows
  double hidden_magnitude = 0;  ///< what `operand_floor` adds to its magnitude
};

Product product_of(float a, float b, const Rounding& rounding) {
  Product product;
  product.value = static_cast<double>(a) * static_cast<double>(b);
  if (product.value == 0 || std::isnan(product.value)) return product;
  product.exact = static_cast<double>(static_cast<float>(product.value)) == product.value;
  if (!product.exact) product.absolute_error += std::max(rounding.ulps, 0.5) * kSmallest;
  const double a_magnitude = std::fabs(static_cast<double>(a));
  const double b_magnitude = std::fabs(static_cast<double>(b));
  const double magnitude = std::fabs(product.value);
  if (rounding.may_flush && std::min({a_magnitude, b_magnitude, magnitude}) < kSmallestNormal)
    product.absolute_error += magnitude;
  const double floor = rounding.operand_floor;
  product.hidden_magnitude =
      std::max(a_magnitude, floor) * std::max(b_magnitude, floor) - magnitude;
  return product;
}

/// What any order of adding the terms may give: the sum in double, and around it the errors of n -
/// 1 additions in binary32, of the terms themselves, and of the summing in double.
Bounded any_order(const Total& total, const Rounding& rounding, bool may_be_nan) {
  const auto additions = static_cast<double>(total.terms < 2 ? 0 : total.terms - 1);
  const double each = rounding.ulps * 0x1p-23;
  const double steps = (additions + static_cast<double>(total.roundings_of_terms)) * each;
  if (steps >= 0.5) return Bounded::anything();
  // (1 + each)^k - 1 <= steps / (1 - steps).
  const double factor = steps / (1 - steps);
  double error = factor * total.magnitude + (1 + factor) * total.absolute;
  if (rounding.may_flush) error += (1 + factor) * additions * kSmallestNormal;
  if (rounding.ulps > 0.5) error += (1 + factor) * additions * rounding.ulps * kSmallest;
  // Summing up here, in double, erred too: at most one rounding per term in each total, and a few
  // more.
  const double spread = total.low_spread + total.high_spread;
  if (total.terms > 1 || spread > 0)
    error += (static_cast<double>(total.terms) + 8) * (total.magnitude + error + spread) * 2 *
             kDoubleUnit;
  if (!(total.magnitude + error <= kLargest)) return Bounded::anything();
  Bounded result{total.sum, total.sum, may_be_nan};
  if (error > 0 || total.low_spread > 0) result.low = down(total.sum - total.low_spread - error);
  if (error > 0 || total.high_spread > 0) result.high = up(total.sum + total.high_spread + error);
  if (total.nonnegative) result.low = std::max(result.low, 0.0);
  return result;
}

}  // namespace

Bounded Bounded::exactly(double value) {
  return std::isnan(value) ? only_nan() : Bounded{value, value, false};
}

Bounded Bounded::only_nan() {
  return {kInf, -kInf, true};
}

Bounded Bounded::anything() {
  return {-kInf, kInf, true};
}

Bounded Bounded::between(double a, double b) {
  return {std::min(a, b), std::max(a, b), false};
}

double Bounded::radius() const {
  return low == high ? 0 : up((high - low) / 2);
}

bool Bounded::admits(float result) const {
  return std::isnan(result) ? may_be_nan : low <= result && result <= high;
}

Bounded negate(const Bounded& x) {
  return {-x.high, -x.low, x.may_be_nan};
}

Bounded absolute(const Bounded& x) {
  if (!x.has_numbers() || x.low >= 0) return x;
  if (x.high <= 0) return negate(x);
  return {0, std::max(-x.low, x.high), x.may_be_nan};
}

Bounded add(const Bounded& a_given, const Bounded& b_given, const Rounding& rounding) {
  if (one_is_only_nan(a_given, b_given)) return Bounded::only_nan();
  const Bounded a = argument(a_given, rounding);
  const Bounded b = argument(b_given, rounding);
  const bool nan = a.may_be_nan || b.may_be_nan || (a.high == kInf && b.low == -kInf) ||
                   (a.low == -kInf && b.high == kInf);
  return rounded({add_below(a.low, b.low), -add_below(-a.high, -b.high), nan}, rounding);
}

Bounded subtract(const Bounded& a, const Bounded& b, const Rounding& rounding) {
  return add(a, negate(b), rounding);
}

Bounded multiply(const Bounded& a, const Bounded& b, const Rounding& rounding) {
  if (one_is_only_nan(a, b)) return Bounded::only_nan();
  return rounded(exact_product(argument(a, rounding), argument(b, rounding)), rounding);
}

Bounded square(const Bounded& x, const Rounding& rounding) {
  const Bounded magnitude = absolute(x);
  return multiply(magnitude, magnitude, rounding);
}

Bounded divide(const Bounded& a, const Bounded& b, const Rounding& rounding) {
  if (one_is_only_nan(a, b)) return Bounded::only_nan();
  return rounded(exact_quotient(argument(a, rounding), argument(b, rounding)), rounding);
}

Bounded square_root(const Bounded& x, const Rounding& rounding) {
  return rounded(exact_root(argument(x, rounding)), rounding);
}

Bounded reciprocal(const Bounded& x, const Rounding& rounding) {
  return divide(Bounded::exactly(1), x, rounding);
}

Bounded reciprocal_square_root(const Bounded& x, const Rounding& rounding) {
  const Bounded root = exact_root(argument(x, rounding));
  if (!root.has_numbers()) return root;
  return rounded(exact_quotient(Bounded::exactly(1), root), rounding);
}

Bounded exp2(const Bounded& x_given, const Rounding& rounding) {
  if (!x_given.has_numbers()) return Bounded::only_nan();
  const Bounded x = argument(x_given, rounding);
  // The C library's exp2 in double is within one ulp of double; two steps out cover it.
  const double low = std::max(down(down(std::exp2(x.low))), 0.0);
  const double high = up(up(std::exp2(x.high)));
  return rounded({low, high, x.may_be_nan}, rounding);
}

Bounded maximum(const Bounded& a, const Bounded& b) {
  if (one_is_only_nan(a, b)) return Bounded::only_nan();
  return {std::max(a.low, b.low), std::max(a.high, b.high), a.may_be_nan || b.may_be_nan};
}

Bounded minimum(const Bounded& a, const Bounded& b) {
  return negate(maximum(negate(a), negate(b)));
}

Bounded clamp(const Bounded& x, double low, double high) {
  return maximum(Bounded::exactly(low), minimum(x, Bounded::exactly(high)));
}

Bounded either(const Bounded& a, const Bounded& b) {
  return {std::min(a.low, b.low), std::max(a.high, b.high), a.may_be_nan || b.may_be_nan};
}

Bounded sum(std::span<const Bounded> terms, const Rounding& rounding) {
  Total total;
  bool nan = false;
  for (const Bounded& given : terms) {
    if (!given.has_numbers()) return Bounded::only_nan();
    const Bounded term = argument(given, rounding);
    nan = nan || term.may_be_nan;
    if (term.low == 0 && term.high == 0) continue;
    // The end farther from zero is summed: it is the term's magnitude, and an exact term has no
    // spread.
    const double base = std::fabs(term.low) < std::fabs(term.high) ? term.high : term.low;
    total.count(base);
    total.low_spread += base - term.low;
    total.high_spread += term.high - base;
    total.nonnegative = total.nonnegative && term.low >= 0;
  }
  return any_order(total, rounding, nan);
}

Bounded dot(std::span<const float> a, std::span<const float> b, float start,
            const Rounding& rounding) {
  if (a.size() != b.size())
    refuse("bounded dot: lengths are {} and {}, must be equal", a.size(), b.size());
  if (std::isnan(start)) return Bounded::only_nan();
  Total total;
  total.count(start);
  if (rounding.ulps > 0.5 && start != 0) total.roundings_of_terms = 1;
  if (rounding.may_flush && std::fabs(start) < kSmallestNormal) total.absolute += std::fabs(start);
  for (std::size_t k = 0; k < a.size(); ++k) {
    const Product product = product_of(a[k], b[k], rounding);
    if (std::isnan(product.value)) return Bounded::only_nan();
    total.count(product.value);
    total.magnitude += product.hidden_magnitude;
    total.absolute += product.absolute_error;
    if (!product.exact) total.roundings_of_terms = 1;
  }
  return any_order(total, rounding, false);
}

}  // namespace monoref
