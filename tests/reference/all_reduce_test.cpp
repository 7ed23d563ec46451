#include "reference/stages/all_reduce.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "reference/formats/convert.hpp"
#include "tests/before_attention/numbers.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::uint16_t kBf16Nan = 0x7FC0;

/// One reduction's operands, and its results after `run`.
struct Reduction {
  std::int64_t ranks;
  std::int64_t rows;
  std::int64_t hidden;
  std::int64_t channels = 2;
  std::int32_t tag = 7;
  std::int64_t owner_from = 12;
  std::int64_t absent = 0;
  Contract contract{};
  Tensor partials{DType::kBFloat16, Layout::dense({ranks, rows, hidden})};
  Tensor flags = Tensor::of(DType::kInt32, {2, ranks, ranks, channels},
                            std::vector<std::int32_t>(flag_count(), 6));
  Tensor sum = poisoned(DType::kBFloat16, Layout::dense({ranks, rows, hidden}));
  Tensor status = poisoned(DType::kInt32, Layout::dense({ranks - absent}));

  std::size_t flag_count() const { return static_cast<std::size_t>(2 * ranks * ranks * channels); }
  void set(std::int64_t rank, std::int64_t row, std::int64_t element, std::uint16_t code) {
    partials.view<std::uint16_t, 3>()(rank, row, element) = code;
  }
  /// Every element of a rank's partial sums.
  void fill(std::int64_t rank, float value) {
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < hidden; ++i) set(rank, row, i, bf16(value));
  }
  AllReduceInput input() const {
    return {partials.view<std::uint16_t, 3>(),
            flags.view<std::int32_t, 4>(),
            tag,
            owner_from,
            absent,
            contract};
  }
  Reduction& run() {
    Tensor stored = flags;
    all_reduce(input(), {sum.view<std::uint16_t, 3>(), stored.view<std::int32_t, 4>(),
                         status.view<std::int32_t, 1>()});
    flags = stored;
    return *this;
  }
  std::uint16_t at(std::int64_t rank, std::int64_t row, std::int64_t element) const {
    return sum.view<std::uint16_t, 3>()(rank, row, element);
  }
  std::string refusal() const {
    return refusal_of([&] { all_reduce_shape(input()); });
  }
};

Reduction random_reduction(std::int64_t ranks, std::int64_t rows, std::int64_t hidden) {
  Reduction made{.ranks = ranks, .rows = rows, .hidden = hidden};
  Random random(static_cast<std::uint64_t>(ranks * 1000 + rows));
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < hidden; ++i)
        made.set(rank, row, i,
                 static_cast<std::uint16_t>(random.between(0x3000, 0x4F00) +
                                            0x8000 * random.between(0, 1)));
  return made;
}

TEST(AllReduce, HandComputedSums) {
  Reduction reduction{.ranks = 3, .rows = 1, .hidden = 8};
  reduction.fill(0, 1.5f);
  reduction.fill(1, -0.25f);
  reduction.fill(2, 2.0f);
  reduction.set(2, 0, 5, bf16(-1.25f));
  reduction.run();
  for (std::int64_t rank = 0; rank < 3; ++rank)
    for (std::int64_t i = 0; i < 8; ++i)
      EXPECT_EQ(reduction.at(rank, 0, i), bf16(i == 5 ? 0.0f : 3.25f));
}

TEST(AllReduce, RanksAreAddedInRankOrder) {
  // Binary32 steps by 2 at 2^24: a 1 that meets it is lost, a 1 that comes after it is gone stays.
  const struct {
    float partial[4];
    float sum;
  } orders[] = {{{0x1p24f, 1, -0x1p24f, 0}, 0},
                {{0x1p24f, -0x1p24f, 1, 0}, 1},
                {{1, 0x1p24f, 1, -0x1p24f}, 0},
                {{1, 1, 0x1p24f, -0x1p24f}, 2},
                {{0x1p24f, 1, 1, -0x1p24f}, 0}};
  for (const auto& order : orders) {
    Reduction reduction{.ranks = 4, .rows = 2, .hidden = 16};
    for (std::int64_t rank = 0; rank < 4; ++rank) reduction.fill(rank, order.partial[rank]);
    reduction.run();
    EXPECT_EQ(values(reduction.sum), repeated(bf16(order.sum), 4 * 2 * 16));
  }
}

