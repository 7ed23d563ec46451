// Small batches for the indexer's tests, owned and easy to read in a test.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "reference/core/error.hpp"
#include "reference/core/tensor.hpp"
#include "reference/stages/indexer_metadata_build.hpp"

namespace monoref {

using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

template <class T>
View<const T, 1> view(const std::vector<T>& values) {
  return {values.data(), {static_cast<std::int64_t>(values.size())}, {1}};
}

template <class T>
View<T, 1> view(std::vector<T>& values) {
  return {values.data(), {static_cast<std::int64_t>(values.size())}, {1}};
}

template <class T>
std::vector<std::remove_const_t<T>> values_of(View<T, 1> from) {
  std::vector<std::remove_const_t<T>> values;
  for (std::int64_t at = 0; at < from.dim(0); ++at) values.push_back(from(at));
  return values;
}

template <class T>
std::vector<std::remove_const_t<T>> row_of(View<T, 2> from, std::int64_t row) {
  std::vector<std::remove_const_t<T>> values;
  for (std::int64_t at = 0; at < from.dim(1); ++at) values.push_back(from(row, at));
  return values;
}

/// All elements, rows in order.
template <class T>
std::vector<std::remove_const_t<T>> values_of(View<T, 2> from) {
  std::vector<std::remove_const_t<T>> values;
  for (std::int64_t row = 0; row < from.dim(0); ++row)
    for (std::int64_t at = 0; at < from.dim(1); ++at) values.push_back(from(row, at));
  return values;
}

/// The same numbers `stride` apart, with poison between them.
inline Ints spread(const Ints& values, std::size_t stride) {
  Ints wide(values.size() * stride, -777);
  for (std::size_t at = 0; at < values.size(); ++at) wide[at * stride] = values[at];
  return wide;
}

/// Prefix sums of query lengths, from 0.
inline Ints prefix_sums(const Ints& lengths) {
  Ints sums{0};
  for (const std::int32_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

/// A block table whose entries are all different: request r, column c holds 1000 * (r + 1) + c.
/// `stride` columns are stored a row, those from `width` on poison.
struct Table {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;
  Ints values;

  Table(std::int64_t table_rows, std::int64_t table_width, std::int64_t row_stride = 0)
      : rows(table_rows),
        width(table_width),
        stride(std::max(table_width, row_stride)),
        values(static_cast<std::size_t>(rows * stride), kPoison) {
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t column = 0; column < width; ++column)
        values[static_cast<std::size_t>(row * stride + column)] =
            static_cast<std::int32_t>(1000 * (row + 1) + column);
  }

  View<const std::int32_t, 2> view() const { return {values.data(), {rows, width}, {stride, 1}}; }

  static constexpr std::int32_t kPoison = 777'777'777;
};

/// A batch that owns its arrays.
struct OwnedBatch {
  Ints query_start_loc;
  Ints seq_lens;
  Table table;
  Longs slots;
  bool use_dcp_local = false;

  OwnedBatch(const Ints& query_lens, Ints lengths, std::int64_t width, std::int64_t padding = 0)
      : query_start_loc(prefix_sums(query_lens)),
        seq_lens(std::move(lengths)),
        table(static_cast<std::int64_t>(query_lens.size()), width) {
    const std::int64_t tokens = query_start_loc.back() + padding;
    for (std::int64_t token = 0; token < tokens; ++token) slots.push_back(5000 + token);
  }

  IndexerBatch batch() const {
    IndexerBatch all;
    all.query_start_loc = view(query_start_loc);
    all.seq_lens = view(seq_lens);
    all.block_table = table.view();
    all.slot_mapping = view(slots);
    all.use_dcp_local = use_dcp_local;
    all.seq_lens_cpu_upper_bound = view(seq_lens);
    for (const std::int32_t length : seq_lens)
      all.max_seq_len = std::max<std::int64_t>(all.max_seq_len, length);
    return all;
  }
};

/// Outputs of one decode_expand run, with storage of its own.
struct Expanded {
  DecodeExpandShape shape;
  Ints seq_lens;
  Ints decode_lens;
  Ints table;
  std::int64_t table_width = 0;

  Ints table_row(std::int64_t row) const {
    const auto begin = table.begin() + row * table_width;
    return {begin, begin + table_width};
  }
};

inline Expanded expand(const DecodeExpandInput& input, std::int64_t extra_columns = 0) {
  Expanded all;
  all.shape = decode_expand_shape(input);
  all.table_width = input.block_table.dim(1) + extra_columns;
  const std::int64_t columns = all.shape.length_columns;
  all.seq_lens.assign(static_cast<std::size_t>(all.shape.length_rows * columns), -999);
  all.decode_lens.assign(static_cast<std::size_t>(all.shape.rows), -999);
  all.table.assign(static_cast<std::size_t>(all.shape.rows * all.table_width), -999);
  decode_expand(input,
                {{all.seq_lens.data(), {all.shape.length_rows, columns}, {columns, 1}},
                 view(all.decode_lens),
                 {all.table.data(), {all.shape.rows, all.table_width}, {all.table_width, 1}}});
  return all;
}

/// Outputs of one chunk, with storage of its own.
inline IndexerPrefillChunk chunk_of(const PrefillChunkMetadataInput& input) {
  IndexerPrefillChunk chunk;
  chunk.shape = prefill_chunk_shape(input);
  const auto queries = static_cast<std::size_t>(chunk.shape.token_end - chunk.shape.token_start);
  chunk.cu_seqlen_ks.assign(queries, -999);
  chunk.cu_seqlen_ke.assign(queries, -999);
  chunk.cu_seq_lens.assign(static_cast<std::size_t>(chunk.shape.num_reqs + 1), -999);
  chunk.token_to_seq.assign(static_cast<std::size_t>(chunk.shape.total_seq_lens), -999);
  prefill_chunk_metadata(input, {view(chunk.cu_seqlen_ks), view(chunk.cu_seqlen_ke),
                                 view(chunk.cu_seq_lens), view(chunk.token_to_seq)});
  return chunk;
}

/// The message of the Refusal that the call throws; empty if it throws none.
template <class Call>
std::string refusal_of(Call call) {
  try {
    call();
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "";
}

/// Pseudo-random numbers by counting: the same on every platform.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL) {}

  /// A number of low .. high.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
  }

  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return *(choices.begin() + between(0, static_cast<std::int64_t>(choices.size()) - 1));
  }

 private:
  /// The finalizer of SplitMix64 on a counter.
  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
    return mixed ^ (mixed >> 31);
  }

  std::uint64_t state_;
};

}  // namespace monoref
