#include "device/backend.hpp"

namespace monoref::device {

std::unique_ptr<Backend> make_amd_backend(std::span<const int>) {
  throw Unavailable{
      "amd backend: not in this build, which found no HIP runtime; build on a machine with ROCm"};
}

}  // namespace monoref::device
