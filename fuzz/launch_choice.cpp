#include "fuzz/launch_choice.hpp"

#include <algorithm>

#include "fuzz/random.hpp"
#include "fuzz/stage.hpp"
#include "reference/core/error.hpp"

namespace monoref {
namespace {

constexpr std::string_view kBlocksX = "blocks_x";
constexpr std::string_view kBlocksY = "blocks_y";
constexpr std::string_view kWaves = "block_waves";
constexpr std::string_view kBases = "bases";

/// Few blocks make a kernel loop and cost less than many; waves that have nothing to do cost time,
/// and are drawn seldom.
std::vector<Dimension> launch_dimensions() {
  return {{kBlocksX, 0, 0, 3, {0, 1, 2, 5}, {}, "blocks of a launch in x; 0: as suits it", 65535},
          {kBlocksY,
           0,
           0,
           3,
           {0, 1, 2, 5},
           {},
           "the same in y, and in z where a kernel goes over it",
           65535},
          {kWaves,
           0,
           0,
           1,
           {0, 0, 0, 0, 0, 0, 0, 2, 4, 16},
           {},
           "waves of a block; 0: as suits it",
           32},
          {kBases,
           0,
           0,
           15,
           {0},
           {},
           "which buffers begin off a multiple of 16, and by how much; 0: none",
           65535}};
}

std::int64_t value_or_default(const Params& params, std::string_view name) {
  const auto& dimensions = params.dimensions();
  for (std::size_t i = 0; i < dimensions.size(); ++i)
    if (dimensions[i].name == name) return params.values()[i];
  return 0;
}

}  // namespace

std::size_t base_offset(std::int64_t bases, std::size_t index, std::size_t element_size) {
  if (bases == 0) return 0;
  CounterRandom random(static_cast<std::uint64_t>(bases), index);
  if (random.once_in(2)) return 0;
  return static_cast<std::size_t>(random.below(16)) / element_size * element_size;
}

Stage with_launch_dimensions(Stage stage) {
  if (!stage.launch) return stage;
  for (Dimension& dimension : launch_dimensions()) stage.dimensions.push_back(std::move(dimension));
  return stage;
}

LaunchChoice launch_choice(const Params& params) {
  const auto count = [&](std::string_view name) {
    return static_cast<std::uint32_t>(value_or_default(params, name));
  };
  return {{count(kBlocksX), count(kBlocksY), count(kWaves)}, value_or_default(params, kBases)};
}

LaunchChoice launch_choice(const Stage& stage, std::string_view line) {
  if (line.empty()) return {};
  try {
    Params params(stage.dimensions);
    apply_settings(params, parse_line(line));
    return launch_choice(params);
  } catch (const Refusal&) {
    return {};
  }
}

Params with_default_launch(Params params) {
  for (std::size_t i = 0; i < params.values().size(); ++i)
    for (const std::string_view name : {kBlocksX, kBlocksY, kWaves, kBases})
      if (params.dimensions()[i].name == name) params.values()[i] = 0;
  return params;
}

}  // namespace monoref
