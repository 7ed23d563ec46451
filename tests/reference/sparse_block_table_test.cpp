#include "reference/stages/sparse_block_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

constexpr std::int64_t kInt32Highest = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kInt32Lowest = std::numeric_limits<std::int32_t>::min();

struct Table {
  Tensor pages;
  Tensor contexts;
};

Table empty_table(const SparseBlockTableShape& shape) {
  return {poisoned(DType::kInt32,
                   Layout::dense({shape.sparse_block_table[0], shape.sparse_block_table[1]})),
          poisoned(DType::kInt32, Layout::dense({shape.sparse_context_lens[0]}))};
}

SparseBlockTableOutput output_of(Table& table) {
  return {table.pages.view<std::int32_t, 2>(), table.contexts.view<std::int32_t, 1>()};
}

/// Owned inputs of both forms.
struct Decode {
  Tensor topk_idx;
  Tensor block_table;
  Tensor seq_lens;
  std::int64_t decode_query_len = 1;
  std::int64_t block_page_stride = 8;
  SparseBlockShape shape{};

  SparseBlockTableDecodeInput input() const {
    return {reading<3>(topk_idx), reading<2>(block_table), reading<1>(seq_lens),
            decode_query_len,     block_page_stride,       shape};
  }
  Table build() const {
    Table table = empty_table(sparse_block_table_decode_shape(input()));
    sparse_block_table_decode(input(), output_of(table));
    return table;
  }
  std::string refusal() const {
    return refusal_of([&] { sparse_block_table_decode_shape(input()); });
  }
};

struct Prefill {
  Tensor topk_idx;
  Tensor block_table;
  Tensor query_req_id;
  Tensor query_abs_pos;
  std::int64_t block_page_stride = 8;
  SparseBlockShape shape{};

  SparseBlockTablePrefillInput input() const {
    return {reading<3>(topk_idx),      reading<2>(block_table), reading<1>(query_req_id),
            reading<1>(query_abs_pos), block_page_stride,       shape};
  }
  Table build() const {
    Table table = empty_table(sparse_block_table_prefill_shape(input()));
    sparse_block_table_prefill(input(), output_of(table));
    return table;
  }
  std::string refusal() const {
    return refusal_of([&] { sparse_block_table_prefill_shape(input()); });
  }
};

/// One request with one query token.
Decode one_row(const Numbers& topk, const Numbers& blocks, std::int64_t seq_len,
               std::int64_t stride = 8) {
  return {.topk_idx = ints({1, 1, static_cast<std::int64_t>(topk.size())}, topk),
          .block_table = ints({1, static_cast<std::int64_t>(blocks.size())}, blocks),
          .seq_lens = ints({1}, {seq_len}),
          .block_page_stride = stride};
}

TEST(SparseBlockTable, UpstreamsGoldenExample) {
  const Decode decode{.topk_idx = ints({1, 2, 3}, {1, 0, -1, 0, 1, -1}),
                      .block_table = ints({2, 2}, {5, 7, 11, 13}),
                      .seq_lens = ints({2}, {129, 0})};
  const Table table = decode.build();
  EXPECT_EQ(values(table.pages), joined({counting(40, 8), counting(56, 8), repeated(0, 8),  //
                                         repeated(0, 24)}));
  EXPECT_EQ(values(table.contexts), (Numbers{129, 0}));
}

TEST(SparseBlockTable, S01AStaleSelectionOfAnEmptyRowIsNotLookedUp) {
  const Table table = one_row({0, 2}, {9}, 0).build();  // column 2 does not exist
  EXPECT_EQ(values(table.pages), repeated(0, 16));
  EXPECT_EQ(values(table.contexts), (Numbers{0}));
}

