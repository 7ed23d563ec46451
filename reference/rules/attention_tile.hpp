// Softmax over one tile of keys after another: what every form of the attention has in common.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/arithmetic/constants.hpp"
#include "reference/core/contract.hpp"
#include "reference/rules/fp8_rules.hpp"

namespace monoref {

/// Keys of one wave in the sums over p and over p * v, and the score of a masked key.
inline constexpr std::size_t kWaveKeys = 32;
inline constexpr float kMaskedScore = -3.4e38f;

/// A contract's choices with the scales of one kv head, as numbers.
struct AttentionRules {
  AttentionRules(const Contract& contract, double sm_scale, float k_scale, float v_scale);

  Contract contract;
  Fp8Rules fp8;
  float k_scale;
  float v_scale;
  float score_factor;  ///< what a dot is multiplied by
  float masked;        ///< score of a masked key
  float p_factor;      ///< what p is multiplied by before it is rounded
  float o_factor;      ///< what a finished sum over p * v is multiplied by

  /// A stored element as it enters the products. Codes are FP8 of the contract, or BF16.
  float key(float stored) const { return operand(stored, k_scale); }
  float value(float stored) const { return operand(stored, v_scale); }
  /// An element of q, and a probability, as they enter the products.
  float query(float q) const;
  float probability(float p) const;
  /// exp2 of a difference of scores, in the units of the contract.
  float weight(float difference) const;

 private:
  float operand(float stored, float scale) const;
};

/// Keys that are evaluated together, as numbers that enter the products.
struct AttentionTile {
  std::size_t dim = 0;
  std::vector<float> k;             ///< [keys][dim]; of masked keys not used
  std::vector<float> v;             ///< [keys][dim]; of masked keys zero, or kept by the contract
  std::vector<std::uint8_t> valid;  ///< [keys]
};

/// What one head has accumulated. `m` and `l` of no tile at all are -Inf and 0.
struct HeadState {
  explicit HeadState(std::size_t dim);

  bool empty = true;
  float m;
  float l = 0.0f;
  std::vector<float> acc;  ///< [dim]
};

/// Adds one tile to a head's state (mono-decode section 6; upstream-semantics section 6.1, items 3
/// to 5). `q` [dim] is as it enters the products. In binary32:
///
///   s[j] = score_factor * dot(q, k[j]), an fma chain from 0 over ascending dims; masked keys: the
///          contract's score
///   M    = max(m, max s[j]), masked keys too, NaN wins
///   p[j] = weight(s[j] - M)
///   sum  = waves of 32 keys in order, from wave 0's; in a wave lane i of 16 holds (0.0 + p[i]) +
///          p[16+i], then a butterfly 8, 4, 2, 1. Masked keys take part.
///   pv   = waves in order, from wave 0's; a wave is an fma chain from 0 over its ascending keys of
///          probability(p[j]) and v[j], masked keys with a p of 0; then times v_scale, if the
///          contract scales tiles
///   the first tile: l = sum, acc = pv; later ones: r = weight(m - M), l = l * r + sum,
///   acc = acc * r + pv
///
/// Keys must be whole waves.
void attend_tile(const AttentionRules& rules, std::span<const float> q, const AttentionTile& tile,
                 HeadState& state);

/// A head's output after its last tile: acc * o_factor * (1 / (l > 0 ? l : 1)), or acc / (l > 0 ? l
/// : 1) with BF16 operands. NaN is canonical.
std::vector<float> finished(const AttentionRules& rules, const HeadState& state);

}  // namespace monoref
