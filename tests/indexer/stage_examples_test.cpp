// Each stage on small inputs whose right answers are written out by hand, from the examples of
// reference/spec/seeds.md where it has some.
#include <gtest/gtest.h>

#include <limits>

#include "reference/rules/decode_prefill_split.hpp"
#include "reference/rules/glm5next_expand_pools.hpp"
#include "reference/rules/integer_division.hpp"
#include "reference/stages/compressed_slot_mapping.hpp"
#include "reference/stages/glm5next_indexer.hpp"
#include "tests/indexer/batch.hpp"

namespace monoref {
namespace {

TEST(IntegerDivision, RoundsAsItSays) {
  EXPECT_EQ(floor_divide(7, 4), 1);
  EXPECT_EQ(floor_divide(-1, 4), -1);
  EXPECT_EQ(floor_divide(-4, 4), -1);
  EXPECT_EQ(floor_divide(-5, 4), -2);
  EXPECT_EQ(ceil_divide(7, 4), 2);
  EXPECT_EQ(ceil_divide(8, 4), 2);
  EXPECT_EQ(ceil_divide(-5, 4), -1);
}

TEST(ContextParallelLengths, DealsRunsToRanks) {
  // 11 positions in runs of 2 to 3 ranks: 0 1 | 2 3 | 4 5, 6 7 | 8 9 | 10
  EXPECT_EQ(local_length(11, {3, 0, 2}), 4);
  EXPECT_EQ(local_length(11, {3, 1, 2}), 4);
  EXPECT_EQ(local_length(11, {3, 2, 2}), 3);
  EXPECT_EQ(owner_rank(10, {3, 0, 2}), 2);
  EXPECT_EQ(local_position(10, {3, 0, 2}), 2);
  EXPECT_EQ(local_position(7, {3, 0, 2}), 3);
}

TEST(ContextParallelLengths, WritesEveryRow) {
  const Ints seq_lens{0, 1, 5, -1};
  Ints local(4, -999);
  context_parallel_lengths({view(seq_lens), {2, 0, 1}}, {view(local)});
  EXPECT_EQ(local, (Ints{0, 1, 3, 0}));
  context_parallel_lengths({view(seq_lens), {2, 1, 1}}, {view(local)});
  EXPECT_EQ(local, (Ints{0, 0, 2, -1}));
}

TEST(CompressedSlotMapping, WritesTheLastTokenOfEachGroup) {
  const Ints query_start_loc{0, 6, 6, 7};
  const Ints seq_lens{9, 0, 4};
  const Table table(3, 2);
  Longs slots(9, -999);
  compressed_slot_mapping({.query_start_loc = view(query_start_loc),
                           .seq_lens = view(seq_lens),
                           .block_table = table.view(),
                           .pages = {.storage_block_size = 1, .compress_ratio = 4}},
                          {view(slots)});
  // Positions 3..8 of request 0: groups end at 3 (key 0) and 7 (key 1). Request 2: position 3.
  EXPECT_EQ(slots, (Longs{1000, -1, -1, -1, 1001, -1, 3000, -1, -1}));
}

TEST(CompressedSlotMapping, ARankWritesItsOwnPositionsOnly) {
  const Ints query_start_loc{0, 8};
  const Ints seq_lens{8};
  const Table table(1, 2);
  Longs slots(8, -999);
  // Runs of 2, blocks of 2: rank 1 of 2 owns 2 3 | 6 7, one block of it each.
  compressed_slot_mapping({.query_start_loc = view(query_start_loc),
                           .seq_lens = view(seq_lens),
                           .block_table = table.view(),
                           .pages = {.storage_block_size = 2, .context_parallel = {2, 1, 2}}},
                          {view(slots)});
  EXPECT_EQ(slots, (Longs{-1, -1, 2000, 2001, -1, -1, 2002, 2003}));
}

TEST(CompressedSlotMapping, PositionsBelowZeroAndNegativeBlocksHaveNoSlot) {
  const Ints query_start_loc{0, 6};
  const Ints seq_lens{4};
  const Ints blocks{-3, 4};
  Longs slots(6, -999);
  compressed_slot_mapping({.query_start_loc = view(query_start_loc),
                           .seq_lens = view(seq_lens),
                           .block_table = {blocks.data(), {1, 2}, {2, 1}},
                           .pages = {.storage_block_size = 2}},
                          {view(slots)});
  EXPECT_EQ(slots, (Longs{-1, -1, -1, -1, 8, 9}));
}

TEST(CompressedSlotMapping, LargeBlockIdsKeepTheirHighBits) {
  const Ints blocks{std::numeric_limits<std::int32_t>::max()};
  const View<const std::int32_t, 2> table{blocks.data(), {1, 1}, {1, 1}};
  EXPECT_EQ(compressed_slot(table, 0, 255, {.storage_block_size = 256}),
            std::int64_t{2147483647} * 256 + 255);
}

TEST(CompressedSeqLens, DividesThenLocalises) {
  const Ints seq_lens{0, 3, 4, 21, 128};
  Ints compressed(5, -999);
  compressed_seq_lens({view(seq_lens), 4, {}}, {view(compressed)});
  EXPECT_EQ(compressed, (Ints{0, 0, 1, 5, 32}));
  compressed_seq_lens({view(seq_lens), 4, {2, 1, 1}}, {view(compressed)});
  EXPECT_EQ(compressed, (Ints{0, 0, 0, 2, 16}));
}

DecodePrefillSplit split_of(const Ints& query_lens, std::int64_t threshold, bool uniform,
                            std::int64_t padding = 0) {
  const Ints query_start_loc = prefix_sums(query_lens);
  return decode_prefill_split({.query_start_loc = view(query_start_loc),
                               .num_tokens = query_start_loc.back() + padding,
                               .decode_threshold = threshold,
                               .require_uniform = uniform});
}

TEST(DecodePrefillSplit, FollowsItsRulesInOrder) {
  EXPECT_EQ(split_of({1, 3, 0, 2}, 3, false), (DecodePrefillSplit{4, 0, 6, 0}));
  EXPECT_EQ(split_of({1, 0, 1}, 1, true), (DecodePrefillSplit{3, 0, 2, 0}));
  EXPECT_EQ(split_of({4, 1}, 3, true), (DecodePrefillSplit{0, 2, 0, 5}));
  EXPECT_EQ(split_of({3, 3, 0}, 3, true), (DecodePrefillSplit{3, 0, 6, 0}));
  EXPECT_EQ(split_of({3, 3, 2}, 3, true), (DecodePrefillSplit{2, 1, 6, 2}));
  EXPECT_EQ(split_of({2, 1, 9, 1}, 3, false), (DecodePrefillSplit{2, 2, 3, 10}));
  EXPECT_EQ(split_of({0, 3, 3}, 3, true), (DecodePrefillSplit{1, 2, 0, 6}));
  EXPECT_EQ(split_of({}, 3, true), (DecodePrefillSplit{0, 0, 0, 0}));
}

TEST(DecodePrefillSplit, PaddingTokensBelongToTheLastRun) {
  EXPECT_EQ(split_of({2, 1}, 3, false, 5), (DecodePrefillSplit{2, 0, 8, 0}));
  EXPECT_EQ(split_of({1, 40}, 3, false, 5), (DecodePrefillSplit{1, 1, 1, 45}));
}

TEST(PrefillChunkSplit, RequestsShareAChunkAsLongAsBothBudgetsHold) {
  const Longs keys{10, 20, 30};
  const Longs queries{2, 3, 4};
  // M x N of all three is 9 * 60 = 540, of the first two 5 * 30 = 150.
  EXPECT_EQ(prefill_chunk_split({view(keys), view(queries), 60, 4 * 540, 7}),
            (std::vector<PrefillChunk>{{7, 10, 0, 9}}));
  EXPECT_EQ(prefill_chunk_split({view(keys), view(queries), 60, 4 * 540 - 4, 7}),
            (std::vector<PrefillChunk>{{7, 9, 0, 5}, {9, 10, 0, 4}}));
  EXPECT_EQ(prefill_chunk_split({view(keys), view(queries), 59, 4 * 540, 0}),
            (std::vector<PrefillChunk>{{0, 2, 0, 5}, {2, 3, 0, 4}}));
}

TEST(PrefillChunkSplit, ALoneRequestAboveTheBudgetIsCutInItsQueries) {
  const Longs keys{10};
  const Longs queries{7};
  // A budget of 35 logits holds 3 queries of 10 keys.
  EXPECT_EQ(prefill_chunk_split({view(keys), view(queries), 100, 4 * 35, 0}),
            (std::vector<PrefillChunk>{{0, 1, 0, 3}, {0, 1, 3, 6}, {0, 1, 6, 7}}));
  // A budget below one row still makes progress.
  EXPECT_EQ(prefill_chunk_split({view(keys), view(queries), 100, 0, 0}).size(), 7U);
}

TEST(PrefillChunkSplit, NothingInAChunkGivesNoChunk) {
  const Longs none{0};
  const Longs some{5};
  EXPECT_EQ(prefill_chunk_split({view(none), view(none), 10, 400, 0, LengthRule::kClamped}).size(),
            0U);
  EXPECT_EQ(prefill_chunk_split({view(some), view(none), 10, 400, 0}).size(), 0U);
  EXPECT_EQ(prefill_chunk_split({view(none), view(some), 10, 400, 0}),
            (std::vector<PrefillChunk>{{0, 1, 0, 5}}));
  // Beside others an empty request rides along.
  const Longs keys{5, 0, 5};
  EXPECT_EQ(prefill_chunk_split({view(keys), view(keys), 10, 400, 0}),
            (std::vector<PrefillChunk>{{0, 3, 0, 10}}));
}

TEST(PrefillChunkMetadata, NumbersKeysOfSeveralRequestsThrough) {
  const Ints query_start_loc{0, 1, 3, 3, 6};
  const Ints seq_lens{9, 4, 0, 5};
  const IndexerPrefillChunk chunk = chunk_of({.query_start_loc = view(query_start_loc),
                                              .seq_lens = view(seq_lens),
                                              .seq_lens_cpu_upper_bound = {},
                                              .chunk = {1, 4, 1, 4},
                                              .compress_ratio = 2,
                                              .context_parallel = {}});
  EXPECT_EQ(chunk.shape, (PrefillChunkShape{3, 4, 2, 5, true}));
  EXPECT_EQ(chunk.cu_seq_lens, (Ints{0, 2, 2, 4}));
  EXPECT_EQ(chunk.token_to_seq, (Ints{0, 0, 2, 2}));
  // Position 3 of request 1, positions 2 and 3 of request 3.
  EXPECT_EQ(chunk.cu_seqlen_ks, (Ints{0, 2, 2}));
  EXPECT_EQ(chunk.cu_seqlen_ke, (Ints{2, 3, 4}));
}

TEST(PrefillChunkMetadata, AGenerousUpperBoundLeavesAZeroTail) {
  const Ints query_start_loc{0, 2, 3};
  const Ints seq_lens{2, 1};
  const Ints upper_bound{4, 2};
  const IndexerPrefillChunk chunk = chunk_of({.query_start_loc = view(query_start_loc),
                                              .seq_lens = view(seq_lens),
                                              .seq_lens_cpu_upper_bound = view(upper_bound),
                                              .chunk = {0, 2, 0, 3},
                                              .compress_ratio = 1,
                                              .context_parallel = {}});
  EXPECT_EQ(chunk.shape.total_seq_lens, 6);
  EXPECT_EQ(chunk.cu_seq_lens, (Ints{0, 2, 3}));
  EXPECT_EQ(chunk.token_to_seq, (Ints{0, 0, 1, 0, 0, 0}));
}

DecodeExpandInput expand_input(const Ints& query_start_loc, const Ints& seq_lens,
                               const Table& table) {
  return {.query_start_loc = view(query_start_loc),
          .seq_lens = view(seq_lens),
          .block_table = table.view(),
          .num_decode_tokens = query_start_loc.back(),
          .next_n = 4};
}

TEST(DecodeExpand, FlattensTheSeedsExample) {
  const Ints query_start_loc = prefix_sums({3, 1, 4, 0});
  const Ints seq_lens{10, 7, 12, 0};
  const Table table(4, 2);
  DecodeExpandInput input = expand_input(query_start_loc, seq_lens, table);
  input.use_flattening = true;
  input.num_decode_tokens = 10;
  const Expanded expanded = expand(input);
  EXPECT_EQ(expanded.shape.path, DecodePath::kFlattenRagged);
  EXPECT_FALSE(expanded.shape.requires_padding);
  EXPECT_EQ(expanded.seq_lens, (Ints{8, 9, 10, 7, 9, 10, 11, 12, 0, 0}));
  EXPECT_EQ(expanded.decode_lens, Ints(10, 1));
  EXPECT_EQ(expanded.table_row(2), (Ints{1000, 1001}));
  EXPECT_EQ(expanded.table_row(3), (Ints{2000, 2001}));
  EXPECT_EQ(expanded.table_row(7), (Ints{3000, 3001}));
  EXPECT_EQ(expanded.table_row(9), (Ints{0, 0}));
}

TEST(DecodeExpand, UniformQueriesNeedNoRowCount) {
  const Ints query_start_loc = prefix_sums({3, 3});
  const Ints seq_lens{10, 7};
  const Table table(2, 1);
  DecodeExpandInput input = expand_input(query_start_loc, seq_lens, table);
  input.use_flattening = true;
  input.num_decode_tokens = 9;
  const Expanded expanded = expand(input);
  EXPECT_EQ(expanded.shape.path, DecodePath::kFlattenUniform);
  EXPECT_EQ(expanded.seq_lens, (Ints{8, 9, 10, 5, 6, 7}));
}

TEST(DecodeExpand, NativeLengthsAreTwoDimensionalAndCountFromTheLongestQuery) {
  const Ints query_start_loc = prefix_sums({2, 0, 2});
  const Ints seq_lens{10, 0, 7};
  const Table table(3, 1);
  const Expanded expanded = expand(expand_input(query_start_loc, seq_lens, table));
  EXPECT_EQ(expanded.shape.path, DecodePath::kNative);
  EXPECT_TRUE(expanded.shape.requires_padding);
  EXPECT_EQ(expanded.shape.length_columns, 2);
  EXPECT_EQ(expanded.seq_lens, (Ints{9, 10, -1, 0, 6, 7}));
  EXPECT_EQ(expanded.decode_lens, (Ints{2, 0, 2}));
}

TEST(DecodeExpand, AQueryBeyondNextNIsFlattenedOnEveryDevice) {
  const Ints query_start_loc = prefix_sums({2, 5});
  const Ints seq_lens{10, 7};
  const Table table(2, 1);
  EXPECT_EQ(decode_expand_shape(expand_input(query_start_loc, seq_lens, table)).path,
            DecodePath::kFlattenRagged);
}

TEST(DecodeExpand, PlainLengthsAreOneARequest) {
  const Ints query_start_loc = prefix_sums({1, 0, 1});
  const Ints seq_lens{10, 0, 8};
  const Table table(3, 1);
  DecodeExpandInput input = expand_input(query_start_loc, seq_lens, table);
  input.use_flattening = true;
  Expanded expanded = expand(input);
  EXPECT_EQ(expanded.shape.path, DecodePath::kPlain);
  EXPECT_TRUE(expanded.shape.requires_padding);
  EXPECT_EQ(expanded.seq_lens, (Ints{10, 0, 8}));
  EXPECT_EQ(expanded.decode_lens, (Ints{1, 0, 1}));
  // Compressed lengths keep every request, though there are fewer tokens, and pad up to the tokens.
  input.compress_ratio = 4;
  input.lengths = LengthRule::kClamped;
  EXPECT_EQ(expand(input).seq_lens, (Ints{2, 0, 2}));
  input.num_decode_tokens = 5;
  EXPECT_EQ(expand(input).seq_lens, (Ints{2, 0, 2, 0, 0}));
}

TEST(DecodeExpand, NegativeLengthsRoundDownAsTheHostCodeDoes) {
  const Ints query_start_loc = prefix_sums({4});
  const Ints seq_lens{1};
  const Table table(1, 1);
  DecodeExpandInput input = expand_input(query_start_loc, seq_lens, table);
  input.compress_ratio = 4;
  EXPECT_EQ(expand(input).seq_lens, (Ints{-1, -1, 0, 0}));
  input.lengths = LengthRule::kClamped;
  EXPECT_EQ(expand(input).seq_lens, (Ints{0, 0, 0, 0}));
}

TEST(IndexerMetadata, SupertilesAreRoundedUpToWholeTiles) {
  EXPECT_EQ(b12x_supertile_k({}), 32768);
  EXPECT_EQ(b12x_supertile_k({-1}), 512);
  EXPECT_EQ(b12x_supertile_k({1}), 512);
  EXPECT_EQ(b12x_supertile_k({512}), 512);
  EXPECT_EQ(b12x_supertile_k({513}), 1024);
  EXPECT_EQ(b12x_supertile_k({40000}), 40448);
}

TEST(IndexerMetadata, ThePrefillBufferIsFortyTimesTheModelLength) {
  EXPECT_EQ(max_prefill_buffer_size(163840), 6553600);
}

TEST(IndexerMetadata, FlatteningDependsOnDeviceAndQueryLength) {
  IndexerConfig config;
  for (const std::int64_t speculative : {0, 1, 2, 3}) {
    config.num_speculative_tokens = speculative;
    config.device_family = 90;
    EXPECT_EQ(config.use_flattening(), speculative >= 2);
    config.device_family = 100;
    EXPECT_FALSE(config.use_flattening());
  }
}

IndexerConfig small_config() {
  IndexerConfig config;
  config.max_model_len = 1024;
  config.max_num_batched_tokens = 64;
  return config;
}

TEST(IndexerMetadata, B12xTakesItsBoundFromTheHost) {
  IndexerConfig config = small_config();
  config.b12x.emplace();
  IndexerBuffers buffers(config);
  const OwnedBatch owned({1, 1, 4}, {30, 70, 100}, 4);
  IndexerBatch batch = owned.batch();
  batch.seq_lens_cpu = batch.seq_lens;
  IndexerMetadata metadata = indexer_metadata_build(config, buffers, batch);
  EXPECT_EQ(metadata.decode->max_seq_len, 70);    // of the decodes
  EXPECT_EQ(metadata.decode->active_width, 100);  // of the batch
  EXPECT_EQ(buffers.active_width, 100);

  batch.seq_lens_cpu = {};  // the device alone knows the lengths
  metadata = indexer_metadata_build(config, buffers, batch);
  EXPECT_EQ(metadata.decode->max_seq_len, 100);
}

TEST(IndexerMetadata, B12xPrefersTheLocalShadowWithLocalCaches) {
  IndexerConfig config = small_config();
  config.b12x.emplace();
  config.context_parallel = {2, 0, 1};
  IndexerBuffers buffers(config);
  OwnedBatch owned({1, 1}, {30, 71}, 4);
  owned.use_dcp_local = true;
  IndexerBatch batch = owned.batch();
  batch.seq_lens_cpu = batch.seq_lens;
  EXPECT_EQ(indexer_metadata_build(config, buffers, batch).decode->max_seq_len, 71);
  const Ints local{15, 36};
  batch.dcp_local_seq_lens_cpu = view(local);
  EXPECT_EQ(indexer_metadata_build(config, buffers, batch).decode->max_seq_len, 36);
}

TEST(IndexerMetadata, B12xSkipsEmptyRequestsWhereItFlattens) {
  IndexerConfig config = small_config();
  config.num_speculative_tokens = 2;
  config.b12x.emplace();
  IndexerBuffers buffers(config);
  const OwnedBatch owned({2, 0, 1}, {30, 90, 40}, 4);
  IndexerBatch batch = owned.batch();
  batch.seq_lens_cpu = batch.seq_lens;
  EXPECT_EQ(indexer_metadata_build(config, buffers, batch).decode->max_seq_len, 40);
}

TEST(IndexerMetadata, B12xCountsEmptyRequestsWhereItDoesNotFlatten) {
  IndexerConfig config = small_config();
  config.num_speculative_tokens = 2;
  config.device_family = 100;
  config.b12x.emplace();
  IndexerBuffers buffers(config);
  const OwnedBatch owned({2, 0, 2}, {30, 90, 40}, 4);
  IndexerBatch batch = owned.batch();
  batch.seq_lens_cpu = batch.seq_lens;
  EXPECT_EQ(indexer_metadata_build(config, buffers, batch).decode->max_seq_len, 90);
}

TEST(IndexerMetadata, B12xCutsRequestsOneByOneOnTheSupertile) {
  IndexerConfig config = small_config();
  config.b12x = B12xIndexer{262144};  // 1 MiB of logits holds one query of a supertile
  config.max_logits_mb = 1;
  IndexerBuffers buffers(config);
  const OwnedBatch owned({2, 3}, {2, 3}, 4);
  const IndexerMetadata metadata = indexer_metadata_build(config, buffers, owned.batch());
  ASSERT_EQ(metadata.prefill->size(), 5U);
  EXPECT_EQ((*metadata.prefill)[1].shape, (PrefillChunkShape{1, 2, 1, 2, true}));
  EXPECT_EQ((*metadata.prefill)[2].shape, (PrefillChunkShape{1, 3, 2, 3, false}));
}

TEST(IndexerMetadata, ChunksWithoutAKeyAreLeftOut) {
  IndexerConfig config = small_config();
  config.compress_ratio = 128;
  IndexerBuffers buffers(config);
  const OwnedBatch owned({9, 9}, {9, 20}, 4);
  const IndexerMetadata metadata = indexer_metadata_build(config, buffers, owned.batch());
  ASSERT_TRUE(metadata.prefill.has_value());
  EXPECT_TRUE(metadata.prefill->empty());
  EXPECT_FALSE(metadata.decode.has_value());
}

TEST(IndexerMetadata, LocalLengthsNeedLocalCaches) {
  IndexerConfig config = small_config();
  config.context_parallel = {4, 3, 16};
  IndexerBuffers buffers(config);
  OwnedBatch owned({1, 1}, {40, 70}, 4);
  IndexerMetadata metadata = indexer_metadata_build(config, buffers, owned.batch());
  EXPECT_EQ(metadata.context_parallel, (ContextParallel{1, 0, 16}));
  EXPECT_EQ(values_of(metadata.decode->seq_lens), (Ints{40, 70}));
  EXPECT_EQ(values_of(metadata.slot_mapping), (Longs{5000, 5001}));

  owned.use_dcp_local = true;
  metadata = indexer_metadata_build(config, buffers, owned.batch());
  EXPECT_EQ(metadata.context_parallel, (ContextParallel{4, 3, 16}));
  EXPECT_EQ(values_of(metadata.decode->seq_lens), (Ints{0, 16}));
  // Position 39 is rank 2's (run 2), position 69 rank 0's (run 4).
  EXPECT_EQ(values_of(metadata.slot_mapping), (Longs{-1, -1}));
}

TEST(IndexerMetadata, ABatchOfEmptyRequestsHasNoKeys) {
  IndexerConfig config = small_config();
  config.num_speculative_tokens = 1;
  config.lengths = LengthRule::kClamped;
  IndexerBuffers buffers(config);
  const OwnedBatch owned({0, 0}, {0, 0}, 4);
  const IndexerMetadata metadata = indexer_metadata_build(config, buffers, owned.batch());
  EXPECT_EQ(metadata.split, (DecodePrefillSplit{2, 0, 0, 0}));
  EXPECT_EQ(metadata.decode->seq_lens.dim(1), 0);
  EXPECT_EQ(metadata.decode->max_seq_len, 0);
}

TEST(Glm5next, ScatterIndicesSkipEmptyRequests) {
  const Ints decode_lens{2, 0, 3};
  Longs req_id(5, -999);
  Longs intra(5, -999);
  decode_scatter_indices({view(decode_lens), 5}, {view(req_id), view(intra)});
  EXPECT_EQ(req_id, (Longs{0, 0, 2, 2, 2}));
  EXPECT_EQ(intra, (Longs{0, 1, 0, 1, 2}));
}

TEST(Glm5next, PackingWorksOnBytesToo) {
  const Ints decode_lens{1, 2};
  const std::vector<std::uint8_t> tokens{10, 20, 30};
  std::vector<std::uint8_t> grid(4, 77);
  scatter_decode_tokens_by_request<std::uint8_t>(
      {view(decode_lens), {tokens.data(), {3, 1}, {1, 1}}, 255},
      View<std::uint8_t, 3>{grid.data(), {2, 2, 1}, {2, 1, 1}});
  EXPECT_EQ(grid, (std::vector<std::uint8_t>{10, 255, 20, 30}));
}

TEST(Glm5next, TopkLengthsFollowTheGridWithPadding) {
  const Ints decode_lens{1, 2};
  const Longs positions{100, 50, 51, 7, 8};  // the last two are prefill tokens
  Ints lengths(4, -999);
  decode_topk_seq_lens({view(positions), view(decode_lens), 3, 2, 2, true}, view(lengths));
  EXPECT_EQ(lengths, (Ints{101, 0, 51, 52}));
  decode_topk_seq_lens({view(positions), {}, 4, 2, 2, false}, view(lengths));
  EXPECT_EQ(lengths, (Ints{101, 51, 52, 8}));
}

TEST(Glm5next, ShortDecodeRowsAreCausal) {
  const Longs positions{0, 2, 9, -1};
  Ints buffer(15, -9);
  const View<std::int32_t, 2> rows{buffer.data(), {5, 3}, {3, 1}};
  EXPECT_FALSE(short_decode_causal_fill({view(positions), 4, 4}, rows));
  EXPECT_FALSE(short_decode_causal_fill({{}, 4, 3}, rows));
  EXPECT_EQ(buffer, Ints(15, -9));
  EXPECT_TRUE(short_decode_causal_fill({view(positions), 4, 3}, rows));
  EXPECT_EQ(buffer, (Ints{0, -1, -1, 0, 1, 2, 0, 1, 2, -1, -1, -1, -9, -9, -9}));
}

TEST(Glm5next, WorkspaceTypes) {
  const auto fp8 =
      gather_workspace_shapes(7, 128, IndexerCacheFormat::kFp8, DType::kFloat8E4M3FNUZ);
  EXPECT_EQ(fp8, (GatherWorkspaceShapes{{7, 128}, {7, 4}, DType::kFloat8E4M3FNUZ, DType::kUInt8}));
  const auto fp4 = gather_workspace_shapes(7, 128, IndexerCacheFormat::kMxfp4);
  EXPECT_EQ(fp4, (GatherWorkspaceShapes{{7, 64}, {7, 4}, DType::kUInt8, DType::kUInt8}));
}

TEST(Glm5next, CacheViewsKeepThePageDistance) {
  // Pages of 64 keys, 5000 bytes apart: larger than the data of 64 * 68.
  const Layout cache = Layout::strided({3, 64, 68}, {5000, 68, 1});
  const Layout fp4 = kv_cache_as_quant_view(cache, DType::kUInt8, 128, IndexerCacheFormat::kMxfp4);
  EXPECT_EQ(fp4.dims, (Longs{3, 64, 1, 68}));
  EXPECT_EQ(fp4.strides, (Longs{5000, 68, 68, 1}));
  // Rows padded to 80 bytes: MXFP4 keys are still 68 bytes apart, FP8 keeps the rows.
  const Layout padded = Layout::strided({3, 64, 68}, {5120, 80, 1});
  EXPECT_EQ(kv_cache_as_quant_view(padded, DType::kUInt8, 128, IndexerCacheFormat::kMxfp4).strides,
            (Longs{5120, 68, 68, 1}));
  const Layout fp8 = kv_cache_as_quant_view(padded, DType::kUInt8, 64, IndexerCacheFormat::kFp8);
  EXPECT_EQ(fp8.dims, (Longs{3, 64, 1, 68}));
  EXPECT_EQ(fp8.strides, (Longs{5120, 80, 68, 1}));
}

TEST(Glm5nextExpandPools, AppendsTheTailOfItsOwnRow) {
  const Ints pools{2, -1, 0, 0};
  const Ints seq_lens{14, 5};
  Ints tokens(22, -999);
  expand_pools_and_append_tail({{pools.data(), {2, 2}, {2, 1}}, view(seq_lens), 4},
                               {tokens.data(), {2, 11}, {11, 1}});
  EXPECT_EQ(tokens, (Ints{8, 9, 10, 11, -1, -1, -1, -1, 12, 13, -1,  //
                          0, 1, 2,  3,  0,  1,  2,  3,  4,  -1, -1}));
}

}  // namespace
}  // namespace monoref