TEST(SparseBlockTable, S01ARequestShorterThanItsQueryHasEmptyRowsFirst) {
  const Decode decode{.topk_idx = ints({1, 3, 1}, {0, 0, 0}),
                      .block_table = ints({1, 1}, {4}),
                      .seq_lens = ints({1}, {1}),
                      .decode_query_len = 3};  // positions -2, -1, 0
  const Table table = decode.build();
  EXPECT_EQ(values(table.pages), joined({repeated(0, 16), counting(32, 8)}));
  EXPECT_EQ(values(table.contexts), (Numbers{0, 0, 1}));
}

TEST(SparseBlockTable, S02TheZeroFillEndsWithTheRow) {
  for (const std::int64_t topk : {1, 3, 5, 6, 12}) {
    Numbers selection = repeated(-1, static_cast<std::size_t>(2 * topk));
    selection[static_cast<std::size_t>(topk)] = 0;  // row 0 selects nothing, row 1 its first block
    const Decode decode{.topk_idx = ints({1, 2, topk}, selection),
                        .block_table = ints({2, 1}, {3, 6}),
                        .seq_lens = ints({2}, {50, 60})};
    // Guard columns after each row, the last included.
    Table table{poisoned(DType::kInt32, Layout::strided({3, 8 * topk}, {8 * topk + 5, 1})),
                poisoned(DType::kInt32, Layout::dense({2}))};
    const View<std::int32_t, 2> pages = table.pages.view<std::int32_t, 2>();
    const View<std::int32_t, 2> two_rows{pages.data(), {2, 8 * topk}, {8 * topk + 5, 1}};
    sparse_block_table_decode(decode.input(), {two_rows, table.contexts.view<std::int32_t, 1>()});
    const auto zeros = static_cast<std::size_t>(8 * topk);
    EXPECT_EQ(values(table.pages), joined({repeated(0, zeros), counting(48, 8),
                                           repeated(0, zeros - 8), repeated(kPoison32, zeros)}))
        << "top-k " << topk;
    for (std::int64_t gap = 0; gap < 5; ++gap)
      EXPECT_EQ(element(table.pages, 8 * topk + gap), kPoison32);
    EXPECT_EQ(values(table.contexts), (Numbers{0, 60}));
  }
}

TEST(SparseBlockTable, S03AFutureBlockIsDroppedAndTheTailComesLast) {
  const Table table = one_row({0, 3, 1}, {2, 4, 6, 8}, 200).build();
  EXPECT_EQ(values(table.pages), joined({counting(16, 8), counting(32, 8), repeated(0, 8)}));
  EXPECT_EQ(values(table.contexts), (Numbers{200}));
}

TEST(SparseBlockTable, P05InterleavedSidesSpanSixteenPageIds) {
  EXPECT_EQ(values(one_row({0}, {5}, 128, 8).build().pages), counting(40, 8));
  EXPECT_EQ(values(one_row({0}, {5}, 128, 16).build().pages), counting(80, 8));
  EXPECT_EQ(values(one_row({0}, {5}, 128, 11).build().pages), counting(55, 8));
}

TEST(SparseBlockTable, O01PageIdsBeyondSixteenBitsStayWhole) {
  // Page 65536 is block 8192 of dense sides and block 4096 of interleaved ones.
  EXPECT_EQ(values(one_row({0}, {8191}, 1, 8).build().pages), counting(65528, 8));
  EXPECT_EQ(values(one_row({0}, {8192}, 1, 8).build().pages), counting(65536, 8));
  EXPECT_EQ(values(one_row({0}, {4096}, 1, 16).build().pages), counting(65536, 8));
}

