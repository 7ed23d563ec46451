// all_reduce: the sum over the ranks of their partial rows, each rank's own copy of it.
//
// Source of the rule: mono-decode section 7 (all-reduce), section 10 (where sums start),
// upstream-semantics section 3.2 (rotated order).
//
//   sum      f32, over the bf16 partials of the ranks in order, from 0.0; then bf16
//   order    0, 1, .. for every element; or, rotated: the vectors of all rows, one row after the
//            other, are split into as many equal segments as there are ranks (the last has the
//            rest), and segment r is summed in the order r, r + 1, .., wrapping around
//   direct   every rank sums all rows
//   owner    rank t mod ranks sums row t; the others fetch the sum from it
//
// Every rank makes the same sums in the same order, so that both forms give all ranks the same
// bits.
//
// Mailboxes. A rank's mailbox has a flag for every phase, sender and channel. A sender stores the
// step's tag there when its data for the receiver is ready: in phase 0 its partials, in phase 1 the
// sums of its rows (owner form only). A flag has arrived when it is not behind the tag; tags
// grow by one a step and may wrap around. Channels are blocks: block c of every rank takes the same
// share of the rows, and waits for the blocks c of the others only.
//
// A rank is a plane of the grid: gridDim.z ranks, first_rank + blockIdx.z: one where every
// rank has a device, all of them where they share one.
//
// Reuse of buffers. A rank reaches phase 0 of a step only when its previous step is done, so sums
// and mailboxes are free again by then. Its partials are read by others until their kernels end:
// steps alternate between two buffers of partials.

#include <cstdint>

#include "device/kernels/number_formats.hpp"
#include "device/kernels/peer_buffers.hpp"
#include "device/kernels/registers.hpp"
#include "device/kernels/row_copy.hpp"
#include "device/kernels/vector_access.hpp"
#include "device/simt.hpp"

namespace monoref::kernels {
namespace {

constexpr std::int32_t kVector = 8;

/// Values of `order`.
constexpr std::int32_t kOrderRankOrder = 0;
constexpr std::int32_t kOrderRotated = 1;

constexpr std::int32_t kPhasePartials = 0;
constexpr std::int32_t kPhaseSums = 1;

/// Higher than every rank: none is absent.
constexpr std::int32_t kNobody = INT32_MAX;

/// The arguments of a launch. It lies in shared memory, where a thread may pick a rank's buffer.
struct Exchange {
  PeerBuffers peers;
  std::int64_t mailbox_phase_stride;
  std::int64_t rows;
  std::int32_t hidden;
  std::int32_t ranks;
  std::int32_t tag;
  bool owners;
  bool rotated;
  std::int64_t spin_limit;

  MONOREF_MEMBER std::int64_t vectors_of_row() const { return hidden / kVector; }

  /// Rows of which `rank` makes the sums.
  MONOREF_MEMBER std::int64_t rows_of(std::int32_t rank) const {
    if (!owners) return rows;
    if (MONOREF_FAULT(reduce_last_rows_unowned, "own", "the rows that are left over have no owner"))
      return rows / ranks;
    return (rows - rank + ranks - 1) / ranks;
  }
  /// The n-th of them.
  MONOREF_MEMBER std::int64_t row_of(std::int32_t rank, std::int64_t n) const {
    return owners ? rank + n * ranks : n;
  }

  /// The flag that `sender` sets for `receiver` in this block's channel.
  MONOREF_MEMBER std::int32_t* flag(std::int32_t phase, std::int32_t receiver,
                                    std::int32_t sender) const {
    return in_global(peers.mailbox[receiver]) + phase * mailbox_phase_stride +
           std::int64_t{sender} * gridDim.x + blockIdx.x;
  }

