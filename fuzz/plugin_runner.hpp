// Runs cases through somebody's shared library.
#pragma once

#include <memory>
#include <string>

#include "fuzz/runner.hpp"

namespace monoref {

/// Loads a plugin (device/plugin.h). Throws device::Unavailable with the reason if it cannot.
std::unique_ptr<Runner> make_plugin_runner(const std::string& path);

}  // namespace monoref
