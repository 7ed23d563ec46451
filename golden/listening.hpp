// Work in a process of its own that tells of itself as it goes on. Implemented beside
// golden/isolation.hpp, which is for work with one answer.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

namespace monoref {

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
