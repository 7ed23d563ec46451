#include "fuzz/stages/indexer_kernels.hpp"

#include <algorithm>

namespace monoref {
namespace {

/// One wave of 64, or two of 32: with it a prefix sum over a few dozen requests takes several
/// passes of the block.
constexpr std::uint32_t kThreads = 64;
/// Kernels go over rows with the grid's stride, so a few blocks exercise that too.
constexpr std::int64_t kMostBlocks = 8;

device::Grid grid_over(std::int64_t rows) {
  return {.blocks_x = static_cast<std::uint32_t>(std::clamp<std::int64_t>(rows, 1, kMostBlocks)),
          .threads_x = kThreads};
}

}  // namespace

CacheSharingArguments cache_sharing(std::int64_t compress_ratio, const ContextParallel& ranks) {
  return {static_cast<std::int32_t>(compress_ratio), static_cast<std::int32_t>(ranks.world),
          static_cast<std::int32_t>(ranks.rank), static_cast<std::int32_t>(ranks.interleave)};
}

void launch_decode_expand(const Launcher& launcher, const DecodeExpandLaunch& arguments) {
  const CacheSharingArguments& sharing = arguments.sharing;
  launcher.run("monoref_decode_expand_uniform", grid_over(arguments.requests * arguments.query_len),
               arguments.seq_lens.data, arguments.seq_lens.stride, arguments.block_table.data,
               arguments.block_table.stride, arguments.expanded_table,
               arguments.expanded_row_stride, arguments.decode_seq_lens, arguments.decode_lens,
               arguments.requests, arguments.live_rows, arguments.length_rows,
               static_cast<std::int32_t>(arguments.width),
               static_cast<std::int32_t>(arguments.expanded_width),
               static_cast<std::int32_t>(arguments.query_len), sharing.compress_ratio,
               sharing.world, sharing.rank, sharing.interleave, arguments.length_limit);
}

void launch_prefill_chunk(const Launcher& launcher, const PrefillChunkLaunch& arguments) {
  const CacheSharingArguments& sharing = arguments.sharing;
  launcher.run("monoref_prefill_cu_seq_lens", device::Grid{.threads_x = kThreads},
               arguments.seq_lens, arguments.cu_seq_lens, arguments.requests,
               sharing.compress_ratio, sharing.world, sharing.rank, sharing.interleave);
  launcher.run("monoref_prefill_chunk_metadata", grid_over(arguments.requests),
               arguments.query_start_loc, arguments.seq_lens,
               static_cast<const std::int32_t*>(arguments.cu_seq_lens), arguments.token_to_seq,
               arguments.cu_seqlen_ks, arguments.cu_seqlen_ke, arguments.requests,
               arguments.entries, arguments.query_start, arguments.query_stop,
               sharing.compress_ratio, sharing.world, sharing.rank, sharing.interleave);
}

void launch_slot_mapping(const Launcher& launcher, const SlotMappingLaunch& arguments) {
  const CacheSharingArguments& sharing = arguments.sharing;
  launcher.run("monoref_compressed_slot_mapping", grid_over(arguments.requests + 1),
               arguments.query_start_loc, arguments.seq_lens, arguments.block_table.data,
               arguments.block_table.stride, arguments.slots, arguments.requests,
               arguments.slot_count, static_cast<std::int32_t>(arguments.width),
               static_cast<std::int32_t>(arguments.storage_block_size), sharing.compress_ratio,
               sharing.world, sharing.rank, sharing.interleave);
}

}  // namespace monoref
