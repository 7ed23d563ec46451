// Recordings of conversions, block quantisers, layouts, matrix units and functions: no freedom is
// granted but a NaN's payload and, for the approximate instructions, their stated error.
#include <bit>
#include <cmath>
#include <cstring>

#include "fuzz/judges/judge.hpp"
#include "reference/arithmetic/dot_profile.hpp"
#include "reference/arithmetic/portable.hpp"
#include "reference/formats/convert.hpp"
#include "reference/formats/e8m0.hpp"
#include "reference/formats/mx_block.hpp"
#include "reference/weight_layouts.hpp"

namespace monoref {
namespace {

constexpr const FloatFormat* kFp8Formats[] = {&kE4M3FN, &kE4M3FNUZ, &kE5M2, &kE5M2FNUZ};

template <class T>
std::vector<T> elements(const Tensor& tensor) {
  if (tensor.element_size() != sizeof(T))
    refuse("elements of {} bytes read from a tensor of {}", sizeof(T), dtype_name(tensor.type()));
  const auto image = tensor.image();
  std::vector<T> values(image.size() / sizeof(T));
  std::memcpy(values.data(), image.data(), image.size());
  return values;
}

std::uint32_t canonical_code(const FloatFormat& format, std::uint32_t code) {
  return classify(format, code) == FloatClass::kNan ? format.canonical_nan() : code;
}

/// One recorded vector against ours, element by element; NaN payloads aside.
template <class T>
void judge_vector(const RecordedCase& recorded, const std::string& name, const std::vector<T>& ours,
                  RunResult& result, const FloatFormat* format = nullptr) {
  const auto got = elements<T>(recorded.output(name));
  if (got.size() != ours.size())
    refuse("{} holds {} elements, its inputs make {}", name, got.size(), ours.size());
  OutputJudge output(name, result);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const OutputJudge::Index index{{"element", static_cast<std::int64_t>(i)}};
    if constexpr (std::is_same_v<T, float>)
      output.bits(index, std::bit_cast<std::uint32_t>(canonical(ours[i])),
                  std::bit_cast<std::uint32_t>(canonical(got[i])));
    else
      output.bits(index, ours[i], format == nullptr ? got[i] : canonical_code(*format, got[i]));
  }
}

template <class Code>
void judge_cast(const RecordedCase& recorded, const std::string& name, const FloatFormat& format,
                const std::vector<float>& values, RunResult& result) {
  std::vector<Code> ours;
  for (const float value : values)
    ours.push_back(static_cast<Code>(encode(format, value, Overflow::kInfinity)));
  judge_vector(recorded, name, ours, result, &format);
}

/// Every code of every format, decoded.
void judge_decoded(const RecordedCase& recorded, RunResult& result) {
  for (const FloatFormat* format : kFp8Formats) {
    std::vector<float> ours;
    for (std::uint32_t code = 0; code < 256; ++code) ours.push_back(decode(*format, code));
    judge_vector(recorded, std::string(format->name) + "_to_f32", ours, result);
  }
  std::vector<float> scales;
  for (int code = 0; code < 256; ++code)
    scales.push_back(decode_e8m0(static_cast<std::uint8_t>(code), E8M0Zero::kSmallest));
  judge_vector(recorded, "float8_e8m0fnu_to_f32", scales, result);
}

void judge_scale_modes(const RecordedCase& recorded, RunResult& result) {
  constexpr std::pair<std::string_view, MxScaleRule> kModes[] = {
      {"round_down", MxScaleRule::kRoundDown},
      {"even", MxScaleRule::kEven},
      {"ceil", MxScaleRule::kCeil},
      {"round_up", MxScaleRule::kRoundUp}};
  constexpr std::pair<std::string_view, MxElement> kKinds[] = {{"fp8", MxElement::kFp8},
                                                               {"fp4", MxElement::kFp4}};
  const auto amax = elements<float>(recorded.input("amax"));
  for (const auto& [mode, rule] : kModes)
    for (const auto& [kind, element] : kKinds) {
      std::vector<std::uint8_t> ours;
      for (const float value : amax) ours.push_back(mx_scale(rule, element, value));
      judge_vector(recorded, fmt::format("e8m0_{}_{}", kind, mode), ours, result);
    }
}

void judge_packed_fp4(const RecordedCase& recorded, RunResult& result) {
  const auto values = elements<float>(recorded.input("f32"));
  const auto codes = elements<std::uint8_t>(recorded.input("code"));
  std::vector<std::uint8_t> packed;
  for (std::size_t i = 0; i + 1 < values.size(); i += 2)
    packed.push_back(pack_fp4(encode(kE2M1, values[i], Overflow::kSaturate),
                              encode(kE2M1, values[i + 1], Overflow::kSaturate)));
  std::vector<float> decoded;
  std::vector<float> scales;
  for (const std::uint8_t code : codes) {
    decoded.push_back(decode(kE2M1, even_fp4(code)));
    decoded.push_back(decode(kE2M1, odd_fp4(code)));
    scales.push_back(decode_e8m0(code, E8M0Zero::kSmallest));
  }
  judge_vector(recorded, "fp4_packed", packed, result);
  judge_vector(recorded, "decoded", decoded, result);
  judge_vector(recorded, "e8m0_decoded", scales, result);
}

template <class Code, class Dot>
void judge_dots(const RecordedCase& recorded, Dot dot, RunResult& result) {
  constexpr std::size_t kColumns = 8;
  const Tensor& a_tensor = recorded.input("a");
  const auto a = elements<Code>(a_tensor);
  const auto b = elements<Code>(recorded.input("b"));
  const auto c = elements<float>(recorded.input("c"));
  const auto rows = static_cast<std::size_t>(a_tensor.dim(1));
  const auto k = static_cast<std::size_t>(a_tensor.dim(2));
  std::vector<float> ours;
  for (std::size_t i = 0; i < c.size(); ++i) {
    const std::size_t tile = i / (rows * kColumns);
    const std::span<const Code> x(&a[(tile * rows + i / kColumns % rows) * k], k);
    const std::span<const Code> y(&b[(tile * kColumns + i % kColumns) * k], k);
    ours.push_back(dot(x, y, c[i]));
  }
  judge_vector(recorded, "d", ours, result);
}

void judge_hopper(const RecordedCase& recorded, const DotProfile& profile, RunResult& result) {
  if (recorded.word("format") == "bf16")
    judge_dots<std::uint16_t>(
        recorded, [&](auto a, auto b, float c) { return dot_bf16(profile, a, b, c); }, result);
  else
    judge_dots<std::uint8_t>(
        recorded, [&](auto a, auto b, float c) { return dot_e4m3(profile, a, b, c); }, result);
}

ByteMatrix shape_of(const Tensor& tensor) {
  if (tensor.rank() == 2) return {1, tensor.dim(0), tensor.dim(1)};
  return {tensor.dim(0), tensor.dim(1), tensor.dim(2)};
}

void judge_approximate(const RecordedCase& recorded, const std::string& name,
                       const std::vector<float>& x, float (*ours)(float),
                       Bounded (*function)(const Bounded&, const Rounding&),
                       const Rounding& rounding, RunResult& result) {
  const auto got = elements<float>(recorded.output(name));
  OutputJudge output(name, result);
  for (std::size_t i = 0; i < got.size(); ++i)
    output.number({{"element", static_cast<std::int64_t>(i)}}, ours(x[i]),
                  function(Bounded::exactly(x[i]), rounding), got[i]);
}

}  // namespace

