// Expert selection by others: in binary64, with the lower expert first among equals, and AITER's in
// PyTorch, whose order is unspecified (mono-decode section 7, upstream-semantics section 7.2).
#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "fuzz/judges/judge.hpp"
#include "reference/arithmetic/bounded.hpp"
#include "reference/arithmetic/constants.hpp"
#include "reference/stages/moe_route.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kTopK = 4;

/// From here on 1 + e^-x is 1 in binary64 and in binary32: e^-38 < 2^-54.
constexpr float kSaturates = 38;

/// What is granted to those who compute a sigmoid.
struct Granted {
  Rounding exp2;
  Rounding division;
  Rounding other;
};
/// Exact arithmetic, and ours: exp2 within 1 ulp.
constexpr Granted kExactOrOurs{{1.0, false}, kCorrectRounding, kCorrectRounding};
constexpr Granted kHardware{kApproximateExp2, kApproximateDivision, kCorrectRoundingOrFlush};

/// 1 / (1 + 2^(-x log2 e)), with the constant in binary32 or any better one.
Bounded score_range(float logit, const Granted& granted) {
  constexpr double kTrueLog2E = 0x1.71547652b82fep+0;
  const Bounded constant = Bounded::between(kLog2E, std::nextafter(kTrueLog2E, 2));
  const Bounded exponent = multiply(Bounded::exactly(-logit), constant, granted.other);
  const Bounded below = add(Bounded::exactly(1), exp2(exponent, granted.exp2), granted.other);
  return divide(Bounded::exactly(1), below, granted.division);
}

/// How low a key may count once its low 7 bits are gone: less than 2^7 places of binary32.
double packed_low(double low) {
  if (!std::isfinite(low)) return low;
  const double above = std::max(std::fabs(low), 0x1p-126) * (1 + 0x1p-16);
  return low - std::ldexp(1.0, std::ilogb(above) - 23 + kRouteExpertBits);
}

/// One row: what every expert's score and key may be, and which expert surely precedes which.
class Ranking {
 public:
  Ranking(const Tensor& logits, const Tensor& bias, std::int64_t row, const Granted& granted) {
    const auto x = logits.view<float, 2>();
    const auto b = bias.view<float, 1>();
    for (std::int64_t e = 0; e < x.dim(1); ++e) {
      scores_.push_back(score_range(x(row, e), granted));
      keys_.push_back(add(scores_.back(), Bounded::exactly(b(e)), granted.other));
      // All of these logits have the score 1, whoever computes it.
      inputs_.push_back({std::min(x(row, e), kSaturates), b(e)});
    }
  }

  /// Keys lose their low bits, as in the contract's packed form.
  void pack() {
    for (Bounded& key : keys_) key.low = packed_low(key.low);
  }
  /// Equal inputs have equal keys, which rank by the lower id.
  void order_equals() { equals_ordered_ = true; }

  std::int64_t experts() const { return static_cast<std::int64_t>(keys_.size()); }
  const Bounded& score(std::int64_t e) const { return scores_[static_cast<std::size_t>(e)]; }
  const Bounded& key(std::int64_t e) const { return keys_[static_cast<std::size_t>(e)]; }

  bool precedes(std::int64_t a, std::int64_t b) const {
    if (equals_ordered_ &&
        inputs_[static_cast<std::size_t>(a)] == inputs_[static_cast<std::size_t>(b)])
      return a < b;
    return key(a).low > key(b).high;
  }
  std::int64_t surely_before(std::int64_t id) const {
    return count([&](std::int64_t other) { return precedes(other, id); });
  }
  std::int64_t surely_behind(std::int64_t id) const {
    return count([&](std::int64_t other) { return precedes(id, other); });
  }

 private:
  template <class Holds>
  std::int64_t count(Holds holds) const {
    std::int64_t found = 0;
    for (std::int64_t other = 0; other < experts(); ++other) found += holds(other) ? 1 : 0;
    return found;
  }

  std::vector<Bounded> scores_;
  std::vector<Bounded> keys_;
  std::vector<std::pair<float, float>> inputs_;
  bool equals_ordered_ = false;
};

/// Logits, bias and selected ids of a recorded case fit each other; ids may be anything, for the
/// implementation may have them wrong.
void check_sizes(const RecordedCase& recorded, DType weights) {
  const Tensor& logits = recorded.input("logits", {{DType::kFloat32}, {kAnyExtent, kAnyExtent}});
  recorded.input("bias", {{DType::kFloat32}, {logits.dim(1)}});
  recorded.output("ids", {{DType::kInt32}, {logits.dim(0), kTopK}});
  recorded.output("weights", {{weights}, {logits.dim(0), kTopK}});
}

