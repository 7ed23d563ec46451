// Properties of the indexer stages on drawn inputs. Expected values come from counting keys one by
// one, or from the same stage asked another way; never from the formula under test.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "reference/rules/glm5next_expand_pools.hpp"
#include "reference/stages/compressed_slot_mapping.hpp"
#include "reference/stages/context_parallel_lengths.hpp"
#include "reference/stages/glm5next_indexer.hpp"
#include "tests/indexer/batch.hpp"

namespace monoref {
namespace {

ContextParallel drawn_ranks(Draw& draw) {
  ContextParallel ranks;
  ranks.world = draw.one_of<std::int64_t>({1, 2, 3, 4, 8});
  ranks.rank = draw.between(0, ranks.world - 1);
  ranks.interleave = draw.one_of<std::int64_t>({1, 2, 4, 16, 64});
  return ranks;
}

/// Deals keys to ranks like cards: a run to each, then around again.
class Dealer {
 public:
  explicit Dealer(const ContextParallel& ranks) : ranks_(ranks) {}

  /// The rank that gets the next key.
  std::int64_t next() {
    const std::int64_t rank = rank_;
    if (++dealt_ == ranks_.interleave) {
      dealt_ = 0;
      rank_ = rank_ + 1 == ranks_.world ? 0 : rank_ + 1;
    }
    return rank;
  }

 private:
  ContextParallel ranks_;
  std::int64_t rank_ = 0;
  std::int64_t dealt_ = 0;
};

/// visible[n]: keys on this rank that the first n tokens of a sequence complete.
Longs visible_keys(std::int64_t tokens, std::int64_t ratio, const ContextParallel& ranks) {
  Dealer dealer(ranks);
  Longs visible{0};
  std::int64_t open = 0;
  for (std::int64_t token = 0; token < tokens; ++token) {
    std::int64_t count = visible.back();
    if (++open >= ratio) {
      open = 0;
      if (dealer.next() == ranks.rank) ++count;
    }
    visible.push_back(count);
  }
  return visible;
}

TEST(Properties, LocalLengthsCountTheCardsDealt) {
  for (const std::int64_t world : {1, 2, 3, 4, 8}) {
    for (const std::int64_t interleave : {1, 2, 4, 64}) {
      Dealer dealer({world, 0, interleave});
      Longs held(static_cast<std::size_t>(world), 0);
      for (std::int64_t length = 0; length <= 600; ++length) {
        std::int64_t sum = 0;
        for (std::int64_t rank = 0; rank < world; ++rank) {
          const ContextParallel ranks{world, rank, interleave};
          EXPECT_EQ(local_length(length, ranks), held[static_cast<std::size_t>(rank)]);
          sum += local_length(length, ranks);
        }
        EXPECT_EQ(sum, length);
        const ContextParallel any{world, 0, interleave};
        const std::int64_t owner = dealer.next();
        EXPECT_EQ(owner_rank(length, any), owner);
        EXPECT_EQ(local_position(length, any), held[static_cast<std::size_t>(owner)]++);
      }
    }
  }
}

TEST(Properties, LocalLengthsOfNegativeLengthsStillAddUp) {
  for (std::int64_t length = -300; length < 0; ++length) {
    for (const std::int64_t interleave : {1, 4, 64}) {
      std::int64_t sum = 0;
      for (std::int64_t rank = 0; rank < 4; ++rank)
        sum += local_length(length, {4, rank, interleave});
      EXPECT_EQ(sum, length);
    }
  }
}

TEST(Properties, DecodeRowsSeeTheKeysCompletedBeforeThem) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Draw draw(seed);
    const std::int64_t requests = draw.between(1, 6);
    const ContextParallel ranks = drawn_ranks(draw);
    const std::int64_t ratio = draw.one_of<std::int64_t>({0, 1, 2, 4, 128});
    const auto query_len = [&] { return static_cast<std::int32_t>(draw.between(0, 4)); };
    Ints query_lens, seq_lens;
    for (std::int64_t request = 0; request < requests; ++request) {
      query_lens.push_back(query_len());
      seq_lens.push_back(query_lens.back() + static_cast<std::int32_t>(draw.between(0, 600)));
    }
    query_lens[0] = static_cast<std::int32_t>(draw.between(2, 4));  // so that rows are expanded
    seq_lens[0] = std::max(seq_lens[0], query_lens[0]);
    const Ints query_start_loc = prefix_sums(query_lens);
    const std::int64_t padding = draw.between(0, 3);
    const Table table(requests, draw.between(1, 5), draw.between(1, 9));
    const Expanded expanded = expand({.query_start_loc = view(query_start_loc),
                                      .seq_lens = view(seq_lens),
                                      .block_table = table.view(),
                                      .num_decode_tokens = query_start_loc.back() + padding,
                                      .next_n = 4,
                                      .use_flattening = true,
                                      .compress_ratio = ratio,
                                      .context_parallel = ranks},
                                     draw.between(0, 3));
    std::size_t row = 0;
    for (std::int64_t request = 0; request < requests; ++request) {
      const auto at = static_cast<std::size_t>(request);
      const Longs visible = visible_keys(seq_lens[at], ratio, ranks);
      for (std::int32_t left = query_lens[at] - 1; left >= 0; --left, ++row) {
        EXPECT_EQ(expanded.seq_lens[row], visible[static_cast<std::size_t>(seq_lens[at] - left)]);
        Ints expected = row_of(table.view(), request);
        expected.resize(static_cast<std::size_t>(expanded.table_width), 0);
        EXPECT_EQ(expanded.table_row(static_cast<std::int64_t>(row)), expected);
      }
    }
    for (; row < expanded.seq_lens.size(); ++row) EXPECT_EQ(expanded.seq_lens[row], 0);
  }
}

