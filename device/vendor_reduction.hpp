// The vendor's own all-reduce, as a yardstick for the kernel.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace monoref::device {

struct VendorReduction {
  double seconds = 0;  ///< of one reduction, on the devices; 0: there is none here
  std::string what;    ///< "NCCL 2.28.9", or why there is none
};

/// Sums `elements` BF16 numbers over the devices in place, `repeats` times one after the other,
/// with the library that is found at run time: NCCL, as libnccl.so.2.
VendorReduction time_vendor_reduction(std::span<const int> devices, std::size_t elements,
                                      int repeats);

}  // namespace monoref::device
