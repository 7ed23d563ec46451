// The layer once more, stage after stage by hand from the specification: what the links of a chain
// say is shared by reference and kernels, so that their agreement cannot vouch for it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "fuzz/runner.hpp"
#include "reference/formats/convert.hpp"

namespace monoref {
namespace {

constexpr std::int64_t kRanks = 2, kRequests = 3, kQLen = 2, kRows = kRequests * kQLen;
constexpr std::int64_t kHidden = 512, kHeads = 16, kDim = 32, kInter = 128, kSlots = 5;

Outputs run(const char* name, std::vector<NamedScalar> scalars, std::vector<NamedTensor> inputs) {
  Case item;
  item.stage = name;
  item.scalars = std::move(scalars);
  item.inputs = std::move(inputs);
  const Stage& stage = find_stage(name);
  return run_reference(stage, item, stage.outputs(item));
}

/// A dense copy: `rows` rows of `width` elements of two bytes, `stride` apart from `offset` on.
Tensor rows_of(const Tensor& from, std::int64_t rows, std::int64_t width, std::int64_t stride,
               std::int64_t offset, std::vector<std::int64_t> dims) {
  Tensor copy(from.type(), Layout::dense(std::move(dims)));
  for (std::int64_t row = 0; row < rows; ++row)
    std::memcpy(copy.base() + row * width * 2, from.base() + (offset + row * stride) * 2,
                static_cast<std::size_t>(width) * 2);
  return copy;
}

Tensor reshaped(const Tensor& tensor, std::vector<std::int64_t> dims) {
  return Tensor::alias(tensor, Layout::dense(std::move(dims)), 0);
}

Tensor part_of(const Tensor& whole, std::int64_t rank) {
  return rows_of(whole, kRows, kHidden, kHidden, rank * kRows * kHidden, {kRows, kHidden});
}

/// bf16((0 + p0) + p1).
Tensor sum_in_rank_order(const std::vector<Tensor>& partials) {
  Tensor sum(DType::kBFloat16, Layout::dense({kRows, kHidden}));
  const auto out = sum.view<std::uint16_t, 2>();
  for (std::int64_t row = 0; row < kRows; ++row)
    for (std::int64_t i = 0; i < kHidden; ++i) {
      float total = 0.0f;
      for (const Tensor& partial : partials)
        total = total + float_from_bf16(partial.view<std::uint16_t, 2>()(row, i));
      out(row, i) = bf16_from_float(total);
    }
  return sum;
}

class Layer {
 public:
  explicit Layer(const Case& item) : item_(item) {
    const Tensor& table = item.input("block_table");
    width_ = table.dim(1);
    row_table_ = Tensor(DType::kInt32, Layout::dense({kRows, width_}));
    row_lens_ = Tensor(DType::kInt32, Layout::dense({kRows}));
    for (std::int64_t row = 0; row < kRows; ++row) {
      const std::int64_t request = row / kQLen, token = row % kQLen;
      for (std::int64_t block = 0; block < width_; ++block)
        row_table_.view<std::int32_t, 2>()(row, block) =
            table.view<std::int32_t, 2>()(request, block);
      row_lens_.view<std::int32_t, 1>()(row) = static_cast<std::int32_t>(
          item.input("seq_lens").view<std::int32_t, 1>()(request) - (kQLen - 1 - token));
    }
  }