TEST(AllReduce, TheSumIsRoundedOnceToNearestEven) {
  // 1 + 2^-8 is half way to the next BF16; 2^-9 more, and 2^-9 alone twice, decide it. Rounding
  // after each addition would lose both.
  Reduction reduction{.ranks = 3, .rows = 1, .hidden = 8};
  reduction.fill(0, 1.0f);
  reduction.fill(1, 0x1p-8f);
  reduction.set(2, 0, 1, bf16(0x1p-9f));
  reduction.set(1, 0, 2, bf16(0x1p-9f));
  reduction.set(2, 0, 2, bf16(0x1.8p-9f));
  reduction.run();
  EXPECT_EQ(reduction.at(0, 0, 0), bf16(1.0f)) << "a tie";
  EXPECT_EQ(reduction.at(0, 0, 1), bf16(1.0078125f));
  EXPECT_EQ(reduction.at(0, 0, 2), bf16(1.0078125f));
}

TEST(AllReduce, TheRotatedOrderStartsEachSegmentAtItsRank) {
  // Four ranks hold 1, 2^24, 1, -2^24. By the rank that the sum starts with:
  //   0: ((1 + 2^24) + 1) - 2^24 = 0      both ones are lost
  //   1: ((2^24 + 1) - 2^24) + 1 = 1      the last one is kept
  //   2: ((1 - 2^24) + 1) + 2^24 = 2      below 2^24 the steps are 1
  //   3: ((-2^24 + 1) + 2^24) + 1 = 2
  // Two rows of 32: 8 packs, 2 a segment, 16 elements.
  Reduction reduction{.ranks = 4, .rows = 2, .hidden = 32};
  reduction.fill(0, 1);
  reduction.fill(1, 0x1p24f);
  reduction.fill(2, 1);
  reduction.fill(3, -0x1p24f);
  reduction.contract = Contract::parse("mono,all_reduce_order=rotated");
  reduction.run();
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(reduction.at(rank, 0, 0), bf16(0));
    EXPECT_EQ(reduction.at(rank, 0, 15), bf16(0));
    EXPECT_EQ(reduction.at(rank, 0, 16), bf16(1));
    EXPECT_EQ(reduction.at(rank, 0, 31), bf16(1));
    for (std::int64_t i = 0; i < 32; ++i) EXPECT_EQ(reduction.at(rank, 1, i), bf16(2));
  }
  reduction.contract = Contract{};
  reduction.tag = 8;
  EXPECT_EQ(values(reduction.run().sum), repeated(bf16(0), 4 * 64)) << "rank order everywhere";
}

TEST(AllReduce, TheLastRotatedSegmentHasWhatIsLeftOver) {
  // Three ranks hold 2^24, 1, -2^24. From rank 0 the one is lost; from rank 1, (1 - 2^24) + 2^24,
  // and from rank 2, (-2^24 + 2^24) + 1, it is not. Five packs: segments of 1, 1 and 3.
  Reduction reduction{.ranks = 3, .rows = 1, .hidden = 40};
  reduction.fill(0, 0x1p24f);
  reduction.fill(1, 1);
  reduction.fill(2, -0x1p24f);
  reduction.contract = Contract::parse("mono,all_reduce_order=rotated");
  reduction.run();
  const Numbers copy = joined({repeated(bf16(0), 8), repeated(bf16(1), 8 + 24)});
  EXPECT_EQ(values(reduction.sum), joined({copy, copy, copy}));
  // Fewer packs than ranks: all of them are the last segment's, and -2^24 + 2^24 comes first.
  Reduction few{.ranks = 3, .rows = 1, .hidden = 16, .contract = reduction.contract};
  few.fill(0, 0x1p24f);
  few.fill(1, 1);
  few.fill(2, -0x1p24f);
  EXPECT_EQ(values(few.run().sum), repeated(bf16(1), 48));
}

