// The kernels from the index scores to the output projection against plain loops over the
// specification's formulas (mono-decode sections 4, 5 and 6), on every way to launch them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "reference/arithmetic/portable.hpp"
#include "tests/kernels/bench.hpp"
#include "tests/kernels/number_model.hpp"

namespace monoref::device {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;

constexpr i64 kBlock = 128;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kLog2E = static_cast<float>(1.4426950408889634);

/// One way to launch: wave, blocks in x, y and z, and threads a block where a kernel leaves that
/// open.
struct Launch {
  int wave;
  u32 blocks_x, blocks_y, blocks_z, threads;

  Grid grid(u32 threads_x, u32 shared_bytes = 0) const {
    return {.blocks_x = blocks_x,
            .blocks_y = blocks_y,
            .blocks_z = blocks_z,
            .threads_x = threads_x,
            .shared_bytes = shared_bytes};
  }
};

class SparseAttention : public ::testing::TestWithParam<Launch> {};

std::string launch_name(const ::testing::TestParamInfo<Launch>& launch) {
  const Launch& l = launch.param;
  return "wave" + std::to_string(l.wave) + "_" + std::to_string(l.blocks_x) + "x" +
         std::to_string(l.blocks_y) + "x" + std::to_string(l.blocks_z) + "_of_" +
         std::to_string(l.threads);
}
INSTANTIATE_TEST_SUITE_P(Grids, SparseAttention,
                         ::testing::Values(Launch{64, 1, 1, 1, 64}, Launch{64, 7, 3, 2, 256},
                                           Launch{32, 2, 2, 1, 32}, Launch{32, 9, 2, 3, 512}),
                         launch_name);

std::vector<u32> stored(const std::vector<float>& values) {
  std::vector<u32> bits;
  for (const float value : values) bits.push_back(stored_bits(value));
  return bits;
}

template <class T>
T& at(std::vector<T>& values, i64 index) {
  return values.at(static_cast<std::size_t>(index));
}
template <class T>
const T& at(const std::vector<T>& values, i64 index) {
  return values.at(static_cast<std::size_t>(index));
}

/// IEEE maximum: NaN if one is, and +0 above -0.
float maximum(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return float_from_bits(kNanBits);
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

/// Blocks of a request, each somewhere else in the cache.
std::vector<i32> scattered_blocks(i64 count, i32 first) {
  std::vector<i32> ids(static_cast<std::size_t>(count));
  for (i64 i = 0; i < count; ++i) at(ids, i) = first + static_cast<i32>((i * 7 + 3) % count);
  return ids;
}

// ---------------------------------------------------------------------------------------------

/// A step to be scored: three requests, one of them too short to be.
struct ScoreCase {
  i32 q_len, heads, dim;
  bool fnuz, bf16_keys, scaled;
  i32 topk = 3, init = 1, local = 1, world = 1, rank = 0, shard_from = 0;
  std::vector<i32> lengths;  // of the requests' last rows
  i64 width = 0;
  std::vector<i32> table;
  std::vector<u16> q, keys16;
  std::vector<u8> keys8;
  i64 token_gap = 16, block_gap = 32;

  i64 rows() const { return static_cast<i64>(lengths.size()) * q_len; }
  i64 cache_blocks() const { return static_cast<i64>(lengths.size()) * width; }
  i64 token_stride() const { return dim + token_gap; }
  i64 block_stride() const { return kBlock * token_stride() + block_gap; }

  ScoreCase(i32 query_length, i32 head_count, i32 dims, int options)
      : q_len(query_length),
        heads(head_count),
        dim(dims),
        fnuz((options & 1) != 0),
        bf16_keys((options & 2) != 0),
        scaled((options & 4) != 0),
        lengths{7 * 128 + 1, 3 * 128, 5 * 128 + 77} {
    Draws draws(static_cast<std::uint64_t>(dim + options));
    width = 8;
    for (i64 r = 0; r < 3; ++r)
      for (const i32 id : scattered_blocks(width, static_cast<i32>(r * width))) table.push_back(id);
    for (i64 i = 0; i < rows() * heads * dim; ++i) q.push_back(encode_bf16(draws.number(-3, 1)));
    for (i64 i = 0; i < cache_blocks() * block_stride(); ++i) {
      keys8.push_back(static_cast<u8>(draws.below(256)));
      if ((keys8.back() & 0x7F) == 0x7F || keys8.back() == 0x80) keys8.back() = 0x11;
      keys16.push_back(encode_bf16(draws.number(-4, 2)));
    }
    // One key of the first request's second block is NaN, and one that only its last row sees.
    const i64 key = at(table, 1) * block_stride() + 9 * token_stride();
    at(keys8, key + 3) = fnuz ? 0x80 : 0xFF;
    at(keys16, key + 3) = 0xFFC1;
  }
  /// Row `row`'s context, in keys.
  i64 context(i64 row) const {
    const i64 length = at(lengths, row / q_len) - (q_len - 1 - row % q_len);
    return std::max<i64>(length, 1);
  }
};

std::vector<u32> score_model(const ScoreCase& c, std::vector<float> scores) {
  const E4m3Model format(c.fnuz, false);
  for (i64 row = 0; row < c.rows(); ++row) {
    const i64 request = row / c.q_len;
    const i64 blocks = (c.context(request * c.q_len + c.q_len - 1) + kBlock - 1) / kBlock;
    if (blocks <= c.topk) continue;
    for (i64 b = c.init; b < blocks - c.local; ++b) {
      if (blocks > c.shard_from && b % c.world != c.rank) continue;
      for (i64 head = 0; head < c.heads; ++head) {
        float best = -kInfinity;
        for (i64 t = 0; t < kBlock && b * kBlock + t < c.context(row); ++t) {
          const i64 key =
              at(c.table, request * c.width + b) * c.block_stride() + t * c.token_stride();
          float dot = 0.0F;
          for (i64 d = 0; d < c.dim; ++d) {
            const float k = c.bf16_keys ? decode_bf16(at(c.keys16, key + d))
                                        : format.decode(at(c.keys8, key + d));
            dot = std::fma(decode_bf16(at(c.q, (row * c.heads + head) * c.dim + d)), k, dot);
          }
          best = maximum(best, dot);
        }
        const float factor = 0.125F * kLog2E;
        at(scores, (row * c.heads + head) * c.width + b) = c.scaled ? best * factor : best;
      }
    }
  }
  return stored(scores);
}

std::vector<u32> score_kernel(const ScoreCase& c, const Launch& launch, bool of_requests,
                              const std::vector<float>& before) {
  KernelBench bench(launch.wave);
  std::vector<i32> table, lengths;
  for (i64 row = 0; row < c.rows(); row += of_requests ? c.q_len : 1) {
    const i64 request = row / c.q_len;
    for (i64 b = 0; b < c.width; ++b) table.push_back(at(c.table, request * c.width + b));
    lengths.push_back(at(c.lengths, request) -
                      (of_requests ? 0 : c.q_len - 1 - static_cast<i32>(row % c.q_len)));
  }
  const auto q = bench.add(c.q);
  const auto keys = c.bf16_keys ? bench.add(c.keys16) : bench.add(c.keys8);
  const auto tables = bench.add(table), lens = bench.add(lengths), scores = bench.add(before);
  const i32 columns = c.q_len * c.heads;
  const Grid grid = launch.grid(128, columns == 1 ? 512 : columns <= 4 ? 4 * 512 : 16 * 512);
  const i64 row_stride = c.heads * c.width;
  const i32 scaling = c.scaled ? 1 : 0, tables_of = of_requests ? 1 : 0, encoding = c.fnuz ? 1 : 0;
  const i32 width = static_cast<i32>(c.width);
  const i64 q_stride = i64{c.heads} * c.dim;
  if (c.bf16_keys)
    bench.launch("monoref_index_score_bf16", grid, q, q_stride, i64{c.dim}, keys, c.block_stride(),
                 c.token_stride(), c.cache_blocks(), tables, c.width, lens, i64{1}, scores,
                 row_stride, c.width, c.rows(), c.heads, c.dim, width, c.q_len, c.topk, c.init,
                 c.local, 0.125F, scaling, tables_of, c.world, c.rank, c.shard_from);
  else
    bench.launch("monoref_index_score_fp8", grid, q, q_stride, i64{c.dim}, keys, c.block_stride(),
                 c.token_stride(), c.cache_blocks(), tables, c.width, lens, i64{1}, scores,
                 row_stride, c.width, c.rows(), c.heads, c.dim, width, c.q_len, c.topk, c.init,
                 c.local, 0.125F, encoding, scaling, tables_of, c.world, c.rank, c.shard_from);
  return bench.read<u32>(scores);
}

void expect_scores(const ScoreCase& c, const Launch& launch) {
  const std::vector<float> before(static_cast<std::size_t>(c.rows() * c.heads * c.width), -77.0F);
  const std::vector<u32> expected = score_model(c, before);
  EXPECT_NE(std::count(expected.begin(), expected.end(), kNanBits), 0);
  for (const bool of_requests : {false, true})
    EXPECT_EQ(score_kernel(c, launch, of_requests, before), expected);
}

TEST_P(SparseAttention, IndexScores) {
  for (int options = 0; options < 8; ++options) {
    expect_scores(ScoreCase(1, 1, 128, options), GetParam());
    expect_scores(ScoreCase(3, 4, 64, options), GetParam());
  }
  expect_scores(ScoreCase(2, 1, 16, 0), GetParam());
  expect_scores(ScoreCase(2, 1, 80, 2), GetParam());
  expect_scores(ScoreCase(9, 4, 32, 0), GetParam());  // 36 columns
}

TEST_P(SparseAttention, IndexScoresOfATailAndOfShards) {
  ScoreCase c(3, 4, 64, 4);
  c.init = 0;
  c.local = 0;
  expect_scores(c, GetParam());
  c.world = 3;
  c.shard_from = 6;  // the last request is not sharded
  for (c.rank = 0; c.rank < 3; ++c.rank) {
    const std::vector<float> before(static_cast<std::size_t>(c.rows() * c.heads * c.width), 5.0F);
    EXPECT_EQ(score_kernel(c, GetParam(), false, before), score_model(c, before));
  }
}

// ---------------------------------------------------------------------------------------------

/// Rows to be selected from. Tables and lengths have a row for each request.
struct SelectCase {
  i32 q_len, heads, topk, init, local, page_stride;
  bool lower_id_first;
  std::vector<i32> lengths;
  i64 width = 0;
  std::vector<i32> table;
  std::vector<float> scores;

  i64 rows() const { return static_cast<i64>(lengths.size()) * q_len; }
  i64 context(i64 row) const {
    return std::max<i64>(at(lengths, row / q_len) - (q_len - 1 - row % q_len), 1);
  }
  i64 blocks(i64 row) const { return (context(row) + kBlock - 1) / kBlock; }

  SelectCase(std::vector<i32> seq_lens, i32 query_length, i32 head_count, i32 top, int options)
      : q_len(query_length),
        heads(head_count),
        topk(top),
        init(options & 1),
        local((options & 2) != 0 ? 2 : 1),
        page_stride((options & 1) != 0 ? 8 : 16),
        lower_id_first((options & 4) != 0),
        lengths(std::move(seq_lens)) {
    Draws draws(static_cast<std::uint64_t>(topk * 8 + options));
    for (i64 row = 0; row < rows(); ++row) width = std::max(width, blocks(row));
    for (i64 r = 0; r * q_len < rows(); ++r)
      for (const i32 id : scattered_blocks(width, static_cast<i32>(r * width))) table.push_back(id);
    const float special[] = {
        0.0F,  -0.0F,  float_from_bits(0xFFC00001), kInfinity, -kInfinity, 0.5F, -0.25F, 1e30F,
        1e29F, -1e-40F};
    for (i64 i = 0; i < rows() * heads * width; ++i)
      scores.push_back(draws.below(3) == 0 ? special[draws.below(10)] : draws.number(-2, 1));
  }
};

/// The specification's sort key.
i32 sort_key(float key) {
  if (std::isnan(key)) return std::numeric_limits<i32>::min();
  const auto bits = static_cast<i32>(stored_bits(key == 0.0F ? 0.0F : key));
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}

struct Selection {
  std::vector<i32> ids, pages, contexts;
  bool operator==(const Selection&) const = default;
};

std::vector<i32> ranked_blocks(const SelectCase& c, i64 row, i64 head) {
  const i64 n = c.blocks(row);
  std::vector<std::pair<i32, i32>> order;
  for (i64 b = 0; b < n; ++b) {
    float key = at(c.scores, (row * c.heads + head) * c.width + b);
    if (b < c.init) key = 1e30F;
    if (b >= n - c.local) key = 1e29F;
    order.emplace_back(n <= c.topk ? static_cast<i32>(-b) : sort_key(key), static_cast<i32>(b));
  }
  std::sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first > b.first;
    return c.lower_id_first ? a.second < b.second : a.second > b.second;
  });
  std::vector<i32> ids;
  for (i64 i = 0; i < std::min<i64>(n, c.topk); ++i) ids.push_back(at(order, i).second);
  return ids;
}

