// Input that the host side refuses and a kernel cannot: it is ignored as the kernels' comments say,
// and nothing outside the buffers is read or written.
#include <algorithm>
#include <limits>
#include <numeric>

#include "device/launch/compressed_slot_mapping.hpp"
#include "device/launch/decode_expand.hpp"
#include "device/launch/expert_up_gate.hpp"
#include "device/launch/final_norm.hpp"
#include "device/launch/glm5next_indexer.hpp"
#include "device/launch/index_cache_insert.hpp"
#include "device/launch/kv_cache_insert.hpp"
#include "device/launch/moe_route.hpp"
#include "device/launch/prefill_chunk_metadata.hpp"
#include "device/launch/qk_norm_rope.hpp"
#include "device/launch/qkv_projection.hpp"
#include "device/launch/residual_norm_quant.hpp"
#include "device/launch/router.hpp"
#include "device/launch/sparse_block_table.hpp"
#include "device/launch/token_rows.hpp"
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

/// Rows of a sparse table, each of `topk` ids, over a dense block table.
launch::SparseTableRows sparse_rows(KernelBench& bench, KernelBench::Buffer ids, i64 rows, i64 topk,
                                    KernelBench::Buffer table, i64 requests, i64 width,
                                    KernelBench::Buffer out, KernelBench::Buffer context,
                                    i64 page_stride) {
  return {.topk_idx = bench.at<const i32>(ids),
          .topk_row_stride = topk,
          .topk_id_stride = 1,
          .block_table = bench.at<const i32>(table),
          .table_row_stride = width,
          .sparse_table = bench.at<i32>(out),
          .sparse_row_stride = 8 * topk,
          .context_lens = bench.at<i32>(context),
          .total_q = rows,
          .requests = requests,
          .topk = topk,
          .width = width,
          .page_stride = page_stride};
}

TEST_P(Misuse, SparseTableDropsIdsBehindTheTable) {
  // 1000 keys are eight blocks, of which the table names two.
  const auto ids = bench.add<i32>({0, 5, 1, 7});
  const auto table = bench.add<i32>({3, 4});
  const auto lens = bench.add<i32>({1000});
  const auto out = bench.add(std::vector<i32>(32, kPoison));
  const auto context = bench.add<i32>({kPoison});
  bench.run(launch::SparseBlockTableDecode{
      .rows = sparse_rows(bench, ids, 1, 4, table, 1, 2, out, context, 16),
      .seq_lens = bench.at<const i32>(lens),
      .seq_lens_stride = 1,
      .q_len = 1});
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
  bench.run(launch::SparseBlockTablePrefill{
      .rows = sparse_rows(bench, ids, 3, 1, table, 2, 1, out, context, 8),
      .query_req_id = bench.at<const i32>(requests),
      .req_id_stride = 1,
      .query_abs_pos = bench.at<const i32>(positions),
      .abs_pos_stride = 1});
  EXPECT_EQ(bench.read<i32>(out), joined({std::vector<i32>(16, 0), pages_from(72)}));
  EXPECT_EQ(bench.read<i32>(context), (std::vector<i32>{0, 0, 6}));
}

TEST_P(Misuse, SparseTableOfAQueryLengthOfZeroIsNotWritten) {
  const auto ids = bench.add<i32>({0});
  const auto table = bench.add<i32>({1});
  const auto lens = bench.add<i32>({5});
  const auto out = bench.add(std::vector<i32>(8, kPoison));
  const auto context = bench.add<i32>({kPoison});
  bench.run(launch::SparseBlockTableDecode{
      .rows = sparse_rows(bench, ids, 1, 1, table, 1, 1, out, context, 8),
      .seq_lens = bench.at<const i32>(lens),
      .seq_lens_stride = 1,
      .q_len = 0});
  EXPECT_EQ(bench.read<i32>(out), std::vector<i32>(8, kPoison));
  EXPECT_EQ(bench.read<i32>(context), std::vector<i32>{kPoison});
}

