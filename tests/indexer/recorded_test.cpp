// The reference against the five recordings of the indexer stages: every case, every output, every
// bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "golden/recording.hpp"
#include "tests/indexer/recorded_stages.hpp"

namespace monoref {
namespace {

Recording recording(const std::string& name) {
  return read_recording(std::filesystem::path(MONOREF_RECORDED_DIR) / (name + ".h5"));
}

/// Empty where the tensors have the same type, dims and bits; otherwise what differs first.
std::string difference(const Tensor& expected, const Tensor& got) {
  if (expected.type() != got.type())
    return fmt::format("type {} instead of {}", dtype_name(got.type()),
                       dtype_name(expected.type()));
  if (expected.dims() != got.dims())
    return fmt::format("dims [{}] instead of [{}]", fmt::join(got.dims(), ", "),
                       fmt::join(expected.dims(), ", "));
  const auto left = expected.image();
  const auto right = got.image();
  const auto at = std::mismatch(left.begin(), left.end(), right.begin()).first - left.begin();
  if (at == static_cast<std::ptrdiff_t>(left.size())) return "";
  return fmt::format("element {} differs", static_cast<std::size_t>(at) / expected.element_size());
}

/// Every recorded tensor was produced, bit for bit, and nothing else.
template <class Comparable>
void expect_tensors(const RecordedCase& recorded, const StageOutputs& outputs,
                    Comparable comparable) {
  std::set<std::string> produced;
  for (const NamedTensor& output : outputs.tensors) {
    produced.insert(output.name);
    ASSERT_NE(recorded.find_output(output.name), nullptr)
        << recorded.title << ": " << output.name << " was not recorded";
    EXPECT_EQ(difference(comparable(output.name), output.tensor), "")
        << recorded.title << ": " << output.name;
  }
  for (const NamedTensor& output : recorded.outputs)
    EXPECT_TRUE(produced.contains(output.name))
        << recorded.title << ": " << output.name << " was not produced";
}

void expect_tensors(const RecordedCase& recorded, const StageOutputs& outputs) {
  expect_tensors(recorded, outputs, [&](const std::string& name) { return recorded.output(name); });
}

/// Every recorded scalar that is no parameter was produced with its value, and nothing else.
template <class IsParameter>
void expect_scalars(const RecordedCase& recorded, const StageOutputs& outputs,
                    IsParameter is_parameter) {
  std::set<std::string> produced;
  for (const NamedInteger& scalar : outputs.scalars) {
    produced.insert(scalar.name);
    ASSERT_NE(recorded.find_scalar(scalar.name), nullptr)
        << recorded.title << ": " << scalar.name << " was not recorded";
    EXPECT_EQ(recorded.integer(scalar.name), scalar.value) << recorded.title << ": " << scalar.name;
  }
  for (const NamedScalar& scalar : recorded.scalars)
    EXPECT_TRUE(is_parameter(scalar.name) || produced.contains(scalar.name))
        << recorded.title << ": " << scalar.name << " was not produced";
}

void expect_indexer_recording(const std::string& name, std::size_t cases) {
  const Recording file = recording(name);
  EXPECT_EQ(file.stage, name);
  ASSERT_EQ(file.cases.size(), cases);
  for (const RecordedCase& recorded : file.cases) {
    const RecordedIndexerInput input = indexer_input(recorded);
    IndexerBuffers buffers(input.config);
    const IndexerMetadata metadata = indexer_metadata_build(input.config, buffers, input.batch);
    const StageOutputs outputs = indexer_outputs(input.config, input.batch, metadata);
    expect_scalars(recorded, outputs, is_indexer_parameter);
    expect_tensors(recorded, outputs, [&](const std::string& output) {
      return comparable_indexer_output(recorded, output);
    });
  }
}

TEST(Recorded, IndexerMetadata) {
  expect_indexer_recording("indexer_metadata", 93);
}

TEST(Recorded, IndexerMetadataB12x) {
  expect_indexer_recording("indexer_metadata_b12x", 24);
}

TEST(Recorded, PrefillChunkSplit) {
  const Recording file = recording("prefill_chunk_split");
  ASSERT_EQ(file.cases.size(), 91U);
  for (const RecordedCase& recorded : file.cases)
    expect_tensors(recorded, prefill_chunk_split_outputs(
                                 prefill_chunk_split(prefill_chunk_split_input(recorded))));
}

TEST(Recorded, Glm5nextIndexer) {
  const Recording file = recording("glm5next_indexer");
  ASSERT_EQ(file.cases.size(), 99U);
  for (const RecordedCase& recorded : file.cases) {
    const StageOutputs outputs = run_glm5next_indexer(recorded);
    expect_tensors(recorded, outputs);
    expect_scalars(recorded, outputs, [](const std::string& name) { return name != "filled"; });
  }
}

TEST(Recorded, Glm5nextExpandPools) {
  const Recording file = recording("glm5next_expand_pools");
  ASSERT_EQ(file.cases.size(), 24U);
  for (const RecordedCase& recorded : file.cases)
    expect_tensors(recorded, run_expand_pools(recorded));
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
    EXPECT_EQ(difference(tokens, unpacked), "") << recorded.title;
    ragged += recorded.integer("requires_padding");
  }
  EXPECT_GT(ragged, 0);
}

/// Behind the columns of the source table the original has whatever lay there; the reference has 0.
TEST(Recorded, ExpandedColumnsBehindTheSourceTableAreZero) {
  std::int64_t columns = 0;
  for (const RecordedCase& recorded : recording("indexer_metadata").cases) {
    const RecordedIndexerInput input = indexer_input(recorded);
    IndexerBuffers buffers(input.config);
    const IndexerMetadata metadata = indexer_metadata_build(input.config, buffers, input.batch);
    if (!metadata.decode) continue;
    const auto& table = metadata.decode->block_table;
    for (std::int64_t row = 0; row < table.dim(0); ++row) {
      for (std::int64_t at = input.batch.block_table.dim(1); at < table.dim(1); ++at, ++columns)
        EXPECT_EQ(table(row, at), 0) << recorded.title;
    }
    EXPECT_EQ(table.dim(1), recorded.output("decode_block_table").dim(1)) << recorded.title;
  }
  EXPECT_GT(columns, 0);
}

}  // namespace
}  // namespace monoref
