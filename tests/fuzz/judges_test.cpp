// Judging foreign results: recordings pass, and errors planted in them are seen for what they are.
#include "fuzz/judges/judge.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "fuzz/stages/content.hpp"
#include "golden/recording.hpp"
#include "reference/formats/convert.hpp"

namespace monoref {
namespace {

Recording load(const std::string& name) {
  return read_recording(std::string(MONOREF_RECORDED_DIR) + "/" + name + ".h5");
}

Tensor& output_of(RecordedCase& recorded, const std::string& name) {
  for (NamedTensor& output : recorded.outputs)
    if (output.name == name) return output.tensor;
  refuse("no output '{}'", name);
}

RunResult judge(const std::string& name, const RecordedCase& recorded) {
  RunResult result;
  find_judge(name)->judge(recorded, result);
  return result;
}

const OutputTally& tally(const RunResult& result, const std::string& name) {
  for (const OutputTally& item : result.outputs)
    if (item.name == name) return item;
  refuse("no tally '{}'", name);
}

class EveryJudge : public testing::TestWithParam<std::string> {};

TEST_P(EveryJudge, NoRecordedElementIsOutsideItsBound) {
  const Recording recording = load(GetParam());
  const auto results = judge_recording(*find_judge(recording.stage), recording);
  ASSERT_EQ(results.size(), recording.cases.size());
  for (const CaseResult& result : results) {
    EXPECT_LE(result.verdict(), Verdict::kAllowed) << result.title;
    for (const OutputTally& item : result.runs[0].outputs) {
      EXPECT_EQ(item.wrong, 0U) << result.title << " " << item.name;
      EXPECT_EQ(item.exact + item.allowed + item.undecided, item.elements)
          << result.title << " " << item.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recordings, EveryJudge,
                         testing::Values("gemma_rmsnorm", "swiglu_oai", "qknorm_rope_kv_insert",
                                         "formats", "e8m0_and_fp4", "mxfp8_quantize",
                                         "weight_layouts", "hopper_mma", "hopper_wgmma",
                                         "gpu_functions", "mxfp8_moe", "index_topk_decode",
                                         "index_topk_decode_4_heads", "sparse_attention_decode",
                                         "moe_route", "biased_topk_torch"));

TEST(Judges, EveryRecordedDotIsCounted) {
  for (const std::string name : {"hopper_mma", "hopper_wgmma"}) {
    const Recording recording = load(name);
    std::uint64_t dots = 0;
    for (const CaseResult& result : judge_recording(*find_judge(name), recording))
      dots += result.runs[0].outputs[0].exact;
    EXPECT_EQ(dots, 204800u) << name;
  }
}

TEST(Judges, AnUnknownRecordingHasNone) {
  EXPECT_EQ(find_judge("token_rows"), nullptr);
}

/// What the judging of the first case says after a change of it.
std::string refusal_after(const std::string& name,
                          const std::function<void(RecordedCase&)>& change) {
  Recording recording = load(name);
  recording.cases.resize(1);
  change(recording.cases[0]);
  const auto results = judge_recording(*find_judge(name), recording);
  EXPECT_EQ(results.at(0).verdict(), Verdict::kRefused) << name;
  return results.at(0).runs.at(0).message;
}

Tensor& input_of(RecordedCase& recorded, const std::string& name) {
  for (NamedTensor& input : recorded.inputs)
    if (input.name == name) return input.tensor;
  refuse("no input '{}'", name);
}

void set_number(RecordedCase& recorded, const std::string& name, std::int64_t value) {
  for (NamedScalar& scalar : recorded.scalars)
    if (scalar.name == name) scalar.value = value;
}

TEST(Judges, IndicesOutsideTheRecordingAreRefused) {
  EXPECT_EQ(refusal_after("qknorm_rope_kv_insert",
                          [](RecordedCase& item) {
                            input_of(item, "slot_mapping").view<std::int64_t, 1>()(0) = 1000000;
                          }),
            "recording qknorm_rope_kv_insert, case_0000: input slot_mapping[0] is 1000000, must be "
            "-1 to 255");
  EXPECT_EQ(refusal_after("mxfp8_moe",
                          [](RecordedCase& item) {
                            input_of(item, "topk_ids").view<std::int32_t, 2>()(0, 0) = 999;
                          }),
            "recording mxfp8_moe, case_0000: input topk_ids[0] is 999, must be 0 to 6");
}

TEST(Judges, ParametersOutsideTheirLimitsAreRefused) {
  EXPECT_EQ(
      refusal_after("qknorm_rope_kv_insert",
                    [](RecordedCase& item) { set_number(item, "num_index_heads", 1000000); }),
      "recording qknorm_rope_kv_insert, case_0000: parameter num_index_heads is 1000000, must "
      "be 1 to 15");
  EXPECT_EQ(
      refusal_after("qknorm_rope_kv_insert",
                    [](RecordedCase& item) { set_number(item, "block_size", 1000); }),
      "recording qknorm_rope_kv_insert, case_0000: output kv_cache has dims [2, 2, 128, 256], "
      "must have [any, 2, 1000, 256]");
  EXPECT_EQ(refusal_after("moe_route", [](RecordedCase& item) { item.scalars.clear(); }),
            "recording moe_route, case_0000: parameter route_scale is missing, must be a real "
            "number");
}

TEST(Judges, TensorsOfOtherSizesAreRefused) {
  for (const std::string name : {"hopper_mma", "hopper_wgmma"})
    for (const std::string input : {"a", "b", "c"})
      EXPECT_TRUE(refusal_after(name,
                                [&](RecordedCase& item) {
                                  const Tensor& old = input_of(item, input);
                                  std::vector<std::int64_t> dims = old.dims();
                                  dims[0] = 0;
                                  input_of(item, input) = Tensor(old.type(), Layout::dense(dims));
                                })
                      .starts_with("recording " + name + ", case_0000: "))
          << input;
}

/// An id that names no expert is the implementation's mistake, not a reason to stop.
TEST(Judges, AnExpertThatThereIsNotIsWrong) {
  for (const std::int32_t id : {999, -1, 1 << 30}) {
    Recording recording = load("moe_route");
    RecordedCase& recorded = recording.cases[0];
    for (std::int64_t slot = 0; slot < 4; ++slot)
      output_of(recorded, "ids").view<std::int32_t, 2>()(0, slot) = id;
    const RunResult result = judge("moe_route", recorded);
    EXPECT_EQ(result.verdict, Verdict::kWrong);
    EXPECT_EQ(tally(result, "ids").wrong, 4u);
    EXPECT_EQ(tally(result, "fourth_fifth_gap").undecided, 1u);
  }
}

// One BF16 place off is more than the sum of 128 squares can move the norm of a small row.
TEST(Judges, ANormOneCodeOffIsWrongAndNamed) {
  Recording recording = load("gemma_rmsnorm");
  RecordedCase& recorded = recording.cases[0];
  Tensor& norm = output_of(recorded, "norm");
  auto view = norm.view<std::uint16_t, 2>();
  view(3, 17) = static_cast<std::uint16_t>(view(3, 17) + 1);
  const RunResult result = judge("gemma_rmsnorm", recorded);
  EXPECT_EQ(result.verdict, Verdict::kWrong);
  EXPECT_EQ(tally(result, "norm").wrong, 1u);
  EXPECT_EQ(tally(result, "fused_norm").wrong, 0u);
  ASSERT_TRUE(result.first_difference.has_value());
  EXPECT_EQ(result.first_difference->index, (OutputJudge::Index{{"row", 3}, {"element", 17}}));
  EXPECT_FALSE(result.first_difference->bound.empty());
}

TEST(Judges, TheResidualIsExact) {
  Recording recording = load("gemma_rmsnorm");
  auto view = output_of(recording.cases[0], "residual_out").view<std::uint16_t, 2>();
  view(0, 0) = static_cast<std::uint16_t>(view(0, 0) ^ 1);
  EXPECT_EQ(tally(judge("gemma_rmsnorm", recording.cases[0]), "residual_out").wrong, 1u);
}

TEST(Judges, EveryPlantedErrorInTheActivationIsCaught) {
  Recording recording = load("swiglu_oai");
  for (RecordedCase& recorded : recording.cases) {
    Tensor& act = output_of(recorded, "act");
    if (act.type() != DType::kFloat32) continue;
    auto view = act.view<float, 2>();
    std::uint64_t planted = 0;
    for (std::int64_t row = 0; row < view.dim(0); ++row)
      for (std::int64_t i = 0; i < view.dim(1); ++i) {
        const float old = view(row, i);
        view(row, i) = old * 1.00001f;
        planted += view(row, i) != old && std::fabs(old) > 0x1p-100f ? 1 : 0;
      }
    // 1e-5 is about 84 ulps; the bound of this chain is some 10.
    EXPECT_GE(tally(judge("swiglu_oai", recorded), "act").wrong, planted) << recorded.title;
  }
}

TEST(Judges, ValuesAndUntouchedStorageAreExact) {
  Recording recording = load("qknorm_rope_kv_insert");
  RecordedCase& recorded = recording.cases[0];
  const auto slots = recorded.input("slot_mapping").view<std::int64_t, 1>();
  Tensor& cache = output_of(recorded, "kv_cache");
  auto view = cache.view<std::uint16_t, 4>();
  const std::int64_t live = slots(0);
  const std::int64_t size = recorded.integer("block_size");
  view(live / size, 1, live % size, 128 + 5) ^= 1;  // V of the first row, head 1
  const std::int64_t free = live == 0 ? 1 : 0;
  for (std::int64_t row = 0; row < slots.dim(0); ++row) ASSERT_NE(slots(row), free);
  view(0, 0, free, 0) ^= 1;
  const RunResult result = judge("qknorm_rope_kv_insert", recorded);
  EXPECT_EQ(tally(result, "v_in_cache").wrong, 1u);
  EXPECT_EQ(tally(result, "kv_cache_untouched").wrong, 1u);
  EXPECT_EQ(tally(result, "k_in_cache").wrong, 0u);
}

/// The largest of the cases stands in a file of its own, so that none is over 4 MB.
std::vector<RecordedCase> selections() {
  std::vector<RecordedCase> cases;
  for (const char* name : {"index_topk_decode", "index_topk_decode_4_heads"})
    for (RecordedCase& recorded : load(name).cases) cases.push_back(std::move(recorded));
  return cases;
}

TEST(Judges, AScoreOnePercentOffIsWrong) {
  for (RecordedCase& recorded : selections()) {
    const std::uint64_t judged = tally(judge("index_topk_decode", recorded), "score").elements;
    auto score = output_of(recorded, "score").view<float, 3>();
    for (std::int64_t head = 0; head < score.dim(0); ++head)
      for (std::int64_t row = 0; row < score.dim(1); ++row)
        for (std::int64_t block = 0; block < score.dim(2); ++block)
          score(head, row, block) *= 1.01f;
    EXPECT_GT(judged, 0u);
    EXPECT_EQ(tally(judge("index_topk_decode", recorded), "score").wrong, judged) << recorded.title;
  }
}

TEST(Judges, S10TheSelectionOfAnotherHeadIsWrong) {
  // Both rows with tokens select all of their 11 blocks: only the order tells the heads apart.
  RecordedCase recorded = load("index_topk_decode_4_heads").cases.at(0);
  auto ids = output_of(recorded, "topk_idx").view<std::int32_t, 3>();
  ASSERT_EQ(tally(judge("index_topk_decode", recorded), "topk_idx").wrong, 0u);
  for (std::int64_t row = 0; row < 2; ++row)
    for (std::int64_t rank = 0; rank < ids.dim(2); ++rank)
      std::swap(ids(0, row, rank), ids(1, row, rank));
  EXPECT_GE(tally(judge("index_topk_decode", recorded), "topk_idx").wrong, 4u)
      << "at least one place in each row of both heads";
}

TEST(Judges, ASelectedBlockThatIsWorseThanOneLeftOutIsWrong) {
  Recording recording = load("index_topk_decode");
  RecordedCase& recorded = recording.cases[1];  // the 4 best of 10 blocks, the last one pinned
  ASSERT_EQ(recorded.integer("topk"), 4);
  auto ids = output_of(recorded, "topk_idx").view<std::int32_t, 3>();
  const auto score = recorded.output("score").view<float, 3>();
  std::int32_t worst = 0;
  for (std::int32_t block = 0; block < 9; ++block)
    if (score(0, 0, block) < score(0, 0, worst)) worst = block;
  ids(0, 0, 3) = worst;
  EXPECT_EQ(tally(judge("index_topk_decode", recorded), "topk_idx").wrong, 1u);
  ids(0, 0, 3) = ids(0, 0, 0);
  EXPECT_EQ(tally(judge("index_topk_decode", recorded), "topk_idx").wrong, 1u) << "twice the same";
  ids(0, 0, 3) = 10;
  EXPECT_EQ(tally(judge("index_topk_decode", recorded), "topk_idx").wrong, 1u) << "a future block";
}

TEST(Judges, ABlockThatTheBoundsCannotSeparateIsNotJudged) {
  Recording recording = load("index_topk_decode");
  RecordedCase& recorded = recording.cases[1];
  const auto ids = output_of(recorded, "topk_idx").view<std::int32_t, 3>();
  const auto table = recorded.input("block_table").view<std::int32_t, 2>();
  std::set<std::int32_t> chosen;
  for (std::int64_t rank = 0; rank < 4; ++rank) chosen.insert(ids(0, 0, rank));
  std::int32_t left_out = 0;
  while (chosen.contains(left_out)) ++left_out;
  for (NamedTensor& input : recorded.inputs)
    if (input.name == "index_cache") {
      auto keys = input.tensor.view<std::uint8_t, 3>();
      for (std::int64_t key = 0; key < keys.dim(1); ++key)
        for (std::int64_t d = 0; d < keys.dim(2); ++d)
          keys(table(0, left_out), key, d) = keys(table(0, ids(0, 0, 3)), key, d);
    }
  const OutputTally selected = tally(judge("index_topk_decode", recorded), "topk_idx");
  EXPECT_EQ(selected.undecided, 1u) << "as good as the last one selected";
  EXPECT_EQ(selected.elements, 4u);
  EXPECT_EQ(selected.wrong, 0u);
}

TEST(Judges, StaleScoresAreNotJudged) {
  Recording recording = load("index_topk_decode");
  RecordedCase& recorded = recording.cases[0];  // one block, 16 columns
  auto score = output_of(recorded, "score").view<float, 3>();
  for (std::int64_t block = 1; block < score.dim(2); ++block) score(0, 0, block) = -77.0f;
  const OutputTally scores = tally(judge("index_topk_decode", recorded), "score");
  EXPECT_EQ(scores.wrong, 0u);
  EXPECT_EQ(scores.elements, 1u) << "nobody says what the columns behind hold";
  EXPECT_EQ(scores.undecided, 0u);
}

// The bound is some 1 % of the sum of magnitudes; an average over hundreds of keys is often no more
// than a twentieth of it, so that most signs, but not all last places, are decided.
TEST(Judges, AttentionWithTheWrongSignIsWrong) {
  Recording recording = load("sparse_attention_decode");
  for (RecordedCase& recorded : recording.cases) {
    auto out = output_of(recorded, "out").view<std::uint16_t, 3>();
    for (std::int64_t row = 0; row < out.dim(0); ++row)
      for (std::int64_t head = 0; head < out.dim(1); ++head)
        for (std::int64_t dim = 0; dim < out.dim(2); ++dim) out(row, head, dim) ^= 0x8000;
    const OutputTally outs = tally(judge("sparse_attention_decode", recorded), "out");
    EXPECT_GT(2 * outs.wrong, outs.elements) << recorded.title;
  }
}

/// What mxfp8_moe is judged by: one recorded case with something done to it.
template <class Change>
RunResult judge_experts(std::size_t index, Change change) {
  Recording recording = load("mxfp8_moe");
  change(recording.cases.at(index));
  return judge("mxfp8_moe", recording.cases.at(index));
}

std::uint64_t wrong_of(const RunResult& result, const std::string& name) {
  return tally(result, name).wrong;
}

TEST(Judges, QuantisedTokensAreExact) {
  const RunResult result = judge_experts(0, [](RecordedCase& recorded) {
    output_of(recorded, "hidden_q").view<std::uint8_t, 2>()(0, 9) ^= 1;
    output_of(recorded, "hidden_scale").view<std::uint8_t, 2>()(0, 3) ^= 1;
  });
  EXPECT_EQ(wrong_of(result, "hidden_q"), 1u);
  EXPECT_EQ(wrong_of(result, "hidden_scale"), 1u);
}

TEST(Judges, GateAndUpOfAnotherExpertAreWrong) {
  // Two pairs of a token, of different experts, with their rows exchanged.
  const RunResult result = judge_experts(3, [](RecordedCase& recorded) {
    auto view = output_of(recorded, "gate_up").view<std::uint16_t, 2>();
    for (std::int64_t i = 0; i < view.dim(1); ++i) std::swap(view(0, i), view(1, i));
  });
  EXPECT_GT(wrong_of(result, "gate_up"), tally(result, "gate_up").elements / 2);
}

TEST(Judges, AnActivationScaleOneBinadeOffIsWrongInEveryBlock) {
  const RunResult result = judge_experts(1, [](RecordedCase& recorded) {
    auto view = output_of(recorded, "act_scale").view<std::uint8_t, 2>();
    for (std::int64_t pair = 0; pair < view.dim(0); ++pair)
      for (std::int64_t block = 0; block < view.dim(1); ++block)
        view(pair, block) = static_cast<std::uint8_t>(view(pair, block) + 1);
  });
  EXPECT_EQ(wrong_of(result, "act_scale"), tally(result, "act_scale").elements);
  EXPECT_GT(wrong_of(result, "act_q"), tally(result, "act_q").elements / 2)
      << "the codes belong to the other scale";
}

TEST(Judges, ALimitThatIsIgnoredIsSeen) {  // G02, as seen from outside
  const RunResult result = judge_experts(2, [](RecordedCase& recorded) {
    for (NamedScalar& scalar : recorded.scalars)
      if (scalar.name == "limit") scalar.value = 0x1p-6;
  });
  EXPECT_GT(wrong_of(result, "act_q"), 0u);
}

TEST(Judges, AFactorAppliedTwiceIsWrongInEveryRoutedRow) {  // M11, as seen from outside
  const RunResult result = judge_experts(0, [](RecordedCase& recorded) {
    auto view = output_of(recorded, "expert_out").view<float, 2>();
    for (std::int64_t i = 0; i < view.dim(1); ++i) view(0, i) *= 2;
  });
  const auto rows = static_cast<std::uint64_t>(tally(result, "expert_out").elements / 3);
  EXPECT_GT(wrong_of(result, "expert_out"), rows / 2);
  EXPECT_GT(wrong_of(result, "out"), rows / 2) << "and the recorded sum no longer fits";
}

TEST(Judges, ASumOfSlotsTwoCodesOffIsWrong) {
  const RunResult result = judge_experts(0, [](RecordedCase& recorded) {
    auto view = output_of(recorded, "out").view<std::uint16_t, 2>();
    view(0, 100) = static_cast<std::uint16_t>(view(0, 100) + 2);
  });
  EXPECT_EQ(wrong_of(result, "out"), 1u);
  EXPECT_EQ(result.first_difference->index, (OutputJudge::Index{{"token", 0}, {"element", 100}}));
}

/// An input of a recorded case, to be changed.
TEST(Judges, ExpertsInTheWrongOrderAreWrongByPlainAndByPackedKeys) {
  Recording recording = load("moe_route");
  RecordedCase& recorded = recording.cases.at(7);  // biases from -2.2 to 2.9 keep the keys apart
  for (const char* output : {"ids", "ids by packed keys"}) {
    const OutputTally before = tally(judge("moe_route", recorded), output);
    EXPECT_EQ(before.exact, 44u) << "all of 11 rows are decided";
    EXPECT_EQ(before.undecided, 0u);
  }
  auto ids = output_of(recorded, "ids").view<std::int32_t, 2>();
  std::swap(ids(3, 1), ids(3, 2));
  for (const char* output : {"ids", "ids by packed keys"})
    EXPECT_EQ(tally(judge("moe_route", recorded), output).wrong, 2u) << output;
}

TEST(Judges, AnExpertThatIsWorseOrTwiceTheSameOrNoneIsWrong) {
  for (const char* name : {"moe_route", "biased_topk_torch"}) {
    RecordedCase recorded = load(name).cases.at(7);
    const auto bias = recorded.input("bias").view<float, 1>();
    auto ids = output_of(recorded, "ids").view<std::int32_t, 2>();
    std::int32_t worst = 0;
    for (std::int32_t e = 0; e < 128; ++e)
      if (bias(e) < bias(worst)) worst = e;
    ASSERT_EQ(tally(judge(name, recorded), "ids").wrong, 0u);
    for (const std::int32_t planted : {worst, ids(2, 0), 128, -1}) {
      ids(2, 3) = planted;
      EXPECT_EQ(tally(judge(name, recorded), "ids").wrong, 1u) << name << " " << planted;
      EXPECT_EQ(tally(judge(name, recorded), "weights").undecided, 4u) << "of other experts";
    }
  }
}

/// The first row of a recorded selection, as a case of its own.
RecordedCase first_row(const std::string& name, std::size_t which) {
  RecordedCase recorded = load(name).cases.at(which);
  input_of(recorded, "logits") = take_rows(recorded.input("logits"), {0});
  for (NamedTensor& output : recorded.outputs) output.tensor = take_rows(output.tensor, {0});
  return recorded;
}

TEST(Judges, EqualKeysGoToTheLowerExpertWhereTheRecordingSaysSo) {
  RecordedCase recorded = first_row("moe_route", 7);
  auto ids = output_of(recorded, "ids").view<std::int32_t, 2>();
  auto logits = input_of(recorded, "logits").view<float, 2>();
  auto bias = input_of(recorded, "bias").view<float, 1>();
  // The best expert and a neighbour become the same.
  const std::int32_t best = ids(0, 0);
  const std::int32_t neighbour = best == 0 ? 1 : best - 1;
  for (std::int64_t slot = 0; slot < 4; ++slot) ASSERT_NE(ids(0, slot), neighbour);
  logits(0, neighbour) = logits(0, best);
  bias(neighbour) = bias(best);
  ids(0, 3) = ids(0, 2);
  ids(0, 2) = ids(0, 1);
  ids(0, 0) = std::min(best, neighbour);
  ids(0, 1) = std::max(best, neighbour);
  for (const char* output : {"ids", "ids by packed keys"})
    EXPECT_EQ(tally(judge("moe_route", recorded), output).exact, 4u) << output;
  std::swap(ids(0, 0), ids(0, 1));
  for (const char* output : {"ids", "ids by packed keys"})
    EXPECT_EQ(tally(judge("moe_route", recorded), output).wrong, 2u) << output;
}

TEST(Judges, KeysThatPackingCannotTellApartAreNotJudgedByPackedKeys) {
  RecordedCase recorded = first_row("moe_route", 7);
  const auto ids = output_of(recorded, "ids").view<std::int32_t, 2>();
  auto logits = input_of(recorded, "logits").view<float, 2>();
  auto bias = input_of(recorded, "bias").view<float, 1>();
  // The two best get scores of 1/2 and keys of 5 + 2^-18 and 5, 8 places apart.
  bias(ids(0, 0)) = 4.5f + 0x1p-18f;
  bias(ids(0, 1)) = 4.5f;
  logits(0, ids(0, 0)) = logits(0, ids(0, 1)) = 0;
  const RunResult result = judge("moe_route", recorded);
  EXPECT_EQ(tally(result, "ids").exact, 4u);
  EXPECT_EQ(tally(result, "ids by packed keys").exact, 2u);
  EXPECT_EQ(tally(result, "ids by packed keys").undecided, 2u);
}

TEST(Judges, EqualExpertsInNoStatedOrderAreNotJudged) {
  RecordedCase recorded = first_row("biased_topk_torch", 0);
  const auto ids = output_of(recorded, "ids").view<std::int32_t, 2>();
  auto logits = input_of(recorded, "logits").view<float, 2>();
  auto bias = input_of(recorded, "bias").view<float, 1>();
  ASSERT_EQ(tally(judge("biased_topk_torch", recorded), "ids").exact, 4u);
  // The worst of the four and one that is left out become the same.
  const auto key = [&](std::int32_t e) { return 1 / (1 + std::exp(-logits(0, e))) + bias(e); };
  std::set<std::int32_t> chosen;
  std::int32_t worst = ids(0, 0);
  for (std::int64_t slot = 0; slot < 4; ++slot) {
    chosen.insert(ids(0, slot));
    if (key(ids(0, slot)) < key(worst)) worst = ids(0, slot);
  }
  std::int32_t left_out = 0;
  while (chosen.contains(left_out)) ++left_out;
  logits(0, left_out) = logits(0, worst);
  bias(left_out) = bias(worst);
  const RunResult result = judge("biased_topk_torch", recorded);
  const OutputTally tied = tally(result, "ids");
  EXPECT_EQ(tied.exact, 3u);
  EXPECT_EQ(tied.undecided, 1u);
  EXPECT_EQ(tied.elements, 4u);
  EXPECT_EQ(result.verdict, Verdict::kAllowed) << "it is not proved to have our bits";
}

// Weights go through some eight roundings; 1e-5 is 84 places.
TEST(Judges, EveryWeightThatIsOffIsWrong) {
  Recording exact = load("moe_route");
  for (RecordedCase& recorded : exact.cases) {
    const OutputTally before = tally(judge("moe_route", recorded), "weights");
    const std::uint64_t judged = before.elements - before.undecided;
    auto weights = output_of(recorded, "weights").view<double, 2>();
    for (std::int64_t row = 0; row < weights.dim(0); ++row)
      for (std::int64_t slot = 0; slot < 4; ++slot) weights(row, slot) *= 1.00001;
    EXPECT_EQ(tally(judge("moe_route", recorded), "weights").wrong, judged) << recorded.title;
  }
  Recording torch = load("biased_topk_torch");
  for (RecordedCase& recorded : torch.cases) {
    const OutputTally before = tally(judge("biased_topk_torch", recorded), "weights");
    const std::uint64_t judged = before.elements - before.undecided;
    auto weights = output_of(recorded, "weights").view<float, 2>();
    for (std::int64_t row = 0; row < weights.dim(0); ++row)
      for (std::int64_t slot = 0; slot < 4; ++slot) weights(row, slot) *= 1.00001f;
    EXPECT_EQ(tally(judge("biased_topk_torch", recorded), "weights").wrong, judged)
        << recorded.title;
  }
}

// M11, M12: the recording has a factor of 2.
TEST(Judges, AFactorThatIsMissingOrThereTwiceIsWrong) {
  for (const double factor : {0.5, 2.0}) {
    Recording recording = load("moe_route");
    RecordedCase& recorded = recording.cases.at(7);
    auto weights = output_of(recorded, "weights").view<double, 2>();
    for (std::int64_t row = 0; row < weights.dim(0); ++row)
      for (std::int64_t slot = 0; slot < 4; ++slot) weights(row, slot) *= factor;
    EXPECT_EQ(tally(judge("moe_route", recorded), "weights").wrong, 44u);
  }
}

TEST(Judges, AGapOfAnotherRowIsWrong) {
  Recording recording = load("moe_route");
  RecordedCase& recorded = recording.cases.at(7);
  auto gaps = output_of(recorded, "fourth_fifth_gap").view<double, 1>();
  std::swap(gaps(0), gaps(1));
  EXPECT_EQ(tally(judge("moe_route", recorded), "fourth_fifth_gap").wrong, 2u);
}

}  // namespace
}  // namespace monoref