Selection select_model(const SelectCase& c) {
  Selection out;
  for (i64 row = 0; row < c.rows(); ++row) {
    for (i64 head = 0; head < c.heads; ++head) {
      const std::vector<i32> ids = ranked_blocks(c, row, head);
      const auto tail = static_cast<i32>(c.blocks(row) - 1);
      std::vector<i32> slots;
      for (const i32 id : ids)
        if (id != tail) slots.push_back(id);
      const auto full = static_cast<i64>(slots.size());
      const bool has_tail = slots.size() < ids.size();
      if (has_tail) slots.push_back(tail);
      for (i64 s = 0; s < c.topk; ++s) {
        const bool used = s < static_cast<i64>(slots.size());
        out.ids.push_back(used ? at(ids, s) : -1);
        for (i32 j = 0; j < 8; ++j)
          out.pages.push_back(
              used ? at(c.table, row / c.q_len * c.width + at(slots, s)) * c.page_stride + j : 0);
      }
      const i64 context = has_tail ? full * kBlock + c.context(row) - tail * kBlock
                                   : std::min(full * kBlock, c.context(row));
      out.contexts.push_back(static_cast<i32>(context));
    }
  }
  return out;
}

/// Buffers for the outputs of a selection, with gaps behind the rows.
struct SelectBuffers {
  KernelBench& bench;
  const SelectCase& c;
  i64 ids_row = i64{c.heads} * c.topk, pages_row = ids_row * 8;
  KernelBench::Buffer ids = bench.add(poison(c.rows() * ids_row));
  KernelBench::Buffer pages = bench.add(poison(c.rows() * pages_row));
  KernelBench::Buffer contexts = bench.add(poison(c.rows() * c.heads));

