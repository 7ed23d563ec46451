// vLLM's Triton decode attention (upstream-semantics section 6.2): preset vllm-triton.
#include "fuzz/judges/judge.hpp"
#include "reference/arithmetic/attention_bounds.hpp"
#include "reference/formats/convert.hpp"
#include "reference/model/sparse_attention.hpp"
#include "reference/rules/attention_tile.hpp"
#include "reference/rules/stage_checks.hpp"
#include "reference/stages/kv_page_address.hpp"

#include <cmath>
#include <cstring>

namespace monoref {
namespace {

constexpr std::int64_t kHeadDim = 128;
constexpr std::int64_t kKeysOfBlock = 128;

/// The recorded cache [blocks, 1, keys, 2 * head_dim], K before V in every key, as pages.
Tensor paged(const Tensor& recorded, KvLayout layout) {
  const std::int64_t head_dim = recorded.dim(3) / 2;
  const KvPageShape shape{.layout = layout,
                          .blocks = recorded.dim(0),
                          .head_dim = head_dim,
                          .element_size = static_cast<std::int64_t>(recorded.element_size()),
                          .block_size = recorded.dim(2)};
  Tensor cache(recorded.type(), Layout::dense({shape.blocks, shape.block_page_stride(), 1,
                                               head_dim * shape.page_size}));
  const std::size_t size = recorded.element_size();
  for (std::int64_t slot = 0; slot < shape.blocks * shape.block_size; ++slot)
    for (std::int64_t d = 0; d < head_dim; ++d) {
      const std::byte* key =
          recorded.base() + static_cast<std::size_t>(slot * 2 * head_dim + d) * size;
      const KvElement element{slot, 0, d};
      std::memcpy(cache.base() + k_byte(shape, element), key, size);
      std::memcpy(cache.base() + shape.v_view_offset() + v_byte(shape, element),
                  key + static_cast<std::size_t>(head_dim) * size, size);
    }
  return cache;
}

/// sm_scale * log2(e) in binary32, however the two were rounded on the way.
Bounded score_factor(double sm_scale) {
  const float rounded = static_cast<float>(sm_scale) * kLog2E;
  return Bounded::between(std::nextafter(rounded, 0.0f), std::nextafter(rounded, INFINITY));
}

/// Sizes that fit each other. Ids and lengths are the reference's to refuse.
void check_sizes(const RecordedCase& recorded) {
  const Tensor& q = recorded.input("q", {{DType::kBFloat16}, {kAnyExtent, kAnyExtent, kHeadDim}});
  const std::int64_t q_len = recorded.integer("decode_query_len", 1, kInt32Max);
  if (q.dim(0) % q_len != 0)
    refuse("{} is {}, must divide the {} rows of q", recorded.place("parameter decode_query_len"),
           q_len, q.dim(0));
  const std::int64_t requests = q.dim(0) / q_len;
  recorded.input("kv_cache", {{DType::kFloat8E4M3FN, DType::kBFloat16},
                              {kAnyExtent, 1, kKeysOfBlock, 2 * kHeadDim}});
  recorded.input("topk_idx", {{DType::kInt32}, {1, q.dim(0), kAnyExtent}});
  recorded.input("block_table", {{DType::kInt32}, {requests, kAnyExtent}});
  recorded.input("seq_lens", {{DType::kInt32}, {requests}});
  recorded.output("out", {{DType::kBFloat16}, q.dims()});
  check_work(recorded,
             {q.dim(0), q.dim(1), recorded.input("topk_idx").dim(2), kKeysOfBlock, 2 * kHeadDim});
}

}  // namespace

void judge_sparse_attention_decode(const RecordedCase& recorded, RunResult& result) {
  check_sizes(recorded);
  const Contract contract = Contract::parse("vllm-triton");
  const Tensor cache = paged(recorded.input("kv_cache"), contract.kv_layout);
  const float k_scale = static_cast<float>(recorded.real("k_scale"));
  const float v_scale = static_cast<float>(recorded.real("v_scale"));
  const View<const float, 1> k_view(&k_scale, {1}, {1});
  const View<const float, 1> v_view(&v_scale, {1}, {1});
  const SparseAttentionInput input{
      .q = recorded.input("q").view<std::uint16_t, 3>(),
      .topk_idx = recorded.input("topk_idx").view<std::int32_t, 3>(),
      .block_table = recorded.input("block_table").view<std::int32_t, 2>(),
      .seq_lens = recorded.input("seq_lens").view<std::int32_t, 1>(),
      .q_len = recorded.integer("decode_query_len"),
      .caches = {cache, cache, k_view, v_view},
      .sm_scale = recorded.real("sm_scale"),
      .contract = contract};
  const auto [rows, heads, dim] = sparse_attention_shape(input);
  Tensor ours(DType::kBFloat16, Layout::dense({rows, heads, dim}));
  sparse_attention(input, {ours.view<std::uint16_t, 3>()});
  const auto got = recorded.output("out").view<std::uint16_t, 3>();
  OutputJudge output("out", result);
  for (std::int64_t row = 0; row < rows; ++row) {
    const AttendedKeys keys = attended_keys(input, row);
    if (keys.count() == 0) {  // 0 or NaN in the original
      output.leave_out(static_cast<std::uint64_t>(heads * dim));
      continue;
    }
    for (std::int64_t head = 0; head < heads; ++head) {
      std::vector<float> q(keys.dim);
      for (std::size_t d = 0; d < q.size(); ++d) q[d] = float_from_bf16(input.q(row, head, d));
      const auto bounds = attention_bound({q, keys.k, keys.v, score_factor(input.sm_scale),
                                           static_cast<std::size_t>(input.topk_idx.dim(2))});
      for (std::int64_t d = 0; d < dim; ++d)
        output.code({{"row", row}, {"head", head}, {"dim", d}},
                    ours.view<std::uint16_t, 3>()(row, head, d),
                    code_range(bounds[static_cast<std::size_t>(d)], kBF16, Overflow::kInfinity),
                    got(row, head, d));
    }
  }
}

}  // namespace monoref
