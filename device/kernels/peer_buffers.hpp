// The buffers of all ranks as one argument of a kernel: a plain structure for those who launch it
// and for the kernel.
#pragma once

#include <cstdint>

namespace monoref::kernels {

constexpr std::int32_t kMaxRanks = 8;

/// Where every rank has its partial rows, its copy of their sum, and its mailbox. Ranks that do not
/// exist have null pointers.
struct PeerBuffers {
  const std::uint16_t* partial[kMaxRanks];
  std::uint16_t* sum[kMaxRanks];
  std::int32_t* mailbox[kMaxRanks];
};

}  // namespace monoref::kernels
