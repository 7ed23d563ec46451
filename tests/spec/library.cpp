#include "tests/spec/library.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>

namespace monoref::spec {
namespace {

void for_each_line(std::string_view text, const std::function<void(std::string_view)>& visit) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// "3", "3.5" or "3." at the front of a text, the last dot left out.
std::string_view leading_number(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && (is_digit(text[end]) || (end > 0 && text[end] == '.'))) ++end;
  if (end > 0 && text[end - 1] == '.') --end;
  return text.substr(0, end);
}

std::string_view first_word(std::string_view text) {
  return text.substr(0, std::min(text.find(' '), text.size()));
}

/// Words without emphasis, one blank between them.
std::string plain(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '*' || c == '`') continue;
    const bool blank = c == ' ' || c == '\n';
    if (!blank)
      result += c;
    else if (!result.empty() && result.back() != ' ')
      result += ' ';
  }
  return result;
}

/// Names in backticks in the first cell of a table's row.
std::set<std::string, std::less<>> names_of_row(std::string_view line) {
  std::set<std::string, std::less<>> names;
  std::string_view cell = line.substr(1, line.find('|', 1) - 1);
  for (std::size_t open = cell.find('`'); open != std::string_view::npos; open = cell.find('`')) {
    const std::size_t close = cell.find('`', open + 1);
    if (close == std::string_view::npos) break;
    names.emplace(cell.substr(open + 1, close - open - 1));
    cell.remove_prefix(close + 1);
  }
  return names;
}

}  // namespace

Document::Document(std::string_view markdown) {
  for_each_line(markdown, [this](std::string_view line) {
    if (line.starts_with("#"))
      add_heading(line);
    else
      add_line(line);
  });
}

void Document::add_heading(std::string_view line) {
  while (line.starts_with("#") || line.starts_with(" ")) line.remove_prefix(1);
  current_ = leading_number(line);
  if (!current_.empty()) sections_[current_];
}

void Document::add_line(std::string_view line) {
  if (current_.empty()) return;
  const std::string_view entry = leading_number(line);
  if (!entry.empty() && line.substr(entry.size()).starts_with(". "))
    entries_.insert(fmt::format("{}.{}", current_, entry));
  // A section's words are those of its subsections too.
  for (std::string name = current_; !name.empty();) {
    const auto section = sections_.find(name);
    if (section != sections_.end()) (section->second += line) += '\n';
    const std::size_t dot = name.rfind('.');
    name.resize(dot == std::string::npos ? 0 : dot);
  }
}

bool Document::has(const std::string& section) const {
  return sections_.contains(section) || entries_.contains(section);
}

bool Document::says(const std::string& section, std::string_view text) const {
  const auto found = sections_.find(section);
  return found != sections_.end() && plain(found->second).find(plain(text)) != std::string::npos;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error(fmt::format("cannot read {}", path.string()));
  return text.str();
}

Library read_library(const std::filesystem::path& root) {
  const std::filesystem::path folder = root / "reference" / "spec";
  Library library;
  for (const char* name : {"mono-decode", "upstream-semantics", "matrix-cores", "granted"})
    library.documents.emplace(name, Document(read_file(folder / fmt::format("{}.md", name))));

  std::string seed;
  for_each_line(read_file(folder / "seeds.md"), [&](std::string_view line) {
    if (line.starts_with("## ")) library.seeds[seed = first_word(line.substr(3))];
    if (line.starts_with("### ")) library.seeds[seed].emplace(first_word(line.substr(4)));
  });
  bool of_recordings = false;  // whether the table is one of theirs
  for_each_line(read_file(folder / "recordings.md"), [&](std::string_view line) {
    if (!line.starts_with("|")) of_recordings = false;
    if (line.starts_with("| recording |")) of_recordings = true;
    if (of_recordings) library.recordings.merge(names_of_row(line));
  });
  for_each_line(read_file(root / "fuzz" / "bug_cases.md"), [&](std::string_view line) {
    if (line.starts_with("### ")) library.bug_cases.emplace(first_word(line.substr(4)));
  });
  return library;
}

}  // namespace monoref::spec
