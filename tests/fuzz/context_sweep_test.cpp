// Every context that a short row can have, those around the selection's width, and some far beyond
// it: reference and kernels on both waves agree on the whole chain, and on a partition for every
// number of heads that share keys (bug case S07: contexts between the round ones).
#include <gtest/gtest.h>

#include <algorithm>

#include "fuzz/runner.hpp"
#include "fuzz/stages/content.hpp"
#include "fuzz/stages/floats.hpp"

namespace monoref {
namespace {

class ContextSweep : public testing::TestWithParam<int> {
 protected:
  void expect_exact(const Case& item, bool properties) {
    const CaseResult result =
        judge_case(find_stage(item.stage), item, {.runners = {&runner_}, .properties = properties});
    EXPECT_EQ(result.verdict(), Verdict::kExact) << item.line;
    EXPECT_FALSE(result.runs.empty());
  }

 private:
  KernelRunner runner_{device::make_host_backend(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Waves, ContextSweep, testing::Values(64, 32));

/// One request of `context` keys, the last of `q_len` rows seeing them all.
Case chain(std::int64_t context, std::int64_t q_len, const char* contract) {
  const Stage& stage = find_stage("sparse_attention");
  Params params(stage.dimensions);
  const std::int64_t blocks = std::max<std::int64_t>((context + 127) / 128, 1);
  params.set("q_len", q_len);
  params.set("topk", blocks <= 5 ? 5 : 16);  // masked partitions cost as much as others
  params.set("blocks", blocks);
  params.set("short_of_capacity", blocks * 128 - context);
  params.set("lengths", static_cast<std::int64_t>(Lengths::kFull));
  return build_case(stage, params, Contract::parse(contract),
                    static_cast<std::uint64_t>(1000 * context + q_len));
}

const char* contract_of(std::int64_t context) {
  return context % 2 == 0 ? "mono" : "mono,kv_layout=dense,topk_ties=lower_id";
}

TEST_P(ContextSweep, EveryContextTo600WithEveryQueryLength) {
  for (std::int64_t context = 0; context <= 600; ++context) {
    const std::int64_t q_len = 1 + context % 8;
    expect_exact(chain(context, q_len, contract_of(context)), context % 50 == 0);
  }
}

TEST_P(ContextSweep, ContextsFromTheSelectionsWidthOn) {
  for (const std::int64_t context : {2046, 2047, 2048, 2049, 2050, 2175, 2176, 2177, 3000, 5120}) {
    const Case item = chain(context, 3, contract_of(context));
    expect_exact(item, true);
    if (context <= 2050) continue;
    const Stage& stage = find_stage(item.stage);
    const Outputs out = run_reference(stage, item, stage.outputs(item));
    const auto ids = output(out, "topk_idx").view<std::int32_t, 3>();
    std::int64_t kept = 0;
    for (std::int64_t rank = 0; rank < 16; ++rank) kept += ids(0, 2, rank) < 16 ? 1 : 0;
    EXPECT_LT(kept, 16) << context << ": the tail at least is beyond the first 16";
  }
}

TEST_P(ContextSweep, EveryContextOfAPartitionForEveryGroup) {
  const Stage& stage = find_stage("fp8_attention_partition");
  constexpr std::int64_t kRows = 3;
  for (const std::int64_t group : {1, 4, 8, 16}) {
    Params params(stage.dimensions);
    params.set("rows", kRows);
    params.set("group", group);
    params.set("slots", 5);
    params.set("contexts", static_cast<std::int64_t>(Lengths::kFull));
    const Case full =
        build_case(stage, params, Contract{}, 7000 + static_cast<std::uint64_t>(group));
    for (std::int64_t context = 0; context <= 600; context += kRows) {
      Case item = full;
      Tensor contexts = item.input("sparse_context_lens");
      for (std::int64_t row = 0; row < kRows; ++row)
        contexts.view<std::int32_t, 2>()(row, 0) = static_cast<std::int32_t>(context + row);
      replace_input(item, "sparse_context_lens", std::move(contexts));
      item.line += fmt::format(" with contexts from {}", context);
      expect_exact(item, false);
    }
  }
}

}  // namespace
}  // namespace monoref
