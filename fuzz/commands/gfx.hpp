// The commands of `monoref gfx`, which take code objects, whoever compiled them.
#pragma once

#include <filesystem>
#include <string>

#include "fuzz/commands/commands.hpp"

namespace monoref {

/// Prints what a code object says of itself.
int gfx_describe_command(const CommonOptions& common, const std::filesystem::path& file);

struct GfxRunOptions {
  std::filesystem::path file, launch;
  std::string mfma = "exact";  ///< the model by which matrix instructions add
};
/// Executes a launch, and compares memory after it with what the file says: 0 the same, 1 not.
int gfx_run_command(const CommonOptions& common, const GfxRunOptions& options);

}  // namespace monoref
