// AMD's code objects on the CPU: the instructions of gfx942 and gfx950, executed one after the
// other.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "device/backend.hpp"
#include "device/backends/gfx/manner.hpp"

namespace monoref::device {

/// A backend that executes the code objects of `chip`, gfx942 or gfx950, in waves of 64. Throws
/// Unavailable in a build without LLVM or without code objects, and on a CPU without AVX2 and FMA.
std::unique_ptr<Backend> make_gfx_backend(std::string_view chip, const gfx::Manner& manner = {});

/// The same with the kernels of this file alone, whoever compiled it, for the chip that it names.
/// Throws std::invalid_argument for a file that is none.
std::unique_ptr<Backend> make_gfx_backend_of(const std::filesystem::path& code_object,
                                             const gfx::Manner& manner);

}  // namespace monoref::device
