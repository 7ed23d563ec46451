#include "reference/stages/kv_page_address.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "reference/stages/page16_rebase.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

constexpr KvLayout kInterleaved = KvLayout::kInterleaved;
constexpr KvLayout kDense = KvLayout::kDense;

TEST(KvPageAddress, UpstreamsPackedViewsOfThreeBlocks) {
  const KvPageShape packed{.layout = kInterleaved, .blocks = 3};
  EXPECT_EQ(packed.k_view_pages(), 48);
  EXPECT_EQ(packed.v_view_pages(), 40);
  EXPECT_EQ(packed.page_bytes(), 2048);
  EXPECT_EQ(packed.v_view_offset(), 16384) << "8 pages";
  EXPECT_TRUE(sides_are_packed(packed.k_view_pages(), packed.v_view_pages()));
  const KvPageShape dense{.layout = kDense, .blocks = 3};
  EXPECT_EQ(dense.k_view_pages(), 24);
  EXPECT_EQ(dense.v_view_pages(), 24);
  EXPECT_EQ(dense.v_view_offset(), 0);
}

TEST(KvPageAddress, TheVViewStartsEightPagesIn) {
  const KvPageShape bf16{.layout = kInterleaved, .blocks = 2, .kv_heads = 4, .element_size = 2};
  EXPECT_EQ(bf16.page_bytes(), 4 * 4096);
  EXPECT_EQ(bf16.v_view_offset(), 8 * 4 * 4096);
}

// mono-decode section 3.8, worked out by hand.
TEST(KvPageAddress, Fp8OfOneHead) {
  const KvPageShape shape{.layout = kInterleaved, .blocks = 2};
  EXPECT_EQ(k_byte(shape, {129, 0, 18}), 16 * 2048 + 1 * 256 + 1 * 16 + 2);
  EXPECT_EQ(v_byte(shape, {129, 0, 18}), 16 * 2048 + 18 * 16 + 1);
  EXPECT_EQ(k_byte(shape, {47, 0, 127}), 2 * 2048 + 7 * 256 + 15 * 16 + 15);
  EXPECT_EQ(v_byte(shape, {47, 0, 127}), 2 * 2048 + 127 * 16 + 15);
  const KvPageShape dense{.layout = kDense, .blocks = 2};
  EXPECT_EQ(k_byte(dense, {129, 0, 18}), 8 * 2048 + 1 * 256 + 1 * 16 + 2);
  EXPECT_EQ(v_byte(dense, {129, 0, 18}), 8 * 2048 + 18 * 16 + 1);
}

// upstream-semantics section 3.4, worked out by hand: x = 8 elements.
TEST(KvPageAddress, Bf16OfTwoHeads) {
  const KvPageShape shape{.layout = kDense, .blocks = 1, .kv_heads = 2, .element_size = 2};
  EXPECT_EQ(k_byte(shape, {25, 1, 9}), 2 * (4096 + 2048 + 128 + 72 + 1));
  EXPECT_EQ(v_byte(shape, {25, 1, 9}), 2 * (4096 + 2048 + 1024 + 72 + 1));
}

// Bug case P16: with two blocks the shape of the buffer does not tell its layout.
TEST(KvPageAddress, P16ValuesOfBlockOneOfTwo) {
  const KvPageShape packed{.layout = kInterleaved, .blocks = 2};
  EXPECT_EQ(packed.v_view_offset() + v_byte(packed, {128, 0, 0}), 32768 + 16384);
  const KvPageShape dense{.layout = kDense, .blocks = 2};
  EXPECT_EQ(v_byte(dense, {128, 0, 0}), 16384);
}

TEST(KvPageAddress, P05OddBlocksStartAtTheirOwnPages) {
  const KvPageShape dense{.layout = kDense, .blocks = 6};
  const KvPageShape packed{.layout = kInterleaved, .blocks = 6};
  EXPECT_EQ(k_byte(dense, {5 * 128, 0, 0}), 40 * 2048);
  EXPECT_EQ(k_byte(packed, {5 * 128, 0, 0}), 80 * 2048);
}

TEST(KvPageAddress, O01PagesBeyondSixteenBits) {
  const KvPageShape shape{
      .layout = kDense, .blocks = 8193, .kv_heads = 8, .element_size = 2};  // 32 KiB a page
  EXPECT_EQ(k_byte(shape, {65535 * 16, 0, 0}), 65535 * std::int64_t{32768});
  EXPECT_EQ(k_byte(shape, {65536 * 16, 0, 0}), std::int64_t{1} << 31);
  EXPECT_EQ(v_byte(shape, {65536 * 16, 0, 0}), std::int64_t{1} << 31);
}

