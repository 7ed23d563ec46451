#include "reference/stages/page16_rebase.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

constexpr std::int64_t kInt64Highest = std::numeric_limits<std::int64_t>::max();

Numbers rebased(const Tensor& table, std::int64_t sides) {
  Tensor out = poisoned(DType::kInt32, Layout::dense(table.dims()));
  page16_rebase({reading<2>(table), sides}, {out.view<std::int32_t, 2>()});
  return values(out);
}

Page16RebaseSlotsInput slots_input(const Tensor& slots, std::int64_t sides,
                                   std::int64_t block_size = 128) {
  return {slots.view<std::int64_t, 1>(), sides, block_size};
}

Numbers rebased_slots(const Numbers& slots, std::int64_t sides, std::int64_t block_size = 128) {
  const Tensor in = longs(slots);
  Tensor out = poisoned(DType::kInt64, Layout::dense(in.dims()));
  page16_rebase_slots(slots_input(in, sides, block_size), {out.view<std::int64_t, 1>()});
  return values(out);
}

TEST(Page16Rebase, TablesAreMultipliedBySides) {
  const Tensor table = ints({2, 3}, {0, 1, -1, 7, 65536, 1000000});
  EXPECT_EQ(rebased(table, 2), (Numbers{0, 2, -2, 14, 131072, 2000000}));
  EXPECT_EQ(rebased(table, 1), values(table));
}

TEST(Page16Rebase, TablesAreRebasedInPlaceToo) {
  Tensor table = filled(DType::kInt32, Layout::strided({2, 2}, {3, 1}), {1, 2, 3, -1});
  page16_rebase({reading<2>(table), 2}, {table.view<std::int32_t, 2>()});
  EXPECT_EQ(values(table), (Numbers{2, 4, 6, -2}));
  EXPECT_EQ(element(table, 2), kPoison32) << "padding keeps its bits";
}

TEST(Page16Rebase, TablesReachTheEndOfInt32AndNoFurther) {
  EXPECT_EQ(rebased(ints({1, 2}, {1073741823, -1073741824}), 2),
            (Numbers{2147483646, -2147483648}));
  const Tensor above = ints({1, 2}, {0, 1073741824});
  EXPECT_EQ(refusal_of([&] { rebased(above, 2); }),
            "page16_rebase: block_table[0][1] is 1073741824, must be -1073741824 to 1073741823");
  const Tensor below = ints({2, 1}, {0, -1073741825});
  EXPECT_EQ(refusal_of([&] { rebased(below, 2); }),
            "page16_rebase: block_table[1][0] is -1073741825, must be -1073741824 to 1073741823");
  EXPECT_EQ(rebased(above, 1), values(above));
}

TEST(Page16Rebase, ARefusalLeavesATableInPlaceUnchanged) {
  Tensor table = ints({1, 2}, {5, 1073741824});
  EXPECT_NE(
      refusal_of([&] { page16_rebase({reading<2>(table), 2}, {table.view<std::int32_t, 2>()}); }),
      "");
  EXPECT_EQ(values(table), (Numbers{5, 1073741824}));
}

TEST(Page16Rebase, UpstreamsSlotExamples) {
  EXPECT_EQ(rebased_slots({0, 15, 16, 127, 128, 129, 255, 256, 383, -1}, 2),
            (Numbers{0, 15, 16, 127, 256, 257, 383, 512, 639, -1}));
}

TEST(Page16Rebase, DenseSidesAndNegativeSlotsStay) {
  EXPECT_EQ(rebased_slots({0, 300, -1}, 1), (Numbers{0, 300, -1}));
  EXPECT_EQ(rebased_slots({-1, -128, -129, std::numeric_limits<std::int64_t>::min()}, 2),
            (Numbers{-1, -128, -129, std::numeric_limits<std::int64_t>::min()}));
}

TEST(Page16Rebase, TheBlockSizeOfSlotsIsAParameter) {
  EXPECT_EQ(rebased_slots({3, 4, 7, 8}, 2, 4), (Numbers{3, 8, 11, 16}));
}

TEST(Page16Rebase, SlotsBeyondThirtyTwoBitsStayWhole) {
  const std::int64_t slot = (std::int64_t{1} << 31) + 5;
  EXPECT_EQ(rebased_slots({slot}, 2), (Numbers{2 * (std::int64_t{1} << 31) + 5}));
}

TEST(Page16Rebase, SlotsReachTheEndOfInt64AndNoFurther) {
  const std::int64_t middle = std::int64_t{1} << 62;
  EXPECT_EQ(rebased_slots({middle - 1}, 2), (Numbers{kInt64Highest - 128}));
  const Tensor above = longs({0, middle});
  EXPECT_EQ(refusal_of([&] { page16_rebase_slots_shape(slots_input(above, 2)); }),
            "page16_rebase: slot_mapping[1] is 4611686018427387904, its place with 2 sides exceeds"
            " the limit 9223372036854775807");
}

TEST(Page16Rebase, RefusesArguments) {
  const Tensor table = ints({1, 1}, {1});
  const Tensor slots = longs({1});
  EXPECT_EQ(refusal_of([&] { page16_rebase_shape({reading<2>(table), 3}); }),
            "page16_rebase: sides is 3, must be 1 or 2");
  EXPECT_EQ(refusal_of([&] { page16_rebase_slots_shape(slots_input(slots, 0)); }),
            "page16_rebase: sides is 0, must be 1 or 2");
  EXPECT_EQ(refusal_of([&] { page16_rebase_slots_shape(slots_input(slots, 2, 0)); }),
            "page16_rebase: block_size is 0, must be at least 1");
  Tensor wide = poisoned(DType::kInt32, Layout::dense({1, 2}));
  EXPECT_EQ(
      refusal_of([&] { page16_rebase({reading<2>(table), 2}, {wide.view<std::int32_t, 2>()}); }),
      "page16_rebase: output block_table has 2 in dimension 1, must have 1");
  Tensor longer = poisoned(DType::kInt64, Layout::dense({2}));
  EXPECT_EQ(refusal_of([&] {
              page16_rebase_slots(slots_input(slots, 2), {longer.view<std::int64_t, 1>()});
            }),
            "page16_rebase: output slot_mapping has 2 in dimension 0, must have 1");
}

TEST(Page16Rebase, P05ThePageStrideFollowsTheSides) {
  EXPECT_FALSE(sides_are_packed(24, 24));
  EXPECT_TRUE(sides_are_packed(48, 40));
  EXPECT_EQ(sparse_block_page_stride(24, 24), 8);
  EXPECT_EQ(sparse_block_page_stride(48, 40), 16);
  EXPECT_EQ(sparse_block_page_stride(6, 4, 2), 4);
  EXPECT_EQ(page16_sides(KvLayout::kInterleaved), 2);
  EXPECT_EQ(page16_sides(KvLayout::kDense), 1);
  EXPECT_EQ(refusal_of([] { sparse_block_page_stride(1, 1, 0); }),
            "page16_rebase: pages_per_block is 0, must be 1 to 4611686018427387903");
}

}  // namespace
}  // namespace monoref::testing