/// Our selection of the same rows.
struct Selection {
  Tensor ids;
  Tensor weights;

  Selection(const RecordedCase& recorded, double scaling, const Contract& contract) {
    const MoeRouteInput input{.logits = recorded.input("logits").view<float, 2>(),
                              .bias = recorded.input("bias").view<float, 1>(),
                              .top_k = kTopK,
                              .scaling = scaling,
                              .contract = contract};
    const auto [rows, slots] = moe_route_shape(input);
    ids = Tensor(DType::kInt32, Layout::dense({rows, slots}));
    weights = Tensor(DType::kFloat32, Layout::dense({rows, slots}));
    moe_route(input, {ids.view<std::int32_t, 2>(), weights.view<float, 2>()});
  }
  std::int64_t id(std::int64_t row, std::int64_t slot) const {
    return ids.view<std::int32_t, 2>()(row, slot);
  }
  std::set<std::int64_t> set(std::int64_t row) const {
    std::set<std::int64_t> all;
    for (std::int64_t slot = 0; slot < kTopK; ++slot) all.insert(id(row, slot));
    return all;
  }
  /// The weight of an expert of the row; 0 if it is none of ours.
  float weight_of(std::int64_t row, std::int64_t expert) const {
    for (std::int64_t slot = 0; slot < kTopK; ++slot)
      if (id(row, slot) == expert) return weights.view<float, 2>()(row, slot);
    return 0;
  }
};

using Ids = View<const std::int32_t, 2>;

std::set<std::int64_t> recorded_set(const Ids& got, std::int64_t row) {
  std::set<std::int64_t> all;
  for (std::int64_t slot = 0; slot < kTopK; ++slot) all.insert(got(row, slot));
  return all;
}

bool is_valid(const Ids& got, std::int64_t row, std::int64_t slot, std::int64_t experts) {
  for (std::int64_t other = 0; other < slot; ++other)
    if (got(row, other) == got(row, slot)) return false;
  return got(row, slot) >= 0 && got(row, slot) < experts;
}

/// Ids in falling order of their keys. A slot is decided where every other expert surely stands
/// before it or behind it; then ours must have the same expert there.
void judge_order(const Ranking& ranking, const Ids& got, const Selection& ours, std::int64_t row,
                 OutputJudge& output) {
  for (std::int64_t slot = 0; slot < kTopK; ++slot) {
    const OutputJudge::Index index{{"row", row}, {"slot", slot}};
    const std::int64_t id = got(row, slot);
    const std::int64_t own = ours.id(row, slot);
    if (!is_valid(got, row, slot, ranking.experts())) {
      output.id(index, own, false, id, "distinct experts");
      continue;
    }
    const std::int64_t before = ranking.surely_before(id);
    const std::int64_t last = ranking.experts() - 1 - ranking.surely_behind(id);
    if (slot < before || slot > last)
      output.id(index, own, false, id, fmt::format("its place is {} to {}", before, last));
    else if (before == last)
      output.id(index, own, own == id, id, "no other expert may stand here");
    else
      output.leave_out(1);
  }
}

/// Ids in any order. One is decided where every expert that was not selected surely stands behind
/// it; then ours must have selected it too.
void judge_set(const Ranking& ranking, const Ids& got, const Selection& ours, std::int64_t row,
               OutputJudge& output) {
  const std::set<std::int64_t> chosen = recorded_set(got, row);
  const std::set<std::int64_t> own = ours.set(row);
  for (std::int64_t slot = 0; slot < kTopK; ++slot) {
    const OutputJudge::Index index{{"row", row}, {"slot", slot}};
    const std::int64_t id = got(row, slot);
    const bool valid = is_valid(got, row, slot, ranking.experts());
    bool beaten = false;
    bool decided = valid;
    for (std::int64_t other = 0; valid && other < ranking.experts(); ++other) {
      if (chosen.contains(other)) continue;
      beaten = beaten || ranking.precedes(other, id);
      decided = decided && ranking.precedes(id, other);
    }
    const bool same = own.contains(id);
    if (!valid)
      output.id(index, ours.id(row, slot), false, id, "distinct experts");
    else if (beaten)
      output.id(index, ours.id(row, slot), false, id, "an expert that is left out is better");
    else if (decided)
      output.id(index, same ? id : ours.id(row, slot), same, id, "surely among the best");
    else
      output.leave_out(1);
  }
}

