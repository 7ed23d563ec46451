#include "reference/stages/token_rows.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "reference/model/step_admission.hpp"
#include "reference/stages/sparse_block_table.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

struct Rows {
  Tensor block_table;
  Tensor seq_lens;
};

TokenRowsInput input_of(const Tensor& block_table, const Tensor& seq_lens, std::int64_t q,
                        std::int64_t n) {
  return {reading<2>(block_table), reading<1>(seq_lens), q, n};
}

Rows expand(const Tensor& block_table, const Tensor& seq_lens, std::int64_t q, std::int64_t n) {
  const TokenRowsInput input = input_of(block_table, seq_lens, q, n);
  const TokenRowsShape shape = token_rows_shape(input);
  Rows rows{poisoned(DType::kInt32, Layout::dense({shape.block_table[0], shape.block_table[1]})),
            poisoned(DType::kInt32, Layout::dense({shape.seq_lens[0]}))};
  token_rows(input,
             {rows.block_table.view<std::int32_t, 2>(), rows.seq_lens.view<std::int32_t, 1>()});
  return rows;
}

/// A table whose row i is 100 * i, 100 * i + 1, ...: no page belongs to two requests.
Tensor distinct_table(std::int64_t requests, std::int64_t width) {
  Numbers pages;
  for (std::int64_t i = 0; i < requests; ++i)
    for (std::int64_t j = 0; j < width; ++j) pages.push_back(100 * i + j);
  return ints({requests, width}, pages);
}

TEST(TokenRows, T01EveryTokenOfARequestGetsItsRow) {
  const Rows rows = expand(distinct_table(2, 8), ints({2}, {10, 7}), 3, 6);
  const Numbers first = counting(0, 8);
  const Numbers second = counting(100, 8);
  EXPECT_EQ(values(rows.block_table), joined({first, first, first, second, second, second}));
  EXPECT_EQ(values(rows.seq_lens), (Numbers{8, 9, 10, 5, 6, 7}));
}

TEST(TokenRows, T01ATableOfTooFewRowsIsRefused) {
  const Tensor table = distinct_table(2, 8);
  const Tensor lens = ints({3}, {1, 2, 3});
  EXPECT_EQ(refusal_of([&] { token_rows_shape(input_of(table, lens, 3, 9)); }),
            "token_rows: block_table has 2 rows, needs at least 3 (n 9 div q 3)");
  EXPECT_EQ(refusal_of([&] { token_rows_shape(input_of(table, lens, 1, 3)); }),
            "token_rows: block_table has 2 rows, needs at least 3 (n 3 div q 1)");
  const Tensor short_lens = ints({1}, {5});
  EXPECT_EQ(refusal_of([&] { token_rows_shape(input_of(table, short_lens, 2, 4)); }),
            "token_rows: seq_lens has 1 rows, needs at least 2 (n 4 div q 2)");
}

TEST(TokenRows, T02LengthsOfPaddedRequestsStayNegative) {
  const Rows two = expand(distinct_table(4, 1), ints({4}, {10, 7, 12, 0}), 2, 8);
  EXPECT_EQ(values(two.seq_lens), (Numbers{9, 10, 6, 7, 11, 12, -1, 0}));
  const Rows three = expand(distinct_table(1, 1), ints({1}, {0}), 3, 3);
  EXPECT_EQ(values(three.seq_lens), (Numbers{-2, -1, 0}));
}

TEST(TokenRows, T02TheSparseTableOfAPaddedRequestHasContextZero) {
  const Tensor topk = ints({1, 8, 1}, repeated(0, 8));
  const Tensor table = distinct_table(4, 1);
  const Tensor lens = ints({4}, {10, 7, 12, 0});
  Tensor pages = poisoned(DType::kInt32, Layout::dense({8, 8}));
  Tensor contexts = poisoned(DType::kInt32, Layout::dense({8}));
  sparse_block_table_decode({.topk_idx = reading<3>(topk),
                             .block_table = reading<2>(table),
                             .seq_lens = reading<1>(lens),
                             .decode_query_len = 2},
                            {pages.view<std::int32_t, 2>(), contexts.view<std::int32_t, 1>()});
  EXPECT_EQ(values(contexts), (Numbers{9, 10, 6, 7, 11, 12, 0, 0}));
}

// Ragged batches are the decode expansion's. This stage has one q for all requests: it maps the
// tokens of [1, 2, 3] as two each, which is why nobody may derive q from tokens / requests.
TEST(TokenRows, T03OneQueryLengthHoldsForAllRequests) {
  const Rows rows = expand(distinct_table(3, 1), ints({3}, {10, 20, 30}), 2, 6);
  EXPECT_EQ(values(rows.block_table), (Numbers{0, 0, 100, 100, 200, 200}));
  EXPECT_EQ(values(rows.seq_lens), (Numbers{9, 10, 19, 20, 29, 30}));
}

TEST(TokenRows, T03ARaggedStepThatDoesNotDivideIsNotServed) {
  StepRequest step;  // decode lengths [2, 1, 2]
  step.tokens = 5;
  step.q_len = 2;
  step.block_table_rows = 3;
  step.seq_lens_rows = 3;
  step.slot_mapping_entries = 5;
  const auto refusal = admit_step(step, ModelShape{});
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->message, "step: tokens is 5, must be a multiple of q_len 2");
}

TEST(TokenRows, OneQueryTokenKeepsBothTablesWhole) {
  const Rows rows = expand(distinct_table(4, 2), ints({5}, {3, -1, 0, 9, 8}), 1, 2);
  EXPECT_EQ(values(rows.block_table), values(distinct_table(4, 2)));
  EXPECT_EQ(values(rows.seq_lens), (Numbers{3, -1, 0, 9, 8}));
}