TEST(Properties, RowsAreThoseOfTheRequestAlone) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Draw draw(seed);
    const std::int64_t requests = draw.between(2, 6);
    Ints query_lens, seq_lens;
    for (std::int64_t request = 0; request < requests; ++request) {
      query_lens.push_back(static_cast<std::int32_t>(draw.between(1, 3)));
      seq_lens.push_back(static_cast<std::int32_t>(draw.between(0, 300)));
    }
    query_lens.back() = 2;  // so that the batch is expanded
    const Ints query_start_loc = prefix_sums(query_lens);
    const Table table(requests, 3);
    DecodeExpandInput input{.query_start_loc = view(query_start_loc),
                            .seq_lens = view(seq_lens),
                            .block_table = table.view(),
                            .num_decode_tokens = query_start_loc.back(),
                            .next_n = 3,
                            .use_flattening = true,
                            .compress_ratio = draw.one_of<std::int64_t>({1, 4}),
                            .context_parallel = drawn_ranks(draw),
                            .lengths = LengthRule::kClamped};
    const Expanded together = expand(input);
    Ints lengths, blocks;
    for (std::int64_t request = 0; request < requests; ++request) {
      const auto at = static_cast<std::size_t>(request);
      const Ints own_start{0, query_lens[at]};
      const Ints own_length{seq_lens[at]};
      input.query_start_loc = view(own_start);
      input.seq_lens = view(own_length);
      input.block_table = {table.values.data() + request * table.stride, {1, 3}, {3, 1}};
      input.num_decode_tokens = query_lens[at];
      const Expanded alone = expand(input);
      lengths.insert(lengths.end(), alone.seq_lens.begin(), alone.seq_lens.end());
      blocks.insert(blocks.end(), alone.table.begin(), alone.table.end());
    }
    EXPECT_EQ(together.seq_lens, lengths);
    EXPECT_EQ(together.table, blocks);
  }
}

