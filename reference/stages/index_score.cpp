#include "reference/stages/index_score.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/arithmetic/minmax.hpp"
#include "reference/arithmetic/reduce.hpp"
#include "reference/rules/fp8_rules.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/rules/stored_elements.hpp"

namespace monoref {
namespace {

constexpr float kNoKey = -std::numeric_limits<float>::infinity();

std::int64_t last_row(const IndexScoreInput& input, std::int64_t row) {
  return row / input.q_len * input.q_len + input.q_len - 1;
}

std::int64_t context(const IndexScoreInput& input, std::int64_t row) {
  return context_of(input.seq_lens(row), input.contract.empty_row);
}

std::int64_t blocks(const IndexScoreInput& input, std::int64_t row) {
  return input.selection.blocks(context(input, row));
}

/// Whether the score is a maximum over keys rather than the mark of a pinned block.
bool reads_keys(const IndexScoreInput& input, std::int64_t row, std::int64_t block) {
  if (!is_scored(input, row, block)) return false;
  if (input.contract.index_scores == IndexScores::kSelectable) return true;
  return !input.selection.is_init(block) && !input.selection.is_local(block, blocks(input, row));
}

float mark_of_pinned(const IndexScoreInput& input, std::int64_t row, std::int64_t block) {
  return input.selection.is_local(block, blocks(input, row)) ? kLocalScore : kInitScore;
}

float scale_of(const IndexScoreInput& input) {
  if (input.contract.index_scores == IndexScores::kEveryBlock) return 1.0f;
  return static_cast<float>(input.sm_scale) * 0x1.715476p+0f;  // log2(e) in binary32
}

/// A maximum over keys to the stored score.
float finish(const IndexScoreInput& input, float maximum) {
  if (input.contract.index_scores == IndexScores::kEveryBlock) return maximum;
  return canonical(maximum * scale_of(input));
}

void check_numbers(const IndexScoreInput& input) {
  if (input.q_len < 1) refuse("index_score: q_len is {}, must be at least 1", input.q_len);
  check_block_selection("index_score", input.selection);
  if (input.shard.world < 1)
    refuse("index_score: world is {}, must be at least 1", input.shard.world);
  if (input.shard.rank < 0 || input.shard.rank >= input.shard.world)
    refuse("index_score: rank is {}, must be 0 to {}", input.shard.rank, input.shard.world - 1);
  if (!std::isfinite(static_cast<float>(input.sm_scale)))
    refuse("index_score: sm_scale is {}, must be finite in binary32", input.sm_scale);
}

void check_cache(const IndexScoreInput& input) {
  const Tensor& cache = input.index_cache;
  if (cache.rank() != 3) refuse("index_score: index_cache has rank {}, must be 3", cache.rank());
  if (cache.type() != DType::kBFloat16 && cache.type() != fp8_dtype(input.contract))
    refuse("index_score: index_cache is {}, must be {} or {}", dtype_name(cache.type()),
           dtype_name(DType::kBFloat16), dtype_name(fp8_dtype(input.contract)));
  if (cache.dim(1) != input.selection.block_size)
    refuse("index_score: index_cache has blocks of {} keys, must have {}", cache.dim(1),
           input.selection.block_size);
  if (cache.dim(2) != input.index_q.dim(2))
    refuse("index_score: index_cache has keys of {} dims, must have {} as index_q has",
           cache.dim(2), input.index_q.dim(2));
  if (cache.layout().strides[2] != 1)
    refuse("index_score: index_cache has {} elements from dim to dim, must have 1",
           cache.layout().strides[2]);
}

void check_rows(const IndexScoreInput& input) {
  const std::int64_t rows = input.index_q.dim(0);
  if (rows % input.q_len != 0)
    refuse("index_score: index_q has {} rows, must be a multiple of q_len {}", rows, input.q_len);
  require_dims("index_score: seq_lens", input.seq_lens, {rows});
  require_dims("index_score: block_table", input.block_table, {rows, input.block_table.dim(1)});
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t last = last_row(input, row);
    const std::int64_t expected = std::int64_t{input.seq_lens(last)} - (last - row);
    if (input.seq_lens(row) != expected)
      refuse(
          "index_score: seq_lens[{}] is {}, must be {}, {} less than that of its request's last"
          " row",
          row, input.seq_lens(row), expected, last - row);
    if (blocks(input, row) > kMaxSelectableBlocks)
      refuse("index_score: the context of row {} has {} blocks, limit {}", row, blocks(input, row),
             kMaxSelectableBlocks);
    if (blocks(input, row) > input.block_table.dim(1))
      refuse(
          "index_score: the context of row {} has {} blocks, must have at most {}, the columns of "
          "block_table",
          row, blocks(input, row), input.block_table.dim(1));
  }
}

/// Where key 0 of a logical block lies in the cache, in elements.
std::int64_t block_offset(const IndexScoreInput& input, std::int64_t row, std::int64_t block) {
  return input.block_table(last_row(input, row), block) * input.index_cache.layout().strides[0];
}

/// Every key that any row reads must exist.
void check_keys(const IndexScoreInput& input, std::int64_t row, std::int64_t block) {
  const Layout& cache = input.index_cache.layout();
  const std::int64_t id = input.block_table(last_row(input, row), block);
  if (id < 0 || id >= cache.dims[0])
    refuse(
        "index_score: block_table[{}][{}] is {}, must be 0 or more and below {}, the blocks of "
        "index_cache",
        last_row(input, row), block, id, cache.dims[0]);
  const std::int64_t keys = std::min(input.selection.block_size,
                                     context(input, row) - block * input.selection.block_size);
  for (std::int64_t key = 0; key < keys; ++key) {
    const std::int64_t first = block_offset(input, row, block) + key * cache.strides[1];
    if (!holds_run(cache, first, cache.dims[2]))
      refuse(
          "index_score: key {} of block {} of index_cache is elements {} to {}, must lie in one run"
          " of its storage, {}",
          key, id, first, first + cache.dims[2] - 1, stored_text(cache));
  }
}

/// Decodes one key of the cache.
void decode_key(const IndexScoreInput& input, std::int64_t offset, std::span<float> values) {
  const auto base = input.index_cache.base();
  if (input.index_cache.type() == DType::kBFloat16) {
    const auto* codes = reinterpret_cast<const std::uint16_t*>(base) + offset;
    for (std::size_t d = 0; d < values.size(); ++d) values[d] = float_from_bf16(codes[d]);
  } else {
    const auto* codes = reinterpret_cast<const std::uint8_t*>(base) + offset;
    const FloatFormat& format = float_format(input.index_cache.type());
    decode_fp8(format, {codes, values.size()}, values);
  }
}

std::vector<float> decode_query(const IndexScoreInput& input, std::int64_t row, std::int64_t head) {
  std::vector<float> values(static_cast<std::size_t>(input.index_q.dim(2)));
  for (std::size_t d = 0; d < values.size(); ++d)
    values[d] = float_from_bf16(input.index_q(row, head, d));
  return values;
}

float score_of(const IndexScoreInput& input, std::int64_t row, std::int64_t head,
               std::int64_t block) {
  if (!reads_keys(input, row, block)) return mark_of_pinned(input, row, block);
  const std::vector<float> query = decode_query(input, row, head);
  std::vector<float> key(query.size());
  const std::int64_t first = block * input.selection.block_size;
  const std::int64_t end = std::min(first + input.selection.block_size, context(input, row));
  float maximum = kNoKey;
  for (std::int64_t position = first; position < end; ++position) {
    decode_key(input,
               block_offset(input, row, block) +
                   (position - first) * input.index_cache.layout().strides[1],
               key);
    maximum = nan_max(maximum, fma_chain(query, key, 0.0f));
  }
  return finish(input, maximum);
}

}  // namespace

