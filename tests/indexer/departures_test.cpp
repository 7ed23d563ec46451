// Each departure of reference/spec/departures.md, with the original's value and with ours, worked
// out by hand from the original's text.
#include <gtest/gtest.h>

#include "reference/stages/glm5next_indexer.hpp"
#include "tests/indexer/batch.hpp"

namespace monoref {
namespace {

constexpr LengthRule kRules[] = {LengthRule::kAsSeed, LengthRule::kClamped};

IndexerConfig config_of(LengthRule rule) {
  IndexerConfig config;
  config.max_model_len = 128;  // two blocks, and eight columns to spare
  config.max_num_batched_tokens = 16;
  config.lengths = rule;
  return config;
}

/// A step, and what it points into.
struct Built {
  IndexerConfig config;
  OwnedBatch owned;
  IndexerBuffers buffers;
  IndexerMetadata metadata;

  Built(const IndexerConfig& given, OwnedBatch batch)
      : config(given),
        owned(std::move(batch)),
        buffers(config),
        metadata(indexer_metadata_build(config, buffers, owned.batch())) {}

  std::vector<std::int64_t> lengths_shape() const {
    return {metadata.decode->seq_lens.dim(0), metadata.decode->seq_lens.dim(1)};
  }
};

std::string refused(const IndexerConfig& config, const OwnedBatch& owned) {
  IndexerBuffers buffers(config);
  return refusal_of([&] { indexer_metadata_build(config, buffers, owned.batch()); });
}

TEST(Departures, PlainLengthsUnderCompressionAreOneATokenInTheOriginal) {
  for (const std::int32_t empty : {0, 1, 2}) {
    Ints queries{1, 1, 1};
    queries[static_cast<std::size_t>(empty)] = 0;
    IndexerConfig config = config_of(LengthRule::kAsSeed);
    config.compress_ratio = 2;
    const Built original(config, OwnedBatch(queries, {10, 7, 12}, 4));
    EXPECT_EQ(values_of(original.metadata.decode->seq_lens), (Ints{5, 3})) << empty;
    EXPECT_EQ(values_of(original.metadata.decode->decode_lens), queries) << empty;
    config.lengths = LengthRule::kClamped;
    const Built ours(config, OwnedBatch(queries, {10, 7, 12}, 4));
    EXPECT_EQ(values_of(ours.metadata.decode->seq_lens), (Ints{5, 3, 6})) << empty;
  }
}

TEST(Departures, ADecodeWithoutATokenHasNoLengthInTheOriginal) {
  IndexerConfig config = config_of(LengthRule::kAsSeed);
  config.compress_ratio = 2;
  EXPECT_EQ(Built(config, OwnedBatch({0}, {9}, 4)).lengths_shape(),
            (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(Built(config, OwnedBatch({1, 0}, {9, 9}, 4)).lengths_shape(),
            (std::vector<std::int64_t>{1, 1}));
  config.lengths = LengthRule::kClamped;
  EXPECT_EQ(Built(config, OwnedBatch({0}, {9}, 4)).lengths_shape(),
            (std::vector<std::int64_t>{1, 1}));
  EXPECT_EQ(Built(config, OwnedBatch({1, 0}, {9, 9}, 4)).lengths_shape(),
            (std::vector<std::int64_t>{2, 1}));
}

TEST(Departures, ThePlainPathOfAFlatteningDeviceIsNoOther) {
  IndexerConfig config = config_of(LengthRule::kAsSeed);
  config.compress_ratio = 4;
  config.num_speculative_tokens = 2;  // next_n is 3: flattened outside family 100
  const Built original(config, OwnedBatch({0, 1, 1}, {9, 21, 33}, 4, 0));
  EXPECT_EQ(original.metadata.decode->path, DecodePath::kPlain);
  EXPECT_EQ(values_of(original.metadata.decode->seq_lens), (Ints{2, 5}));
}

TEST(Departures, PaddingTokensMakeLengthsOfZeroUnderEitherRule) {
  for (const LengthRule rule : kRules) {
    IndexerConfig config = config_of(rule);
    config.compress_ratio = 2;
    const Built step(config, OwnedBatch({1, 1}, {8, 6}, 4, 2));
    EXPECT_EQ(values_of(step.metadata.decode->seq_lens), (Ints{4, 3, 0, 0}));
  }
}

TEST(Departures, TokensOfAnEmptyBatchAreDecodeTokensInTheOriginal) {
  const Built original(config_of(LengthRule::kAsSeed), OwnedBatch({}, {}, 4, 2));
  EXPECT_EQ(original.metadata.split, (DecodePrefillSplit{0, 0, 2, 0}));
  EXPECT_FALSE(original.metadata.decode);
  const Built ours(config_of(LengthRule::kClamped), OwnedBatch({}, {}, 4, 2));
  EXPECT_EQ(ours.metadata.split, (DecodePrefillSplit{0, 0, 0, 0}));
}

TEST(Departures, ASplitThatLosesRequestsOrTokensIsAMismatch) {
  const auto mismatch = [](const DecodePrefillSplit& split, std::int64_t requests,
                           std::int64_t tokens) {
    return refusal_of([&] { check_split("builder", split, requests, tokens); });
  };
  EXPECT_EQ(mismatch({2, 1, 4, 9}, 3, 13), "");
  EXPECT_EQ(mismatch({2, 1, 4, 9}, 4, 13),
            "builder: split mismatch: 2 decodes and 1 prefills, must be 4 requests together");
  EXPECT_EQ(mismatch({2, 1, 4, 9}, 3, 12),
            "builder: split mismatch: 4 decode tokens and 9 prefill tokens, must be 12 together");
}

TEST(Departures, AUniformTableWiderThanTheBufferLosesColumnsInTheOriginal) {
  for (const std::int64_t width : {9, 10, 11, 12}) {
    IndexerConfig config = config_of(LengthRule::kAsSeed);
    config.num_speculative_tokens = 2;
    const Built original(config, OwnedBatch({2, 2}, {50, 60}, width));
    ASSERT_EQ(original.metadata.decode->path, DecodePath::kFlattenUniform);
    const auto table = original.metadata.decode->block_table;
    ASSERT_EQ(table.dim(1), 10) << width;
    for (std::int64_t row = 0; row < 4; ++row)
      for (std::int64_t column = 0; column < 10; ++column)
        EXPECT_EQ(table(row, column), column < width ? 1000 * (row / 2 + 1) + column : 0);
    EXPECT_EQ(original.buffers.expanded_width, 10);
    config.lengths = LengthRule::kClamped;
    const Built ours(config, OwnedBatch({2, 2}, {50, 60}, width));
    EXPECT_EQ(ours.metadata.decode->block_table.dim(1), std::max<std::int64_t>(width, 10));
  }
}

TEST(Departures, ARaggedTableWiderThanTheBufferGrowsUnderEitherRule) {
  for (const LengthRule rule : kRules) {
    IndexerConfig config = config_of(rule);
    config.num_speculative_tokens = 2;
    const Built step(config, OwnedBatch({2, 1}, {50, 60}, 12));
    ASSERT_EQ(step.metadata.decode->path, DecodePath::kFlattenRagged);
    EXPECT_EQ(step.metadata.decode->block_table.dim(1), 12);
    EXPECT_EQ(step.metadata.decode->block_table(2, 11), 2011);
  }
}

TEST(Departures, TheMaximumOfNoLengthsIsAnErrorInTheOriginal) {
  IndexerConfig config = config_of(LengthRule::kAsSeed);
  config.num_speculative_tokens = 1;
  const OwnedBatch empty({0, 0}, {5, 6}, 4);
  EXPECT_EQ(refused(config, empty),
            "indexer_metadata_build: the 2 decodes have no query token, and the original's maximum "
            "of no length is an error");
  config.b12x.emplace();  // takes its bound from the batch
  EXPECT_EQ(Built(config, empty).metadata.decode->max_seq_len, 6);
  config.b12x.reset();
  config.compress_ratio = 2;
  EXPECT_EQ(Built(config, empty).metadata.decode->max_seq_len, 3);
  config.compress_ratio = 1;
  config.lengths = LengthRule::kClamped;
  EXPECT_EQ(Built(config, empty).metadata.decode->max_seq_len, 0);
}

TEST(Departures, PrefillsNeedTheirUpperBoundInTheOriginal) {
  IndexerConfig config = config_of(LengthRule::kAsSeed);
  const OwnedBatch owned({1, 5}, {40, 50}, 4);
  IndexerBatch batch = owned.batch();
  batch.seq_lens_cpu_upper_bound = {};
  IndexerBuffers buffers(config);
  EXPECT_EQ(refusal_of([&] { indexer_metadata_build(config, buffers, batch); }),
            "indexer_metadata_build: seq_lens_cpu_upper_bound is missing, the original demands it "
            "for 1 prefills");
  config.lengths = LengthRule::kClamped;
  const IndexerMetadata ours = indexer_metadata_build(config, buffers, batch);
  EXPECT_EQ(ours.prefill->at(0).shape.total_seq_lens, 50);
}

TEST(Departures, DecodesAloneNeedNoUpperBound) {
  const IndexerConfig config = config_of(LengthRule::kAsSeed);
  const OwnedBatch owned({1, 1}, {40, 50}, 4);
  IndexerBatch batch = owned.batch();
  batch.seq_lens_cpu_upper_bound = {};
  IndexerBuffers buffers(config);
  EXPECT_EQ(indexer_metadata_build(config, buffers, batch).decode->max_seq_len, 50);
}

TEST(Departures, ARatioOfZeroIsDividedByInTheOriginal) {
  IndexerConfig config = config_of(LengthRule::kAsSeed);
  config.compress_ratio = 0;
  const std::string begin =
      "indexer_metadata_build: compress_ratio is 0, limit 1: the original "
      "divides by it for ";
  EXPECT_EQ(refused(config, OwnedBatch({1, 5}, {40, 50}, 4)), begin + "prefills");
  EXPECT_EQ(refused(config, OwnedBatch({1, 1}, {40, 50}, 4)), "");
  config.context_parallel.world = 2;
  OwnedBatch local({1, 1}, {40, 50}, 4);
  EXPECT_EQ(refused(config, local), "");
  local.use_dcp_local = true;
  EXPECT_EQ(refused(config, local), begin + "local caches");
  config.lengths = LengthRule::kClamped;
  EXPECT_EQ(refused(config, local), "");
}

TEST(Departures, AChunkOfNothingIsAnErrorInTheOriginal) {
  const Longs keys{3, 0};
  const Longs queries{3, 0};
  PrefillChunkSplitInput input{view(keys), view(queries), 2, 400, 5};
  EXPECT_EQ(refusal_of([&] { prefill_chunk_split(input); }),
            "prefill_chunk_split: requests 6 to 7 have neither a query nor a key, and the original "
            "cannot cut them in steps of 0 queries");
  input.lengths = LengthRule::kClamped;
  EXPECT_EQ(prefill_chunk_split(input), (std::vector<PrefillChunk>{{5, 6, 0, 3}}));
  const Longs some{3, 2};  // keys without queries are no error: the step is 1 or more
  const PrefillChunkSplitInput served{view(some), view(queries), 2, 400, 5};
  EXPECT_EQ(prefill_chunk_split(served), (std::vector<PrefillChunk>{{5, 6, 0, 3}}));
}

/// A chunk of one request with so many queries and keys, and what its queries score.
struct ShortChunk {
  Ints starts;
  Ints lengths;
  PrefillChunkMetadataInput input;

  ShortChunk(std::int32_t queries, std::int32_t keys, std::int64_t ratio, ContextParallel sharing)
      : starts{0, queries}, lengths{keys} {
    input = {.query_start_loc = view(starts),
             .seq_lens = view(lengths),
             .chunk = {0, 1, 0, queries},
             .compress_ratio = ratio,
             .context_parallel = sharing};
  }
  Ints ends() {
    input.lengths = LengthRule::kAsSeed;
    const PrefillChunkShape shape = prefill_chunk_shape(input);
    const auto queries = static_cast<std::size_t>(shape.token_end);
    Ints first(queries);
    Ints last(queries);
    Ints sums(2);
    Ints names(static_cast<std::size_t>(shape.total_seq_lens));
    prefill_chunk_metadata(input, {view(first), view(last), view(sums), view(names)});
    EXPECT_EQ(first, Ints(queries, 0));
    EXPECT_EQ(sums[1], shape.total_seq_lens);
    return last;
  }
};

TEST(Departures, AQueryBeforeItsSequenceEndsBeforeItsKeysInTheOriginal) {
  // Five queries of a sequence of two keys see -2, -1, 0, 1 and 2 of them.
  EXPECT_EQ(ShortChunk(5, 2, 1, {}).ends(), (Ints{-2, -1, 0, 1, 2}));
  EXPECT_EQ(ShortChunk(5, 2, 2, {}).ends(), (Ints{-1, 0, 0, 0, 1}));  // towards 0
  EXPECT_EQ(ShortChunk(5, 2, 1, {2, 0, 1}).ends(), (Ints{-1, 0, 0, 1, 1}));
  EXPECT_EQ(ShortChunk(5, 2, 1, {2, 1, 1}).ends(), (Ints{-1, 0, 0, 0, 1}));
  // -7 to 1 keys in runs of two on two ranks: rounds of four, towards 0.
  EXPECT_EQ(ShortChunk(9, 1, 1, {2, 0, 2}).ends(), (Ints{-2, -2, -2, -2, 0, 0, 0, 0, 1}));
  ShortChunk negative(5, -1, 1, {});
  negative.input.lengths = LengthRule::kAsSeed;
  EXPECT_EQ(refusal_of([&] { prefill_chunk_shape(negative.input); }),
            "prefill_chunk_metadata: seq_lens[0] is -1, must be at least 0");
  ShortChunk ours(5, 2, 1, {});
  EXPECT_EQ(
      refusal_of([&] { prefill_chunk_shape(ours.input); }),
      "prefill_chunk_metadata: seq_lens[0] is 2, must be at least 5, the tokens of its query");
  IndexerConfig config = config_of(LengthRule::kAsSeed);
  EXPECT_EQ(Built(config, OwnedBatch({5}, {2}, 4)).metadata.prefill->size(), 1u);
  config.lengths = LengthRule::kClamped;
  EXPECT_EQ(
      refused(config, OwnedBatch({5}, {2}, 4)),
      "prefill_chunk_metadata: seq_lens[0] is 2, must be at least 5, the tokens of its query");
}

TEST(Departures, NoRequestIsAnErrorInTheOriginalOfGlm5next) {
  const Ints none;
  Longs ids;
  EXPECT_EQ(refusal_of([&] { decode_scatter_indices({view(none), 0}, {view(ids), view(ids)}); }),
            "decode_scatter_indices: decode_lens has 0 requests, limit 1: the original raises an "
            "error");
  EXPECT_EQ(refusal_of([&] {
              decode_scatter_indices({view(none), 0, LengthRule::kClamped}, {view(ids), view(ids)});
            }),
            "");
}

}  // namespace
}  // namespace monoref
