// A program run to its end or to a limit, with what it cost.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace monoref::testing {

/// Where a run is ended. Processor time is that of all its processes: it says the same on a busy
/// machine, where wall time is only for what waits for ever.
struct ProcessLimits {
  double cpu_seconds = 20;
  double wall_seconds = 300;
  std::size_t memory_bytes = std::size_t{3} << 30;  ///< of all its processes together
};

struct ProcessRun {
  int exit_code = -1;  ///< -1: it did not exit
  int signal = 0;      ///< what ended it, if that was not a limit
  std::string ended;   ///< the limit that it ran into, in words; else empty
  double cpu_seconds = 0;
  double wall_seconds = 0;
  std::size_t peak_bytes = 0;  ///< of the largest of its processes
  std::string output;          ///< both streams, at most 64 KiB
};

/// Runs a program with OMP_NUM_THREADS=1 and both output streams in the file `output`. Whatever is
/// left of its process group is killed at the end. Throws std::system_error if it cannot be
/// started.
ProcessRun run_watched(const std::vector<std::string>& command, const std::filesystem::path& output,
                       const ProcessLimits& limits);

}  // namespace monoref::testing