  static std::vector<i32> poison(i64 count) {
    return std::vector<i32>(static_cast<std::size_t>(count), -77);
  }
  Selection read() const {
    return {bench.read<i32>(ids), bench.read<i32>(pages), bench.read<i32>(contexts)};
  }
};

/// Scores as the kernel may see them: NaN where it must not look.
std::vector<float> readable_scores(const SelectCase& c) {
  std::vector<float> scores = c.scores;
  for (i64 row = 0; row < c.rows(); ++row)
    for (i64 i = row * c.heads * c.width; i < (row + 1) * c.heads * c.width; ++i) {
      const i64 b = i % c.width, n = c.blocks(row);
      if (n <= c.topk || b < c.init || b >= n - c.local) at(scores, i) = kInfinity;
    }
  return scores;
}

Selection select_kernel(const SelectCase& c, const Launch& launch) {
  KernelBench bench(launch.wave);
  const auto scores = bench.add(readable_scores(c));
  const auto table = bench.add(c.table), lens = bench.add(c.lengths);
  const SelectBuffers out{bench, c};
  bench.launch("monoref_index_select", launch.grid(launch.threads), scores, c.heads * c.width,
               c.width, table, c.width, lens, i64{1}, out.ids, out.ids_row, i64{c.topk}, out.pages,
               out.pages_row, i64{c.topk} * 8, out.contexts, i64{c.heads}, i64{1}, c.rows(),
               c.heads, static_cast<i32>(c.width), c.q_len, c.topk, c.init, c.local, c.page_stride,
               i32{1}, i32{c.lower_id_first});
  return out.read();
}