  /// K1 to o_proj: the rank's partial output; its stored residual stays in `residual`.
  Tensor attention(std::int64_t rank, Tensor& residual) const {
    const Outputs norm = run("residual_norm_quant", {{"eps", 1e-6}},
                             {{"ar", part_of(item_.input("ar"), rank)},
                              {"res", part_of(item_.input("residual"), rank)},
                              {"gamma", item_.input("input_gamma")}});
    residual = output(norm, "residual");
    const Outputs projection = run("qkv_projection", {},
                                   {{"x8", output(norm, "x8")},
                                    {"x_scale", output(norm, "x_scale")},
                                    {"weight", of_rank(rank, "qkv_weight")},
                                    {"w_scale", of_rank(rank, "qkv_scale")}});
    const Tensor& qkv = output(projection, "qkv");
    const Outputs heads = run("qk_norm_rope",
                              {{"q_heads", kHeads},
                               {"kv_heads", std::int64_t{1}},
                               {"index_q_heads", kRanks},
                               {"head_dim", kDim},
                               {"rotary_dim", kDim / 2},
                               {"eps", 1e-6}},
                              {{"qkv", qkv},
                               {"position", item_.input("position")},
                               {"cos_sin", item_.input("cos_sin")},
                               {"q_gamma", item_.input("q_gamma")},
                               {"k_gamma", item_.input("k_gamma")},
                               {"index_q_gamma", item_.input("index_q_gamma")},
                               {"index_k_gamma", item_.input("index_k_gamma")}});
    const std::int64_t projected = (kHeads + 2 + kRanks + 1) * kDim;
    const Outputs caches =
        run("kv_cache_insert", {{"k_scale", 1.0}, {"v_scale", 1.0}},
            {{"k", output(heads, "k")},
             {"v", rows_of(qkv, kRows, kDim, projected, (kHeads + 1) * kDim, {kRows, 1, kDim})},
             {"index_k", output(heads, "index_k")},
             {"slot_mapping", item_.input("slot_mapping")},
             {"kv_cache", of_rank(rank, "kv_cache")},
             {"index_cache", of_rank(rank, "index_cache")}});
    return attend(rank, heads, caches);
  }

  /// Router to the rank's partial of the experts; h_mid stays in `h_mid`.
  Tensor experts(std::int64_t rank, const Tensor& sum, const Tensor& residual,
                 Tensor& h_mid) const {
    const Outputs router = run("router", {{"eps", 1e-6}},
                               {{"sum", sum},
                                {"residual", residual},
                                {"gamma", item_.input("post_gamma")},
                                {"gate", item_.input("gate")}});
    h_mid = output(router, "h_mid");
    const Outputs route =
        run("moe_route",
            {{"top_k", std::int64_t{4}},
             {"scaling", 2.0},
             {"renormalise", std::int64_t{1}},
             {"shared", std::int64_t{1}},
             {"shared_weight", 1.0}},
            {{"logits", output(router, "logits")}, {"bias", item_.input("bias")}});
    const Outputs xn = run("mx_quant", {}, {{"x", output(router, "xn")}});
    const NamedScalar format{"weights", std::string("mxfp8")};
    const NamedScalar routed{"n_routed", item_.integer("n_routed")};
    const Outputs up =
        run("expert_up_gate", {format, routed, {"limit", 7.0}, {"alpha", 1.702}, {"beta", 1.0}},
            {{"x8", output(xn, "codes")},
             {"x_scale", output(xn, "scales")},
             {"topk_ids", output(route, "topk_ids")},
             {"w13", of_rank(rank, "w13")},
             {"s13", of_rank(rank, "s13")},
             {"shared_w13", of_rank(rank, "shared_w13")},
             {"shared_s13", of_rank(rank, "shared_s13")}});
    const Outputs mid =
        run("mx_quant", {}, {{"x", reshaped(output(up, "mid"), {kRows * kSlots, kInter})}});
    const Outputs down =
        run("expert_down", {format, routed, {"wide_from", std::int64_t{5}}, {"scaling", 2.0}},
            {{"mid8", reshaped(output(mid, "codes"), {kRows, kSlots, kInter})},
             {"mid_scale", reshaped(output(mid, "scales"), {kRows, kSlots, kInter / 32})},
             {"topk_ids", output(route, "topk_ids")},
             {"topk_weights", output(route, "topk_weights")},
             {"w2", of_rank(rank, "w2")},
             {"s2", of_rank(rank, "s2")},
             {"shared_w2", of_rank(rank, "shared_w2")},
             {"shared_s2", of_rank(rank, "shared_s2")}});
    return output(down, "partial");
  }

