// The five recordings of the indexer stages: every case and every recorded output, on the reference
// and, where there is a kernel, on the host backend at both waves.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "fuzz/runner.hpp"
#include "golden/recording.hpp"
#include "reference/stages/glm5next_indexer.hpp"

namespace monoref {
namespace {

Recording recording(const std::string& name) {
  return read_recording(std::filesystem::path(MONOREF_RECORDED_DIR) / (name + ".h5"));
}

struct Tallies {
  std::int64_t by_reference = 0;  ///< elements compared
  std::int64_t by_kernels = 0;    ///< cases that a wave ran
};

/// Judges every case of a recording on both waves.
Tallies judge_recording(const std::string& name, std::size_t cases) {
  const Recording file = recording(name);
  EXPECT_EQ(file.stage, name);
  EXPECT_EQ(file.cases.size(), cases);
  const Stage* stage = stage_for_recording(name);
  KernelRunner wave64(device::make_host_backend(64));
  KernelRunner wave32(device::make_host_backend(32));
  Tallies tallies;
  for (const RecordedCase& recorded : file.cases) {
    Case item = stage->adopt(file, recorded);
    item.stage = stage->name;
    const CaseResult result =
        judge_case(*stage, item, {.runners = {&wave64, &wave32}, .properties = true});
    EXPECT_EQ(result.verdict(), Verdict::kExact)
        << recorded.title << ": " << result.decisive()->runner;
    for (const RunResult& run : result.runs) {
      tallies.by_kernels += run.wave != 0;
      for (const OutputTally& tally : run.outputs)
        tallies.by_reference += run.wave == 0 ? static_cast<std::int64_t>(tally.elements) : 0;
    }
  }
  return tallies;
}

/// Elements that a recording holds as outputs.
std::int64_t recorded_elements(const std::string& name) {
  std::int64_t elements = 0;
  for (const RecordedCase& recorded : recording(name).cases)
    for (const NamedTensor& tensor : recorded.outputs)
      elements += tensor.tensor.layout().elements();
  return elements;
}

TEST(Recorded, IndexerMetadata) {
  // All are run, for the chunks are the kernels' even where a step has none.
  EXPECT_EQ(judge_recording("indexer_metadata", 93).by_kernels, 2 * 93);
}

TEST(Recorded, IndexerMetadataB12x) {
  EXPECT_EQ(judge_recording("indexer_metadata_b12x", 24).by_kernels, 2 * 24);
}

TEST(Recorded, PrefillChunkSplit) {
  const Tallies tallies = judge_recording("prefill_chunk_split", 91);
  EXPECT_EQ(tallies.by_reference, recorded_elements("prefill_chunk_split"));
  EXPECT_EQ(tallies.by_kernels, 0);
}

TEST(Recorded, Glm5nextIndexer) {
  const Tallies tallies = judge_recording("glm5next_indexer", 99);
  // The scalar `filled` of 95 cases is an output too; the other 4 cases are workspace shapes.
  EXPECT_EQ(tallies.by_reference, recorded_elements("glm5next_indexer") + 95);
  EXPECT_EQ(tallies.by_kernels, 2 * 95);
}

TEST(Recorded, Glm5nextExpandPools) {
  const Tallies tallies = judge_recording("glm5next_expand_pools", 24);
  EXPECT_EQ(tallies.by_reference, recorded_elements("glm5next_expand_pools"));
  EXPECT_EQ(tallies.by_kernels, 2 * 24);
}

/// Elements and scalars of a recorded builder case that are outputs, counted by the recorded names.
std::int64_t recorded_builder_outputs(const RecordedCase& recorded) {
  static const std::set<std::string> parameters{
      "block_size",     "compress_ratio",         "cp_interleave",          "dcp_rank",
      "dcp_world_size", "device_family",          "max_logits_mb",          "max_model_len",
      "max_num_seqs",   "max_num_batched_tokens", "num_speculative_tokens", "storage_block_size",
      "use_dcp_local",  "supertile_k_setting"};
  std::int64_t outputs = 0;
  for (const NamedScalar& scalar : recorded.scalars)
    // The number of chunks is the extent of their outputs.
    outputs += !parameters.contains(scalar.name) && scalar.name != "prefill_chunks";
  const std::int64_t source_width = recorded.input("block_table").dim(1);
  for (const NamedTensor& tensor : recorded.outputs)
    outputs += tensor.name == "decode_block_table" ? tensor.tensor.dim(0) * source_width
                                                   : tensor.tensor.layout().elements();
  // The lengths are kept flat, and their two dims beside them.
  return outputs + (recorded.find_output("decode_seq_lens") != nullptr ? 2 : 0);
}

/// Nothing that the builder's recordings hold is left uncompared.
TEST(Recorded, EveryOutputOfTheBuilderIsCompared) {
  for (const char* name : {"indexer_metadata", "indexer_metadata_b12x"}) {
    const Recording file = recording(name);
    const Stage* stage = stage_for_recording(name);
    for (const RecordedCase& recorded : file.cases) {
      const Case item = stage->adopt(file, recorded);
      std::int64_t elements = 0;
      const CaseResult result = judge_case(*stage, item, {});
      for (const OutputTally& tally : result.runs.at(0).outputs)
        elements += static_cast<std::int64_t>(tally.elements);
      EXPECT_EQ(elements, recorded_builder_outputs(recorded)) << name << " " << recorded.title;
    }
  }
}

TEST(Recorded, AnUnknownNameIsRefused) {
  Recording file = recording("indexer_metadata");
  file.cases[0].scalars.push_back({"decode_new_output", std::int64_t{1}});
  EXPECT_THROW(stage_for_recording("indexer_metadata")->adopt(file, file.cases[0]), Refusal);
}

/// The grid's live places hold the recorded tokens again after unpacking.
TEST(Recorded, UnpackingInvertsTheRecordedGrids) {
  std::int64_t ragged = 0;
  for (const RecordedCase& recorded : recording("glm5next_indexer").cases) {
    if (recorded.find_scalar("kind") != nullptr) continue;
    const Tensor& tokens = recorded.input("tokens");
    Tensor unpacked(DType::kFloat32, Layout::dense(tokens.dims()));
    gather_decode_tokens_by_request<float>({recorded.input("decode_lens").view<std::int32_t, 1>(),
                                            recorded.output("scattered").view<float, 3>()},
                                           unpacked.view<float, 2>());
    EXPECT_EQ(tokens.image(), unpacked.image()) << recorded.title;
    ragged += recorded.integer("requires_padding");
  }
  EXPECT_GT(ragged, 0);
}

/// Behind the columns of the source table the original has whatever lay there; the stage has 0, and
/// as many columns as were recorded.
TEST(Recorded, ExpandedColumnsBehindTheSourceTableAreZero) {
  const Recording file = recording("indexer_metadata");
  const Stage* stage = stage_for_recording("indexer_metadata");
  std::int64_t columns = 0;
  for (const RecordedCase& recorded : file.cases) {
    if (recorded.find_output("decode_block_table") == nullptr) continue;
    const Case item = stage->adopt(file, recorded);
    const Outputs outputs = run_reference(*stage, item, stage->outputs(item));
    const Tensor& table = output(outputs, "decode_block_table");
    const auto ids = table.view<std::int32_t, 2>();
    for (std::int64_t row = 0; row < table.dim(0); ++row)
      for (std::int64_t at = recorded.input("block_table").dim(1); at < table.dim(1);
           ++at, ++columns)
        EXPECT_EQ(ids(row, at), 0) << recorded.title;
    EXPECT_EQ(table.dim(1), recorded.output("decode_block_table").dim(1)) << recorded.title;
  }
  EXPECT_GT(columns, 0);
}

}  // namespace
}  // namespace monoref
