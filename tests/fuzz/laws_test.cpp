// Every law, on a small stage that keeps it and on one that breaks it.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "fuzz/laws/adds_up.hpp"
#include "fuzz/laws/definition.hpp"
#include "fuzz/laws/ignores.hpp"
#include "fuzz/laws/permute.hpp"
#include "fuzz/laws/scale.hpp"
#include "fuzz/laws/untouched.hpp"

namespace monoref {
namespace {

Tensor floats(std::vector<std::int64_t> dims, const std::vector<float>& values) {
  return Tensor::of(DType::kFloat32, std::move(dims), values);
}

Tensor integers(std::vector<std::int64_t> dims, const std::vector<std::int32_t>& values) {
  return Tensor::of(DType::kInt32, std::move(dims), values);
}

/// Three rows of two numbers, with a row gap, and a factor for all.
Case rows_case() {
  Case item;
  Tensor x(DType::kFloat32, Layout::strided({3, 2}, {5, 1}));
  for (std::int64_t i = 0; i < 6; ++i) x.view<float, 2>()(i / 2, i % 2) = static_cast<float>(i + 1);
  item.inputs = {{"x", std::move(x)}, {"bias", floats({2}, {0.5f, 0.25f})}};
  item.scalars = {{"factor", 3.0}};
  return item;
}

/// y[row, i] = x[row, i] * factor: a stage of independent rows that is linear in both.
Outputs scaled_rows(const Case& item) {
  const auto x = item.input("x").view<float, 2>();
  Tensor y(DType::kFloat32, Layout::dense({x.dim(0), x.dim(1)}));
  for (std::int64_t row = 0; row < x.dim(0); ++row)
    for (std::int64_t i = 0; i < x.dim(1); ++i)
      y.view<float, 2>()(row, i) = x(row, i) * static_cast<float>(item.real("factor"));
  return {{"y", std::move(y)}};
}

/// The same, but every row also sees the first one.
Outputs rows_with_the_first(const Case& item) {
  Outputs out = scaled_rows(item);
  const auto y = out[0].tensor.view<float, 2>();
  for (std::int64_t row = 1; row < y.dim(0); ++row) y(row, 0) += y(0, 0);
  return out;
}

/// The same with the bias, which is not linear.
Outputs biased_rows(const Case& item) {
  Outputs out = scaled_rows(item);
  const auto y = out[0].tensor.view<float, 2>();
  for (std::int64_t row = 0; row < y.dim(0); ++row)
    for (std::int64_t i = 0; i < y.dim(1); ++i) y(row, i) += item.input("bias").view<float, 1>()(i);
  return out;
}

std::optional<std::string> ask(const Property& law, const Case& item, const Evaluate& stage) {
  return law.check(item, stage(item), stage);
}

testing::AssertionResult keeps(const Property& law, const Case& item, const Evaluate& stage) {
  const auto broken = ask(law, item, stage);
  return broken ? testing::AssertionFailure() << *broken : testing::AssertionSuccess();
}

TEST(Laws, PermutedRowsAreTheSameRows) {
  const Property law = laws::permute("row", {"x"});
  EXPECT_EQ(law.name, "row_independence");
  EXPECT_EQ(law.statement, "rows in another order are the same rows");
  EXPECT_TRUE(keeps(law, rows_case(), scaled_rows));
  EXPECT_EQ(ask(law, rows_case(), rows_with_the_first), "y[0, 0] changes when rows change places");
}

TEST(Laws, PermutationsOfAnotherAxisAndOfRuns) {
  const auto pair = [](const Case&) { return std::int64_t{2}; };
  // Pairs of columns: two of four numbers change places with the other two.
  Case item;
  item.inputs = {{"x", floats({1, 4}, {1, 2, 3, 4})}};
  const Property pairs =
      laws::permute({.part = "pair", .inputs = {{"x", 1, pair}}, .outputs = {{"y", 1, pair}}});
  const Evaluate copy = [](const Case& of) { return Outputs{{"y", of.input("x")}}; };
  const Evaluate crossed = [](const Case& of) {
    Tensor y = of.input("x");
    std::swap(y.view<float, 2>()(0, 1), y.view<float, 2>()(0, 2));
    return Outputs{{"y", y}};
  };
  EXPECT_TRUE(keeps(pairs, item, copy));
  EXPECT_TRUE(ask(pairs, item, crossed));
  // A sum does not know the order of its terms, a first element does.
  const Property order = laws::permute({.inputs = {{"x", 1}}, .outputs_follow = false});
  const Evaluate sum = [](const Case& of) {
    const auto x = of.input("x").view<float, 2>();
    return Outputs{{"y", floats({1}, {x(0, 0) + x(0, 1) + x(0, 2) + x(0, 3)})}};
  };
  const Evaluate first = [](const Case& of) {
    return Outputs{{"y", floats({1}, {of.input("x").view<float, 2>()(0, 0)})}};
  };
  EXPECT_TRUE(keeps(order, item, sum));
  EXPECT_EQ(ask(order, item, first), "y[0] changes when rows change places");
}

TEST(Laws, WhatALawDoesNotCompareMayDiffer) {
  const auto second_column = [](const Case&, const Outputs&) -> laws::OutputRegion {
    return [](std::string_view, laws::Index at) { return at[1] == 1; };
  };
  EXPECT_TRUE(keeps(laws::permute({.inputs = {{"x"}}, .compared = second_column}), rows_case(),
                    rows_with_the_first));
  EXPECT_TRUE(
      keeps(laws::permute({.inputs = {{"x"}}, .applies = [](const Case&) { return false; }}),
            rows_case(), rows_with_the_first));
}

TEST(Laws, ARowAloneIsTheSameAsAmongOthers) {
  const Property law = laws::alone("row", {"x"});
  EXPECT_EQ(law.statement, "a row alone is the same as among others");
  EXPECT_TRUE(keeps(law, rows_case(), scaled_rows));
  EXPECT_EQ(ask(law, rows_case(), rows_with_the_first), "y[1, 0] changes when the row is alone");
  Case one = rows_case();
  one.inputs[0].tensor = laws::chosen(one.inputs[0].tensor, 0, {0});
  EXPECT_TRUE(keeps(law, one, rows_with_the_first)) << "one row has no others";
}

TEST(Laws, AVariantOfTheStagesOwn) {
  // Rows from the last on, and a scalar that says how many there are.
  const auto last_two = [](const Case&) { return laws::Parts{2, 1}; };
  const auto pick = [](const Case& item, const laws::Parts& order) {
    Case other = item;
    other.inputs[0].tensor = laws::chosen(item.input("x"), 0, order);
    return other;
  };
  const Property law = laws::permute({.inputs = {}, .order = last_two, .variant = pick});
  EXPECT_TRUE(keeps(law, rows_case(), scaled_rows));
  EXPECT_EQ(ask(law, rows_case(), rows_with_the_first), "y[1, 0] changes when rows change places");
}

TEST(Laws, PowersOfTwoComeOutAgain) {
  const Property by_input = laws::scale({.inputs = {{"x"}}, .outputs = {{"y"}}});
  EXPECT_EQ(by_input.name, "x_scaling");
  EXPECT_EQ(by_input.statement, "twice x is twice y");
  EXPECT_TRUE(keeps(by_input, rows_case(), scaled_rows));
  EXPECT_EQ(ask(by_input, rows_case(), biased_rows), "y[0, 0] is otherwise");
  const Property exchange = laws::scale({.inputs = {{"x", 2}, {"factor", -2}}, .outputs = {}});
  EXPECT_EQ(exchange.statement, "2^2 times x and 2^-2 times factor is the same");
  EXPECT_TRUE(keeps(exchange, rows_case(), scaled_rows));
  const Evaluate without_factor = [](const Case& item) { return Outputs{{"y", item.input("x")}}; };
  EXPECT_EQ(ask(exchange, rows_case(), without_factor), "y[0, 0] is another");
}

TEST(Laws, NumbersOutOfRangeAreLeftAlone) {
  Case item = rows_case();
  item.inputs[0].tensor.view<float, 2>()(2, 1) = 0x1p41f;
  const Property law = laws::scale({.inputs = {{"x"}}, .outputs = {{"y"}}});
  EXPECT_TRUE(keeps(law, item, biased_rows)) << "does not apply";
  item.inputs[0].tensor.view<float, 2>()(2, 1) = std::nanf("");
  item.inputs[0].tensor.view<float, 2>()(2, 0) = 0;
  EXPECT_TRUE(keeps(law, item, scaled_rows)) << "NaN and 0 stay what they are";
  EXPECT_TRUE(ask(law, item, biased_rows));
}

TEST(Laws, ScalesOfE8M0AndBf16) {
  Case item;
  item.inputs = {
      {"scale", Tensor::of(DType::kFloat8E8M0, {2}, std::vector<std::uint8_t>{127, 0xFF})}};
  const auto bf16_of = [](int more) {
    return [more](const Case& of) {
      const auto scale = of.input("scale").view<std::uint8_t, 1>();
      std::vector<std::uint16_t> y;
      for (std::int64_t i = 0; i < 2; ++i)
        y.push_back(scale(i) == 0xFF ? std::uint16_t{0x7FC0}
                                     : static_cast<std::uint16_t>((scale(i) + more) << 7));
      return Outputs{{"y", Tensor::of(DType::kBFloat16, {2}, y)}};
    };
  };
  const Property law = laws::scale({.inputs = {{"scale"}}, .outputs = {{"y"}}});
  EXPECT_TRUE(keeps(law, item, bf16_of(0)));
  const Evaluate fixed = [&](const Case&) { return bf16_of(0)(item); };
  EXPECT_EQ(ask(law, item, fixed), "y[0] is otherwise");
}

TEST(Laws, WhatIsIgnoredMayHoldAnything) {
  const auto last_row = [](const Case&) -> laws::Region {
    return [](laws::Index at) { return at[0] == 2; };
  };
  const Property law = laws::ignores("live", "the last row is nobody's", {{"x", last_row}});
  const auto sum_of = [](std::int64_t rows) {
    return [rows](const Case& item) {
      float sum = 0;
      for (std::int64_t row = 0; row < rows; ++row) sum += item.input("x").view<float, 2>()(row, 0);
      return Outputs{{"sum", floats({1}, {sum})}};
    };
  };
  EXPECT_TRUE(keeps(law, rows_case(), sum_of(2)));
  EXPECT_EQ(ask(law, rows_case(), sum_of(3)), "sum[0] changes");
  EXPECT_FALSE(laws::poisoned(rows_case(), {{"y"}})) << "no such input";
}

TEST(Laws, PoisonIsOfTheElementsType) {
  Case item;
  item.inputs = {{"ids", integers({3}, {4, 5, 6})},
                 {"codes", Tensor::of(DType::kFloat8E4M3FN, {1}, std::vector<std::uint8_t>{8})},
                 {"bytes", Tensor::of(DType::kUInt8, {1}, std::vector<std::uint8_t>{0x38})}};
  const auto other = laws::poisoned(item, {{"ids"}, {"codes"}, {"bytes"}});
  ASSERT_TRUE(other);
  const auto ids = other->input("ids").view<std::int32_t, 1>();
  EXPECT_EQ(ids(0), -1);
  EXPECT_EQ(ids(1), INT32_MAX);
  EXPECT_EQ(ids(2), -1);
  EXPECT_EQ((other->input("codes").view<std::uint8_t, 1>()(0) & 0x7F), 0x7F) << "NaN";
  EXPECT_NE((other->input("bytes").view<std::uint8_t, 1>()(0)), 0x38);
}

TEST(Laws, VariantsLeaveOutputsUnchanged) {
  const Property by_scalar = laws::unchanged("any_factor", "the factor does not matter",
                                             {laws::with_scalar("factor", 5.0)});
  const Evaluate without_factor = [](const Case& item) { return Outputs{{"y", item.input("x")}}; };
  EXPECT_TRUE(keeps(by_scalar, rows_case(), without_factor));
  EXPECT_EQ(ask(by_scalar, rows_case(), scaled_rows), "y[0, 0] changes");
  Case item;
  item.inputs = {{"a", floats({1}, {1})}, {"b", floats({1}, {2})}};
  const Property symmetry =
      laws::unchanged("symmetry", "a and b may change places", {laws::exchanged("a", "b")});
  const auto combined = [](auto combine) {
    return [combine](const Case& of) {
      return Outputs{{"y", floats({1}, {combine(of.input("a").view<float, 1>()(0),
                                                of.input("b").view<float, 1>()(0))})}};
    };
  };
  EXPECT_TRUE(keeps(symmetry, item, combined(std::plus<float>())));
  EXPECT_TRUE(ask(symmetry, item, combined(std::minus<float>())));
}

TEST(Laws, ALawOfAVariant) {
  // Where the factor is 0, x does not matter.
  const Property law = laws::of_variant(laws::with_scalar("factor", 0.0),
                                        laws::scale({.inputs = {{"x"}}, .outputs = {}}));
  EXPECT_TRUE(keeps(law, rows_case(), scaled_rows));
  const Evaluate without_factor = [](const Case& item) { return Outputs{{"y", item.input("x")}}; };
  EXPECT_EQ(ask(law, rows_case(), without_factor), "y[0, 0] is another");
}

TEST(Laws, OnlyNamedElementsChangeInPlace) {
  // A cache of two rows, three elements apart; a stage that writes row 1.
  Case item;
  Tensor cache(DType::kInt32, Layout{{2, 2}, {3, 1}, {{0, 6}}});
  cache.fill_bytes(std::byte{7});
  item.inputs = {{"cache", cache}};
  const auto writes = [](std::vector<std::int64_t> offsets) {
    return [offsets](const Case& of) {
      Tensor after = of.input("cache");
      for (const std::int64_t offset : offsets)
        reinterpret_cast<std::int32_t*>(after.base())[offset] = 1;
      return Outputs{{"cache", after}};
    };
  };
  const Property law = laws::untouched(
      "rows", "only row 1 changes", {{"cache"}}, [](const Case&) -> laws::OutputRegion {
        return [](std::string_view, laws::Index at) { return at[0] == 1; };
      });
  EXPECT_TRUE(keeps(law, item, writes({3, 4})));
  EXPECT_EQ(ask(law, item, writes({1, 3})), "cache[0, 1] has changed, nobody names it");
  EXPECT_EQ(ask(law, item, writes({3, 5})), "the padding of cache has changed, nobody names it");
}

/// Keys of a length over ranks, dealt one by one from the `first` on.
Evaluate shares_from(std::int64_t first) {
  return [first](const Case& item) {
    const std::int64_t world = item.integer("world");
    const std::int64_t rank = (item.integer("rank") + first) % (world == 1 ? 1 : world + first);
    const std::int64_t ratio = std::max<std::int64_t>(item.integer("compress_ratio"), 1);
    std::int32_t keys = 0;
    for (std::int64_t key = 0; key < 10 / ratio; ++key) keys += key % world == rank;
    return Outputs{{"keys", integers({1}, {keys})}};
  };
}

Case shared_case() {
  Case item;
  item.scalars = {
      {"world", std::int64_t{3}}, {"rank", std::int64_t{1}}, {"compress_ratio", std::int64_t{0}}};
  return item;
}

TEST(Laws, SharesOfRanksAddUp) {
  const Property law = laws::adds_up({"keys"}, "the ranks' keys add up to all keys");
  EXPECT_EQ(law.name, "partition");
  EXPECT_TRUE(keeps(law, shared_case(), shares_from(0)));
  // The last rank has nothing, and nobody the first keys.
  EXPECT_EQ(ask(law, shared_case(), shares_from(1)),
            "keys[0] adds up to 6 over 3 ranks, one rank alone has 10");
  const Property never =
      laws::adds_up({"keys"}, "never asked", [](const Case&, const Outputs&) { return false; });
  EXPECT_TRUE(keeps(never, shared_case(), shares_from(1)));
}

TEST(Laws, RatiosOf0And1AreTheSame) {
  EXPECT_TRUE(keeps(laws::no_ratio(), shared_case(), shares_from(0)));
  const Evaluate counts_ratios = [](const Case& item) {
    return Outputs{
        {"keys", integers({1}, {static_cast<std::int32_t>(item.integer("compress_ratio"))})}};
  };
  EXPECT_EQ(ask(laws::no_ratio(), shared_case(), counts_ratios), "keys[0] changes");
  EXPECT_TRUE(keeps(laws::no_ratio([](const Case&, const Outputs&) { return false; }),
                    shared_case(), counts_ratios));
  Case compressed = shared_case();
  compressed.scalars[2].value = std::int64_t{2};
  EXPECT_TRUE(keeps(laws::no_ratio(), compressed, counts_ratios)) << "does not apply";
}

std::vector<OutputSpec> y_like_x(const Case& item) {
  return {{"y", DType::kFloat32, Layout::dense(item.input("x").dims()), {"row", "i"}, ""}};
}

void define_scaled_rows(const Case& item, Outputs& out) {
  const Outputs made = scaled_rows(item);
  out[0].tensor.set_image(made[0].tensor.image());
}

TEST(Laws, AFastFormIsItsDefinition) {
  const auto little = [](const Case&) { return std::int64_t{6}; };
  const Property law = laws::definition({y_like_x, define_scaled_rows, little});
  EXPECT_TRUE(keeps(law, rows_case(), scaled_rows));
  EXPECT_EQ(ask(law, rows_case(), biased_rows), "y[0, 0] is another");
  // Large cases are taken by chance: by their seed, and about as often as their work allows.
  EXPECT_TRUE(laws::is_sampled(0, laws::kSmallWork));
  int taken = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const bool is_taken = laws::is_sampled(seed, 8 * laws::kSmallWork);
    EXPECT_EQ(laws::is_sampled(seed, 8 * laws::kSmallWork), is_taken);
    taken += is_taken;
  }
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, 1000);
}

}  // namespace
}  // namespace monoref
