#include "device/backend.hpp"
#include "device/vendor_reduction.hpp"

namespace monoref::device {

std::unique_ptr<Backend> make_nvidia_backend(std::span<const int>, KernelBuild) {
  throw Unavailable{"nvidia backend: not in this build; configure with -DMONOREF_NVIDIA=ON"};
}

VendorReduction time_vendor_reduction(std::span<const int>, std::size_t, int) {
  return {0, "not in this build; configure with -DMONOREF_NVIDIA=ON"};
}

}  // namespace monoref::device