TEST_P(Misuse, IndexCacheInsertStoresNothingOutsideTheCache) {
  // Two blocks of four slots; only slot 6 exists among these (bug cases P10, P11, P14).
  constexpr i64 kLowest = std::numeric_limits<i64>::min();
  const auto keys = bench.add<std::uint8_t>({1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6});
  const auto slots = bench.add<i64>({-1, kLowest, 8, i64{1} << 40, (i64{1} << 32) + 3, 6});
  const auto cache = bench.add(std::vector<std::uint8_t>(16, 0));
  bench.run(launch::IndexCacheInsert<std::uint8_t, i64>{.keys = bench.at<const std::uint8_t>(keys),
                                                        .key_row_stride = 2,
                                                        .key_dim_stride = 1,
                                                        .key_rows = 6,
                                                        .slots = bench.at<const i64>(slots),
                                                        .slot_stride = 1,
                                                        .slot_count = 6,
                                                        .cache = bench.at<std::uint8_t>(cache),
                                                        .cache_block_stride = 8,
                                                        .cache_token_stride = 2,
                                                        .capacity = 8,
                                                        .block_size = 4,
                                                        .dim = 2});
  std::vector<std::uint8_t> expected(16, 0);
  expected[12] = expected[13] = 6;
  EXPECT_EQ(bench.read<std::uint8_t>(cache), expected);
}

TEST_P(Misuse, TokenRowsOfAQueryLengthOfZeroAreNotWritten) {
  const auto table = bench.add<i32>({1, 2});
  const auto lens = bench.add<i32>({5});
  const auto rows = bench.add(std::vector<i32>(2, kPoison));
  const auto row_lens = bench.add<i32>({kPoison});
  bench.run(launch::TokenRows{.block_table = bench.at<const i32>(table),
                              .table_row_stride = 2,
                              .seq_lens = bench.at<const i32>(lens),
                              .seq_lens_stride = 1,
                              .rows_table = bench.at<i32>(rows),
                              .rows_table_stride = 2,
                              .rows_lens = bench.at<i32>(row_lens),
                              .rows = 1,
                              .length_rows = 1,
                              .width = 2,
                              .q_len = 0});
  EXPECT_EQ(bench.read<i32>(rows), std::vector<i32>(2, kPoison));
  EXPECT_EQ(bench.read<i32>(row_lens), std::vector<i32>{kPoison});
}

/// The slots of one request whose tokens are starts[0] .. starts[1] - 1.
std::vector<i64> mapped_slots(KernelBench& bench, const std::vector<i32>& starts, i32 seq_len,
                              const std::vector<i32>& table, std::size_t slots, i64 block_size) {
  const auto start_buffer = bench.add(starts), lens = bench.add<i32>({seq_len});
  const auto table_buffer = bench.add(table);
  const auto out = bench.add(std::vector<i64>(slots, kPoison));
  const auto width = static_cast<i64>(table.size());
  bench.run(launch::CompressedSlotMapping{.query_start_loc = bench.at<const i32>(start_buffer),
                                          .seq_lens = bench.at<const i32>(lens),
                                          .block_table = bench.at<const i32>(table_buffer),
                                          .table_row_stride = width,
                                          .slot_mapping = bench.at<i64>(out),
                                          .requests = 1,
                                          .slot_count = static_cast<i64>(slots),
                                          .width = width,
                                          .storage_block_size = block_size});
  return bench.read<i64>(out);
}

TEST_P(Misuse, SlotsBehindTheTableAreNotMapped) {
  // Bug case T09: positions 31, 32, 33 with two blocks of 16; only the first has a slot.
  EXPECT_EQ(mapped_slots(bench, {0, 3}, 34, {4, 7}, 5, 16),
            (std::vector<i64>{7 * 16 + 15, -1, -1, -1, -1}));
}

TEST_P(Misuse, SlotsOfABlockWithANegativeIdAreNotMapped) {
  EXPECT_EQ(mapped_slots(bench, {0, 3}, 3, {5, -1, -7}, 3, 1), (std::vector<i64>{5, -1, -1}));
}

