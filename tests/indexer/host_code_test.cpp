// What the harness does with outputs and stages that host code computes in the original: kernels
// are not asked for them, somebody else's implementation is, and stored outputs are compared either
// way.
#include <gtest/gtest.h>

#include <cstring>

#include "fuzz/generator.hpp"
#include "fuzz/runner.hpp"

namespace monoref {
namespace {

Case case_of(const std::string& line) {
  return build_case(parse_line(line));
}

/// An implementation that computes everything as the reference does, but for one output, in which
/// it flips a bit.
class FlippingRunner : public Runner {
 public:
  explicit FlippingRunner(std::string flipped) : flipped_(std::move(flipped)) {}
  std::string name() const override { return "flipping"; }
  int wave() const override { return 0; }
  RunOutputs run(const Stage& stage, const Case& item, std::span<const OutputSpec> specs) override {
    for (const OutputSpec& spec : specs) asked.push_back(spec.name);
    RunOutputs run{.outputs = run_reference(stage, item, specs)};
    for (NamedTensor& named : run.outputs)
      if (named.name == flipped_) *named.tensor.base() ^= std::byte{1};
    return run;
  }

  std::vector<std::string> asked;

 private:
  std::string flipped_;
};

std::vector<std::string> outputs_compared(const CaseResult& result, const std::string& runner) {
  std::vector<std::string> names;
  for (const RunResult& run : result.runs)
    if (run.runner == runner)
      for (const OutputTally& tally : run.outputs) names.push_back(tally.name);
  return names;
}

const std::string kSplit =
    "stage=prefill_chunk_split;contract=mono;seed=1;requests=3;workspace=need;logits=some_rows";
const std::string kUniform =
    "stage=decode_expand;contract=mono;seed=1;requests=2;q_len=3;"
    "use_flattening=1";
const std::string kRagged = kUniform + ";query_mix=last_empty";

TEST(HostCode, KernelsAreNotAskedForAStageWithoutOne) {
  const Case item = case_of(kSplit);
  KernelRunner kernels(device::make_host_backend(64));
  const CaseResult result =
      judge_case(find_stage(item.stage), item, {.runners = {&kernels}, .properties = true});
  EXPECT_TRUE(result.runs.empty());
}

TEST(HostCode, OthersAreAskedForAStageWithoutAKernel) {
  const Case item = case_of(kSplit);
  FlippingRunner sound("");
  FlippingRunner flipping("chunks");
  const Stage& stage = find_stage(item.stage);
  EXPECT_EQ(judge_case(stage, item, {.runners = {&sound}}).verdict(), Verdict::kExact);
  EXPECT_EQ(sound.asked, (std::vector<std::string>{"chunks"}));
  const CaseResult result = judge_case(stage, item, {.runners = {&flipping}});
  EXPECT_EQ(result.verdict(), Verdict::kWrong);
  EXPECT_EQ(result.decisive()->first_difference->output, "chunks");
}

TEST(HostCode, StoredOutputsOfAStageWithoutAKernelAreCompared) {
  Case item = case_of(kSplit);
  const Stage& stage = find_stage(item.stage);
  for (NamedTensor& named : run_reference(stage, item, stage.outputs(item)))
    item.expected.push_back({named.name, named.tensor, std::nullopt});
  EXPECT_EQ(judge_case(stage, item, {}).verdict(), Verdict::kExact);
  *item.expected[0].tensor.base() ^= std::byte{1};
  EXPECT_EQ(judge_case(stage, item, {}).verdict(), Verdict::kWrong);
}

TEST(HostCode, KernelsAreAskedForTheirOwnOutputsOnly) {
  const Case item = case_of(kUniform);
  KernelRunner kernels(device::make_host_backend(64));
  const CaseResult result =
      judge_case(find_stage(item.stage), item, {.runners = {&kernels}, .properties = true});
  EXPECT_EQ(result.verdict(), Verdict::kExact);
  EXPECT_EQ(outputs_compared(result, "host"),
            (std::vector<std::string>{"decode_seq_lens", "decode_lens", "decode_block_table"}));
}

TEST(HostCode, ACaseThatLeavesNothingToTheKernelsIsNotRunOnThem) {
  const Case item = case_of(kRagged);
  KernelRunner kernels(device::make_host_backend(64));
  FlippingRunner flipping("shape");
  const Stage& stage = find_stage(item.stage);
  EXPECT_TRUE(judge_case(stage, item, {.runners = {&kernels}}).runs.empty());
  EXPECT_EQ(judge_case(stage, item, {.runners = {&flipping}}).verdict(), Verdict::kWrong);
  EXPECT_EQ(flipping.asked, (std::vector<std::string>{"shape", "decode_seq_lens", "decode_lens",
                                                      "decode_block_table"}));
}

/// A ragged batch is flattened by host code, but each of its requests alone is a kernel's work:
/// the property is where the two meet.
TEST(HostCode, PropertiesOfKernelsSeeTheHostsOutputsToo) {
  const Case item = case_of(kUniform);
  KernelRunner kernels(device::make_host_backend(32));
  Stage stage = find_stage(item.stage);
  std::size_t seen = 0;
  stage.properties = {{"all_outputs", "a property sees every output of the stage",
                       [&](const Case& given, const Outputs& outputs,
                           const Evaluate& evaluate) -> std::optional<std::string> {
                         seen += outputs.size() + evaluate(given).size();
                         EXPECT_EQ(output(outputs, "shape").image(),
                                   output(evaluate(given), "shape").image());
                         return std::nullopt;
                       }}};
  judge_case(stage, item, {.runners = {&kernels}, .properties = true});
  EXPECT_EQ(seen, 2U * (4 + 4));  // four outputs, evaluated twice, on the reference and the kernel
}

}  // namespace
}  // namespace monoref
