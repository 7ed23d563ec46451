#include "reference/stages/index_cache_insert.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

constexpr std::int64_t kUntouched = 0x5A;

Tensor bytes(Numbers dims, const Numbers& elements) {
  return filled(DType::kUInt8, Layout::dense(std::move(dims)), elements);
}

Tensor byte_cache(std::int64_t blocks, std::int64_t block_size, std::int64_t head_dim) {
  return poisoned(DType::kUInt8, Layout::dense({blocks, block_size, head_dim}));
}

/// Whole storage of a byte cache as {offset: value} of all bytes that are no longer poison.
std::map<std::int64_t, std::int64_t> written(const Tensor& cache) {
  std::map<std::int64_t, std::int64_t> found;
  for (const Extent& extent : cache.layout().extents)
    for (std::int64_t i = 0; i < extent.count; ++i) {
      const std::int64_t value = element(cache, extent.offset + i);
      if (value != kUntouched) found[extent.offset + i] = value;
    }
  return found;
}
using Written = std::map<std::int64_t, std::int64_t>;

void insert(const Tensor& keys, Tensor& cache, const Tensor& slots,
            OutOfRangeSlot rule = OutOfRangeSlot::kRefuse) {
  index_cache_insert({keys, cache, slots, rule}, {cache});
}

std::string refusal(const Tensor& keys, const Tensor& cache, const Tensor& slots,
                    OutOfRangeSlot rule = OutOfRangeSlot::kRefuse) {
  return refusal_of([&] { index_cache_insert_shape({keys, cache, slots, rule}); });
}

TEST(IndexCacheInsert, P10PaddingDoesNotTouchTheLastSlot) {
  for (const std::int64_t live : {0, 1, 2}) {  // -1 behind, around and before the live row
    Tensor cache = byte_cache(2, 4, 2);
    Numbers slots(3, -1);
    slots[static_cast<std::size_t>(live)] = 3;
    insert(bytes({3, 2}, {10, 11, 20, 21, 30, 31}), cache, longs(slots));
    const std::int64_t first = 10 * (live + 1);
    EXPECT_EQ(written(cache), (Written{{6, first}, {7, first + 1}}));
  }
}

TEST(IndexCacheInsert, P11PaddedRowsWriteNowhere) {
  Tensor cache = byte_cache(2, 128, 2);
  insert(bytes({3, 2}, {1, 2, 3, 4, 5, 6}), cache, longs({5, -1, -1}));
  EXPECT_EQ(written(cache), (Written{{10, 1}, {11, 2}}));
}

TEST(IndexCacheInsert, P07KeysAreRowMajorInTheirPage) {
  Tensor cache = byte_cache(1, 64, 128);
  Numbers keys(2 * 128, 0);
  for (std::size_t d = 0; d < 128; ++d) {
    keys[d] = 100 + static_cast<std::int64_t>(d);        // token 1
    keys[128 + d] = static_cast<std::int64_t>(d) % 100;  // token 17
  }
  insert(bytes({2, 128}, keys), cache, longs({1, 17}));
  EXPECT_EQ(element(cache, 128), 100) << "(1, 0): a tiled layout would use offset 16";
  EXPECT_EQ(element(cache, 128 + 16), 116);
  EXPECT_EQ(element(cache, 2179), 3) << "(17, 3): a tiled layout would use offset 2067";
  EXPECT_EQ(element(cache, 16), kUntouched);
  EXPECT_EQ(element(cache, 256), kUntouched);
  EXPECT_EQ(element(cache, 2067), kUntouched);
}

TEST(IndexCacheInsert, P13MoreKeyRowsThanSlots) {
  Tensor cache = byte_cache(1, 8, 1);
  const Tensor keys = bytes({8, 1}, counting(1, 8));
  const Tensor slots = longs({7, 6, 5, 4, 3});
  EXPECT_EQ(
      refusal(keys, cache, slots),
      "index_cache_insert: slot_mapping has 5 entries, must have 8, one for each row of index_k");
  insert(keys, cache, slots, OutOfRangeSlot::kDrop);
  EXPECT_EQ(written(cache), (Written{{7, 1}, {6, 2}, {5, 3}, {4, 4}, {3, 5}}))
      << "rows 5..7 ignored";
}