TEST_P(Misuse, SlotsOfTokensOutsideTheMappingAreNotWritten) {
  EXPECT_EQ(mapped_slots(bench, {-2, 9}, 11, {1}, 4, 16), (std::vector<i64>{18, 19, 20, 21}));
}

TEST_P(Misuse, PrefillChunkOffsetsOutsideTheOutputsAreNotWritten) {
  // Three queries of which the slice has one, and entry offsets that leave the output both ways.
  const auto starts = bench.add<i32>({0, 3});
  const auto lens = bench.add<i32>({3});
  const auto entry_starts = bench.add<i32>({-2, 9});
  const auto names = bench.add(std::vector<i32>(4, kPoison));
  const auto ks = bench.add<i32>({kPoison});
  const auto ke = bench.add<i32>({kPoison});
  bench.run(launch::PrefillChunkMetadata{.query_start_loc = bench.at<const i32>(starts),
                                         .seq_lens = bench.at<const i32>(lens),
                                         .cu_seq_lens = bench.at<const i32>(entry_starts),
                                         .token_to_seq = bench.at<i32>(names),
                                         .cu_seqlen_ks = bench.at<i32>(ks),
                                         .cu_seqlen_ke = bench.at<i32>(ke),
                                         .requests = 1,
                                         .entries = 4,
                                         .slice_start = 1,
                                         .slice_stop = 2});
  EXPECT_EQ(bench.read<i32>(names), std::vector<i32>(4, 0));
  EXPECT_EQ(bench.read<i32>(ks), std::vector<i32>{-2});
  EXPECT_EQ(bench.read<i32>(ke), std::vector<i32>{-2 + 2});
}

TEST_P(Misuse, DecodeTokensBehindTheGridOrTheBatchAreNotMoved) {
  // Request 0 has more tokens than a row of the grid, request 1 more than the batch has left.
  const auto tokens = bench.add<std::uint16_t>({10, 11, 12, 13});
  const auto lens = bench.add<i32>({3, 2});
  const auto grid = bench.add(std::vector<std::uint16_t>(4, 0));
  bench.run(launch::DecodeScatter<std::uint16_t>{.tokens = bench.at<const std::uint16_t>(tokens),
                                                 .token_stride = 1,
                                                 .decode_lens = bench.at<const i32>(lens),
                                                 .rows = bench.at<std::uint16_t>(grid),
                                                 .requests = 2,
                                                 .lmax = 2,
                                                 .inner = 1,
                                                 .token_count = 4,
                                                 .pad = std::uint16_t{0xFFFF}});
  EXPECT_EQ(bench.read<std::uint16_t>(grid), (std::vector<std::uint16_t>{10, 11, 13, 0xFFFF}));
}

TEST_P(Misuse, DecodeExpansionOfANarrowerTableKeepsToItsRows) {
  const auto lens = bench.add<i32>({9});
  const auto table = bench.add<i32>({1, 2, 3});
  const auto expanded = bench.add(std::vector<i32>(4, kPoison));
  const auto row_lens = bench.add(std::vector<i32>(2, kPoison));
  const auto decode_lens = bench.add(std::vector<i32>(2, kPoison));
  bench.run(launch::DecodeExpand{
      .seq_lens = bench.at<const i32>(lens),
      .seq_lens_stride = 1,
      .block_table = bench.at<const i32>(table),
      .table_row_stride = 3,
      .expanded_table = bench.at<i32>(expanded),
      .expanded_row_stride = 2,
      .decode_seq_lens = bench.at<i32>(row_lens),
      .decode_lens = bench.at<i32>(decode_lens),
      .requests = 1,
      .live_rows = 2,
      .length_rows = 2,
      .width = 3,
      .expanded_width = 2,
      .max_decode_len = 2,
  });
  EXPECT_EQ(bench.read<i32>(expanded), (std::vector<i32>{1, 2, 1, 2}));
  EXPECT_EQ(bench.read<i32>(row_lens), (std::vector<i32>{8, 9}));
}