TEST(SparseBlockTable, PageIdsReachTheEndOfInt32AndNoFurther) {
  const std::int64_t last = (kInt32Highest - 7) / 8;
  EXPECT_EQ(values(one_row({0}, {last}, 1, 8).build().pages), counting(kInt32Highest - 7, 8));
  EXPECT_EQ(one_row({0}, {last + 1}, 1, 8).refusal(),
            "sparse_block_table: block_table[0][0] is 268435456, times page stride 8 its pages"
            " must not leave int32 (-2147483648 to 2147483647)");
  EXPECT_EQ(one_row({0}, {1 << 27}, 1, 16).refusal(),
            "sparse_block_table: block_table[0][0] is 134217728, times page stride 16 its pages"
            " must not leave int32 (-2147483648 to 2147483647)");
  EXPECT_EQ(one_row({0}, {195225786}, 1, 11).refusal(),  // first page 2^31 - 2
            "sparse_block_table: block_table[0][0] is 195225786, times page stride 11 its pages"
            " must not leave int32 (-2147483648 to 2147483647)");
  EXPECT_EQ(one_row({0}, {-(1 << 27) - 1}, 1, 16).refusal(),
            "sparse_block_table: block_table[0][0] is -134217729, times page stride 16 its pages"
            " must not leave int32 (-2147483648 to 2147483647)");
  EXPECT_EQ(one_row({0}, {3}, 1, std::numeric_limits<std::int64_t>::max()).refusal(),
            "sparse_block_table: block_table[0][0] is 3, times page stride 9223372036854775807 its"
            " pages must not leave int32 (-2147483648 to 2147483647)");
}

TEST(SparseBlockTable, UnmappedBlocksAreMultipliedLikeOthers) {
  EXPECT_EQ(values(one_row({0}, {-1}, 1, 8).build().pages), counting(-8, 8));
}

TEST(SparseBlockTable, FullBlocksKeepTheirOrder) {
  const Table table = one_row({3, 0, 4, 2}, {10, 11, 12, 13, 14}, 4 * 128 + 1).build();
  EXPECT_EQ(values(table.pages),
            joined({counting(104, 8), counting(80, 8), counting(96, 8), counting(112, 8)}));
  EXPECT_EQ(values(table.contexts), (Numbers{3 * 128 + 1}));
}

TEST(SparseBlockTable, ARepeatedTailHasOneSlotAndZerosBehindIt) {
  const Table table = one_row({1, 1, 0, 1}, {2, 4}, 130).build();
  EXPECT_EQ(values(table.pages), joined({counting(16, 8), counting(32, 8), repeated(0, 16)}));
  EXPECT_EQ(values(table.contexts), (Numbers{130}));
}

TEST(SparseBlockTable, RepeatedFullBlocksCountEachTime) {
  const Table table = one_row({0, 0, 0, 1}, {2, 4}, 129).build();
  EXPECT_EQ(values(table.pages),
            joined({counting(16, 8), counting(16, 8), counting(16, 8), counting(32, 8)}));
  EXPECT_EQ(values(table.contexts), (Numbers{3 * 128 + 1})) << "longer than the sequence";
}

TEST(SparseBlockTable, WithoutATailTheContextEndsWithTheSequence) {
  EXPECT_EQ(values(one_row({0, -1}, {2, 4}, 200).build().contexts), (Numbers{128}));
  EXPECT_EQ(values(one_row({0, 0}, {2, 4}, 200).build().contexts), (Numbers{200}));
}

TEST(SparseBlockTable, TheOwnBlockMayBeWhole) {
  EXPECT_EQ(values(one_row({1, 0}, {2, 4}, 256).build().contexts), (Numbers{256}));
  EXPECT_EQ(values(one_row({1, 0}, {2, 4, 6}, 257).build().contexts), (Numbers{256}));
}

TEST(SparseBlockTable, IdsThatAreNotValidAreNeverLookedUp) {
  const Table table =
      one_row({kInt32Highest, kInt32Lowest, 2, -1, 0}, {7}, 100).build();  // one column
  EXPECT_EQ(values(table.pages), joined({counting(56, 8), repeated(0, 32)}));
  EXPECT_EQ(values(table.contexts), (Numbers{100}));
}

TEST(SparseBlockTable, AValidIdWithoutAColumnIsRefused) {
  EXPECT_EQ(one_row({0, 2}, {7, 8}, 257).refusal(),
            "sparse_block_table: topk_idx of row 0 holds block 2, must be below 2, the columns of "
            "block_table");
}

