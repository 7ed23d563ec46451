// Every input that the indexer stages decline, with the message: argument, value, limit. Nothing
// may have been written when it is thrown.
#include <gtest/gtest.h>

#include <functional>

#include "reference/rules/glm5next_expand_pools.hpp"
#include "reference/stages/compressed_slot_mapping.hpp"
#include "reference/stages/context_parallel_lengths.hpp"
#include "reference/stages/glm5next_indexer.hpp"
#include "tests/indexer/batch.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kMaxInt32 = 2147483647;

TEST(Refusals, ContextParallelLengths) {
  const Ints seq_lens{1, 2};
  Ints local(2, -999);
  const auto with = [&](ContextParallel context_parallel) {
    return refusal_of(
        [&] { context_parallel_lengths({view(seq_lens), context_parallel}, {view(local)}); });
  };
  EXPECT_EQ(with({0, 0, 1}),
            "context_parallel_lengths: context-parallel world is 0, limits 1 and 2147483647");
  EXPECT_EQ(with({2, 0, 0}),
            "context_parallel_lengths: context-parallel interleave is 0, limits 1 and 2147483647");
  EXPECT_EQ(with({2, 0, kMaxInt32 + 1}),
            "context_parallel_lengths: context-parallel interleave is 2147483648, limits 1 and "
            "2147483647");
  EXPECT_EQ(with({2, 2, 1}),
            "context_parallel_lengths: context-parallel rank is 2, limits 0 and 1");
  EXPECT_EQ(with({2, -1, 1}),
            "context_parallel_lengths: context-parallel rank is -1, limits 0 and 1");
  EXPECT_EQ(local, (Ints{-999, -999}));
  Ints short_output(1);
  EXPECT_EQ(
      refusal_of([&] { context_parallel_lengths({view(seq_lens), {}}, {view(short_output)}); }),
      "context_parallel_lengths: local_seq_lens has extent 1, must have 2");
}

/// A good call of compressed_slot_mapping, to be spoiled in one place.
struct SlotCall {
  Ints query_start_loc{0, 1, 3};
  Ints seq_lens{4, 5};
  Table table{2, 3};
  CompressedPages pages;
  Longs slots = Longs(3, -999);

  std::string refusal() {
    const std::string message = refusal_of([&] {
      compressed_slot_mapping({view(query_start_loc), view(seq_lens), table.view(), pages},
                              {view(slots)});
    });
    EXPECT_EQ(slots, Longs(slots.size(), -999));
    return message;
  }
};

std::string refused_slots(const std::function<void(SlotCall&)>& spoil) {
  SlotCall call;
  spoil(call);
  return call.refusal();
}

TEST(Refusals, CompressedSlotMapping) {
  EXPECT_EQ(refused_slots([](SlotCall& call) { call.query_start_loc[0] = 1; }),
            "compressed_slot_mapping: query_start_loc[0] is 1, must be 0");
  EXPECT_EQ(refused_slots([](SlotCall& call) { call.query_start_loc[2] = 0; }),
            "compressed_slot_mapping: query_start_loc[2] is 0, at least 1 expected (prefix sums "
            "never fall)");
  EXPECT_EQ(refused_slots([](SlotCall& call) { call.query_start_loc.pop_back(); }),
            "compressed_slot_mapping: query_start_loc has extent 2, must have 3");
  EXPECT_EQ(refused_slots([](SlotCall& call) { call.seq_lens[1] = -5; }),
            "compressed_slot_mapping: seq_lens[1] is -5, limit 0");
  EXPECT_EQ(refused_slots([](SlotCall& call) { call.table = Table(1, 3); }),
            "compressed_slot_mapping: block_table has 1 rows, must have at least 2, one a request");
  EXPECT_EQ(refused_slots([](SlotCall& call) { call.slots.pop_back(); }),
            "compressed_slot_mapping: slot_mapping has 2 slots, must have at least 3, one a token");
  EXPECT_EQ(refused_slots([](SlotCall& call) { call.pages.storage_block_size = 0; }),
            "compressed_slot_mapping: storage_block_size is 0, limits 1 and 2147483647");
  EXPECT_EQ(refused_slots([](SlotCall& call) { call.pages.compress_ratio = -1; }),
            "compressed_slot_mapping: compress_ratio is -1, limit 0");
  EXPECT_EQ(refused_slots([](SlotCall& call) { call.pages.context_parallel.world = -2; }),
            "compressed_slot_mapping: context-parallel world is -2, limits 1 and 2147483647");
  EXPECT_EQ(
      refused_slots([](SlotCall& call) {
        call.pages = {.storage_block_size = 24, .context_parallel = {2, 0, 16}};
      }),
      "compressed_slot_mapping: storage_block_size is 24, must be a multiple of the interleave "
      "16, else a run would reach into the next block's slots");
}