TEST_P(Misuse, DecodeLengthsOutsideTheLimitAreMovedIntoItAndNothingElseIsWritten) {
  const auto lens = bench.add<i32>({1, 50});
  const auto row_lens = bench.add(std::vector<i32>(7, kPoison));
  // Two requests of three tokens; neither tables nor decode lengths are wanted.
  bench.run(launch::DecodeExpand{.seq_lens = bench.at<const i32>(lens),
                                 .seq_lens_stride = 1,
                                 .decode_seq_lens = bench.at<i32>(row_lens),
                                 .requests = 2,
                                 .live_rows = 6,
                                 .length_rows = 7,
                                 .max_decode_len = 3,
                                 .length_limit = 48});
  EXPECT_EQ(bench.read<i32>(row_lens), (std::vector<i32>{0, 0, 1, 48, 48, 48, 0}));
}

TEST_P(Misuse, DecodeLengthsBehindTheLiveRowsAreZero) {
  const auto lens = bench.add<i32>({5, 6, 7});
  const auto row_lens = bench.add(std::vector<i32>(4, kPoison));
  // Three requests, of which the original has two lengths.
  bench.run(launch::DecodeExpand{
      .seq_lens = bench.at<const i32>(lens),
      .seq_lens_stride = 1,
      .decode_seq_lens = bench.at<i32>(row_lens),
      .requests = 3,
      .live_rows = 2,
      .length_rows = 4,
      .max_decode_len = 1,
  });
  EXPECT_EQ(bench.read<i32>(row_lens), (std::vector<i32>{5, 6, 0, 0}));
}

TEST_P(Misuse, InsertedKeysAndValuesStayInsideTheCache) {
  // One block of 128 slots: only slot 5 exists among these.
  constexpr std::size_t kWidth = 16, kCacheElements = 128 * kWidth;
  const std::vector<i64> slots{-1, 128, i64{1} << 32, 5};
  const auto k = bench.add(std::vector<float>(4 * kWidth, 1.0F));
  const auto v = bench.add(std::vector<std::uint16_t>(4 * kWidth, 0x3F80));
  const auto slot_buffer = bench.add(slots);
  const auto k_cache = bench.add(std::vector<std::uint16_t>(kCacheElements, 0));
  const auto v_cache = bench.add(std::vector<std::uint16_t>(kCacheElements, 0));
  const auto index_cache = bench.add(std::vector<std::uint16_t>(kCacheElements, 0));
  bench.run(launch::KvCacheInsert<std::uint16_t>{.k = bench.at<const float>(k),
                                                 .k_row_stride = 16,
                                                 .v = bench.at<const std::uint16_t>(v),
                                                 .v_row_stride = 16,
                                                 .rows = 4,
                                                 .slots = bench.at<const i64>(slot_buffer),
                                                 .slot_stride = 1,
                                                 .slot_count = 4,
                                                 .k_cache = bench.at<std::uint16_t>(k_cache),
                                                 .v_cache = bench.at<std::uint16_t>(v_cache),
                                                 .capacity = 128,
                                                 .heads = 1,
                                                 .head_dim = 16,
                                                 .sides = 1});
  bench.run(launch::IndexKeyInsert<std::uint16_t>{.keys = bench.at<const float>(k),
                                                  .key_row_stride = 16,
                                                  .rows = 4,
                                                  .slots = bench.at<const i64>(slot_buffer),
                                                  .slot_stride = 1,
                                                  .slot_count = 4,
                                                  .cache = bench.at<std::uint16_t>(index_cache),
                                                  .cache_block_stride = 128 * 16,
                                                  .cache_token_stride = 16,
                                                  .capacity = 128,
                                                  .block_size = 128,
                                                  .dim = 16});
  for (const auto cache : {k_cache, v_cache, index_cache}) {
    const auto codes = bench.read<std::uint16_t>(cache);
    EXPECT_EQ(std::count(codes.begin(), codes.end(), 0x3F80), 16);
    EXPECT_EQ(std::count(codes.begin(), codes.end(), 0), 127 * 16);
  }
}

