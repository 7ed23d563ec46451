// Comparison: every differing element is counted, the first is named in the stage's terms.
#include "fuzz/compare.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

namespace monoref {
namespace {

RunResult compare(const OutputSpec& spec, const Tensor& expected, const Tensor& got,
                  const Tensor* specified = nullptr, bool any_nan = false) {
  RunResult result;
  const Tensor* a[] = {&expected};
  const Tensor* m[] = {specified};
  const Tensor* b[] = {&got};
  compare_outputs({&spec, 1}, a, m, b, any_nan, result);
  return result;
}

OutputSpec spec_of(DType type, Layout layout) {
  return {"table", type, std::move(layout), {"row", "column"}, ""};
}

TEST(Compare, EqualTensorsAreExact) {
  const Tensor a = Tensor::of<std::int32_t>(DType::kInt32, {2, 2}, {1, 2, 3, 4});
  const RunResult result = compare(spec_of(DType::kInt32, a.layout()), a, a);
  EXPECT_EQ(result.verdict, Verdict::kExact);
  EXPECT_EQ(result.outputs[0].exact, 4u);
  EXPECT_EQ(result.outputs[0].elements, 4u);
  EXPECT_FALSE(result.first_difference.has_value());
}

TEST(Compare, DifferencesAreCountedAndTheFirstIsNamed) {
  const Tensor a = Tensor::of<std::int32_t>(DType::kInt32, {2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor b = Tensor::of<std::int32_t>(DType::kInt32, {2, 3}, {1, 2, 3, 4, -5, 7});
  const RunResult result = compare(spec_of(DType::kInt32, a.layout()), a, b);
  EXPECT_EQ(result.verdict, Verdict::kWrong);
  EXPECT_EQ(result.outputs[0].wrong, 2u);
  EXPECT_EQ(result.outputs[0].exact, 4u);
  EXPECT_EQ(result.first_difference->text(), "table[row 1, column 1]: expected 5, got -5");
}

TEST(Compare, OnlySpecifiedElementsCount) {
  const Tensor a = Tensor::of<std::int32_t>(DType::kInt32, {1, 3}, {1, 2, 3});
  const Tensor b = Tensor::of<std::int32_t>(DType::kInt32, {1, 3}, {1, 9, 3});
  const Tensor mask = Tensor::of<std::uint8_t>(DType::kUInt8, {1, 3}, {1, 0, 1});
  const RunResult result = compare(spec_of(DType::kInt32, a.layout()), a, b, &mask);
  EXPECT_EQ(result.verdict, Verdict::kExact);
  EXPECT_EQ(result.outputs[0].elements, 2u);
}

TEST(Compare, TouchedPaddingIsWrong) {
  const Layout padded = Layout::strided({2, 2}, {3, 1});
  Tensor a(DType::kInt32, padded);
  Tensor b = a;
  b.view<std::int32_t, 2>().data()[2] = 1;  // between the rows
  const RunResult result = compare(spec_of(DType::kInt32, padded), a, b);
  EXPECT_EQ(result.verdict, Verdict::kWrong);
  EXPECT_EQ(result.first_difference->text(), "table[storage_offset 2]: expected 0, got 1");
}

TEST(Compare, LayoutsMayDifferWhereElementsAgree) {
  const Tensor a = Tensor::of<std::int32_t>(DType::kInt32, {2, 2}, {1, 2, 3, 4});
  Tensor b(DType::kInt32, Layout::strided({2, 2}, {5, 2}));
  copy_elements(a, b);
  EXPECT_EQ(compare(spec_of(DType::kInt32, b.layout()), a, b).verdict, Verdict::kExact);
}

TEST(Compare, ShapesMustAgree) {
  const Tensor a = Tensor::of<std::int32_t>(DType::kInt32, {1, 2}, {1, 2});
  const Tensor b = Tensor::of<std::int32_t>(DType::kInt32, {2, 1}, {1, 2});
  const RunResult result = compare(spec_of(DType::kInt32, a.layout()), a, b);
  EXPECT_EQ(result.verdict, Verdict::kWrong);
  EXPECT_EQ(result.first_difference->expected, "int32 [1, 2]");
  EXPECT_EQ(result.first_difference->got, "int32 [2, 1]");
}

TEST(Compare, TheSignOfZeroCounts) {
  const Tensor a = Tensor::of<float>(DType::kFloat32, {1, 1}, {0.0f});
  const Tensor b = Tensor::of<float>(DType::kFloat32, {1, 1}, {-0.0f});
  EXPECT_EQ(compare(spec_of(DType::kFloat32, a.layout()), a, b).verdict, Verdict::kWrong);
}

TEST(Compare, NanPayloadsCountOnlyInTree) {
  const float quiet = std::numeric_limits<float>::quiet_NaN();
  const auto other = std::bit_cast<float>(0xFFC00001u);
  const Tensor a = Tensor::of<float>(DType::kFloat32, {1, 1}, {quiet});
  const Tensor b = Tensor::of<float>(DType::kFloat32, {1, 1}, {other});
  const OutputSpec spec = spec_of(DType::kFloat32, a.layout());
  EXPECT_EQ(compare(spec, a, b, nullptr, false).verdict, Verdict::kWrong);
  EXPECT_EQ(compare(spec, a, b, nullptr, true).verdict, Verdict::kExact);
}

// Both sides start from poison, but not the same: an element that neither writes is a difference.
TEST(Compare, UnwrittenElementsOfBothSidesDiffer) {
  const OutputSpec spec = spec_of(DType::kInt32, Layout::strided({2, 2}, {3, 1}));
  const Outputs reference = make_outputs(Case{}, {&spec, 1}, kReferencePoison);
  const Outputs kernel = make_outputs(Case{}, {&spec, 1}, kOutputPoison);
  const RunResult result = compare(spec, reference[0].tensor, kernel[0].tensor);
  EXPECT_EQ(result.outputs[0].wrong, 4u);
  EXPECT_EQ(result.outputs[0].exact, 1u);  // the padding between the rows, which nobody may touch
}

}  // namespace
}  // namespace monoref
