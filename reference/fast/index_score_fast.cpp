// The fast form of the scores: lanes are keys of a block, and every query of a request takes one
// step a dim with all of them at once.
#include <algorithm>
#include <limits>
#include <vector>

#include "reference/arithmetic/minmax.hpp"
#include "reference/fast/panel_product.hpp"
#include "reference/formats/convert.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/stages/index_score.hpp"

namespace monoref {
namespace {

/// The rows of one request, whose table is that of the last.
struct RequestRows {
  const IndexScoreInput& input;
  std::int64_t first;

  std::int64_t last() const { return first + input.q_len - 1; }
  std::int64_t context(std::int64_t row) const {
    return context_of(input.seq_lens(row), input.contract.empty_row);
  }
  std::int64_t blocks(std::int64_t row) const { return input.selection.blocks(context(row)); }
  /// Where a key of a logical block lies in the cache, in elements.
  std::int64_t offset(std::int64_t block, std::int64_t key) const {
    const std::vector<std::int64_t>& strides = input.index_cache.layout().strides;
    return input.block_table(last(), block) * strides[0] + key * strides[1];
  }
  /// The mark of a block that is pinned where every block has a score; 0 for one that is read.
  float mark(std::int64_t row, std::int64_t block) const {
    if (input.contract.index_scores == IndexScores::kSelectable) return 0;
    if (input.selection.is_local(block, blocks(row))) return kLocalScore;
    return input.selection.is_init(block) ? kInitScore : 0;
  }
};

/// Numbers of a key's codes.
void decode_key(const Tensor& cache, std::int64_t offset, std::span<float> values) {
  if (cache.type() != DType::kBFloat16)
    return decode_fp8(float_format(cache.type()),
                      {reinterpret_cast<const std::uint8_t*>(cache.base()) + offset, values.size()},
                      values);
  const auto* codes = reinterpret_cast<const std::uint16_t*>(cache.base()) + offset;
  for (std::size_t d = 0; d < values.size(); ++d) values[d] = float_from_bf16(codes[d]);
}

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
      float* tile = values_.data() + column / kPanelColumns * dims_ * kPanelColumns;
      for (std::size_t d = 0; d < dims_; ++d)
        tile[d * kPanelColumns + column % kPanelColumns] =
            float_from_bf16(input.index_q(first_row + row(column), head(column), d));
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
    decode_key(input.index_cache, offset + static_cast<std::int64_t>(lane) * stride, key);
    for (std::size_t d = 0; d < key.size(); ++d) panel[d * kPanelLanes + lane] = key[d];
  }
}

/// One request under way: maxima of one block at a time.
class RequestScores {
 public:
  RequestScores(const RequestRows& rows, const IndexScoreOutput& output, PanelProduct product)
      : rows_(rows),
        output_(output),
        product_(product),
        columns_(rows.input, rows.first),
        maxima_(columns_.count()),
        key_(static_cast<std::size_t>(rows.input.index_q.dim(2))),
        panel_(key_.size() * kPanelLanes),
        is_scaled_(rows.input.contract.index_scores == IndexScores::kSelectable),
        scale_(static_cast<float>(rows.input.sm_scale) * 0x1.715476p+0f) {}  // log2(e) in binary32

  void score(std::int64_t block) {
    std::fill(maxima_.begin(), maxima_.end(), -std::numeric_limits<float>::infinity());
    const std::int64_t size = rows_.input.selection.block_size;
    const std::int64_t keys = std::min(size, rows_.context(rows_.last()) - block * size);
    // If the last row reads the block any row may, else none does.
    const bool reads =
        is_scored(rows_.input, rows_.last(), block) && rows_.mark(rows_.last(), block) == 0;
    for (std::int64_t first = 0; reads && first < keys; first += std::int64_t{kPanelLanes})
      take_keys(block, first, std::min<std::int64_t>(kPanelLanes, keys - first));
    store(block);
  }

 private:
  /// `keys` keys of a block from `first` on.
  void take_keys(std::int64_t block, std::int64_t first, std::int64_t keys) {
    fill_panel(rows_.input, rows_.offset(block, first), static_cast<std::size_t>(keys), key_,
               panel_);
    const std::int64_t position = block * rows_.input.selection.block_size + first;
    for (std::size_t column = 0; column < columns_.count(); column += kPanelColumns) {
      float dots[kPanelColumns * kPanelLanes] = {};
      product_(panel_.data(), columns_.tile(column), key_.size(), dots);
      for (std::size_t i = 0; i < std::min(kPanelColumns, columns_.count() - column); ++i) {
        const std::int64_t row = rows_.first + columns_.row(column + i);
        const std::int64_t visible = std::min(keys, rows_.context(row) - position);
        for (std::int64_t lane = 0; lane < visible; ++lane)
          maxima_[column + i] =
              nan_max(maxima_[column + i], dots[i * kPanelLanes + static_cast<std::size_t>(lane)]);
      }
    }
  }

  void store(std::int64_t block) {
    for (std::size_t column = 0; column < columns_.count(); ++column) {
      const std::int64_t row = rows_.first + columns_.row(column);
      if (!is_scored(rows_.input, row, block)) continue;
      const float maximum = maxima_[column];
      const float read = is_scaled_ ? canonical(maximum * scale_) : maximum;
      const float mark = rows_.mark(row, block);
      output_.score(columns_.head(column), row, block) = mark != 0 ? mark : read;
    }
  }

  RequestRows rows_;
  const IndexScoreOutput& output_;
  PanelProduct product_;
  QueryColumns columns_;
  std::vector<float> maxima_;
  std::vector<float> key_;
  std::vector<float> panel_;
  bool is_scaled_;
  float scale_;
};

}  // namespace

void index_score_fast(const IndexScoreInput& input, const IndexScoreOutput& output, Isa isa) {
  const auto dims = index_score_shape(input);
  require_dims("index_score: output score", output.score, dims);
  for (std::int64_t row = 0; row < dims[1]; row += input.q_len) {
    const RequestRows rows{input, row};
    RequestScores request(rows, output, panel_product_for(isa));
    for (std::int64_t block = 0; block < rows.blocks(rows.last()); ++block) request.score(block);
  }
}

}  // namespace monoref
