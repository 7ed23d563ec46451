#include "reference/stages/compressed_slot_mapping.hpp"

#include <algorithm>
#include <limits>

#include "reference/rules/integer_division.hpp"
#include "reference/rules/request_batch.hpp"

namespace monoref {
namespace {

constexpr std::string_view kSlots = "compressed_slot_mapping";
constexpr std::string_view kLengths = "compressed_seq_lens";
/// A block id times this stays inside int64.
constexpr std::int64_t kMaxBlockSize = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kNoSlot = -1;

void check_pages(const CompressedPages& pages) {
  if (pages.storage_block_size < 1 || pages.storage_block_size > kMaxBlockSize)
    refuse("{}: storage_block_size is {}, limits 1 and {}", kSlots, pages.storage_block_size,
           kMaxBlockSize);
  effective_compress_ratio(kSlots, pages.compress_ratio);
  check_context_parallel(kSlots, pages.context_parallel);
  if (pages.context_parallel.world > 1 &&
      pages.storage_block_size % pages.context_parallel.interleave != 0)
    refuse(
        "{}: storage_block_size is {}, must be a multiple of the interleave {}, else a run would "
        "reach"
        " into the next block's slots",
        kSlots, pages.storage_block_size, pages.context_parallel.interleave);
}

}  // namespace

std::int64_t compressed_slot(View<const std::int32_t, 2> block_table, std::int64_t request,
                             std::int64_t position, const CompressedPages& pages) {
  const std::int64_t ratio = std::max<std::int64_t>(pages.compress_ratio, 1);
  if (position < 0 || (position + 1) % ratio != 0) return kNoSlot;
  const std::int64_t compressed = position / ratio;
  if (owner_rank(compressed, pages.context_parallel) != pages.context_parallel.rank) return kNoSlot;

  const std::int64_t virtual_block = pages.storage_block_size * pages.context_parallel.world;
  const std::int64_t column = compressed / virtual_block;
  if (column >= block_table.dim(1)) return kNoSlot;
  const std::int64_t block = block_table(request, column);
  if (block < 0) return kNoSlot;

  const std::int64_t offset = local_position(compressed % virtual_block, pages.context_parallel);
  return block * pages.storage_block_size + offset;
}

void check_compressed_slot_mapping(const CompressedSlotMappingInput& input,
                                   const CompressedSlotMappingOutput& output) {
  const std::int64_t requests = input.seq_lens.dim(0);
  check_pages(input.pages);
  check_seq_lens(kSlots, "seq_lens", input.seq_lens, requests);
  check_query_start_loc(kSlots, input.query_start_loc, requests);
  if (input.block_table.dim(0) < requests)
    refuse("{}: block_table has {} rows, must have at least {}, one a request", kSlots,
           input.block_table.dim(0), requests);
  if (output.slot_mapping.dim(0) < input.query_start_loc(requests))
    refuse("{}: slot_mapping has {} slots, must have at least {}, one a token", kSlots,
           output.slot_mapping.dim(0), input.query_start_loc(requests));
}

void compressed_slot_mapping(const CompressedSlotMappingInput& input,
                             const CompressedSlotMappingOutput& output) {
  check_compressed_slot_mapping(input, output);
  const std::int64_t requests = input.seq_lens.dim(0);
  for (std::int64_t request = 0; request < requests; ++request) {
    const std::int64_t first = input.query_start_loc(request);
    const std::int64_t tokens = query_len(input.query_start_loc, request);
    const std::int64_t start = input.seq_lens(request) - tokens;
    for (std::int64_t token = 0; token < tokens; ++token) {
      output.slot_mapping(first + token) =
          compressed_slot(input.block_table, request, start + token, input.pages);
    }
  }
  for (std::int64_t token = input.query_start_loc(requests); token < output.slot_mapping.dim(0);
       ++token) {
    output.slot_mapping(token) = kNoSlot;
  }
}

std::int64_t compressed_length(std::int64_t length, std::int64_t compress_ratio,
                               const ContextParallel& context_parallel) {
  const std::int64_t ratio = std::max<std::int64_t>(compress_ratio, 1);
  return local_length(floor_divide(length, ratio), context_parallel);
}

void compressed_seq_lens(const CompressedSeqLensInput& input,
                         const CompressedSeqLensOutput& output) {
  effective_compress_ratio(kLengths, input.compress_ratio);
  check_context_parallel(kLengths, input.context_parallel);
  const std::int64_t rows = input.seq_lens.dim(0);
  check_extent(kLengths, "compressed_seq_lens", output.compressed_seq_lens.dim(0), rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    output.compressed_seq_lens(row) = static_cast<std::int32_t>(
        compressed_length(input.seq_lens(row), input.compress_ratio, input.context_parallel));
  }
}

}  // namespace monoref