TEST(Refusals, CompressedSeqLens) {
  const Ints seq_lens{1, 2};
  Ints compressed(2, -999);
  EXPECT_EQ(refusal_of([&] { compressed_seq_lens({view(seq_lens), -4, {}}, {view(compressed)}); }),
            "compressed_seq_lens: compress_ratio is -4, limit 0");
  EXPECT_EQ(
      refusal_of([&] { compressed_seq_lens({view(seq_lens), 4, {2, 2, 1}}, {view(compressed)}); }),
      "compressed_seq_lens: context-parallel rank is 2, limits 0 and 1");
  EXPECT_EQ(compressed, (Ints{-999, -999}));
  compressed.pop_back();
  EXPECT_EQ(refusal_of([&] { compressed_seq_lens({view(seq_lens), 4, {}}, {view(compressed)}); }),
            "compressed_seq_lens: compressed_seq_lens has extent 1, must have 2");
}

TEST(Refusals, DecodePrefillSplit) {
  const auto with = [](const Ints& starts, std::int64_t tokens, std::int64_t threshold) {
    return refusal_of([&] { decode_prefill_split({view(starts), tokens, threshold, false}); });
  };
  EXPECT_EQ(with({}, 0, 1), "decode_prefill_split: query_start_loc has 0 entries, limit 1");
  EXPECT_EQ(with({0, 2, 1}, 2, 1),
            "decode_prefill_split: query_start_loc[2] is 1, at least 2 expected (prefix sums never "
            "fall)");
  EXPECT_EQ(with({0, 2}, 1, 1),
            "decode_prefill_split: num_tokens is 1, must be at least 2, which the queries hold");
  EXPECT_EQ(with({0, 2}, 2, 0), "decode_prefill_split: decode_threshold is 0, limit 1");
}

std::string refused_chunks(const std::function<void(PrefillChunkSplitInput&)>& spoil,
                           Longs keys = {5, 6}, Longs queries = {5, 6}) {
  PrefillChunkSplitInput input{view(keys), view(queries), 100, 400, 0};
  spoil(input);
  return refusal_of([&] { prefill_chunk_split(input); });
}

TEST(Refusals, PrefillChunkSplit) {
  const auto nothing = [](PrefillChunkSplitInput&) {};
  EXPECT_EQ(refused_chunks(nothing, {5, 6}, {5}),
            "prefill_chunk_split: query_lens has extent 1, must have 2");
  EXPECT_EQ(refused_chunks(nothing, {5, -6}, {5, 6}),
            "prefill_chunk_split: seq_lens[1] is -6, limits 0 and 2147483647");
  EXPECT_EQ(refused_chunks(nothing, {5, 6}, {kMaxInt32 + 1, 6}),
            "prefill_chunk_split: query_lens[0] is 2147483648, limits 0 and 2147483647");
  EXPECT_EQ(refused_chunks([](PrefillChunkSplitInput& input) { input.workspace_size = -1; }),
            "prefill_chunk_split: workspace_size is -1, limit 0");
  EXPECT_EQ(refused_chunks([](PrefillChunkSplitInput& input) { input.max_logits_bytes = -1; }),
            "prefill_chunk_split: max_logits_bytes is -1, limit 0");
  EXPECT_EQ(refused_chunks([](PrefillChunkSplitInput& input) { input.request_offset = -1; }),
            "prefill_chunk_split: request_offset is -1, limits 0 and 2147483647");
  EXPECT_EQ(refused_chunks(nothing, {kMaxInt32}, {kMaxInt32}),
            "prefill_chunk_split: requests 0 to 1 make 2147483647 chunks, limit 262144");
}

/// A good chunk, to be spoiled in one place.
struct ChunkCall {
  Ints query_start_loc{0, 2, 5};
  Ints seq_lens{4, 5};
  Ints upper_bound{4, 6};
  PrefillChunk chunk{0, 2, 0, 5};
  std::int64_t compress_ratio = 1;
  ContextParallel context_parallel;

  std::string refusal() const {
    return refusal_of([&] {
      prefill_chunk_shape({view(query_start_loc), view(seq_lens), view(upper_bound), chunk,
                           compress_ratio, context_parallel});
    });
  }
};

std::string refused_chunk(const std::function<void(ChunkCall&)>& spoil) {
  ChunkCall call;
  spoil(call);
  return call.refusal();
}

