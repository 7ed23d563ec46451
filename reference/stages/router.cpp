#include "reference/stages/router.hpp"

#include <cmath>
#include <span>
#include <vector>

#include "reference/arithmetic/reduce.hpp"
#include "reference/fast/isa.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/rms.hpp"
#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

using Row = std::vector<float>;

constexpr std::size_t kLanes = 64;
constexpr std::size_t kPairsPerLane = 4;
/// Accumulators of a logit: pair j of lane l is number l * kPairsPerLane + j, so that the pairs of
/// 512 neighbouring elements stand in the order of their accumulators.
constexpr std::size_t kAccumulators = kLanes * kPairsPerLane;

DType gate_type(const Contract& contract) {
  return contract.gate_weights == GateWeights::kBf16 ? DType::kBFloat16 : DType::kFloat32;
}

/// The sums of a row as the norm takes them; stores h_mid.
Row add_residual(const RouterInput& input, const RouterOutput& output, std::int64_t row) {
  const bool rounded = input.contract.norm_source == NormSource::kRounded;
  Row a(static_cast<std::size_t>(input.sum.dim(1)));
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float v = float_from_bf16(input.sum(row, i)) + float_from_bf16(input.residual(row, i));
    output.h_mid(row, i) = bf16_from_float(v);
    a[i] = rounded ? round_to_bf16(v) : v;
  }
  return a;
}

/// xn of a row, stored and widened again.
Row normalise(const RouterInput& input, const RouterOutput& output, std::int64_t row, float eps) {
  const Row a = add_residual(input, output, row);
  const float ss = two_level_sum_of_squares(a, a.size() / kRouterThreads, router_norm_order());
  const float rstd = reciprocal_rms(ss, static_cast<std::int64_t>(a.size()), eps);
  Row xn(a.size());
  for (std::size_t i = 0; i < xn.size(); ++i) {
    const float gain = float_from_bf16(input.gamma(i)) + 1.0f;
    output.xn(row, i) = bf16_from_float((a[i] * rstd) * gain);
    xn[i] = float_from_bf16(output.xn(row, i));
  }
  return xn;
}

Row gate_row(const RouterInput& input, std::int64_t expert) {
  Row w(static_cast<std::size_t>(input.gate.dim(1)));
  if (input.gate.type() == DType::kBFloat16) {
    const auto gate = input.gate.view<std::uint16_t, 2>();
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = float_from_bf16(gate(expert, i));
  } else {
    const auto gate = input.gate.view<float, 2>();
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = gate(expert, i);
  }
  return w;
}

float logit_of(const Row& w, const Row& xn) {
  std::array<float, kAccumulators> accumulators{};
  float* const acc = accumulators.data();
  // Only for the hardware's fma instead of a call; the bits are those of std::fma anywhere.
  run_on(best_isa(), [acc, w = w.data(), xn = xn.data(), size = w.size()]() MONOREF_INLINE_BODY {
    for (std::size_t first = 0; first < size; first += 2 * kAccumulators)
      for (std::size_t c = 0; c < kAccumulators; ++c) {
        const std::size_t low = first + 2 * c;
        acc[c] = std::fma(w[low + 1], xn[low + 1], std::fma(w[low], xn[low], acc[c]));
      }
  });
  std::array<float, kLanes> lanes{};
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const float* const pair = acc + lane * kPairsPerLane;
    lanes[lane] = (pair[0] + pair[1]) + (pair[2] + pair[3]);
  }
  static const std::vector<int> offsets = halving_offsets(kLanes / 2);
  return butterfly_sum(lanes, offsets);
}

}  // namespace

std::array<std::int64_t, 3> router_shape(const RouterInput& input) {
  const std::int64_t rows = input.sum.dim(0);
  const std::int64_t hidden = input.sum.dim(1);
  if (hidden < kRouterThreads || hidden > kRouterMaxHidden || hidden % kRouterThreads != 0)
    refuse("router: hidden is {}, must be a multiple of {} up to {}", hidden, kRouterThreads,
           kRouterMaxHidden);
  require_dims("router: residual", input.residual, {rows, hidden});
  require_dims("router: gamma", input.gamma, {hidden});
  if (input.gate.type() != gate_type(input.contract))
    refuse("router: gate is {}, must be {}", dtype_name(input.gate.type()),
           dtype_name(gate_type(input.contract)));
  if (input.gate.rank() != 2)
    refuse("router: gate has {} dimensions, must have 2", input.gate.rank());
  const std::int64_t experts = input.gate.dim(0);
  if (experts < 1 || experts > kRouterMaxExperts)
    refuse("router: gate has {} experts, must have 1 to {}", experts, kRouterMaxExperts);
  if (input.gate.dim(1) != hidden)
    refuse("router: gate has {} in dimension 1, must have {}", input.gate.dim(1), hidden);
  static_cast<void>(checked_eps("router", input.eps));
  return {rows, hidden, experts};
}

void router(const RouterInput& input, const RouterOutput& output) {
  const auto [rows, hidden, experts] = router_shape(input);
  require_dims("router: output h_mid", output.h_mid, {rows, hidden});
  require_dims("router: output xn", output.xn, {rows, hidden});
  require_dims("router: output logits", output.logits, {rows, experts});
  const float eps = checked_eps("router", input.eps);
  std::vector<Row> xn;
  for (std::int64_t row = 0; row < rows; ++row) xn.push_back(normalise(input, output, row, eps));
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const Row w = gate_row(input, expert);
    for (std::int64_t row = 0; row < rows; ++row)
      output.logits(row, expert) = logit_of(w, xn[static_cast<std::size_t>(row)]);
  }
}

}  // namespace monoref