/// Launches that must write nothing: `in` is zeros for every input, `out` is where everything goes.
class Ignored : public Misuse {
 protected:
  template <class T>
  const T* in() {
    return bench.at<const T>(in_);
  }
  template <class T>
  T* out() {
    return bench.at<T>(out_);
  }
  template <class Args>
  void expect(const Args& args, std::uint32_t threads = 0) {
    Grid grid = grid_of(args, GetParam());
    if (threads != 0) grid.threads_x = threads;
    bench.run_on(grid, args);
    EXPECT_EQ(bench.read<i32>(out_), std::vector<i32>(kWords, kPoison)) << args.kernel();
  }

 private:
  static constexpr std::size_t kWords = 1 << 16;
  KernelBench::Buffer in_ = bench.add(std::vector<std::uint64_t>(kWords, 0));
  KernelBench::Buffer out_ = bench.add(std::vector<i32>(kWords, kPoison));
};
INSTANTIATE_TEST_SUITE_P(Waves, Ignored, ::testing::Values(64, 32), wave_name);

TEST_P(Ignored, NormsOfOtherSizesAndBlocks) {
  using u16 = std::uint16_t;
  const auto router = [&](i64 hidden) {
    return launch::RouterNorm{.sum = in<u16>(),
                              .sum_row_stride = hidden,
                              .residual = in<u16>(),
                              .residual_row_stride = hidden,
                              .gamma = in<u16>(),
                              .h_mid = out<u16>(),
                              .h_mid_row_stride = hidden,
                              .xn = out<u16>(),
                              .xn_row_stride = hidden,
                              .rows = 3,
                              .hidden = hidden,
                              .eps = 1e-6F,
                              .norm_input = 0};
  };
  for (const i64 hidden : {520, 256, 8704}) expect(router(hidden));
  expect(router(512), 448);
  const auto last = [&](i64 hidden) {
    return launch::FinalNorm{.hidden_states = in<u16>(),
                             .hidden_row_stride = hidden,
                             .residual = in<u16>(),
                             .residual_row_stride = hidden,
                             .gamma = in<u16>(),
                             .out = out<u16>(),
                             .out_row_stride = hidden,
                             .rows = 4,
                             .hidden = hidden,
                             .eps = 1e-6F};
  };
  for (const i64 hidden : {1036, 8200}) expect(last(hidden), 1024);
  for (const std::uint32_t threads : {128U, 208U}) expect(last(1032), threads);
  expect(launch::ResidualNormQuant{.ar = in<u16>(),
                                   .ar_row_stride = 1032,
                                   .ar_stride = 1,
                                   .residual = in<u16>(),
                                   .residual_row_stride = 1032,
                                   .residual_stride = 1,
                                   .gamma = in<u16>(),
                                   .gamma_stride = 1,
                                   .residual_out = out<u16>(),
                                   .residual_out_row_stride = 1032,
                                   .x8 = out<std::uint8_t>(),
                                   .x8_row_stride = 1032,
                                   .x_scale = out<float>(),
                                   .rows = 5,
                                   .hidden = 1032,
                                   .eps = 1e-6F,
                                   .norm_input = 0,
                                   .fp8_max = 448,
                                   .encoding = 0,
                                   .overflow = 0},
         128);
}

