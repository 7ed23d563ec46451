// Input that the host side refuses and a kernel cannot: it is ignored as the kernels' comments say,
// and nothing outside the buffers is read or written.
#include <limits>
#include <numeric>

#include "tests/kernels/bench.hpp"

namespace monoref::device {
namespace {

constexpr i32 kPoison = -77;

class Misuse : public ::testing::TestWithParam<int> {
 protected:
  KernelBench bench{GetParam()};
};

std::string wave_name(const ::testing::TestParamInfo<int>& wave) {
  return "wave" + std::to_string(wave.param);
}
INSTANTIATE_TEST_SUITE_P(Waves, Misuse, ::testing::Values(64, 32), wave_name);

/// The eight pages of one slot of a sparse table.
std::vector<i32> pages_from(i32 first) {
  std::vector<i32> pages(8);
  std::iota(pages.begin(), pages.end(), first);
  return pages;
}

std::vector<i32> joined(std::initializer_list<std::vector<i32>> parts) {
  std::vector<i32> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST_P(Misuse, SparseTableDropsIdsBehindTheTable) {
  // 1000 keys are eight blocks, of which the table names two.
  const auto ids = bench.add<i32>({0, 5, 1, 7});
  const auto table = bench.add<i32>({3, 4});
  const auto lens = bench.add<i32>({1000});
  const auto out = bench.add(std::vector<i32>(32, kPoison));
  const auto context = bench.add<i32>({kPoison});
  bench.launch("monoref_sparse_block_table_decode", grid_of(1, 64), ids, i64{4}, i64{1}, table,
               i64{2}, lens, i64{1}, out, i64{32}, context, i64{1}, i64{1}, i32{4}, i32{2}, i32{1},
               i32{16});
  EXPECT_EQ(bench.read<i32>(out),
            joined({pages_from(3 * 16), pages_from(4 * 16), std::vector<i32>(16, 0)}));
  EXPECT_EQ(bench.read<i32>(context), std::vector<i32>{2 * 128});
}

TEST_P(Misuse, SparseTableOfARequestThatTheTableDoesNotHaveIsEmpty) {
  const auto ids = bench.add<i32>({0, 0, 0});
  const auto table = bench.add<i32>({9, 9});
  const auto requests = bench.add<i32>({-1, 2, 1});
  const auto positions = bench.add<i32>({5, 5, 5});
  const auto out = bench.add(std::vector<i32>(24, kPoison));
  const auto context = bench.add(std::vector<i32>(3, kPoison));
  bench.launch("monoref_sparse_block_table_prefill", grid_of(1, 64), ids, i64{1}, i64{1}, table,
               i64{1}, requests, i64{1}, positions, i64{1}, out, i64{8}, context, i64{3}, i64{2},
               i32{1}, i32{1}, i32{8});
  EXPECT_EQ(bench.read<i32>(out), joined({std::vector<i32>(16, 0), pages_from(72)}));
  EXPECT_EQ(bench.read<i32>(context), (std::vector<i32>{0, 0, 6}));
}

TEST_P(Misuse, SparseTableOfAQueryLengthOfZeroIsNotWritten) {
  const auto ids = bench.add<i32>({0});
  const auto table = bench.add<i32>({1});
  const auto lens = bench.add<i32>({5});
  const auto out = bench.add(std::vector<i32>(8, kPoison));
  const auto context = bench.add<i32>({kPoison});
  bench.launch("monoref_sparse_block_table_decode", grid_of(1, 64), ids, i64{1}, i64{1}, table,
               i64{1}, lens, i64{1}, out, i64{8}, context, i64{1}, i64{1}, i32{1}, i32{1}, i32{0},
               i32{8});
  EXPECT_EQ(bench.read<i32>(out), std::vector<i32>(8, kPoison));
  EXPECT_EQ(bench.read<i32>(context), std::vector<i32>{kPoison});
}

TEST_P(Misuse, IndexCacheInsertStoresNothingOutsideTheCache) {
  // Two blocks of four slots; only slot 6 exists among these (bug cases P10, P11, P14).
  constexpr i64 kLowest = std::numeric_limits<i64>::min();
  const auto keys = bench.add<std::uint8_t>({1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6});
  const auto slots = bench.add<i64>({-1, kLowest, 8, i64{1} << 40, (i64{1} << 32) + 3, 6});
  const auto cache = bench.add(std::vector<std::uint8_t>(16, 0));
  bench.launch("monoref_index_cache_insert_b8_s64", grid_of(1, 64), keys, i64{2}, i64{1}, i64{6},
               slots, i64{1}, i64{6}, cache, i64{8}, i64{2}, i64{8}, i32{4}, i32{2});
  std::vector<std::uint8_t> expected(16, 0);
  expected[12] = expected[13] = 6;
  EXPECT_EQ(bench.read<std::uint8_t>(cache), expected);
}

TEST_P(Misuse, TokenRowsOfAQueryLengthOfZeroAreNotWritten) {
  const auto table = bench.add<i32>({1, 2});
  const auto lens = bench.add<i32>({5});
  const auto rows = bench.add(std::vector<i32>(2, kPoison));
  const auto row_lens = bench.add<i32>({kPoison});
  bench.launch("monoref_token_rows", grid_of(1, 64), table, i64{2}, lens, i64{1}, rows, i64{2},
               row_lens, i64{1}, i64{1}, i32{2}, i32{0});
  EXPECT_EQ(bench.read<i32>(rows), std::vector<i32>(2, kPoison));
  EXPECT_EQ(bench.read<i32>(row_lens), std::vector<i32>{kPoison});
}

TEST_P(Misuse, SlotsBehindTheTableAreNotMapped) {
  // Bug case T09: positions 31, 32, 33 with two blocks of 16; only the first has a slot.
  const auto starts = bench.add<i32>({0, 3});
  const auto lens = bench.add<i32>({34});
  const auto table = bench.add<i32>({4, 7});
  const auto slots = bench.add(std::vector<i64>(5, kPoison));
  bench.launch("monoref_compressed_slot_mapping", grid_of(1, 64), starts, lens, table, i64{2},
               slots, i64{1}, i64{5}, i32{2}, i32{16}, i32{1}, i32{1}, i32{0}, i32{1});
  EXPECT_EQ(bench.read<i64>(slots), (std::vector<i64>{7 * 16 + 15, -1, -1, -1, -1}));
}

TEST_P(Misuse, SlotsOfABlockWithANegativeIdAreNotMapped) {
  const auto starts = bench.add<i32>({0, 3});
  const auto lens = bench.add<i32>({3});
  const auto table = bench.add<i32>({5, -1, -7});
  const auto slots = bench.add(std::vector<i64>(3, kPoison));
  bench.launch("monoref_compressed_slot_mapping", grid_of(1, 64), starts, lens, table, i64{3},
               slots, i64{1}, i64{3}, i32{3}, i32{1}, i32{1}, i32{1}, i32{0}, i32{1});
  EXPECT_EQ(bench.read<i64>(slots), (std::vector<i64>{5, -1, -1}));
}

TEST_P(Misuse, SlotsOfTokensOutsideTheMappingAreNotWritten) {
  const auto starts = bench.add<i32>({-2, 9});
  const auto lens = bench.add<i32>({11});
  const auto table = bench.add<i32>({1});
  const auto slots = bench.add(std::vector<i64>(4, kPoison));
  bench.launch("monoref_compressed_slot_mapping", grid_of(2, 64), starts, lens, table, i64{1},
               slots, i64{1}, i64{4}, i32{1}, i32{16}, i32{1}, i32{1}, i32{0}, i32{1});
  EXPECT_EQ(bench.read<i64>(slots), (std::vector<i64>{18, 19, 20, 21}));
}

TEST_P(Misuse, PrefillChunkOffsetsOutsideTheOutputsAreNotWritten) {
  // Three queries of which the slice has one, and entry offsets that leave the output both ways.
  const auto starts = bench.add<i32>({0, 3});
  const auto lens = bench.add<i32>({3});
  const auto entry_starts = bench.add<i32>({-2, 9});
  const auto names = bench.add(std::vector<i32>(4, kPoison));
  const auto ks = bench.add<i32>({kPoison});
  const auto ke = bench.add<i32>({kPoison});
  bench.launch("monoref_prefill_chunk_metadata", grid_of(1, 64), starts, lens, entry_starts, names,
               ks, ke, i64{1}, i64{4}, i64{1}, i64{2}, i32{1}, i32{1}, i32{0}, i32{1});
  EXPECT_EQ(bench.read<i32>(names), std::vector<i32>(4, 0));
  EXPECT_EQ(bench.read<i32>(ks), std::vector<i32>{-2});
  EXPECT_EQ(bench.read<i32>(ke), std::vector<i32>{-2 + 2});
}

TEST_P(Misuse, DecodeTokensBehindTheGridOrTheBatchAreNotMoved) {
  // Request 0 has more tokens than a row of the grid, request 1 more than the batch has left.
  const auto tokens = bench.add<std::uint16_t>({10, 11, 12, 13});
  const auto lens = bench.add<i32>({3, 2});
  const auto grid = bench.add(std::vector<std::uint16_t>(4, 0));
  bench.launch("monoref_decode_scatter_b16", grid_of(2, 64), tokens, i64{1}, lens, grid, i64{2},
               i64{2}, i64{1}, i64{4}, std::uint16_t{0xFFFF});
  EXPECT_EQ(bench.read<std::uint16_t>(grid), (std::vector<std::uint16_t>{10, 11, 13, 0xFFFF}));
}

TEST_P(Misuse, DecodeExpansionOfANarrowerTableKeepsToItsRows) {
  const auto lens = bench.add<i32>({9});
  const auto table = bench.add<i32>({1, 2, 3});
  const auto expanded = bench.add(std::vector<i32>(4, kPoison));
  const auto row_lens = bench.add(std::vector<i32>(2, kPoison));
  const auto decode_lens = bench.add(std::vector<i32>(2, kPoison));
  bench.launch("monoref_decode_expand_uniform", grid_of(2, 64), lens, i64{1}, table, i64{3},
               expanded, i64{2}, row_lens, decode_lens, i64{1}, i64{2}, i64{2}, i32{3}, i32{2},
               i32{2}, i32{1}, i32{1}, i32{0}, i32{1}, i32{-1});
  EXPECT_EQ(bench.read<i32>(expanded), (std::vector<i32>{1, 2, 1, 2}));
  EXPECT_EQ(bench.read<i32>(row_lens), (std::vector<i32>{8, 9}));
}

TEST_P(Misuse, DecodeLengthsOutsideTheLimitAreMovedIntoItAndNothingElseIsWritten) {
  const auto lens = bench.add<i32>({1, 50});
  const auto row_lens = bench.add(std::vector<i32>(7, kPoison));
  // Two requests of three tokens; neither tables nor decode lengths are wanted.
  bench.launch("monoref_decode_expand_uniform", grid_of(2, 64), lens, i64{1},
               static_cast<const i32*>(nullptr), i64{0}, static_cast<i32*>(nullptr), i64{0},
               row_lens, static_cast<i32*>(nullptr), i64{2}, i64{6}, i64{7}, i32{0}, i32{0}, i32{3},
               i32{1}, i32{1}, i32{0}, i32{1}, i32{48});
  EXPECT_EQ(bench.read<i32>(row_lens), (std::vector<i32>{0, 0, 1, 48, 48, 48, 0}));
}

TEST_P(Misuse, DecodeLengthsBehindTheLiveRowsAreZero) {
  const auto lens = bench.add<i32>({5, 6, 7});
  const auto row_lens = bench.add(std::vector<i32>(4, kPoison));
  // Three requests, of which the original has two lengths.
  bench.launch("monoref_decode_expand_uniform", grid_of(2, 64), lens, i64{1},
               static_cast<const i32*>(nullptr), i64{0}, static_cast<i32*>(nullptr), i64{0},
               row_lens, static_cast<i32*>(nullptr), i64{3}, i64{2}, i64{4}, i32{0}, i32{0}, i32{1},
               i32{1}, i32{1}, i32{0}, i32{1}, i32{-1});
  EXPECT_EQ(bench.read<i32>(row_lens), (std::vector<i32>{5, 6, 0, 0}));
}

}  // namespace
}  // namespace monoref::device
