// How the kernels of a case are launched and where its buffers begin: dimensions that all stages
// share and that no bit of a result may depend on. They are drawn after a stage's own, so that what
// a case holds does not change with them, and a line that does not name them means the defaults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "device/launch/launch.hpp"

namespace monoref {

class Params;
struct Dimension;
struct Stage;

struct LaunchChoice {
  device::launch::Shape shape;  ///< of every kernel, as near as it can take it
  std::int64_t bases = 0;       ///< which buffers begin off a multiple of 16; 0: none
  bool operator==(const LaunchChoice&) const = default;
};

/// Bytes from a multiple of 16 to the base address of buffer number `index` with elements of
/// `element_size` bytes, a multiple of those; 0 for about half of the buffers.
std::size_t base_offset(std::int64_t bases, std::size_t index, std::size_t element_size);

/// The same stage, with these dimensions behind its own where it has kernels.
Stage with_launch_dimensions(Stage stage);

/// The choice among a stage's parameters, the default where it has none.
LaunchChoice launch_choice(const Params& params);
/// The choice that the line of a kept case names; the default as well where this program does not
/// understand the line any more.
LaunchChoice launch_choice(const Stage& stage, std::string_view line);
/// The same parameters with the default choice.
Params with_default_launch(Params params);

}  // namespace monoref
