#include "fuzz/micro_benchmarks.hpp"

#include <cstdint>
#include <memory>

#include "reference/arithmetic/bounded.hpp"
#include "reference/arithmetic/dot_profile.hpp"
#include "reference/arithmetic/portable.hpp"
#include "reference/formats/convert.hpp"
#include "reference/stages/fp8_attention_partition.hpp"
#include "reference/stages/index_score.hpp"
#include "reference/stages/index_select.hpp"

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

/// A tensor of E4M3 or BF16 codes around 1, of both signs.
Tensor codes_around_one(DType type, std::vector<std::int64_t> dims) {
  Tensor tensor(type, Layout::dense(std::move(dims)));
  std::size_t i = 0;
  for (const Extent& extent : tensor.layout().extents)
    for (std::byte& byte : tensor.bytes(extent)) {
      const std::size_t scattered = i++ * 37 % 255;
      // BF16 is stored low byte first: the high byte alone decides sign and exponent.
      const std::size_t code = type == DType::kBFloat16 && i % 2 == 0 ? 0x3F : scattered % 8 + 0x34;
      byte = static_cast<std::byte>(code | (scattered & 0x80));
    }
  return tensor;
}

Tensor counting(std::vector<std::int64_t> dims) {
  Tensor tensor(DType::kInt32, Layout::dense(std::move(dims)));
  auto* values = reinterpret_cast<std::int32_t*>(tensor.base());
  for (std::int64_t i = 0; i < tensor.layout().elements(); ++i)
    values[i] = static_cast<std::int32_t>(i);
  return tensor;
}

/// One row of the model's attention: 16 heads over 2,048 keys in dense caches.
void add_attention(std::vector<MicroBenchmark>& list) {
  struct Row {
    Tensor q = codes_around_one(DType::kBFloat16, {1, 16, 128});
    Tensor k = codes_around_one(DType::kFloat8E4M3FN, {16, 8, 1, 2048});
    Tensor v = codes_around_one(DType::kFloat8E4M3FN, {16, 8, 1, 2048});
    Tensor table = counting({1, 1, 128});
    Tensor context = Tensor::of<std::int32_t>(DType::kInt32, {1, 1}, {2048});
    Tensor o{DType::kBFloat16, Layout::dense({1, 8, 16, 128})};
    Tensor m{DType::kFloat32, Layout::dense({1, 8, 16})};
    Tensor l{DType::kFloat32, Layout::dense({1, 8, 16})};
  };
  const auto row = std::make_shared<Row>();
  list.push_back({"attention_row", "multiply-adds", 2 * 2048 * 16 * 128, 1e9, [row] {
                    Contract contract;
                    contract.kv_layout = KvLayout::kDense;
                    const Fp8AttentionPartitionInput input{row->q.view<std::uint16_t, 3>(),
                                                           row->table.view<std::int32_t, 3>(),
                                                           row->context.view<std::int32_t, 2>(),
                                                           {row->k, row->v},
                                                           0.08838834764831845,
                                                           contract};
                    fp8_attention_partition_fast(
                        input, {row->o.view<std::uint16_t, 4>(), row->m.view<float, 3>(),
                                row->l.view<float, 3>()});
                  }});
}

/// Scoring 1,024 blocks for 4 heads, and selecting among 8,192.
void add_indexer(std::vector<MicroBenchmark>& list) {
  struct Blocks {
    Tensor q = codes_around_one(DType::kBFloat16, {1, 4, 128});
    Tensor cache = codes_around_one(DType::kFloat8E4M3FN, {1024, 128, 128});
    Tensor table = counting({1, 8192});
    Tensor scored_len = Tensor::of<std::int32_t>(DType::kInt32, {1}, {1024 * 128});
    Tensor selected_len = Tensor::of<std::int32_t>(DType::kInt32, {1}, {8192 * 128});
    Tensor score{DType::kFloat32, Layout::dense({4, 1, 8192})};
    Tensor topk{DType::kInt32, Layout::dense({4, 1, 16})};
    Tensor pages{DType::kInt32, Layout::dense({4, 1, 128})};
    Tensor contexts{DType::kInt32, Layout::dense({4, 1})};
  };
  const auto data = std::make_shared<Blocks>();
  for (std::int64_t i = 0; i < 4 * 8192; ++i)
    reinterpret_cast<float*>(data->score.base())[i] = static_cast<float>(i * 7919 % 32749);
  const auto score = [data] {
    const IndexScoreInput input{data->q.view<std::uint16_t, 3>(), data->cache,
                                data->table.view<std::int32_t, 2>(),
                                data->scored_len.view<std::int32_t, 1>()};
    index_score_fast(input, {data->score.view<float, 3>()});
  };
  const auto select = [data] {
    const IndexSelectInput input{data->score.view<float, 3>(), data->table.view<std::int32_t, 2>(),
                                 data->selected_len.view<std::int32_t, 1>()};
    index_select(input, {data->topk.view<std::int32_t, 3>(), data->pages.view<std::int32_t, 3>(),
                         data->contexts.view<std::int32_t, 2>()});
  };
  list.push_back({"index_score", "block heads", 4 * 1024, 4 * 1024 / 0.05, score});
  list.push_back({"index_select", "block keys", 4 * 8192, 5e6, select});
}

}  // namespace

std::vector<MicroBenchmark> micro_benchmarks() {
  const auto data = std::make_shared<Data>();
  std::vector<MicroBenchmark> list;
  add_conversions(list, data);
  add_dots(list, data);
  list.push_back(
      {"portable_exp2", "values", kRow, 0, [data] { portable_exp2(data->values, data->results); }});
  add_attention(list);
  add_indexer(list);
  return list;
}

}  // namespace monoref
