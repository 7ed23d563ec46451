// A kernel's result depends on its arguments alone: not on the grid, not on the size of a block,
// and not on where its buffers begin. Each case is worked out here for itself, from its formula.
#include <cstdint>

#include "tests/kernels/bench.hpp"

namespace monoref::device {
namespace {

/// One way to launch: wave, blocks in x and y, threads a block, alignment of the buffers' bases.
struct Launch {
  int wave;
  std::uint32_t blocks;
  std::uint32_t blocks_y;
  std::uint32_t threads;
  std::size_t alignment;
};

class AnyLaunch : public ::testing::TestWithParam<Launch> {
 protected:
  KernelBench bench{GetParam().wave, GetParam().alignment};
  Grid grid = grid_of(GetParam().blocks, GetParam().threads, GetParam().blocks_y);
  Grid flat_grid = grid_of(GetParam().blocks, GetParam().threads);
};

std::string launch_name(const ::testing::TestParamInfo<Launch>& launch) {
  const Launch& l = launch.param;
  return "wave" + std::to_string(l.wave) + "_" + std::to_string(l.blocks) + "x" +
         std::to_string(l.blocks_y) + "_of_" + std::to_string(l.threads) + "_at_" +
         std::to_string(l.alignment);
}
INSTANTIATE_TEST_SUITE_P(Grids, AnyLaunch,
                         ::testing::Values(Launch{64, 1, 1, 64, 16}, Launch{64, 1, 1, 1024, 16},
                                           Launch{64, 7, 3, 192, 16}, Launch{64, 100, 1, 256, 8},
                                           Launch{32, 1, 1, 32, 16}, Launch{32, 1, 2, 1024, 8},
                                           Launch{32, 5, 1, 96, 16}, Launch{32, 64, 2, 64, 8}),
                         launch_name);

std::vector<i32> numbers(i64 count, i32 first) {
  std::vector<i32> values;
  for (i64 i = 0; i < count; ++i) values.push_back(first + static_cast<i32>(i));
  return values;
}

TEST_P(AnyLaunch, TokenRows) {
  constexpr i64 kRequests = 5, kWidth = 301, kQuery = 3;
  const auto table = bench.add(numbers(kRequests * kWidth, 1000));
  const auto lens = bench.add(numbers(kRequests, 0));
  const auto rows = bench.add(std::vector<i32>(kRequests * kQuery * kWidth, -1));
  const auto row_lens = bench.add(std::vector<i32>(kRequests * kQuery, -1));
  bench.launch("monoref_token_rows", grid, table, kWidth, lens, i64{1}, rows, kWidth, row_lens,
               kRequests * kQuery, kRequests * kQuery, i32{kWidth}, i32{kQuery});
  std::vector<i32> expected, expected_lens;
  for (i32 request = 0; request < kRequests; ++request) {
    for (i32 token = 0; token < kQuery; ++token) {
      for (i32 column = 0; column < kWidth; ++column)
        expected.push_back(1000 + request * i32{kWidth} + column);
      expected_lens.push_back(request - (i32{kQuery} - 1 - token));
    }
  }
  EXPECT_EQ(bench.read<i32>(rows), expected);
  EXPECT_EQ(bench.read<i32>(row_lens), expected_lens);
}

TEST_P(AnyLaunch, SparseBlockTable) {
  // Row r selects its blocks 0 .. 39 of 40 with the tail first; all 33 rows see the whole table.
  constexpr i64 kRows = 33, kTopk = 40, kWidth = 40;
  std::vector<i32> ids, expected;
  for (i32 row = 0; row < kRows; ++row) {
    ids.push_back(i32{kTopk} - 1);
    for (i32 id = 0; id < kTopk - 1; ++id) ids.push_back(id);
    for (i32 id = 0; id < kTopk; ++id)
      for (i32 page = 0; page < 8; ++page)
        expected.push_back((500 + row * i32{kWidth} + id) * 16 + page);
  }
  const auto topk = bench.add(ids);
  const auto table = bench.add(numbers(kRows * kWidth, 500));
  const auto lens = bench.add(std::vector<i32>(kRows, i32{kWidth} * 128 - 1));
  const auto out = bench.add(std::vector<i32>(kRows * kTopk * 8, -1));
  const auto context = bench.add(std::vector<i32>(kRows, -1));
  bench.launch("monoref_sparse_block_table_decode", flat_grid, topk, kTopk, i64{1}, table, kWidth,
               lens, i64{1}, out, kTopk * 8, context, kRows, kRows, i32{kTopk}, i32{kWidth}, i32{1},
               i32{16});
  EXPECT_EQ(bench.read<i32>(out), expected);
  EXPECT_EQ(bench.read<i32>(context), std::vector<i32>(kRows, i32{kWidth} * 128 - 1));
}

TEST_P(AnyLaunch, Page16Rebase) {
  constexpr i64 kRows = 6, kWidth = 37, kSlots = 301;
  const auto table = bench.add(numbers(kRows * kWidth, -3));
  const auto rebased = bench.add(std::vector<i32>(kRows * kWidth, -1));
  bench.launch("monoref_page16_rebase_table", grid, table, kWidth, rebased, kWidth, kRows,
               i32{kWidth}, i32{2});
  std::vector<i32> expected;
  for (const i32 block : numbers(kRows * kWidth, -3)) expected.push_back(2 * block);
  EXPECT_EQ(bench.read<i32>(rebased), expected);

  KernelBench slot_bench(GetParam().wave, GetParam().alignment);
  std::vector<i64> plain, moved;
  for (i64 slot = -1; slot < kSlots - 1; ++slot) {
    plain.push_back(slot);
    moved.push_back(slot < 128 ? slot : slot < 256 ? slot + 128 : slot + 256);
  }
  const auto slots = slot_bench.add(plain);
  const auto out = slot_bench.add(std::vector<i64>(kSlots, -9));
  slot_bench.launch("monoref_page16_rebase_slots", flat_grid, slots, i64{1}, out, kSlots, i32{2});
  EXPECT_EQ(slot_bench.read<i64>(out), moved);
}

TEST_P(AnyLaunch, IndexCacheInsert) {
  // Row r goes to slot 2r + 1 of 2 * rows; dim 41 leaves a rest behind the 16-byte units.
  constexpr i64 kRows = 50, kDim = 41, kBlock = 4;
  std::vector<std::uint16_t> keys, expected(2 * kRows * kDim, 0xAAAA);
  std::vector<i32> slots;
  for (i64 row = 0; row < kRows; ++row) {
    slots.push_back(static_cast<i32>(2 * row + 1));
    for (i64 d = 0; d < kDim; ++d) {
      const auto value = static_cast<std::uint16_t>(row * 100 + d);
      keys.push_back(value);
      expected[static_cast<std::size_t>((2 * row + 1) * kDim + d)] = value;
    }
  }
  const auto key_buffer = bench.add(keys);
  const auto slot_buffer = bench.add(slots);
  const auto cache = bench.add(std::vector<std::uint16_t>(2 * kRows * kDim, 0xAAAA));
  bench.launch("monoref_index_cache_insert_b16_s32", flat_grid, key_buffer, kDim, i64{1}, kRows,
               slot_buffer, i64{1}, kRows, cache, kBlock * kDim, kDim, 2 * kRows, i32{kBlock},
               i32{kDim});
  EXPECT_EQ(bench.read<std::uint16_t>(cache), expected);
}

TEST_P(AnyLaunch, KvPageAddress) {
  // FP8, one head of 128, interleaved sides: the bytes of mono-decode section 3.8.
  constexpr i64 kSlots = 5, kDim = 128;
  const std::vector<i64> slots{0, 127, 128, 1000, i64{65536} * 128 + 17};
  std::vector<i64> k, v;
  for (const i64 slot : slots) {
    const i64 page = slot / 128 * 16 + slot % 128 / 16, token = slot % 16;
    for (i64 d = 0; d < kDim; ++d) {
      k.push_back(page * 2048 + d / 16 * 256 + token * 16 + d % 16);
      v.push_back(16384 + page * 2048 + d * 16 + token);
    }
  }
  const auto slot_buffer = bench.add(slots);
  const auto k_out = bench.add(std::vector<i64>(kSlots * kDim, -9));
  const auto v_out = bench.add(std::vector<i64>(kSlots * kDim, -9));
  bench.launch("monoref_kv_page_address", grid, slot_buffer, i64{1}, k_out, v_out, kSlots, i32{1},
               i32{kDim}, i32{1}, i32{2});
  EXPECT_EQ(bench.read<i64>(k_out), k);
  EXPECT_EQ(bench.read<i64>(v_out), v);
}

TEST_P(AnyLaunch, DecodeExpand) {
  constexpr i64 kRequests = 9, kWidth = 21, kExpanded = 30, kDecode = 4, kLengthRows = 50;
  const auto lens = bench.add(std::vector<i32>(kRequests, 100));
  const auto table = bench.add(numbers(kRequests * kWidth, 7));
  const auto expanded = bench.add(std::vector<i32>(kRequests * kDecode * kExpanded, -1));
  const auto row_lens = bench.add(std::vector<i32>(kLengthRows, -1));
  const auto decode_lens = bench.add(std::vector<i32>(kRequests * kDecode, -1));
  bench.launch("monoref_decode_expand_uniform", grid, lens, i64{1}, table, kWidth, expanded,
               kExpanded, row_lens, decode_lens, kRequests, kRequests * kDecode, kLengthRows,
               i32{kWidth}, i32{kExpanded}, i32{kDecode}, i32{1}, i32{1}, i32{0}, i32{1}, i32{-1});
  std::vector<i32> expected, expected_lens;
  for (i32 row = 0; row < kRequests * kDecode; ++row) {
    for (i32 column = 0; column < kExpanded; ++column)
      expected.push_back(column < kWidth ? 7 + row / i32{kDecode} * i32{kWidth} + column : 0);
    expected_lens.push_back(97 + row % i32{kDecode});
  }
  expected_lens.resize(kLengthRows, 0);
  EXPECT_EQ(bench.read<i32>(expanded), expected);
  EXPECT_EQ(bench.read<i32>(row_lens), expected_lens);
  EXPECT_EQ(bench.read<i32>(decode_lens), std::vector<i32>(kRequests * kDecode, 1));
}

TEST_P(AnyLaunch, PrefillSumsAndChunk) {
  // Request r of 200 has r mod 7 keys, all of them queries, so key i of a request sees i + 1 keys.
  constexpr i64 kRequests = 200;
  std::vector<i32> lens, sums{0}, names, ks, ke;
  for (i32 request = 0; request < kRequests; ++request) {
    lens.push_back(request % 7);
    for (i32 key = 0; key < request % 7; ++key) {
      names.push_back(request);
      ks.push_back(sums.back());
      ke.push_back(sums.back() + key + 1);
    }
    sums.push_back(sums.back() + request % 7);
  }
  const auto total = static_cast<i64>(names.size());
  const auto len_buffer = bench.add(lens);
  const auto sum_buffer = bench.add(std::vector<i32>(kRequests + 1, -1));
  const auto starts = bench.add(sums);  // every key is a query, so queries start where entries do
  const auto name_buffer = bench.add(std::vector<i32>(names.size(), -1));
  const auto ks_buffer = bench.add(std::vector<i32>(names.size(), -1));
  const auto ke_buffer = bench.add(std::vector<i32>(names.size(), -1));
  bench.launch("monoref_prefill_cu_seq_lens", flat_grid, len_buffer, sum_buffer, kRequests, i32{1},
               i32{1}, i32{0}, i32{1});
  bench.launch("monoref_prefill_chunk_metadata", grid, starts, len_buffer, sum_buffer, name_buffer,
               ks_buffer, ke_buffer, kRequests, total, i64{0}, total, i32{1}, i32{1}, i32{0},
               i32{1});
  EXPECT_EQ(bench.read<i32>(sum_buffer), sums);
  EXPECT_EQ(bench.read<i32>(name_buffer), names);
  EXPECT_EQ(bench.read<i32>(ks_buffer), ks);
  EXPECT_EQ(bench.read<i32>(ke_buffer), ke);
}

TEST_P(AnyLaunch, DecodeScatter) {
  // Request r of 70 has r mod 3 tokens of 5 elements in a grid of 2 a request.
  constexpr i64 kRequests = 70, kRow = 2, kInner = 5;
  std::vector<i32> lens;
  std::vector<std::uint32_t> tokens, expected;
  for (i32 request = 0; request < kRequests; ++request) {
    lens.push_back(request % 3);
    for (i32 t = 0; t < kRow; ++t) {
      for (i64 i = 0; i < kInner; ++i) {
        if (t < request % 3) tokens.push_back(static_cast<std::uint32_t>(tokens.size()));
        expected.push_back(t < request % 3 ? tokens.back() : 0xFFFFFFFFU);
      }
    }
  }
  const auto token_count = static_cast<i64>(tokens.size()) / kInner;
  const auto token_buffer = bench.add(tokens);
  const auto len_buffer = bench.add(lens);
  const auto out = bench.add(std::vector<std::uint32_t>(expected.size(), 1));
  bench.launch("monoref_decode_scatter_b32", flat_grid, token_buffer, kInner, len_buffer, out,
               kRequests, kRow, kInner, token_count, std::uint32_t{0xFFFFFFFF});
  EXPECT_EQ(bench.read<std::uint32_t>(out), expected);
}

}  // namespace
}  // namespace monoref::device