/// The same over ranks that see their own blocks only.
Selection sharded_kernels(const SelectCase& c, const Launch& launch, i32 world) {
  KernelBench bench(launch.wave);
  const auto lens = bench.add(c.lengths), table = bench.add(c.table);
  const i64 row_stride = i64{c.heads} * c.topk, rank_stride = c.rows() * row_stride;
  const auto size = static_cast<std::size_t>(rank_stride);
  std::vector<KernelBench::Buffer> scores;
  std::vector<i64> gathered;
  for (i32 rank = 0; rank < world; ++rank) {
    std::vector<float> own = readable_scores(c);
    for (i64 i = 0; i < static_cast<i64>(own.size()); ++i)
      if (i % c.width % world != rank) at(own, i) = kInfinity;
    KernelBench of_rank(launch.wave);
    const auto rank_scores = of_rank.add(own), rank_lens = of_rank.add(c.lengths);
    const auto to = of_rank.add(std::vector<i64>(size, -77));
    of_rank.launch("monoref_index_candidates", launch.grid(launch.threads), rank_scores,
                   c.heads * c.width, c.width, rank_lens, i64{1}, to, row_stride, i64{c.topk},
                   c.rows(), c.heads, c.q_len, c.topk, c.init, c.local, world, rank, i32{1},
                   i32{c.lower_id_first});
    const std::vector<i64> candidates = of_rank.read<i64>(to);
    gathered.insert(gathered.end(), candidates.begin(), candidates.end());
  }
  const auto candidates = bench.add(gathered);
  const SelectBuffers out{bench, c};
  bench.launch("monoref_index_merge", launch.grid(launch.threads), candidates, rank_stride,
               row_stride, i64{c.topk}, table, c.width, lens, i64{1}, out.ids, out.ids_row,
               i64{c.topk}, out.pages, out.pages_row, i64{c.topk} * 8, out.contexts, i64{c.heads},
               i64{1}, c.rows(), c.heads, static_cast<i32>(c.width), c.q_len, c.topk, world,
               c.page_stride, i32{1}, i32{c.lower_id_first});
  return out.read();
}

TEST_P(SparseAttention, IndexSelection) {
  int first = 0;
  for (const i32 topk : {1, 3, 16, 64}) {
    for (int options = first++ % 2; options < 8; options += 2) {
      const SelectCase c({0, 1, 300, 128 * topk, 128 * topk + 1, 100 * 128 + 5, 1000}, 2, 2, topk,
                         options);
      const Selection expected = select_model(c);
      EXPECT_EQ(select_kernel(c, GetParam()), expected);
      EXPECT_EQ(sharded_kernels(c, GetParam(), 4), expected);
    }
  }
}

TEST_P(SparseAttention, IndexSelectionOfBlocksPinnedTwice) {
  SelectCase c({5 * 128 - 3, 7 * 128}, 1, 2, 4, 0);
  c.init = 3;
  c.local = 3;  // block 2 of the first request is among both
  const Selection selection = select_kernel(c, GetParam());
  EXPECT_EQ(selection, select_model(c));
  const std::vector<i32> first(selection.ids.begin(), selection.ids.begin() + 4);
  EXPECT_EQ(first, (std::vector<i32>{1, 0, 4, 3}));
  EXPECT_EQ(sharded_kernels(c, GetParam(), 2), selection);
}

TEST_P(SparseAttention, IndexSelectionOfTheLongestContext) {
  // S17, and S12: a plateau of equal scores, of which ties decide; the best score comes last.
  SelectCase c({1 << 20}, 1, 1, 16, 0);
  for (const bool lower : {false, true}) {
    c.lower_id_first = lower;
    std::fill(c.scores.begin(), c.scores.end(), 0.0F);
    at(c.scores, 8190) = 2.0F;
    const Selection selection = select_kernel(c, GetParam());
    EXPECT_EQ(selection, select_model(c));
    EXPECT_EQ(selection.ids[0], 8191);
    EXPECT_EQ(selection.ids[1], 8190);
    EXPECT_EQ(selection.ids[2], lower ? 0 : 8189);
    EXPECT_EQ(sharded_kernels(c, GetParam(), 4), selection);
  }
}

// ---------------------------------------------------------------------------------------------

