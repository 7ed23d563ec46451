#include "reference/micro_benchmarks.hpp"

#include <cstdint>
#include <memory>

#include "reference/arithmetic/bounded.hpp"
#include "reference/arithmetic/dot_profile.hpp"
#include "reference/arithmetic/portable.hpp"
#include "reference/formats/convert.hpp"

namespace monoref {
namespace {

constexpr std::size_t kRow = 6144;

/// One row in every form, shared by the benchmarks that use it.
struct Data {
  std::vector<float> values = std::vector<float>(kRow);
  std::vector<float> results = std::vector<float>(kRow);
  std::vector<std::uint8_t> fp8 = std::vector<std::uint8_t>(kRow);
  std::vector<std::uint16_t> bf16 = std::vector<std::uint16_t>(kRow);
  float sum = 0;

  Data() {
    // Multiples of 1/16 in (-8, 8) in a scattered order: normal numbers, subnormals and zeros of
    // FP8.
    for (std::size_t i = 0; i < kRow; ++i)
      values[i] = static_cast<float>(static_cast<int>(i * 37 % 255) - 127) / 16;
    encode_fp8(kE4M3FN, values, fp8, Overflow::kNan);
    encode_bf16(values, bf16);
  }
};

void add_conversions(std::vector<MicroBenchmark>& list, const std::shared_ptr<Data>& data) {
  list.push_back({"e4m3fn_encode", "values", kRow, 5e8,
                  [data] { encode_fp8(kE4M3FN, data->values, data->fp8, Overflow::kNan); }});
  list.push_back({"e4m3fn_decode", "values", kRow, 1e9,
                  [data] { decode_fp8(kE4M3FN, data->fp8, data->results); }});
  list.push_back(
      {"bf16_encode", "values", kRow, 0, [data] { encode_bf16(data->values, data->bf16); }});
  list.push_back(
      {"bf16_decode", "values", kRow, 0, [data] { decode_bf16(data->bf16, data->results); }});
}

void add_dots(std::vector<MicroBenchmark>& list, const std::shared_ptr<Data>& data) {
  constexpr double kDotGoal = 2e7;
  for (const DotProfile* profile : dot_profiles()) {
    const std::string name(profile->name);
    list.push_back({name + "_bf16_dot", "multiply-adds", kRow, kDotGoal, [data, profile] {
                      data->sum = dot_bf16(*profile, data->bf16, data->bf16, 0.0f);
                    }});
    list.push_back({name + "_e4m3_dot", "multiply-adds", kRow, kDotGoal, [data, profile] {
                      data->sum = dot_e4m3(*profile, data->fp8, data->fp8, 0.0f);
                    }});
  }
  list.push_back({"bounded_dot", "multiply-adds", kRow, 0, [data] {
                    const Bounded bound = dot(data->values, data->values, 0.0f, kCorrectRounding);
                    data->sum = static_cast<float>(bound.middle());
                  }});
}

}  // namespace

std::vector<MicroBenchmark> micro_benchmarks() {
  const auto data = std::make_shared<Data>();
  std::vector<MicroBenchmark> list;
  add_conversions(list, data);
  add_dots(list, data);
  list.push_back(
      {"portable_exp2", "values", kRow, 0, [data] { portable_exp2(data->values, data->results); }});
  return list;
}

}  // namespace monoref
