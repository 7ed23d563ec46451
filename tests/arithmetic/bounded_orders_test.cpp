// The two-sided test of the bounds: a million evaluations in other orders and in double stay
// inside, and planted errors of twice the radius are caught.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "reference/arithmetic/bounded.hpp"
#include "reference/arithmetic/code_range.hpp"
#include "reference/formats/convert.hpp"
#include "tests/arithmetic/random.hpp"
#include "tests/formats/recorded_tensors.hpp"

namespace monoref {
namespace {

using test::Random;

struct Tally {
  std::size_t evaluations = 0;
  std::size_t outside = 0;
  std::size_t planted = 0;
  std::size_t caught = 0;

  void evaluate(const Bounded& bound, float result) {
    ++evaluations;
    outside += bound.admits(result) ? 0 : 1;
  }
  /// Errors of twice the radius, or of one place where that is more, up and down.
  void plant(const Bounded& bound, float result) {
    for (const float direction :
         {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity()}) {
      const double error = std::copysign(2 * bound.radius(), direction);
      const auto far = static_cast<float>(result + error);
      const float next = std::nextafter(result, direction);
      const float wrong = std::fabs(static_cast<double>(far) - result) >
                                  std::fabs(static_cast<double>(next) - result)
                              ? far
                              : next;
      ++planted;
      caught += bound.admits(wrong) ? 0 : 1;
    }
  }
};

/// Operands of the kinds that matter to a sum.
enum class Kind { kEven, kWide, kCancelling, kSubnormal, kSparse };
constexpr Kind kKinds[] = {Kind::kEven, Kind::kWide, Kind::kCancelling, Kind::kSubnormal,
                           Kind::kSparse};

std::vector<float> operands(Random& random, Kind kind, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    switch (kind) {
      case Kind::kEven:
        values[i] = random.number(-2, 1);
        break;
      case Kind::kWide:
        values[i] = random.number(-30, 30);
        break;
      case Kind::kCancelling:
        values[i] =
            i % 2 == 1 ? -values[i - 1] * (1 + random.number(-24, -12)) : random.number(-2, 2);
        break;
      case Kind::kSubnormal:
        values[i] = random.number(-75, -58);
        break;
      case Kind::kSparse:
        values[i] = random.below(3) == 0 ? random.number(-4, 4) : 0.0f;
        break;
    }
  }
  return values;
}

/// Adds by repeatedly joining two random partial sums: every tree can come up.
float add_by_random_tree(Random& random, std::vector<float> terms) {
  while (terms.size() > 1) {
    std::swap(terms[random.below(terms.size())], terms.back());
    const float taken = terms.back();
    terms.pop_back();
    terms[random.below(terms.size())] += taken;
  }
  return terms.empty() ? 0.0f : terms[0];
}

void shuffle(Random& random, std::vector<float>& a, std::vector<float>& b) {
  for (std::size_t i = a.size(); i > 1; --i) {
    const std::size_t j = random.below(i);
    std::swap(a[i - 1], a[j]);
    std::swap(b[i - 1], b[j]);
  }
}

/// One way of evaluating a dot product: separate products in a tree, fused chains, both, or double.
float evaluate_dot(Random& random, std::vector<float> a, std::vector<float> b, float start) {
  shuffle(random, a, b);
  const std::size_t way = random.below(4);
  if (way == 0) {
    double total = start;
    for (std::size_t i = 0; i < a.size(); ++i) total += static_cast<double>(a[i]) * b[i];
    return static_cast<float>(total);
  }
  // Lanes with a fused or a plain chain each, then a tree over the lanes.
  const std::size_t lanes = 1 + random.below(way == 1 ? 1 : a.size());
  std::vector<float> sums(lanes, 0.0f);
  sums[random.below(lanes)] = start;
  for (std::size_t i = 0; i < a.size(); ++i) {
    float& lane = sums[i % lanes];
    lane = random.below(2) == 0 || way == 1 ? std::fma(a[i], b[i], lane) : lane + a[i] * b[i];
  }
  return add_by_random_tree(random, std::move(sums));
}

TEST(BoundedOrders, DotsInOtherOrdersStayInsideAndPlantedErrorsDoNot) {
  Random random(1);
  Tally tally;
  for (int repeat = 0; repeat < 5000; ++repeat) {
    const Kind kind = kKinds[static_cast<std::size_t>(repeat) % std::size(kKinds)];
    const std::size_t count = 1 + random.below(40);
    const auto a = operands(random, kind, count);
    const auto b = operands(random, kind, count);
    const float start = random.below(2) == 0 ? 0.0f : operands(random, kind, 1)[0];
    const Bounded bound = dot(a, b, start, kCorrectRounding);
    float result = 0;
    for (int way = 0; way < 200; ++way) {
      result = evaluate_dot(random, a, b, start);
      tally.evaluate(bound, result);
    }
    tally.plant(bound, result);
  }
  EXPECT_GE(tally.evaluations, 1000000u);
  EXPECT_EQ(tally.outside, 0u);
  EXPECT_EQ(tally.planted, 10000u);
  EXPECT_GE(tally.caught * 100, tally.planted * 99) << tally.caught;
}

TEST(BoundedOrders, SumsOfIntervalsInOtherOrdersStayInside) {
  Random random(2);
  Tally tally;
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const Kind kind = kKinds[static_cast<std::size_t>(repeat) % std::size(kKinds)];
    const auto middle = operands(random, kind, 1 + random.below(30));
    std::vector<Bounded> terms;
    for (const float value : middle)
      terms.push_back(Bounded::between(value, value * (1 + 0x1p-10 * random.signed_unit())));
    const Bounded bound = sum(terms, kCorrectRounding);
    float result = 0;
    for (int way = 0; way < 50; ++way) {
      std::vector<float> chosen;
      for (const Bounded& term : terms) {
        const double inside = term.low + (term.high - term.low) * std::fabs(random.signed_unit());
        const auto value = static_cast<float>(inside);
        chosen.push_back(term.admits(value) ? value : static_cast<float>(term.low));
        if (!term.admits(chosen.back())) chosen.back() = static_cast<float>(term.high);
      }
      result = add_by_random_tree(random, std::move(chosen));
      tally.evaluate(bound, result);
    }
    tally.plant(bound, result);
  }
  EXPECT_EQ(tally.outside, 0u);
  EXPECT_GE(tally.caught * 100, tally.planted * 99) << tally.caught;
}