struct AttentionCase {
  i32 kv_heads, group, dim, sides;
  bool fnuz, saturates, zeroed;
  i32 partitions = 2, block_count = 9;
  std::vector<i32> contexts;  // [rows, kv_heads]
  std::vector<u16> q;
  std::vector<u8> k_cache, v_cache;
  std::vector<i32> table;  // [rows, kv_heads, 16 * partitions]
  std::vector<float> k_scale, v_scale;
  float sm_scale = 0.088388346F;

  i64 rows() const { return static_cast<i64>(contexts.size()) / kv_heads; }
  i64 page_bytes() const { return i64{kv_heads} * dim * 16; }
  i64 pages() const { return i64{block_count} * 8 * sides - (sides == 2 ? 8 : 0); }
  float largest() const { return fnuz ? 240.0F : 448.0F; }
  const std::vector<u8>& v_buffer() const { return sides == 2 ? k_cache : v_cache; }

  AttentionCase(i32 heads, i32 queries, i32 dims, int options, std::vector<i32> lengths)
      : kv_heads(heads),
        group(queries),
        dim(dims),
        sides((options & 1) != 0 ? 1 : 2),
        fnuz((options & 2) != 0),
        saturates((options & 4) != 0),
        zeroed((options & 8) == 0),
        contexts(std::move(lengths)) {
    Draws draws(static_cast<std::uint64_t>(dim + options));
    for (i64 i = 0; i < rows() * kv_heads * group * dim; ++i)
      q.push_back(encode_bf16(draws.number(-3, 1)));
    for (std::vector<u8>* cache : {&k_cache, &v_cache}) {
      for (i64 i = 0; i < i64{block_count} * 8 * sides * page_bytes(); ++i) {
        cache->push_back(static_cast<u8>(draws.below(256)));
        if ((cache->back() & 0x7F) == 0x7F || cache->back() == 0x80) cache->back() = 0x21;
      }
    }
    for (i64 n = 0; n < rows() * kv_heads; ++n) {
      for (i32 slot = 0; slot < 2 * partitions; ++slot) {
        const i32 block = static_cast<i32>((n * 5 + i64{slot} * 3 + 1) % (block_count - 1));
        for (i32 j = 0; j < 8; ++j) {
          const bool seen = slot * 128 + j * 16 < at(contexts, n);
          table.push_back(seen ? block * 8 * sides + j : -1 - block);
        }
      }
    }
    for (i32 h = 0; h < kv_heads; ++h) {
      k_scale.push_back(0.25F * static_cast<float>(h + 1));
      v_scale.push_back(1.7F * static_cast<float>(h + 1));
    }
  }
  i64 page_of(i64 n, i64 key) const {
    return key / 16 * 16 < at(contexts, n) ? at(table, n * 16 * partitions + key / 16) : 0;
  }
  /// Where dim d of a key of (row, K/V head) n lies.
  i64 k_index(i64 n, i64 key, i64 d) const {
    return page_of(n, key) * page_bytes() + n % kv_heads * dim * 16 + d / 16 * 256 + key % 16 * 16 +
           d % 16;
  }
  i64 v_index(i64 n, i64 key, i64 d) const {
    return (page_of(n, key) + (sides == 2 ? 8 : 0)) * page_bytes() + n % kv_heads * dim * 16 +
           d * 16 + key % 16;
  }
};

struct Partials {
  std::vector<u16> o;
  std::vector<u32> m, l;
  bool operator==(const Partials&) const = default;
};

/// One wave's share of l: lanes 0 .. 15, then the butterfly.
float wave_sum(const float* p) {
  float v[16];
  for (int i = 0; i < 16; ++i) v[i] = (0.0F + p[i]) + p[16 + i];
  for (int mask = 8; mask > 0; mask /= 2) {
    float next[16];
    for (int i = 0; i < 16; ++i) next[i] = v[i] + v[i ^ mask];
    std::copy(next, next + 16, v);
  }
  return v[0];
}

/// One partition of query head h of (row, K/V head) n.
void attention_model(const AttentionCase& c, const E4m3Model& format, i64 n, i64 h, i64 partition,
                     Partials& out) {
  const i64 kv_head = n % c.kv_heads, first = partition * 256;
  std::vector<float> q8, s(256, -3.4e38F), p(256), p8(256, 0.0F);
  for (i64 d = 0; d < c.dim; ++d)
    q8.push_back(format.decode(format.encode(decode_bf16(at(c.q, (n * c.group + h) * c.dim + d)))));
  float m = -kInfinity;
  for (i64 i = 0; i < 256; ++i) {
    if (first + i < at(c.contexts, n)) {
      float dot = 0.0F;
      for (i64 d = 0; d < c.dim; ++d)
        dot = std::fma(at(q8, d), format.decode(at(c.k_cache, c.k_index(n, first + i, d))), dot);
      at(s, i) = (c.sm_scale * at(c.k_scale, kv_head)) * dot;
    }
    m = maximum(m, at(s, i));
  }
  for (i64 i = 0; i < 256; ++i) {
    at(p, i) = portable_exp2((at(s, i) - m) * kLog2E);
    if (first + i < at(c.contexts, n))
      at(p8, i) = format.decode(format.encode(at(p, i) * c.largest()));
  }
  float l = wave_sum(p.data());
  for (i64 w = 1; w < 8; ++w) l = l + wave_sum(&at(p, 32 * w));
  for (i64 d = 0; d < c.dim; ++d) {
    float total = 0.0F;
    for (i64 w = 0; w < 8; ++w) {
      float sum = 0.0F;
      for (i64 i = 32 * w; i < 32 * w + 32; ++i) {
        const bool seen = first + i < at(c.contexts, n);
        const float v =
            seen || !c.zeroed ? format.decode(at(c.v_buffer(), c.v_index(n, first + i, d))) : 0.0F;
        sum = std::fma(at(p8, i), v, sum);
      }
      total = w == 0 ? sum : total + sum;
    }
    const float scale = at(c.v_scale, kv_head) * (1.0F / c.largest());
    out.o.push_back(encode_bf16((scale * total) * (1.0F / (l > 0.0F ? l : 1.0F))));
  }
  out.m.push_back(stored_bits(m));
  out.l.push_back(stored_bits(l));
}

