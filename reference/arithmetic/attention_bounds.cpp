#include "reference/arithmetic/attention_bounds.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace monoref {
namespace {

constexpr double kLn2 = 0.6931471805599454;  // rounded up
constexpr double kHalfUlp = 0x1p-24;         // of binary32, relative
constexpr double kUlp = 0x1p-23;
constexpr double kHalfBf16 = 0x1p-8 / (2 - 0x1p-8);  // half a last place of BF16, at most, relative
constexpr double kSmallestNormal = 0x1p-126;
/// What summing up here, in double, may add to every factor; generous by many orders.
constexpr double kDoubleSlack = 0x1p-40;

/// |log(1 + e)| for any |e| <= error.
double log_error(double error) {
  return error < 1 ? -std::log1p(-error) : std::numeric_limits<double>::infinity();
}

/// Scores as exact ranges, and what all keys share.
struct Scores {
  std::vector<Bounded> ranges;
  double largest = -std::numeric_limits<double>::infinity();  ///< middle
  double spread = 0;     ///< most that a score and a maximum may lie apart
  double magnitude = 0;  ///< of any score
  bool finite = true;

  Scores(const AttentionToBound& head, const AttentionFreedom& freedom) {
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    for (std::size_t at = 0; at < head.k.size(); at += head.q.size()) {
      const Bounded product = dot(head.q, head.k.subspan(at, head.q.size()), 0.0f, freedom.dots);
      const Bounded score = multiply(product, head.score_factor, kCorrectRoundingOrFlush);
      finite = finite && score.has_numbers() && !score.may_be_nan && std::isfinite(score.low) &&
               std::isfinite(score.high);
      low = std::min(low, score.low);
      high = std::max(high, score.high);
      largest = std::max(largest, score.middle());
      ranges.push_back(score);
    }
    spread = high - low;
    magnitude = std::max(std::fabs(low), std::fabs(high));
  }
};

/// The factors that every key's term may carry above the fraction, and below it.
struct SharedErrors {
  double above = 0;
  double below = 0;

  SharedErrors(const AttentionToBound& head, const AttentionFreedom& freedom,
               const Scores& scores) {
    const auto keys = static_cast<double>(scores.ranges.size());
    const auto tiles = static_cast<double>(head.tiles);
    const double exponent = log_error(freedom.exp2.ulps * kUlp);
    const double difference = kLn2 * kHalfUlp * scores.spread;
    const double weight = exponent + difference;
    const double rescales = tiles * (weight + log_error(kHalfUlp));
    const double sum = log_error((keys + tiles) * kHalfUlp);
    const double division = log_error(freedom.division.ulps * kUlp);
    // lse = m + log2(l) with l in [1, keys], rounded; then its distance to the largest, and exp2.
    const double log_of_sum = freedom.log2_error * (1 + std::log2(keys)) +
                              kHalfUlp * (scores.magnitude + std::log2(keys) + 1);
    const double merge = kLn2 * (log_of_sum + kHalfUlp * (scores.spread + std::log2(keys) + 1)) +
                         exponent + log_error(kHalfUlp);
    const double products = log_error((keys + tiles) * freedom.dots.ulps * kUlp);
    const double partial = log_error(kHalfBf16);
    above = weight + log_error(kHalfBf16) + products + rescales + division + partial + merge + sum +
            kDoubleSlack;
    below = weight + rescales + sum + merge + sum + division + kDoubleSlack;
  }
};

}  // namespace

std::vector<Bounded> attention_bound(const AttentionToBound& head,
                                     const AttentionFreedom& freedom) {
  const std::size_t dim = head.q.size();
  const Scores scores(head, freedom);
  if (!scores.finite || scores.ranges.empty())
    return std::vector<Bounded>(dim, Bounded::anything());
  const SharedErrors shared(head, freedom, scores);
  double widest = 0;
  double total = 0;
  std::vector<double> weights;
  for (const Bounded& score : scores.ranges) {
    widest = std::max(widest, kLn2 * score.radius());
    weights.push_back(std::exp2(score.middle() - scores.largest));
    total += weights.back();
  }
  std::vector<Bounded> result;
  for (std::size_t d = 0; d < dim; ++d) {
    double sum = 0;
    double radius = 0;
    double largest = 0;
    for (std::size_t j = 0; j < weights.size(); ++j) {
      const auto v = static_cast<double>(head.v[j * dim + d]);
      const double factors =
          kLn2 * scores.ranges[j].radius() + widest + shared.above + shared.below;
      sum += weights[j] * v;
      radius += weights[j] * std::fabs(v) * std::expm1(factors);
      largest = std::max(largest, std::fabs(v));
    }
    // Weights and partial results below the normal numbers may be lost whole.
    const double lost = 4 * static_cast<double>(weights.size()) * kSmallestNormal * (1 + largest);
    const double middle = sum / total;
    const double reach = (radius / total + lost) * (1 + kDoubleSlack);
    result.push_back({std::nextafter(middle - reach, -INFINITY),
                      std::nextafter(middle + reach, INFINITY), false});
  }
  return result;
}

}  // namespace monoref
