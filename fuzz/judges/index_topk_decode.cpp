// vLLM's Triton decode indexer (upstream-semantics sections 4.1 and 4.2): preset vllm-triton.
#include "fuzz/judges/judge.hpp"
#include "reference/arithmetic/bounded.hpp"
#include "reference/formats/convert.hpp"
#include "reference/stages/index_score.hpp"
#include "reference/stages/index_select.hpp"

#include <algorithm>
#include <set>

namespace monoref {
namespace {

/// A recorded case in the terms of our stages. Tables and lengths get a row for each query row, and
/// an FP8 query becomes BF16, which holds its numbers.
struct Recorded {
  const RecordedCase& source;
  std::int64_t q_len;
  Tensor index_q;
  Tensor block_table;
  Tensor seq_lens;
  BlockSelection selection;
  Contract contract = Contract::parse("vllm-triton");

  explicit Recorded(const RecordedCase& recorded)
      : source(recorded), q_len(recorded.integer("decode_query_len", 1, kInt32Max)) {
    const std::vector<DType> elements{DType::kBFloat16, DType::kFloat8E4M3FN};
    const Tensor& q = recorded.input("idx_q", {elements, {kAnyExtent, kAnyExtent, kAnyExtent}});
    if (q.dim(0) % q_len != 0)
      refuse("{} is {}, must divide the {} rows of idx_q",
             recorded.place("parameter decode_query_len"), q_len, q.dim(0));
    const std::int64_t requests = q.dim(0) / q_len;
    const Tensor& keys =
        recorded.input("index_cache", {elements, {kAnyExtent, kAnyExtent, q.dim(2)}});
    recorded.indices("block_table", {{DType::kInt32}, {requests, kAnyExtent}}, kInt32Min,
                     kInt32Max);
    recorded.indices("seq_lens", {{DType::kInt32}, {requests}}, 0, kInt32Max);
    const std::int64_t columns = recorded.input("block_table").dim(1);
    check_work(recorded, {q.dim(1), q.dim(0), columns, keys.dim(1), q.dim(2)});
    index_q = Tensor(DType::kBFloat16, Layout::dense(q.dims()));
    auto* codes = reinterpret_cast<std::uint16_t*>(index_q.base());
    for (std::int64_t i = 0; i < q.layout().elements(); ++i)
      codes[i] = q.type() == DType::kBFloat16
                     ? reinterpret_cast<const std::uint16_t*>(q.base())[i]
                     : bf16_from_float(decode_fp8(float_format(q.type()),
                                                  std::to_integer<std::uint8_t>(q.base()[i])));
    const auto table = recorded.input("block_table").view<std::int32_t, 2>();
    const auto lens = recorded.input("seq_lens").view<std::int32_t, 1>();
    const std::int64_t rows = q.dim(0);
    block_table = Tensor(DType::kInt32, Layout::dense({rows, table.dim(1)}));
    seq_lens = Tensor(DType::kInt32, Layout::dense({rows}));
    for (std::int64_t row = 0; row < rows; ++row) {
      seq_lens.view<std::int32_t, 1>()(row) =
          static_cast<std::int32_t>(lens(row / q_len) - (q_len - 1 - row % q_len));
      for (std::int64_t block = 0; block < table.dim(1); ++block)
        block_table.view<std::int32_t, 2>()(row, block) = table(row / q_len, block);
    }
    selection = {.block_size = recorded.input("index_cache").dim(1),
                 .topk = recorded.integer("topk", 1, 64),
                 .init_blocks = recorded.integer("init_blocks", 0, kInt32Max),
                 .local_blocks = recorded.integer("local_blocks", 0, kInt32Max)};
  }