TEST(SparseBlockTable, BlockAndPageSizesAreParameters) {
  Decode decode = one_row({1, 0}, {3, 5}, 6, 4);
  decode.shape = {.block_size = 4, .pages_per_block = 2};
  const Table table = decode.build();
  EXPECT_EQ(values(table.pages), (Numbers{12, 13, 20, 21}));
  EXPECT_EQ(values(table.contexts), (Numbers{6}));
}

TEST(SparseBlockTable, WidestSelection) {
  const Decode decode = one_row(counting(0, 64), counting(100, 64), 64 * 128);
  const Table table = decode.build();
  EXPECT_EQ(values(table.pages), [] {
    Numbers pages;
    for (std::int64_t block = 100; block < 164; ++block)
      pages = joined({pages, counting(8 * block, 8)});
    return pages;
  }());
  EXPECT_EQ(values(table.contexts), (Numbers{8192}));
  EXPECT_EQ(one_row(counting(0, 65), {1}, 1).refusal(),
            "sparse_block_table: top-k width is 65, must be 1 to 64");
  EXPECT_EQ(one_row({}, {1}, 1).refusal(), "sparse_block_table: top-k width is 0, must be 1 to 64");
}

TEST(SparseBlockTable, ReadsThroughStrides) {
  const Decode decode{
      .topk_idx = filled(DType::kInt32, Layout::strided({1, 2, 2}, {99, 1, 3}), {1, 0, 0, -1}),
      .block_table = filled(DType::kInt32, Layout::strided({2, 2}, {9, 2}), {5, 7, 11, 13}),
      .seq_lens = filled(DType::kInt32, Layout::strided({2}, {4}), {129, 3})};
  const Table table = decode.build();
  EXPECT_EQ(values(table.pages),
            joined({counting(40, 8), counting(56, 8), counting(88, 8), repeated(0, 8)}));
  EXPECT_EQ(values(table.contexts), (Numbers{129, 3}));
}

TEST(SparseBlockTable, PrefillTakesRequestAndPositionFromArrays) {
  const Prefill prefill{.topk_idx = ints({1, 4, 2}, {0, -1, 1, 0, 0, 1, 1, 0}),
                        .block_table = ints({2, 2}, {5, 7, 11, 13}),
                        .query_req_id = ints({4}, {1, 0, 1, 0}),
                        .query_abs_pos = ints({4}, {0, 128, 127, -1}),
                        .block_page_stride = 16};
  const Table table = prefill.build();
  EXPECT_EQ(values(table.pages),
            joined({counting(176, 8), repeated(0, 8), counting(80, 8), counting(112, 8),
                    counting(176, 8), repeated(0, 8), repeated(0, 16)}));
  EXPECT_EQ(values(table.contexts), (Numbers{1, 129, 128, 0}));
}

TEST(SparseBlockTable, DecodeRefusesItsArguments) {
  const Decode good{.topk_idx = ints({1, 4, 1}, {0, 0, 0, 0}),
                    .block_table = ints({2, 1}, {1, 2}),
                    .seq_lens = ints({2}, {5, 6}),
                    .decode_query_len = 2};
  EXPECT_EQ(good.refusal(), "");
  Decode bad = good;
  bad.topk_idx = ints({2, 2, 1}, {0, 0, 0, 0});
  EXPECT_EQ(bad.refusal(),
            "sparse_block_table: topk_idx has 2 in dimension 0, must have 1 (one kv head a rank)");
  bad = good;
  bad.decode_query_len = 3;
  EXPECT_EQ(bad.refusal(),
            "sparse_block_table: topk_idx has 4 rows, must have batch 2 * decode_query_len 3");
  bad.decode_query_len = 0;
  EXPECT_EQ(bad.refusal(), "sparse_block_table: decode_query_len is 0, must be at least 1");
  bad.decode_query_len = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(bad.refusal(),
            "sparse_block_table: topk_idx has 4 rows, must have batch 2 *"
            " decode_query_len 9223372036854775807");
  bad = good;
  bad.seq_lens = ints({3}, {5, 6, 7});
  EXPECT_EQ(bad.refusal(), "sparse_block_table: seq_lens has 3 in dimension 0, must have 2");
  bad = good;
  bad.block_page_stride = 7;
  EXPECT_EQ(bad.refusal(), "sparse_block_table: block_page_stride is 7, must be at least 8");
  bad = good;
  bad.shape.block_size = 0;
  EXPECT_EQ(bad.refusal(), "sparse_block_table: block_size is 0, must be 1 to 2147483647");
  bad = good;
  bad.shape.pages_per_block = 129;
  EXPECT_EQ(bad.refusal(),
            "sparse_block_table: pages_per_block is 129, must be 1 to block_size 128");
}

