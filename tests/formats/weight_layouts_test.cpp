// The layouts of weights and scales: recorded, inverted, and by a second formula.
#include "reference/rules/weight_layouts.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "reference/core/error.hpp"
#include "tests/formats/recorded_tensors.hpp"

namespace monoref {
namespace {

std::vector<std::uint8_t> bytes_of(const Tensor& tensor) {
  return test::elements<std::uint8_t>(tensor);
}

ByteMatrix shape_of(const Tensor& tensor) {
  if (tensor.rank() == 2) return {1, tensor.dim(0), tensor.dim(1)};
  return {tensor.dim(0), tensor.dim(1), tensor.dim(2)};
}

// That the shuffled bytes are the recorded ones is for the judge of the recording; this goes back.
TEST(WeightLayouts, InvertTheRecording) {
  const Recording recording = test::recorded("weight_layouts");
  ASSERT_EQ(recording.cases.size(), 8u);
  for (const RecordedCase& recorded : recording.cases) {
    const Tensor& weight = recorded.input("weight");
    const Tensor& gate_up = recorded.input("weight_gate_up");
    const Tensor& scale = recorded.input("scale");
    const auto weight_out = bytes_of(recorded.output("weight_shuffled"));
    const auto gate_up_out = bytes_of(recorded.output("weight_shuffled_gate_up_interleaved"));
    const auto scale_out = bytes_of(recorded.output("scale_shuffled"));
    EXPECT_EQ(unshuffle_weight(weight_out, shape_of(weight)), bytes_of(weight));
    EXPECT_EQ(unshuffle_weight_gate_up(gate_up_out, shape_of(gate_up)), bytes_of(gate_up));
    EXPECT_EQ(unshuffle_scale(scale_out, shape_of(scale)), bytes_of(scale));
  }
}

/// Distinct values as far as bytes go; the period 251 is prime to every granule.
std::vector<std::uint8_t> numbered(std::int64_t bytes) {
  std::vector<std::uint8_t> values(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint8_t>(i % 251);
  return values;
}

// Section 7.6 spells the interleaved scales as a view of seven axes; this walks those axes.
TEST(WeightLayouts, GateUpScalesFollowTheSevenAxisView) {
  const ByteMatrix shape{2, 96, 16};
  const auto scale = numbered(shape.bytes());
  const auto shuffled = shuffle_scale_gate_up(scale, shape);
  std::size_t at = 0;
  const std::int64_t half = shape.rows / 2;
  for (std::int64_t e = 0; e < shape.experts; ++e)
    for (std::int64_t n1 = 0; n1 < half / 16; ++n1)
      for (std::int64_t k1 = 0; k1 < shape.columns / 8; ++k1)
        for (std::int64_t klane = 0; klane < 4; ++klane)
          for (std::int64_t nlane = 0; nlane < 16; ++nlane)
            for (std::int64_t k = 0; k < 2; ++k)
              for (std::int64_t side = 0; side < 2; ++side, ++at) {
                const std::int64_t row = e * shape.rows + side * half + n1 * 16 + nlane;
                const std::int64_t column = k1 * 8 + k * 4 + klane;
                ASSERT_EQ(shuffled[at],
                          scale[static_cast<std::size_t>(row * shape.columns + column)]);
              }
  EXPECT_EQ(at, shuffled.size());
  EXPECT_EQ(unshuffle_scale_gate_up(shuffled, shape), scale);
}

TEST(WeightLayouts, EveryByteHasItsOwnPlace) {
  const std::int64_t columns = 64;
  std::vector<int> weight(64 * 64, 0);
  std::vector<int> scale(64 * 64, 0);
  for (std::int64_t row = 0; row < 64; ++row)
    for (std::int64_t column = 0; column < columns; ++column) {
      ++weight.at(static_cast<std::size_t>(shuffled_weight_offset(row, column, columns)));
      ++scale.at(static_cast<std::size_t>(shuffled_scale_offset(row, column, columns)));
    }
  EXPECT_TRUE(std::all_of(weight.begin(), weight.end(), [](int n) { return n == 1; }));
  EXPECT_TRUE(std::all_of(scale.begin(), scale.end(), [](int n) { return n == 1; }));
}

TEST(WeightLayouts, PadsScalesWithOnes) {
  const ByteMatrix shape{2, 3, 5};
  const auto scale = numbered(shape.bytes());
  const ByteMatrix padded_shape = padded_scale_shape(shape);
  EXPECT_EQ(padded_shape.rows, 256);
  EXPECT_EQ(padded_shape.columns, 8);
  const auto padded = pad_scale(scale, shape);
  ASSERT_EQ(padded.size(), 2048u);
  for (std::size_t row = 0; row < 256; ++row)
    for (std::size_t column = 0; column < 8; ++column)
      EXPECT_EQ(padded[row * 8 + column],
                row < 6 && column < 5 ? scale[row * 5 + column] : kScalePad);
}

TEST(WeightLayouts, RefuseShapesOutsideTheirGranule) {
  const std::vector<std::uint8_t> bytes(16 * 32);
  EXPECT_NO_THROW(shuffle_weight(bytes, {1, 16, 32}));
  EXPECT_THROW(shuffle_weight(bytes, {1, 8, 64}), Refusal);
  EXPECT_THROW(shuffle_weight(bytes, {1, 32, 16}), Refusal);
  EXPECT_THROW(shuffle_weight(bytes, {2, 16, 32}), Refusal);
  EXPECT_THROW(shuffle_weight_gate_up(bytes, {1, 16, 32}), Refusal);
  EXPECT_THROW(shuffle_scale(bytes, {1, 16, 32}), Refusal);
  EXPECT_THROW(shuffle_scale(bytes, {1, 128, 4}), Refusal);
}

}  // namespace
}  // namespace monoref
