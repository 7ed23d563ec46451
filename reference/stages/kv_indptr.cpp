#include "reference/stages/kv_indptr.hpp"

#include <algorithm>

#include "reference/rules/stage_checks.hpp"

namespace monoref {
namespace {

/// Pages that hold `length` tokens.
std::int64_t pages_of(std::int64_t length, std::int64_t page_size) {
  return (std::max<std::int64_t>(length, 0) + page_size - 1) / page_size;
}

}  // namespace

std::array<std::int64_t, 1> kv_indptr_shape(const KvIndptrInput& input) {
  const std::int64_t bucket = input.seq_lens.dim(0);
  if (input.live < 0 || input.live > bucket)
    refuse("kv_indptr: live is {}, must be 0 to {}, the extent of seq_lens", input.live, bucket);
  if (input.page_size < 1 || input.page_size > kInt32Max)
    refuse("kv_indptr: page_size is {}, must be 1 to {}", input.page_size, kInt32Max);
  std::int64_t pages = 0;
  for (std::int64_t r = 0; r < input.live; ++r) {
    pages += pages_of(input.seq_lens(r), input.page_size);
    if (!fits_int32(pages))
      refuse("kv_indptr: requests 0 to {} have {} pages, the limit is {}", r, pages, kInt32Max);
  }
  return {bucket + 1};
}

void kv_indptr(const KvIndptrInput& input, const KvIndptrOutput& output) {
  const auto dims = kv_indptr_shape(input);
  require_dims("kv_indptr: output kv_indptr", output.indptr, dims);
  output.indptr(0) = 0;
  for (std::int64_t r = 0; r + 1 < dims[0]; ++r) {
    const std::int64_t pages = r < input.live ? pages_of(input.seq_lens(r), input.page_size) : 0;
    output.indptr(r + 1) = static_cast<std::int32_t>(output.indptr(r) + pages);
  }
}

}  // namespace monoref