TEST(Refusals, PrefillChunkMetadata) {
  EXPECT_EQ(refused_chunk([](ChunkCall&) {}), "");
  EXPECT_EQ(refused_chunk([](ChunkCall& call) { call.chunk = {1, 1, 0, 0}; }),
            "prefill_chunk_metadata: chunk holds requests 1 to 1, limits 0 and 2");
  EXPECT_EQ(refused_chunk([](ChunkCall& call) { call.chunk = {-1, 1, 0, 0}; }),
            "prefill_chunk_metadata: chunk holds requests -1 to 1, limits 0 and 2");
  EXPECT_EQ(refused_chunk([](ChunkCall& call) { call.chunk = {1, 3, 0, 0}; }),
            "prefill_chunk_metadata: chunk holds requests 1 to 3, limits 0 and 2");
  EXPECT_EQ(refused_chunk([](ChunkCall& call) { call.chunk = {1, 2, 0, 4}; }),
            "prefill_chunk_metadata: chunk holds queries 0 to 4, limits 0 and 3");
  EXPECT_EQ(refused_chunk([](ChunkCall& call) { call.chunk = {1, 2, -1, 2}; }),
            "prefill_chunk_metadata: chunk holds queries -1 to 2, limits 0 and 3");
  EXPECT_EQ(refused_chunk([](ChunkCall& call) { call.chunk = {1, 2, 2, 1}; }),
            "prefill_chunk_metadata: chunk holds queries 2 to 1, limits 0 and 3");
  EXPECT_EQ(
      refused_chunk([](ChunkCall& call) { call.seq_lens[1] = 2; }),
      "prefill_chunk_metadata: seq_lens[1] is 2, must be at least 3, the tokens of its query");
  EXPECT_EQ(refused_chunk([](ChunkCall& call) { call.upper_bound[0] = 3; }),
            "prefill_chunk_metadata: seq_lens_cpu_upper_bound[0] is 3, must be at least 4 as "
            "seq_lens is");
  EXPECT_EQ(refused_chunk([](ChunkCall& call) { call.upper_bound.pop_back(); }),
            "prefill_chunk_metadata: seq_lens_cpu_upper_bound has extent 1, must have 2");
  EXPECT_EQ(refused_chunk([](ChunkCall& call) {
              call.upper_bound = {static_cast<std::int32_t>(kMaxInt32), 6};
            }),
            "prefill_chunk_metadata: requests 0 to 2 have 2147483653 key rows, limit 2147483647");
  EXPECT_EQ(refused_chunk([](ChunkCall& call) { call.compress_ratio = -1; }),
            "prefill_chunk_metadata: compress_ratio is -1, limit 0");
  EXPECT_EQ(refused_chunk([](ChunkCall& call) { call.context_parallel.rank = 1; }),
            "prefill_chunk_metadata: context-parallel rank is 1, limits 0 and 0");
  EXPECT_EQ(refused_chunk([](ChunkCall& call) { call.query_start_loc[2] = 1; }),
            "prefill_chunk_metadata: query_start_loc[2] is 1, at least 2 expected (prefix sums "
            "never fall)");
}

TEST(Refusals, PrefillChunkMetadataOutputs) {
  const ChunkCall call;
  const PrefillChunkMetadataInput input{
      view(call.query_start_loc), view(call.seq_lens), {}, call.chunk, 1, {}};
  const auto with = [&](std::size_t ks, std::size_t ke, std::size_t cu, std::size_t tokens) {
    Ints first(ks, -999), last(ke, -999), sums(cu, -999), to_seq(tokens, -999);
    const std::string message = refusal_of([&] {
      prefill_chunk_metadata(input, {view(first), view(last), view(sums), view(to_seq)});
    });
    EXPECT_EQ(first, Ints(ks, -999));
    EXPECT_EQ(sums, Ints(cu, -999));
    return message;
  };
  EXPECT_EQ(with(4, 5, 3, 9), "prefill_chunk_metadata: cu_seqlen_ks has extent 4, must have 5");
  EXPECT_EQ(with(5, 6, 3, 9), "prefill_chunk_metadata: cu_seqlen_ke has extent 6, must have 5");
  EXPECT_EQ(with(5, 5, 2, 9), "prefill_chunk_metadata: cu_seq_lens has extent 2, must have 3");
  EXPECT_EQ(with(5, 5, 3, 8), "prefill_chunk_metadata: token_to_seq has extent 8, must have 9");
}

/// A good expansion, to be spoiled in one place.
struct ExpandCall {
  Ints query_start_loc{0, 2, 3};
  Ints seq_lens{4, 5};
  Table table{2, 3};
  std::int64_t num_decode_tokens = 3;
  std::int64_t next_n = 2;
  std::int64_t compress_ratio = 1;
  ContextParallel context_parallel;
  std::int64_t max_model_len = 0;

  DecodeExpandInput input() const {
    return {view(query_start_loc), view(seq_lens),   table.view(),
            num_decode_tokens,     next_n,           true,
            compress_ratio,        context_parallel, LengthRule::kAsSeed,
            max_model_len};
  }
};