TEST(AllReduce, OwnerFormGivesTheBitsOfTheDirectForm) {
  for (const std::int64_t ranks : {1, 2, 4, 5, 8}) {
    Reduction direct = random_reduction(ranks, 13, 24);
    Reduction owner = direct;
    direct.owner_from = 14;
    owner.owner_from = 13;
    EXPECT_EQ(values(direct.run().sum), values(owner.run().sum)) << ranks;
    EXPECT_NE(values(direct.flags), values(owner.flags));
  }
}

TEST(AllReduce, EveryRankHasTheSameBits) {
  Reduction reduction = random_reduction(8, 3, 64).run();
  std::set<Numbers> copies;
  const Numbers all = values(reduction.sum);
  for (std::size_t rank = 0; rank < 8; ++rank)
    copies.insert(Numbers(all.begin() + static_cast<std::ptrdiff_t>(rank * 192),
                          all.begin() + static_cast<std::ptrdiff_t>((rank + 1) * 192)));
  EXPECT_EQ(copies.size(), 1u);
}

TEST(AllReduce, SumsStartAtZeroAndNanIsCanonical) {
  Reduction reduction{.ranks = 2, .rows = 1, .hidden = 8};
  reduction.fill(0, -0.0f);
  reduction.fill(1, -0.0f);
  reduction.set(0, 0, 1, bf16(kInf));
  reduction.set(0, 0, 2, bf16(kInf));
  reduction.set(1, 0, 2, bf16(-kInf));
  reduction.set(1, 0, 3, 0xFFC5);
  reduction.set(0, 0, 4, 0x7F7F);  // twice the largest number overflows
  reduction.set(1, 0, 4, 0x7F7F);
  reduction.set(0, 0, 5, 0x0001);  // subnormals are kept
  reduction.set(1, 0, 5, 0x0001);
  reduction.run();
  EXPECT_EQ(reduction.at(1, 0, 0), 0) << "0 + -0 is +0";
  EXPECT_EQ(reduction.at(1, 0, 1), bf16(kInf));
  EXPECT_EQ(reduction.at(1, 0, 2), kBf16Nan);
  EXPECT_EQ(reduction.at(1, 0, 3), kBf16Nan);
  EXPECT_EQ(reduction.at(1, 0, 4), bf16(kInf));
  EXPECT_EQ(reduction.at(1, 0, 5), 2);
}

TEST(AllReduce, TheTagIsStoredInThePhasesThatAreUsed) {
  Reduction direct{.ranks = 2, .rows = 11, .hidden = 8};
  EXPECT_EQ(values(direct.run().flags), joined({repeated(7, 8), repeated(6, 8)}));
  EXPECT_EQ(values(direct.status), (Numbers{0, 0}));
  Reduction owner{.ranks = 2, .rows = 12, .hidden = 8};
  EXPECT_EQ(values(owner.run().flags), repeated(7, 16));
  EXPECT_EQ(values(owner.status), (Numbers{0, 0}));
  Reduction none{.ranks = 2, .rows = 0, .hidden = 8};
  EXPECT_EQ(values(none.run().flags), joined({repeated(7, 8), repeated(6, 8)}));
}

TEST(AllReduce, RanksThatWaitInVainNameTheAbsentAndWriteNoSum) {
  for (const std::int64_t owner_from : {12, 1}) {
    Reduction reduction{
        .ranks = 3, .rows = 1, .hidden = 8, .channels = 1, .owner_from = owner_from, .absent = 2};
    EXPECT_EQ(values(reduction.run().status), (Numbers{2}));
    EXPECT_EQ(values(reduction.sum), repeated(0x5A5A, 24));
    EXPECT_EQ(values(reduction.flags), joined({{7, 6, 6, 7, 6, 6, 7, 6, 6}, repeated(6, 9)}))
        << "rank 0 told everybody, in phase 0";
    Reduction last{
        .ranks = 3, .rows = 1, .hidden = 8, .channels = 1, .owner_from = owner_from, .absent = 1};
    EXPECT_EQ(values(last.run().status), (Numbers{3, 3}));
  }
}