/// The overflow rule of PyTorch, on the GPU and on the CPU alike, is kInfinity: Inf where the
/// format has it, NaN elsewhere.
void judge_formats(const RecordedCase& recorded, RunResult& result) {
  if (const Tensor* codes = recorded.find_input("bf16")) {
    const auto bf16 = elements<std::uint16_t>(*codes);
    std::vector<float> values(bf16.size());
    decode_bf16(bf16, values);
    for (const FloatFormat* format : kFp8Formats)
      judge_cast<std::uint8_t>(recorded, "bf16_to_" + std::string(format->name), *format, values,
                               result);
  } else if (const Tensor* floats = recorded.find_input("f32")) {
    const auto values = elements<float>(*floats);
    for (const std::string suffix : {"", "_cpu"}) {
      judge_cast<std::uint16_t>(recorded, "f32_to_bfloat16" + suffix, kBF16, values, result);
      for (const FloatFormat* format : kFp8Formats)
        judge_cast<std::uint8_t>(recorded, "f32_to_" + std::string(format->name) + suffix, *format,
                                 values, result);
    }
  } else {
    judge_decoded(recorded, result);
  }
}

void judge_e8m0_and_fp4(const RecordedCase& recorded, RunResult& result) {
  if (recorded.find_input("amax") != nullptr)
    judge_scale_modes(recorded, result);
  else
    judge_packed_fp4(recorded, result);
}

