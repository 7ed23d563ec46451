// Stage expert_up_gate: the first half of the experts, through SwiGLU.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"
#include "reference/fast/isa.hpp"
#include "reference/rules/expert_weights.hpp"
#include "reference/rules/swiglu.hpp"

namespace monoref {

/// Waves that share K.
inline constexpr std::int64_t kUpGateWaves = 8;

struct ExpertUpGateInput {
  View<const std::uint8_t, 2> x8;        ///< [rows, hidden] E4M3FN codes, any strides
  View<const std::uint8_t, 2> x_scale;   ///< [rows, hidden / 32] E8M0, any strides
  View<const std::int32_t, 2> topk_ids;  ///< [rows, slots], any strides
  ExpertWeights w13;  ///< [2 * inter, hidden] an expert: gate rows, then up rows (bug case G05)
  double limit = 7.0;
  double alpha = 1.702;
  double beta = 1.0;
  Contract contract{};
};

struct ExpertUpGateOutput {
  View<std::uint16_t, 3> mid;  ///< [rows, slots, inter] BF16
};

/// The dims [rows, slots, inter] of the output, after every check of the input. Refuses: hidden
/// that is not a multiple of 256 (the scale layout); inter that is not a multiple of 32 (the blocks
/// that mid is quantised in); scales and ids of other dims; parameters that no SwiGLU has; and what
/// check_expert_weights and check_expert_ids refuse.
std::array<std::int64_t, 3> expert_up_gate_shape(const ExpertUpGateInput& input);

/// Per row and slot, in binary32, with the weights of the expert that the slot names (mono-decode
/// sections 7, 9 and 10):
///
///   partial[w] = an fma chain from 0 over ascending k of x[k] * weight[k], for the K = 128 steps
///   of
///                wave w: ceil(steps / 8) neighbouring ones each, the last waves perhaps fewer
///   gate, up   = ((0 + partial[0]) + partial[1]) + .. + partial[7], one row of the weights each
///   mid[i]     = bf16(swiglu(gate row i, up row i))
///
/// Both operands are scaled before the chain: a code times its power of two. A slot whose id names
/// no expert, under out_of_range_slot=drop, is +0. Codes are E4M3FN or E2M1 whatever the contract's
/// FP8 encoding.
///
/// Refuses what the shape function refuses and an output of other dims, before it writes anything.
void expert_up_gate(const ExpertUpGateInput& input, const ExpertUpGateOutput& output);

/// Bit for bit the same: rows grouped by expert, vectorised across weight rows and tokens, on all
/// cores. Each chain stays sequential.
void expert_up_gate_fast(const ExpertUpGateInput& input, const ExpertUpGateOutput& output,
                         Isa isa = best_isa());

}  // namespace monoref