TEST(Properties, EveryKeyHasOneSlotOnOneRankInTheOrderItArrives) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Draw draw(seed);
    ContextParallel ranks = drawn_ranks(draw);
    const std::int64_t ratio = draw.one_of<std::int64_t>({0, 1, 2, 4, 128});
    const std::int64_t block = ranks.interleave * draw.between(1, 4);
    const auto tokens = static_cast<std::int32_t>(draw.between(1, 900));
    const Ints query_start_loc{0, tokens};
    const Ints seq_lens{tokens};
    const Table table(1, (tokens + block - 1) / block);
    std::map<std::int64_t, Longs> slots;
    for (ranks.rank = 0; ranks.rank < ranks.world; ++ranks.rank) {
      Longs& mine = slots[ranks.rank];
      mine.assign(static_cast<std::size_t>(tokens), -999);
      compressed_slot_mapping(
          {view(query_start_loc), view(seq_lens), table.view(), {block, ratio, ranks}},
          {view(mine)});
    }
    Dealer dealer(ranks);
    std::map<std::int64_t, std::int64_t> held;
    std::int64_t open = 0;
    for (std::size_t token = 0; token < static_cast<std::size_t>(tokens); ++token) {
      const bool completes = ++open >= ratio;
      const std::int64_t owner = completes ? dealer.next() : -1;
      if (completes) open = 0;
      for (std::int64_t rank = 0; rank < ranks.world; ++rank) {
        std::int64_t expected = -1;
        if (rank == owner) {
          const std::int64_t key = held[rank]++;
          expected = table.values[static_cast<std::size_t>(key / block)] * block + key % block;
        }
        EXPECT_EQ(slots[rank][token], expected) << "seed " << seed << " token " << token;
      }
    }
  }
}

/// The queries of one sequence in one piece: ke of position p at [p].
Longs one_pass(std::int64_t tokens, std::int64_t ratio, const ContextParallel& ranks) {
  const Longs visible = visible_keys(tokens, ratio, ranks);
  return {visible.begin() + 1, visible.end()};
}

TEST(Properties, AnyCutOfAPrefillInStepsGivesTheUnion) {
  for (const std::int64_t ratio : {0, 1, 4, 128}) {
    for (const ContextParallel& ranks : {ContextParallel{}, ContextParallel{4, 2, 16}}) {
      constexpr std::int32_t kTokens = 300;
      const Longs whole = one_pass(kTokens, ratio, ranks);
      for (std::int32_t cut = 0; cut <= kTokens; ++cut) {
        Longs seen;
        for (const auto& [start, stop] : {std::pair{0, cut}, std::pair{cut, kTokens}}) {
          if (start == stop) continue;
          const Ints query_start_loc{0, stop - start};
          const Ints seq_lens{stop};
          const auto chunk = chunk_of({.query_start_loc = view(query_start_loc),
                                       .seq_lens = view(seq_lens),
                                       .chunk = {0, 1, 0, stop - start},
                                       .compress_ratio = ratio,
                                       .context_parallel = ranks});
          seen.insert(seen.end(), chunk.cu_seqlen_ke.begin(), chunk.cu_seqlen_ke.end());
          EXPECT_EQ(chunk.shape.total_seq_lens, whole[static_cast<std::size_t>(stop) - 1]);
        }
        EXPECT_EQ(seen, whole) << "cut " << cut << " ratio " << ratio;
      }
    }
  }
}

