#include "fuzz/stages/layer_links.hpp"

#include <cmath>

#include "fuzz/stages/attention_links.hpp"
#include "fuzz/stages/step_rows.hpp"
#include "reference/stages/all_reduce.hpp"

namespace monoref {

void add_layer_shape(Case& item, const LayerShape& shape) {
  item.scalars.insert(item.scalars.end(), {{"ranks", shape.ranks},
                                           {"hidden", shape.hidden},
                                           {"heads", shape.heads},
                                           {"head_dim", shape.head_dim},
                                           {"rotary_dim", shape.rotary_dim},
                                           {"inter", shape.inter},
                                           {"n_routed", shape.n_routed},
                                           {"top_k", shape.top_k},
                                           {"mxfp4", std::int64_t{shape.mxfp4}},
                                           {"separate_shared", std::int64_t{shape.separate_shared}},
                                           {"fused_weight", shape.fused_weight},
                                           {"eps", shape.eps},
                                           {"scaling", shape.scaling},
                                           {"limit", shape.limit}});
  add_selection(item, shape.selection);
}

LayerShape layer_shape_of(const Case& item) {
  return {.ranks = layer_ranks(item),
          .hidden = item.integer("hidden"),
          .heads = item.integer("heads"),
          .head_dim = item.integer("head_dim"),
          .rotary_dim = item.integer("rotary_dim"),
          .inter = item.integer("inter"),
          .n_routed = item.integer("n_routed"),
          .top_k = item.integer("top_k"),
          .mxfp4 = item.integer("mxfp4") != 0,
          .separate_shared = item.integer("separate_shared") != 0,
          .fused_weight = item.real("fused_weight"),
          .eps = item.real("eps"),
          .scaling = item.real("scaling"),
          .limit = item.real("limit"),
          .selection = selection_of(item)};
}

std::int64_t layer_ranks(const Case& item) {
  return item.integer("ranks");
}

/// One rank of a layer: how its links and tensors are named.
struct LayerLinks::Rank {
  std::int64_t index;
  std::string links;    ///< before links' names
  std::string own;      ///< before activations
  std::string weights;  ///< before weights and caches
};

ChainRead LayerLinks::part_of(const std::string& name, const std::string& tensor,
                              std::int64_t rank) const {
  return {name, tensor, Layout::dense({rows, shape.hidden}), rank * rows * shape.hidden};
}

void LayerLinks::append_to(std::vector<ChainLink>& links) const {
  std::vector<Rank> ranks;
  for (std::int64_t i = 0; i < shape.ranks; ++i) {
    const std::string r = fmt::format("r{}.", i);
    ranks.push_back({i, link_prefix + r, r, layer_prefix + r});
  }
  const auto append_on = [&](const Rank& rank, auto append) {
    const std::size_t from = links.size();
    (this->*append)(links, rank);
    for (std::size_t i = from; i < links.size(); ++i) links[i].rank = rank.index;
  };
  for (const Rank& rank : ranks) {
    append_on(rank, &LayerLinks::append_before_attention);
    append_on(rank, &LayerLinks::append_attention);
  }
  append_reduction(links, "attention_all_reduce", "o_partials", "o_sum", tag);
  for (const Rank& rank : ranks) {
    append_on(rank, &LayerLinks::append_routing);
    append_on(rank, &LayerLinks::append_experts);
  }
  append_reduction(links, "expert_all_reduce", "ffn_partials", ar_out,
                   static_cast<std::int32_t>(static_cast<std::uint32_t>(tag) + 1));
}

void LayerLinks::append_before_attention(std::vector<ChainLink>& links, const Rank& rank) const {
  const auto own = [&](const char* name) { return rank.own + name; };
  const std::int64_t dim = shape.head_dim;
  links.push_back({rank.links + "residual_norm_quant",
                   "residual_norm_quant",
                   {part_of("ar", ar_in, rank.index),
                    part_of("res", residual_in, rank.index),
                    {"gamma", layer_prefix + "input_gamma"}},
                   {{"residual", own("residual")}, {"x8", own("x8")}, {"x_scale", own("x_scale")}},
                   {{"eps", shape.eps}}});
  links.push_back({rank.links + "qkv_projection",
                   "qkv_projection",
                   {{"x8", own("x8")},
                    {"x_scale", own("x_scale")},
                    {"weight", rank.weights + "qkv_weight"},
                    {"w_scale", rank.weights + "qkv_scale"}},
                   {{"qkv", own("qkv")}},
                   {}});
  links.push_back(
      {rank.links + "qk_norm_rope",
       "qk_norm_rope",
       {{"qkv", own("qkv")},
        {"position", step_prefix + "position"},
        {"cos_sin", "cos_sin"},
        {"q_gamma", layer_prefix + "q_gamma"},
        {"k_gamma", layer_prefix + "k_gamma"},
        {"index_q_gamma", layer_prefix + "index_q_gamma"},
        {"index_k_gamma", layer_prefix + "index_k_gamma"}},
       {{"q", own("q")}, {"k", own("k")}, {"index_q", own("index_q")}, {"index_k", own("index_k")}},
       {{"q_heads", shape.heads},
        {"kv_heads", std::int64_t{1}},
        {"index_q_heads", shape.ranks},
        {"head_dim", dim},
        {"rotary_dim", shape.rotary_dim},
        {"eps", shape.eps}}});
  // V goes to its cache as it leaves the projection, behind q and k.
  const ChainRead v{"v", own("qkv"),
                    Layout::strided({rows, 1, dim}, {shape.projection_rows(), dim, 1}),
                    rows == 0 ? 0 : (shape.heads + 1) * dim};
  ChainLink insert{rank.links + "kv_cache_insert",
                   "kv_cache_insert",
                   {{"k", own("k")},
                    v,
                    {"index_k", own("index_k")},
                    {"slot_mapping", step_prefix + "slot_mapping"}},
                   {},
                   {{"k_scale", 1.0}, {"v_scale", 1.0}}};
  const auto in_place = [&](const char* cache) {
    insert.reads.push_back({cache, rank.weights + cache});
    insert.writes.push_back({cache, rank.weights + cache});
  };
  if (kv_layout == KvLayout::kDense) {
    in_place("k_cache");
    in_place("v_cache");
  } else {
    in_place("kv_cache");
  }
  in_place("index_cache");
  links.push_back(std::move(insert));
}

void LayerLinks::append_attention(std::vector<ChainLink>& links, const Rank& rank) const {
  const std::int64_t dim = shape.head_dim;
  AttentionLinks{.rows = rows,
                 .table_width = table_width,
                 .q_len = q_len,
                 .heads = shape.heads,
                 .head_dim = dim,
                 .sm_scale = 1.0 / std::sqrt(static_cast<double>(dim)),
                 .selection = shape.selection,
                 .kv_layout = kv_layout,
                 .link_prefix = rank.links,
                 .prefix = rank.own,
                 .layer_prefix = rank.weights,
                 .k_cache = kv_layout == KvLayout::kDense ? "k_cache" : "kv_cache",
                 .weight = "o_weight",
                 .w_scale = "o_scale",
                 .block_table = step_prefix + "row_table",
                 .seq_lens = step_prefix + "row_lens",
                 // Of the index queries of all ranks, which every rank has, its own.
                 .index_q = {"index_q", rank.own + "index_q",
                             Layout::strided({rows, 1, dim}, {shape.ranks * dim, dim, 1}),
                             rows == 0 ? 0 : rank.index * dim},
                 .out = {"out", "o_partials", rank.index, shape.ranks}}
      .append_to(links);
}

void LayerLinks::append_routing(std::vector<ChainLink>& links, const Rank& rank) const {
  const auto own = [&](const char* name) { return rank.own + name; };
  links.push_back({rank.links + "router",
                   "router",
                   {part_of("sum", "o_sum", rank.index),
                    {"residual", own("residual")},
                    {"gamma", layer_prefix + "post_gamma"},
                    {"gate", layer_prefix + "gate"}},
                   {{"h_mid", h_mid_out, rank.index, shape.ranks},
                    {"xn", own("xn")},
                    {"logits", own("logits")}},
                   {{"eps", shape.eps}}});
  links.push_back({rank.links + "moe_route",
                   "moe_route",
                   {{"logits", own("logits")}, {"bias", layer_prefix + "bias"}},
                   {{"topk_ids", own("topk_ids")}, {"topk_weights", own("topk_weights")}},
                   {{"top_k", shape.top_k},
                    {"scaling", shape.scaling},
                    {"renormalise", std::int64_t{1}},
                    {"shared", std::int64_t{1}},
                    {"shared_weight", shape.separate_shared ? 1.0 : shape.fused_weight}}});
}

void LayerLinks::append_experts(std::vector<ChainLink>& links, const Rank& rank) const {
  const auto own = [&](const char* name) { return rank.own + name; };
  const auto with_weights = [&](std::vector<ChainRead> reads, const char* weight,
                                const char* scale) {
    for (const char* name : {weight, scale}) {
      reads.push_back({name, rank.weights + name});
      const std::string shared = std::string("shared_") + name;
      if (shape.separate_shared) reads.push_back({shared, rank.weights + shared});
    }
    return reads;
  };
  const std::int64_t slots = shape.top_k + 1;
  const NamedScalar format{"weights", std::string(shape.mxfp4 ? "mxfp4" : "mxfp8")};
  const NamedScalar routed{"n_routed", shape.n_routed};
  links.push_back({rank.links + "xn_quant",
                   "mx_quant",
                   {{"x", own("xn")}},
                   {{"codes", own("xn8")}, {"scales", own("xn_scale")}},
                   {}});
  links.push_back(
      {rank.links + "expert_up_gate",
       "expert_up_gate",
       with_weights(
           {{"x8", own("xn8")}, {"x_scale", own("xn_scale")}, {"topk_ids", own("topk_ids")}}, "w13",
           "s13"),
       {{"mid", own("mid")}},
       {format, routed, {"limit", shape.limit}, {"alpha", 1.702}, {"beta", 1.0}}});
  links.push_back({rank.links + "mid_quant",
                   "mx_quant",
                   {{"x", own("mid"), Layout::dense({rows * slots, shape.inter})}},
                   {{"codes", own("mid8")}, {"scales", own("mid_scale")}},
                   {}});
  links.push_back({rank.links + "expert_down",
                   "expert_down",
                   with_weights({{"mid8", own("mid8"), Layout::dense({rows, slots, shape.inter})},
                                 {"mid_scale", own("mid_scale"),
                                  Layout::dense({rows, slots, shape.inter / 32})},
                                 {"topk_ids", own("topk_ids")},
                                 {"topk_weights", own("topk_weights")}},
                                "w2", "s2"),
                   {{"partial", "ffn_partials", rank.index, shape.ranks}},
                   {format, routed, {"wide_from", std::int64_t{5}}, {"scaling", shape.scaling}}});
}

void LayerLinks::append_reduction(std::vector<ChainLink>& links, const std::string& name,
                                  const std::string& partials, const std::string& sum,
                                  std::int32_t its_tag) const {
  // The parts of the ranks are one tensor [ranks, rows, hidden] to the reduction.
  links.push_back({link_prefix + name,
                   "all_reduce",
                   {{"partials", partials, Layout::dense({shape.ranks, rows, shape.hidden})},
                    {"flags", "flags"}},
                   {{"sum", sum}, {"flags", "flags"}, {"status", "status"}},
                   {{"tag", std::int64_t{its_tag}},
                    {"owner_from", kReduceOwnerFrom},
                    {"absent", std::int64_t{0}}}});
}

}  // namespace monoref
