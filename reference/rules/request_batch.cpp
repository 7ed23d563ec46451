#include "reference/rules/request_batch.hpp"

#include <algorithm>

namespace monoref {

void check_extent(std::string_view stage, std::string_view name, std::int64_t extent,
                  std::int64_t expected) {
  if (extent != expected)
    refuse("{}: {} has extent {}, must have {}", stage, name, extent, expected);
}

void check_query_start_loc(std::string_view stage, View<const std::int32_t, 1> query_start_loc,
                           std::int64_t num_reqs) {
  check_extent(stage, "query_start_loc", query_start_loc.dim(0), num_reqs + 1);
  if (query_start_loc(0) != 0)
    refuse("{}: query_start_loc[0] is {}, must be 0", stage, query_start_loc(0));
  for (std::int64_t request = 0; request < num_reqs; ++request) {
    if (query_start_loc(request + 1) < query_start_loc(request))
      refuse("{}: query_start_loc[{}] is {}, at least {} expected (prefix sums never fall)", stage,
             request + 1, query_start_loc(request + 1), query_start_loc(request));
  }
}

void check_seq_lens(std::string_view stage, std::string_view name,
                    View<const std::int32_t, 1> seq_lens, std::int64_t num_reqs) {
  check_extent(stage, name, seq_lens.dim(0), num_reqs);
  for (std::int64_t request = 0; request < num_reqs; ++request) {
    if (seq_lens(request) < 0)
      refuse("{}: {}[{}] is {}, limit 0", stage, name, request, seq_lens(request));
  }
}

std::int64_t effective_compress_ratio(std::string_view stage, std::int64_t compress_ratio) {
  if (compress_ratio < 0) refuse("{}: compress_ratio is {}, limit 0", stage, compress_ratio);
  return std::max<std::int64_t>(compress_ratio, 1);
}

}  // namespace monoref