TEST(KvPageAddress, O07BytesBeyondThirtyTwoBits) {
  const KvPageShape shape{.layout = kInterleaved, .blocks = std::int64_t{1} << 20};
  const std::int64_t slot = (std::int64_t{1} << 27) - 1;  // the last
  EXPECT_EQ(k_byte(shape, {slot, 0, 127}), (std::int64_t{1} << 35) - 16384 - 1);
  EXPECT_EQ(shape.v_view_offset() + v_byte(shape, {slot, 0, 127}), (std::int64_t{1} << 35) - 1);
}

// The two specifications state the interleaved form differently: here by block, upstream by rebased
// slots through the dense formula.
TEST(KvPageAddress, InterleavedIsDenseAtRebasedSlots) {
  const KvPageShape packed{.layout = kInterleaved, .blocks = 5, .kv_heads = 2, .element_size = 2};
  KvPageShape dense = packed;
  dense.layout = kDense;
  dense.blocks = 10;
  const Numbers plain = counting(0, 5 * 128);
  const Tensor slots = longs(plain);
  Tensor rebased = poisoned(DType::kInt64, Layout::dense(slots.dims()));
  page16_rebase_slots({slots.view<std::int64_t, 1>()}, {rebased.view<std::int64_t, 1>()});
  const Numbers moved = values(rebased);
  for (std::size_t i = 0; i < plain.size(); ++i)
    for (const std::int64_t dim : {0, 7, 8, 127}) {
      ASSERT_EQ(k_byte(packed, {plain[i], 1, dim}), k_byte(dense, {moved[i], 1, dim}));
      ASSERT_EQ(v_byte(packed, {plain[i], 1, dim}), v_byte(dense, {moved[i], 1, dim}));
    }
}

std::vector<KvPageShape> small_shapes() {
  std::vector<KvPageShape> all;
  for (const KvLayout layout : {kInterleaved, kDense})
    for (const std::int64_t element_size : {1, 2})
      for (const std::int64_t kv_heads : {1, 3})
        for (const std::int64_t head_dim : {16, 48})
          for (const auto& [block_size, page_size] :
               {std::pair<std::int64_t, std::int64_t>{128, 16}, {32, 16}, {64, 32}})
            all.push_back({layout, 3, kv_heads, head_dim, element_size, block_size, page_size});
  return all;
}

using Forward = std::int64_t (*)(const KvPageShape&, const KvElement&);
using Inverse = std::optional<KvElement> (*)(const KvPageShape&, std::int64_t);

/// Visits every element once: its bytes lead back to it, and no byte is anybody else's. Marks them.
void check_bijection(const KvPageShape& shape, Forward forward, Inverse inverse,
                     std::int64_t view_offset, std::vector<int>& owners) {
  for (std::int64_t slot = 0; slot < shape.blocks * shape.block_size; ++slot)
    for (std::int64_t head = 0; head < shape.kv_heads; ++head)
      for (std::int64_t dim = 0; dim < shape.head_dim; ++dim) {
        const KvElement element{slot, head, dim};
        const std::int64_t first = forward(shape, element);
        ASSERT_EQ(first % shape.element_size, 0);
        for (std::int64_t byte = first; byte < first + shape.element_size; ++byte) {
          ASSERT_EQ(inverse(shape, byte), element) << "slot " << slot << " byte " << byte;
          ++owners.at(static_cast<std::size_t>(view_offset + byte));
        }
      }
}

TEST(KvPageAddress, EveryByteBelongsToOneElement) {
  for (const KvPageShape& shape : small_shapes()) {
    const auto k_bytes = static_cast<std::size_t>(shape.k_view_pages() * shape.page_bytes());
    std::vector<int> k_owners(k_bytes, 0);
    check_bijection(shape, k_byte, k_element, 0, k_owners);
    if (shape.layout == kInterleaved) {
      // One buffer: with the values seen through the V view it is full.
      check_bijection(shape, v_byte, v_element, shape.v_view_offset(), k_owners);
    } else {
      std::vector<int> v_owners(k_bytes, 0);
      check_bijection(shape, v_byte, v_element, 0, v_owners);
      EXPECT_EQ(v_owners, std::vector<int>(k_bytes, 1));
    }
    EXPECT_EQ(k_owners, std::vector<int>(k_bytes, 1));
  }
}

