// kv_indptr: where each request's pages begin in a flat page list, in a captured bucket.
//
// Source of the rule: upstream-semantics section 6.3.
//
// Work. A bucket has some hundred rows, so one wave sums them, a row a lane, and carries the total
// from each pass to the next.

#include <cstdint>

#include "device/kernels/prefix_sum.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

/// Pages that hold `length` tokens.
MONOREF_DEVICE std::uint32_t pages_of(std::int32_t length, std::int32_t page_size) {
  if (MONOREF_FAULT(indptr_partial_page_dropped, "own", "a page that is not full is not counted"))
    return length > 0 ? static_cast<std::uint32_t>(length / page_size) : 0;
  if (MONOREF_FAULT(indptr_negative_length_counted, "T02", "lengths below 0 take pages away"))
    return static_cast<std::uint32_t>(length / page_size + (length % page_size > 0 ? 1 : 0));
  return length > 0 ? static_cast<std::uint32_t>((length - 1) / page_size + 1) : 0;
}

}  // namespace

// Inputs   seq_lens int32 [bucket], seq_lens_stride elements apart: tokens of each request; rows
//          from `live` on are not read
// Outputs  indptr int32 [bucket + 1], dense: 0, then the running sum of the pages; rows from `live`
//          on add none
// Launch   any grid and any block of whole waves; the first wave of the first block does the work.
// Misuse   page_size < 1 writes nothing. Sums wrap as int32 does.
MONOREF_KERNEL(1024, monoref_kv_indptr)(const std::int32_t* seq_lens, std::int64_t seq_lens_stride,
                                        std::int32_t* indptr, std::int64_t bucket,
                                        std::int64_t live, std::int32_t page_size) {
  if (blockIdx.x > 0 || blockIdx.y > 0 || blockIdx.z > 0 || simt::wave() > 0 || page_size < 1)
    return;
  if (MONOREF_FAULT(indptr_stale_rows_counted, "D04", "lengths of an earlier step take pages"))
    live = bucket;
  if (MONOREF_FAULT(indptr_length_stride_ignored, "T05", "lengths read as if contiguous"))
    seq_lens_stride = 1;
  if (simt::lane() == 0) indptr[0] = 0;
  std::uint32_t before = 0;  // the sum of all earlier passes
  for (std::int64_t first = 0; first < bucket; first += simt::kWave) {
    const std::int64_t row = first + simt::lane();
    const std::uint32_t pages =
        row < live ? pages_of(seq_lens[row * seq_lens_stride], page_size) : 0;
    std::uint32_t sum = before + wave_inclusive_sum(pages);
    before = simt::shuffle(sum, simt::kWave - 1);
    if (MONOREF_FAULT(indptr_sum_of_pass_lost, "own", "sums start again with each pass"))
      before = 0;
    if (MONOREF_FAULT(indptr_padding_from_zero, "T26",
                      "rows behind the live ones begin at page 0") &&
        row >= live)
      sum = 0;
    if (row < bucket) indptr[row + 1] = static_cast<std::int32_t>(sum);
  }
}
MONOREF_REGISTER(monoref_kv_indptr);

}  // namespace monoref::kernels