TEST(Properties, AnyCutOfAChunkInItsQueriesGivesTheUnion) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Draw draw(seed);
    const std::int64_t requests = draw.between(1, 5);
    Ints query_lens, seq_lens;
    for (std::int64_t request = 0; request < requests; ++request) {
      query_lens.push_back(static_cast<std::int32_t>(draw.between(0, 12)));
      seq_lens.push_back(query_lens.back() + static_cast<std::int32_t>(draw.between(0, 400)));
    }
    const Ints query_start_loc = prefix_sums(query_lens);
    PrefillChunkMetadataInput input{.query_start_loc = view(query_start_loc),
                                    .seq_lens = view(seq_lens),
                                    .chunk = {0, requests, 0, query_start_loc.back()},
                                    .compress_ratio = draw.one_of<std::int64_t>({1, 4, 128}),
                                    .context_parallel = drawn_ranks(draw)};
    const IndexerPrefillChunk whole = chunk_of(input);
    Ints first, last;
    std::int64_t at = 0;
    while (at < query_start_loc.back()) {
      const std::int64_t stop =
          std::min<std::int64_t>(query_start_loc.back(), at + draw.between(1, 9));
      input.chunk.query_start = at;
      input.chunk.query_stop = stop;
      const IndexerPrefillChunk piece = chunk_of(input);
      EXPECT_EQ(piece.shape.skip_kv_gather, at > 0);
      EXPECT_EQ(piece.shape.token_start, at);
      EXPECT_EQ(piece.shape.token_end, stop);
      EXPECT_EQ(piece.token_to_seq, whole.token_to_seq);
      EXPECT_EQ(piece.cu_seq_lens, whole.cu_seq_lens);
      first.insert(first.end(), piece.cu_seqlen_ks.begin(), piece.cu_seqlen_ks.end());
      last.insert(last.end(), piece.cu_seqlen_ke.begin(), piece.cu_seqlen_ke.end());
      at = stop;
    }
    EXPECT_EQ(first, whole.cu_seqlen_ks);
    EXPECT_EQ(last, whole.cu_seqlen_ke);
  }
}

TEST(Properties, ChunkRowsAreMonotoneAndThoseOfTheirRequest) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Draw draw(seed);
    const std::int64_t requests = draw.between(1, 6);
    const ContextParallel ranks = drawn_ranks(draw);
    const std::int64_t ratio = draw.one_of<std::int64_t>({0, 1, 2, 4, 128});
    Ints query_lens, seq_lens;
    for (std::int64_t request = 0; request < requests; ++request) {
      query_lens.push_back(static_cast<std::int32_t>(draw.between(0, 40)));
      seq_lens.push_back(query_lens.back() + static_cast<std::int32_t>(draw.between(0, 300)));
    }
    const Ints query_start_loc = prefix_sums(query_lens);
    const IndexerPrefillChunk chunk = chunk_of({.query_start_loc = view(query_start_loc),
                                                .seq_lens = view(seq_lens),
                                                .chunk = {0, requests, 0, query_start_loc.back()},
                                                .compress_ratio = ratio,
                                                .context_parallel = ranks});
    EXPECT_EQ(chunk.cu_seq_lens.front(), 0);
    EXPECT_EQ(chunk.cu_seq_lens.back(), chunk.shape.total_seq_lens);
    for (std::size_t request = 0; request < query_lens.size(); ++request) {
      const std::int32_t first = chunk.cu_seq_lens[request];
      const std::int32_t last = chunk.cu_seq_lens[request + 1];
      EXPECT_LE(first, last);
      const Longs visible = visible_keys(seq_lens[request], ratio, ranks);
      EXPECT_EQ(last - first, visible.back());
      for (std::int32_t row = first; row < last; ++row)
        EXPECT_EQ(chunk.token_to_seq[static_cast<std::size_t>(row)],
                  static_cast<std::int32_t>(request));
      for (std::int32_t query = 0; query < query_lens[request]; ++query) {
        const auto at = static_cast<std::size_t>(query_start_loc[request] + query);
        const auto seen =
            static_cast<std::size_t>(seq_lens[request] - query_lens[request] + query + 1);
        EXPECT_EQ(chunk.cu_seqlen_ks[at], first);
        EXPECT_EQ(chunk.cu_seqlen_ke[at], first + visible[seen]);
        EXPECT_LE(chunk.cu_seqlen_ke[at], last);
      }
    }
  }
}