TEST(SparseBlockTable, PrefillRefusesItsArguments) {
  const Prefill good{.topk_idx = ints({1, 2, 1}, {0, 0}),
                     .block_table = ints({2, 1}, {1, 2}),
                     .query_req_id = ints({2}, {0, 1}),
                     .query_abs_pos = ints({2}, {5, 6})};
  EXPECT_EQ(good.refusal(), "");
  Prefill bad = good;
  bad.query_req_id = ints({2}, {0, 2});
  EXPECT_EQ(bad.refusal(),
            "sparse_block_table: query_req_id[1] is 2, must be 0 or more and below 2, the rows of "
            "block_table");
  bad.query_req_id = ints({2}, {-1, 0});
  EXPECT_EQ(bad.refusal(),
            "sparse_block_table: query_req_id[0] is -1, must be 0 or more and below 2, the rows of "
            "block_table");
  bad.query_req_id = ints({1}, {0});
  EXPECT_EQ(bad.refusal(), "sparse_block_table: query_req_id has 1 in dimension 0, must have 2");
  bad = good;
  bad.query_abs_pos = ints({3}, {0, 1, 2});
  EXPECT_EQ(bad.refusal(), "sparse_block_table: query_abs_pos has 3 in dimension 0, must have 2");
}

TEST(SparseBlockTable, PositionsReachTheEndOfInt32AndNoFurther) {
  Prefill prefill{.topk_idx = ints({1, 1, 1}, {0}),
                  .block_table = ints({1, 1}, {1}),
                  .query_req_id = ints({1}, {0}),
                  .query_abs_pos = ints({1}, {kInt32Highest - 1})};
  EXPECT_EQ(values(prefill.build().contexts), (Numbers{128}));
  prefill.query_abs_pos = ints({1}, {kInt32Lowest});
  EXPECT_EQ(values(prefill.build().contexts), (Numbers{0}));
  prefill.query_abs_pos = ints({1}, {kInt32Highest});
  EXPECT_EQ(prefill.refusal(),
            "sparse_block_table: the position of row 0 is 2147483647, must be"
            " -2147483648 to 2147483646");
  EXPECT_EQ(one_row({0}, {1}, kInt32Lowest).refusal(),
            "sparse_block_table: the position of row 0 is -2147483649, must be -2147483648 to"
            " 2147483646");
  Decode wide = one_row({0, 0, 0}, {1, 2}, kInt32Highest);
  wide.shape.block_size = 1 << 30;
  EXPECT_EQ(wide.refusal(), "") << "no tail: the context ends with the sequence";
  wide.topk_idx = ints({1, 1, 3}, {0, 0, 1});
  EXPECT_EQ(wide.refusal(),
            "sparse_block_table: the context of row 0 is 3221225471, limit 2147483647");
}

