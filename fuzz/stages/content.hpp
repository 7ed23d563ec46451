// Contents that several generators share: block ids, sequence lengths, slots, strided tensors.
#pragma once

#include <vector>

#include "fuzz/params.hpp"
#include "fuzz/random.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

/// How the ids of a block table look; the words of `table_ids_dimension`.
enum class TableIds : std::uint8_t { kShuffled, kDecreasing, kAround2To16, kLarge };
Dimension table_ids_dimension();

/// `count` block ids. Shuffled and decreasing ones are distinct; "around_2_16" holds pairs that
/// differ only above bit 15, "large" ids just below `limit` (exclusive), which the stage sets so
/// that its page arithmetic still fits.
std::vector<std::int32_t> make_block_ids(TableIds kind, std::int64_t count, std::int64_t limit,
                                         CounterRandom& random);

/// Which fault a generator plants in the input; every one must be refused. "none" comes before
/// `defects` and is repeated `sound` times among the edge values, where every defect stands once:
/// most cases are valid.
Dimension defect_dimension(std::size_t sound, std::vector<std::string_view> defects);

/// How the sequence lengths of a batch look; the words of `lengths_dimension`.
enum class Lengths : std::uint8_t {
  kOrdinary,    ///< 1 .. the table's capacity
  kBoundary,    ///< -1, 0 or +1 around multiples of 16, 64 and 128
  kFirstEmpty,  ///< an ordinary batch whose first request has no tokens
  kMiddleEmpty,
  kLastEmpty,
  kAllEmpty,
  kShort,  ///< shorter than q_len: the earliest rows lie before the request's start
  kFull,   ///< exactly the capacity
};
Dimension lengths_dimension();
std::vector<std::int32_t> make_lengths(Lengths kind, std::int64_t requests, std::int64_t capacity,
                                       std::int64_t q_len, CounterRandom& random);

/// A tensor [rows, width] with `gap` more elements between rows, filled row by row. The gaps hold
/// poison; nothing lies behind the last element of the last row.
Tensor padded_rows(DType type, std::int64_t rows, std::int64_t width, std::int64_t gap,
                   const std::vector<std::int32_t>& values);

/// A tensor [count] of every `step`-th element; the ones between hold poison.
Tensor strided_vector(DType type, const std::vector<std::int64_t>& values, std::int64_t step);

/// Rows `rows` of a tensor as a dense tensor of the same type (axis 0).
Tensor take_rows(const Tensor& tensor, const std::vector<std::int64_t>& rows);

/// Row `row` of axis 0 holds the same elements in both.
bool same_row(const Tensor& a, std::int64_t row_a, const Tensor& b, std::int64_t row_b);

}  // namespace monoref
