// Repro lines: what is written is read back, and what is not understood is refused by name.
#include "fuzz/params.hpp"

#include <gtest/gtest.h>

#include "fuzz/stage.hpp"

namespace monoref {
namespace {

const std::vector<Dimension>& dimensions() {
  static const std::vector<Dimension> list{
      {"requests", 1, 0, 6, {33}, {}, ""},
      {"shift", 0, -3, 3, {}, {}, ""},
      Dimension::choice("ids", {"shuffled", "large"}, ""),
  };
  return list;
}

std::string refusal_of(const std::string& line) {
  try {
    Params params(dimensions());
    apply_settings(params, parse_line(line));
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "accepted";
}

TEST(Line, SimplestValuesAreLeftOut) {
  Params params(dimensions());
  EXPECT_EQ(format_line("s", Contract{}, 7, 3, params), "stage=s;contract=mono;seed=7;gen=3");
}

TEST(Line, RoundTrip) {
  Params params(dimensions());
  params.set("requests", 33);
  params.set("shift", -2);
  params.set("ids", 1);
  const Contract contract = Contract::parse("mono,kv_layout=dense");
  const std::string line = format_line("s", contract, ~0ull, 4, params);
  EXPECT_EQ(line,
            "stage=s;contract=mono,kv_layout=dense;seed=18446744073709551615;gen=4;requests=33;"
            "shift=-2;ids=large");
  const CaseLine parsed = parse_line(line);
  Params again(dimensions());
  apply_settings(again, parsed);
  EXPECT_EQ(again, params);
  EXPECT_EQ(parsed.contract, contract);
  EXPECT_EQ(parsed.seed, ~0ull);
  EXPECT_EQ(parsed.generator_version, 4u);
  EXPECT_FALSE(parsed.earlier.has_value());
}

TEST(Line, EarlierStepIsNamed) {
  const CaseLine parsed = parse_line("stage=s;earlier=12:34");
  ASSERT_TRUE(parsed.earlier.has_value());
  EXPECT_EQ(parsed.earlier->seed, 12u);
  EXPECT_EQ(parsed.earlier->index, 34u);
}

TEST(Line, RefusalsNameArgumentValueAndLimit) {
  EXPECT_EQ(refusal_of("requests=3"), "line: 'requests=3' names no stage (stage=NAME;...)");
  EXPECT_EQ(refusal_of("stage=s;requests"), "line: 'requests' is not name=value");
  EXPECT_EQ(refusal_of("stage=s;requests=7"), "line: requests is 7, must be 0 to 6 or one of 33");
  EXPECT_EQ(refusal_of("stage=s;shift=4"), "line: shift is 4, must be -3 to 3");
  EXPECT_EQ(refusal_of("stage=s;requests=x"), "line: requests is 'x', must be a whole number");
  EXPECT_EQ(refusal_of("stage=s;requests=1;requests=2"), "line: 'requests' is given twice");
  EXPECT_EQ(refusal_of("stage=s;ids=odd"), "line: ids is 'odd', must be one of shuffled, large");
  EXPECT_EQ(refusal_of("stage=s;seed=-1"), "line: seed is '-1', must be a whole number");
  EXPECT_EQ(refusal_of("stage=s;earlier=5"),
            "line: earlier (SEED:INDEX) is '', must be a whole number");
  EXPECT_EQ(refusal_of("stage=s;width=1"),
            "line: stage s has no dimension 'width'; it has requests, shift, ids");
  EXPECT_EQ(refusal_of("stage=s;contract=nono"),
            "contract: preset is 'nono', must be one of mono, aiter-gluon, vllm-triton");
}

TEST(Line, NothingIsSaidTwice) {
  EXPECT_EQ(refusal_of("stage=s;stage=t"), "line: 'stage' is given twice");
  EXPECT_EQ(refusal_of("stage=s;seed=1;seed=1"), "line: 'seed' is given twice");
  EXPECT_EQ(refusal_of("stage=s;gen=1;gen=2"), "line: 'gen' is given twice");
  EXPECT_EQ(refusal_of("stage=s;contract=mono;contract=mono"), "line: 'contract' is given twice");
  EXPECT_EQ(refusal_of("stage=s;earlier=1:2;earlier=1:2"), "line: 'earlier' is given twice");
  EXPECT_EQ(refusal_of("stage=s;contract=mono,kv_layout=dense,kv_layout=interleaved"),
            "contract: 'kv_layout' is given twice");
}

TEST(Line, NumbersHaveLimits) {
  EXPECT_EQ(refusal_of("stage=s;seed=18446744073709551616"),
            "line: seed is 18446744073709551616, must be 0 to 18446744073709551615");
  EXPECT_EQ(refusal_of("stage=s;requests=-9223372036854775809"),
            "line: requests is -9223372036854775809, must be -9223372036854775808 to "
            "9223372036854775807");
  EXPECT_EQ(refusal_of("stage=s;gen=4294967296"),
            "line: gen is 4294967296, must be 0 to 4294967295");
  EXPECT_EQ(refusal_of("stage=s;gen=0"), "line: gen is 0, must be 1 or more");
}

TEST(Line, ALineMayNameSizesThatAreNotDrawn) {
  const std::vector<Dimension> sizes{{"experts", 2, 1, 6, {9}, {}, "", 128}};
  Params params(sizes);
  apply_settings(params, parse_line("stage=s;experts=128"));
  EXPECT_EQ(params["experts"], 128);
  try {
    apply_settings(params, parse_line("stage=s;experts=129"));
    ADD_FAILURE() << "129 was taken";
  } catch (const Refusal& refusal) {
    EXPECT_STREQ(refusal.what(), "line: experts is 129, must be 1 to 128 or one of 9");
  }
}

TEST(Line, AnotherGeneratorVersionIsRefused) {
  const Stage& stage = find_stage("token_rows");
  CaseLine line = parse_line("stage=token_rows");
  line.generator_version = stage.generator_version + 1;
  EXPECT_THROW(build_case(line), Refusal);
  line.generator_version = stage.generator_version;
  EXPECT_EQ(build_case(line).stage, "token_rows");
}

}  // namespace
}  // namespace monoref
