// The bug cases of this family, by their ids, with the right values of the bug collection.
#include <gtest/gtest.h>

#include "reference/stages/compressed_slot_mapping.hpp"
#include "reference/stages/context_parallel_lengths.hpp"
#include "reference/stages/decode_expand.hpp"
#include "reference/stages/glm5next_indexer.hpp"
#include "reference/stages/indexer_metadata_build.hpp"
#include "reference/stages/prefill_chunk_metadata.hpp"
#include "reference/stages/prefill_chunk_split.hpp"
#include "tests/indexer/batch.hpp"

namespace monoref {
namespace {

IndexerConfig flattening_config() {
  IndexerConfig config;
  config.max_model_len = 256;
  config.max_num_batched_tokens = 256;
  config.num_speculative_tokens = 2;
  config.device_family = 90;
  return config;
}

/// The request of each expanded row, read from its table row.
Ints requests_of(const Expanded& expanded) {
  Ints requests;
  for (std::int64_t row = 0; row < expanded.shape.rows; ++row)
    requests.push_back(expanded.table_row(row)[0] / 1000 - 1);
  return requests;
}

DecodeExpandInput flatten_input(const Ints& query_start_loc, const Ints& seq_lens,
                                const Table& table) {
  return {.query_start_loc = view(query_start_loc),
          .seq_lens = view(seq_lens),
          .block_table = table.view(),
          .num_decode_tokens = query_start_loc.back(),
          .next_n = 3,
          .use_flattening = true};
}

TEST(BugCaseT03, RaggedQueriesWhoseSumDividesAreNotUniform) {
  const Ints query_lens{1, 2, 3};
  const Ints query_start_loc = prefix_sums(query_lens);
  const Ints seq_lens{10, 20, 30};
  const Table table(3, 2);
  const Expanded expanded = expand(flatten_input(query_start_loc, seq_lens, table));
  EXPECT_EQ(expanded.shape.path, DecodePath::kFlattenRagged);
  EXPECT_EQ(requests_of(expanded), (Ints{0, 1, 1, 2, 2, 2}));
  EXPECT_EQ(expanded.seq_lens, (Ints{10, 19, 20, 28, 29, 30}));
}

TEST(BugCaseT03, RaggedQueriesThatDoNotDivide) {
  const Ints query_lens{2, 1, 2, 1, 1, 1};
  const Ints query_start_loc = prefix_sums(query_lens);
  const Ints seq_lens{10, 20, 30, 40, 50, 60};
  const Table table(6, 2);
  const Expanded expanded = expand(flatten_input(query_start_loc, seq_lens, table));
  EXPECT_EQ(requests_of(expanded), (Ints{0, 0, 1, 2, 2, 3, 4, 5}));
  EXPECT_EQ(expanded.seq_lens, (Ints{9, 10, 20, 29, 30, 40, 50, 60}));
}

TEST(BugCaseT03, PackingThenUnpackingIsTheIdentity) {
  for (const Ints& query_lens : {Ints{1, 2, 3}, Ints{2, 1, 2, 1, 1, 1}, Ints{0, 4, 0, 2}}) {
    const std::int64_t requests = static_cast<std::int64_t>(query_lens.size());
    const std::int64_t tokens = prefix_sums(query_lens).back();
    Longs packed(static_cast<std::size_t>(tokens * 2));
    for (std::size_t at = 0; at < packed.size(); ++at)
      packed[at] = 100 + static_cast<std::int64_t>(at);
    const View<const std::int64_t, 2> rows{packed.data(), {tokens, 2}, {2, 1}};

    Longs grid(static_cast<std::size_t>(requests * 4 * 2), -999);
    const View<std::int64_t, 3> scattered{grid.data(), {requests, 4, 2}, {8, 2, 1}};
    scatter_decode_tokens_by_request<std::int64_t>({view(query_lens), rows, -1}, scattered);
    Longs unpacked(packed.size(), -999);
    gather_decode_tokens_by_request<std::int64_t>(
        {view(query_lens), scattered}, View<std::int64_t, 2>{unpacked.data(), {tokens, 2}, {2, 1}});
    EXPECT_EQ(unpacked, packed);
  }
}

TEST(BugCaseT03, TheSplitLooksAtEveryQuery) {
  const Ints query_start_loc = prefix_sums({1, 2, 3});
  const DecodePrefillSplit split = decode_prefill_split({.query_start_loc = view(query_start_loc),
                                                         .num_tokens = 6,
                                                         .decode_threshold = 3,
                                                         .require_uniform = true});
  EXPECT_EQ(split, (DecodePrefillSplit{1, 2, 1, 5}));
}

TEST(BugCaseT05, NativeLengthsAreContiguousBelowTheFullQueryLength) {
  IndexerConfig config = flattening_config();
  config.device_family = 100;
  IndexerBuffers buffers(config);
  const OwnedBatch owned({2, 2}, {9, 6}, 4);
  const IndexerMetadata metadata = indexer_metadata_build(config, buffers, owned.batch());
  ASSERT_EQ(metadata.decode->path, DecodePath::kNative);
  const std::int32_t* seen = metadata.decode->seq_lens.data();
  EXPECT_EQ(Ints(seen, seen + 4), (Ints{8, 9, 5, 6}));
}

TEST(BugCaseT05, StridedViewsGiveTheSameAnswer) {
  const Ints query_start_loc{0, 2, 4};
  const Ints seq_lens{9, 6};
  const Ints wide_starts = spread(query_start_loc, 3);
  const Ints wide_lengths = spread(seq_lens, 2);
  const Table table(2, 3);
  const Table wide_table(2, 3, 7);
  DecodeExpandInput dense = flatten_input(query_start_loc, seq_lens, table);
  dense.use_flattening = false;
  DecodeExpandInput strided = dense;
  strided.query_start_loc = {wide_starts.data(), {3}, {3}};
  strided.seq_lens = {wide_lengths.data(), {2}, {2}};
  strided.block_table = wide_table.view();

  const Expanded from_dense = expand(dense);
  const Expanded from_strided = expand(strided);
  EXPECT_EQ(from_dense.seq_lens, (Ints{8, 9, 5, 6}));
  EXPECT_EQ(from_strided.seq_lens, from_dense.seq_lens);
  EXPECT_EQ(from_strided.table, from_dense.table);

  // Into rows of three, as a slice of a [2, next_n] buffer has them: the third column is not ours.
  Ints buffer(6, -999);
  Ints decode_lens(2);
  decode_expand(strided, {{buffer.data(), {2, 2}, {3, 1}}, view(decode_lens), {}});
  EXPECT_EQ(buffer, (Ints{8, 9, -999, 5, 6, -999}));
}

TEST(BugCaseT06, CompressedLengthsKeepTheirAddressWhenTheQueryShrinks) {
  IndexerConfig config = flattening_config();
  config.compress_ratio = 4;
  IndexerBuffers buffers(config);
  const OwnedBatch first({2, 2}, {42, 81}, 4);
  const IndexerMetadata step_1 = indexer_metadata_build(config, buffers, first.batch());
  const std::int32_t* captured = step_1.decode->seq_lens.data();
  EXPECT_EQ(Ints(captured, captured + 4), (Ints{10, 10, 20, 20}));

  const OwnedBatch second({1, 1}, {43, 84}, 4);
  const IndexerMetadata step_2 = indexer_metadata_build(config, buffers, second.batch());
  EXPECT_EQ(step_2.decode->seq_lens.data(), captured);
  EXPECT_EQ(Ints(captured, captured + 4), (Ints{10, 21, 0, 0}));
}

TEST(BugCaseT08, ADestinationNarrowerThanTheSourceIsRefused) {
  for (const Ints& query_lens : {Ints{2, 2}, Ints{2, 1}}) {
    const Ints query_start_loc = prefix_sums(query_lens);
    const Ints seq_lens{10, 7};
    const Table table(2, 3);
    DecodeExpandInput input = flatten_input(query_start_loc, seq_lens, table);
    input.lengths = LengthRule::kClamped;
    EXPECT_EQ(
        refusal_of([&] { expand(input, -1); }),
        "decode_expand: decode_block_table has width 2, must have at least 3 as block_table has");
  }
}

TEST(BugCaseT08, EveryRowIsTheWholeSourceRowWhateverTheStrides) {
  for (const Ints& query_lens : {Ints{2, 2}, Ints{2, 1}}) {
    const Ints query_start_loc = prefix_sums(query_lens);
    const Ints seq_lens{10, 7};
    const Table table(2, 3, 5);
    const DecodeExpandInput input = flatten_input(query_start_loc, seq_lens, table);
    const std::int64_t rows = query_start_loc.back();
    Ints lengths(static_cast<std::size_t>(rows));
    Ints decode_lens(static_cast<std::size_t>(rows));
    Ints storage(static_cast<std::size_t>(rows * 8), -999);
    decode_expand(input, {{lengths.data(), {rows, 1}, {1, 1}},
                          view(decode_lens),
                          {storage.data(), {rows, 4}, {8, 1}}});
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int32_t block = row < 2 ? 1000 : 2000;
      const auto begin = storage.begin() + row * 8;
      EXPECT_EQ(Ints(begin, begin + 8),
                (Ints{block, block + 1, block + 2, 0, -999, -999, -999, -999}));
    }
  }
}

TEST(BugCaseT08, TheBuilderGrowsItsTableOnBothFlattenedPaths) {
  for (const Ints& query_lens : {Ints{2, 2}, Ints{2, 1}}) {
    IndexerConfig config = flattening_config();
    config.lengths = LengthRule::kClamped;
    IndexerBuffers buffers(config);
    ASSERT_EQ(buffers.expanded_width, 12);  // 256 / 64 and eight spare columns
    const OwnedBatch owned(query_lens, {100, 90}, 17);
    const IndexerMetadata metadata = indexer_metadata_build(config, buffers, owned.batch());
    EXPECT_EQ(buffers.expanded_width, 17);
    const auto& table = metadata.decode->block_table;
    EXPECT_EQ(row_of(table, 0), row_of(owned.table.view(), 0));
    EXPECT_EQ(row_of(table, 1), row_of(owned.table.view(), 0));
    EXPECT_EQ(row_of(table, 2), row_of(owned.table.view(), 1));
  }
}

TEST(BugCaseT09, PositionsBehindTheTableAreDroppedAndLengthsCapped) {
  const Ints query_start_loc{0, 3};
  const Ints seq_lens{34};
  const Table table(1, 2, 3);  // column 2 is there, and poison
  Longs slots(3, -999);
  compressed_slot_mapping({.query_start_loc = view(query_start_loc),
                           .seq_lens = view(seq_lens),
                           .block_table = table.view(),
                           .pages = {.storage_block_size = 16}},
                          {view(slots)});
  EXPECT_EQ(slots, (Longs{1001 * 16 + 15, -1, -1}));

  DecodeExpandInput input = flatten_input(query_start_loc, seq_lens, table);
  input.max_model_len = 32;
  EXPECT_EQ(expand(input).seq_lens, (Ints{32, 33, 34}));
  input.lengths = LengthRule::kClamped;
  EXPECT_EQ(expand(input).seq_lens, (Ints{32, 32, 32}));
  EXPECT_EQ(expand(input).table_row(2), (Ints{1000, 1001}));
}

TEST(BugCaseT12, TheStepFromTokenToTokenComesBeforeTheDivision) {
  const Ints query_start_loc{0, 2};
  const Ints seq_lens{6};
  const Table table(1, 1);
  DecodeExpandInput input = flatten_input(query_start_loc, seq_lens, table);
  input.next_n = 2;
  input.compress_ratio = 4;
  EXPECT_EQ(expand(input).seq_lens, (Ints{1, 1}));
  input.use_flattening = false;
  EXPECT_EQ(expand(input).shape.path, DecodePath::kNative);
  EXPECT_EQ(expand(input).seq_lens, (Ints{1, 1}));
}

TEST(BugCaseT12, RatiosZeroAndOneBothMeanNone) {
  const Ints query_start_loc{0, 2};
  const Ints seq_lens{6};
  const Table table(1, 1);
  for (const std::int64_t ratio : {0, 1}) {
    DecodeExpandInput input = flatten_input(query_start_loc, seq_lens, table);
    input.compress_ratio = ratio;
    EXPECT_EQ(expand(input).seq_lens, (Ints{5, 6}));
  }
}

TEST(BugCaseT14, AChunkWithAPrefixSeesThePrefixToo) {
  const Ints query_start_loc{0, 8};
  const Ints seq_lens{16};
  const IndexerPrefillChunk chunk = chunk_of({.query_start_loc = view(query_start_loc),
                                              .seq_lens = view(seq_lens),
                                              .seq_lens_cpu_upper_bound = {},
                                              .chunk = {0, 1, 0, 8},
                                              .compress_ratio = 4,
                                              .context_parallel = {}});
  EXPECT_EQ(chunk.cu_seqlen_ke, (Ints{2, 2, 2, 3, 3, 3, 3, 4}));
  EXPECT_EQ(chunk.shape.total_seq_lens, 4);
}

TEST(BugCaseT15, ChunksAreBudgetedInTheRowsOfTheirWorkspace) {
  const Ints tokens{12, 12};
  Ints compressed(2);
  compressed_seq_lens({view(tokens), 4, {}}, {view(compressed)});
  ASSERT_EQ(compressed, (Ints{3, 3}));
  const Longs keys(compressed.begin(), compressed.end());
  const Longs queries{12, 12};
  const auto chunks = prefill_chunk_split({.seq_lens = view(keys),
                                           .query_lens = view(queries),
                                           .workspace_size = 4,
                                           .max_logits_bytes = 1 << 20});
  EXPECT_EQ(chunks, (std::vector<PrefillChunk>{{0, 1, 0, 12}, {1, 2, 0, 12}}));
}

TEST(BugCaseT19, ExpansionComesBeforeLocalisation) {
  const Ints query_start_loc{0, 3};
  const Ints seq_lens{10};
  const Table table(1, 1);
  for (const bool flatten : {true, false}) {
    DecodeExpandInput input = flatten_input(query_start_loc, seq_lens, table);
    input.use_flattening = flatten;
    input.context_parallel = {2, 1, 1};
    EXPECT_EQ(expand(input).seq_lens, (Ints{4, 4, 5}));
    input.context_parallel = {2, 0, 1};
    EXPECT_EQ(expand(input).seq_lens, (Ints{4, 5, 5}));
  }
}

TEST(BugCaseT22, ASequenceShorterThanItsQueryIsClampedAtZero) {
  const Ints query_start_loc{0, 4};
  const Ints seq_lens{1};
  const Table table(1, 1);
  for (const bool flatten : {true, false}) {
    DecodeExpandInput input = flatten_input(query_start_loc, seq_lens, table);
    input.next_n = 4;
    input.use_flattening = flatten;
    EXPECT_EQ(expand(input).seq_lens, (Ints{-2, -1, 0, 1}));
    input.lengths = LengthRule::kClamped;
    EXPECT_EQ(expand(input).seq_lens, (Ints{0, 0, 0, 1}));
  }
}

TEST(BugCaseT26, PaddingTokensAreRowsThatAreEmpty) {
  const IndexerConfig config = flattening_config();
  IndexerBuffers buffers(config);
  const OwnedBatch owned({2, 1}, {10, 7}, 4, 1);  // 3 live tokens in 4 rows
  const IndexerMetadata metadata = indexer_metadata_build(config, buffers, owned.batch());
  EXPECT_EQ(metadata.split, (DecodePrefillSplit{2, 0, 4, 0}));
  EXPECT_EQ(values_of(metadata.decode->seq_lens), (Ints{9, 10, 7, 0}));
  EXPECT_EQ(row_of(metadata.decode->block_table, 2)[0], 2000);
  EXPECT_EQ(row_of(metadata.decode->block_table, 3), Ints(12, 0));
}

TEST(BugCaseT26, AHundredLiveRowsInAGraphOf112) {
  IndexerConfig config = flattening_config();
  config.compress_ratio = 4;
  IndexerBuffers buffers(config);
  Ints seq_lens;
  Ints expected;
  for (std::int32_t request = 0; request < 100; ++request) {
    seq_lens.push_back(request + 1);
    expected.push_back((request + 1) / 4);
  }
  expected.resize(112, 0);
  const OwnedBatch owned(Ints(100, 1), seq_lens, 4, 12);
  const IndexerMetadata metadata = indexer_metadata_build(config, buffers, owned.batch());
  EXPECT_EQ(values_of(metadata.decode->seq_lens), expected);
  EXPECT_EQ(metadata.decode->decode_lens.dim(0), 100);
  const Longs slots = values_of(metadata.slot_mapping);
  EXPECT_EQ(Longs(slots.begin() + 100, slots.end()), Longs(12, -1));
}

TEST(BugCaseP09, PrefillAndDecodeGiveATokenTheSameSlot) {
  Ints values{2, 5, 11, 3, 9, 7};
  const View<const std::int32_t, 2> table{values.data(), {1, 6}, {6, 1}};
  EXPECT_EQ(compressed_slot(table, 0, 130, {.storage_block_size = 528}), 2 * 528 + 130);
  EXPECT_EQ(compressed_slot(table, 0, 130, {.storage_block_size = 128}), 5 * 128 + 2);

  for (const std::int64_t block_size : {128, 528}) {
    const CompressedPages pages{.storage_block_size = block_size};
    const Ints whole_query{0, 600};
    const Ints whole_length{600};
    Longs prefill(600, -999);
    compressed_slot_mapping({view(whole_query), view(whole_length), table, pages}, {view(prefill)});
    for (std::int32_t position = 0; position < 600; ++position) {
      const Ints one_query{0, 1};
      const Ints length{position + 1};
      Longs decode(1, -999);
      compressed_slot_mapping({view(one_query), view(length), table, pages}, {view(decode)});
      EXPECT_EQ(decode[0], prefill[static_cast<std::size_t>(position)]) << position;
    }
  }
}

}  // namespace
}  // namespace monoref