Partials attention_model(const AttentionCase& c) {
  const E4m3Model format(c.fnuz, c.saturates);
  Partials out;
  for (i64 row = 0; row < c.rows(); ++row)
    for (i64 partition = 0; partition < c.partitions; ++partition)
      for (i64 head = 0; head < c.kv_heads; ++head)
        for (i64 h = 0; h < c.group; ++h)
          attention_model(c, format, row * c.kv_heads + head, h, partition, out);
  return out;
}

/// `scale_stride` is the kernel's; without one, it gets no scales.
Partials attention_kernel(const AttentionCase& c, const Launch& launch,
                          std::optional<i64> scale_stride = 1) {
  KernelBench bench(launch.wave);
  const i64 heads = i64{c.kv_heads} * c.group;
  const auto results = static_cast<std::size_t>(c.rows() * c.partitions * heads);
  const auto q = bench.add(c.q), k = bench.add(c.k_cache);
  const auto v = c.sides == 2 ? k : bench.add(c.v_cache);
  const auto table = bench.add(c.table), contexts = bench.add(c.contexts);
  const auto k_scale = bench.add(c.k_scale), v_scale = bench.add(c.v_scale);
  const auto o = bench.add(std::vector<u16>(results * static_cast<std::size_t>(c.dim), 0x1234));
  const auto m = bench.add(std::vector<float>(results, -7.0F));
  const auto l = bench.add(std::vector<float>(results, -7.0F));
  const i64 columns = 16 * i64{c.partitions};
  const auto run = [&](auto scale_of_k, auto scale_of_v) {
    bench.launch("monoref_fp8_attention_partition", launch.grid(256), q, heads * c.dim, i64{c.dim},
                 k, v, c.pages(), table, c.kv_heads * columns, columns, contexts, i64{c.kv_heads},
                 i64{1}, scale_of_k, scale_of_v, scale_stride.value_or(0), o, m, l, c.rows(),
                 c.kv_heads, c.group, c.dim, c.partitions, c.sides, c.sm_scale, c.largest(),
                 i32{!c.zeroed}, i32{c.fnuz}, i32{c.saturates});
  };
  void* const none = nullptr;
  if (scale_stride)
    run(k_scale, v_scale);
  else
    run(none, none);
  return {bench.read<u16>(o), bench.read<u32>(m), bench.read<u32>(l)};
}

void expect_attention(const AttentionCase& c, const Launch& launch) {
  const Partials expected = attention_model(c), got = attention_kernel(c, launch);
  EXPECT_EQ(got.m, expected.m);
  EXPECT_EQ(got.l, expected.l);
  EXPECT_EQ(got.o, expected.o);
}

TEST_P(SparseAttention, Partitions) {
  for (int options = 0; options < 16; ++options)
    expect_attention(AttentionCase(1, 16, 32, options, {0, 1, 17, 130, 256, 273, 512}), GetParam());
  expect_attention(AttentionCase(2, 3, 128, 0, {300, 31, 129, 0}), GetParam());
  expect_attention(AttentionCase(2, 7, 80, 3, {300, 31, 129, 0}), GetParam());
}

TEST_P(SparseAttention, PartitionsWithNan) {
  for (int options = 0; options < 16; ++options) {
    // Row 0 has a NaN key, row 1 a NaN query, row 2 a NaN value that it sees, row 3 one that it
    // does not see in its last page.
    AttentionCase c(1, 5, 32, options, {40, 40, 40, 41});
    const u8 nan = c.fnuz ? 0x80 : 0xFF;
    std::vector<u8>& values = c.sides == 2 ? c.k_cache : c.v_cache;
    at(c.k_cache, c.k_index(0, 20, 19)) = nan;
    at(c.q, c.group * c.dim + 2 * c.dim + 31) = 0x7F81;
    at(values, c.v_index(2, 39, 5)) = nan;
    at(values, c.v_index(3, 40, 9) + 1) = nan;
    expect_attention(c, GetParam());
  }
}