TEST(SparseBlockTable, WritesNothingIfAnyRowIsRefused) {
  const Decode decode{.topk_idx = ints({1, 2, 1}, {0, 1}),
                      .block_table = ints({2, 1}, {1, 2}),
                      .seq_lens = ints({2}, {5, 200})};  // row 1 selects a column that is not there
  Table table = empty_table({{2, 8}, {2}});
  EXPECT_EQ(refusal_of([&] { sparse_block_table_decode(decode.input(), output_of(table)); }),
            "sparse_block_table: topk_idx of row 1 holds block 1, must be below 1, the columns of "
            "block_table");
  EXPECT_EQ(values(table.pages), repeated(kPoison32, 16));
  EXPECT_EQ(values(table.contexts), repeated(kPoison32, 2));
}

TEST(SparseBlockTable, RefusesOutputsOfOtherShapes) {
  const Decode decode = one_row({0, -1}, {1}, 5);
  Table narrow = empty_table({{1, 15}, {1}});
  EXPECT_EQ(refusal_of([&] { sparse_block_table_decode(decode.input(), output_of(narrow)); }),
            "sparse_block_table: output sparse_block_table has 15 in dimension 1, must have 16");
  Table tall = empty_table({{1, 16}, {2}});
  EXPECT_EQ(refusal_of([&] { sparse_block_table_decode(decode.input(), output_of(tall)); }),
            "sparse_block_table: output sparse_context_lens has 2 in dimension 0, must have 1");
  EXPECT_EQ(values(tall.pages), repeated(kPoison32, 16));
}

// Pseudo-random inputs ------------------------------------------------------------------------

struct RandomDecode {
  Decode decode;
  Numbers topk;   ///< [rows, k]
  Numbers table;  ///< [batch, width]
  Numbers lens;   ///< [batch]
  std::int64_t k = 0;
  std::int64_t width = 0;
  std::int64_t rows = 0;

  std::int64_t position(std::int64_t row) const {
    const std::int64_t q = decode.decode_query_len;
    return lens[static_cast<std::size_t>(row / q)] - q + row % q;
  }
  Numbers selection(std::int64_t row) const {
    const auto start = topk.begin() + row * k;
    return Numbers(start, start + k);
  }
  std::int64_t block(std::int64_t row, std::int64_t id) const {
    return table[static_cast<std::size_t>(row / decode.decode_query_len * width + id)];
  }
};

/// Any mix of valid, future, repeated and negative ids; block tables of the least legal width.
RandomDecode random_decode(std::uint64_t seed) {
  Random random(seed);
  RandomDecode made;
  const std::int64_t batch = random.between(1, 4);
  const std::int64_t q = random.between(1, 4);
  made.k = random.between(1, 20);
  made.rows = batch * q;
  std::int64_t longest = 1;
  for (std::int64_t i = 0; i < batch; ++i) {
    made.lens.push_back(random.between(-2, 900));
    longest = std::max(longest, made.lens.back());
  }
  made.width = (longest + 127) / 128;
  for (std::int64_t i = 0; i < made.rows * made.k; ++i)
    made.topk.push_back(random.between(-1, made.width + 1));
  for (std::int64_t i = 0; i < batch * made.width; ++i)
    made.table.push_back(random.between(1, 1000000));
  made.decode = {.topk_idx = ints({1, made.rows, made.k}, made.topk),
                 .block_table = ints({batch, made.width}, made.table),
                 .seq_lens = ints({batch}, made.lens),
                 .decode_query_len = q,
                 .block_page_stride = random.between(8, 17)};
  return made;
}

/// The row writer of sparse-pa, lane by lane as it is there; nothing where it stores nothing.
struct OriginalRow {
  std::vector<std::optional<std::int64_t>> pages;
  std::int64_t context = 0;
};

