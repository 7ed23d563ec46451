#include "reference/rules/attention_tile.hpp"

#include <limits>

#include "reference/arithmetic/minmax.hpp"
#include "reference/arithmetic/portable.hpp"
#include "reference/arithmetic/reduce.hpp"

namespace monoref {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> scores(const AttentionRules& rules, std::span<const float> q,
                          const AttentionTile& tile) {
  std::vector<float> s(tile.valid.size(), rules.masked);
  for (std::size_t j = 0; j < s.size(); ++j) {
    if (!tile.valid[j]) continue;
    const std::span<const float> key(tile.k.data() + j * tile.dim, tile.dim);
    s[j] = canonical(rules.score_factor * fma_chain(q, key, 0.0f));
  }
  return s;
}

/// The lanes of every wave, ready for the two-level sum.
float sum_of(std::span<const float> p) {
  std::vector<float> lanes;
  for (std::size_t wave = 0; wave < p.size(); wave += kWaveKeys)
    for (std::size_t lane = 0; lane < kWaveKeys / 2; ++lane)
      lanes.push_back((0.0f + p[wave + lane]) + p[wave + kWaveKeys / 2 + lane]);
  return two_level_sum(lanes, partition_sum_order());
}

/// Column d of p * v.
float product_with(std::span<const float> p, const AttentionTile& tile, std::size_t d) {
  std::vector<float> waves;
  for (std::size_t wave = 0; wave < p.size(); wave += kWaveKeys) {
    std::vector<float> column;
    for (std::size_t j = wave; j < wave + kWaveKeys; ++j)
      column.push_back(tile.v[j * tile.dim + d]);
    waves.push_back(fma_chain(p.subspan(wave, kWaveKeys), column, 0.0f));
  }
  return sum_in_order(waves, SumStart::kFirstTerm);
}

}  // namespace

AttentionRules::AttentionRules(const Contract& from, double sm_scale, float k, float v)
    : contract(from), fp8(fp8_rules(from)), k_scale(k), v_scale(v) {
  const auto scale = static_cast<float>(sm_scale);
  const bool bf16 = contract.attention_operands == AttentionOperands::kBf16;
  score_factor = bf16 ? scale : scale * k_scale;
  if (contract.score_units == ScoreUnits::kBase2) score_factor = score_factor * kLog2E;
  masked = contract.masked_score == MaskedScore::kFinite ? kMaskedScore : -kInfinity;
  const bool scaled = !bf16 && contract.p_scale == PScale::kMaximum;
  p_factor = scaled ? fp8_maximum(contract) : 1.0f;
  const float per_p = scaled ? 1.0f / fp8_maximum(contract) : 1.0f;
  o_factor = contract.v_scale == VScale::kAtEnd ? v_scale * per_p : per_p;
}

float AttentionRules::operand(float stored, float scale) const {
  if (contract.attention_operands == AttentionOperands::kFp8) return stored;
  return round_to_bf16(round_to_bf16(stored) * scale);
}

float AttentionRules::query(float q) const {
  if (contract.attention_operands == AttentionOperands::kBf16) return q;
  return fp8.decode(fp8.encode(q));
}

float AttentionRules::probability(float p) const {
  if (contract.attention_operands == AttentionOperands::kBf16) return round_to_bf16(p);
  return fp8.decode(fp8.encode(p * p_factor));
}

float AttentionRules::weight(float difference) const {
  if (contract.score_units == ScoreUnits::kBase2) return portable_exp2(difference);
  return portable_exp2(difference * kLog2E);
}

HeadState::HeadState(std::size_t dim) : m(-kInfinity), acc(dim, 0.0f) {}

void attend_tile(const AttentionRules& rules, std::span<const float> q, const AttentionTile& tile,
                 HeadState& state) {
  const std::vector<float> s = scores(rules, q, tile);
  float largest = state.m;
  for (const float score : s) largest = nan_max(largest, score);

  std::vector<float> p(s.size());
  std::vector<float> rounded(s.size(), 0.0f);
  for (std::size_t j = 0; j < s.size(); ++j) {
    p[j] = rules.weight(s[j] - largest);
    if (tile.valid[j]) rounded[j] = rules.probability(p[j]);
  }
  const bool scale_tile = rules.contract.v_scale == VScale::kPerTile &&
                          rules.contract.attention_operands == AttentionOperands::kFp8;
  const float r = state.empty ? 0.0f : rules.weight(state.m - largest);
  const float sum = sum_of(p);
  state.l = state.empty ? sum : canonical(state.l * r + sum);
  for (std::size_t d = 0; d < tile.dim; ++d) {
    float pv = product_with(rounded, tile, d);
    if (scale_tile) pv = rules.v_scale * pv;
    state.acc[d] = canonical(state.empty ? pv : state.acc[d] * r + pv);
  }
  state.m = largest;
  state.empty = false;
}

std::vector<float> finished(const AttentionRules& rules, const HeadState& state) {
  const float divisor = state.l > 0 ? state.l : 1.0f;
  std::vector<float> o(state.acc.size());
  for (std::size_t d = 0; d < o.size(); ++d) {
    const float scaled = rules.o_factor * state.acc[d];
    o[d] = rules.contract.attention_operands == AttentionOperands::kBf16
               ? portable_div(scaled, divisor)
               : canonical(scaled * portable_rcp(divisor));
  }
  return o;
}

}  // namespace monoref
