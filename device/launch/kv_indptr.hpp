// kv_indptr: see device/kernels/kv_indptr.hip.
#pragma once

#include "device/launch/launch.hpp"

namespace monoref::device::launch {

struct KvIndptr {
  const std::int32_t* seq_lens;
  std::int64_t seq_lens_stride;
  std::int32_t* indptr;
  std::int64_t bucket, live, page_size;

  static constexpr std::string_view kernel() { return "monoref_kv_indptr"; }
  /// One wave takes a row a lane; others have nothing to do.
  Grid grid(int wave) const { return {.threads_x = static_cast<std::uint32_t>(wave)}; }
  static constexpr Legal legal(int wave) { return any_xy(wave); }
  template <class Take>
  void pass(const Take& take) const {
    take(seq_lens, seq_lens_stride, indptr, bucket, live, narrow(page_size));
  }
};

}  // namespace monoref::device::launch
