#include "reference/stages/moe_route.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "reference/arithmetic/bounded.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int32_t kLowest = std::numeric_limits<std::int32_t>::min();
/// Logits whose sigmoids are exactly 1, 1/2 and 0.
constexpr float kOne = 100;
constexpr float kHalf = 0;
constexpr float kZero = -200;

using Floats = std::vector<float>;

struct Route {
  Numbers ids;
  Floats weights;
};

/// One row. Without a bias given all are 0.
struct Row {
  Floats logits;
  Floats bias;
  std::int64_t top_k = 4;
  double scaling = 1;
  bool renormalise = true;
  bool shared = false;
  double shared_weight = 1;
  Contract contract{};

  MoeRouteInput input() {
    bias.resize(std::max(bias.size(), logits.size()), 0.0f);
    const auto experts = static_cast<std::int64_t>(logits.size());
    return {{logits.data(), {1, experts}, {experts, 1}},
            {bias.data(), {static_cast<std::int64_t>(bias.size())}, {1}},
            top_k,
            scaling,
            renormalise,
            shared,
            shared_weight,
            contract};
  }
  Route route() {
    const auto dims = moe_route_shape(input());
    Route result{Numbers(static_cast<std::size_t>(dims[1])),
                 Floats(static_cast<std::size_t>(dims[1]))};
    std::vector<std::int32_t> ids(result.ids.size(), kPoison32);
    moe_route(input(), {{ids.data(), {1, dims[1]}, {dims[1], 1}},
                        {result.weights.data(), {1, dims[1]}, {dims[1], 1}}});
    result.ids.assign(ids.begin(), ids.end());
    return result;
  }
  std::string refusal() {
    return refusal_of([&] { moe_route_shape(input()); });
  }
};

Contract with(const std::string& fields) {
  return Contract::parse("mono," + fields);
}

Floats equal(float value, std::size_t count) {
  return Floats(count, value);
}

/// What a sigmoid in binary32 may be: correct operations, and an exp2 within 1 ulp.
Bounded sigmoid(float logit) {
  const Bounded exponent = multiply(Bounded::exactly(-static_cast<double>(logit)),
                                    Bounded::exactly(0x1.715476p+0), kCorrectRounding);
  const Bounded below = add(Bounded::exactly(1), exp2(exponent, {1.0, false}), kCorrectRounding);
  return divide(Bounded::exactly(1), below, kCorrectRounding);
}

TEST(MoeRoute, HandComputedRow) {
  // Scores 1/2, 1, 1/2, 1, 0, 1/2; the biases decide among equals and put expert 4 second.
  Row row{.logits = {kHalf, kOne, kHalf, kOne, kZero, kHalf},
          .bias = {0, 0, 0.25f, 1, 1.5f, -1},
          .scaling = 2};
  // Keys 0.5, 1, 0.75, 2, 1.5, -0.5; scores of the selected 1, 0, 1, 0.5: sum 2.5.
  const Route result = row.route();
  EXPECT_EQ(result.ids, (Numbers{3, 4, 1, 2}));
  const float factor = 2.0f / 2.5f;
  EXPECT_EQ(result.weights, (Floats{factor, 0, factor, 0.5f * factor}));
}

TEST(MoeRoute, ScoresAreSigmoidsInBinary32) {
  const Contract bf16;
  const Contract f32 = with("gate_weights=f32");
  EXPECT_EQ(routing_score(0, bf16), 0.5f);
  EXPECT_EQ(routing_score(kInf, bf16), 1.0f);
  EXPECT_EQ(routing_score(3e38f, f32), 1.0f);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(routing_score(-kInf, bf16)), 0u);
  EXPECT_EQ(routing_score(-3e38f, f32), 0.0f);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(routing_score(-kNan, f32)), 0x7FC00000u);
  EXPECT_GT(routing_score(-88.0f, f32), 0.0f) << "subnormal scores are kept";
  EXPECT_LT(routing_score(-88.0f, f32), 0x1p-126f);
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    const auto logit = static_cast<float>(random.between(-80000, 20000)) / 1000.0f;
    EXPECT_TRUE(sigmoid(logit).admits(routing_score(logit, f32))) << logit;
  }
}