std::string refused_expansion(const std::function<void(ExpandCall&)>& spoil) {
  ExpandCall call;
  spoil(call);
  return refusal_of([&] { decode_expand_shape(call.input()); });
}

TEST(Refusals, DecodeExpand) {
  EXPECT_EQ(refused_expansion([](ExpandCall&) {}), "");
  EXPECT_EQ(refused_expansion([](ExpandCall& call) { call.seq_lens.clear(); }),
            "decode_expand: num_decodes is 0, limit 1");
  EXPECT_EQ(refused_expansion([](ExpandCall& call) { call.query_start_loc = {0, 3}; }),
            "decode_expand: query_start_loc has extent 2, must have 3");
  EXPECT_EQ(refused_expansion([](ExpandCall& call) { call.seq_lens[0] = -1; }),
            "decode_expand: seq_lens[0] is -1, limit 0");
  EXPECT_EQ(refused_expansion([](ExpandCall& call) { call.table = Table(1, 3); }),
            "decode_expand: block_table has 1 rows, must have at least 2, one a request");
  EXPECT_EQ(refused_expansion([](ExpandCall& call) { call.num_decode_tokens = 2; }),
            "decode_expand: num_decode_tokens is 2, must be at least 3, which the queries hold");
  EXPECT_EQ(refused_expansion([](ExpandCall& call) { call.next_n = 0; }),
            "decode_expand: next_n is 0, limit 1");
  EXPECT_EQ(refused_expansion([](ExpandCall& call) { call.compress_ratio = -1; }),
            "decode_expand: compress_ratio is -1, limit 0");
  EXPECT_EQ(refused_expansion([](ExpandCall& call) { call.context_parallel.world = 0; }),
            "decode_expand: context-parallel world is 0, limits 1 and 2147483647");
  EXPECT_EQ(refused_expansion([](ExpandCall& call) { call.max_model_len = -1; }),
            "decode_expand: max_model_len is -1, limit 0");
}

TEST(Refusals, DecodeExpandOutputs) {
  const ExpandCall call;
  const auto with = [&](std::int64_t rows, std::int64_t columns, std::size_t decodes,
                        std::int64_t table_rows) {
    Ints lengths(static_cast<std::size_t>(rows * columns), -999);
    Ints decode_lens(decodes, -999);
    Ints table(static_cast<std::size_t>(table_rows * 3), -999);
    const std::string message = refusal_of([&] {
      decode_expand(call.input(), {{lengths.data(), {rows, columns}, {columns, 1}},
                                   view(decode_lens),
                                   {table.data(), {table_rows, 3}, {3, 1}}});
    });
    EXPECT_EQ(lengths, Ints(lengths.size(), -999));
    EXPECT_EQ(decode_lens, Ints(decodes, -999));
    return message;
  };
  EXPECT_EQ(with(2, 1, 3, 3), "decode_expand: decode_seq_lens has extent 2, must have 3");
  EXPECT_EQ(with(3, 2, 3, 3), "decode_expand: decode_seq_lens (columns) has extent 2, must have 1");
  EXPECT_EQ(with(3, 1, 4, 3), "decode_expand: decode_lens has extent 4, must have 3");
  EXPECT_EQ(with(3, 1, 3, 2), "decode_expand: decode_block_table has extent 2, must have 3");

  // The flattened paths write a table of their own.
  Ints lengths(3), decode_lens(3);
  EXPECT_EQ(refusal_of([&] {
              decode_expand(call.input(),
                            {{lengths.data(), {3, 1}, {1, 1}}, view(decode_lens), {}});
            }),
            "decode_expand: decode_block_table has extent 0, must have 3");
}

IndexerConfig good_config() {
  IndexerConfig config;
  config.max_model_len = 256;
  config.max_num_batched_tokens = 8;
  config.num_speculative_tokens = 2;
  return config;
}

std::string refused_config(const std::function<void(IndexerConfig&)>& spoil) {
  IndexerConfig config = good_config();
  spoil(config);
  return refusal_of([&] { check_indexer_config(config); });
}

