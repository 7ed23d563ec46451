#include "reference/stages/kv_indptr.hpp"

#include <gtest/gtest.h>

#include "tests/reference/stage_test.hpp"

namespace monoref {
namespace {

using testing::ints;
using testing::Numbers;
using testing::poisoned;
using testing::reading;
using testing::refusal_of;
using testing::values;

Numbers indptr_of(const Tensor& seq_lens, std::int64_t live, std::int64_t page_size) {
  Tensor indptr = poisoned(DType::kInt32, Layout::dense({seq_lens.dim(0) + 1}));
  kv_indptr({reading<1>(seq_lens), live, page_size}, {indptr.view<std::int32_t, 1>()});
  return values(indptr);
}

TEST(KvIndptr, WholeAndPartialPages) {
  // 0, 1, 15, 16 and 17 tokens take 0, 1, 1, 1 and 2 pages of 16.
  EXPECT_EQ(indptr_of(ints({5}, {0, 1, 15, 16, 17}), 5, 16), (Numbers{0, 0, 1, 2, 3, 5}));
  EXPECT_EQ(indptr_of(ints({2}, {3, 4}), 2, 1), (Numbers{0, 3, 7}));
}

TEST(BugCaseD04, LengthsOfAnEarlierStepHoldNoPages) {
  EXPECT_EQ(indptr_of(ints({4}, {20, 100, 100, -3}), 1, 16), (Numbers{0, 2, 2, 2, 2}));
  EXPECT_EQ(indptr_of(ints({2}, {20, 100}), 0, 16), (Numbers{0, 0, 0}));
  EXPECT_EQ(indptr_of(ints({0}, {}), 0, 16), (Numbers{0}));
}

TEST(BugCaseT02, LengthsBelowZeroHoldNoPages) {
  EXPECT_EQ(indptr_of(ints({3}, {5, -1, -4000}), 3, 4), (Numbers{0, 2, 2, 2}));
}

TEST(KvIndptr, TheLastPageThatFits) {
  EXPECT_EQ(indptr_of(ints({2}, {0x7FFFFFFF, 0}), 2, 1), (Numbers{0, 0x7FFFFFFF, 0x7FFFFFFF}));
  EXPECT_EQ(indptr_of(ints({1}, {0x7FFFFFFF}), 1, 0x7FFFFFFF), (Numbers{0, 1}));
}

TEST(KvIndptr, Refusals) {
  const Tensor lens = ints({2}, {0x7FFFFFFF, 1});
  Tensor indptr = poisoned(DType::kInt32, Layout::dense({3}));
  const auto refusal = [&](std::int64_t live, std::int64_t page_size) {
    return refusal_of(
        [&] { kv_indptr({reading<1>(lens), live, page_size}, {indptr.view<std::int32_t, 1>()}); });
  };
  EXPECT_EQ(refusal(3, 16), "kv_indptr: live is 3, must be 0 to 2, the extent of seq_lens");
  EXPECT_EQ(refusal(-1, 16), "kv_indptr: live is -1, must be 0 to 2, the extent of seq_lens");
  EXPECT_EQ(refusal(1, 0), "kv_indptr: page_size is 0, must be 1 to 2147483647");
  EXPECT_EQ(refusal(2, 1),
            "kv_indptr: requests 0 to 1 have 2147483648 pages, the limit is 2147483647");
  Tensor narrow = poisoned(DType::kInt32, Layout::dense({2}));
  EXPECT_EQ(
      refusal_of([&] { kv_indptr({reading<1>(lens), 1, 16}, {narrow.view<std::int32_t, 1>()}); }),
      "kv_indptr: output kv_indptr has 2 in dimension 0, must have 3");
  EXPECT_EQ(values(indptr), testing::repeated(testing::kPoison32, 3))
      << "nothing is written before a refusal";
}

}  // namespace
}  // namespace monoref