TEST(AllReduce, TagsWrapAround) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  Reduction reduction{.ranks = 2, .rows = 12, .hidden = 8, .tag = kLeast};
  reduction.flags = filled(DType::kInt32, reduction.flags.layout(), repeated(kMost, 16));
  EXPECT_EQ(values(reduction.run().flags), repeated(kLeast, 16));
}

TEST(AllReduce, AFlagThatIsNotBeforeTheTagIsRefused) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const struct {
    std::int32_t flag;
    std::int32_t tag;
    bool before;
  } pairs[] = {{0, 1, true},          {1, 1, false},
               {2, 1, false},         {-1, 0, true},
               {kMost, -kMost, true}, {-kMost, kMost, false},
               {0, kMost, true},      {-1, kMost, true},
               {-2, kMost, false},    {kMost, -kMost - 1, true},
               {5, -kMost, true}};
  for (const auto& [flag, tag, before] : pairs) {
    Reduction reduction{.ranks = 2, .rows = 1, .hidden = 8};
    reduction.tag = tag;
    reduction.flags.fill_bytes(std::byte{0});
    auto flags = reduction.flags.view<std::int32_t, 4>();
    for (std::int64_t mailbox = 0; mailbox < 2; ++mailbox)
      for (std::int64_t sender = 0; sender < 2; ++sender)
        for (std::int64_t channel = 0; channel < 2; ++channel)
          flags(0, mailbox, sender, channel) = flag;
    EXPECT_EQ(reduction.refusal().empty(), before) << flag << " " << tag;
  }
  Reduction direct{.ranks = 2, .rows = 11, .hidden = 8};
  direct.flags.view<std::int32_t, 4>()(1, 0, 1, 0) = 7;
  EXPECT_EQ(direct.refusal(), "") << "nobody waits in phase 1";
  direct.owner_from = 11;
  EXPECT_EQ(direct.refusal(), "all_reduce: flags[1][0][1][0] is 7, must be before tag 7");
}

TEST(AllReduce, Refusals) {
  const auto sized = [](std::int64_t ranks, std::int64_t rows, std::int64_t hidden) {
    return Reduction{.ranks = ranks, .rows = rows, .hidden = hidden};
  };
  EXPECT_EQ(sized(0, 1, 8).refusal(), "all_reduce: partials has 0 ranks, must have 1 to 8");
  EXPECT_EQ(sized(9, 1, 8).refusal(), "all_reduce: partials has 9 ranks, must have 1 to 8");
  EXPECT_EQ(sized(2, 1, 12).refusal(), "all_reduce: hidden is 12, must be a multiple of 8");
  EXPECT_EQ(sized(2, 1, 0).refusal(), "all_reduce: hidden is 0, must be a multiple of 8");
  Reduction reduction = sized(3, 1, 8);
  reduction.owner_from = 0;
  EXPECT_EQ(reduction.refusal(), "all_reduce: owner_from is 0, must be at least 1");
  reduction.owner_from = 1;
  for (const std::int64_t absent : {-1, 3}) {
    reduction.absent = absent;
    EXPECT_EQ(reduction.refusal(), fmt::format("all_reduce: absent is {}, must be 0 to 2", absent));
  }
  for (const std::int64_t channels : {0, 65}) {
    Reduction other{.ranks = 2, .rows = 1, .hidden = 8, .channels = channels};
    EXPECT_EQ(other.refusal(),
              fmt::format("all_reduce: flags has {} channels, must have 1 to 64", channels));
  }
  Reduction flags = sized(2, 1, 8);
  flags.flags = Tensor(DType::kInt32, Layout::dense({2, 2, 3, 1}));
  EXPECT_EQ(flags.refusal(), "all_reduce: flags has 3 in dimension 2, must have 2");
  Reduction output = sized(2, 1, 8);
  output.status = poisoned(DType::kInt32, Layout::dense({3}));
  EXPECT_EQ(refusal_of([&] { output.run(); }),
            "all_reduce: output status has 3 in dimension 0, must have 2");
  EXPECT_EQ(values(output.sum), repeated(0x5A5A, 16)) << "nothing is written before a refusal";
}

}  // namespace
}  // namespace monoref::testing
