#include "reference/rules/decode_prefill_split.hpp"

#include <algorithm>
#include <string_view>

#include "reference/rules/request_batch.hpp"

namespace monoref {
namespace {

constexpr std::string_view kStage = "decode_prefill_split";

bool is_prefill(const DecodePrefillSplitInput& input, std::int64_t request) {
  const std::int64_t tokens = query_len(input.query_start_loc, request);
  return input.require_uniform ? tokens != query_len(input.query_start_loc, 0)
                               : tokens > input.decode_threshold;
}

/// Rule 1 and rule 3: nothing in the batch is longer than a decode may be.
bool all_decodes(const DecodePrefillSplitInput& input, std::int64_t requests) {
  const std::int64_t first = query_len(input.query_start_loc, 0);
  std::int64_t longest = 0;
  bool same_or_empty = true;
  for (std::int64_t request = 0; request < requests; ++request) {
    const std::int64_t tokens = query_len(input.query_start_loc, request);
    longest = std::max(longest, tokens);
    same_or_empty = same_or_empty && (tokens == first || tokens == 0);
  }
  const bool any_length_will_do = !input.require_uniform || input.decode_threshold <= 1;
  if (longest <= input.decode_threshold && any_length_will_do) return true;
  return input.require_uniform && first <= input.decode_threshold && same_or_empty;
}

/// The number of leading decodes (rules 2 and 4).
std::int64_t leading_decodes(const DecodePrefillSplitInput& input, std::int64_t requests) {
  if (query_len(input.query_start_loc, 0) > input.decode_threshold) return 0;
  std::int64_t request = 0;
  while (request < requests && !is_prefill(input, request)) ++request;
  return request;
}

}  // namespace

DecodePrefillSplit decode_prefill_split(const DecodePrefillSplitInput& input) {
  const std::int64_t requests = input.query_start_loc.dim(0) - 1;
  if (requests < 0)
    refuse("{}: query_start_loc has {} entries, limit 1", kStage, input.query_start_loc.dim(0));
  check_query_start_loc(kStage, input.query_start_loc, requests);
  if (input.num_tokens < input.query_start_loc(requests))
    refuse("{}: num_tokens is {}, must be at least {}, which the queries hold", kStage,
           input.num_tokens, input.query_start_loc(requests));
  if (input.decode_threshold < 1)
    refuse("{}: decode_threshold is {}, limit 1", kStage, input.decode_threshold);
  if (requests == 0) return {0, 0, input.lengths == LengthRule::kAsSeed ? input.num_tokens : 0, 0};

  if (all_decodes(input, requests)) return {requests, 0, input.num_tokens, 0};
  const std::int64_t decodes = leading_decodes(input, requests);
  // Some request is a prefill here, so that padding tokens are prefill tokens.
  const std::int64_t decode_tokens = input.query_start_loc(decodes);
  return {decodes, requests - decodes, decode_tokens, input.num_tokens - decode_tokens};
}

void check_split(std::string_view stage, const DecodePrefillSplit& split, std::int64_t requests,
                 std::int64_t num_tokens) {
  if (split.num_decodes + split.num_prefills != requests)
    refuse("{}: split mismatch: {} decodes and {} prefills, must be {} requests together", stage,
           split.num_decodes, split.num_prefills, requests);
  if (split.num_decode_tokens + split.num_prefill_tokens != num_tokens)
    refuse("{}: split mismatch: {} decode tokens and {} prefill tokens, must be {} together", stage,
           split.num_decode_tokens, split.num_prefill_tokens, num_tokens);
}

}  // namespace monoref