TEST(KvPageAddress, BytesOfTheOtherSideHaveNoElement) {
  for (const KvPageShape& shape : small_shapes()) {
    const auto count = [&](Inverse inverse, std::int64_t pages) {
      std::int64_t found = 0;
      for (std::int64_t byte = 0; byte < pages * shape.page_bytes(); ++byte)
        found += inverse(shape, byte).has_value();
      return found;
    };
    const std::int64_t side =
        shape.blocks * shape.block_size * shape.kv_heads * shape.head_dim * shape.element_size;
    EXPECT_EQ(count(k_element, shape.k_view_pages()), side);
    EXPECT_EQ(count(v_element, shape.v_view_pages()), side);
  }
}

/// The shapes of upstream-semantics section 3.4 as dense tensors: their own strides are the
/// addresses.
TEST(KvPageAddress, EqualsTheFiveDimensionalViews) {
  for (const KvPageShape& shape : small_shapes()) {
    const std::int64_t x = shape.unit();
    const std::int64_t size = shape.element_size;
    const Layout k = Layout::dense(
        {shape.k_view_pages(), shape.kv_heads, shape.head_dim / x, shape.page_size, x});
    const Layout v = Layout::dense(
        {shape.v_view_pages(), shape.kv_heads, shape.page_size / x, shape.head_dim, x});
    const auto at = [](const Layout& layout, const Numbers& index) {
      std::int64_t offset = 0;
      for (std::size_t axis = 0; axis < 5; ++axis) offset += index[axis] * layout.strides[axis];
      return offset;
    };
    const std::int64_t sides = shape.layout == kInterleaved ? 2 : 1;
    for (std::int64_t slot = 0; slot < shape.blocks * shape.block_size; ++slot) {
      const std::int64_t pages = shape.block_size / shape.page_size;
      const std::int64_t page =
          slot / shape.block_size * pages * sides + slot % shape.block_size / shape.page_size;
      const std::int64_t t = slot % shape.page_size;
      for (std::int64_t head = 0; head < shape.kv_heads; ++head)
        for (std::int64_t dim = 0; dim < shape.head_dim; ++dim) {
          ASSERT_EQ(k_byte(shape, {slot, head, dim}),
                    size * at(k, {page, head, dim / x, t, dim % x}));
          ASSERT_EQ(v_byte(shape, {slot, head, dim}),
                    size * at(v, {page, head, t / x, dim, t % x}));
        }
    }
  }
}

TEST(KvPageAddress, RefusesShapes) {
  const struct {
    const char* message;
    KvPageShape shape;
  } bad[] = {
      {"kv_page_address: blocks is 0, must be at least 1", {.blocks = 0}},
      {"kv_page_address: kv_heads is 0, must be at least 1", {.kv_heads = 0}},
      {"kv_page_address: head_dim is -16, must be at least 1", {.head_dim = -16}},
      {"kv_page_address: block_size is 0, must be at least 1", {.block_size = 0}},
      {"kv_page_address: page_size is 0, must be at least 1", {.page_size = 0}},
      {"kv_page_address: element_size is 4, must be 1 or 2", {.element_size = 4}},
      {"kv_page_address: element_size is 0, must be 1 or 2", {.element_size = 0}},
      {"kv_page_address: head_dim is 24, must be a multiple of 16", {.head_dim = 24}},
      {"kv_page_address: head_dim is 20, must be a multiple of 8",
       {.head_dim = 20, .element_size = 2}},
      {"kv_page_address: page_size is 8, must be a multiple of 16", {.page_size = 8}},
      {"kv_page_address: block_size is 120, must be a multiple of 16", {.block_size = 120}},
      {"kv_page_address: 4611686018427387904 blocks x 1 kv_heads x 128 head_dim x 128 keys exceed"
       " 9223372036854775807 bytes",
       {.blocks = std::int64_t{1} << 62}},
  };
  for (const auto& [message, shape] : bad) {
    EXPECT_EQ(refusal_of([&] { shape.validate(); }), message);
    EXPECT_EQ(refusal_of([&] { k_byte(shape, {}); }), message);
    EXPECT_EQ(refusal_of([&] { v_element(shape, 0); }), message);
  }
}

