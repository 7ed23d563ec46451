// The counter-based generator: known answers, so that cases stay the same on every platform.
#include "fuzz/random.hpp"

#include <gtest/gtest.h>

#include <map>

namespace monoref {
namespace {

// Philox4x32-10 with key 0 and counter 0: the first known-answer vector of its authors.
TEST(CounterRandom, KnownAnswer) {
  CounterRandom random(0, std::uint64_t{0});
  EXPECT_EQ(random.bits32(), 0x6627e8d5u);
  EXPECT_EQ(random.bits32(), 0xe169c58du);
  EXPECT_EQ(random.bits32(), 0xbc57ac4cu);
  EXPECT_EQ(random.bits32(), 0x9b00dbd8u);
}

TEST(CounterRandom, StreamsAndSeedsAreApart) {
  CounterRandom a(1, "x");
  CounterRandom b(1, "y");
  CounterRandom c(2, "x");
  CounterRandom again(1, "x");
  const std::uint64_t first = a.bits64();
  EXPECT_NE(first, b.bits64());
  EXPECT_NE(first, c.bits64());
  EXPECT_EQ(first, again.bits64());
}

TEST(CounterRandom, BelowReachesEveryValueAndNoOther) {
  CounterRandom random(3, "below");
  std::map<std::int64_t, int> seen;
  for (int i = 0; i < 1000; ++i) ++seen[random.between(-2, 3)];
  EXPECT_EQ(seen.size(), 6u);
  EXPECT_EQ(seen.begin()->first, -2);
  EXPECT_EQ(seen.rbegin()->first, 3);
  for (const auto& [value, count] : seen) EXPECT_GT(count, 100) << value;
}

}  // namespace
}  // namespace monoref
