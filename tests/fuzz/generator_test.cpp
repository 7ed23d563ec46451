// Draws and shrinking: deterministic, in range, and ending at something a person can read.
#include "fuzz/generator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "fuzz/random.hpp"

namespace monoref {
namespace {

class EveryStage : public testing::TestWithParam<const Stage*> {};

TEST_P(EveryStage, DrawsAreReproducible) {
  for (std::uint64_t index = 0; index < 50; ++index) {
    const Draw a = draw_case(*GetParam(), 11, index, std::nullopt);
    const Draw b = draw_case(*GetParam(), 11, index, std::nullopt);
    EXPECT_EQ(a.params, b.params);
    EXPECT_EQ(a.seed, b.seed);
    EXPECT_EQ(a.contract, b.contract);
  }
}

TEST_P(EveryStage, DrawsStayInRangeAndReachEveryEdgeAndWord) {
  const auto& dimensions = GetParam()->dimensions;
  std::vector<std::set<std::int64_t>> seen(dimensions.size());
  for (std::uint64_t index = 0; index < 4000; ++index) {
    const Draw draw = draw_case(*GetParam(), 5, index, std::nullopt);
    for (std::size_t i = 0; i < dimensions.size(); ++i) seen[i].insert(draw.params.values()[i]);
  }
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    const Dimension& dimension = dimensions[i];
    for (const std::int64_t value : seen[i])
      EXPECT_TRUE((value >= dimension.low && value <= dimension.high) ||
                  std::find(dimension.edges.begin(), dimension.edges.end(), value) !=
                      dimension.edges.end())
          << dimension.name << " = " << value;
    for (const std::int64_t edge : dimension.edges)
      EXPECT_TRUE(seen[i].contains(edge)) << dimension.name << " never " << edge;
    for (std::size_t word = 0; word < dimension.words.size(); ++word)
      EXPECT_TRUE(seen[i].contains(static_cast<std::int64_t>(word)))
          << dimension.name << " never " << dimension.words[word];
  }
}

TEST_P(EveryStage, TheLineRebuildsTheCase) {
  for (std::uint64_t index = 0; index < 100; ++index) {
    const Draw draw = draw_case(*GetParam(), 3, index, std::nullopt);
    const Case first = build_case(*GetParam(), draw.params, draw.contract, draw.seed);
    const Case second = build_case(parse_line(first.line));
    EXPECT_EQ(second.line, first.line);
    EXPECT_EQ(second.contract, first.contract);
    ASSERT_EQ(second.inputs.size(), first.inputs.size()) << first.line;
    for (std::size_t i = 0; i < first.inputs.size(); ++i) {
      EXPECT_EQ(second.inputs[i].tensor.layout(), first.inputs[i].tensor.layout());
      EXPECT_EQ(second.inputs[i].tensor.image(), first.inputs[i].tensor.image()) << first.line;
    }
  }
}

std::vector<const Stage*> stage_pointers() {
  return select_stages("all");
}
INSTANTIATE_TEST_SUITE_P(Stages, EveryStage, testing::ValuesIn(stage_pointers()),
                         [](const auto& instance) { return std::string(instance.param->name); });

const std::vector<Dimension>& plane() {
  static const std::vector<Dimension> list{{"x", 0, 0, 100, {}, {}, ""},
                                           {"y", 1, 1, 100, {}, {}, ""},
                                           Dimension::choice("kind", {"plain", "odd"}, "")};
  return list;
}

/// Some answer that depends on all values, "it still fails" more often than not.
bool seems_to_fail(const Params& params) {
  std::uint64_t hash = 0;
  for (const std::int64_t value : params.values())
    hash = CounterRandom::hash(fmt::format("{} {}", hash, value));
  return hash % 4 != 0;
}

TEST_P(EveryStage, WhateverShrinkingTriesIsACaseWithALine) {
  for (std::uint64_t index = 0; index < 40; ++index) {
    const Draw draw = draw_case(*GetParam(), 11, index, std::nullopt);
    const Shrunken found = shrink(draw.params,
                                  [&](const Params& params) {
                                    const std::string line =
                                        format_line(GetParam()->name, draw.contract, draw.seed,
                                                    GetParam()->generator_version, params);
                                    try {
                                      Params again(GetParam()->dimensions);
                                      apply_settings(again, parse_line(line));
                                      EXPECT_EQ(again, params) << line;
                                    } catch (const Refusal& refusal) {
                                      ADD_FAILURE() << line << ": " << refusal.what();
                                    }
                                    return seems_to_fail(params);
                                  },
                                  {.tries = 200, .seconds = 1e9});
    const Case first = build_case(*GetParam(), found.params, draw.contract, draw.seed);
    const Case second = build_case(parse_line(first.line));
    EXPECT_EQ(second.line, first.line);
    ASSERT_EQ(second.inputs.size(), first.inputs.size()) << first.line;
    for (std::size_t i = 0; i < first.inputs.size(); ++i)
      EXPECT_EQ(second.inputs[i].tensor.image(), first.inputs[i].tensor.image()) << first.line;
  }
}

TEST(Shrink, GoesThroughValuesThatTheDimensionHas) {
  const std::vector<Dimension> rows{{"rows", 1, 0, 5, {0, 11, 12, 17}, {}, "", 8}};
  Params failing(rows);
  failing.set("rows", 17);
  std::set<std::int64_t> tried;
  const auto smallest = [&](std::int64_t least) {
    return shrink(failing,
                  [&](const Params& p) {
                    tried.insert(p["rows"]);
                    return p["rows"] >= least;
                  },
                  {})
        .params["rows"];
  };
  EXPECT_EQ(smallest(4), 4);
  EXPECT_EQ(smallest(6), 6);  // a line may name it, if nothing draws it
  EXPECT_EQ(smallest(9), 11);
  EXPECT_EQ(smallest(12), 12);
  EXPECT_EQ(smallest(13), 17);
  for (const std::int64_t value : tried)
    EXPECT_TRUE((value >= 0 && value <= 8) || value == 11 || value == 12) << value;
}

TEST(Shrink, EndsAtTheSmallestFailure) {
  Params failing(plane());
  failing.set("x", 90);
  failing.set("y", 77);
  failing.set("kind", 1);
  const Shrunken found =
      shrink(failing, [](const Params& p) { return p["x"] >= 13 && p["y"] >= 5; }, {});
  EXPECT_EQ(found.params["x"], 13);
  EXPECT_EQ(found.params["y"], 5);
  EXPECT_EQ(found.params.word("kind"), "plain");
}

TEST(Shrink, StopsWithinItsBudget) {
  Params failing(plane());
  failing.set("x", 100);
  failing.set("y", 100);
  int asked = 0;
  const Shrunken found = shrink(failing,
                                [&](const Params& p) {
                                  ++asked;
                                  return p["x"] > 50;
                                },
                                {.tries = 3, .seconds = 60});
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(found.tries, 3);
}

}  // namespace
}  // namespace monoref