TEST(IndexCacheInsert, P13MoreSlotsThanKeyRows) {
  Tensor cache = byte_cache(1, 8, 1);
  const Tensor keys = bytes({2, 1}, {1, 2});
  const Tensor slots = longs({7, 6, 5});
  EXPECT_EQ(
      refusal(keys, cache, slots),
      "index_cache_insert: slot_mapping has 3 entries, must have 2, one for each row of index_k");
  insert(keys, cache, slots, OutOfRangeSlot::kDrop);
  EXPECT_EQ(written(cache), (Written{{7, 1}, {6, 2}}));
}

TEST(IndexCacheInsert, P14SlotsBeyondTheCacheAreNotPadding) {
  Tensor cache = byte_cache(2, 4, 1);
  const Tensor keys = bytes({2, 1}, {1, 2});
  EXPECT_EQ(refusal_of([&] { insert(keys, cache, longs({0, 8})); }),
            "index_cache_insert: slot_mapping[1] is 8, limit 7 (2 blocks of 4)");
  EXPECT_EQ(written(cache), Written{}) << "nothing is written, the good row neither";
  insert(keys, cache, longs({0, 8}), OutOfRangeSlot::kDrop);
  EXPECT_EQ(written(cache), (Written{{0, 1}}));
  insert(keys, cache, longs({7, -1}));
  EXPECT_EQ(written(cache), (Written{{0, 1}, {7, 1}})) << "the last slot is inside, -1 is silent";
}

TEST(IndexCacheInsert, P14TheHighestSlotsOfBothTypes) {
  const Tensor cache = byte_cache(2, 4, 1);
  const Tensor keys = bytes({1, 1}, {1});
  EXPECT_EQ(refusal(keys, cache, ints({1}, {2147483647})),
            "index_cache_insert: slot_mapping[0] is 2147483647, limit 7 (2 blocks of 4)");
  EXPECT_EQ(refusal(keys, cache, longs({std::int64_t{1} << 32})),
            "index_cache_insert: slot_mapping[0] is 4294967296, limit 7 (2 blocks of 4)");
}

/// A cache of which only the given runs are real storage.
Tensor sparse_cache(DType type, Numbers dims, std::int64_t block_stride, std::int64_t token_stride,
                    const std::vector<Extent>& extents) {
  Layout layout{std::move(dims), {block_stride, token_stride, 1}, extents};
  return poisoned(type, layout);
}

TEST(IndexCacheInsert, O02OffsetsBeyondThirtyTwoBits) {
  constexpr std::int64_t stride = 1435968;  // bytes a block of the packed allocation
  for (const std::int64_t block : {std::int64_t{1495}, std::int64_t{1496}, std::int64_t{4564}}) {
    const std::int64_t place = block * stride + 3 * 128;
    std::set<std::int64_t> starts{0, place};
    // Where a product cut to 32 bits would land; an unsigned cut below 2^32 is the place itself.
    starts.insert(place & 0xFFFFFFFF);
    starts.insert(place & 0x7FFFFFFF);
    std::vector<Extent> extents;
    for (const std::int64_t start : starts) extents.push_back({start, 128});
    Tensor cache = sparse_cache(DType::kUInt8, {4565, 128, 128}, stride, 128, extents);
    insert(bytes({1, 128}, counting(100, 128)), cache, longs({block * 128 + 3}));
    Written expected;
    for (std::int64_t d = 0; d < 128; ++d) expected[place + d] = 100 + d;
    EXPECT_EQ(written(cache), expected) << "block " << block;
  }
}

TEST(IndexCacheInsert, O07ManyBlocksWithSlotsOfBothTypes) {
  constexpr std::int64_t head_dim = 32 * 128;
  constexpr std::int64_t slot = 64000 * 16 - 1;
  constexpr std::int64_t place = slot * head_dim;  // above 2^31 and, doubled for bytes, above 2^32
  static_assert(place > (std::int64_t{1} << 31));
  const std::vector<Extent> extents{{place & 0x7FFFFFFF, head_dim}, {place, head_dim}};
  const Tensor keys =
      filled(DType::kBFloat16, Layout::dense({1, head_dim}), counting(0x4000, head_dim));
  for (const Tensor& slots : {longs({slot}), ints({1}, {slot})}) {
    Tensor cache =
        sparse_cache(DType::kBFloat16, {64000, 16, head_dim}, 16 * head_dim, head_dim, extents);
    insert(keys, cache, slots);
    EXPECT_EQ(element(cache, place), 0x4000);
    EXPECT_EQ(element(cache, place + head_dim - 1), 0x4000 + head_dim - 1);
    EXPECT_EQ(element(cache, place & 0x7FFFFFFF), 0x5A5A);
  }
}

