// What can be cited: the documents of reference/spec and the bug cases.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace monoref::spec {

/// A document whose headings are numbered, "## 3. Title" and "### 3.5 Title".
class Document {
 public:
  explicit Document(std::string_view markdown);

  /// Whether there is a section of that number: a heading, or an entry of a numbered list right in
  /// the section before the dot ("9.2").
  bool has(const std::string& section) const;
  /// Whether a section's words contain `text`, emphasis and line ends aside.
  bool says(const std::string& section, std::string_view text) const;

 private:
  void add_heading(std::string_view line);
  void add_line(std::string_view line);

  std::map<std::string, std::string, std::less<>> sections_;  ///< words by number
  std::set<std::string, std::less<>> entries_;                ///< "3.5" of entry 5 in section 3
  std::string current_;
};

/// Everything that is cited by a name. The members are what the files hold, so that a name that is
/// missing there cannot be cited.
struct Library {
  std::map<std::string, Document, std::less<>> documents;  ///< mono-decode, ...
  std::map<std::string, std::set<std::string, std::less<>>, std::less<>> seeds;  ///< their items
  std::set<std::string, std::less<>> recordings;
  std::set<std::string, std::less<>> bug_cases;  ///< P10, ...
};

/// Of the tree at `root`. Throws std::runtime_error if a file cannot be read.
Library read_library(const std::filesystem::path& root);

std::string read_file(const std::filesystem::path& path);

}  // namespace monoref::spec
