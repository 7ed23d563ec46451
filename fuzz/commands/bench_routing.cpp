#include "fuzz/commands/bench_routing.hpp"

#include <benchmark/benchmark.h>

#include <bit>
#include <utility>
#include <vector>

#include "fuzz/random.hpp"
#include "fuzz/stages/floats.hpp"
#include "reference/stages/all_reduce.hpp"
#include "reference/stages/moe_route.hpp"
#include "reference/stages/router.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kRanks = 4;
constexpr std::int64_t kTokens = 16;
constexpr std::int64_t kHidden = 6144;
constexpr std::int64_t kExperts = 128;

Tensor drawn_bf16(std::vector<std::int64_t> dims, std::string_view name) {
  CounterRandom random(1, name);
  return drawn_tensor(DType::kBFloat16, Layout::dense(std::move(dims)),
                      [&] { return draw_bf16(Floats::kOrdinary, random); });
}

void rate(benchmark::State& state, const char* unit, double items) {
  state.counters[unit] = benchmark::Counter(static_cast<double>(state.iterations()) * items,
                                            benchmark::Counter::kIsRate);
}

/// The reduction of a full step over four ranks.
void reduce(benchmark::State& state) {
  const Tensor partials = drawn_bf16({kRanks, kTokens, kHidden}, "partials");
  Tensor flags(DType::kInt32, Layout::dense({kReducePhases, kRanks, kRanks, kTokens}));
  Tensor sum(DType::kBFloat16, Layout::dense({kRanks, kTokens, kHidden}));
  Tensor status(DType::kInt32, Layout::dense({kRanks}));
  Tensor stored = flags;
  const AllReduceInput input{.partials = partials.view<std::uint16_t, 3>(),
                             .flags = std::as_const(flags).view<std::int32_t, 4>(),
                             .tag = 1};
  while (state.KeepRunning())
    all_reduce(input, {sum.view<std::uint16_t, 3>(), stored.view<std::int32_t, 4>(),
                       status.view<std::int32_t, 1>()});
  rate(state, "additions", double{kRanks} * kTokens * kHidden);
}

/// The router of a full step.
void route_logits(benchmark::State& state) {
  const Tensor sum = drawn_bf16({kTokens, kHidden}, "sum");
  const Tensor gamma = drawn_bf16({kHidden}, "gamma");
  const Tensor gate = drawn_bf16({kExperts, kHidden}, "gate");
  Tensor h_mid(DType::kBFloat16, Layout::dense({kTokens, kHidden}));
  Tensor xn(DType::kBFloat16, Layout::dense({kTokens, kHidden}));
  Tensor logits(DType::kFloat32, Layout::dense({kTokens, kExperts}));
  const RouterInput input{sum.view<std::uint16_t, 2>(), sum.view<std::uint16_t, 2>(),
                          gamma.view<std::uint16_t, 1>(), gate};
  while (state.KeepRunning())
    router(input,
           {h_mid.view<std::uint16_t, 2>(), xn.view<std::uint16_t, 2>(), logits.view<float, 2>()});
  rate(state, "multiply-adds", double{kTokens} * kHidden * kExperts);
}

/// The selection of four experts of 128, and their weights.
void select(benchmark::State& state) {
  constexpr std::int64_t kRows = 1024;
  CounterRandom random(1, "logits");
  const auto draw = [&] {
    return std::bit_cast<std::uint32_t>(draw_float(Floats::kOrdinary, random));
  };
  const Tensor logits = drawn_tensor(DType::kFloat32, Layout::dense({kRows, kExperts}), draw);
  const Tensor bias = drawn_tensor(DType::kFloat32, Layout::dense({kExperts}), draw);
  Tensor ids(DType::kInt32, Layout::dense({kRows, 5}));
  Tensor weights(DType::kFloat32, Layout::dense({kRows, 5}));
  const MoeRouteInput input{.logits = logits.view<float, 2>(),
                            .bias = bias.view<float, 1>(),
                            .top_k = 4,
                            .scaling = 2,
                            .shared = true};
  while (state.KeepRunning())
    moe_route(input, {ids.view<std::int32_t, 2>(), weights.view<float, 2>()});
  rate(state, "tokens", kRows);
}

}  // namespace

void register_routing_benchmarks() {
  benchmark::RegisterBenchmark("all_reduce/4x16x6144", reduce);
  benchmark::RegisterBenchmark("router/16x6144x128", route_logits);
  benchmark::RegisterBenchmark("moe_route/128_experts", select);
}

}  // namespace monoref