std::array<std::int64_t, 3> index_score_shape(const IndexScoreInput& input) {
  check_numbers(input);
  check_cache(input);
  check_rows(input);
  for (std::int64_t row = 0; row < input.index_q.dim(0); ++row)
    for (std::int64_t block = 0; block < blocks(input, row); ++block)
      if (reads_keys(input, row, block)) check_keys(input, row, block);
  return {input.index_q.dim(1), input.index_q.dim(0), input.block_table.dim(1)};
}

bool is_scored(const IndexScoreInput& input, std::int64_t row, std::int64_t block) {
  const std::int64_t listed = blocks(input, last_row(input, row));
  if (listed > input.shard.from_blocks && !input.shard.owns(block)) return false;
  if (input.contract.index_scores == IndexScores::kEveryBlock) return block < blocks(input, row);
  return input.selection.selects(listed) && !input.selection.is_init(block) &&
         !input.selection.is_local(block, listed);
}

void index_score(const IndexScoreInput& input, const IndexScoreOutput& output) {
  const auto dims = index_score_shape(input);
  require_dims("index_score: output score", output.score, dims);
  for (std::int64_t head = 0; head < dims[0]; ++head)
    for (std::int64_t row = 0; row < dims[1]; ++row)
      for (std::int64_t block = 0; block < dims[2]; ++block)
        if (is_scored(input, row, block))
          output.score(head, row, block) = score_of(input, row, head, block);
}

}  // namespace monoref
