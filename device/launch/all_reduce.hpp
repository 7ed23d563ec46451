// all_reduce: see device/kernels/all_reduce.hip.
#pragma once

#include "device/kernels/peer_buffers.hpp"
#include "device/launch/launch.hpp"

namespace monoref::device::launch {

/// The launch of one device, for `here` neighbouring ranks that it has. Those of other devices have
/// the same channels and begin together with it.
struct AllReduce {
  kernels::PeerBuffers peers;
  std::int64_t mailbox_phase_stride;
  std::int32_t* status;  ///< of the first rank here
  std::int64_t rows, hidden, ranks, first_rank, here, channels;
  std::int32_t tag;
  std::int64_t owner_from;
  std::int32_t order;
  std::int64_t spin_limit;

  static constexpr std::string_view kernel() { return "monoref_all_reduce"; }
  /// A thread has eight elements at a time of what a channel has of a row.
  Grid grid(int) const {
    const std::int64_t of_row =
        std::max<std::int64_t>(channels / std::max<std::int64_t>(rows, 1), 1);
    return {.blocks_x = blocks(channels),
            .blocks_z = blocks(here),
            .threads_x = threads_for(parts(hidden / 8, of_row), 512),
            .cooperative = true};
  }
  /// Channels and ranks are what mailboxes are laid out for.
  Legal legal(int wave) const {
    Legal legal = any_x(wave, 512);
    legal.x = {blocks(channels), blocks(channels)};
    legal.z = {blocks(here), blocks(here)};
    return legal;
  }
  template <class Take>
  void pass(const Take& take) const {
    take(peers, mailbox_phase_stride, status, rows, narrow(hidden), narrow(ranks),
         narrow(first_rank), tag, owner_from, order, spin_limit);
  }
};

}  // namespace monoref::device::launch
