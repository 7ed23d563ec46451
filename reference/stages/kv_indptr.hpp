// Stage kv_indptr: where each request's pages begin in a flat page list, in a captured bucket.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/tensor.hpp"

namespace monoref {

struct KvIndptrInput {
  /// [bucket] tokens; the step's requests come first, an earlier step's lengths may stand behind.
  View<const std::int32_t, 1> seq_lens;
  std::int64_t live = 0;       ///< requests of the step, 0 to bucket
  std::int64_t page_size = 1;  ///< tokens
};

struct KvIndptrOutput {
  View<std::int32_t, 1> indptr;  ///< [bucket + 1] pages
};

/// The dims [bucket + 1] of the output. Refuses live outside 0 to bucket, page_size < 1, and
/// lengths whose pages add up to more than int32 holds.
std::array<std::int64_t, 1> kv_indptr_shape(const KvIndptrInput& input);

/// indptr[0] = 0 and indptr[r + 1] = indptr[r] + pages of request r: ceil(seq_lens[r] / page_size),
/// none for a length below 1. Rows from `live` on hold none, whatever length stands there
/// (upstream-semantics section 6.3; bug cases T02, T26 and D04). Refuses what the shape function
/// refuses and an output of other dims, before it writes anything.
void kv_indptr(const KvIndptrInput& input, const KvIndptrOutput& output);

}  // namespace monoref
