// Runs work in a process of its own, so that a crash or an endless loop in it is only an answer.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
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

/// Sends one message to the process that listens.
using Tell = std::function<void(std::span<const std::byte>)>;

/// What a process that is listened to may use until its next message.
struct SilenceLimits {
  /// Of all its threads together: what does not depend on how busy the machine is.
  double processor_seconds;
  double wall_seconds;
  /// Memory that it really uses; address space that it reserves does not count.
  std::size_t memory_bytes;
};

/// Whom `listen_isolated` asks and tells.
struct Listener {
  /// Hears the next message, and says what the child may use until the one after it. A message that
  /// it throws over ends the child as one that died.
  std::function<SilenceLimits(std::span<const std::byte>)> hear;
  /// Asked all the while; true ends the child.
  std::function<bool()> give_up;
};

/// How work that was listened to ended.
struct Ending {
  enum class Kind { kFinished, kDied, kOverTime, kOverMemory, kGivenUp };
  Kind kind = Kind::kFinished;
  std::string failure;  ///< unless kFinished: "died of signal 11 (Segmentation fault)", ...
};

/// Like `run_isolated`, for work that goes on for long and tells of it as it goes: every message
/// comes whole and in order, also those before a death. `first` is what the child may use until its
/// first message. The child leaves interrupts to its parent, and what it prints goes to standard
/// error. Limits are looked at twenty times a second.
Ending listen_isolated(const std::function<void(const Tell&)>& work, SilenceLimits first,
                       const Listener& listener);

/// Whether this build has a sanitizer, under which everything takes longer.
bool is_sanitized();

}  // namespace monoref
