#include "fuzz/stages/indexer_content.hpp"

#include <algorithm>
#include <limits>

namespace monoref {
namespace {

/// Moves tokens between requests of a uniform batch: its sum stays a multiple of their number.
void unbalance(std::vector<std::int64_t>& lengths, std::int64_t longest, CounterRandom& random) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  for (std::int64_t move = 0; move < 2 * count; ++move) {
    auto& from = lengths[static_cast<std::size_t>(random.below(count))];
    auto& to = lengths[static_cast<std::size_t>(random.below(count))];
    if (&from == &to || from == 0 || to == longest) continue;
    --from;
    ++to;
  }
}

}  // namespace

Dimension query_mix_dimension() {
  return Dimension::choice("query_mix",
                           {"uniform", "ragged", "ragged_divisible", "first_empty", "middle_empty",
                            "last_empty", "all_empty"},
                           "query lengths of the requests");
}

std::vector<std::int64_t> make_query_lens(QueryMix mix, std::int64_t requests, std::int64_t longest,
                                          CounterRandom& random) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(requests), longest);
  if (lengths.empty()) return lengths;
  switch (mix) {
    case QueryMix::kUniform:
      break;
    case QueryMix::kRagged:
      for (auto& length : lengths) length = random.between(0, longest);
      break;
    case QueryMix::kRaggedDivisible:
      std::fill(lengths.begin(), lengths.end(), (longest + 1) / 2);
      unbalance(lengths, longest, random);
      break;
    case QueryMix::kFirstEmpty:
      lengths.front() = 0;
      break;
    case QueryMix::kMiddleEmpty:
      lengths[lengths.size() / 2] = 0;
      break;
    case QueryMix::kLastEmpty:
      lengths.back() = 0;
      break;
    case QueryMix::kAllEmpty:
      std::fill(lengths.begin(), lengths.end(), 0);
      break;
  }
  return lengths;
}

Dimension sequence_dimension() {
  return Dimension::choice(
      "sequences", {"ordinary", "multiple", "short", "empty", "limit", "past_limit", "largest"},
      "tokens of the sequences");
}

std::int64_t make_seq_len(Sequence kind, const SequenceRequest& request, CounterRandom& random) {
  switch (kind) {
    case Sequence::kMultiple: {
      const std::int64_t most = std::max<std::int64_t>(600 / request.unit, 2);
      return std::max<std::int64_t>(0,
                                    request.unit * random.between(0, most) + random.between(-1, 1));
    }
    case Sequence::kShort:
      return random.below(std::max<std::int64_t>(request.query, 1));
    case Sequence::kEmpty:
      return 0;
    case Sequence::kLimit:
      return request.limit;
    case Sequence::kPastLimit:
      return request.limit + random.between(1, request.query + 1);
    case Sequence::kLargest:
      return std::numeric_limits<std::int32_t>::max() - random.below(3);
    default:
      return request.query + random.between(0, 600);
  }
}

std::vector<Dimension> cache_sharing_dimensions() {
  return {{"compress_ratio", 1, 0, 4, {0, 1, 2, 4, 128}, {}, "tokens a key; 0 and 1: none"},
          {"world", 1, 1, 4, {1, 2, 3, 4, 8}, {}, "ranks that share the cache"},
          {"rank", 0, 0, 7, {}, {}, "this rank (modulo world)"},
          {"interleave", 1, 1, 4, {1, 2, 4, 16, 64}, {}, "consecutive keys on one rank"}};
}

std::int64_t sharing_unit(const Params& params) {
  return std::max<std::int64_t>(params["compress_ratio"], 1) * params["interleave"];
}

std::vector<NamedScalar> cache_sharing_scalars(const Params& params) {
  return {{"compress_ratio", params["compress_ratio"]},
          {"world", params["world"]},
          {"rank", params["rank"] % params["world"]},
          {"interleave", params["interleave"]}};
}

std::vector<ScalarSpec> context_parallel_specs() {
  return {ScalarSpec::integer("world", 1, limits::kCacheRanks),
          ScalarSpec::integer("rank", 0, limits::kCacheRanks - 1),
          ScalarSpec::integer("interleave", 1, limits::kInterleave)};
}

std::vector<ScalarSpec> cache_sharing_specs() {
  std::vector<ScalarSpec> specs = context_parallel_specs();
  specs.push_back(ScalarSpec::integer("compress_ratio", 0, limits::kCompressRatio));
  return specs;
}

ContextParallel context_parallel_of(const Case& item) {
  return {item.integer("world"), item.integer("rank"), item.integer("interleave")};
}

std::vector<std::int64_t> prefix_sums(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> sums{0};
  for (const std::int64_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

std::vector<std::int64_t> differences(const Tensor& sums) {
  const std::vector<std::int64_t> numbers = numbers_of(sums);
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 1; i < numbers.size(); ++i) lengths.push_back(numbers[i] - numbers[i - 1]);
  return lengths;
}

std::vector<std::int64_t> numbers_of(const Tensor& vector) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < vector.dim(0); ++i)
    numbers.push_back(vector.type() == DType::kInt64 ? vector.view<std::int64_t, 1>()(i)
                                                     : vector.view<std::int32_t, 1>()(i));
  return numbers;
}

Tensor vector_of(DType type, const std::vector<std::int64_t>& numbers) {
  return strided_vector(type, numbers, 1);
}

void set_scalar(Case& item, const std::string& name, Scalar value) {
  for (NamedScalar& scalar : item.scalars)
    if (scalar.name == name) {
      scalar.value = std::move(value);
      return;
    }
  refuse("{}: the case has no parameter '{}'", item.stage, name);
}

void set_input(Case& item, const std::string& name, Tensor tensor) {
  for (NamedTensor& input : item.inputs)
    if (input.name == name) {
      input.tensor = std::move(tensor);
      return;
    }
  refuse("{}: the case has no input '{}'", item.stage, name);
}

OutputSpec host_numbers(std::string name, std::int64_t count, std::string_view axis) {
  return {std::move(name), DType::kInt64, Layout::dense({count}), {axis}, "", true};
}

Tensor& writable(Outputs& outputs, std::string_view name) {
  for (NamedTensor& item : outputs)
    if (item.name == name) return item.tensor;
  refuse("the stage has no output '{}'", name);
}

void put_numbers(Outputs& outputs, std::string_view name,
                 const std::vector<std::int64_t>& numbers) {
  put_vector(outputs, name, numbers);
}

std::int64_t number(const Outputs& outputs, std::string_view name) {
  return output(outputs, name).view<std::int64_t, 1>()(0);
}

}  // namespace monoref
