// vLLM's Triton SwiGLU against the range that running error analysis proves for it, and the formula
// of mono-decode section 7 with the portable functions against the same range. There is no stage
// behind this yet: what is tested is that the bounded evaluation can judge the activation.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "golden/recording.hpp"
#include "reference/arithmetic/bounded.hpp"
#include "reference/arithmetic/code_range.hpp"
#include "reference/arithmetic/minmax.hpp"
#include "reference/arithmetic/portable.hpp"
#include "reference/formats/canonical_nan.hpp"
#include "reference/formats/convert.hpp"

namespace monoref {
namespace {

struct Activation {
  float alpha;
  float limit;
  float beta;
};

constexpr float kLog2E = 1.44269504f;

/// The clamped gate and up value; clamping does not round.
struct Clamped {
  float gate;
  float up;
};
Clamped clamped(float gate, float up, const Activation& a) {
  return {nan_min(gate, a.limit), nan_clamp(up, -a.limit, a.limit)};
}

/// gate * sigmoid(alpha * gate) * (up + beta), whichever product comes first; exp2, the division
/// and a flush as on that GPU, and any contraction.
Bounded bound(const Clamped& in, const Activation& a) {
  const auto times = [](const Bounded& x, const Bounded& y) {
    return multiply(x, y, kCorrectRoundingOrFlush);
  };
  const Bounded gate = Bounded::exactly(in.gate);
  const Bounded exponent = times(times(gate, Bounded::exactly(a.alpha)), Bounded::exactly(-kLog2E));
  const Bounded power = exp2(exponent, kApproximateExp2);
  const Bounded one = Bounded::exactly(1);
  const Bounded sigmoid =
      divide(one, add(one, power, kCorrectRoundingOrFlush), kApproximateDivision);
  const Bounded factor =
      add(Bounded::exactly(in.up), Bounded::exactly(a.beta), kCorrectRoundingOrFlush);
  return either(times(times(gate, sigmoid), factor), times(gate, times(sigmoid, factor)));
}

/// mono-decode section 7: y = (g * rcp(1 + exp2(t * -log2e))) * (u + beta), t = alpha * g.
float portable(const Clamped& in, const Activation& a) {
  const float t = a.alpha * in.gate;
  return (in.gate * portable_rcp(1.0f + portable_exp2(t * -kLog2E))) * (in.up + a.beta);
}

/// One element: is it inside, is the neighbour outside, is it ours?
struct Tally {
  std::size_t elements = 0;
  std::size_t outside = 0;
  std::size_t ours_outside = 0;
  std::size_t equal = 0;

  void add(bool theirs_inside, bool ours_inside, bool same) {
    ++elements;
    outside += theirs_inside ? 0 : 1;
    ours_outside += ours_inside ? 0 : 1;
    equal += same ? 1 : 0;
  }
  void check(const char* name) const {
    EXPECT_GT(elements, 0u) << name;
    EXPECT_EQ(outside, 0u) << name << ", of " << elements;
    EXPECT_EQ(ours_outside, 0u) << name << ", of " << elements;
    ::testing::Test::RecordProperty(std::string(name) + "_bit_equal", std::to_string(equal));
    std::printf("%s: %zu inside, %zu bit-equal\n", name, elements, equal);
  }
};

/// Gate and up of one recorded element, widened.
float element(const Tensor& tensor, std::int64_t row, std::int64_t column) {
  if (tensor.type() == DType::kBFloat16)
    return float_from_bf16(tensor.view<std::uint16_t, 2>()(row, column));
  return tensor.view<float, 2>()(row, column);
}

void compare(const RecordedCase& item, Tally& bf16, Tally& f32) {
  const Activation a{static_cast<float>(item.real("alpha")), static_cast<float>(item.real("limit")),
                     static_cast<float>(item.real("beta"))};
  const Tensor& gate_up = item.input("gate_up");
  const Tensor& act = item.output("act");
  for (std::int64_t row = 0; row < act.dim(0); ++row)
    for (std::int64_t i = 0; i < act.dim(1); ++i) {
      const Clamped in =
          clamped(element(gate_up, row, i), element(gate_up, row, act.dim(1) + i), a);
      const Bounded range = bound(in, a);
      const float ours = portable(in, a);
      if (act.type() == DType::kFloat32) {
        const float theirs = act.view<float, 2>()(row, i);
        f32.add(range.admits(theirs), range.admits(ours), same_float(theirs, ours));
        continue;
      }
      const CodeRange codes = code_range(range, kBF16, Overflow::kInfinity);
      const std::uint16_t theirs = act.view<std::uint16_t, 2>()(row, i);
      const std::uint16_t rounded = bf16_from_float(ours);
      bf16.add(codes.admits(theirs), codes.admits(rounded), theirs == rounded);
    }
}

TEST(RecordedSwiglu, TritonKernelOfVllm) {
  const Recording recording = read_recording(std::string(MONOREF_RECORDED_DIR) + "/swiglu_oai.h5");
  Tally bf16;
  Tally f32;
  for (const RecordedCase& item : recording.cases) compare(item, bf16, f32);
  bf16.check("bfloat16");
  f32.check("float32");
}

TEST(RecordedSwiglu, WrongParametersFallOutside) {
  // One pair for each parameter (bug case G01): alpha and beta, the clamp of the gate, that of up.
  const Activation right{1.702f, 7.0f, 1.0f};
  const struct {
    float gate, up;
    Activation wrong;
  } cases[] = {{1, 1, {1.0f, 7.0f, 1.0f}},
               {1, 1, {1.702f, 7.0f, 0.0f}},
               {10, 3, {1.702f, 100.0f, 1.0f}},
               {2, -9, {1.702f, 100.0f, 1.0f}}};
  for (const auto& [gate, up, wrong] : cases) {
    const Bounded range = bound(clamped(gate, up, right), right);
    EXPECT_TRUE(range.admits(portable(clamped(gate, up, right), right)));
    EXPECT_FALSE(range.admits(portable(clamped(gate, up, wrong), wrong)));
  }
}

}  // namespace
}  // namespace monoref