TEST_P(SparseAttention, F13AbsentScalesAreOnes) {
  AttentionCase c(2, 3, 32, 0, {300, 31, 129, 17});
  const Partials scaled = attention_kernel(c, GetParam());
  c.k_scale = c.v_scale = {1.0F, 1.0F};
  const Partials of_each_head = attention_kernel(c, GetParam());
  EXPECT_NE(of_each_head, scaled);
  EXPECT_EQ(attention_kernel(c, GetParam(), 0), of_each_head) << "one for all heads";
  EXPECT_EQ(attention_kernel(c, GetParam(), std::nullopt), of_each_head) << "none";
}

// ---------------------------------------------------------------------------------------------

/// Partials of which some are empty, some all NaN, one dominates, and some cancel those before them
/// but for the roundings.
Partials synthetic_partials(i64 rows, i64 partitions, i64 heads, i64 dim) {
  Draws draws(static_cast<std::uint64_t>(partitions));
  Partials partials;
  for (i64 i = 0; i < rows * partitions * heads; ++i) {
    const int kind = draws.below(6);
    const bool empty = kind == 0, cancels = kind >= 4 && i / heads % partitions > 0;
    partials.m.push_back(stored_bits(empty ? -3.4e38F : draws.number(-3, kind == 1 ? 6 : 1)));
    partials.l.push_back(stored_bits(empty ? 256.0F : std::fabs(draws.number(0, 7))));
    for (i64 d = 0; d < dim; ++d)
      partials.o.push_back(empty ? u16{0} : encode_bf16(draws.number(-4, 2)));
    if (!cancels) continue;
    at(partials.m, i) = at(partials.m, i - heads);
    at(partials.l, i) = at(partials.l, i - heads);
    for (i64 d = 0; d < dim; ++d)
      at(partials.o, i * dim + d) = at(partials.o, (i - heads) * dim + d) ^ 0x8000;
  }
  at(partials.m, rows * partitions * heads - 1) = kNanBits;
  return partials;
}

TEST_P(SparseAttention, Merge) {
  const i64 rows = 3, heads = 5, dim = 24, gap = 8;
  for (const i64 partitions : {1, 2, 8, 11}) {
    for (const bool fused : {false, true}) {
      const Partials partials = synthetic_partials(rows, partitions, heads, dim);
      std::vector<u16> expected(static_cast<std::size_t>(rows * (heads * dim + gap)), 0x1234);
      for (i64 n = 0; n < rows * heads; ++n) {
        const i64 row = n / heads, head = n % heads;
        const auto index = [&](i64 i) { return (row * partitions + i) * heads + head; };
        float largest = -kInfinity, sum = 0.0F;
        std::vector<float> sl;
        for (i64 i = 0; i < partitions; ++i)
          largest = maximum(largest, float_from_bits(at(partials.m, index(i))));
        for (i64 i = 0; i < partitions; ++i) {
          const float m = float_from_bits(at(partials.m, index(i)));
          sl.push_back(float_from_bits(at(partials.l, index(i))) *
                       portable_exp2((m - largest) * kLog2E));
          sum = i == 0 ? sl[0] : sum + sl.back();
        }
        for (i64 d = 0; d < dim; ++d) {
          float out = 0.0F;
          for (i64 i = 0; i < partitions; ++i) {
            const float weight = at(sl, i) / (sum > 0.0F ? sum : 1.0F);
            const float value = decode_bf16(at(partials.o, index(i) * dim + d));
            const float product = weight * value;
            out = fused ? std::fma(weight, value, out) : out + product;
          }
          at(expected, row * (heads * dim + gap) + head * dim + d) = encode_bf16(out);
        }
      }
      KernelBench bench(GetParam().wave);
      const auto o = bench.add(partials.o), m = bench.add(partials.m), l = bench.add(partials.l);
      const auto out = bench.add(std::vector<u16>(expected.size(), 0x1234));
      bench.launch("monoref_attention_merge", GetParam().grid(GetParam().threads), o, m, l, out,
                   heads * dim + gap, rows, static_cast<i32>(heads), static_cast<i32>(dim),
                   static_cast<i32>(partitions), i32{fused});
      EXPECT_EQ(bench.read<u16>(out), expected);
    }
  }
}

TEST_P(SparseAttention, RowQuant) {
  const i64 rows = 5, width = 344, gap = 16;
  for (int options = 0; options < 4; ++options) {
    const bool fnuz = (options & 1) != 0, saturates = (options & 2) != 0;
    const float largest = fnuz ? 240.0F : 448.0F;
    const E4m3Model format(fnuz, saturates);
    Draws draws(static_cast<std::uint64_t>(options));
    std::vector<u16> x;
    for (i64 i = 0; i < rows * (width + gap); ++i) x.push_back(encode_bf16(draws.number(-5, 4)));
    for (i64 i = 0; i < width; ++i) {
      at(x, width + gap + i) = static_cast<u16>(i % 2 << 15);  // F18: zeros of both signs
      at(x, 2 * (width + gap) + i) = static_cast<u16>(i % 3);  // subnormals
    }
    at(x, 3 * (width + gap) + 100) = 0xFFC3;  // a NaN
    std::vector<u8> codes(static_cast<std::size_t>(rows * (width + gap)), 0x55);
    std::vector<float> scales;
    for (i64 row = 0; row < rows; ++row) {
      float amax = 0.0F;
      for (i64 i = 0; i < width; ++i)
        amax = maximum(amax, std::fabs(decode_bf16(at(x, row * (width + gap) + i))));
      scales.push_back(amax * (1.0F / largest));
      for (i64 i = 0; i < width; ++i) {
        const float a = decode_bf16(at(x, row * (width + gap) + i));
        at(codes, row * (width + gap) + i) =
            amax == 0.0F ? u8{0} : format.encode(a * (1.0F / scales.back()));
      }
    }
    KernelBench bench(GetParam().wave);
    const auto from = bench.add(x);
    const auto to = bench.add(std::vector<u8>(codes.size(), 0x55));
    const auto scale = bench.add(std::vector<float>(5, -7.0F));
    bench.launch("monoref_row_quant", GetParam().grid(GetParam().threads), from, width + gap, to,
                 width + gap, scale, rows, static_cast<i32>(width), largest, i32{fnuz},
                 i32{saturates});
    EXPECT_EQ(bench.read<u8>(to), codes);
    EXPECT_EQ(bench.read<u32>(scale), stored(scales));
  }
}