TEST(MoeRoute, GateWeightsOfBf16RoundTheLogit) {
  // 1 + 2^-8 is half way to the next BF16 number and goes to 1; 1 + 3 * 2^-8 goes to 1 + 2^-6.
  EXPECT_EQ(routing_score(1 + 0x1p-8f, Contract{}), routing_score(1, Contract{}));
  EXPECT_EQ(routing_score(1 + 0x1.8p-7f, Contract{}), routing_score(1 + 0x1p-6f, Contract{}));
  Row row{.logits = {1, 1 + 0x1p-8f}, .top_k = 1};
  EXPECT_EQ(row.route().ids, (Numbers{0})) << "a tie once they are rounded";
  row.contract = with("gate_weights=f32");
  EXPECT_EQ(row.route().ids, (Numbers{1}));
}

TEST(MoeRoute, KeysFollowTheNumbers) {
  const Contract plain = with("routing_key=plain_lower_id");
  std::int32_t previous = kLowest;
  for (const float bias : {-kInf, -3e38f, -1.0f, -1e-40f, 0.0f, 1e-40f, 1.0f, 3e38f, kInf}) {
    EXPECT_GT(routing_key(0, bias, 5, plain), previous) << bias;
    previous = routing_key(0, bias, 5, plain);
  }
  EXPECT_EQ(routing_key(0.5f, 0.5f, 3, plain), 0x3F800000);
  EXPECT_EQ(routing_key(0, -1, 3, plain), static_cast<std::int32_t>(0xBF800000 ^ 0x7FFFFFFF));
  EXPECT_EQ(routing_key(0, -0.0f, 3, plain), 0);
  EXPECT_EQ(routing_key(-0.0f, -0.0f, 3, plain), 0) << "no -0";
}

TEST(MoeRoute, PackedKeysHoldTheExpertInTheirLowBits) {
  const Contract packed;
  EXPECT_EQ(routing_key(0.5f, 0.5f, 3, packed), 0x3F800000 + 124);
  EXPECT_EQ(routing_key(0.5f, 0.5f + 0x1p-23f, 127, packed), 0x3F800000);
  EXPECT_EQ(routing_key(0, -kInf, 0, packed), 0x007FFFFF - 0x7FFFFFFF - 1)
      << "the bits of -Inf xor 0x7fffffff end in seven ones";
}

TEST(MoeRoute, NearEqualKeysGoToTheLowerExpertWhenPacked) {
  // Keys of 1 and 1 + 127 * 2^-23 have the same upper bits, 1 + 128 * 2^-23 has not.
  for (const auto& [ulps, packed] : {std::pair{1, 0}, std::pair{127, 0}, std::pair{128, 1}}) {
    Row row{.logits = {kHalf, kHalf},
            .bias = {0.5f, 0.5f + static_cast<float>(ulps) * 0x1p-23f},
            .top_k = 1};
    EXPECT_EQ(row.route().ids, (Numbers{packed})) << ulps;
    for (const char* plain : {"routing_key=plain_lower_id", "routing_key=plain_higher_id"}) {
      row.contract = with(plain);
      EXPECT_EQ(row.route().ids, (Numbers{1})) << plain << " " << ulps;
    }
  }
  // Below zero too, where the bits run the other way: -1 is larger than -1 - 2^-23.
  Row negative{.logits = {kZero, kZero}, .bias = {-1 - 0x1p-23f, -1}, .top_k = 1};
  negative.contract = with("routing_key=plain_lower_id");
  EXPECT_EQ(negative.route().ids, (Numbers{1}));
  negative.bias = {-1 - 0x1p-22f, -1 - 0x1p-23f};
  negative.contract = Contract{};
  EXPECT_EQ(negative.route().ids, (Numbers{0}));
}