 private:
  Tensor attend(std::int64_t rank, const Outputs& heads, const Outputs& caches) const {
    const double scale = 1.0 / std::sqrt(static_cast<double>(kDim));
    const std::vector<NamedScalar> selection{{"block_size", std::int64_t{128}},
                                             {"topk", item_.integer("topk")},
                                             {"init_blocks", item_.integer("init_blocks")},
                                             {"local_blocks", std::int64_t{1}},
                                             {"q_len", kQLen}};
    std::vector<NamedScalar> scoring = selection;
    scoring.insert(scoring.end(), {{"sm_scale", scale},
                                   {"world", std::int64_t{1}},
                                   {"rank", std::int64_t{0}},
                                   {"shard_from", std::int64_t{0}}});
    std::vector<NamedScalar> selecting = selection;
    selecting.push_back({"block_page_stride", std::int64_t{16}});
    // Every rank has the index queries of all; its own head selects.
    const Outputs score = run("index_score", scoring,
                              {{"index_q", rows_of(output(heads, "index_q"), kRows, kDim,
                                                   kRanks * kDim, rank * kDim, {kRows, 1, kDim})},
                               {"index_cache", output(caches, "index_cache")},
                               {"block_table", row_table_},
                               {"seq_lens", row_lens_},
                               {"score", item_.input("r0.score")}});
    const Outputs selected = run(
        "index_select", selecting,
        {{"score", output(score, "score")}, {"block_table", row_table_}, {"seq_lens", row_lens_}});
    const std::int64_t pages = item_.integer("topk") * 8;
    const Outputs parts =
        run("fp8_attention_partition", {{"sm_scale", scale}},
            {{"q", output(heads, "q")},
             {"sparse_block_table",
              reshaped(output(selected, "sparse_block_table"), {kRows, 1, pages})},
             {"sparse_context_lens", reshaped(output(selected, "sparse_context_lens"), {kRows, 1})},
             {"k_cache", output(caches, "kv_cache")}});
    const Outputs merged =
        run("attention_merge", {},
            {{"o", output(parts, "o")}, {"m", output(parts, "m")}, {"l", output(parts, "l")}});
    const Outputs quant =
        run("row_quant", {}, {{"a", reshaped(output(merged, "out"), {kRows, kHeads * kDim})}});
    const Outputs out = run("o_projection", {},
                            {{"a8", output(quant, "a8")},
                             {"a_scale", output(quant, "a_scale")},
                             {"weight", of_rank(rank, "o_weight")},
                             {"w_scale", of_rank(rank, "o_scale")}});
    return output(out, "out");
  }

  const Tensor& of_rank(std::int64_t rank, const char* name) const {
    return item_.input(fmt::format("r{}.{}", rank, name));
  }

  const Case& item_;
  std::int64_t width_ = 0;
  Tensor row_table_, row_lens_;
};

TEST(SparseLayer, TheLinksAreTheLayerOfTheSpecification) {
  for (const int seed : {3, 4}) {
    const Case item = build_case(parse_line(fmt::format(
        "stage=sparse_layer;seed={};requests=3;q_len=2;blocks=4;lengths=full;ranks=2;topk_blocks=2",
        seed)));
    const Stage& stage = find_stage("sparse_layer");
    const Outputs chain = run_reference(stage, item, stage.outputs(item));
    const Layer layer(item);
    std::vector<Tensor> partials, residuals(kRanks);
    for (std::int64_t r = 0; r < kRanks; ++r)
      partials.push_back(layer.attention(r, residuals[static_cast<std::size_t>(r)]));
    const Tensor sum = sum_in_rank_order(partials);
    partials.clear();
    std::vector<Tensor> h_mids(kRanks);
    for (std::int64_t r = 0; r < kRanks; ++r) {
      const auto at = static_cast<std::size_t>(r);
      partials.push_back(layer.experts(r, sum, residuals[at], h_mids[at]));
    }
    const Tensor ar_out = sum_in_rank_order(partials);
    for (std::int64_t r = 0; r < kRanks; ++r) {
      EXPECT_EQ(part_of(output(chain, "ar_out"), r).image(), ar_out.image()) << "rank " << r;
      EXPECT_EQ(part_of(output(chain, "h_mid"), r).image(),
                h_mids[static_cast<std::size_t>(r)].image())
          << "rank " << r;
    }
  }
}

}  // namespace
}  // namespace monoref
