// Stage residual_norm_quant: residual addition, input norm, and FP8 with one scale a token.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

/// Elements that one logical thread of the norm owns, and the widest row its 32 warps of 32 threads
/// can hold.
inline constexpr std::int64_t kNormElementsPerThread = 8;
inline constexpr std::int64_t kNormMaxHidden = std::int64_t{32} * 32 * kNormElementsPerThread;

struct ResidualNormQuantInput {
  View<const std::uint16_t, 2> ar;     ///< [n, hidden] BF16, the reduced output of the layer before
  View<const std::uint16_t, 2> res;    ///< [n, hidden] BF16, the residual
  View<const std::uint16_t, 1> gamma;  ///< [hidden] BF16; the weight is gamma + 1
  double eps = 1e-6;                   ///< rounded to binary32 once
  Contract contract{};
};

struct ResidualNormQuantOutput {
  View<std::uint16_t, 2> residual;  ///< [n, hidden] BF16
  View<std::uint8_t, 2> x8;         ///< [n, hidden] codes of the contract's FP8
  View<float, 1> x_scale;           ///< [n] binary32; a code stands for code * scale
};

/// y of the stage below for one row of sums, in binary32: the norm alone, before FP8. Takes any
/// width up to kNormMaxHidden: a last thread may own fewer elements.
std::vector<float> input_norm(std::span<const float> sums,
                              const View<const std::uint16_t, 1>& gamma, float eps);

/// The dims [n, hidden] of the outputs. Strides are free. Refuses hidden that is not a multiple of
/// 8 up to 8192; a residual or gamma of other dims; an eps that is not above 0 and finite in
/// binary32; and the contract if its FP8 maximum is none of its encoding.
std::array<std::int64_t, 2> residual_norm_quant_shape(const ResidualNormQuantInput& input);

/// Per row, in binary32 (mono-decode sections 3.1 to 3.4 and 10; upstream-semantics 3.1):
///
///   acc[i] = ar[i] + res[i];  residual[i] = bf16(acc[i])
///   a[i]   = acc[i], or bf16(acc[i]) if the contract's norm source is rounded
///   ss     = sum of a[i]^2: thread t runs an fma chain from 0 over elements 8t..8t+7; an xor
///            butterfly 16, 8, 4, 2, 1 in each warp of 32 threads; the warps' sums, padded with
///            zeros to 32, by the same butterfly. A last warp of fewer threads (hidden not a
///            multiple of 256) is padded with zeros too.
///   rstd   = rsq(ss / hidden + eps)            eps inside the root
///   y[i]   = (a[i] * rstd) * (gamma[i] + 1)
///   amax   = max |y[i]|, NaN if any y is;  scale = amax == 0 ? 1 : amax / maximum
///   x8[i]  = fp8(y[i] / scale)                 a division, correctly rounded
///
/// A zero row stores scale 1 and codes of zero (bug case F18). The maximum is 448, or what the
/// contract says. Conversion does not clamp unless the contract saturates; that shows only where
/// the quotient exceeds the maximum: a row with an infinity, and rows so small that the scale is
/// subnormal and badly rounded, or 0, where quotients are infinite and 0 / 0 is NaN. A NaN in the
/// row makes its scale and all its codes NaN. Codes of FP8 zeros keep the sign of y where the
/// encoding has -0.
///
/// The portable rsq is 1/sqrt(x) with two roundings, so "rsq" and "square root, then division" are
/// one choice here and have no field in the contract; they differ only in the error that a foreign
/// implementation is granted (2 ulps for an approximate instruction, two correct roundings for the
/// operations).
///
/// Refuses what the shape function refuses and outputs of other dims, before it writes anything.
void residual_norm_quant(const ResidualNormQuantInput& input,
                         const ResidualNormQuantOutput& output);

}  // namespace monoref
