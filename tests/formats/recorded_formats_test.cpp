// The formats against recordings of PyTorch, vLLM and AITER.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "reference/formats/convert.hpp"
#include "reference/formats/mx_block.hpp"
#include "tests/formats/nearest.hpp"
#include "tests/formats/recorded_tensors.hpp"

namespace monoref {
namespace {

using test::elements;
using test::recorded;

/// A recorded code with any NaN replaced by the canonical one.
std::uint32_t canonical_code(const FloatFormat& format, std::uint32_t code) {
  return classify(format, code) == FloatClass::kNan ? format.canonical_nan() : code;
}

template <class Code>
void expect_encoded(const FloatFormat& format, const std::vector<float>& values,
                    const std::vector<Code>& codes) {
  ASSERT_EQ(values.size(), codes.size());
  std::size_t different = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    different += encode(format, values[i], Overflow::kInfinity) != canonical_code(format, codes[i]);
  EXPECT_EQ(different, 0u) << format.name;
}

// The overflow rule of PyTorch, on the GPU and on the CPU alike, is kInfinity: E5M2 and BF16 go to
// Inf, the formats without Inf to NaN, from the first value that does not round to the largest
// number; an infinite input likewise. Neither saturates. The two differ in NaN payloads alone.
TEST(Recorded, PyTorchCastsOnTheGpuAndTheCpu) {
  const Recording recording = recorded("formats");
  const RecordedCase& every_bf16 = recording.cases.at(0);
  const auto codes = elements<std::uint16_t>(every_bf16.input("bf16"));
  std::vector<float> values(codes.size());
  decode_bf16(codes, values);
  for (const FloatFormat* format : test::kAllFp8)
    expect_encoded(
        *format, values,
        elements<std::uint8_t>(every_bf16.output("bf16_to_" + std::string(format->name))));
  const RecordedCase& floats = recording.cases.at(1);
  const auto inputs = elements<float>(floats.input("f32"));
  for (const std::string suffix : {"", "_cpu"}) {
    expect_encoded(kBF16, inputs,
                   elements<std::uint16_t>(floats.output("f32_to_bfloat16" + suffix)));
    for (const FloatFormat* format : test::kAllFp8)
      expect_encoded(
          *format, inputs,
          elements<std::uint8_t>(floats.output("f32_to_" + std::string(format->name) + suffix)));
  }
}

TEST(Recorded, PyTorchDecodesEveryCode) {
  const Recording recording = recorded("formats");
  const RecordedCase& decoded = recording.cases.at(2);
  for (const FloatFormat* format : test::kAllFp8) {
    const auto values = elements<float>(decoded.output(std::string(format->name) + "_to_f32"));
    ASSERT_EQ(values.size(), 256u);
    for (std::uint32_t code = 0; code < 256; ++code)
      EXPECT_TRUE(same_float(decode(*format, code), values[code])) << format->name << " " << code;
  }
  const auto scales = elements<float>(decoded.output("float8_e8m0fnu_to_f32"));
  ASSERT_EQ(scales.size(), 256u);
  for (std::size_t code = 0; code < 256; ++code)
    EXPECT_TRUE(same_float(decode_e8m0(static_cast<std::uint8_t>(code), E8M0Zero::kSmallest),
                           scales[code]));
}

TEST(Recorded, AiterScaleModes) {
  const Recording recording = recorded("e8m0_and_fp4");
  const RecordedCase& scales = recording.cases.at(0);
  const auto amax = elements<float>(scales.input("amax"));
  const std::pair<std::string, MxScaleRule> modes[] = {{"round_down", MxScaleRule::kRoundDown},
                                                       {"even", MxScaleRule::kEven},
                                                       {"ceil", MxScaleRule::kCeil},
                                                       {"round_up", MxScaleRule::kRoundUp}};
  const std::pair<std::string, MxElement> kinds[] = {{"fp8", MxElement::kFp8},
                                                     {"fp4", MxElement::kFp4}};
  for (const auto& [mode, rule] : modes)
    for (const auto& [kind, element] : kinds) {
      const auto bytes = elements<std::uint8_t>(scales.output("e8m0_" + kind + "_" + mode));
      ASSERT_EQ(bytes.size(), amax.size());
      for (std::size_t i = 0; i < amax.size(); ++i)
        EXPECT_EQ(mx_scale(rule, element, amax[i]), bytes[i])
            << kind << " " << mode << std::hexfloat << " " << amax[i];
    }
}

TEST(Recorded, AiterPackedFp4) {
  const Recording recording = recorded("e8m0_and_fp4");
  const RecordedCase& packed = recording.cases.at(1);
  const auto values = elements<float>(packed.input("f32"));
  const auto bytes = elements<std::uint8_t>(packed.output("fp4_packed"));
  ASSERT_EQ(values.size(), 2 * bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i)
    EXPECT_EQ(pack_fp4(encode(kE2M1, values[2 * i], Overflow::kSaturate),
                       encode(kE2M1, values[2 * i + 1], Overflow::kSaturate)),
              bytes[i])
        << values[2 * i] << " " << values[2 * i + 1];
  const auto codes = elements<std::uint8_t>(packed.input("code"));
  const auto decoded = elements<float>(packed.output("decoded"));
  const auto scales = elements<float>(packed.output("e8m0_decoded"));
  ASSERT_EQ(decoded.size(), 2 * codes.size());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    EXPECT_TRUE(same_float(decode(kE2M1, even_fp4(codes[i])), decoded[2 * i]));
    EXPECT_TRUE(same_float(decode(kE2M1, odd_fp4(codes[i])), decoded[2 * i + 1]));
    EXPECT_TRUE(same_float(decode_e8m0(codes[i], E8M0Zero::kSmallest), scales[i]));
  }
}

void expect_quantised(MxScaleRule rule, const std::vector<float>& values, const Tensor& codes,
                      const Tensor& scales) {
  std::vector<std::uint8_t> our_codes(values.size()), our_scales(values.size() / kMxBlock);
  mx_quantize(MxElement::kFp8, rule, Overflow::kNan, values, our_codes, our_scales);
  EXPECT_EQ(our_codes, elements<std::uint8_t>(codes));
  EXPECT_EQ(our_scales, elements<std::uint8_t>(scales));
}

TEST(Recorded, VllmMxfp8Quantisers) {
  const Recording recording = recorded("mxfp8_quantize");
  ASSERT_EQ(recording.cases.size(), 24u);
  for (const RecordedCase& each : recording.cases) {
    const auto bf16 = elements<std::uint16_t>(each.input("x"));
    std::vector<float> values(bf16.size());
    decode_bf16(bf16, values);
    expect_quantised(MxScaleRule::kD, values, each.output("q_torch"), each.output("scale_torch"));
    expect_quantised(MxScaleRule::kE, values, each.output("q_triton"), each.output("scale_triton"));
    std::vector<float> back(values.size());
    mx_dequantize(MxElement::kFp8, E8M0Zero::kSmallest, Subnormals::kKeep,
                  elements<std::uint8_t>(each.output("q_torch")),
                  elements<std::uint8_t>(each.output("scale_torch")), back);
    std::vector<std::uint16_t> rounded(back.size());
    encode_bf16(back, rounded);
    EXPECT_EQ(rounded, elements<std::uint16_t>(each.output("dequant"))) << each.title;
  }
}

}  // namespace
}  // namespace monoref
