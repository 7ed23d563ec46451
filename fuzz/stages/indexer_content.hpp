// What the generators of the sparse indexers' stages share: query lengths of a batch, sequence
// lengths around the edges that matter to compression and context parallelism, and small helpers on
// cases.
#pragma once

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/inputs.hpp"
#include "fuzz/stage.hpp"
#include "fuzz/stages/content.hpp"
#include "reference/stages/context_parallel_lengths.hpp"

namespace monoref {

/// Query lengths of the requests of a batch; the words of `query_mix_dimension`.
enum class QueryMix : std::uint8_t {
  kUniform,
  kRagged,
  kRaggedDivisible,  ///< ragged, and the sum divides by the number of requests (bug case T03)
  kFirstEmpty,
  kMiddleEmpty,
  kLastEmpty,
  kAllEmpty,
};
Dimension query_mix_dimension();
/// Lengths of 0 .. longest.
std::vector<std::int64_t> make_query_lens(QueryMix mix, std::int64_t requests, std::int64_t longest,
                                          CounterRandom& random);

/// Tokens of a sequence with its query; the words of `sequence_dimension`.
enum class Sequence : std::uint8_t {
  kOrdinary,  ///< the query and up to 600 tokens before it
  kMultiple,  ///< -1, 0 or +1 around a multiple of the unit, which is a group or a run of keys
  kShort,     ///< shorter than the query
  kEmpty,
  kLimit,      ///< exactly the model's limit
  kPastLimit,  ///< up to a query beyond it (bug case T09)
  kLargest,    ///< next to the end of int32
};
Dimension sequence_dimension();
struct SequenceRequest {
  std::int64_t query = 1;  ///< tokens
  std::int64_t unit = 1;   ///< of kMultiple
  std::int64_t limit = 0;  ///< tokens, the model's
};
std::int64_t make_seq_len(Sequence kind, const SequenceRequest& request, CounterRandom& random);

/// Dimensions compress_ratio, world, rank (taken modulo world) and interleave.
std::vector<Dimension> cache_sharing_dimensions();
/// The keys between two steps of a rank's share: ratio times interleave.
std::int64_t sharing_unit(const Params& params);
/// Scalars compress_ratio, world, rank and interleave.
std::vector<NamedScalar> cache_sharing_scalars(const Params& params);
ContextParallel context_parallel_of(const Case& item);
/// What those scalars may be; a stage that does not compress leaves the first one out.
std::vector<ScalarSpec> cache_sharing_specs();
std::vector<ScalarSpec> context_parallel_specs();

/// The first list with the second behind it.
template <class Listed>
std::vector<Listed> joined(std::vector<Listed> first, std::vector<Listed> second) {
  std::move(second.begin(), second.end(), std::back_inserter(first));
  return first;
}

/// Prefix sums from 0, and the differences of such.
std::vector<std::int64_t> prefix_sums(const std::vector<std::int64_t>& lengths);
std::vector<std::int64_t> differences(const Tensor& sums);

/// Elements of an integer vector.
std::vector<std::int64_t> numbers_of(const Tensor& vector);
/// A dense tensor of the numbers.
Tensor vector_of(DType type, const std::vector<std::int64_t>& numbers);

/// The case with one scalar or one input replaced, which it must have.
void set_scalar(Case& item, const std::string& name, Scalar value);
void set_input(Case& item, const std::string& name, Tensor tensor);

/// An int64 output of a few named numbers that host code computes.
OutputSpec host_numbers(std::string name, std::int64_t count, std::string_view axis);
/// Writes such an output.
void put_numbers(Outputs& outputs, std::string_view name, const std::vector<std::int64_t>& numbers);
std::int64_t number(const Outputs& outputs, std::string_view name);

/// An output to be written; refuses a name that the stage does not have.
Tensor& writable(Outputs& outputs, std::string_view name);
/// Copies a dense vector into an output of the same size.
template <class T>
void put_vector(Outputs& outputs, std::string_view name, const std::vector<T>& values) {
  writable(outputs, name).set_image(std::as_bytes(std::span(values)));
}

}  // namespace monoref
