// `monoref bench` of the all-reduce between devices.
#pragma once

#include "fuzz/commands/commands.hpp"

namespace monoref {

/// One rank a device of `backend`, rows of the model's width; beside it the vendor's library, which
/// is asked for the same on `devices`. Both count the time on the devices, one reduction after the
/// other. Sums that are not the reference's are an error of the measurement.
void register_reduction_benchmarks(device::Backend& backend, const std::vector<int>& devices);

}  // namespace monoref
