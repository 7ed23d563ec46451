#include "fuzz/commands/bench_arithmetic.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "fuzz/eigen/eigen_product.hpp"
#include "fuzz/micro_benchmarks.hpp"
#include "fuzz/random.hpp"
#include "reference/stages/qkv_projection.hpp"

namespace monoref {
namespace {

/// The projection of a full step: 16 tokens, 6144 to 2560.
struct Projection {
  static constexpr std::int64_t kTokens = 16;
  static constexpr std::int64_t kHidden = 6144;
  static constexpr std::int64_t kRows = 2560;

  std::vector<std::uint8_t> x8 = codes(kTokens * kHidden, "x8");
  std::vector<std::uint8_t> weight = codes(kRows * kHidden, "weight");
  std::vector<float> x_scale = std::vector<float>(kTokens, 0x1p-7f);
  std::vector<float> w_scale = std::vector<float>(kRows, 0x1p-9f);
  std::vector<std::uint16_t> qkv = std::vector<std::uint16_t>(kTokens * kRows);
  // The same product for Eigen; its values do not change its speed.
  std::vector<float> a = std::vector<float>(kTokens * kHidden, 0.5f);
  std::vector<float> b = std::vector<float>(kHidden * kRows, 0.25f);
  std::vector<float> c = std::vector<float>(kTokens * kRows);

  static std::vector<std::uint8_t> codes(std::int64_t count, std::string_view name) {
    CounterRandom random(1, name);
    std::vector<std::uint8_t> made(static_cast<std::size_t>(count));
    for (std::uint8_t& code : made) code = static_cast<std::uint8_t>(random.below(0x7F));
    return made;
  }
  void run(Isa isa) {
    qkv_projection_fast({{x8.data(), {kTokens, kHidden}, {kHidden, 1}},
                         {x_scale.data(), {kTokens}, {1}},
                         {weight.data(), {kRows, kHidden}, {kHidden, 1}},
                         {w_scale.data(), {kRows}, {1}},
                         {}},
                        {{qkv.data(), {kTokens, kRows}, {kRows, 1}}}, isa);
  }
};

void rate(benchmark::State& state, const std::string& unit, double items) {
  state.counters[unit] = benchmark::Counter(static_cast<double>(state.iterations()) * items,
                                            benchmark::Counter::kIsRate);
}

EigenProduct eigen_product(Isa isa) {
  if (isa == Isa::kV4) return eigen_product_v4;
  return isa == Isa::kV3 ? eigen_product_v3 : eigen_product_baseline;
}

void register_projection() {
  constexpr double kMultiplyAdds =
      double{Projection::kTokens} * Projection::kHidden * Projection::kRows;
  const auto data = std::make_shared<Projection>();
  for (const Isa isa : available_isas()) {
    benchmark::RegisterBenchmark(fmt::format("qkv_projection/fast/{}", isa_name(isa)).c_str(),
                                 [data, isa](benchmark::State& state) {
                                   while (state.KeepRunning()) data->run(isa);
                                   rate(state, "multiply-adds", kMultiplyAdds);
                                 });
    benchmark::RegisterBenchmark(fmt::format("qkv_projection/eigen/{}", isa_name(isa)).c_str(),
                                 [data, product = eigen_product(isa)](benchmark::State& state) {
                                   while (state.KeepRunning()) {
                                     product(data->a.data(), data->b.data(), data->c.data(),
                                             Projection::kTokens, Projection::kHidden,
                                             Projection::kRows);
                                     benchmark::ClobberMemory();
                                   }
                                   rate(state, "multiply-adds", kMultiplyAdds);
                                 });
  }
}

}  // namespace

void register_arithmetic_benchmarks() {
  for (const MicroBenchmark& micro : micro_benchmarks())
    benchmark::RegisterBenchmark(fmt::format("arithmetic/{}", micro.name).c_str(),
                                 [micro](benchmark::State& state) {
                                   while (state.KeepRunning()) micro.run();
                                   rate(state, micro.unit, static_cast<double>(micro.items));
                                 });
  register_projection();
}

}  // namespace monoref