OriginalRow original_row(const RandomDecode& made, std::int64_t row) {
  const Numbers ids = made.selection(row);
  const std::int64_t position = made.position(row);
  const std::int64_t causal = std::max<std::int64_t>(position + 1, 0);
  const std::int64_t own = position / 128;
  OriginalRow result;
  result.pages.resize(ids.size() * 8);
  const auto is_valid = [&](std::int64_t id) { return causal > 0 && id >= 0 && id <= own; };
  const auto is_full = [&](std::int64_t id) { return is_valid(id) && id < own; };
  const std::int64_t full = std::count_if(ids.begin(), ids.end(), is_full);
  const std::int64_t valid = std::count_if(ids.begin(), ids.end(), is_valid);
  for (auto lane = ids.begin(); lane != ids.end(); ++lane) {
    if (!is_valid(*lane)) continue;
    const std::int64_t slot = is_full(*lane) ? std::count_if(ids.begin(), lane, is_full) : full;
    for (std::int64_t j = 0; j < 8; ++j)
      result.pages[static_cast<std::size_t>(slot * 8 + j)] =
          made.block(row, *lane) * made.decode.block_page_stride + j;
  }
  for (std::size_t column = static_cast<std::size_t>(valid * 8); column < result.pages.size();
       ++column)
    result.pages[column] = 0;
  result.context = valid > full ? full * 128 + causal - own * 128 : std::min(valid * 128, causal);
  return result;
}

constexpr std::uint64_t kRandomCases = 3000;

TEST(SparseBlockTableRandom, EqualsTheOriginalWhereverThatWrites) {
  for (std::uint64_t seed = 0; seed < kRandomCases; ++seed) {
    const RandomDecode made = random_decode(seed);
    const Table table = made.decode.build();
    const View<const std::int32_t, 2> pages = reading<2>(table.pages);
    for (std::int64_t row = 0; row < made.rows; ++row) {
      const OriginalRow original = original_row(made, row);
      for (std::int64_t column = 0; column < pages.dim(1); ++column)
        ASSERT_EQ(pages(row, column), original.pages[static_cast<std::size_t>(column)].value_or(0))
            << "seed " << seed << " row " << row << " column " << column;
      ASSERT_EQ(reading<1>(table.contexts)(row), original.context)
          << "seed " << seed << " row " << row;
    }
  }
}

TEST(SparseBlockTableRandom, ContextsStayCausalUnlessIdsRepeat) {
  std::int64_t checked = 0;
  for (std::uint64_t seed = 0; seed < kRandomCases; ++seed) {
    const RandomDecode made = random_decode(seed);
    const Table table = made.decode.build();
    for (std::int64_t row = 0; row < made.rows; ++row) {
      const Numbers ids = made.selection(row);
      if (std::set<std::int64_t>(ids.begin(), ids.end()).size() != ids.size()) continue;
      const std::int64_t causal = std::max<std::int64_t>(made.position(row) + 1, 0);
      ASSERT_LE(reading<1>(table.contexts)(row), causal) << "seed " << seed << " row " << row;
      ++checked;
    }
  }
  EXPECT_GT(checked, 1000) << "the generator must make rows without repeated ids";
}

TEST(SparseBlockTableRandom, EveryRowIsIndependentAndDecodeEqualsPrefill) {
  for (std::uint64_t seed = 0; seed < kRandomCases; ++seed) {
    const RandomDecode made = random_decode(seed);
    const Table table = made.decode.build();
    Numbers pages;
    Numbers contexts;
    for (std::int64_t row = 0; row < made.rows; ++row) {
      const std::int64_t request = row / made.decode.decode_query_len;
      const auto blocks = made.table.begin() + request * made.width;
      const Prefill alone{
          .topk_idx = ints({1, 1, made.k}, made.selection(row)),
          .block_table = ints({1, made.width}, Numbers(blocks, blocks + made.width)),
          .query_req_id = ints({1}, {0}),
          .query_abs_pos = ints({1}, {made.position(row)}),
          .block_page_stride = made.decode.block_page_stride};
      const Table one = alone.build();
      pages = joined({pages, values(one.pages)});
      contexts = joined({contexts, values(one.contexts)});
    }
    ASSERT_EQ(values(table.pages), pages) << "seed " << seed;
    ASSERT_EQ(values(table.contexts), contexts) << "seed " << seed;
  }
}

}  // namespace
}  // namespace monoref::testing
