// Properties of the whole builder on drawn steps: fresh buffers against reused ones, padding, and
// what must not matter.
#include <gtest/gtest.h>

#include <optional>

#include "reference/stages/compressed_slot_mapping.hpp"
#include "tests/indexer/batch.hpp"

namespace monoref {
namespace {

IndexerConfig drawn_config(Draw& draw) {
  IndexerConfig config;
  config.max_model_len = 2048;
  config.max_num_batched_tokens = 256;
  config.num_speculative_tokens = draw.between(0, 3);
  config.device_family = draw.one_of<std::int64_t>({90, 100});
  config.compress_ratio = draw.one_of<std::int64_t>({0, 1, 4, 128});
  config.context_parallel.world = draw.one_of<std::int64_t>({1, 2, 4});
  config.context_parallel.rank = draw.between(0, config.context_parallel.world - 1);
  config.context_parallel.interleave = draw.one_of<std::int64_t>({1, 16});
  config.max_logits_mb = draw.between(0, 1);
  config.lengths = draw.one_of<LengthRule>({LengthRule::kAsSeed, LengthRule::kClamped});
  if (config.lengths == LengthRule::kAsSeed)  // which divides by it
    config.compress_ratio = std::max<std::int64_t>(config.compress_ratio, 1);
  if (draw.between(0, 3) == 0) config.b12x.emplace();
  return config;
}

/// Up to six decodes and three prefills; decodes can be uniform, ragged, empty or short.
OwnedBatch drawn_batch(Draw& draw, const IndexerConfig& config) {
  Ints query_lens, seq_lens;
  const std::int64_t decodes = draw.between(0, 6);
  const bool uniform = draw.between(0, 1) == 0;
  const std::int64_t same = draw.between(1, config.next_n());
  for (std::int64_t request = 0; request < decodes; ++request) {
    query_lens.push_back(
        static_cast<std::int32_t>(uniform ? same : draw.between(0, config.next_n())));
    // Nothing shorter than its query: uniform splits turn what follows an odd one into prefills.
    // The original has no largest length of decodes that are all empty.
    if (config.lengths == LengthRule::kAsSeed && request == 0)
      query_lens.back() = std::max(query_lens.back(), 1);
    seq_lens.push_back(query_lens.back() + static_cast<std::int32_t>(draw.between(0, 1000)));
  }
  const std::int64_t prefills = draw.between(decodes == 0 ? 1 : 0, 3);
  for (std::int64_t request = 0; request < prefills; ++request) {
    query_lens.push_back(static_cast<std::int32_t>(draw.between(config.next_n() + 1, 60)));
    seq_lens.push_back(query_lens.back() + static_cast<std::int32_t>(draw.between(0, 1000)));
  }
  // The original's table of uniform batches is as wide as earlier steps have made it.
  const std::int64_t widest = config.lengths == LengthRule::kAsSeed ? 16 : 60;
  OwnedBatch owned(query_lens, seq_lens, draw.between(1, widest), draw.between(0, 3));
  owned.use_dcp_local = draw.between(0, 1) == 1;
  return owned;
}

/// Everything a step hands out, by value.
struct Snapshot {
  DecodePrefillSplit split;
  Longs slots;
  std::int64_t decode_max_seq_len = -1;
  std::int64_t active_width = -1;
  bool requires_padding = false;
  Ints decode_seq_lens;
  Ints decode_lens;
  Ints decode_table;
  std::vector<PrefillChunkShape> chunk_shapes;
  std::vector<Ints> chunk_tensors;

  bool operator==(const Snapshot&) const = default;
};

/// `table_columns`: the reused table can be wider than a fresh one, by columns of zeros.
Snapshot snapshot(const IndexerMetadata& metadata, std::int64_t table_columns) {
  Snapshot all;
  all.split = metadata.split;
  all.slots = values_of(metadata.slot_mapping);
  if (metadata.decode) {
    const IndexerDecode& decode = *metadata.decode;
    all.decode_max_seq_len = decode.max_seq_len;
    all.active_width = decode.active_width.value_or(-1);
    all.requires_padding = decode.requires_padding;
    all.decode_seq_lens = values_of(decode.seq_lens);
    all.decode_lens = values_of(decode.decode_lens);
    for (std::int64_t row = 0; row < decode.block_table.dim(0); ++row) {
      for (std::int64_t column = 0; column < decode.block_table.dim(1); ++column) {
        const std::int32_t block = decode.block_table(row, column);
        if (column < table_columns)
          all.decode_table.push_back(block);
        else
          EXPECT_EQ(block, 0);
      }
    }
  }
  if (metadata.prefill) {
    for (const IndexerPrefillChunk& chunk : *metadata.prefill) {
      all.chunk_shapes.push_back(chunk.shape);
      all.chunk_tensors.insert(all.chunk_tensors.end(),
                               {values_of(chunk.block_table), chunk.cu_seqlen_ks,
                                chunk.cu_seqlen_ke, chunk.cu_seq_lens, chunk.token_to_seq});
    }
  }
  return all;
}

Snapshot build(const IndexerConfig& config, IndexerBuffers& buffers, const OwnedBatch& owned) {
  return snapshot(indexer_metadata_build(config, buffers, owned.batch()), owned.table.width);
}

Snapshot build_fresh(const IndexerConfig& config, const OwnedBatch& owned) {
  IndexerBuffers buffers(config);
  return build(config, buffers, owned);
}

TEST(Steps, ReusedBuffersGiveWhatFreshOnesGive) {
  std::int64_t flattened = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Draw draw(seed);
    const IndexerConfig config = drawn_config(draw);
    IndexerBuffers reused(config);
    const std::int64_t steps = draw.between(2, 4);
    for (std::int64_t step = 0; step < steps; ++step) {
      const OwnedBatch owned = drawn_batch(draw, config);
      EXPECT_EQ(build(config, reused, owned), build_fresh(config, owned))
          << "seed " << seed << " step " << step;
      flattened += reused.expanded_width > 40;  // 2048 / 64 and eight: it has grown
    }
  }
  EXPECT_GT(flattened, 10);
}

TEST(Steps, AFallingBatchLeavesNoLengthBehind) {
  IndexerConfig config;
  config.max_model_len = 256;
  config.max_num_batched_tokens = 16;
  config.num_speculative_tokens = 2;
  IndexerBuffers buffers(config);
  const OwnedBatch wide({3, 3, 3}, {50, 60, 70}, 4);
  const OwnedBatch narrow({2, 1}, {30, 40}, 4);
  indexer_metadata_build(config, buffers, wide.batch());
  indexer_metadata_build(config, buffers, narrow.batch());
  Ints expected{29, 30, 40};
  expected.resize(16, 0);
  EXPECT_EQ(buffers.decode_seq_lens, expected);
}

TEST(Steps, RatiosZeroAndOneAreTheSameStep) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Draw draw(seed);
    IndexerConfig config = drawn_config(draw);
    config.lengths = LengthRule::kClamped;
    const OwnedBatch owned = drawn_batch(draw, config);
    config.compress_ratio = 0;
    const Snapshot none = build_fresh(config, owned);
    config.compress_ratio = 1;
    EXPECT_EQ(build_fresh(config, owned), none);
  }
}

