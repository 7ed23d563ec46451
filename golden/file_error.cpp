#include "golden/file_error.hpp"

#include <string_view>

namespace monoref {
namespace {

constexpr std::size_t kMaxMessage = 2000;

/// Names and texts of a malformed file end up in messages: control characters become '?'.
std::string printable(std::string_view text) {
  std::string clean(text.substr(0, kMaxMessage));
  for (char& c : clean)
    if (const auto code = static_cast<unsigned char>(c); code < 0x20 || code == 0x7f) c = '?';
  return clean;
}

}  // namespace

FileError::FileError(const std::string& file, const std::string& message)
    : std::runtime_error(printable(fmt::format("file '{}': {}", file, message))) {}

}  // namespace monoref
