// What the stages of the indexer share: the rows of a step, their tables, and caches of few blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "fuzz/params.hpp"
#include "fuzz/random.hpp"
#include "fuzz/stage.hpp"
#include "golden/case.hpp"
#include "reference/rules/block_selection.hpp"

namespace monoref {

/// Requests with their lengths, as token_rows spreads them: request i owns rows i * q_len and
/// following, whose lengths count up to the request's.
struct StepRows {
  std::int64_t q_len = 1;
  std::vector<std::int32_t> lengths;  ///< of requests

  std::int64_t rows() const { return static_cast<std::int64_t>(lengths.size()) * q_len; }
  std::int64_t length(std::int64_t row) const {
    return lengths[static_cast<std::size_t>(row / q_len)] - (q_len - 1 - row % q_len);
  }
  /// Blocks of the longest row, at least one.
  std::int64_t most_blocks(const BlockSelection& selection) const;
  /// One length a row.
  std::vector<std::int64_t> row_lengths() const;
  /// `ids` [requests, width] once for every row of a request.
  std::vector<std::int32_t> row_tables(const std::vector<std::int32_t>& ids,
                                       std::int64_t width) const;
};

/// The rows of a step from the last request to the first, those of a request in their order.
std::vector<std::int64_t> reversed_requests(std::int64_t rows, std::int64_t q_len);

/// The requests of a case by its dimensions requests, q_len, lengths, blocks and short_of_capacity.
StepRows drawn_step_rows(const Params& params, const BlockSelection& selection,
                         CounterRandom& random);

/// The first `count` runs of `run` elements named by `ids`, `stride` apart: the storage of a cache
/// of which only some blocks exist. Ids may repeat.
std::vector<Extent> stored_blocks(std::vector<std::int32_t> ids, std::int64_t stride,
                                  std::int64_t run);

/// The scalars that a selection stands in a case with, and back.
void add_selection(Case& item, const BlockSelection& selection);
BlockSelection selection_of(const Case& item);
/// What they may be: kernels have blocks of 128 keys.
std::vector<ScalarSpec> selection_scalars();

/// Bits of every element of a tensor at row-major position, for properties.
bool same_bits(const Outputs& a, const Outputs& b, std::string_view name);

}  // namespace monoref