  /// Whether a flag has arrived: it is not behind the step's tag, compared modulo 2^32.
  MONOREF_MEMBER bool reached(std::int32_t flag) const {
    if (MONOREF_FAULT(reduce_tags_compared_as_numbers, "own",
                      "tags that wrapped around count as smaller"))
      return flag >= tag;
    if (MONOREF_FAULT(reduce_flag_awaited_by_equality, "own",
                      "a slow rank takes a flag that is a reduction ahead for one to wait for",
                      .stages = {"sparse_layer"}, .needs_devices = true))
      return flag == tag;
    const auto ahead = static_cast<std::int32_t>(static_cast<std::uint32_t>(flag) -
                                                 static_cast<std::uint32_t>(tag));
    return ahead >=
           (MONOREF_FAULT(reduce_stale_tag_accepted, "own", "an older tag counts as the step's")
                ? -1
                : 0);
  }
};

/// Polls a flag at most spin_limit times. Returns whether it has arrived.
MONOREF_DEVICE bool wait_for(const Exchange& x, const std::int32_t* flag) {
  for (std::int64_t looks = 0; looks < x.spin_limit; ++looks) {
    if (x.reached(simt::load_acquire(flag))) return true;
    simt::relax();
  }
  return false;
}

/// Waits some 10 ms, in which peers may get a reduction ahead, as if the thread were not scheduled.
MONOREF_DEVICE void linger() {
  for (int i = 0; i < 100000; ++i) simt::relax();
}

// Flags that break what the memory model asks for, in device/simt/cuda.hpp. They need not show
// where hardware orders more than that: on two H200s over NVLink neither was found in 30,000 cases.
// A sum is stored to its rank's own memory, from where the others fetch it; to be seen before it,
// its flag would have to cross the link, and the fetch to come back over it, while the sum is still
// on its way there.
MONOREF_FAULT_ELSEWHERE(flags_stored_plainly, "own", "flags are plain stores, not releases",
                        .needs_devices = true);
MONOREF_FAULT_ELSEWHERE(flags_ordered_on_one_device, "own",
                        "releases and acquires hold for one device", .needs_devices = true);

/// A barrier of this block's channel over the ranks: raises this rank's flags of `phase` and waits
/// for those of all others. What they stored before is visible to this block after it. Returns the
/// lowest rank whose flag did not arrive; `absent` is shared, one number.
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE std::int32_t rank_barrier(const Exchange& x,
                                                                  std::int32_t phase,
                                                                  std::int32_t rank,
                                                                  std::int32_t* absent) {
  if (threadIdx.x == 0) *absent = kNobody;
  __syncthreads();  // the block's stores are done
  const auto peer = static_cast<std::int32_t>(threadIdx.x);
  if (peer < x.ranks) {
    const bool told = !(
        MONOREF_FAULT(reduce_own_flag_not_advanced, "own", "a rank does not store its own flag") &&
        peer == rank);
    if (told) simt::store_release(x.flag(phase, peer, rank), x.tag);
    if (MONOREF_FAULT_AT(reduce_flag_awaited_by_equality) && rank == x.ranks - 1) linger();
    if (peer != rank && !wait_for(x, x.flag(phase, rank, peer))) simt::atomic_min(absent, peer);
  }
  __syncthreads();
  return *absent;
}

/// Records in the rank's status that it gave up waiting for `absent`. All blocks of a rank may do
/// so, but only after block 0, which zeroes the status before it raises a flag.
MONOREF_DEVICE void give_up(const Exchange& x, std::int32_t rank, std::int32_t absent,
                            std::int32_t* status) {
  if (threadIdx.x != 0) return;
  wait_for(x, x.flag(kPhasePartials, rank, rank) - blockIdx.x);
  *status =
      MONOREF_FAULT(reduce_status_of_wrong_peer, "own", "a rank that waited names another peer")
          ? 1 + rank
          : 1 + absent;
}

/// The share of this block's channel in `count` vectors: it takes those from first to end.
struct Share {
  std::int64_t first, end;
};
MONOREF_DEVICE Share share_of_channel(std::int64_t count) {
  const std::int64_t each = (count + gridDim.x - 1) / gridDim.x;
  const std::int64_t first = each * blockIdx.x;
  std::int64_t end = first + each < count ? first + each : count;
  if (MONOREF_FAULT(reduce_last_run_dropped, "own", "the last eight elements are left out") &&
      end == count)
    --end;
  return {first, end};
}

/// Eight numbers at `at`; `wide`: it is a multiple of 16 bytes.
template <bool wide>
MONOREF_DEVICE simt::Vec16 load_vector(const std::uint16_t* at) {
  if constexpr (wide) {
    return simt::load16(at);
  } else {
    simt::Vec16 vector{};
    for (int i = 0; i < kVector; ++i) vector.word[i / 2] |= std::uint32_t{at[i]} << i % 2 * 16;
    return vector;
  }
}
template <bool wide>
MONOREF_DEVICE void store_vector(std::uint16_t* at, const simt::Vec16& vector) {
  if constexpr (wide) {
    simt::store16(at, vector);
  } else {
    for (int i = 0; i < kVector; ++i)
      at[i] = static_cast<std::uint16_t>(vector.word[i / 2] >> i % 2 * 16);
  }
}

/// The rank whose partial comes first in the sum of vector `vector` of the rows.
MONOREF_DEVICE std::int32_t first_rank_of_vector(const Exchange& x, std::int64_t vector,
                                                 std::int32_t rank) {
  if (MONOREF_FAULT(reduce_own_rank_first, "own", "a rank starts with its own partial sums"))
    return rank;
  if (MONOREF_FAULT(reduce_order_rotated, "own", "every element starts at rank 1"))
    return 1 % x.ranks;
  if (!x.rotated) return 0;
  if (MONOREF_FAULT(reduce_segments_of_each_row, "own", "every row is cut into segments by itself"))
    vector %= x.vectors_of_row();
  const std::int64_t all = MONOREF_FAULT_AT(reduce_segments_of_each_row)
                               ? x.vectors_of_row()
                               : x.rows * x.vectors_of_row();
  const std::int64_t segment = all / x.ranks;
  if (segment == 0) return x.ranks - 1;
  const std::int64_t of_vector = vector / segment;
  return static_cast<std::int32_t>(of_vector < x.ranks ? of_vector : x.ranks - 1);
}

/// The sum over the ranks of vector `vector` of the rows. The loads of all
/// partials are in flight at once.
template <bool wide>
MONOREF_DEVICE simt::Vec16 sum_of_vector(const Exchange& x, std::int64_t vector,
                                         std::int32_t rank) {
  simt::Vec16 partials[kMaxRanks];
  std::int32_t from = first_rank_of_vector(x, vector, rank);
  MONOREF_UNROLL
  for (int n = 0; n < kMaxRanks; ++n) {
    if (n >= x.ranks) continue;
    partials[n] = load_vector<wide>(in_global(x.peers.partial[from]) + vector * kVector);
    from = from + 1 == x.ranks ? 0 : from + 1;
  }
  float sums[kVector] = {};
  MONOREF_UNROLL
  for (int n = 0; n < kMaxRanks; ++n) {
    if (n >= x.ranks) continue;
    float values[kVector];
    for (int i = 0; i < kVector / 2; ++i) split_bf16_pair(partials[n].word[i], values + 2 * i);
    for (int i = 0; i < kVector; ++i) {
      sums[i] =
          MONOREF_FAULT(reduce_sum_from_first, "own", "the sum starts at the first partial") &&
                  n == 0
              ? values[i]
              : sums[i] + values[i];
      if (MONOREF_FAULT(reduce_sum_in_bf16, "own", "rounded after each addition"))
        sums[i] = rounded_to_bf16(sums[i]);
    }
  }
  return {{bf16_pair(sums[0], sums[1]), bf16_pair(sums[2], sums[3]), bf16_pair(sums[4], sums[5]),
           bf16_pair(sums[6], sums[7])}};
}

/// The channel's share of the rows that `owner` makes the sums of: sums them, on that rank, or
/// fetches them from there. A vector's number counts through all rows.
template <bool wide>
MONOREF_DEVICE void move_rows(const Exchange& x, std::int32_t owner, std::int32_t rank) {
  const std::int64_t of_row = x.vectors_of_row();
  const Share share = share_of_channel(x.rows_of(owner) * of_row);
  const bool sums = owner == rank;
  const std::int32_t source =
      MONOREF_FAULT(reduce_owner_off_by_one, "own", "the owner form begins a row too late")
          ? (owner + 1) % x.ranks
          : owner;
  std::uint16_t* to = in_global(x.peers.sum[rank]);
  for (std::int64_t i = share.first + threadIdx.x; i < share.end; i += blockDim.x) {
    const std::int64_t nth = i / of_row;
    const std::int64_t vector = x.row_of(owner, nth) * of_row + (i - nth * of_row);
    if (sums)
      store_vector<wide>(to + vector * kVector, sum_of_vector<wide>(x, vector, rank));
    else
      store_vector<wide>(to + vector * kVector,
                         load_vector<wide>(in_global(x.peers.sum[source]) + vector * kVector));
  }
}

/// Fetches the other owners' sums, the next rank's first.
template <bool wide>
MONOREF_DEVICE void fetch_rows(const Exchange& x, std::int32_t rank) {
  MONOREF_KEEP_LOOP
  for (std::int32_t n = 1; n < x.ranks; ++n) {
    const std::int32_t owner = rank + n < x.ranks ? rank + n : rank + n - x.ranks;
    move_rows<wide>(x, owner, rank);
  }
}

/// One rank's part once all partials are ready. Returns the lowest absent rank.
template <bool wide>
MONOREF_DEVICE MONOREF_BLOCK_COLLECTIVE std::int32_t reduce_rows(const Exchange& x,
                                                                 std::int32_t rank,
                                                                 std::int32_t* absent) {
  const bool fetches_early = MONOREF_FAULT(reduce_gather_before_ready, "own",
                                           "sums are fetched before their owner is done") &&
                             x.owners;
  if (fetches_early) fetch_rows<wide>(x, rank);
  if (MONOREF_FAULT(reduce_flag_before_sums, "own",
                    "a rank raises its flag before its sums are stored", .needs_devices = true) &&
      x.owners && threadIdx.x < static_cast<std::uint32_t>(x.ranks))
    simt::store_release(x.flag(kPhaseSums, static_cast<std::int32_t>(threadIdx.x), rank), x.tag);
  move_rows<wide>(x, rank, rank);
  if (!x.owners) return kNobody;
  const std::int32_t missing = rank_barrier(x, kPhaseSums, rank, absent);
  if (missing != kNobody) return missing;
  if (!fetches_early) fetch_rows<wide>(x, rank);
  return kNobody;
}

/// Whether all vectors of the launch begin on multiples of 16 bytes.
MONOREF_DEVICE bool is_wide(const Exchange& x) {
  bool wide = true;
  if (MONOREF_FAULT(
          reduce_wide_by_stride_only, "own",
          "where partials and sums begin is not looked at before they are moved by 16 bytes"))
    return wide;
  for (std::int32_t rank = 0; rank < x.ranks; ++rank)
    wide = wide && aligned16(x.peers.partial[rank]) && aligned16(x.peers.sum[rank]);
  return wide;
}

}  // namespace

// Inputs   peers: for every rank below `ranks`
//          partial  bf16 [rows, hidden], dense; visible to all ranks when the rank's launch begins
//          mailbox  int32 [2 phases][ranks (senders)][channels], phases mailbox_phase_stride
//                   elements apart; it holds older tags, or anything that is behind `tag`, and is
//                   left with `tag` in all flags of the phases used: phase 0, in the owner form
//                   phase 1 as well
// Outputs  peers.sum  bf16 [rows, hidden] for every rank, dense; no partial lies there
//          status     int32 [gridDim.z], one for each rank of the launch: 0 done; 1 + p: it gave up
//                     waiting for rank p, the lowest one if several are absent. Of a rank that gave
//                     up in phase 0 no sum is written, in phase 1 none but those of its own rows.
// Sizes    1 .. 8 ranks; hidden a multiple of 8
// Options  owner_from  rows >= owner_from: owner form; fewer: direct
//          order       0: rank order; 1: rotated
//          spin_limit  how often a flag is looked at before the rank gives up
// Launch   cooperative: blocks wait for each other. x is the channels, the same number on all
// ranks;
//          y is 1; z the ranks of this launch, which begin with first_rank. Blocks of whole waves
//          in one dimension. A thread has 8 elements at a time: a block of 512 for each row is
//          plenty.
// Misuse   Other sizes, orders, ranks and grids write nothing.
MONOREF_KERNEL(512, monoref_all_reduce)(PeerBuffers peers, std::int64_t mailbox_phase_stride,
                                        std::int32_t* status, std::int64_t rows,
                                        std::int32_t hidden, std::int32_t ranks,
                                        std::int32_t first_rank, std::int32_t tag,
                                        std::int64_t owner_from, std::int32_t order,
                                        std::int64_t spin_limit) {
  MONOREF_SHARED(Exchange, kept, 1);
  MONOREF_SHARED(std::int32_t, absent, 1);
  if (ranks < 1 || ranks > kMaxRanks || hidden < kVector || hidden % kVector != 0) return;
  if (order != kOrderRankOrder && order != kOrderRotated) return;
  const std::int64_t last_rank = std::int64_t{first_rank} + gridDim.z - 1;
  if (first_rank < 0 || last_rank >= ranks || gridDim.y != 1) return;
  if (blockDim.x % simt::kWave != 0) return;
  if (threadIdx.x == 0)
    *kept = {peers,
             mailbox_phase_stride,
             rows,
             hidden,
             ranks,
             tag,
             rows >= owner_from,
             order == kOrderRotated,
             spin_limit};
  __syncthreads();
  const Exchange& x = *kept;
  const std::int32_t rank = first_rank + static_cast<std::int32_t>(blockIdx.z);
  if (threadIdx.x == 0 && blockIdx.x == 0) status[blockIdx.z] = 0;
  std::int32_t missing = rank_barrier(x, kPhasePartials, rank, absent);
  if (missing == kNobody)
    missing = is_wide(x) ? reduce_rows<true>(x, rank, absent) : reduce_rows<false>(x, rank, absent);
  if (missing != kNobody) give_up(x, rank, missing, status + blockIdx.z);
}
MONOREF_REGISTER(monoref_all_reduce);

}  // namespace monoref::kernels
