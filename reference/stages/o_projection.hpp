// Stage o_projection: the quantised attention of a row times the FP8 output weights.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"
#include "reference/fast/isa.hpp"

namespace monoref {

/// Waves that share K, and k of one matrix-core step.
inline constexpr std::int64_t kOProjectionWaves = 4;
inline constexpr std::int64_t kOProjectionStep = 128;

struct OProjectionInput {
  View<const std::uint8_t, 2> a8;      ///< [n, width] codes, any strides
  View<const float, 1> a_scale;        ///< [n]
  View<const std::uint8_t, 2> weight;  ///< [hidden, width] codes, dense, in shuffle_weight order
  View<const float, 1> w_scale;        ///< [hidden]
  Contract contract{};
};

struct OProjectionOutput {
  View<std::uint16_t, 2> out;  ///< [n, hidden] BF16
};

/// The dims [n, hidden] of the output. Refuses a width that is not a multiple of 512 (four waves of
/// whole steps of 128); hidden that is not a multiple of 16 (the weight layout's groups); a weight
/// that is not dense; and scales and weights of other dims.
std::array<std::int64_t, 2> o_projection_shape(const OProjectionInput& input);

/// Per token and row of the weight, in binary32 (mono-decode sections 6, 9 and 10):
///
///   partial[w] = an fma chain from 0 over the w-th quarter of the width, ascending
///   dot        = (((0 + partial[0]) + partial[1]) + partial[2]) + partial[3]
///   out        = bf16((dot * a_scale[token]) * w_scale[row])
///
/// Byte (row, k) of the plain weight lies where shuffle_weight(16,16) puts it. Codes are of the
/// contract's FP8 encoding; NaN codes and scales of any value take part as they are. Refuses what
/// the shape function refuses and an output of other dims, before it writes anything.
void o_projection(const OProjectionInput& input, const OProjectionOutput& output);

/// Bit for bit the same, vectorised across rows and tokens: each chain stays sequential.
void o_projection_fast(const OProjectionInput& input, const OProjectionOutput& output,
                       Isa isa = best_isa());

}  // namespace monoref
