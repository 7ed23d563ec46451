#include "reference/stages/prefill_chunk_split.hpp"

#include <algorithm>
#include <limits>
#include <string_view>

#include "reference/core/limits.hpp"
#include "reference/rules/integer_division.hpp"
#include "reference/rules/request_batch.hpp"

namespace monoref {
namespace {

constexpr std::string_view kStage = "prefill_chunk_split";
constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kBytesPerLogit = 4;
/// One for each token of a step. No real batch comes near, and a malformed one must not take the
/// machine.
constexpr std::int64_t kMaxChunks = limits::kTokens;

/// Query tokens and key rows of a chunk.
struct Extent2D {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
};

void check_lengths(std::string_view name, View<const std::int64_t, 1> lengths) {
  for (std::int64_t request = 0; request < lengths.dim(0); ++request) {
    if (lengths(request) < 0 || lengths(request) > kMaxLength)
      refuse("{}: {}[{}] is {}, limits 0 and {}", kStage, name, request, lengths(request),
             kMaxLength);
  }
}

void check(const PrefillChunkSplitInput& input) {
  check_extent(kStage, "query_lens", input.query_lens.dim(0), input.seq_lens.dim(0));
  check_lengths("seq_lens", input.seq_lens);
  check_lengths("query_lens", input.query_lens);
  if (input.workspace_size < 0)
    refuse("{}: workspace_size is {}, limit 0", kStage, input.workspace_size);
  if (input.max_logits_bytes < 0)
    refuse("{}: max_logits_bytes is {}, limit 0", kStage, input.max_logits_bytes);
  if (input.request_offset < 0 || input.request_offset > kMaxLength)
    refuse("{}: request_offset is {}, limits 0 and {}", kStage, input.request_offset, kMaxLength);
}

bool fits(const Extent2D& chunk, const PrefillChunkSplitInput& input) {
  std::int64_t logits = 0;
  if (__builtin_mul_overflow(chunk.queries, chunk.keys, &logits)) return false;
  return chunk.keys <= input.workspace_size && logits <= input.max_logits_bytes / kBytesPerLogit;
}

/// Appends the pieces of one run of requests.
void append_pieces(std::vector<PrefillChunk>& chunks, std::int64_t start, std::int64_t stop,
                   const Extent2D& chunk, const PrefillChunkSplitInput& input) {
  if (chunk.queries == 0 && chunk.keys == 0 && input.lengths == LengthRule::kAsSeed)
    refuse(
        "{}: requests {} to {} have neither a query nor a key, and the original cannot cut them in "
        "steps of 0 queries",
        kStage, start + input.request_offset, stop + input.request_offset);
  if (chunk.queries == 0) return;
  const std::int64_t budget = input.max_logits_bytes / kBytesPerLogit;
  const std::int64_t piece =
      chunk.keys > 0 ? std::max<std::int64_t>(1, budget / chunk.keys) : chunk.queries;
  const std::int64_t total =
      static_cast<std::int64_t>(chunks.size()) + ceil_divide(chunk.queries, piece);
  if (total > kMaxChunks)
    refuse("{}: requests {} to {} make {} chunks, limit {}", kStage, start, stop, total,
           kMaxChunks);
  for (std::int64_t query = 0; query < chunk.queries; query += piece) {
    chunks.push_back({start + input.request_offset, stop + input.request_offset, query,
                      query + std::min(piece, chunk.queries - query)});
  }
}

}  // namespace

std::vector<PrefillChunk> prefill_chunk_split(const PrefillChunkSplitInput& input) {
  check(input);
  const std::int64_t requests = input.seq_lens.dim(0);
  std::vector<PrefillChunk> chunks;
  std::int64_t stop = 0;
  while (stop < requests) {
    const std::int64_t start = stop;
    Extent2D chunk;
    while (stop < requests) {
      const Extent2D grown{chunk.queries + input.query_lens(stop),
                           chunk.keys + input.seq_lens(stop)};
      if (!fits(grown, input)) break;
      chunk = grown;
      ++stop;
    }
    if (stop == start) {
      chunk = {input.query_lens(stop), input.seq_lens(stop)};
      ++stop;
    }
    append_pieces(chunks, start, stop, chunk, input);
  }
  return chunks;
}

}  // namespace monoref
