#include "fuzz/commands/bench_experts.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "fuzz/eigen/eigen_product.hpp"
#include "fuzz/stages/expert_content.hpp"
#include "reference/stages/expert_down.hpp"
#include "reference/stages/expert_up_gate.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kTokens = 16;
constexpr std::int64_t kHidden = 6144;
constexpr std::int64_t kInter = 768;
constexpr std::int64_t kSlots = 5;
/// A pair's products: gate and up, then down.
constexpr double kMultiplyAdds = double{kTokens} * kSlots * kHidden * kInter * 3;

Case build_from(const std::string& stage, std::string_view sizes, std::string_view weights) {
  return build_case(parse_line(fmt::format(
      "stage={};contract=mono;seed=1;rows={};top_k={};experts=128;shared=separate;storage=routed;"
      "weights={};activation_scales=near;weight_scales=near;{}",
      stage, kTokens, kSlots - 1, weights, sizes)));
}

/// Both halves of a layer's experts. The seed gives both the same routing.
struct Layer {
  Case up_gate;
  Case down;
  Tensor mid = Tensor(DType::kBFloat16, Layout::dense({kTokens, kSlots, kInter}));
  Tensor partial = Tensor(DType::kBFloat16, Layout::dense({kTokens, kHidden}));

  explicit Layer(std::string_view weights)
      : up_gate(build_from("expert_up_gate", "hidden_units=24;inter_units=24", weights)),
        down(build_from("expert_down", "hidden_units=192;inter_units=6", weights)) {}

  void run(Isa isa) {
    expert_up_gate_fast({up_gate.input("x8").view<std::uint8_t, 2>(),
                         up_gate.input("x_scale").view<std::uint8_t, 2>(),
                         up_gate.input("topk_ids").view<std::int32_t, 2>(),
                         expert_weights_of(up_gate, "w13", "s13")},
                        {mid.view<std::uint16_t, 3>()}, isa);
    expert_down_fast(
        {down.input("mid8").view<std::uint8_t, 3>(),
         down.input("mid_scale").view<std::uint8_t, 3>(),
         down.input("topk_ids").view<std::int32_t, 2>(),
         down.input("topk_weights").view<float, 2>(), expert_weights_of(down, "w2", "s2")},
        {partial.view<std::uint16_t, 2>()}, isa);
  }
};

/// Made when the first measurement asks for it, since not every run of `bench` does.
class LazyLayer {
 public:
  explicit LazyLayer(std::string_view weights) : weights_(weights) {}
  Layer& get() {
    if (!layer_) layer_.emplace(weights_);
    return *layer_;
  }

 private:
  std::string_view weights_;
  std::optional<Layer> layer_;
};

/// Eigen's operands: decoded weights of a few experts in turn, more than a cache holds; their
/// values do not change its speed.
struct Dense {
  static constexpr std::size_t kCopies = 4;

  std::vector<std::vector<float>> w13{kCopies, std::vector<float>(kHidden * 2 * kInter, 0.25f)};
  std::vector<std::vector<float>> w2{kCopies, std::vector<float>(kInter * kHidden, 0.25f)};
  std::vector<float> x = std::vector<float>(kTokens * kHidden, 0.5f);

  void run(EigenProduct product, const std::vector<RoutedExpert>& experts) {
#pragma omp parallel for schedule(dynamic)
    for (std::size_t i = 0; i < experts.size(); ++i) {
      const auto tokens = static_cast<std::ptrdiff_t>(experts[i].pairs.size());
      std::vector<float> result(static_cast<std::size_t>(tokens * kHidden));
      product(x.data(), w13[i % kCopies].data(), result.data(), tokens, kHidden, 2 * kInter);
      product(x.data(), w2[i % kCopies].data(), result.data(), tokens, kInter, kHidden);
      benchmark::DoNotOptimize(result.data());
    }
  }
};

EigenProduct eigen_product(Isa isa) {
  return isa == Isa::kV4 ? eigen_product_v4 : eigen_product_v3;
}

/// The first run is not measured: it makes the weights.
void register_one(const std::string& name, const std::function<void()>& run) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [run](benchmark::State& state) {
                                 run();
                                 while (state.KeepRunning()) run();
                                 state.counters["multiply-adds"] = benchmark::Counter(
                                     static_cast<double>(state.iterations()) * kMultiplyAdds,
                                     benchmark::Counter::kIsRate);
                               })
      ->UseRealTime()
      ->MeasureProcessCPUTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace

void register_expert_benchmarks() {
  const auto mxfp8 = std::make_shared<LazyLayer>("mxfp8");
  const auto mxfp4 = std::make_shared<LazyLayer>("mxfp4");
  const auto dense = std::make_shared<std::optional<Dense>>();
  for (const Isa isa : available_isas()) {
    if (isa == Isa::kBaseline) continue;
    register_one(fmt::format("experts/mxfp8/fast/{}", isa_name(isa)),
                 [=] { mxfp8->get().run(isa); });
    register_one(fmt::format("experts/mxfp4/fast/{}", isa_name(isa)),
                 [=] { mxfp4->get().run(isa); });
    register_one(fmt::format("experts/eigen/{}", isa_name(isa)), [=] {
      if (!*dense) dense->emplace();
      const Case& item = mxfp8->get().up_gate;
      const auto experts = routed_experts(expert_weights_of(item, "w13", "s13"),
                                          item.input("topk_ids").view<std::int32_t, 2>());
      (*dense)->run(eigen_product(isa), experts);
    });
  }
}

}  // namespace monoref