TEST(IndexCacheInsert, O07SlotsBeyondThirtyTwoBits) {
  constexpr std::int64_t slot = (std::int64_t{1} << 32) + 5;
  Tensor cache = sparse_cache(DType::kUInt8, {(std::int64_t{1} << 29) + 1, 16, 2}, 32, 2,
                              {{10, 2}, {2 * slot, 2}});
  insert(bytes({1, 2}, {1, 2}), cache, longs({slot}));
  EXPECT_EQ(written(cache), (Written{{2 * slot, 1}, {2 * slot + 1, 2}}));
}

TEST(IndexCacheInsert, StorageThatIsNotThereIsRefusedUnderBothRules) {
  const Tensor cache = sparse_cache(DType::kUInt8, {100, 4, 4}, 1000, 4, {{0, 16}, {5000, 6}});
  const Tensor key = bytes({1, 4}, {1, 2, 3, 4});
  for (const OutOfRangeSlot rule : {OutOfRangeSlot::kRefuse, OutOfRangeSlot::kDrop}) {
    EXPECT_EQ(refusal(key, cache, longs({5 * 4}), rule), "");
    EXPECT_EQ(refusal(key, cache, longs({5 * 4 + 1}), rule),
              "index_cache_insert: slot_mapping[0] is 21, its key of index_cache is elements 5004 "
              "to 5007, must lie in one run"
              " of its storage, elements 0 to 15, 5000 to 5005");
    EXPECT_EQ(refusal(key, cache, longs({1 * 4}), rule),
              "index_cache_insert: slot_mapping[0] is 4, its key of index_cache is elements 1000 "
              "to 1003, must lie in one run"
              " of its storage, elements 0 to 15, 5000 to 5005");
  }
  Layout gaps{{3, 2}, {10, 1}, {{0, 2}, {20, 2}}};
  const Tensor keys = poisoned(DType::kUInt8, gaps);
  const Tensor small = byte_cache(1, 4, 2);
  EXPECT_EQ(refusal(keys, small, longs({0, -1, 1})), "") << "a padded row is not read";
  EXPECT_EQ(refusal(keys, small, longs({0, 2, 1})),
            "index_cache_insert: index_k row 1 dim 0 is element 10, must be one that is stored, "
            "elements 0 to 1, 20 to 21");
}

TEST(IndexCacheInsert, EveryElementSizeIsCopiedAsBits) {
  const struct {
    DType type;
    Numbers patterns;  // NaN payloads and negative zeros among them
  } sizes[] = {{DType::kFloat8E4M3FN, {0x7F, 0x80}},
               {DType::kBFloat16, {0x7FA1, 0x8000}},
               {DType::kFloat32, {0x7F800001, 0x80000000}},
               {DType::kInt32, {-5, 5}}};
  for (const auto& size : sizes) {
    const Tensor keys = filled(size.type, Layout::dense({1, 2}), size.patterns);
    Tensor cache = poisoned(size.type, Layout::dense({1, 2, 2}));
    insert(keys, cache, longs({1}));
    const Numbers stored = values(cache);
    EXPECT_EQ(Numbers(stored.begin() + 2, stored.end()), size.patterns);
    EXPECT_EQ(Numbers(stored.begin(), stored.begin() + 2),
              values(poisoned(size.type, Layout::dense({2}))));
  }
}

TEST(IndexCacheInsert, PaddedRowsAndBlocksKeepTheirPadding) {
  Layout layout{{2, 3, 2}, {20, 5, 1}, {{0, 40}}};
  Tensor cache = poisoned(DType::kUInt8, layout);
  insert(bytes({2, 2}, {1, 2, 3, 4}), cache, longs({5, 1}));
  EXPECT_EQ(written(cache), (Written{{20 + 10, 1}, {20 + 11, 2}, {5, 3}, {6, 4}}));
}

