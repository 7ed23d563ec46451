#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "fuzz/commands/bench_arithmetic.hpp"
#include "fuzz/commands/bench_attention.hpp"
#include "fuzz/commands/bench_experts.hpp"
#include "fuzz/commands/bench_reduction.hpp"
#include "fuzz/commands/bench_routing.hpp"
#include "fuzz/commands/commands.hpp"
#include "fuzz/generator.hpp"
#include "fuzz/load_cases.hpp"

namespace monoref {
namespace {

/// Generate, reference, kernel, compare: what a campaign does for a case, properties apart.
void differential(benchmark::State& state, const Stage& stage, Runner& runner, std::uint64_t seed,
                  Summary& ran) {
  const std::vector<Runner*> runners{&runner};
  std::uint64_t index = 0;
  while (state.KeepRunning()) {
    const Draw draw = draw_case(stage, seed, index++, std::nullopt);
    const Case item = build_case(stage, draw.params, draw.contract, draw.seed);
    const CaseResult result =
        judge_case(stage, item, {.runners = runners, .launch = launch_choice(draw.params)});
    ran.add(result);
    if (is_failure(result.verdict())) state.SkipWithError("the backend differs from the reference");
  }
  state.counters["cases"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void reference_only(benchmark::State& state, const Stage& stage, std::uint64_t seed) {
  std::uint64_t index = 0;
  while (state.KeepRunning()) {
    const Draw draw = draw_case(stage, seed, index++, std::nullopt);
    const Case item = build_case(stage, draw.params, draw.contract, draw.seed);
    benchmark::DoNotOptimize(judge_case(stage, item, {}));
  }
  state.counters["cases"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

/// The host executor's figure: threads a second through a grid with barriers.
void executor(benchmark::State& state) {
  constexpr std::uint32_t kBlocks = 256;
  constexpr std::uint32_t kThreads = 512;
  const auto backend = device::make_host_backend(64);
  const std::vector<std::byte> image(std::size_t{kBlocks} * kThreads * sizeof(std::uint32_t));
  const device::BufferRequest totals{"totals", {{0, image.size()}}, 16, image};
  backend->place({&totals, 1});
  const std::uint32_t barriers = 20;
  void* const address = backend->address(0);
  const device::KernelArgument arguments[] = {{&barriers, sizeof(barriers)},
                                              {&address, sizeof(address)}};
  const device::Grid grid{.blocks_x = kBlocks,
                          .threads_x = kThreads,
                          .shared_bytes = 2 * kThreads * sizeof(std::uint32_t)};
  while (state.KeepRunning()) {
    backend->launch("monoref_executor_barriers", grid, arguments);
    if (backend->finish().status != device::RunStatus::kOk)
      state.SkipWithError("the launch failed");
  }
  state.counters["threads"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * kBlocks * kThreads, benchmark::Counter::kIsRate);
}

/// The reference of one layer of the model's size on one rank, for 16 tokens with contexts of 2,560
/// keys. Drawing its weights is not measured.
void full_layer(benchmark::State& state, std::string_view weights) {
  const Case item = build_case(parse_line(fmt::format(
      "stage=sparse_layer;contract=mono;seed=1;requests=16;blocks=20;lengths=full;hidden_units=12;"
      "inter_units=6;experts=128;live_experts=64;head_units=4;topk_blocks=16;weights={}",
      weights)));
  const Stage& stage = find_stage(item.stage);
  const std::vector<OutputSpec> specs = stage.outputs(item);
  while (state.KeepRunning()) benchmark::DoNotOptimize(run_reference(stage, item, specs));
}

/// `monoref check` of every recording kept with the source, reference and both waves.
void check_recordings(benchmark::State& state, const std::vector<Runner*>& runners, Summary& ran) {
  while (state.KeepRunning())
    for (const auto& entry :
         std::filesystem::directory_iterator(default_golden_folder() / "recorded")) {
      if (entry.path().extension() != ".h5") continue;
      CaseFile file(entry.path());
      if (!file.has_cases()) continue;
      for (std::size_t i = 0; i < file.size(); ++i) {
        const Case item = file.take(i);
        ran.add(judge_case(find_stage(item.stage), item, {.runners = runners}));
      }
    }
}

}  // namespace

int bench_command(const CommonOptions& common) {
  const auto runners = make_runners(common, "64");
  const auto both = make_runners(common, "both");
  const auto stages = select_stages(common.stages);
  Summary ran;
  for (const Runner* runner : pointers(runners))
    ran.add_runs(runner_token(runner->name(), runner->wave()), 0);
  for (const Stage* stage : stages) {
    if (stage->launch)
      benchmark::RegisterBenchmark(fmt::format("differential/{}", stage->name).c_str(),
                                   [stage, &runners, &common, &ran](benchmark::State& state) {
                                     differential(state, *stage, *runners.front(), common.seed,
                                                  ran);
                                   });
    benchmark::RegisterBenchmark(
        fmt::format("generate_and_reference/{}", stage->name).c_str(),
        [stage, &common](benchmark::State& state) { reference_only(state, *stage, common.seed); });
  }
  const std::vector<int> devices = common.parsed_devices();
  const bool reduces = std::any_of(stages.begin(), stages.end(),
                                   [](const Stage* stage) { return stage->name == "all_reduce"; });
  if (devices.size() > 1 && reduces)
    register_reduction_benchmarks(dynamic_cast<KernelRunner&>(*runners.front()).backend(), devices);
  if (common.stages == "all") {
    register_arithmetic_benchmarks();
    register_attention_benchmarks();
    register_routing_benchmarks();
    register_expert_benchmarks();
    for (const char* weights : {"mxfp8", "mxfp4"})
      benchmark::RegisterBenchmark(
          fmt::format("layer/full_size/{}", weights).c_str(),
          [weights](benchmark::State& state) { full_layer(state, weights); })
          ->UseRealTime()
          ->MeasureProcessCPUTime()
          ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark("executor/256x512x20_barriers", executor)->UseRealTime();
    benchmark::RegisterBenchmark(
        "check/recordings",
        [&both, &ran](benchmark::State& state) { check_recordings(state, pointers(both), ran); })
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  std::deque<std::string> words{"monoref bench"};
  if (!common.json.empty()) {
    words.push_back(fmt::format("--benchmark_out={}", common.json.string()));
    words.push_back("--benchmark_out_format=json");
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  const std::size_t done = benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  fmt::print("{}\nbench: {} measurements\n", ran.runs_line(), done);
  return 0;
}

}  // namespace monoref