/// The weights of the recorded experts; ours are comparable where they are the same experts.
template <class Weight>
void judge_weights(const Ranking& ranking, const Ids& got, const Selection& ours, double scaling,
                   const Granted& granted, std::int64_t row, const View<const Weight, 2>& weights,
                   OutputJudge& output) {
  const std::set<std::int64_t> chosen = recorded_set(got, row);
  if (chosen != ours.set(row)) return output.leave_out(kTopK);
  std::vector<Bounded> scores;
  for (const std::int64_t id : chosen) scores.push_back(ranking.score(id));
  const Bounded total = maximum(sum(scores, granted.other), Bounded::exactly(kRouteSumFloor));
  const Bounded factor = divide(Bounded::exactly(scaling), total, granted.division);
  for (std::int64_t slot = 0; slot < kTopK; ++slot) {
    const Bounded& score = ranking.score(got(row, slot));
    const Bounded range = either(
        multiply(score, factor, granted.other),
        multiply(divide(score, total, granted.division), Bounded::exactly(scaling), granted.other));
    output.number({{"row", row}, {"slot", slot}}, ours.weight_of(row, got(row, slot)), range,
                  static_cast<float>(weights(row, slot)));
  }
}

/// How far the last selected key lies above the best that is left out.
void judge_gap(const Ranking& ranking, const RecordedCase& recorded, const Ids& got,
               std::int64_t row, OutputJudge& output) {
  const std::int64_t last = got(row, kTopK - 1);
  if (!is_valid(got, row, kTopK - 1, ranking.experts())) return output.leave_out(1);  // no expert
  const auto x = recorded.input("logits").view<float, 2>();
  const auto b = recorded.input("bias").view<float, 1>();
  const Contract contract = Contract::parse("mono,gate_weights=f32");
  const auto own_key = [&](std::int64_t e) { return routing_score(x(row, e), contract) + b(e); };
  const std::set<std::int64_t> chosen = recorded_set(got, row);
  Bounded best = Bounded::exactly(-INFINITY);
  float own_best = -INFINITY;
  for (std::int64_t e = 0; e < ranking.experts(); ++e) {
    if (chosen.contains(e)) continue;
    best = maximum(best, ranking.key(e));
    own_best = std::max(own_best, own_key(e));
  }
  output.number({{"row", row}}, own_key(last) - own_best,
                subtract(ranking.key(last), best, kCorrectRounding),
                static_cast<float>(recorded.output("fourth_fifth_gap").view<double, 1>()(row)));
}

}  // namespace

void judge_moe_route(const RecordedCase& recorded, RunResult& result) {
  check_sizes(recorded, DType::kFloat64);
  recorded.output("fourth_fifth_gap", {{DType::kFloat64}, {recorded.input("logits").dim(0)}});
  const double scaling = recorded.real("route_scale");
  const Selection plain(recorded, scaling,
                        Contract::parse("mono,gate_weights=f32,routing_key=plain_lower_id"));
  const Selection packed(recorded, scaling, Contract::parse("mono,gate_weights=f32"));
  const Ids got = recorded.output("ids").view<std::int32_t, 2>();
  OutputJudge ids("ids", result);
  OutputJudge packed_ids("ids by packed keys", result);
  OutputJudge weights("weights", result);
  OutputJudge gaps("fourth_fifth_gap", result);
  for (std::int64_t row = 0; row < got.dim(0); ++row) {
    Ranking ranking(recorded.input("logits"), recorded.input("bias"), row, kExactOrOurs);
    ranking.order_equals();
    judge_order(ranking, got, plain, row, ids);
    judge_weights(ranking, got, plain, scaling, kExactOrOurs, row,
                  recorded.output("weights").view<double, 2>(), weights);
    judge_gap(ranking, recorded, got, row, gaps);
    ranking.pack();
    judge_order(ranking, got, packed, row, packed_ids);
  }
}

void judge_biased_topk_torch(const RecordedCase& recorded, RunResult& result) {
  check_sizes(recorded, DType::kFloat32);
  const Selection ours(recorded, 1,
                       Contract::parse("mono,gate_weights=f32,routing_key=plain_lower_id"));
  const Ids got = recorded.output("ids").view<std::int32_t, 2>();
  OutputJudge ids("ids", result);
  OutputJudge weights("weights", result);
  for (std::int64_t row = 0; row < got.dim(0); ++row) {
    const Ranking ranking(recorded.input("logits"), recorded.input("bias"), row, kHardware);
    judge_set(ranking, got, ours, row, ids);
    judge_weights(ranking, got, ours, 1, kHardware, row,
                  recorded.output("weights").view<float, 2>(), weights);
  }
}

}  // namespace monoref