TEST(IndexCacheInsert, ACacheMayBeTransposed) {
  Tensor cache = poisoned(DType::kUInt8, Layout::strided({2, 3, 2}, {2, 4, 1}));
  insert(bytes({1, 2}, {1, 2}), cache, longs({5}));  // block 1, token 2
  EXPECT_EQ(written(cache), (Written{{2 + 8, 1}, {2 + 9, 2}}));
}

TEST(IndexCacheInsert, KeysAndSlotsAreReadThroughStrides) {
  const Tensor keys = filled(DType::kUInt8, Layout::strided({2, 3}, {1, 4}), {1, 2, 3, 4, 5, 6});
  const Tensor slots = filled(DType::kInt32, Layout::strided({2}, {3}), {2, 0});
  Tensor cache = byte_cache(1, 3, 3);
  insert(keys, cache, slots);
  EXPECT_EQ(written(cache), (Written{{6, 1}, {7, 2}, {8, 3}, {0, 4}, {1, 5}, {2, 6}}));
}

TEST(IndexCacheInsert, CopiesTheCacheIfTheOutputIsAnother) {
  const Tensor before = bytes({1, 2, 2}, {9, 8, 7, 6});
  Tensor after = byte_cache(1, 2, 2);
  index_cache_insert({bytes({1, 2}, {1, 2}), before, longs({1})}, {after});
  EXPECT_EQ(values(after), (Numbers{9, 8, 1, 2}));
  EXPECT_EQ(values(before), (Numbers{9, 8, 7, 6}));
  Tensor other = byte_cache(2, 1, 2);
  EXPECT_EQ(
      refusal_of([&] { index_cache_insert({bytes({1, 2}, {1, 2}), before, longs({1})}, {other}); }),
      "index_cache_insert: output index_cache is uint8 of 4 stored elements, must be uint8 of"
      " 4 in the layout of the input");
  EXPECT_EQ(written(other), Written{});
}

TEST(IndexCacheInsert, EmptyInputStoresNothingBeforeAnyOtherCheck) {
  Tensor cache = byte_cache(1, 2, 2);
  insert(poisoned(DType::kBFloat16, Layout::dense({0, 7})), cache, longs({99}));
  EXPECT_EQ(written(cache), Written{});
  EXPECT_EQ(refusal(bytes({1, 2}, {1, 2}), byte_cache(0, 2, 2), longs({99})), "");
}

TEST(IndexCacheInsert, EachArgumentErrorHasItsOwnMessage) {
  const Tensor keys = bytes({2, 2}, {1, 2, 3, 4});
  const Tensor cache = byte_cache(2, 4, 2);
  const Tensor slots = longs({0, 1});
  EXPECT_EQ(refusal(keys, cache, slots), "");
  EXPECT_EQ(refusal(bytes({4}, {1, 2, 3, 4}), cache, slots),
            "index_cache_insert: index_k has rank 1, must have 2");
  EXPECT_EQ(refusal(keys, bytes({2, 2}, {0, 0, 0, 0}), slots),
            "index_cache_insert: index_cache has rank 2, must have 3");
  EXPECT_EQ(refusal(keys, byte_cache(2, 4, 3), slots),
            "index_cache_insert: index_k has head dim 2, must have 3 as index_cache has");
  EXPECT_EQ(refusal(keys, cache, ints({1, 2}, {0, 1})),
            "index_cache_insert: slot_mapping has rank 2, must have 1");
  EXPECT_EQ(
      refusal(keys, cache, longs({0})),
      "index_cache_insert: slot_mapping has 1 entries, must have 2, one for each row of index_k");
  EXPECT_EQ(refusal(keys, poisoned(DType::kUInt8, Layout::strided({2, 4, 2}, {16, 4, 2})), slots),
            "index_cache_insert: index_cache has stride 2 in its head dim, must have 1");
  EXPECT_EQ(refusal(keys, poisoned(DType::kBFloat16, Layout::dense({2, 4, 2})), slots),
            "index_cache_insert: index_k is uint8, index_cache is bfloat16, must be the same type");
  EXPECT_EQ(refusal(poisoned(DType::kInt64, Layout::dense({2, 2})),
                    poisoned(DType::kInt64, Layout::dense({2, 4, 2})), slots),
            "index_cache_insert: index_k is int64 of 8 bytes, must have 1, 2 or 4");
  EXPECT_EQ(refusal(keys, cache, bytes({2}, {0, 1})),
            "index_cache_insert: slot_mapping is uint8, must be int32 or int64");
}

