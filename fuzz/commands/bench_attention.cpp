#include "fuzz/commands/bench_attention.hpp"

#include <benchmark/benchmark.h>

#include <bit>
#include <numeric>
#include <utility>
#include <vector>

#include "fuzz/random.hpp"
#include "fuzz/stages/floats.hpp"
#include "reference/stages/fp8_attention_partition.hpp"
#include "reference/stages/index_score.hpp"
#include "reference/stages/index_select.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kDim = 128;

/// Codes of numbers.
Tensor drawn_codes(std::vector<std::int64_t> dims, std::string_view name) {
  CounterRandom random(1, name);
  const FloatFormat& format = float_format(DType::kFloat8E4M3FN);
  return drawn_tensor(DType::kFloat8E4M3FN, Layout::dense(std::move(dims)),
                      [&] { return draw_code(format, false, random); });
}

Tensor drawn_bf16(std::vector<std::int64_t> dims, std::string_view name) {
  CounterRandom random(1, name);
  return drawn_tensor(DType::kBFloat16, Layout::dense(std::move(dims)),
                      [&] { return draw_bf16(Floats::kOrdinary, random); });
}

/// 0, 1, .. as a table of one row.
Tensor identity_table(std::int64_t blocks) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(blocks));
  std::iota(ids.begin(), ids.end(), 0);
  return Tensor::of(DType::kInt32, {1, blocks}, ids);
}

Tensor one_length(std::int64_t keys) {
  return Tensor::of(DType::kInt32, {1}, std::vector<std::int32_t>{static_cast<std::int32_t>(keys)});
}

void rate(benchmark::State& state, const char* unit, double items) {
  state.counters[unit] = benchmark::Counter(static_cast<double>(state.iterations()) * items,
                                            benchmark::Counter::kIsRate);
}

/// One row's 1,024 blocks for the four index heads.
void score(benchmark::State& state) {
  constexpr std::int64_t kBlocks = 1024;
  constexpr std::int64_t kHeads = 4;
  const Tensor q = drawn_bf16({1, kHeads, kDim}, "index_q");
  const Tensor cache = drawn_codes({kBlocks, kBlock, kDim}, "index_cache");
  const Tensor table = identity_table(kBlocks);
  const Tensor lengths = one_length(kBlocks * kBlock);
  Tensor scores(DType::kFloat32, Layout::dense({kHeads, 1, kBlocks}));
  const IndexScoreInput input{.index_q = q.view<std::uint16_t, 3>(),
                              .index_cache = cache,
                              .block_table = table.view<std::int32_t, 2>(),
                              .seq_lens = lengths.view<std::int32_t, 1>()};
  while (state.KeepRunning()) index_score_fast(input, {scores.view<float, 3>()});
  rate(state, "multiply-adds", double{kBlocks} * kBlock * kDim * kHeads);
}

/// The best 16 of 8,192 blocks, for one row and head.
void select(benchmark::State& state) {
  constexpr std::int64_t kBlocks = 8192;
  constexpr std::int64_t kTopk = 16;
  CounterRandom random(1, "score");
  const Tensor scores = drawn_tensor(DType::kFloat32, Layout::dense({1, 1, kBlocks}), [&] {
    return std::bit_cast<std::uint32_t>(draw_float(Floats::kOrdinary, random));
  });
  const Tensor table = identity_table(kBlocks);
  const Tensor lengths = one_length(kBlocks * kBlock);
  Tensor ids(DType::kInt32, Layout::dense({1, 1, kTopk}));
  Tensor pages(DType::kInt32, Layout::dense({1, 1, kTopk * 8}));
  Tensor contexts(DType::kInt32, Layout::dense({1, 1}));
  const IndexSelectInput input{.score = scores.view<float, 3>(),
                               .block_table = table.view<std::int32_t, 2>(),
                               .seq_lens = lengths.view<std::int32_t, 1>()};
  while (state.KeepRunning())
    index_select(input, {ids.view<std::int32_t, 3>(), pages.view<std::int32_t, 3>(),
                         contexts.view<std::int32_t, 2>()});
  rate(state, "block keys", kBlocks);
}

/// One row's 2,048 keys for 16 heads; both products count.
void attend(benchmark::State& state) {
  constexpr std::int64_t kKeys = 2048;
  constexpr std::int64_t kHeads = 16;
  constexpr std::int64_t kPartitions = kKeys / kPartitionKeys;
  const Tensor q = drawn_bf16({1, kHeads, kDim}, "q");
  const Tensor cache = drawn_codes({kKeys / kBlock, 16, 1, kDim * 16}, "cache");
  std::vector<std::int32_t> pages;
  for (std::int32_t page = 0; page < kKeys / 16; ++page) pages.push_back(page / 8 * 16 + page % 8);
  const Tensor table = Tensor::of(DType::kInt32, {1, 1, kKeys / 16}, pages);
  const Tensor context = Tensor::of(DType::kInt32, {1, 1}, std::vector<std::int32_t>{kKeys});
  Tensor o(DType::kBFloat16, Layout::dense({1, kPartitions, kHeads, kDim}));
  Tensor m(DType::kFloat32, Layout::dense({1, kPartitions, kHeads}));
  Tensor l(DType::kFloat32, Layout::dense({1, kPartitions, kHeads}));
  const Fp8AttentionPartitionInput input{.q = q.view<std::uint16_t, 3>(),
                                         .sparse_block_table = table.view<std::int32_t, 3>(),
                                         .sparse_context_lens = context.view<std::int32_t, 2>(),
                                         .caches = {cache, cache}};
  while (state.KeepRunning())
    fp8_attention_partition_fast(
        input, {o.view<std::uint16_t, 4>(), m.view<float, 3>(), l.view<float, 3>()});
  rate(state, "multiply-adds", 2.0 * kKeys * kHeads * kDim);
}

}  // namespace

void register_attention_benchmarks() {
  benchmark::RegisterBenchmark("index_score/1024_blocks_x_4", score);
  benchmark::RegisterBenchmark("index_select/8192_blocks", select);
  benchmark::RegisterBenchmark("fp8_attention_partition/2048x16x128", attend);
}

}  // namespace monoref