/// Padding requests and tokens behind a batch of decodes change no live row.
TEST(Steps, PaddingChangesNoLiveRow) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Draw draw(seed);
    const IndexerConfig config = drawn_config(draw);
    const std::int64_t requests = draw.between(1, 5);
    const auto same = static_cast<std::int32_t>(draw.between(1, config.next_n()));
    Ints query_lens, seq_lens;
    for (std::int64_t request = 0; request < requests; ++request) {
      const bool ragged = config.use_flattening();
      query_lens.push_back(ragged ? static_cast<std::int32_t>(draw.between(1, config.next_n()))
                                  : same);
      seq_lens.push_back(query_lens.back() + static_cast<std::int32_t>(draw.between(0, 900)));
    }
    const OwnedBatch live(query_lens, seq_lens, 16);
    const std::int64_t padding = draw.between(1, 4);
    for (std::int64_t request = 0; request < padding; ++request) {
      query_lens.push_back(0);
      seq_lens.push_back(0);
    }
    const OwnedBatch padded(query_lens, seq_lens, 16, draw.between(0, 5));

    const Snapshot expected = build_fresh(config, live);
    const Snapshot got = build_fresh(config, padded);
    const auto starts_with = [](const auto& longer, const auto& shorter) {
      return longer.size() >= shorter.size() &&
             std::equal(shorter.begin(), shorter.end(), longer.begin());
    };
    EXPECT_TRUE(starts_with(got.decode_seq_lens, expected.decode_seq_lens)) << seed;
    EXPECT_TRUE(starts_with(got.decode_table, expected.decode_table)) << seed;
    EXPECT_TRUE(starts_with(got.decode_lens, expected.decode_lens)) << seed;
    EXPECT_TRUE(starts_with(got.slots, expected.slots)) << seed;
    EXPECT_EQ(got.decode_max_seq_len, expected.decode_max_seq_len) << seed;
  }
}

/// Nothing behind the columns of the source table is read, whatever lies there.
TEST(Steps, PoisonBehindTheSourceTableIsNotRead) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Draw draw(seed);
    const IndexerConfig config = drawn_config(draw);
    OwnedBatch owned = drawn_batch(draw, config);
    const Snapshot dense = build_fresh(config, owned);
    owned.table = Table(owned.table.rows, owned.table.width, owned.table.width + 5);
    EXPECT_EQ(build_fresh(config, owned), dense);
  }
}

/// The rows of the gather workspace that any chunk needs are rows it has.
TEST(Steps, ChunksFitThePrefillBuffer) {
  std::int64_t cut = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Draw draw(seed);
    IndexerConfig config = drawn_config(draw);
    config.b12x.reset();
    config.max_model_len = 100;  // a buffer of 4000 rows
    config.max_logits_mb = 64;
    config.max_num_batched_tokens = 512;
    Ints query_lens, seq_lens;
    for (std::int64_t request = 0; request < 90; ++request) {
      query_lens.push_back(4);
      seq_lens.push_back(4 + static_cast<std::int32_t>(draw.between(0, 96)));
    }
    query_lens[0] = 5;  // longer than any decode: all are prefills
    seq_lens[0] += 1;
    const Snapshot step = build_fresh(config, OwnedBatch(query_lens, seq_lens, 4));
    for (const PrefillChunkShape& shape : step.chunk_shapes) EXPECT_LE(shape.total_seq_lens, 4000);
    cut += step.chunk_shapes.size() > 1;
  }
  EXPECT_GT(cut, 10);
}

}  // namespace
}  // namespace monoref