TEST(Properties, ChunksCoverEveryQueryOnceAndKeepTheirBudgets) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Draw draw(seed);
    const std::int64_t requests = draw.between(0, 8);
    Longs keys, queries;
    for (std::int64_t request = 0; request < requests; ++request) {
      keys.push_back(draw.one_of<std::int64_t>({0, 1, draw.between(1, 50), 1000}));
      queries.push_back(draw.one_of<std::int64_t>({0, 1, draw.between(1, 50)}));
    }
    const PrefillChunkSplitInput input{
        view(keys),         view(queries),       draw.between(0, 2000), draw.between(0, 40000),
        draw.between(0, 5), LengthRule::kClamped};
    std::set<std::pair<std::int64_t, std::int64_t>> covered;
    std::int64_t total = 0;
    for (const PrefillChunk& chunk : prefill_chunk_split(input)) {
      std::int64_t chunk_keys = 0;
      std::int64_t query = 0;
      for (std::int64_t at = chunk.request_start; at < chunk.request_stop; ++at) {
        const auto request = static_cast<std::size_t>(at - input.request_offset);
        chunk_keys += keys[request];
        for (std::int64_t own = 0; own < queries[request]; ++own, ++query) {
          if (query < chunk.query_start || query >= chunk.query_stop) continue;
          EXPECT_TRUE(covered.insert({at, own}).second);
        }
      }
      const std::int64_t chunk_queries = chunk.query_stop - chunk.query_start;
      EXPECT_GT(chunk_queries, 0);
      EXPECT_LE(chunk.query_stop, query);
      const bool alone = chunk.request_stop - chunk.request_start == 1;
      EXPECT_TRUE(alone || chunk_keys <= input.workspace_size);
      EXPECT_TRUE(chunk_queries == 1 || chunk_queries * chunk_keys * 4 <= input.max_logits_bytes);
      total += chunk_queries;
    }
    std::int64_t expected = 0;
    for (const std::int64_t query : queries) expected += query;
    EXPECT_EQ(total, expected);
    EXPECT_EQ(static_cast<std::int64_t>(covered.size()), expected);
  }
}

TEST(Properties, PackingKeepsRaggedTokensWhoseSumDivides) {
  std::int64_t dividing = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Draw draw(seed);
    const std::int64_t requests = draw.between(1, 6);
    Ints decode_lens;
    for (std::int64_t request = 0; request < requests; ++request)
      decode_lens.push_back(static_cast<std::int32_t>(draw.between(0, 4)));
    const std::int64_t count = prefix_sums(decode_lens).back();
    const bool ragged = std::set<std::int32_t>(decode_lens.begin(), decode_lens.end()).size() > 1;
    if (ragged && count % requests == 0) ++dividing;

    Ints tokens;
    for (std::int32_t token = 0; token < count; ++token) tokens.push_back(100 + token);
    Ints grid(static_cast<std::size_t>(requests * 4), -999);
    const View<std::int32_t, 3> scattered{grid.data(), {requests, 4, 1}, {4, 1, 1}};
    scatter_decode_tokens_by_request<std::int32_t>(
        {view(decode_lens), {tokens.data(), {count, 1}, {1, 1}}, -1}, scattered);

    Longs req_id(tokens.size(), -999), intra(tokens.size(), -999);
    decode_scatter_indices({view(decode_lens), count}, {view(req_id), view(intra)});
    std::size_t live = 0;
    for (const std::int32_t place : grid) live += place != -1;
    EXPECT_EQ(live, tokens.size());
    for (std::size_t token = 0; token < tokens.size(); ++token)
      EXPECT_EQ(scattered(req_id[token], intra[token], 0), tokens[token]);

    Ints unpacked(tokens.size(), -999);
    gather_decode_tokens_by_request<std::int32_t>(
        {view(decode_lens), scattered}, View<std::int32_t, 2>{unpacked.data(), {count, 1}, {1, 1}});
    EXPECT_EQ(unpacked, tokens);
  }
  EXPECT_GT(dividing, 100);
}

TEST(Properties, PaddedTopkLengthsArePackedPositions) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Draw draw(seed);
    const std::int64_t requests = draw.between(1, 6);
    const std::int64_t next_n = draw.between(1, 5);
    Ints decode_lens;
    for (std::int64_t request = 0; request < requests; ++request)
      decode_lens.push_back(static_cast<std::int32_t>(draw.between(0, next_n)));
    const std::int64_t count = prefix_sums(decode_lens).back();
    Longs positions;
    for (std::int64_t token = 0; token < count + 3; ++token)
      positions.push_back(draw.between(0, 5000));
    Ints lengths(static_cast<std::size_t>(requests * next_n), -999);
    decode_topk_seq_lens({view(positions), view(decode_lens), count, requests, next_n, true},
                         view(lengths));
    std::size_t token = 0;
    for (std::size_t row = 0; row < lengths.size(); ++row) {
      const auto request = row / static_cast<std::size_t>(next_n);
      const auto place = static_cast<std::int32_t>(row % static_cast<std::size_t>(next_n));
      EXPECT_EQ(lengths[row], place < decode_lens[request] ? positions[token++] + 1 : 0);
    }
  }
}