TEST(TokenRows, LeftoverTokensAndRequestsAreDropped) {
  const Rows rows = expand(distinct_table(5, 1), ints({5}, {9, 8, 7, 6, 5}), 3, 8);
  EXPECT_EQ(values(rows.block_table), (Numbers{0, 0, 0, 100, 100, 100}));
  EXPECT_EQ(values(rows.seq_lens), (Numbers{7, 8, 9, 6, 7, 8}));
}

TEST(TokenRows, FewerTokensThanAQueryMakeNoRows) {
  const Rows rows = expand(distinct_table(2, 3), ints({2}, {9, 8}), 4, 3);
  EXPECT_EQ(rows.block_table.dims(), (Numbers{0, 3}));
  EXPECT_EQ(rows.seq_lens.dims(), (Numbers{0}));
}

TEST(TokenRows, ReadsAndWritesThroughStrides) {
  const Tensor table = filled(DType::kInt32, Layout::strided({2, 3}, {1, 5}), {1, 2, 3, 4, 5, 6});
  const Tensor lens = filled(DType::kInt32, Layout::strided({2}, {7}), {40, 50});
  Tensor out_table = poisoned(DType::kInt32, Layout::strided({4, 3}, {5, 1}));
  Tensor out_lens = poisoned(DType::kInt32, Layout::strided({4}, {2}));
  token_rows(input_of(table, lens, 2, 4),
             {out_table.view<std::int32_t, 2>(), out_lens.view<std::int32_t, 1>()});
  EXPECT_EQ(values(out_table), (Numbers{1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6}));
  EXPECT_EQ(values(out_lens), (Numbers{39, 40, 49, 50}));
  for (const std::int64_t gap : {3, 4, 8, 9, 13, 14}) EXPECT_EQ(element(out_table, gap), kPoison32);
  for (const std::int64_t gap : {1, 3, 5}) EXPECT_EQ(element(out_lens, gap), kPoison32);
}

TEST(TokenRows, LengthsReachTheEndOfInt32AndNoFurther) {
  constexpr std::int64_t lowest = std::numeric_limits<std::int32_t>::min();
  const Tensor table = distinct_table(2, 1);
  const Rows rows = expand(table, ints({2}, {0, lowest + 2}), 3, 6);
  EXPECT_EQ(values(rows.seq_lens), (Numbers{-2, -1, 0, lowest, lowest + 1, lowest + 2}));
  const Tensor below = ints({2}, {0, lowest + 1});
  EXPECT_EQ(refusal_of([&] { token_rows_shape(input_of(table, below, 3, 6)); }),
            "token_rows: seq_lens[1] is -2147483647, with q 3 its first length is below the limit"
            " -2147483648");
  EXPECT_EQ(refusal_of([&] { token_rows_shape(input_of(table, below, 3, 5)); }), "")
      << "request 1 is not part of the step";
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(refusal_of([&] { token_rows_shape(input_of(table, below, huge, huge)); }),
            "token_rows: seq_lens[0] is 0, with q 9223372036854775807 its first length is below the"
            " limit -2147483648");
}

TEST(TokenRows, RefusesCountsAndOutputShapes) {
  const Tensor table = distinct_table(2, 2);
  const Tensor lens = ints({2}, {5, 6});
  EXPECT_EQ(refusal_of([&] { token_rows_shape(input_of(table, lens, 0, 2)); }),
            "token_rows: q is 0, must be at least 1");
  EXPECT_EQ(refusal_of([&] { token_rows_shape(input_of(table, lens, 1, -1)); }),
            "token_rows: n is -1, must be at least 0");
  Tensor pages = poisoned(DType::kInt32, Layout::dense({4, 2}));
  Tensor wrong = poisoned(DType::kInt32, Layout::dense({3}));
  EXPECT_EQ(refusal_of([&] {
              token_rows(input_of(table, lens, 2, 4),
                         {pages.view<std::int32_t, 2>(), wrong.view<std::int32_t, 1>()});
            }),
            "token_rows: output seq_lens has 3 in dimension 0, must have 4");
  EXPECT_EQ(values(pages), repeated(kPoison32, 8)) << "nothing was written";
  EXPECT_EQ(refusal_of([&] {
              token_rows(input_of(table, lens, 2, 2),
                         {pages.view<std::int32_t, 2>(), wrong.view<std::int32_t, 1>()});
            }),
            "token_rows: output block_table has 4 in dimension 0, must have 2");
}

TEST(TokenRows, EveryRequestIsIndependentOfTheOthers) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const std::int64_t q = random.between(2, 5);
    const std::int64_t requests = random.between(1, 4);
    const std::int64_t width = random.between(1, 6);
    Numbers pages;
    Numbers lengths;
    for (std::int64_t i = 0; i < requests * width; ++i) pages.push_back(random.between(-1, 99));
    for (std::int64_t i = 0; i < requests; ++i) lengths.push_back(random.between(-9, 9));
    const Tensor table = ints({requests, width}, pages);
    const Rows all = expand(table, ints({requests}, lengths), q, requests * q);
    Numbers table_alone;
    Numbers lens_alone;
    for (std::int64_t i = 0; i < requests; ++i) {
      const auto row = pages.begin() + i * width;
      const Rows one = expand(ints({1, width}, Numbers(row, row + width)),
                              ints({1}, {lengths[static_cast<std::size_t>(i)]}), q, q);
      table_alone = joined({table_alone, values(one.block_table)});
      lens_alone = joined({lens_alone, values(one.seq_lens)});
    }
    ASSERT_EQ(values(all.block_table), table_alone) << "seed " << seed;
    ASSERT_EQ(values(all.seq_lens), lens_alone) << "seed " << seed;
  }
}

}  // namespace
}  // namespace monoref::testing