TEST(Refusals, IndexerConfig) {
  EXPECT_EQ(refused_config([](IndexerConfig&) {}), "");
  EXPECT_EQ(refused_config([](IndexerConfig& config) { config.max_model_len = 0; }),
            "indexer_metadata_build: max_model_len is 0, limits 1 and 2147483647");
  EXPECT_EQ(refused_config([](IndexerConfig& config) { config.max_num_batched_tokens = 0; }),
            "indexer_metadata_build: max_num_batched_tokens is 0, limits 1 and 262144");
  EXPECT_EQ(refused_config([](IndexerConfig& config) { config.block_size = 0; }),
            "indexer_metadata_build: block_size is 0, limits 1 and 2147483647");
  EXPECT_EQ(refused_config([](IndexerConfig& config) { config.storage_block_size = -1; }),
            "indexer_metadata_build: storage_block_size is -1, limits 1 and 2147483647");
  EXPECT_EQ(refused_config([](IndexerConfig& config) { config.num_speculative_tokens = -1; }),
            "indexer_metadata_build: num_speculative_tokens is -1, limits 0 and 2147483647");
  EXPECT_EQ(refused_config([](IndexerConfig& config) { config.max_logits_mb = -1; }),
            "indexer_metadata_build: max_logits_mb is -1, limits 0 and 2147483647");
  EXPECT_EQ(refused_config([](IndexerConfig& config) { config.compress_ratio = -1; }),
            "indexer_metadata_build: compress_ratio is -1, limit 0");
  EXPECT_EQ(refused_config([](IndexerConfig& config) { config.context_parallel.rank = 1; }),
            "indexer_metadata_build: context-parallel rank is 1, limits 0 and 0");
  EXPECT_EQ(refused_config([](IndexerConfig& config) { config.prefill_context_parallel_size = 0; }),
            "indexer_metadata_build: prefill_context_parallel_size is 0, limits 1 and 2147483647");
  EXPECT_EQ(refused_config([](IndexerConfig& config) {
              config.prefill_context_parallel_size = 2;
              config.context_parallel.world = 4;
            }),
            "indexer_metadata_build: prefill_context_parallel_size is 2, limit 1 with a decode "
            "world of 4");
  EXPECT_EQ(refused_config([](IndexerConfig& config) { config.use_fp4_indexer_cache = true; }),
            "indexer_metadata_build: device_family is 90, must be 100 for use_fp4_indexer_cache");
  EXPECT_EQ(refused_config([](IndexerConfig& config) { config.b12x = B12xIndexer{kMaxInt32}; }),
            "indexer_metadata_build: supertile_k_setting is 2147483647, limit 2147483135");
  EXPECT_EQ(refused_config([](IndexerConfig& config) {
              config.max_num_batched_tokens = 1 << 18;
              config.max_model_len = 1024;
              config.block_size = 1;
            }),
            "indexer_metadata_build: expanded block table is 262144 x 1032 entries, limit "
            "268435456");
}

/// A good step of three decodes, to be spoiled in one place; the buffers must stay as they were.
struct BuildCall {
  IndexerConfig config = good_config();
  OwnedBatch owned{{2, 1, 3}, {40, 50, 60}, 4};
  IndexerBatch batch = owned.batch();
};

std::string refused_build(const std::function<void(BuildCall&)>& spoil) {
  BuildCall call;
  IndexerBuffers buffers(good_config());
  std::fill(buffers.decode_seq_lens.begin(), buffers.decode_seq_lens.end(), -999);
  std::fill(buffers.decode_lens.begin(), buffers.decode_lens.end(), -999);
  std::fill(buffers.slot_mapping.begin(), buffers.slot_mapping.end(), -999);
  std::fill(buffers.expanded_table.begin(), buffers.expanded_table.end(), -999);
  const IndexerBuffers before = buffers;
  spoil(call);
  const std::string message =
      refusal_of([&] { indexer_metadata_build(call.config, buffers, call.batch); });
  EXPECT_EQ(buffers.decode_seq_lens, before.decode_seq_lens);
  EXPECT_EQ(buffers.decode_lens, before.decode_lens);
  EXPECT_EQ(buffers.slot_mapping, before.slot_mapping);
  EXPECT_EQ(buffers.expanded_table, before.expanded_table);
  EXPECT_EQ(buffers.expanded_width, before.expanded_width);
  return message;
}

