// Runs work in a process of its own, so that a crash or an endless loop in it is only an answer.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace monoref {

/// What one reading may use. The defaults are far above what a file of legitimate size needs.
struct ReadLimits {
  unsigned cpu_seconds = 30;
  double wall_seconds = 120;
  /// Address space beyond what the calling process already has. Not applied under a sanitizer,
  /// which reserves terabytes.
  std::size_t memory_bytes = std::size_t{4} << 30;
  /// Bytes that the work may answer with.
  std::size_t answer_bytes = std::size_t{2} << 30;
};

/// How isolated work ended.
struct IsolatedResult {
  bool finished = false;  ///< it returned, and `answer` is all that it returned
  std::vector<std::byte> answer;
  std::string failure;  ///< else: "crashed (signal 11) ", "took more than ...", ...
};

/// Forks, runs `work` in the child and returns its answer. The child has its standard streams on
/// /dev/null, the default action for every fatal signal, no core dump, and dies with its parent.
/// `work` must not throw. Throws std::runtime_error if no process can be made.
///
/// The child has one thread, a copy of the calling one: `work` must not wait for another thread of
/// the caller. (The C library makes its own heap usable after a fork.)
IsolatedResult run_isolated(const std::function<std::vector<std::byte>()>& work,
                            const ReadLimits& limits);

}  // namespace monoref
