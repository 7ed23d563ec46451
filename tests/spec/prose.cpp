#include "tests/spec/prose.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace monoref::spec {
namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && is_blank(line.front())) line.remove_prefix(1);
  while (!line.empty() && is_blank(line.back())) line.remove_suffix(1);
  return line;
}

/// Collects pieces and decides what stands between two of them.
class Writer {
 public:
  enum class Kind : std::uint8_t { kNothing, kComment, kString };

  /// A piece begins; pieces of one kind that only blanks part belong together.
  void begin(Kind kind, int line) {
    const bool joined = !code_between_ && kind == last_;
    if (!joined)
      put('\n', line);
    else if (kind == Kind::kComment)
      put(' ', line);
    last_ = kind;
    code_between_ = false;
  }
  void put(char c, int line) {
    prose_.text += c;
    prose_.lines.push_back(line);
  }
  void put(std::string_view text, int line) {
    for (const char c : text) put(c, line);
  }
  void code() { code_between_ = true; }
  Prose take() { return std::move(prose_); }

 private:
  Prose prose_;
  Kind last_ = Kind::kNothing;
  bool code_between_ = false;
};

class CodeScanner {
 public:
  explicit CodeScanner(std::string_view source) : source_(source) {}

  Prose scan() {
    while (at_ < source_.size()) step();
    return writer_.take();
  }

 private:
  bool starts_with(std::string_view token) const { return source_.substr(at_).starts_with(token); }
  void advance(std::size_t count) {
    for (; count > 0 && at_ < source_.size(); --count)
      if (source_[at_++] == '\n') ++line_;
  }

  void step() {
    if (starts_with("//")) return line_comment();
    if (starts_with("/*")) return block_comment();
    if (starts_with("R\"") && !follows_word()) return raw_string();
    const char c = source_[at_];
    if (c == '"') return string();
    if (c == '\'' && !follows_word()) return character();
    if (!is_blank(c) && c != '\n') writer_.code();
    advance(1);
  }

  bool follows_word() const {
    return at_ > 0 && (std::isalnum(static_cast<unsigned char>(source_[at_ - 1])) != 0 ||
                       source_[at_ - 1] == '_');
  }

  void line_comment() {
    const std::size_t end = std::min(source_.find('\n', at_), source_.size());
    std::string_view text = source_.substr(at_, end - at_);
    while (!text.empty() && (text.front() == '/' || text.front() == '<')) text.remove_prefix(1);
    text = trimmed(text);
    writer_.begin(Writer::Kind::kComment, line_);
    if (text.empty())
      writer_.put('\n', line_);
    else
      writer_.put(text, line_);
    advance(end - at_);
  }

  void block_comment() {
    const std::size_t end = std::min(source_.find("*/", at_ + 2), source_.size());
    writer_.begin(Writer::Kind::kComment, line_);
    advance(2);
    while (at_ < end) {
      writer_.put(source_[at_] == '\n' || source_[at_] == '*' ? ' ' : source_[at_], line_);
      advance(1);
    }
    advance(2);
  }

  void string() {
    writer_.begin(Writer::Kind::kString, line_);
    advance(1);
    while (at_ < source_.size() && source_[at_] != '"' && source_[at_] != '\n') {
      if (source_[at_] == '\\') advance(1);
      if (at_ < source_.size()) writer_.put(source_[at_], line_);
      advance(1);
    }
    advance(1);
  }

  void raw_string() {
    const std::size_t open = std::min(source_.find('(', at_), source_.size());
    const std::string close = fmt::format("){}\"", source_.substr(at_ + 2, open - at_ - 2));
    const std::size_t end = std::min(source_.find(close, open), source_.size());
    writer_.begin(Writer::Kind::kString, line_);
    advance(open + 1 - at_);
    while (at_ < end) {
      writer_.put(source_[at_], line_);
      advance(1);
    }
    advance(close.size());
  }

  void character() {
    writer_.code();
    advance(1);
    while (at_ < source_.size() && source_[at_] != '\'' && source_[at_] != '\n')
      advance(source_[at_] == '\\' ? 2 : 1);
    advance(1);
  }

  std::string_view source_;
  std::size_t at_ = 0;
  int line_ = 1;
  Writer writer_;
};

/// The lines of a text, without leading '#'; one that stands `alone` is no part of its neighbours.
Prose prose_of_lines(std::string_view source, bool (*alone)(std::string_view)) {
  Prose prose;
  bool after_alone = true;
  for (int number = 1; !source.empty(); ++number) {
    const std::size_t end = std::min(source.find('\n'), source.size());
    std::string_view line = trimmed(source.substr(0, end));
    source.remove_prefix(std::min(end + 1, source.size()));
    const bool before_alone = std::exchange(after_alone, alone(line));
    while (line.starts_with("#")) line.remove_prefix(1);
    prose.text += before_alone || after_alone ? '\n' : ' ';
    prose.text += trimmed(line);
    prose.lines.resize(prose.text.size(), number);
  }
  return prose;
}

}  // namespace

Prose prose_of_code(std::string_view source) {
  return CodeScanner(source).scan();
}

Prose prose_of_markdown(std::string_view source) {
  return prose_of_lines(source, [](std::string_view line) {
    return line.empty() || line.starts_with("#") || line.starts_with("|");
  });
}

Prose prose_of_script(std::string_view source) {
  return prose_of_lines(source, [](std::string_view line) { return line.empty(); });
}

}  // namespace monoref::spec
