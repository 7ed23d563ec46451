// Stage qkv_projection: FP8 activations with a scale a token times FP8 weights with a scale a row.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"
#include "reference/fast/isa.hpp"

namespace monoref {

/// How the projection cuts K among waves and in which order a wave walks its part (mono-decode
/// section 3.5). Waves own whole chunks of 64.
struct ProjectionOrder {
  static constexpr std::int64_t kWaves = 8;
  static constexpr std::int64_t kChunk = 64;

  std::int64_t hidden = 0;

  /// K values of one wave: hidden/8, and at least one chunk. Below hidden = 512 there are fewer
  /// slices than waves, and the waves without one add nothing.
  std::int64_t slice() const;
  std::int64_t slices() const { return hidden / slice(); }
  /// The k of place `i` in the walk through all slices, 0 <= i < hidden. In each chunk the first
  /// matrix-core step takes the even groups of eight, the second the odd ones: 0-7, 16-23, 32-39,
  /// 48-55, then 8-15, 24-31, 40-47, 56-63.
  std::int64_t k(std::int64_t i) const;
};

struct QkvProjectionInput {
  View<const std::uint8_t, 2> x8;      ///< [n, hidden] codes, any strides
  View<const float, 1> x_scale;        ///< [n]
  View<const std::uint8_t, 2> weight;  ///< [rows, hidden] codes, dense, in shuffle_weight order
  View<const float, 1> w_scale;        ///< [rows]
  Contract contract{};
};

struct QkvProjectionOutput {
  View<std::uint16_t, 2> qkv;  ///< [n, rows] BF16
};

/// The dims [n, rows] of the output. Refuses hidden that is not a multiple of 64 or, above 512, of
/// 512 (eight equal slices of whole chunks); rows that are not a multiple of 16 (the weight
/// layout's groups); a weight that is not dense; scales and weights of other dims.
std::array<std::int64_t, 2> qkv_projection_shape(const QkvProjectionInput& input);

/// The definition. Per token t and row r, in binary32 (mono-decode sections 3.5, 9 and 10):
///
///   partial[w] = an fma chain from 0 over wave w's slice in the order of ProjectionOrder
///   dot        = ((0 + partial[0]) + partial[1]) + ...
///   qkv[t][r]  = bf16((dot * x_scale[t]) * w_scale[r])
///
/// Byte (r, k) of the plain weight lies where shuffle_weight(16,16) puts it. Codes are of the
/// contract's FP8 encoding; NaN codes and scales of any value, zero and NaN too, take part as they
/// are. Refuses what the shape function refuses and an output of other dims, before it writes.
void qkv_projection(const QkvProjectionInput& input, const QkvProjectionOutput& output);

/// Bit for bit the same, vectorised across rows and tokens: each chain stays sequential.
void qkv_projection_fast(const QkvProjectionInput& input, const QkvProjectionOutput& output,
                         Isa isa = best_isa());

}  // namespace monoref