TEST(KvPageAddress, RefusesElementsAndBytesOutsideTheCaches) {
  const KvPageShape shape{.layout = kInterleaved, .blocks = 2, .kv_heads = 2};
  EXPECT_EQ(refusal_of([&] { k_byte(shape, {256, 0, 0}); }),
            "kv_page_address: slot is 256, must be 0 to 255");
  EXPECT_EQ(refusal_of([&] { v_byte(shape, {-1, 0, 0}); }),
            "kv_page_address: slot is -1, must be 0 to 255");
  EXPECT_EQ(refusal_of([&] { v_byte(shape, {0, 2, 0}); }),
            "kv_page_address: head is 2, must be 0 to 1");
  EXPECT_EQ(refusal_of([&] { k_byte(shape, {0, 0, 128}); }),
            "kv_page_address: dim is 128, must be 0 to 127");
  EXPECT_EQ(refusal_of([&] { k_element(shape, 32 * 4096); }),
            "kv_page_address: K view byte is 131072, must be 0 to 131071");
  EXPECT_EQ(refusal_of([&] { v_element(shape, 24 * 4096); }),
            "kv_page_address: V view byte is 98304, must be 0 to 98303");
  EXPECT_EQ(refusal_of([&] { k_element(shape, -1); }),
            "kv_page_address: K view byte is -1, must be 0 to 131071");
}

struct StageCase {
  Tensor slots;
  Tensor heads;
  Tensor dims;
  KvPageAddressInput input() const {
    return {slots.view<std::int64_t, 1>(),
            reading<1>(heads),
            reading<1>(dims),
            {.layout = kInterleaved, .blocks = 2, .kv_heads = 2}};
  }
};

TEST(KvPageAddress, TheStageAddressesManyElementsAndNoPadding) {
  const StageCase stage{longs({129, -1, 0}), ints({3}, {1, 0, 0}), ints({3}, {18, 3, 1})};
  Tensor k = poisoned(DType::kInt64, Layout::strided({3}, {2}));
  Tensor v = poisoned(DType::kInt64, Layout::dense({3}));
  kv_page_address(stage.input(), {k.view<std::int64_t, 1>(), v.view<std::int64_t, 1>()});
  EXPECT_EQ(values(k), (Numbers{16 * 4096 + 2048 + 256 + 16 + 2, -1, 1}));
  EXPECT_EQ(values(v), (Numbers{16 * 4096 + 2048 + 18 * 16 + 1, -1, 16}));
  EXPECT_EQ(element(k, 1), 0x5A5A5A5A5A5A5A5A);
}

TEST(KvPageAddress, TheStageRefusesBeforeItWrites) {
  const auto message_of = [](const StageCase& stage) {
    return refusal_of([&] { kv_page_address_shape(stage.input()); });
  };
  EXPECT_EQ(message_of({longs({0, 1}), ints({1}, {0}), ints({2}, {0, 0})}),
            "kv_page_address: head has 1 in dimension 0, must have 2");
  EXPECT_EQ(message_of({longs({0}), ints({1}, {0}), ints({2}, {0, 0})}),
            "kv_page_address: dim has 2 in dimension 0, must have 1");
  EXPECT_EQ(message_of({longs({-1}), ints({1}, {2}), ints({1}, {0})}),
            "kv_page_address: head is 2, must be 0 to 1");
  const StageCase stage{longs({0, 256}), ints({2}, {0, 0}), ints({2}, {0, 0})};
  Tensor k = poisoned(DType::kInt64, Layout::dense({2}));
  Tensor v = poisoned(DType::kInt64, Layout::dense({2}));
  EXPECT_EQ(refusal_of([&] {
              kv_page_address(stage.input(),
                              {k.view<std::int64_t, 1>(), v.view<std::int64_t, 1>()});
            }),
            "kv_page_address: slot is 256, must be 0 to 255");
  EXPECT_EQ(values(k), values(poisoned(DType::kInt64, Layout::dense({2}))));
  Tensor longer = poisoned(DType::kInt64, Layout::dense({3}));
  const StageCase good{longs({0, 1}), ints({2}, {0, 0}), ints({2}, {0, 0})};
  EXPECT_EQ(refusal_of([&] {
              kv_page_address(good.input(),
                              {k.view<std::int64_t, 1>(), longer.view<std::int64_t, 1>()});
            }),
            "kv_page_address: output v_byte has 3 in dimension 0, must have 2");
}

}  // namespace
}  // namespace monoref::testing
