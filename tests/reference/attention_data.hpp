// Caches and partial attention for tests: keys and values are put in by slot, as a model sees them.
#pragma once

#include <bit>
#include <cmath>
#include <vector>

#include "reference/formats/convert.hpp"
#include "reference/rules/fp8_rules.hpp"
#include "reference/stages/attention_merge.hpp"
#include "reference/stages/fp8_attention_partition.hpp"
#include "tests/reference/stage_test.hpp"

namespace monoref::testing {

/// Owned inputs of the attention stages, one page-16 block of 128 keys after another.
struct Attention {
  Contract contract{};
  KvPageShape shape{};
  Tensor k_cache;
  Tensor v_cache;  ///< unused where sides are interleaved
  Tensor q;
  Tensor table;
  Tensor contexts;
  std::vector<float> k_scale{};  ///< empty: absent
  std::vector<float> v_scale{};
  double sm_scale = 0.08838834764831845;

  /// `rows` rows of `heads` zero queries over `blocks` blocks of zero keys and values; tables list
  /// the pages of the blocks in order, contexts reach to their end.
  static Attention zeros(const Contract& contract, std::int64_t rows, std::int64_t heads,
                         std::int64_t blocks, std::int64_t kv_heads = 1,
                         std::int64_t head_dim = 16) {
    Attention made;
    made.contract = contract;
    made.shape = {
        .layout = contract.kv_layout, .blocks = blocks, .kv_heads = kv_heads, .head_dim = head_dim};
    const DType type = fp8_dtype(contract);
    const Layout cache =
        Layout::dense({blocks, made.shape.block_page_stride(), kv_heads, head_dim * 16});
    made.k_cache = Tensor(type, cache);
    made.v_cache = Tensor(type, cache);
    made.k_cache.fill_bytes(std::byte{0});
    made.v_cache.fill_bytes(std::byte{0});
    made.q = Tensor(DType::kBFloat16, Layout::dense({rows, heads, head_dim}));
    made.q.fill_bytes(std::byte{0});
    made.table = Tensor(DType::kInt32, Layout::dense({rows, kv_heads, blocks * 8}));
    made.contexts = Tensor(DType::kInt32, Layout::dense({rows, kv_heads}));
    for (std::int64_t row = 0; row < rows; ++row) {
      made.set_context(row, 128 * blocks);
      for (std::int64_t page = 0; page < blocks * 8; ++page)
        made.set_page(row, page, page / 8 * made.shape.block_page_stride() + page % 8);
    }
    return made;
  }

  bool interleaved() const { return shape.layout == KvLayout::kInterleaved; }
  /// Of all kv heads.
  void set_page(std::int64_t row, std::int64_t column, std::int64_t page) {
    for (std::int64_t head = 0; head < shape.kv_heads; ++head)
      table.view<std::int32_t, 3>()(row, head, column) = static_cast<std::int32_t>(page);
  }
  void set_context(std::int64_t row, std::int64_t keys) {
    for (std::int64_t head = 0; head < shape.kv_heads; ++head)
      contexts.view<std::int32_t, 2>()(row, head) = static_cast<std::int32_t>(keys);
  }
  void set_q(std::int64_t row, std::int64_t head, std::int64_t dim, float value) {
    q.view<std::uint16_t, 3>()(row, head, dim) = bf16_from_float(value);
  }
  void set_k_code(const KvElement& element, std::uint8_t code) {
    k_cache.base()[k_byte(shape, element)] = std::byte{code};
  }
  void set_v_code(const KvElement& element, std::uint8_t code) {
    Tensor& cache = interleaved() ? k_cache : v_cache;
    cache.base()[shape.v_view_offset() + v_byte(shape, element)] = std::byte{code};
  }
  void set_k(const KvElement& element, float value) {
    set_k_code(element, fp8_rules(contract).encode(value));
  }
  void set_v(const KvElement& element, float value) {
    set_v_code(element, fp8_rules(contract).encode(value));
  }
  /// V of every key, head and dim.
  void fill_v(float value) {
    for (std::int64_t slot = 0; slot < shape.blocks * shape.block_size; ++slot)
      for (std::int64_t head = 0; head < shape.kv_heads; ++head)
        for (std::int64_t dim = 0; dim < shape.head_dim; ++dim) set_v({slot, head, dim}, value);
  }

  View<const float, 1> scale_view(const std::vector<float>& scale) const {
    if (scale.empty()) return {};
    return {scale.data(), {static_cast<std::int64_t>(scale.size())}, {1}};
  }
  AttentionCaches caches() const {
    return {k_cache, interleaved() ? k_cache : v_cache, scale_view(k_scale), scale_view(v_scale)};
  }
  Fp8AttentionPartitionInput input() const {
    return {q.view<std::uint16_t, 3>(),
            reading<3>(table),
            reading<2>(contexts),
            caches(),
            sm_scale,
            contract};
  }
};

/// Owned outputs.
struct PartialAttention {
  Tensor o;
  Tensor m;
  Tensor l;

  std::uint16_t o_code(std::int64_t row, std::int64_t part, std::int64_t head,
                       std::int64_t dim) const {
    return o.view<std::uint16_t, 4>()(row, part, head, dim);
  }
  float o_at(std::int64_t row, std::int64_t part, std::int64_t head, std::int64_t dim) const {
    return float_from_bf16(o_code(row, part, head, dim));
  }
  float m_at(std::int64_t row, std::int64_t part, std::int64_t head) const {
    return m.view<float, 3>()(row, part, head);
  }
  float l_at(std::int64_t row, std::int64_t part, std::int64_t head) const {
    return l.view<float, 3>()(row, part, head);
  }
  Numbers bits() const { return joined({values(o), values(m), values(l)}); }
};

template <class Run>
PartialAttention partial(const Attention& attention, Run run) {
  const Fp8AttentionPartitionShape shape = fp8_attention_partition_shape(attention.input());
  const auto dense = [](const auto& dims) {
    return Layout::dense(Numbers(dims.begin(), dims.end()));
  };
  PartialAttention made{poisoned(DType::kBFloat16, dense(shape.o)),
                        poisoned(DType::kFloat32, dense(shape.m)),
                        poisoned(DType::kFloat32, dense(shape.m))};
  run(attention.input(),
      Fp8AttentionPartitionOutput{made.o.view<std::uint16_t, 4>(), made.m.view<float, 3>(),
                                  made.l.view<float, 3>()});
  return made;
}

inline PartialAttention partial(const Attention& attention) {
  return partial(attention,
                 [](const auto& in, const auto& out) { fp8_attention_partition(in, out); });
}
inline PartialAttention partial_fast(const Attention& attention, Isa isa = best_isa()) {
  return partial(attention, [isa](const auto& in, const auto& out) {
    fp8_attention_partition_fast(in, out, isa);
  });
}

/// Rows of merged attention, [rows][heads][dim] in order.
inline std::vector<float> merged(const PartialAttention& part, const Contract& contract) {
  const AttentionMergeInput input{part.o.view<std::uint16_t, 4>(), part.m.view<float, 3>(),
                                  part.l.view<float, 3>(), contract};
  const auto dims = attention_merge_shape(input);
  Tensor out = poisoned(DType::kBFloat16, Layout::dense({dims[0], dims[1], dims[2]}));
  attention_merge(input, {out.view<std::uint16_t, 3>()});
  std::vector<float> all;
  for (const std::int64_t code : values(out))
    all.push_back(float_from_bf16(static_cast<std::uint16_t>(code)));
  return all;
}

}  // namespace monoref::testing
