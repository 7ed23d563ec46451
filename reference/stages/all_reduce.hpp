// Stage all_reduce: the partial results of all ranks added up, and the mailboxes they wait on.
#pragma once

#include <array>
#include <cstdint>

#include "reference/core/contract.hpp"
#include "reference/core/tensor.hpp"

namespace monoref {

/// Most ranks that reduce together, and the elements of a pack, which one rank adds as a whole.
inline constexpr std::int64_t kReduceMaxRanks = 8;
inline constexpr std::int64_t kReducePack = 8;
/// Rows from which the owner form is used, unless a case says otherwise.
inline constexpr std::int64_t kReduceOwnerFrom = 12;
/// Phases of the owner form: partials are readable, sums are readable. The direct form has only the
/// first.
inline constexpr std::int64_t kReducePhases = 2;
/// Most channels: each is a block of every rank, and all of them must run at once.
inline constexpr std::int64_t kReduceMaxChannels = 64;

struct AllReduceInput {
  View<const std::uint16_t, 3> partials;  ///< [ranks, rows, hidden] BF16
  /// [phases, ranks (whose mailbox), ranks (sender), channels]: the tag that the sender stored last
  View<const std::int32_t, 4> flags;
  std::int32_t tag = 0;                        ///< of this reduction; tags count on and wrap around
  std::int64_t owner_from = kReduceOwnerFrom;  ///< rows from which the owner form is used
  std::int64_t absent = 0;                     ///< ranks, the last ones, that never come
  Contract contract{};
};

struct AllReduceOutput {
  View<std::uint16_t, 3> sum;    ///< [ranks, rows, hidden] BF16, each rank's own copy
  View<std::int32_t, 4> flags;   ///< as the input, and what the ranks stored
  View<std::int32_t, 1> status;  ///< [ranks - absent]: 0 done, 1 + p gave up waiting for rank p
};

/// Whether a step of so many rows is reduced by owners (mono-decode section 7).
constexpr bool reduces_by_owner(std::int64_t rows, std::int64_t owner_from) {
  return rows >= owner_from;
}

/// The dims [ranks, rows, hidden] of the sums.
///
/// Refuses: ranks outside 1 to 8; hidden that is not a multiple of 8 (a pack); owner_from below 1;
/// absent outside 0 to ranks - 1; flags of other dims, or of channels outside 1 to 64; and a flag
/// of a phase in use that is not before the tag. Before means int32(flag - tag) < 0, so that tags
/// may wrap around: a later flag would let a rank read what its peer has not written yet.
std::array<std::int64_t, 3> all_reduce_shape(const AllReduceInput& input);

/// Per element, in binary32 (mono-decode sections 7 and 10):
///
///   sum = bf16((((0 + p[r0]) + p[r1]) + ..)     the same bits on every rank
///
/// over the ranks' partials in rank order, r0 = 0. From `owner_from` rows the owner of row t, rank
/// t mod ranks, does that for its rows and the others copy the result: the value is the same.
/// Adding to 0 makes a sum of -0 alone +0.
///
/// Under the contract's rotated order (upstream-semantics section 3.2) the packs of the flat tensor
/// [rows * hidden] are cut into `ranks` equal segments, the last one with what is left over, and
/// segment s starts at rank s and wraps: s, s + 1, .., s - 1.
///
/// Every rank stores the tag in all channels of all mailboxes, its own included: in phase 0, and
/// in the owner form in phase 1 too. The direct form leaves phase 1 as it is. The status is 0.
///
/// Where ranks never come, the others store the tag in phase 0, wait up to a limit of their own,
/// and give up: their status is 1 + the lowest rank that is absent, and no sum is written.
///
/// Refuses what the shape function refuses and outputs of other dims, before it writes anything.
void all_reduce(const AllReduceInput& input, const AllReduceOutput& output);

}  // namespace monoref
