#include "device/backend.hpp"

namespace monoref::device {

std::unique_ptr<Backend> make_nvidia_backend() {
  throw Unavailable{"nvidia backend: not in this build; configure with -DMONOREF_NVIDIA=ON"};
}

}  // namespace monoref::device
