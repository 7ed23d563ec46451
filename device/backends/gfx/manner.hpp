// How a launch is run, where any way must give the same results.
#pragma once

#include <cstdint>

namespace monoref::device::gfx {

/// Who runs next. Any order must give the same results.
enum class Schedule : std::uint8_t {
  kRunAhead,    ///< a wave runs until it waits
  kRoundRobin,  ///< every wave in turn, a few instructions each
  kRandom,      ///< any wave, any number of instructions
};

/// How a launch is run.
struct Manner {
  Schedule schedule = Schedule::kRunAhead;
  std::uint64_t seed = 1;  ///< of the garbage in registers and LDS, and of a random schedule
};

}  // namespace monoref::device::gfx