void judge_mxfp8_quantize(const RecordedCase& recorded, RunResult& result) {
  const auto bf16 = elements<std::uint16_t>(recorded.input("x"));
  std::vector<float> values(bf16.size());
  decode_bf16(bf16, values);
  constexpr std::pair<std::string_view, MxScaleRule> kQuantisers[] = {{"torch", MxScaleRule::kD},
                                                                      {"triton", MxScaleRule::kE}};
  for (const auto& [who, rule] : kQuantisers) {
    std::vector<std::uint8_t> codes(values.size()), scales(values.size() / kMxBlock);
    mx_quantize(MxElement::kFp8, rule, Overflow::kNan, values, codes, scales);
    judge_vector(recorded, fmt::format("q_{}", who), codes, result);
    judge_vector(recorded, fmt::format("scale_{}", who), scales, result);
  }
  std::vector<float> back(values.size());
  mx_dequantize(MxElement::kFp8, E8M0Zero::kSmallest, Subnormals::kKeep,
                elements<std::uint8_t>(recorded.output("q_torch")),
                elements<std::uint8_t>(recorded.output("scale_torch")), back);
  std::vector<std::uint16_t> rounded(back.size());
  encode_bf16(back, rounded);
  judge_vector(recorded, "dequant", rounded, result, &kBF16);
}

void judge_hopper_mma(const RecordedCase& recorded, RunResult& result) {
  judge_hopper(recorded, dot_profile("hopper-mma"), result);
}

void judge_hopper_wgmma(const RecordedCase& recorded, RunResult& result) {
  judge_hopper(recorded, dot_profile("hopper-wgmma"), result);
}

void judge_weight_layouts(const RecordedCase& recorded, RunResult& result) {
  const auto bytes = [&](const char* name) { return elements<std::uint8_t>(recorded.input(name)); };
  const auto shape = [&](const char* name) { return shape_of(recorded.input(name)); };
  judge_vector(recorded, "weight_shuffled", shuffle_weight(bytes("weight"), shape("weight")),
               result);
  judge_vector(recorded, "weight_shuffled_gate_up_interleaved",
               shuffle_weight_gate_up(bytes("weight_gate_up"), shape("weight_gate_up")), result);
  judge_vector(recorded, "scale_shuffled", shuffle_scale(bytes("scale"), shape("scale")), result);
}

void judge_gpu_functions(const RecordedCase& recorded, RunResult& result) {
  const auto x = elements<float>(recorded.input("x"));
  std::vector<float> rcp;
  std::vector<float> root;
  for (const float value : x) {
    rcp.push_back(portable_rcp(value));
    root.push_back(std::sqrt(value));
  }
  judge_vector(recorded, "rcp_rn", rcp, result);
  judge_vector(recorded, "sqrt_rn", root, result);
  judge_approximate(
      recorded, "ex2_approx", x, [](float v) { return portable_exp2(v); }, exp2, kApproximateExp2,
      result);
  judge_approximate(recorded, "rcp_approx", x, portable_rcp, reciprocal, kApproximateRcp, result);
  judge_approximate(recorded, "rsqrt_approx", x, portable_rsq, reciprocal_square_root,
                    kApproximateRsq, result);
}

}  // namespace monoref
