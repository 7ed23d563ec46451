// The original's contract in the harness: recordings of its own text are judged under it, and the
// generators reach what departs from it.
#include <gtest/gtest.h>

#include <filesystem>

#include "fuzz/generator.hpp"
#include "fuzz/load_cases.hpp"
#include "fuzz/runner.hpp"
#include "fuzz/stages/indexer_content.hpp"

namespace monoref {
namespace {

const Contract kAsSeed = Contract::parse("mono,decode_lengths=as-seed");

TEST(AsSeed, RecordingsOfTheOriginalsTextAreItsContracts) {
  for (const std::string name :
       {"indexer_metadata", "indexer_metadata_b12x", "prefill_chunk_split", "glm5next_indexer"}) {
    const auto cases = load_cases(std::filesystem::path(MONOREF_RECORDED_DIR) / (name + ".h5"));
    ASSERT_FALSE(cases.empty()) << name;
    for (const Case& item : cases) EXPECT_EQ(item.contract, kAsSeed) << name << " " << item.title;
  }
  const auto rule =
      load_cases(std::filesystem::path(MONOREF_RECORDED_DIR) / "glm5next_expand_pools.h5");
  EXPECT_EQ(rule.at(0).contract, Contract{});  // a public rule, not the original's text
}

/// What a line's case comes to under the reference.
Outputs outputs_of_line(const std::string& line) {
  const CaseLine parsed = parse_line(line);
  const Case item = build_case(parsed);
  const Stage& stage = find_stage(parsed.stage);
  return run_reference(stage, item, stage.outputs(item));
}

std::vector<std::int64_t> lengths_shape(const std::string& line) {
  return numbers_of(output(outputs_of_line(line), "decode_seq_lens_shape"));
}

TEST(AsSeed, AnEmptyDecodeHasNoLength) {
  const std::string line =
      "stage=indexer_metadata_build;contract=mono,decode_lengths=as-seed;seed=1;compress_ratio=2;";
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(lengths_shape(line + "decodes=1;query_mix=all_empty"), (Shape{0, 1}));
  EXPECT_EQ(lengths_shape(line + "decodes=2;query_mix=last_empty"), (Shape{1, 1}));
  const std::string ours = "stage=indexer_metadata_build;contract=mono;seed=1;compress_ratio=2;";
  EXPECT_EQ(lengths_shape(ours + "decodes=1;query_mix=all_empty"), (Shape{1, 1}));
  EXPECT_EQ(lengths_shape(ours + "decodes=2;query_mix=last_empty"), (Shape{2, 1}));
}

TEST(AsSeed, TokensOfAnEmptyBatchAreDecodeTokens) {
  const auto tokens = [](const std::string& contract) {
    return number(outputs_of_line("stage=indexer_metadata_build;contract=" + contract +
                                  ";seed=1;decodes=0;padding_tokens=2"),
                  "num_decode_tokens");
  };
  EXPECT_EQ(tokens("mono,decode_lengths=as-seed"), 2);
  EXPECT_EQ(tokens("mono"), 0);
}

/// How often drawn steps of the original come to what it has otherwise than ours.
struct Reached {
  int fewer_lengths = 0, tokens_of_nobody = 0, lost_columns = 0, refused = 0;

  void add(const Case& item, const Outputs& out) {
    const std::int64_t decodes = number(out, "num_decodes");
    const auto shape = numbers_of(output(out, "decode_seq_lens_shape"));
    fewer_lengths += decodes > 0 && shape[1] == 1 && shape[0] < decodes;
    tokens_of_nobody +=
        decodes + number(out, "num_prefills") == 0 && number(out, "num_decode_tokens") > 0;
    lost_columns +=
        decodes > 0 && output(out, "decode_block_table").dim(1) < item.input("block_table").dim(1);
  }
};

TEST(AsSeed, GeneratorsReachTheDepartures) {
  const Stage& stage = find_stage("indexer_metadata_build");
  Reached reached;
  for (std::uint64_t index = 0; index < 1500; ++index) {
    const Draw draw = draw_case(stage, 5, index, kAsSeed);
    const Case item = build_case(stage, draw.params, kAsSeed, draw.seed);
    try {
      reached.add(item, run_reference(stage, item, stage.outputs(item)));
    } catch (const Refusal& refusal) {
      EXPECT_NE(item.word("defect"), "none") << item.line << ": " << refusal.what();
      ++reached.refused;
    }
  }
  EXPECT_GT(reached.fewer_lengths, 10);
  EXPECT_GT(reached.tokens_of_nobody, 10);
  EXPECT_GT(reached.lost_columns, 5);
  EXPECT_GT(reached.refused, 10);  // with their planted defects alone
}

TEST(AsSeed, DecodeExpansionsLoseColumnsToo) {
  const std::string line =
      "stage=decode_expand;contract=mono,decode_lengths=as-seed;seed=1;requests=2;q_len=2;width=9;"
      "missing_columns=3";
  EXPECT_EQ(output(outputs_of_line(line), "decode_block_table").dim(1), 6);
}

}  // namespace
}  // namespace monoref