  IndexScoreInput scoring() const {
    return {.index_q = index_q.view<std::uint16_t, 3>(),
            .index_cache = source.input("index_cache"),
            .block_table = block_table.view<std::int32_t, 2>(),
            .seq_lens = seq_lens.view<std::int32_t, 1>(),
            .q_len = q_len,
            .selection = selection,
            .contract = contract};
  }
  std::int64_t context(std::int64_t row) const {
    return context_of(seq_lens.view<std::int32_t, 1>()(row), contract.empty_row);
  }
};

/// A key of the cache as numbers.
std::vector<float> key_of(const Tensor& cache, std::int64_t block, std::int64_t key) {
  std::vector<float> values(static_cast<std::size_t>(cache.dim(2)));
  const std::int64_t at = (block * cache.dim(1) + key) * cache.dim(2);
  for (std::size_t d = 0; d < values.size(); ++d) {
    const std::int64_t i = at + static_cast<std::int64_t>(d);
    values[d] = cache.type() == DType::kBFloat16
                    ? float_from_bf16(reinterpret_cast<const std::uint16_t*>(cache.base())[i])
                    : decode_fp8(float_format(cache.type()),
                                 std::to_integer<std::uint8_t>(cache.base()[i]));
  }
  return values;
}

/// What the score of one block may be; pinned blocks hold their marks.
Bounded score_range(const Recorded& recorded, std::int64_t row, std::int64_t head,
                    std::int64_t block) {
  const std::int64_t blocks = recorded.selection.blocks(recorded.context(row));
  if (recorded.selection.is_local(block, blocks)) return Bounded::exactly(kLocalScore);
  if (recorded.selection.is_init(block)) return Bounded::exactly(kInitScore);
  const IndexScoreInput input = recorded.scoring();
  const std::int64_t size = recorded.selection.block_size;
  std::vector<float> q(static_cast<std::size_t>(input.index_q.dim(2)));
  for (std::size_t d = 0; d < q.size(); ++d) q[d] = float_from_bf16(input.index_q(row, head, d));
  Bounded best = Bounded::exactly(-INFINITY);
  for (std::int64_t key = 0; key < std::min(size, recorded.context(row) - block * size); ++key)
    best = maximum(best, dot(q, key_of(input.index_cache, input.block_table(row, block), key), 0.0f,
                             kHopperMatrixUnit));
  return best;
}

using Blocks = std::set<std::int64_t>;

/// Whether some block outside `kept` is better than `id`, whatever the sums' order was.
bool is_beaten(const std::vector<Bounded>& ranges, const Blocks& kept, std::int64_t id) {
  for (std::size_t other = 0; other < ranges.size(); ++other)
    if (!kept.contains(static_cast<std::int64_t>(other)) &&
        ranges[other].low > ranges[static_cast<std::size_t>(id)].high)
      return true;
  return false;
}

/// Whether some block outside `kept` may be better than `id`.
bool is_disputed(const std::vector<Bounded>& ranges, const Blocks& kept, std::int64_t id) {
  for (std::size_t other = 0; other < ranges.size(); ++other)
    if (!kept.contains(static_cast<std::int64_t>(other)) &&
        ranges[other].high >= ranges[static_cast<std::size_t>(id)].low)
      return true;
  return false;
}

/// One row and head of the selection. Ids stand in falling order; what the bounds cannot separate
/// is left out where it concerns the set, and permitted where it concerns the order alone.
void judge_ids(const std::vector<Bounded>& ranges, const View<const std::int32_t, 3>& got,
               const View<std::int32_t, 3>& ours, std::int64_t head, std::int64_t row,
               OutputJudge& output) {
  const auto blocks = static_cast<std::int64_t>(ranges.size());
  Blocks chosen;
  for (std::int64_t rank = 0; rank < std::min(got.dim(2), blocks); ++rank)
    chosen.insert(got(head, row, rank));
  Blocks before;
  for (std::int64_t rank = 0; rank < got.dim(2); ++rank) {
    const OutputJudge::Index index{{"head", head}, {"row", row}, {"rank", rank}};
    const std::int64_t id = got(head, row, rank);
    if (rank >= blocks) {
      output.id(index, ours(head, row, rank), id == -1, id, "-1 behind the last block");
    } else if (id < 0 || id >= blocks || !before.insert(id).second) {
      output.id(index, ours(head, row, rank), false, id,
                fmt::format("distinct blocks 0 to {}", blocks - 1));
    } else if (is_beaten(ranges, before, id)) {
      output.id(index, ours(head, row, rank), false, id,
                "a block that does not stand before it is better");
    } else if (is_disputed(ranges, chosen, id)) {
      output.leave_out(1);
    } else {
      output.id(index, ours(head, row, rank), true, id, "");
    }
  }
}

Tensor our_scores(const Recorded& recorded) {
  const IndexScoreInput input = recorded.scoring();
  const auto dims = index_score_shape(input);
  Tensor score(DType::kFloat32, Layout::dense({dims[0], dims[1], dims[2]}));
  index_score_fast(input, {score.view<float, 3>()});
  return score;
}

Tensor our_ids(const Recorded& recorded, const Tensor& score) {
  const IndexSelectInput input{.score = score.view<float, 3>(),
                               .block_table = recorded.block_table.view<std::int32_t, 2>(),
                               .seq_lens = recorded.seq_lens.view<std::int32_t, 1>(),
                               .selection = recorded.selection,
                               .contract = recorded.contract};
  const IndexSelectShape shape = index_select_shape(input);
  const auto& [heads, rows, topk] = shape.topk_idx;
  Tensor ids(DType::kInt32, Layout::dense({heads, rows, topk}));
  Tensor pages(DType::kInt32, Layout::dense({heads, rows, shape.sparse_block_table[2]}));
  Tensor contexts(DType::kInt32, Layout::dense({heads, rows}));
  index_select(input, {ids.view<std::int32_t, 3>(), pages.view<std::int32_t, 3>(),
                       contexts.view<std::int32_t, 2>()});
  return ids;
}

}  // namespace

void judge_index_topk_decode(const RecordedCase& source, RunResult& result) {
  const Recorded recorded(source);
  const Tensor score = our_scores(recorded);
  Tensor ids = our_ids(recorded, score);
  const std::vector<std::int64_t>& q = recorded.index_q.dims();
  const auto got =
      source.output("score", {{DType::kFloat32}, {q[1], q[0], kAnyExtent}}).view<float, 3>();
  const Tensor& recorded_ids =
      source.output("topk_idx", {{DType::kInt32}, {q[1], q[0], recorded.selection.topk}});
  OutputJudge selected("topk_idx", result);
  OutputJudge scores("score", result);
  for (std::int64_t head = 0; head < got.dim(0); ++head)
    for (std::int64_t row = 0; row < got.dim(1); ++row) {
      const std::int64_t blocks = recorded.selection.blocks(recorded.context(row));
      if (blocks > got.dim(2))
        refuse("{} has {} blocks of row {}, must have {}", source.place("output score"), got.dim(2),
               row, blocks);
      std::vector<Bounded> ranges;
      for (std::int64_t block = 0; block < blocks; ++block) {
        ranges.push_back(score_range(recorded, row, head, block));
        scores.number({{"head", head}, {"row", row}, {"block", block}},
                      score.view<float, 3>()(head, row, block), ranges.back(),
                      got(head, row, block));
      }
      // The columns behind are stale: nobody says what they hold.
      judge_ids(ranges, recorded_ids.view<std::int32_t, 3>(), ids.view<std::int32_t, 3>(), head,
                row, selected);
    }
}

}  // namespace monoref