TEST(MoeRoute, TiesGoToTheLowerOrToTheHigherExpert) {
  Row row{.logits = equal(0.75f, 128), .scaling = 2};
  EXPECT_EQ(row.route().ids, (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(row.route().weights, equal(0.5f, 4));
  row.contract = with("routing_key=plain_lower_id");
  EXPECT_EQ(row.route().ids, (Numbers{0, 1, 2, 3}));
  row.contract = with("routing_key=plain_higher_id");
  EXPECT_EQ(row.route().ids, (Numbers{127, 126, 125, 124}));
  // -0 and +0 as sums of 0 and a bias of either sign are one key.
  Row zeros{.logits = equal(-kInf, 4), .bias = {-0.0f, 0.0f, -0.0f, 0.0f}, .top_k = 2};
  zeros.contract = with("routing_key=plain_lower_id");
  EXPECT_EQ(zeros.route().ids, (Numbers{0, 1}));
  zeros.contract = with("routing_key=plain_higher_id");
  EXPECT_EQ(zeros.route().ids, (Numbers{3, 2}));
}

TEST(MoeRoute, SaturatedSigmoidsTie) {
  Row row{.logits = {20, 100, kInf, 3e38f, 19}, .top_k = 4, .renormalise = false};
  EXPECT_EQ(row.route().ids, (Numbers{0, 1, 2, 3})) << "all exactly 1";
  EXPECT_EQ(row.route().weights, equal(1, 4));
}

TEST(MoeRoute, AllMinusInfinity) {
  Row row{.logits = equal(-kInf, 128), .scaling = 2};
  EXPECT_EQ(row.route().ids, (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(row.route().weights, equal(0, 4));
}

TEST(MoeRoute, M01WeightsAreZeroWhenAllSigmoidsUnderflow) {
  for (const float logit : {-200.0f, -104.0f}) {
    Row row{.logits = equal(logit, 8), .bias = {0, 0, 3, 0, 0, 1, 0, 0}, .top_k = 2, .scaling = 2};
    EXPECT_EQ(row.route().ids, (Numbers{2, 5}));
    EXPECT_EQ(row.route().weights, (Floats{0, 0}));
  }
}

TEST(MoeRoute, M01TheSumHasAFloorOf1em20) {
  // Scores around e^-60, 9e-27: the floor takes the place of the sum, and the weights do not add up
  // to the scaling.
  Row row{.logits = {-60, -60}, .top_k = 2, .contract = with("gate_weights=f32")};
  const float score = routing_score(-60, row.contract);
  EXPECT_EQ(row.route().weights, equal(score * (1.0f / 1e-20f), 2));
  // e^-40, 4e-18, is above it.
  Row above{.logits = {-40}, .top_k = 1, .contract = with("gate_weights=f32")};
  const float large = routing_score(-40, above.contract);
  EXPECT_EQ(above.route().weights, (Floats{large * (1.0f / large)}));
}

TEST(MoeRoute, M02TheBiasIsNotSubtractedAgain) {
  // A score of 1e-7 is lost beside a bias of 12.
  Row row{.logits = equal(-16.1f, 2), .bias = {12, 12}, .top_k = 2};
  row.contract = with("gate_weights=f32");
  ASSERT_EQ(routing_score(-16.1f, row.contract) + 12.0f, 12.0f);
  const Route result = row.route();
  EXPECT_EQ(result.ids, (Numbers{0, 1}));
  EXPECT_EQ(result.weights[0], result.weights[1]);
  // s * (1 / 2s), two roundings: 1/2 or its lower neighbour.
  EXPECT_TRUE(result.weights[0] == 0.5f || result.weights[0] == std::nextafter(0.5f, 0.0f));
  // The score itself, where nothing is divided.
  row.renormalise = false;
  EXPECT_EQ(row.route().weights, equal(routing_score(-16.1f, row.contract), 2));
}

void expect_distinct_and_valid(const Numbers& ids, std::int64_t experts) {
  EXPECT_EQ(std::set<std::int64_t>(ids.begin(), ids.end()).size(), ids.size());
  for (const std::int64_t id : ids) {
    EXPECT_GE(id, 0);
    EXPECT_LT(id, experts);
  }
}

TEST(MoeRoute, M04NanLogitsGiveDistinctIds) {
  for (const char* key : {"packed", "plain_lower_id", "plain_higher_id"})
    for (const char* nan : {"last", "first"}) {
      SCOPED_TRACE(fmt::format("{} {}", key, nan));
      Row row{.logits = equal(kNan, 8), .top_k = 8};
      row.contract = with(fmt::format("routing_key={},nan_key={}", key, nan));
      const Route all = row.route();
      Numbers order = counting(0, 8);
      if (row.contract.routing_key == RoutingKey::kPlainHigherId)
        std::reverse(order.begin(), order.end());
      EXPECT_EQ(all.ids, order);
      for (const float weight : all.weights)
        EXPECT_EQ(std::bit_cast<std::uint32_t>(weight), 0x7FC00000u);
      // One NaN and one infinity among finite ones.
      row.logits = {0, 0, -kNan, 0, kInf, 0, 0, 0};
      const Route mixed = row.route();
      expect_distinct_and_valid(mixed.ids, 8);
      const bool last = row.contract.nan_key == NanKey::kLast;
      EXPECT_EQ(mixed.ids[last ? 7 : 0], 2);
      EXPECT_EQ(mixed.ids[last ? 0 : 1], 4);
    }
}

TEST(MoeRoute, M05NanInTheBiasIsNeverSelected) {
  Row row{.logits = {0, 1, 2, 9, -1, -kInf, 3, 0.5f}, .bias = {0, 0, 0, kNan, 0, -kInf, 0, 0}};
  for (const char* key : {"packed", "plain_lower_id", "plain_higher_id"})
    for (std::int64_t top_k = 1; top_k <= 7; ++top_k) {
      row.contract = with(fmt::format("routing_key={}", key));
      row.top_k = top_k;
      const Route result = row.route();
      expect_distinct_and_valid(result.ids, 8);
      EXPECT_EQ(std::count(result.ids.begin(), result.ids.end(), 3), 0) << key << " " << top_k;
      for (const float weight : result.weights) EXPECT_EQ(weight, weight) << "no NaN";
    }
  // In logits and bias at once, and everywhere.
  row.top_k = 8;
  row.logits[5] = kNan;
  EXPECT_EQ(row.route().ids, (Numbers{6, 2, 1, 7, 0, 4, 5, 3})) << "plain_higher_id";
  row.bias = equal(-kNan, 8);
  EXPECT_EQ(row.route().ids, (Numbers{7, 6, 5, 4, 3, 2, 1, 0}));
  row.contract = with("nan_key=first");
  EXPECT_EQ(row.route().ids, counting(0, 8));
}

TEST(MoeRoute, OppositeInfinitiesMakeANanKey) {
  // The score of +Inf is 1, finite; only the bias can make infinite keys.
  Row row{.logits = {kInf, -kInf, 0, 0}, .bias = {-kInf, kInf, 0, 0}, .top_k = 4};
  EXPECT_EQ(row.route().ids, (Numbers{1, 2, 3, 0}));
  EXPECT_EQ(row.route().weights, (Floats{0, 0.25f, 0.25f, 0.5f})) << "of scores 0, 1/2, 1/2, 1";
}

TEST(MoeRoute, M07TheRenormaliseFlagCounts) {
  // Scores 1 and 1/2.
  Row exact{.logits = {kHalf, kOne}, .top_k = 2};
  EXPECT_EQ(exact.route().weights, (Floats{1.0f / 1.5f, 0.5f * (1.0f / 1.5f)}));
  exact.renormalise = false;
  EXPECT_EQ(exact.route().weights, (Floats{1, 0.5f}));
  // Scores .9 and .6: weights .6 and .4.
  Row row{
      .logits = {std::log(1.5f), std::log(9.0f)}, .top_k = 2, .contract = with("gate_weights=f32")};
  const Bounded nine = sigmoid(row.logits[1]);
  const Bounded six = sigmoid(row.logits[0]);
  EXPECT_TRUE(nine.admits(0.9f));
  EXPECT_TRUE(six.admits(0.6f));
  const Bounded factor =
      divide(Bounded::exactly(1), add(nine, six, kCorrectRounding), kCorrectRounding);
  const Route result = row.route();
  EXPECT_TRUE(multiply(nine, factor, kCorrectRounding).admits(result.weights[0]));
  EXPECT_TRUE(multiply(six, factor, kCorrectRounding).admits(result.weights[1]));
  row.renormalise = false;
  EXPECT_TRUE(nine.admits(row.route().weights[0]));
  EXPECT_TRUE(six.admits(row.route().weights[1]));
}

TEST(MoeRoute, M09WeightsAreOfTheUnbiasedScores) {
  struct {
    std::size_t experts;
    std::int64_t top_k;
    const char* contract;
  } const models[] = {
      {128, 4, "routing_key=packed"},         {128, 4, "routing_key=plain_lower_id"},
      {128, 8, "routing_key=packed"},         {64, 4, "routing_key=packed"},
      {256, 8, "routing_key=plain_lower_id"}, {256, 8, "routing_key=plain_higher_id"}};
  for (const auto& model : models) {
    SCOPED_TRACE(fmt::format("{} {}", model.experts, model.contract));
    Row row{.logits = equal(kHalf, model.experts), .top_k = model.top_k, .renormalise = false};
    row.contract = with(model.contract);
    row.bias = equal(-5, model.experts);
    // Expert 3i + 1 ranks i-th by a bias of 12 - i; every other one of them has a score of 1.
    Numbers ids;
    Floats weights;
    for (std::int64_t i = 0; i < model.top_k; ++i) {
      ids.push_back(3 * i + 1);
      weights.push_back(i % 2 == 0 ? 0.5f : 1.0f);
      row.bias[static_cast<std::size_t>(3 * i + 1)] = 12.0f - 2.0f * static_cast<float>(i);
      if (i % 2 != 0) row.logits[static_cast<std::size_t>(3 * i + 1)] = kOne;
    }
    EXPECT_EQ(row.route().ids, ids);
    EXPECT_EQ(row.route().weights, weights);
    row.renormalise = true;  // the sum is 3 * top_k / 4
    for (float& weight : weights) weight *= 1.0f / (0.75f * static_cast<float>(model.top_k));
    EXPECT_EQ(row.route().weights, weights);
  }
}

TEST(MoeRoute, M11M12TheFactorEntersOnce) {
  // Two scores of 1/2, whose sum is 1: renormalised or not, a weight is half of the factor.
  for (const bool renormalise : {false, true}) {
    Row row{
        .logits = {kHalf, kHalf, kZero}, .top_k = 2, .scaling = 2.5, .renormalise = renormalise};
    row.shared = true;
    EXPECT_EQ(row.route().weights, (Floats{1.25f, 1.25f, 1})) << "not on the shared expert";
    row.contract = with("routed_scaling=output");
    EXPECT_EQ(row.route().weights, (Floats{0.5f, 0.5f, 1})) << "left to the output";
  }
}

TEST(MoeRoute, M14TheSharedExpertHasTheLastSlot) {
  Row row{.logits = equal(-kInf, 8), .scaling = 2, .shared = true};
  Route result = row.route();
  EXPECT_EQ(result.ids, (Numbers{0, 1, 2, 3, 8}));
  EXPECT_EQ(result.weights, (Floats{0, 0, 0, 0, 1})) << "present though the routed ones vanish";
  row.shared_weight = 0.3;
  row.logits = equal(kNan, 8);
  EXPECT_EQ(row.route().weights[4], 0.3f) << "rounded to binary32, whatever the others are";
}

TEST(MoeRoute, TheSumIsPairwise) {
  // With u = 2^-24: scores 1, t, r, r in slots 0 to 3, t between 1 and 1.5 u, r between u/2 and
  // 3/4 u. (1 + t) + (r + r) = (1 + 2u) + 2r, which rounds to 1 + 4u. One after the other, or
  // (s0 + s2) + (s1 + s3), it is 1 + 2u. A scaling of 1 + 4u then makes the factor exactly 1.
  Row row{.logits = {kOne, -16.45f, -17.15f, -17.15f},
          .bias = {40, 30, 20, 10},
          .scaling = 1 + 0x1p-22,
          .contract = with("gate_weights=f32")};
  const float t = routing_score(-16.45f, row.contract);
  const float r = routing_score(-17.15f, row.contract);
  ASSERT_TRUE(t > 0x1p-24f && t < 0x1.8p-24f && r > 0x1p-25f && r < 0x1.8p-25f);
  const Route result = row.route();
  EXPECT_EQ(result.ids, counting(0, 4));
  EXPECT_EQ(result.weights, (Floats{1, t, r, r}));
  // Five slots and more: the second four, padded with zeros, are added up first. Scores of 1, five
  // times r: 1 + 0 and r + 0 for two; (1 + r) + (r + r) = 1 + 2u for four, since 2r > u; then
  // (r + 0) + 0, which is lost.
  Row five{.logits = {kOne, -17.15f, -17.15f, -17.15f, -17.15f},
           .bias = {50, 40, 30, 20, 10},
           .top_k = 5,
           .scaling = 1 + 0x1p-23,
           .contract = with("gate_weights=f32")};
  EXPECT_EQ(five.route().weights, (Floats{1, r, r, r, r}));
}

TEST(MoeRoute, RowsAreRoutedByThemselves) {
  Floats logits{0, 1, 2, 2, 1, 0};
  Floats bias{0, 0, 0};
  std::vector<std::int32_t> ids(2);
  Floats weights(2);
  moe_route({{logits.data(), {2, 3}, {3, 1}}, {bias.data(), {3}, {1}}, 1},
            {{ids.data(), {2, 1}, {1, 1}}, {weights.data(), {2, 1}, {1, 1}}});
  EXPECT_EQ(ids, (std::vector<std::int32_t>{2, 0}));
  EXPECT_EQ(weights[0], weights[1]);
}

TEST(MoeRoute, Refusals) {
  const auto of = [](std::size_t experts, std::int64_t top_k, const std::string& key) {
    return Row{.logits = equal(0, experts), .top_k = top_k, .contract = with("routing_key=" + key)}
        .refusal();
  };
  EXPECT_EQ(of(128, 8, "packed"), "");
  EXPECT_EQ(of(129, 4, "packed"),
            "moe_route: logits has 129 experts, must have 1 to 128 with packed keys");
  EXPECT_EQ(of(1024, 8, "plain_lower_id"), "");
  EXPECT_EQ(of(1025, 4, "plain_higher_id"),
            "moe_route: logits has 1025 experts, must have 1 to 1024 with plain keys");
  EXPECT_EQ(of(0, 1, "packed"),
            "moe_route: logits has 0 experts, must have 1 to 128 with packed keys");
  EXPECT_EQ(of(128, 0, "packed"), "moe_route: top_k is 0, must be 1 to 8");
  EXPECT_EQ(of(128, 9, "packed"), "moe_route: top_k is 9, must be 1 to 8");
  EXPECT_EQ(of(3, 4, "packed"), "moe_route: top_k is 4, must be 1 to 3");
  EXPECT_EQ(of(1, 1, "packed"), "");
  Row row{.logits = equal(0, 4), .bias = equal(0, 5)};
  EXPECT_EQ(row.refusal(), "moe_route: bias has 5 in dimension 0, must have 4");
  row.bias.pop_back();
  for (const double scaling : {0.0, -1.0, 1e-60, 1e60, std::nan("")}) {
    row.scaling = scaling;
    EXPECT_EQ(
        row.refusal(),
        fmt::format("moe_route: scaling is {}, must be above 0 and finite in binary32", scaling));
  }
  row.scaling = 1;
  row.shared_weight = 1e60;
  EXPECT_EQ(row.refusal(), "") << "there is no shared expert";
  row.shared = true;
  EXPECT_EQ(row.refusal(), "moe_route: shared_weight is 1e+60, must be finite in binary32");
  row.shared_weight = 1;
  std::vector<std::int32_t> ids(4, 7);
  Floats weights(5);
  EXPECT_EQ(refusal_of([&] {
              moe_route(row.input(),
                        {{ids.data(), {1, 4}, {4, 1}}, {weights.data(), {1, 5}, {5, 1}}});
            }),
            "moe_route: output topk_ids has 4 in dimension 1, must have 5");
  EXPECT_EQ(ids, std::vector<std::int32_t>(4, 7)) << "nothing is written before a refusal";
}

}  // namespace
}  // namespace monoref::testing
