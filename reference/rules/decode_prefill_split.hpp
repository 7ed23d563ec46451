// Which requests of a batch are decodes and which are prefills.
#pragma once

#include <cstdint>
#include <string_view>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

/// A batch in two runs: decodes first, prefills behind them.
struct DecodePrefillSplit {
  std::int64_t num_decodes = 0;
  std::int64_t num_prefills = 0;
  std::int64_t num_decode_tokens = 0;
  std::int64_t num_prefill_tokens = 0;
  bool operator==(const DecodePrefillSplit&) const = default;
};

struct DecodePrefillSplitInput {
  View<const std::int32_t, 1> query_start_loc;  ///< [requests+1]
  std::int64_t num_tokens = 0;                  ///< rows of the step, padding tokens included
  std::int64_t decode_threshold = 1;            ///< 1 + num_speculative_tokens
  bool require_uniform = false;                 ///< the decode kernels take one query length only
  LengthRule lengths = LengthRule::kAsSeed;     ///< decides whose an empty batch's tokens are
};

/// The split (recordings: indexer_metadata):
///
/// 1. Longest query <= threshold, and uniformity not required or the threshold at most 1: all are
///    decodes.
/// 2. Otherwise a first query longer than the threshold: none are.
/// 3. Otherwise, with uniformity required and every query as long as the first or empty: all are;
///    the empty ones are padding. Compared one by one: the token count says nothing (bug case T03).
/// 4. Otherwise the cut is at the first query that differs from the first one (uniform) or exceeds
///    the threshold.
///
/// Padding tokens behind the last request belong to the last run. An empty batch has no decodes and
/// no prefills; its padding tokens are decode tokens in the original, which takes it for a batch
/// of decodes, and nobody's in ours (`kClamped`). Refuses prefix sums that fall, fewer num_tokens
/// than they add up to, and a threshold below 1.
DecodePrefillSplit decode_prefill_split(const DecodePrefillSplitInput& input);

/// The original's own check of a split, "split mismatch"
/// (deepseek-indexer-metadata: DeepseekV32IndexerMetadataBuilder.build): refuses one that does not
/// hold `requests` requests and `num_tokens` tokens.
void check_split(std::string_view stage, const DecodePrefillSplit& split, std::int64_t requests,
                 std::int64_t num_tokens);

}  // namespace monoref
