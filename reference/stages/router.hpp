// Stage router: residual addition, router norm, and the logit of every expert.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

/// Threads of the norm, which share a row evenly, and the widest row.
inline constexpr std::int64_t kRouterThreads = 512;
inline constexpr std::int64_t kRouterMaxHidden = 8192;
/// Most experts of a router, whatever the routing keys allow.
inline constexpr std::int64_t kRouterMaxExperts = 1024;

struct RouterInput {
  View<const std::uint16_t, 2> sum;       ///< [rows, hidden] BF16, the all-reduced attention
  View<const std::uint16_t, 2> residual;  ///< [rows, hidden] BF16, as the input norm stored it
  View<const std::uint16_t, 1> gamma;     ///< [hidden] BF16; the weight is gamma + 1
  const Tensor& gate;                     ///< [n_routed, hidden] BF16 or binary32, any strides
  double eps = 1e-6;                      ///< rounded to binary32 once
  Contract contract{};
};

struct RouterOutput {
  View<std::uint16_t, 2> h_mid;  ///< [rows, hidden] BF16, the residual of the next layer
  View<std::uint16_t, 2> xn;     ///< [rows, hidden] BF16, what the experts multiply
  View<float, 2> logits;         ///< [rows, n_routed] binary32, not rounded any further
};

/// The dims [rows, hidden, n_routed]. Refuses hidden that is not a multiple of 512 up to 8192;
/// n_routed outside 1 to 1024; a gate that is not of the type the contract names; a residual, gamma
/// or gate of other dims; and an eps that is not above 0 and finite in binary32.
std::array<std::int64_t, 3> router_shape(const RouterInput& input);

/// Per row, in binary32 (mono-decode sections 7 and 10, upstream-semantics section 7.1):
///
///   v[i]   = sum[i] + residual[i];  h_mid[i] = bf16(v[i])
///   a[i]   = v[i], or bf16(v[i]) if the contract's norm source is rounded
///   ss     = sum of a[i]^2: thread t of 512 runs an fma chain from 0 over its hidden / 512
///            neighbouring elements; an xor butterfly 32, 16, 8, 4, 2, 1 in each wave of 64; then
///            the eight waves in order, from the first one's sum
///   rstd   = rsq(ss / hidden + eps)
///   xn[i]  = bf16((a[i] * rstd) * (gamma[i] + 1))
///
/// and per expert, whose row of the gate is w: lane l of 64 owns the 8 elements from (i * 64 + l) *
/// 8 on for i = 0, 1, .., hidden / 512 - 1, as four pairs; pair j goes to the lane's accumulator j,
/// which starts at 0:
///
///   acc[j] = fma(w[high], xn[high], fma(w[low], xn[low], acc[j]))
///   lane   = (acc[0] + acc[1]) + (acc[2] + acc[3])
///   logit  = the lanes by the butterfly 32, 16, 8, 4, 2, 1
///
/// Weights of binary32 take the same way. Rows do not depend on each other, and every expert's
/// logit is its own. NaN and Inf take part as they are.
///
/// Refuses what the shape function refuses and outputs of other dims, before it writes anything.
void router(const RouterInput& input, const RouterOutput& output);

}  // namespace monoref
