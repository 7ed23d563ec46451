#include "reference/stages/index_score.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/arithmetic/minmax.hpp"
#include "reference/arithmetic/reduce.hpp"
#include "reference/fast/panel_product.hpp"
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

namespace {

/// The query rows of one request as columns of a product: [tile][dim][kPanelColumns], padded with
/// zeros. Column c is head c mod heads of the request's row c div heads.
class QueryColumns {
 public:
  QueryColumns(const IndexScoreInput& input, std::int64_t first_row)
      : heads_(static_cast<std::size_t>(input.index_q.dim(1))),
        count_(heads_ * static_cast<std::size_t>(input.q_len)),
        dims_(static_cast<std::size_t>(input.index_q.dim(2))),
        values_((count_ + kPanelColumns - 1) / kPanelColumns * dims_ * kPanelColumns, 0.0f) {
    for (std::size_t column = 0; column < count_; ++column) {
      const std::vector<float> query = decode_query(input, first_row + row(column), head(column));
      float* tile = values_.data() + column / kPanelColumns * dims_ * kPanelColumns;
      for (std::size_t d = 0; d < dims_; ++d)
        tile[d * kPanelColumns + column % kPanelColumns] = query[d];
    }
  }

  std::size_t count() const { return count_; }
  std::int64_t row(std::size_t column) const { return static_cast<std::int64_t>(column / heads_); }
  std::int64_t head(std::size_t column) const { return static_cast<std::int64_t>(column % heads_); }
  const float* tile(std::size_t first) const {
    return values_.data() + first / kPanelColumns * dims_ * kPanelColumns;
  }

 private:
  std::size_t heads_;
  std::size_t count_;
  std::size_t dims_;
  std::vector<float> values_;
};

/// Up to 16 keys of a block as a panel [dim][kPanelLanes]; lanes without a key hold zeros.
void fill_panel(const IndexScoreInput& input, std::int64_t offset, std::size_t keys,
                std::span<float> key, std::vector<float>& panel) {
  const std::int64_t stride = input.index_cache.layout().strides[1];
  std::fill(panel.begin(), panel.end(), 0.0f);
  for (std::size_t lane = 0; lane < keys; ++lane) {
    decode_key(input, offset + static_cast<std::int64_t>(lane) * stride, key);
    for (std::size_t d = 0; d < key.size(); ++d) panel[d * kPanelLanes + lane] = key[d];
  }
}

/// One request under way: maxima of one block at a time.
class RequestScores {
 public:
  RequestScores(const IndexScoreInput& input, const IndexScoreOutput& output,
                std::int64_t first_row, PanelProduct product)
      : input_(input),
        output_(output),
        first_row_(first_row),
        product_(product),
        columns_(input, first_row),
        maxima_(columns_.count()),
        key_(static_cast<std::size_t>(input.index_q.dim(2))),
        panel_(key_.size() * kPanelLanes) {}

  void score(std::int64_t block) {
    std::fill(maxima_.begin(), maxima_.end(), kNoKey);
    const std::int64_t start = block * input_.selection.block_size;
    const std::int64_t end = std::min(start + input_.selection.block_size, context(input_, last()));
    if (reads_keys(input_, last(), block))  // then any row of the request may, else none does
      for (std::int64_t first = start; first < end; first += std::int64_t{kPanelLanes})
        take_keys(block, first, std::min<std::int64_t>(kPanelLanes, end - first));
    store(block);
  }

 private:
  std::int64_t last() const { return first_row_ + input_.q_len - 1; }

  void take_keys(std::int64_t block, std::int64_t first, std::int64_t keys) {
    const std::int64_t offset =
        block_offset(input_, last(), block) +
        first % input_.selection.block_size * input_.index_cache.layout().strides[1];
    fill_panel(input_, offset, static_cast<std::size_t>(keys), key_, panel_);
    for (std::size_t column = 0; column < columns_.count(); column += kPanelColumns) {
      float dots[kPanelColumns * kPanelLanes] = {};
      product_(panel_.data(), columns_.tile(column), key_.size(), dots);
      for (std::size_t i = 0; i < std::min(kPanelColumns, columns_.count() - column); ++i) {
        const std::int64_t row = first_row_ + columns_.row(column + i);
        const std::int64_t visible = std::min(keys, context(input_, row) - first);
        for (std::int64_t lane = 0; lane < visible; ++lane)
          maxima_[column + i] =
              nan_max(maxima_[column + i], dots[i * kPanelLanes + static_cast<std::size_t>(lane)]);
      }
    }
  }

  void store(std::int64_t block) {
    for (std::size_t column = 0; column < columns_.count(); ++column) {
      const std::int64_t row = first_row_ + columns_.row(column);
      if (!is_scored(input_, row, block)) continue;
      output_.score(columns_.head(column), row, block) = reads_keys(input_, row, block)
                                                             ? finish(input_, maxima_[column])
                                                             : mark_of_pinned(input_, row, block);
    }
  }

  const IndexScoreInput& input_;
  const IndexScoreOutput& output_;
  std::int64_t first_row_;
  PanelProduct product_;
  QueryColumns columns_;
  std::vector<float> maxima_;
  std::vector<float> key_;
  std::vector<float> panel_;
};

}  // namespace

void index_score_fast(const IndexScoreInput& input, const IndexScoreOutput& output, Isa isa) {
  const auto dims = index_score_shape(input);
  require_dims("index_score: output score", output.score, dims);
  for (std::int64_t row = 0; row < dims[1]; row += input.q_len) {
    RequestScores request(input, output, row, panel_product_for(isa));
    for (std::int64_t block = 0; block < blocks(input, row + input.q_len - 1); ++block)
      request.score(block);
  }
}

}  // namespace monoref
