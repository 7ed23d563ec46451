// What is wrong with a file of cases, and where in the file it is wrong.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace monoref {

/// A place inside a file: a group ("case_0003/in"; empty for the file itself), and a dataset in it
/// (empty for the group itself).
struct FilePlace {
  std::string group;
  std::string dataset;

  /// `group 'case_0003/in', dataset 'seq_lens': `, or nothing for the file itself.
  std::string prefix() const {
    std::string text;
    if (!group.empty()) text = fmt::format("group '{}'", group);
    if (!dataset.empty()) text += fmt::format("{}dataset '{}'", text.empty() ? "" : ", ", dataset);
    return text.empty() ? text : text + ": ";
  }
};

/// A fault of a file's content, before it is known which file it was.
class ContentError : public std::runtime_error {
 public:
  ContentError(FilePlace where, std::string reason)
      : std::runtime_error(where.prefix() + reason),
        place_(std::move(where)),
        reason_(std::move(reason)) {}
  const FilePlace& place() const { return place_; }
  const std::string& reason() const { return reason_; }

 private:
  FilePlace place_;
  std::string reason_;
};

/// Thrown when a file cannot be read or written. The message names the file, the group and dataset
/// where there is one, and the reason. It is one line of printable text whatever bytes the file
/// has, meant to be shown as it is.
class FileError : public std::runtime_error {
 public:
  FileError(const std::string& file, const std::string& message);
};

/// Throws a ContentError with a formatted reason.
template <class... Args>
[[noreturn]] void content_error(FilePlace where, fmt::format_string<Args...> format,
                                Args&&... args) {
  throw ContentError(std::move(where), fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace monoref
