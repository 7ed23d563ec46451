// Draws and shrinking: deterministic, in range, and ending at something a person can read.
#include "fuzz/generator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

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