TEST(Refusals, IndexerMetadataBuild) {
  EXPECT_EQ(refused_build([](BuildCall& call) { call.config.block_size = 0; }),
            "indexer_metadata_build: block_size is 0, limits 1 and 2147483647");
  EXPECT_EQ(refused_build([](BuildCall& call) { call.config.max_num_batched_tokens = 9; }),
            "indexer_metadata_build: buffers has extent 8, must have 9");
  EXPECT_EQ(refused_build([](BuildCall& call) { call.owned.seq_lens[2] = -1; }),
            "indexer_metadata_build: seq_lens[2] is -1, limit 0");
  EXPECT_EQ(refused_build([](BuildCall& call) { call.owned.query_start_loc[3] = 2; }),
            "indexer_metadata_build: query_start_loc[3] is 2, at least 3 expected (prefix sums "
            "never fall)");
  EXPECT_EQ(
      refused_build([](BuildCall& call) { call.batch.block_table = {nullptr, {2, 4}, {4, 1}}; }),
      "indexer_metadata_build: block_table has 2 rows, must have at least 3, one a request");
  const Ints two{1, 2};
  EXPECT_EQ(refused_build([&](BuildCall& call) { call.batch.seq_lens_cpu = view(two); }),
            "indexer_metadata_build: seq_lens_cpu has extent 2, must have 3");
  EXPECT_EQ(
      refused_build([&](BuildCall& call) { call.batch.seq_lens_cpu_upper_bound = view(two); }),
      "indexer_metadata_build: seq_lens_cpu_upper_bound has extent 2, must have 3");
  EXPECT_EQ(refused_build([&](BuildCall& call) { call.batch.dcp_local_seq_lens_cpu = view(two); }),
            "indexer_metadata_build: dcp_local_seq_lens_cpu has extent 2, must have 3");
  EXPECT_EQ(refused_build([](BuildCall& call) { call.batch.max_seq_len = 59; }),
            "indexer_metadata_build: max_seq_len is 59, must be at least seq_lens[2], 60");
  EXPECT_EQ(refused_build([](BuildCall& call) { call.batch.max_seq_len = kMaxInt32 + 1; }),
            "indexer_metadata_build: max_seq_len is 2147483648, limits 0 and 2147483647");
  const Longs nine(9, 0);
  EXPECT_EQ(refused_build([&](BuildCall& call) { call.batch.slot_mapping = view(nine); }),
            "indexer_metadata_build: the step has 9 tokens, limit 8 (max_num_batched_tokens)");
  const Longs five(5, 0);
  EXPECT_EQ(refused_build([&](BuildCall& call) { call.batch.slot_mapping = view(five); }),
            "decode_prefill_split: num_tokens is 5, must be at least 6, which the queries hold");
  EXPECT_EQ(
      refused_build([](BuildCall& call) {
        call.config.context_parallel = {2, 0, 16};
        call.config.storage_block_size = 8;
        call.batch.use_dcp_local = true;
      }),
      "compressed_slot_mapping: storage_block_size is 8, must be a multiple of the interleave "
      "16, else a run would reach into the next block's slots");
}

TEST(Refusals, IndexerMetadataBuildOfPrefills) {
  EXPECT_EQ(
      refused_build([](BuildCall& call) {
        call.owned = OwnedBatch({1, 5}, {40, 4}, 4);
        call.batch = call.owned.batch();
        call.config.compress_ratio = 4;
        call.config.lengths = LengthRule::kClamped;
      }),
      "prefill_chunk_metadata: seq_lens[1] is 4, must be at least 5, the tokens of its query");
}

TEST(Refusals, IndexerMetadataBuildOfMoreDecodeRowsThanTheBuffersHold) {
  // Native rows are requests times the longest query, padded requests among them.
  EXPECT_EQ(refused_build([](BuildCall& call) {
              call.config.device_family = 100;
              call.owned = OwnedBatch({3, 0, 3}, {40, 0, 50}, 4);
              call.batch = call.owned.batch();
            }),
            "indexer_metadata_build: the decodes need 9 rows, limit 8 (max_num_batched_tokens)");
}

TEST(Refusals, IndexerMetadataBuildOfATableTooWideToExpand) {
  EXPECT_EQ(refused_build([](BuildCall& call) {
              // Declined by its width, before a column is looked at.
              call.batch.block_table = {call.owned.table.values.data(), {3, 1 << 26}, {0, 0}};
            }),
            "indexer_metadata_build: expanded block table is 8 x 67108864 entries, limit "
            "268435456");
}

