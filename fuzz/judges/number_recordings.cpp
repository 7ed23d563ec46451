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
#include "reference/rules/weight_layouts.hpp"

namespace monoref {
namespace {

constexpr const FloatFormat* kFp8Formats[] = {&kE4M3FN, &kE4M3FNUZ, &kE5M2, &kE5M2FNUZ};

/// The elements of a tensor whose type and dims have been asked for.
template <class T>
std::vector<T> elements(const Tensor& tensor) {
  const auto image = tensor.image();
  std::vector<T> values(image.size() / sizeof(T));
  std::memcpy(values.data(), image.data(), image.size());
  return values;
}

std::uint32_t canonical_code(const FloatFormat& format, std::uint32_t code) {
  return classify(format, code) == FloatClass::kNan ? format.canonical_nan() : code;
}

template <class T>
std::vector<T> input_elements(const RecordedCase& recorded, const char* name, DType type) {
  return elements<T>(recorded.input(name, {{type}, {kAnyExtent}}));
}

/// The elements of an output of as many as `count`, whatever its dims.
template <class T>
std::vector<T> output_elements(const RecordedCase& recorded, const std::string& name,
                               std::size_t count) {
  const Tensor& tensor = recorded.output(name);
  if (tensor.element_size() != sizeof(T))
    refuse("{} is of {}, must be of {} bytes", recorded.place("output " + name),
           dtype_name(tensor.type()), sizeof(T));
  if (tensor.layout().elements() != static_cast<std::int64_t>(count))
    refuse("{} has {} elements, must have {}", recorded.place("output " + name),
           tensor.layout().elements(), count);
  return elements<T>(tensor);
}

/// One recorded vector against ours, element by element; NaN payloads aside.
template <class T>
void judge_vector(const RecordedCase& recorded, const std::string& name, const std::vector<T>& ours,
                  RunResult& result, const FloatFormat* format = nullptr) {
  const auto got = output_elements<T>(recorded, name, ours.size());
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
  const auto amax = input_elements<float>(recorded, "amax", DType::kFloat32);
  for (const auto& [mode, rule] : kModes)
    for (const auto& [kind, element] : kKinds) {
      std::vector<std::uint8_t> ours;
      for (const float value : amax) ours.push_back(mx_scale(rule, element, value));
      judge_vector(recorded, fmt::format("e8m0_{}_{}", kind, mode), ours, result);
    }
}

void judge_packed_fp4(const RecordedCase& recorded, RunResult& result) {
  const auto values = input_elements<float>(recorded, "f32", DType::kFloat32);
  const auto codes = input_elements<std::uint8_t>(recorded, "code", DType::kUInt8);
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
void judge_dots(const RecordedCase& recorded, DType type, Dot dot, RunResult& result) {
  constexpr std::size_t kColumns = 8;
  const Tensor& a_tensor = recorded.input("a", {{type}, {kAnyExtent, kAnyExtent, kAnyExtent}});
  const auto a = elements<Code>(a_tensor);
  const auto b =
      elements<Code>(recorded.input("b", {{type}, {a_tensor.dim(0), kColumns, a_tensor.dim(2)}}));
  const auto c = elements<float>(
      recorded.input("c", {{DType::kFloat32}, {a_tensor.dim(0), a_tensor.dim(1), kColumns}}));
  const auto rows = static_cast<std::size_t>(a_tensor.dim(1));
  const auto k = static_cast<std::size_t>(a_tensor.dim(2));
  std::vector<float> ours;
  for (std::size_t i = 0; i < c.size(); ++i) {
    const std::size_t tile = i / (rows * kColumns);
    const std::span<const Code> x(a.data() + (tile * rows + i / kColumns % rows) * k, k);
    const std::span<const Code> y(b.data() + (tile * kColumns + i % kColumns) * k, k);
    ours.push_back(dot(x, y, c[i]));
  }
  judge_vector(recorded, "d", ours, result);
}

void judge_hopper(const RecordedCase& recorded, const DotProfile& profile, RunResult& result) {
  const std::string& format = recorded.word("format");
  if (format == "bf16")
    judge_dots<std::uint16_t>(
        recorded, DType::kBFloat16,
        [&](auto a, auto b, float c) { return dot_bf16(profile, a, b, c); }, result);
  else if (format == "e4m3")
    judge_dots<std::uint8_t>(
        recorded, DType::kFloat8E4M3FN,
        [&](auto a, auto b, float c) { return dot_e4m3(profile, a, b, c); }, result);
  else
    refuse("{} is {}, must be bf16 or e4m3", recorded.place("parameter format"), format);
}

/// A recorded matrix of bytes; the weights' have experts as their first dimension.
struct RecordedBytes {
  std::vector<std::uint8_t> bytes;
  ByteMatrix shape;
};

RecordedBytes weight_bytes(const RecordedCase& recorded, const char* name) {
  const Tensor& tensor =
      recorded.input(name, {{DType::kUInt8}, {kAnyExtent, kAnyExtent, kAnyExtent}});
  return {elements<std::uint8_t>(tensor), {tensor.dim(0), tensor.dim(1), tensor.dim(2)}};
}

RecordedBytes scale_bytes(const RecordedCase& recorded, const char* name) {
  const Tensor& tensor = recorded.input(name, {{DType::kUInt8}, {kAnyExtent, kAnyExtent}});
  return {elements<std::uint8_t>(tensor), {1, tensor.dim(0), tensor.dim(1)}};
}

void judge_approximate(const RecordedCase& recorded, const std::string& name,
                       const std::vector<float>& x, float (*ours)(float),
                       Bounded (*function)(const Bounded&, const Rounding&),
                       const Rounding& rounding, RunResult& result) {
  const auto got = output_elements<float>(recorded, name, x.size());
  OutputJudge output(name, result);
  for (std::size_t i = 0; i < got.size(); ++i)
    output.number({{"element", static_cast<std::int64_t>(i)}}, ours(x[i]),
                  function(Bounded::exactly(x[i]), rounding), got[i]);
}

}  // namespace

/// The overflow rule of PyTorch, on the GPU and on the CPU alike, is kInfinity: Inf where the
/// format has it, NaN elsewhere.
void judge_formats(const RecordedCase& recorded, RunResult& result) {
  if (recorded.find_input("bf16") != nullptr) {
    const auto bf16 = input_elements<std::uint16_t>(recorded, "bf16", DType::kBFloat16);
    std::vector<float> values(bf16.size());
    decode_bf16(bf16, values);
    for (const FloatFormat* format : kFp8Formats)
      judge_cast<std::uint8_t>(recorded, "bf16_to_" + std::string(format->name), *format, values,
                               result);
  } else if (recorded.find_input("f32") != nullptr) {
    const auto values = input_elements<float>(recorded, "f32", DType::kFloat32);
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
  const Tensor& x = recorded.input("x", {{DType::kBFloat16}, {kAnyExtent, kAnyExtent}});
  if (x.dim(1) % static_cast<std::int64_t>(kMxBlock) != 0)
    refuse("{} has {} columns, must have a multiple of {}", recorded.place("input x"), x.dim(1),
           kMxBlock);
  const auto bf16 = elements<std::uint16_t>(x);
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
                output_elements<std::uint8_t>(recorded, "q_torch", values.size()),
                output_elements<std::uint8_t>(recorded, "scale_torch", values.size() / kMxBlock),
                back);
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
  const RecordedBytes weight = weight_bytes(recorded, "weight");
  const RecordedBytes gate_up = weight_bytes(recorded, "weight_gate_up");
  const RecordedBytes scale = scale_bytes(recorded, "scale");
  judge_vector(recorded, "weight_shuffled", shuffle_weight(weight.bytes, weight.shape), result);
  judge_vector(recorded, "weight_shuffled_gate_up_interleaved",
               shuffle_weight_gate_up(gate_up.bytes, gate_up.shape), result);
  judge_vector(recorded, "scale_shuffled", shuffle_scale(scale.bytes, scale.shape), result);
}

void judge_gpu_functions(const RecordedCase& recorded, RunResult& result) {
  const auto x = input_elements<float>(recorded, "x", DType::kFloat32);
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
