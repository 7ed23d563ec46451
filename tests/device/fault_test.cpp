// Declared faults: what makes a list of them sound, and how those of this program's kernels got in.
#include "device/fault.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace monoref::device {
namespace {

constexpr Fault kWraps{"wraps", "P10", "slot -1 wraps", "a/insert.hip", 7};
constexpr Fault kEarlier{"earlier", "own", "one line above", "a/insert.hip", 6};
constexpr Fault kShared{"shared", "own", "in a header", "a/first.hpp", 1, {"insert", "score"}};

std::string refusal(std::vector<Fault> declared, std::vector<std::string_view> used = {}) {
  try {
    checked_faults(declared, used);
    return "taken";
  } catch (const std::logic_error& error) {
    return error.what();
  }
}

TEST(Faults, OfManyVariantsAreListedOnceInTheOrderOfTheSource) {
  const std::vector<Fault> declared{kShared, kWraps, kEarlier, kWraps, kShared};
  const std::vector<std::string_view> used{"wraps"};
  const std::vector<Fault> expected{kEarlier, kWraps, kShared};
  EXPECT_EQ(checked_faults(declared, used), expected);
}

TEST(Faults, BelongToTheStageOfTheirFileOrToThoseTheyName) {
  EXPECT_TRUE(kWraps.is_of("insert"));
  EXPECT_FALSE(kWraps.is_of("score"));
  EXPECT_FALSE(kShared.is_of("first"));
  EXPECT_TRUE(kShared.is_of("insert"));
  EXPECT_TRUE(kShared.is_of("score"));
  EXPECT_FALSE(kShared.is_of(""));
}

TEST(Faults, ThatContradictEachOtherAreRefused) {
  Fault other = kWraps;
  other.line = 9;
  EXPECT_EQ(refusal({kWraps, other}),
            "fault wraps is declared at insert.hip:7 and at insert.hip:9");
  EXPECT_EQ(refusal({kWraps}, {"wraps", "wrap"}), "fault wrap is used and declared nowhere");
  Fault homeless = kShared;
  homeless.stages = {};
  EXPECT_EQ(refusal({homeless}), "fault shared stands in the header first.hpp and names no stage");
}

TEST(Faults, OfAKernelDeclareThemselves) {
  const std::vector<Fault>& planted = planted_faults();
  const auto found = std::ranges::find(planted, "test_fault", &Fault::name);
  ASSERT_NE(found, planted.end());
  EXPECT_EQ(found->bug_case, "own");
  EXPECT_EQ(found->what, "the kernel gives 2");
  EXPECT_TRUE(found->is_of("behaviour"));
  EXPECT_FALSE(found->needs_devices);
}

TEST(Faults, OfHostCodeAreTheirNames) {
  EXPECT_EQ(
      MONOREF_FAULT_NAME(of_host_code, "own", "nothing", .stages = {"none"}, .needs_devices = true),
      "of_host_code");
  EXPECT_EQ(MONOREF_FAULT_NAME_AT(of_host_code), "of_host_code");
  const auto found = std::ranges::find(planted_faults(), "of_host_code", &Fault::name);
  ASSERT_NE(found, planted_faults().end());
  EXPECT_TRUE(found->is_of("none"));
  EXPECT_TRUE(found->needs_devices);
}

}  // namespace
}  // namespace monoref::device