/// The pools can be read back from the tokens, and no token is named twice or outside the sequence.
TEST(Properties, ExpandedPoolsAreInvertible) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Draw draw(seed);
    const std::int64_t pool_size = draw.one_of<std::int64_t>({1, 2, 4, 16});
    const auto seq_len = static_cast<std::int32_t>(draw.between(0, 150));
    const auto complete = static_cast<std::int32_t>(seq_len / pool_size);
    Ints pools;
    for (std::int32_t pool = 0; pool < complete; ++pool) {
      if (draw.between(0, 2) > 0) pools.push_back(pool);
    }
    for (std::size_t at = pools.size(); at > 1; --at)  // unordered, with holes
      std::swap(
          pools[at - 1],
          pools[static_cast<std::size_t>(draw.between(0, static_cast<std::int64_t>(at) - 1))]);
    pools.insert(pools.begin() + draw.between(0, static_cast<std::int64_t>(pools.size())), -1);
    const auto width = static_cast<std::int64_t>(pools.size());
    const Ints seq_lens{seq_len};
    const ExpandPoolsInput input{{pools.data(), {1, width}, {width, 1}}, view(seq_lens), pool_size};
    const std::int64_t columns = expanded_pool_columns(input);
    Ints tokens(static_cast<std::size_t>(columns), -999);
    expand_pools_and_append_tail(input, {tokens.data(), {1, columns}, {columns, 1}});

    std::set<std::int32_t> seen;
    Ints regained;
    std::int64_t tail = 0;
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int32_t token = tokens[static_cast<std::size_t>(column)];
      const bool in_pools = column < width * pool_size;
      if (in_pools && column % pool_size == 0)
        regained.push_back(token < 0 ? -1 : static_cast<std::int32_t>(token / pool_size));
      if (token < 0) continue;
      EXPECT_LT(token, seq_len);
      EXPECT_TRUE(seen.insert(token).second);
      if (!in_pools) ++tail;
    }
    EXPECT_EQ(regained, pools);
    EXPECT_EQ(tail, seq_len % pool_size);
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), (width - 1) * pool_size + tail);
  }
}

/// A row filled for a short context is what expanding every pool of that context selects.
TEST(Properties, CausalFillSelectsWhatAllPoolsWould) {
  for (std::int32_t position = 0; position < 70; ++position) {
    const Longs positions{position};
    Ints filled(70, -9);
    ASSERT_TRUE(short_decode_causal_fill({view(positions), 1, position + 1},
                                         {filled.data(), {1, 70}, {70, 1}}));
    for (const std::int32_t pool_size : {2, 4, 16}) {
      const Ints seq_lens{position + 1};
      Ints pools;
      for (std::int32_t pool = 0; pool < (position + 1) / pool_size; ++pool) pools.push_back(pool);
      const auto width = static_cast<std::int64_t>(pools.size());
      const ExpandPoolsInput input{
          {pools.data(), {1, width}, {width, 1}}, view(seq_lens), pool_size};
      Ints tokens(static_cast<std::size_t>(expanded_pool_columns(input)), -999);
      const auto columns = static_cast<std::int64_t>(tokens.size());
      expand_pools_and_append_tail(input, {tokens.data(), {1, columns}, {columns, 1}});
      Ints expected(tokens.begin(), tokens.begin() + position + 1);
      expected.resize(70, -1);
      EXPECT_EQ(filled, expected) << position << " " << pool_size;
    }
  }
}

}  // namespace
}  // namespace monoref
