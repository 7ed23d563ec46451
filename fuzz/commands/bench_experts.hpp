// `monoref bench`: the experts of one full-size layer.
#pragma once

namespace monoref {

/// Registers the experts of 16 tokens, 4 routed of 128 and a separate shared one each, hidden 6144
/// and inter 768, by every vector instruction set: the fast forms of expert_up_gate and expert_down
/// in sequence, with MXFP8 and MXFP4 weights, and Eigen's single-precision products of the same
/// sizes, both on all cores. Weights are generated before the first measurement. Plain x86-64 is
/// left out: without fused multiply-adds in hardware a layer takes minutes.
void register_expert_benchmarks();

}  // namespace monoref
