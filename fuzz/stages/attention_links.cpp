#include "fuzz/stages/attention_links.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kPagesPerBlock = 8;

std::vector<NamedScalar> scalars_of(const BlockSelection& selection) {
  return {{"block_size", selection.block_size},
          {"topk", selection.topk},
          {"init_blocks", selection.init_blocks},
          {"local_blocks", selection.local_blocks}};
}

}  // namespace

void AttentionLinks::append_to(std::vector<ChainLink>& links) const {
  const auto own = [&](const char* name) { return prefix + name; };
  const auto link = [&](const char* stage, std::vector<ChainRead> reads,
                        std::vector<ChainWrite> writes, std::vector<NamedScalar> scalars = {}) {
    links.push_back(
        {link_prefix + stage, stage, std::move(reads), std::move(writes), std::move(scalars)});
  };
  const bool dense = kv_layout == KvLayout::kDense;
  const std::int64_t pages = selection.topk * kPagesPerBlock;
  const std::int64_t width = heads * head_dim;

  // The buffer of the scores may be made for steps of more rows.
  const ChainRead score{"score", own("score"), Layout::dense({1, rows, table_width})};
  std::vector<NamedScalar> scoring = scalars_of(selection);
  scoring.push_back({"q_len", q_len});
  scoring.push_back({"sm_scale", sm_scale});
  // One rank scores every block: sharing them among ranks gives the same selection, which is a
  // property of index_select.
  scoring.push_back({"world", std::int64_t{1}});
  scoring.push_back({"rank", std::int64_t{0}});
  scoring.push_back({"shard_from", std::int64_t{0}});
  link("index_score",
       {index_q,
        {"index_cache", layer_prefix + "index_cache"},
        {"block_table", block_table},
        {"seq_lens", seq_lens},
        score},
       {{"score", own("score")}}, std::move(scoring));

  std::vector<NamedScalar> selecting = scalars_of(selection);
  selecting.push_back({"q_len", q_len});
  selecting.push_back({"block_page_stride", kPagesPerBlock * (dense ? 1 : 2)});
  link("index_select", {score, {"block_table", block_table}, {"seq_lens", seq_lens}},
       {{"topk_idx", own("topk_idx")},
        {"sparse_block_table", own("sparse_block_table")},
        {"sparse_context_lens", own("sparse_context_lens")}},
       std::move(selecting));

  // The selection's one head of index queries serves the one K/V head.
  std::vector<ChainRead> attending{
      {"q", own("q")},
      {"sparse_block_table", own("sparse_block_table"),
       Layout::strided({rows, 1, pages}, {pages, pages, 1})},
      {"sparse_context_lens", own("sparse_context_lens"), Layout::strided({rows, 1}, {1, 1})},
      {"k_cache", layer_prefix + k_cache}};
  if (dense) attending.push_back({"v_cache", layer_prefix + "v_cache"});
  link("fp8_attention_partition", std::move(attending),
       {{"o", own("o")}, {"m", own("m")}, {"l", own("l")}}, {{"sm_scale", sm_scale}});

  link("attention_merge", {{"o", own("o")}, {"m", own("m")}, {"l", own("l")}},
       {{"out", own("merged")}});
  link("row_quant", {{"a", own("merged"), Layout::dense({rows, width})}},
       {{"a8", own("a8")}, {"a_scale", own("a_scale")}});
  link("o_projection",
       {{"a8", own("a8")},
        {"a_scale", own("a_scale")},
        {"weight", layer_prefix + weight},
        {"w_scale", layer_prefix + w_scale}},
       {out});
}

}  // namespace monoref
