// The host-side shape of a batch that the sparse indexers' stages share: requests side by side,
// their query tokens flat, `query_start_loc` the prefix sums of the query lengths.
#pragma once

#include <cstdint>
#include <string_view>

#include "reference/core/tensor.hpp"

namespace monoref {

/// Query tokens of one request.
inline std::int64_t query_len(View<const std::int32_t, 1> query_start_loc, std::int64_t request) {
  return std::int64_t{query_start_loc(request + 1)} - query_start_loc(request);
}

/// Refuses prefix sums that are not num_reqs + 1 numbers, do not begin at 0 or ever fall.
void check_query_start_loc(std::string_view stage, View<const std::int32_t, 1> query_start_loc,
                           std::int64_t num_reqs);

/// Refuses lengths that are not one a request, or negative ones. `name` is the argument's.
void check_seq_lens(std::string_view stage, std::string_view name,
                    View<const std::int32_t, 1> seq_lens, std::int64_t num_reqs);

/// Refuses a tensor whose extent on one axis is not the number the stage needs.
void check_extent(std::string_view stage, std::string_view name, std::int64_t extent,
                  std::int64_t expected);

/// The compress ratio that divides: 0 and 1 both mean "none". Refuses negative ones (bug case T12).
std::int64_t effective_compress_ratio(std::string_view stage, std::int64_t compress_ratio);

}  // namespace monoref