TEST(Refusals, DecodeGrid) {
  const Ints decode_lens{1, 3};
  Longs req_id(4, -999), intra(4, -999);
  const auto indices = [&](const Ints& lengths, std::int64_t tokens) {
    return refusal_of(
        [&] { decode_scatter_indices({view(lengths), tokens}, {view(req_id), view(intra)}); });
  };
  EXPECT_EQ(indices({1, -3}, 4),
            "decode_scatter_indices: decode_lens[1] is -3, limits 0 and 2147483647");
  EXPECT_EQ(indices({1, 3}, 5),
            "decode_scatter_indices: num_decode_tokens is 5, must be 4, the sum of decode_lens");
  EXPECT_EQ(indices({1, 2}, 3), "decode_scatter_indices: req_id has extent 4, must have 3");
  EXPECT_EQ(req_id, Longs(4, -999));

  const Ints tokens(4, 7);
  Ints grid(6, -999);
  const auto scatter = [&](std::int64_t requests, std::int64_t longest, std::int64_t width) {
    return refusal_of([&] {
      scatter_decode_tokens_by_request<std::int32_t>(
          {view(decode_lens), {tokens.data(), {4, 1}, {1, 1}}, -1},
          View<std::int32_t, 3>{
              grid.data(), {requests, longest, width}, {longest * width, width, 1}});
    });
  };
  EXPECT_EQ(scatter(2, 2, 1),
            "scatter_decode_tokens_by_request: decode_lens[1] is 3, limits 0 and 2");
  EXPECT_EQ(scatter(3, 3, 1),
            "scatter_decode_tokens_by_request: scattered has extent 3, must have 2");
  EXPECT_EQ(scatter(2, 3, 2),
            "scatter_decode_tokens_by_request: scattered (width) has extent 2, must have 1");
  EXPECT_EQ(grid, Ints(6, -999));

  Ints unpacked(5, -999);
  const auto gather = [&](std::int64_t count, std::int64_t width) {
    return refusal_of([&] {
      gather_decode_tokens_by_request<std::int32_t>(
          {view(decode_lens), {grid.data(), {2, 3, 1}, {3, 1, 1}}},
          View<std::int32_t, 2>{unpacked.data(), {count, width}, {width, 1}});
    });
  };
  EXPECT_EQ(
      gather(5, 1),
      "gather_decode_tokens_by_request: num_decode_tokens is 5, must be 4, the sum of decode_lens");
  EXPECT_EQ(gather(4, 2),
            "gather_decode_tokens_by_request: tokens (width) has extent 2, must have 1");
  EXPECT_EQ(unpacked, Ints(5, -999));
}

TEST(Refusals, GatherNeedsTheWholeGrid) {
  const Ints decode_lens{1, 1};
  const Ints grid(3, 0);
  Ints unpacked(2, -999);
  EXPECT_EQ(refusal_of([&] {
              gather_decode_tokens_by_request<std::int32_t>(
                  {view(decode_lens), {grid.data(), {3, 1, 1}, {1, 1, 1}}},
                  View<std::int32_t, 2>{unpacked.data(), {2, 1}, {1, 1}});
            }),
            "gather_decode_tokens_by_request: scattered has extent 3, must have 2");
}

TEST(Refusals, DecodeTopkSeqLens) {
  const Ints decode_lens{1, 2};
  Ints lengths(4, -999);
  const auto with = [&](const Longs& positions, std::int64_t tokens, std::int64_t batch,
                        std::int64_t next_n, bool padded) {
    const std::string message = refusal_of([&] {
      decode_topk_seq_lens({view(positions), view(decode_lens), tokens, batch, next_n, padded},
                           view(lengths));
    });
    EXPECT_EQ(lengths, Ints(4, -999));
    return message;
  };
  EXPECT_EQ(with({1, 2, 3}, 3, -1, 2, true),
            "decode_topk_seq_lens: batch_size is -1, limits 0 and 2147483647");
  EXPECT_EQ(with({1, 2, 3}, 3, 2, 0, true),
            "decode_topk_seq_lens: next_n is 0, limits 1 and 2147483647");
  EXPECT_EQ(with({1, 2, 3}, 3, 3, 2, true),
            "decode_topk_seq_lens: topk_seq_lens has extent 4, must have 6");
  EXPECT_EQ(with({1, 2, 3}, 3, 4, 1, true),
            "decode_topk_seq_lens: decode_lens has extent 2, must have 4");
  EXPECT_EQ(with({1, 2, 3}, 2, 2, 2, true),
            "decode_topk_seq_lens: num_decode_tokens is 2, must be 3, the sum of decode_lens");
  EXPECT_EQ(with({1, 2}, 3, 2, 2, true),
            "decode_topk_seq_lens: positions has 2 entries, must have at least 3, one a token");
  EXPECT_EQ(with({1, 2, 3}, 3, 2, 2, false),
            "decode_topk_seq_lens: positions has 3 entries, must have at least 4, one a token");
  EXPECT_EQ(with({1, -2, 3}, 3, 2, 2, true),
            "decode_topk_seq_lens: positions[1] is -2, limits -1 and 2147483646");
  EXPECT_EQ(with({1, 2, kMaxInt32}, 3, 2, 2, true),
            "decode_topk_seq_lens: positions[2] is 2147483647, limits -1 and 2147483646");
}

TEST(Refusals, ShortDecodeCausalFill) {
  const Longs positions{0, 1};
  Ints buffer(6, -9);
  const auto with = [&](std::int64_t tokens, std::int64_t rows) {
    const std::string message = refusal_of([&] {
      short_decode_causal_fill({view(positions), tokens, 2}, {buffer.data(), {rows, 2}, {2, 1}});
    });
    EXPECT_EQ(buffer, Ints(6, -9));
    return message;
  };
  EXPECT_EQ(with(-1, 3), "short_decode_causal_fill: num_decode_tokens is -1, limit 0");
  EXPECT_EQ(with(3, 3),
            "short_decode_causal_fill: positions has 2 entries, must have at least 3, one a token");
  EXPECT_EQ(with(2, 1),
            "short_decode_causal_fill: topk_buffer has 1 rows, must have at least 2, one a token");
}

