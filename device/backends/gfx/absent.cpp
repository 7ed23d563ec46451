#include <fmt/format.h>

#include "device/backends/gfx/backend.hpp"

namespace monoref::device {

std::unique_ptr<Backend> make_gfx_backend(std::string_view chip, const gfx::Manner&) {
  throw Unavailable{fmt::format(
      "{} backend: not in this build, which found no LLVM 22; install llvm-22-dev and build again",
      chip)};
}

}  // namespace monoref::device