/// A hardware function with a result that is not negative: the exact value, off by up to `ulps`, as
/// one float that may be flushed.
float approximate(Random& random, double exact, double ulps) {
  const int exponent = exact == 0 ? -126 : std::max(std::ilogb(exact), -126);
  // Half a place is left for the rounding of the outcome to a float.
  const double error = std::ldexp((ulps - 0.5) * random.signed_unit(), exponent - 23);
  const auto result = static_cast<float>(std::max(exact + error, 0.0));
  const bool flushed = result < std::numeric_limits<float>::min() && random.below(2) == 0;
  return flushed ? 0.0f : result;
}

/// Gemma RMS norm of a row as some kernel may do it.
struct Norm {
  static constexpr float kEps = 1e-6f;
  std::vector<float> x;
  std::vector<float> weight;

  Bounded bound(std::size_t i) const {
    const auto n = static_cast<double>(x.size());
    const Bounded squares = dot(x, x, 0.0f, kCorrectRounding);
    const Bounded mean = divide(squares, Bounded::exactly(n), kApproximateDivision);
    const Bounded root = reciprocal_square_root(add(mean, Bounded::exactly(kEps), kCorrectRounding),
                                                kApproximateRsq);
    const Bounded gain = add(Bounded::exactly(weight[i]), Bounded::exactly(1), kCorrectRounding);
    const Bounded value = Bounded::exactly(x[i]);
    // Either association: the norm's rows differ in it between kernels.
    return either(multiply(multiply(value, root, kCorrectRounding), gain, kCorrectRounding),
                  multiply(multiply(value, gain, kCorrectRounding), root, kCorrectRounding));
  }

  float evaluate(Random& random, std::size_t i) const {
    const float squares = evaluate_dot(random, x, x, 0.0f);
    const auto n = static_cast<double>(x.size());
    const float mean = approximate(random, squares / n, 2);
    const float shifted = mean + kEps;
    const float root = approximate(random, 1 / std::sqrt(static_cast<double>(shifted)), 2);
    const float gain = weight[i] + 1;
    return random.below(2) == 0 ? (x[i] * root) * gain : (x[i] * gain) * root;
  }
};

TEST(BoundedOrders, NormsOfOtherKernelsStayInsideThroughBF16AndE4M3) {
  Random random(3);
  Tally tally;
  std::size_t codes_outside = 0;
  std::size_t wrong_codes = 0;
  std::size_t wrong_codes_caught = 0;
  std::size_t bf16_codes = 0;
  constexpr int kRows = 400;
  for (int row = 0; row < kRows; ++row) {
    const std::size_t width = 8 * (1 + random.below(16));
    Norm norm{operands(random, Kind::kEven, width), operands(random, Kind::kEven, width)};
    for (std::size_t i = 0; i < width; ++i) {
      norm.x[i] = round_to_bf16(norm.x[i]);
      norm.weight[i] = round_to_bf16(norm.weight[i]) / 4;
    }
    const std::size_t i = random.below(width);
    const Bounded bound = norm.bound(i);
    const CodeRange bf16 = code_range(bound, kBF16, Overflow::kInfinity);
    const CodeRange fp8 = code_range(bound, kE4M3FN, Overflow::kNan);
    bf16_codes = std::max(bf16_codes, static_cast<std::size_t>(bf16.size()));
    float result = 0;
    for (int way = 0; way < 50; ++way) {
      result = norm.evaluate(random, i);
      tally.evaluate(bound, result);
      codes_outside += bf16.admits(bf16_from_float(result)) ? 0 : 1;
      codes_outside += fp8.admits(encode(kE4M3FN, result, Overflow::kNan)) ? 0 : 1;
    }
    tally.plant(bound, result);
    const std::uint16_t code = bf16_from_float(result);
    for (const std::uint32_t wrong :
         {next_up(kBF16, next_up(kBF16, code)), next_down(kBF16, next_down(kBF16, code))}) {
      ++wrong_codes;
      wrong_codes_caught += bf16.admits(wrong) ? 0 : 1;
    }
  }
  EXPECT_EQ(tally.outside, 0u);
  EXPECT_EQ(codes_outside, 0u);
  EXPECT_GE(tally.caught * 100, tally.planted * 99) << tally.caught;
  // 128 additions and three functions are 2^-16 of the value, far below the 2^-8 between BF16
  // codes: a range crosses at most one midpoint, and no code two places away is ever admitted.
  EXPECT_LE(bf16_codes, 2u);
  EXPECT_EQ(wrong_codes_caught, wrong_codes);
}