TEST(Refusals, WorkspaceShapesAndCacheViews) {
  using Format = IndexerCacheFormat;
  const auto shapes = [](std::int64_t total, std::int64_t head_dim, Format format, DType type) {
    return refusal_of([&] { gather_workspace_shapes(total, head_dim, format, type); });
  };
  EXPECT_EQ(shapes(-1, 128, Format::kFp8, DType::kFloat8E4M3FN),
            "gather_workspace_shapes: total_seq_lens is -1, limit 0");
  EXPECT_EQ(shapes(1, 0, Format::kFp8, DType::kFloat8E4M3FN),
            "gather_workspace_shapes: head_dim is 0, limits 1 and 2147483647");
  EXPECT_EQ(shapes(1, 100, Format::kMxfp4, DType::kFloat8E4M3FN),
            "gather_workspace_shapes: head_dim is 100, must be a multiple of the MXFP4 block 32");
  EXPECT_EQ(shapes(1, 128, Format::kFp8, DType::kBFloat16),
            "gather_workspace_shapes: fp8_type bfloat16 has 2 bytes, limit 1");

  const auto cache_view = [](const Layout& cache, DType type, std::int64_t head_dim,
                             Format format) {
    return refusal_of([&] { kv_cache_as_quant_view(cache, type, head_dim, format); });
  };
  const Layout cache = Layout::dense({3, 64, 68});
  EXPECT_EQ(cache_view(Layout::dense({3, 64}), DType::kUInt8, 128, Format::kFp8),
            "kv_cache_as_quant_view: kv_cache has 2 axes, must have 3");
  EXPECT_EQ(cache_view(cache, DType::kUInt8, 0, Format::kFp8),
            "kv_cache_as_quant_view: head_dim is 0, limits 1 and 2147483647");
  EXPECT_EQ(cache_view(cache, DType::kFloat8E4M3FN, 128, Format::kMxfp4),
            "kv_cache_as_quant_view: kv_cache is float8_e4m3fn, must be uint8 for pages of MXFP4");
  EXPECT_EQ(cache_view(cache, DType::kUInt8, 100, Format::kMxfp4),
            "kv_cache_as_quant_view: head_dim is 100, must be a multiple of the MXFP4 block 32");
  EXPECT_EQ(cache_view(cache, DType::kUInt8, 256, Format::kMxfp4),
            "kv_cache_as_quant_view: kv_cache has a stride of 4352 bytes, must have at least 8704, "
            "64 keys of 136");
}

TEST(Refusals, ExpandPools) {
  Ints tokens(7, -999);
  const auto with = [&](const Ints& pools, const Ints& seq_lens, std::int64_t pool_size,
                        std::int64_t columns) {
    const std::int64_t width = static_cast<std::int64_t>(pools.size());
    const std::string message = refusal_of([&] {
      expand_pools_and_append_tail(
          {{pools.data(), {1, width}, {width, 1}}, view(seq_lens), pool_size},
          {tokens.data(), {1, columns}, {columns, 1}});
    });
    EXPECT_EQ(tokens, Ints(7, -999));
    return message;
  };
  EXPECT_EQ(with({0}, {9}, 0, 7), "glm5next_expand_pools: pool_size is 0, limits 1 and 2147483647");
  EXPECT_EQ(with({0}, {-9}, 4, 7), "glm5next_expand_pools: seq_lens[0] is -9, limit 0");
  EXPECT_EQ(with({0}, {9, 9}, 4, 7), "glm5next_expand_pools: seq_lens has extent 2, must have 1");
  EXPECT_EQ(with({-2}, {9}, 4, 7),
            "glm5next_expand_pools: pool_ids[0, 0] is -2, limits -1 and 1 (complete pools of the "
            "row)");
  EXPECT_EQ(with({2}, {9}, 4, 7),
            "glm5next_expand_pools: pool_ids[0, 0] is 2, limits -1 and 1 (complete pools of the "
            "row)");
  EXPECT_EQ(with({0}, {9}, 4, 6),
            "glm5next_expand_pools: token_ids (columns) has extent 6, must have 7");
  EXPECT_EQ(with({0, 0}, {9}, 1 << 30, 7),
            "glm5next_expand_pools: 2 pools of 1073741824 tokens a row, limit 2147483647 columns");
}

}  // namespace
}  // namespace monoref
