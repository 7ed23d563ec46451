// index_score: see device/kernels/index_score.hip.
#pragma once

#include <type_traits>

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

/// Element: uint8 for codes, uint16 for bf16, which has no encoding.
template <class Element>
struct IndexScore {
  const std::uint16_t* q;
  std::int64_t q_row_stride, q_head_stride;
  const Element* cache;
  std::int64_t cache_block_stride, cache_token_stride, cache_blocks;
  const std::int32_t* block_table;
  std::int64_t table_row_stride;
  const std::int32_t* seq_lens;
  std::int64_t seq_lens_stride;
  float* scores;
  std::int64_t score_row_stride, score_head_stride;
  std::int64_t rows, heads, dim, width, q_len, topk, init_blocks, local_blocks;
  float sm_scale;
  std::int32_t encoding = 0;
  std::int32_t scaling, tables_of;
  std::int64_t world, rank, shard_from;

  static constexpr bool kCodes = std::is_same_v<Element, std::uint8_t>;
  static_assert(kCodes || std::is_same_v<Element, std::uint16_t>);
  static constexpr std::uint32_t kThreads = 128;
  static constexpr std::int64_t kColumns = 16;  ///< rows and heads that a block has at once

  static constexpr std::string_view kernel() {
    return kCodes ? "monoref_index_score_fp8" : "monoref_index_score_bf16";
  }
  std::int64_t columns() const { return heads * q_len; }
  Grid grid(int) const {
    return {.blocks_x = blocks(width, 512),
            .blocks_y = blocks(rows / q_len),
            .blocks_z = blocks(parts(columns(), kColumns)),
            .threads_x = kThreads};
  }
  static constexpr Legal legal(int) {
    constexpr Range kAny{1, kMostBlocks};
    return {kAny, kAny, kAny, {kThreads, kThreads}, kThreads};
  }
  std::uint32_t shared_bytes(std::uint32_t) const {
    return 512 * (columns() <= 1 ? 1 : columns() <= 4 ? 4 : 16);
  }
  template <class Take>
  void pass(const Take& take) const {
    const auto all = [&](auto... options) {
      take(q, q_row_stride, q_head_stride, On16{cache}, cache_block_stride, cache_token_stride,
           cache_blocks, block_table, table_row_stride, seq_lens, seq_lens_stride, scores,
           score_row_stride, score_head_stride, rows, narrow(heads), narrow(dim), narrow(width),
           narrow(q_len), narrow(topk), narrow(init_blocks), narrow(local_blocks), sm_scale,
           options..., scaling, tables_of, narrow(world), narrow(rank), narrow(shard_from));
    };
    if constexpr (kCodes)
      all(encoding);
    else
      all();
  }
};

}  // namespace monoref::device::launch
