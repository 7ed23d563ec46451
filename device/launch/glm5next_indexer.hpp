// glm5next_indexer: see device/kernels/glm5next_indexer.hip.
#pragma once

#include <type_traits>

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct DecodeScatterIndices {
  const std::int32_t* decode_lens;
  std::int64_t* req_id;
  std::int64_t* intra;
  std::int64_t requests, tokens;

  static constexpr std::string_view kernel() { return "monoref_decode_scatter_indices"; }
  Grid grid(int) const { return {.blocks_x = blocks(requests), .threads_x = 64}; }
  static constexpr Legal legal(int wave) { return any_x(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(decode_lens, req_id, intra, requests, tokens);
  }
};

/// Element: uint8, uint16, uint32 or uint64.
template <class Element>
struct DecodeScatter {
  const Element* tokens;
  std::int64_t token_stride;
  const std::int32_t* decode_lens;
  Element* rows;
  std::int64_t requests, lmax, inner, token_count;
  Element pad;

  static constexpr std::string_view kernel() {
    static_assert(std::is_unsigned_v<Element> && sizeof(Element) <= 8);
    return sizeof(Element) == 1   ? "monoref_decode_scatter_b8"
           : sizeof(Element) == 2 ? "monoref_decode_scatter_b16"
           : sizeof(Element) == 4 ? "monoref_decode_scatter_b32"
                                  : "monoref_decode_scatter_b64";
  }
  /// The waves of a block go over a request's rows.
  Grid grid(int) const { return {.blocks_x = blocks(requests), .threads_x = 64}; }
  static constexpr Legal legal(int wave) { return any_x(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(tokens, token_stride, decode_lens, rows, requests, lmax, inner, token_count, pad);
  }
};

struct DecodeTopkSeqLens {
  const std::int64_t* positions;
  std::int64_t position_stride;
  const std::int32_t* decode_lens;
  std::int32_t* topk_seq_lens;
  std::int64_t requests, next_n, tokens;
  std::int32_t padded;

  static constexpr std::string_view kernel() { return "monoref_decode_topk_seq_lens"; }
  Grid grid(int) const { return {.blocks_x = blocks(requests), .threads_x = 64}; }
  static constexpr Legal legal(int wave) { return any_x(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(positions, position_stride, decode_lens, topk_seq_lens, requests, next_n, tokens, padded);
  }
};

struct FillCausalIndices {
  const std::int64_t* positions;
  std::int32_t* topk_indices;
  std::int64_t row_stride, rows, width;

  static constexpr std::string_view kernel() { return "monoref_fill_causal_indices"; }
  Grid grid(int) const { return {.blocks_x = blocks(rows), .threads_x = 64}; }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(positions, topk_indices, row_stride, rows, narrow(width));
  }
};

struct ExpandPools {
  const std::int32_t* pool_ids;
  std::int64_t pool_row_stride, pool_id_stride;
  const std::int32_t* seq_lens;
  std::int32_t* token_ids;
  std::int64_t token_row_stride, rows, selected, pool_size;

  static constexpr std::string_view kernel() { return "monoref_expand_pools"; }
  Grid grid(int) const { return {.blocks_x = blocks(rows), .threads_x = 64}; }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(pool_ids, pool_row_stride, pool_id_stride, seq_lens, token_ids, token_row_stride, rows,
         narrow(selected), narrow(pool_size));
  }
};

}  // namespace monoref::device::launch
