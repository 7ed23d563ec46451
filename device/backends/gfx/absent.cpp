#include <fmt/format.h>

#include "device/backends/gfx/backend.hpp"
#include "device/backends/gfx/inspect.hpp"

namespace monoref::device {

namespace {

[[noreturn]] void absent(std::string_view what) {
  throw Unavailable{fmt::format(
      "{}: not in this build, which found no LLVM 22; install llvm-22-dev and build again", what)};
}

}  // namespace

std::unique_ptr<Backend> make_gfx_backend(std::string_view chip, const gfx::Manner&) {
  absent(fmt::format("{} backend", chip));
}
std::unique_ptr<Backend> make_gfx_backend_of(const std::filesystem::path&, const gfx::Manner&) {
  absent("executing code objects");
}

namespace gfx {

Description describe(const std::filesystem::path&) {
  absent("reading code objects");
}

}  // namespace gfx

}  // namespace monoref::device
