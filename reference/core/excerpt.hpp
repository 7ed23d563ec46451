// Texts of somebody else's in messages of ours.
#pragma once

#include <string>
#include <string_view>

namespace monoref {

/// The text itself, or of a long one its beginning and how long it is: a message stays readable
/// whatever a file holds.
inline std::string excerpt(std::string_view text) {
  constexpr std::size_t kMost = 64;
  if (text.size() <= kMost) return std::string(text);
  return std::string(text.substr(0, kMost)) + "... (" + std::to_string(text.size()) + " bytes)";
}

}  // namespace monoref
