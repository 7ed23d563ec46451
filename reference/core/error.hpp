// The one way in which the reference declines an input.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace monoref {

/// Thrown when an input breaks a stage's contract. The message names the argument, the value it had
/// and the limit it broke. Nothing has been written to any output when it is thrown.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws a Refusal with a formatted message.
template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Refusal(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace monoref