/// softmax weight exp2((s - m) log2 e) / sum, with approximate functions and flushing.
TEST(BoundedOrders, SoftmaxOfOtherKernelsStaysInside) {
  Random random(4);
  Tally tally;
  constexpr float kLog2E = 1.44269504f;
  for (int repeat = 0; repeat < 400; ++repeat) {
    const Kind kind = repeat % 2 == 0 ? Kind::kWide : Kind::kEven;
    const auto scores = operands(random, kind, 2 + random.below(60));
    std::vector<float> clamped;
    for (const float score : scores) clamped.push_back(std::clamp(score, -200.0f, 200.0f));
    const float m = *std::max_element(clamped.begin(), clamped.end());
    std::vector<Bounded> weights;
    for (const float score : clamped)
      weights.push_back(exp2(
          multiply(subtract(Bounded::exactly(score), Bounded::exactly(m), kCorrectRoundingOrFlush),
                   Bounded::exactly(kLog2E), kCorrectRoundingOrFlush),
          kApproximateExp2));
    const Bounded total = sum(weights, kCorrectRoundingOrFlush);
    const std::size_t i = random.below(clamped.size());
    const Bounded bound = divide(weights[i], total, kApproximateDivision);
    float result = 0;
    for (int way = 0; way < 50; ++way) {
      std::vector<float> p;
      for (const float score : clamped) {
        const float scaled = (score - m) * kLog2E;
        p.push_back(approximate(random, std::exp2(static_cast<double>(scaled)), 2));
      }
      const float own = p[i];
      const float sum_of_p = add_by_random_tree(random, std::move(p));
      result = approximate(random, static_cast<double>(own) / sum_of_p, 2);
      tally.evaluate(bound, result);
    }
    // A flushed result is an end of its range, and twice the radius leads to the other one.
    if (result >= std::numeric_limits<float>::min()) tally.plant(bound, result);
  }
  EXPECT_EQ(tally.outside, 0u);
  EXPECT_GT(tally.planted, 400u);
  EXPECT_GE(tally.caught * 100, tally.planted * 99) << tally.caught;
}

template <class Code>
void judge_recorded_case(const RecordedCase& each, const FloatFormat& format,
                         const Rounding& rounding, Tally& tally) {
  const Tensor& a_tensor = each.input("a");
  const auto a = test::elements<Code>(a_tensor);
  const auto b = test::elements<Code>(each.input("b"));
  const auto c = test::elements<float>(each.input("c"));
  const auto d = test::elements<float>(each.output("d"));
  const auto rows = static_cast<std::size_t>(a_tensor.dim(1));
  const auto k = static_cast<std::size_t>(a_tensor.dim(2));
  std::vector<float> x(k), y(k);
  for (std::size_t i = 0; i < d.size(); ++i) {
    const std::size_t tile = i / (rows * 8);
    for (std::size_t j = 0; j < k; ++j) {
      x[j] = decode(format, a[(tile * rows + i / 8 % rows) * k + j]);
      y[j] = decode(format, b[(tile * 8 + i % 8) * k + j]);
    }
    const Bounded bound = dot(x, y, c[i], rounding);
    tally.evaluate(bound, d[i]);
    if (!std::isnan(d[i])) tally.plant(bound, d[i]);
  }
}

// The bound that is used to judge what Hopper's matrix units did, on what they did: every recorded
// dot is inside, and errors of twice the radius are not.
TEST(Recorded, HopperDotsAreInsideTheirBounds) {
  for (const std::string name : {"hopper_mma", "hopper_wgmma"}) {
    const Recording recording = test::recorded(name);
    Tally tally;
    for (const RecordedCase& each : recording.cases) {
      const bool fp8 = each.word("format") == "e4m3";
      const Rounding& rounding =
          fp8 && name == "hopper_wgmma" ? kHopperFp8Wgmma : kHopperMatrixUnit;
      if (fp8)
        judge_recorded_case<std::uint8_t>(each, kE4M3FN, rounding, tally);
      else
        judge_recorded_case<std::uint16_t>(each, kBF16, rounding, tally);
    }
    EXPECT_EQ(tally.evaluations, 204800u);
    EXPECT_EQ(tally.outside, 0u) << name;
    EXPECT_GE(tally.caught * 100, tally.planted * 99) << name << " " << tally.caught;
  }
}

}  // namespace
}  // namespace monoref