/// Place of (row, k) in the layout of shuffle_weight(16, 16).
i64 shuffled(i64 row, i64 k, i64 width) {
  return row / 16 * 16 * width + k / 32 * 512 + k / 16 % 2 * 256 + row % 16 * 16 + k % 16;
}

void expect_projection(i64 tokens, i64 rows, i64 width, bool fnuz, const Launch& launch) {
  const E4m3Model format(fnuz, false);
  Draws draws(static_cast<std::uint64_t>(tokens + width));
  const i64 x_stride = width + 13, out_stride = rows + 3;
  const i64 slice_width = (width / 128 + 3) / 4 * 128;
  // The second slice takes away what the first has given, and the others are small: only then does
  // the order in which slices are added show after the rounding to BF16.
  std::vector<u8> x(static_cast<std::size_t>(tokens * x_stride));
  std::vector<u8> weights(static_cast<std::size_t>(rows * width));
  const auto code = [&](i64 k) {
    return static_cast<u8>(1 + draws.below(k < 2 * slice_width ? 0x7D : 7));
  };
  for (i64 k = 0; k < width; ++k) {
    const bool opposite = k >= slice_width && k < 2 * slice_width;
    for (i64 t = 0; t < tokens; ++t)
      at(x, t * x_stride + k) = opposite ? at(x, t * x_stride + k - slice_width) : code(k);
    for (i64 n = 0; n < rows; ++n)
      at(weights, shuffled(n, k, width)) =
          opposite ? at(weights, shuffled(n, k - slice_width, width)) ^ 0x80
                   : static_cast<u8>(code(k) | draws.below(2) << 7);
  }
  at(weights, shuffled(5, width - 1, width)) = fnuz ? 0x80 : 0x7F;
  at(x, (tokens - 1) * x_stride + 17) = fnuz ? 0x80 : 0xFF;
  std::vector<float> x_scale, w_scale;
  for (i64 i = 0; i < tokens; ++i) x_scale.push_back(std::fabs(draws.number(-9, -3)));
  for (i64 i = 0; i < rows; ++i) w_scale.push_back(std::fabs(draws.number(-9, -3)));
  std::vector<u16> expected(static_cast<std::size_t>(tokens * out_stride), 0x1234);
  for (i64 t = 0; t < tokens; ++t) {
    for (i64 n = 0; n < rows; ++n) {
      float dot = 0.0F;
      for (i64 slice = 0; slice < 4; ++slice) {
        float sum = 0.0F;
        for (i64 k = slice * slice_width; k < std::min((slice + 1) * slice_width, width); ++k)
          sum = std::fma(format.decode(at(x, t * x_stride + k)),
                         format.decode(at(weights, shuffled(n, k, width))), sum);
        dot = dot + sum;
      }
      at(expected, t * out_stride + n) = encode_bf16((dot * at(x_scale, t)) * at(w_scale, n));
    }
  }
  const u32 threads = launch.threads % 128 == 0 ? 128 : 64;
  KernelBench bench(launch.wave);
  const auto x8 = bench.add(x), scale = bench.add(x_scale), w = bench.add(weights);
  const auto scale_of_row = bench.add(w_scale);
  const auto out = bench.add(std::vector<u16>(expected.size(), 0x1234));
  const u32 tile_tokens = std::bit_ceil(static_cast<u32>(std::min<i64>(tokens, threads / 8)));
  bench.launch("monoref_o_projection", launch.grid(threads, 2112 * tile_tokens), x8, x_stride,
               scale, w, scale_of_row, out, out_stride, tokens, static_cast<i32>(rows),
               static_cast<i32>(width), i32{fnuz});
  EXPECT_EQ(bench.read<u16>(out), expected);
}

TEST_P(SparseAttention, OutputProjection) {
  for (const i64 tokens : {1, 2, 3, 7, 9, 16, 19}) {
    expect_projection(tokens, 32, 512, false, GetParam());
    expect_projection(tokens, 16, 1024, true, GetParam());
  }
  for (const i64 width : {128, 256, 640, 2048}) expect_projection(2, 16, width, false, GetParam());
}

}  // namespace
}  // namespace monoref::device