TEST(IndexCacheInsert, SlotsThatShareElementsAreRefused) {
  const Tensor keys = bytes({1, 4}, {1, 2, 3, 4});
  const Tensor slots = longs({0});
  EXPECT_EQ(refusal(keys, poisoned(DType::kUInt8, Layout::strided({2, 4, 4}, {16, 3, 1})), slots),
            "index_cache_insert: index_cache has stride 3 in dimension 1, must be at least 4");
  EXPECT_EQ(refusal(keys, poisoned(DType::kUInt8, Layout::strided({2, 4, 4}, {15, 4, 1})), slots),
            "index_cache_insert: index_cache has stride 15 in dimension 0, must be at least 16");
  EXPECT_EQ(refusal(keys, poisoned(DType::kUInt8, Layout::strided({2, 1, 4}, {4, 0, 1})), slots),
            "");
  EXPECT_EQ(refusal(keys, poisoned(DType::kUInt8, Layout::strided({1, 4, 4}, {0, 4, 1})), slots),
            "");
}

TEST(IndexCacheInsert, TwoRowsWithOneSlotAreRefusedUnderBothRules) {
  const Tensor keys = bytes({4, 1}, {1, 2, 3, 4});
  Tensor cache = byte_cache(1, 4, 1);
  for (const OutOfRangeSlot rule : {OutOfRangeSlot::kRefuse, OutOfRangeSlot::kDrop}) {
    EXPECT_EQ(refusal_of([&] { insert(keys, cache, longs({2, -1, 3, 2}), rule); }),
              "index_cache_insert: slot_mapping is 2 in rows 0 and 3, limit one row a slot");
    EXPECT_EQ(written(cache), Written{});
  }
  insert(keys, cache, longs({-1, 9, 9, -1}), OutOfRangeSlot::kDrop);
  EXPECT_EQ(written(cache), Written{}) << "slots that store nothing may repeat";
}

TEST(IndexCacheInsert, OnlyNamedSlotsChangeOnRandomInput) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const std::int64_t blocks = random.between(1, 3);
    const std::int64_t block_size = random.between(1, 5);
    const std::int64_t head_dim = random.between(1, 6);
    const std::int64_t row_stride = head_dim + random.between(0, 3);
    const std::int64_t block_stride = block_size * row_stride + random.between(0, 4);
    // Every other slot in a random rotation, so that all are distinct; some become padding.
    const std::int64_t capacity = blocks * block_size;
    const std::int64_t start = random.between(0, capacity - 1);
    Numbers slots;
    for (std::int64_t i = 0; i < capacity; i += 2)
      slots.push_back(random.between(0, 3) == 0 ? -random.between(1, 999) : (start + i) % capacity);
    if (capacity % 2 == 1 && slots.size() > 1) slots.pop_back();
    const auto rows = static_cast<std::int64_t>(slots.size());
    Numbers elements;
    Written expected;
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t d = 0; d < head_dim; ++d) {
        const std::int64_t value = random.between(0, 0x59);  // never the poison
        elements.push_back(value);
        const std::int64_t slot = slots[static_cast<std::size_t>(row)];
        if (slot < 0) continue;
        std::int64_t offset = d;  // counted, not divided
        for (std::int64_t s = 0; s < slot; ++s)
          offset +=
              (s + 1) % block_size == 0 ? block_stride - (block_size - 1) * row_stride : row_stride;
        expected[offset] = value;
      }
    Tensor cache = poisoned(DType::kUInt8, {{blocks, block_size, head_dim},
                                            {block_stride, row_stride, 1},
                                            {{0, blocks * block_stride}}});
    insert(bytes({rows, head_dim}, elements), cache,
           random.between(0, 1) == 0 ? longs(slots) : ints({rows}, slots));
    ASSERT_EQ(written(cache), expected) << "seed " << seed;
  }
}

}  // namespace
}  // namespace monoref::testing