TEST_P(Ignored, ProductsOfOtherSizesAndBlocks) {
  const auto gate = [&](i64 hidden) {
    return launch::RouterGate<float>{.xn = in<std::uint16_t>(),
                                     .xn_row_stride = hidden,
                                     .gate = in<float>(),
                                     .gate_row_stride = hidden,
                                     .logits = out<float>(),
                                     .logits_row_stride = 4,
                                     .rows = 3,
                                     .n_routed = 4,
                                     .hidden = hidden};
  };
  for (const i64 hidden : {520, 256}) expect(gate(hidden));
  expect(gate(512), 96);
  const auto projection = [&](i64 hidden) {
    return launch::QkvProjection{.x8 = in<std::uint8_t>(),
                                 .x8_row_stride = hidden,
                                 .x_scale = in<float>(),
                                 .weights = in<std::uint8_t>(),
                                 .w_scale = in<float>(),
                                 .out = out<std::uint16_t>(),
                                 .out_row_stride = 16,
                                 .tokens = 2,
                                 .rows = 16,
                                 .hidden = hidden,
                                 .encoding = 0};
  };
  for (const std::uint32_t threads : {8U, 24U}) expect(projection(128), threads);
  expect(projection(96), 32);
  const auto up_gate = [&](i64 hidden, i64 inter, float limit) {
    return launch::ExpertUpGate{.x8 = in<std::uint8_t>(),
                                .x8_row_stride = hidden,
                                .x_scale = in<std::uint8_t>(),
                                .topk_ids = in<i32>(),
                                .w13 = in<std::uint8_t>(),
                                .s13 = in<std::uint8_t>(),
                                .shared_w13 = nullptr,
                                .shared_s13 = nullptr,
                                .mid = out<std::uint16_t>(),
                                .rows = 1,
                                .slots = 1,
                                .hidden = hidden,
                                .inter = inter,
                                .experts = 1,
                                .n_routed = 1,
                                .weights = 0,
                                .e8m0_zero = 0,
                                .limit = limit,
                                .alpha = 1,
                                .beta = 1};
  };
  expect(up_gate(1024, 32, 7), 64);  // 8 slices need 128
  expect(up_gate(512, 32, 7), 80);   // not whole waves
  expect(up_gate(384, 32, 7), 128);
  expect(up_gate(512, 16, 7), 128);
  for (const float limit : {-1.0F, std::numeric_limits<float>::quiet_NaN()})
    expect(up_gate(512, 32, limit), 128);
}

TEST_P(Ignored, RoutesOfOtherSizesAndBlocks) {
  const auto route = [&](i64 experts, i64 topk, i32 keys) {
    return launch::MoeRoute{.logits = in<float>(),
                            .logits_row_stride = experts,
                            .bias = in<float>(),
                            .ids = out<i32>(),
                            .ids_row_stride = 10,
                            .weights = out<float>(),
                            .weights_row_stride = 10,
                            .rows = 1,
                            .n_routed = experts,
                            .top_k = topk,
                            .scaling = 2,
                            .renormalise = 1,
                            .shared = 1,
                            .shared_weight = 1,
                            .keys = keys,
                            .nan_key = 0,
                            .logits_bf16 = 1};
  };
  for (const i64 topk : {0, 9}) expect(route(128, topk, 0));
  for (const i64 experts : {3, 129}) expect(route(experts, 4, 0));
  expect(route(1025, 4, 1));
  expect(route(128, 4, 3));
  expect(route(128, 4, 0), 48);
}

TEST_P(Ignored, TokensAtPositionsThatTheTableDoesNotHave) {
  using u16 = std::uint16_t;
  for (const i64 table_rows : {0, -1})  // all positions are 0
    expect(launch::QkNormRope{.qkv = in<u16>(),
                              .qkv_row_stride = 5 * 128,
                              .qkv_stride = 1,
                              .positions = in<i64>(),
                              .cos_sin = in<u16>(),
                              .cos_sin_row_stride = 64,
                              .table_rows = table_rows,
                              .q_gamma = in<u16>(),
                              .k_gamma = in<u16>(),
                              .index_q_gamma = in<u16>(),
                              .index_k_gamma = in<u16>(),
                              .q = out<u16>(),
                              .q_row_stride = 256,
                              .index_q = out<u16>(),
                              .index_q_row_stride = 128,
                              .k = out<float>(),
                              .k_row_stride = 128,
                              .index_k = out<float>(),
                              .index_k_row_stride = 128,
                              .tokens = 3,
                              .q_heads = 2,
                              .kv_heads = 1,
                              .index_heads = 0,
                              .head_dim = 128,
                              .rotary_dim = 64,
                              .eps = 1e-6F});
}

}  // namespace
}  // namespace monoref::device
