#include "tests/spec/citations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace monoref::spec {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}
/// Of names with hyphens and dots inside: mono-decode, Builder.build.
bool is_name(char c) {
  return is_word(c) || c == '-' || c == '.';
}

std::string_view without_end_dots(std::string_view name) {
  while (!name.empty() && (name.back() == '.' || name.back() == '-')) name.remove_suffix(1);
  return name;
}

/// A letter and two digits, as bug cases have. F32 and S64 are types.
bool is_code(std::string_view word) {
  constexpr std::string_view kLetters = "DFGMNOPSTX";
  return word.size() == 3 && kLetters.find(word[0]) != std::string_view::npos &&
         is_digit(word[1]) && is_digit(word[2]) && !word.ends_with("32") && !word.ends_with("64");
}

/// Insertions, deletions and exchanges of characters that make one word of the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

class Checker {
 public:
  Checker(const Prose& prose, const Library& library, std::string_view home)
      : text_(prose.text), lines_(prose.lines), library_(library), home_(home) {}

  Citations check() {
    while (at_ < text_.size()) {
      if (is_name(text_[at_]) && (at_ == 0 || !is_name(text_[at_ - 1])))
        word();
      else
        ++at_;
    }
    return std::move(result_);
  }

 private:
  void fail(std::size_t at, std::string message) {
    result_.findings.push_back({lines_[std::min(at, lines_.size() - 1)], std::move(message)});
  }
  void expect(bool holds, std::size_t at, const std::string& message) {
    if (holds)
      ++result_.resolved;
    else
      fail(at, message);
  }

  // The text from `at_` on.
  bool take(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  bool take_any(std::initializer_list<std::string_view> tokens) {
    return std::any_of(tokens.begin(), tokens.end(),
                       [this](std::string_view token) { return take(token); });
  }
  std::string_view name_at(std::size_t at) const {
    std::size_t end = at;
    while (end < text_.size() && is_name(text_[end])) ++end;
    return without_end_dots(text_.substr(at, end - at));
  }
  bool digit_at(std::size_t at) const { return at < text_.size() && is_digit(text_[at]); }

  /// "3" or "3.5"; nothing of anything else, a "3.5.1" or "3rd" included.
  std::optional<std::string> take_number() {
    std::size_t end = at_;
    while (digit_at(end)) ++end;
    if (end == at_) return std::nullopt;
    if (end + 1 < text_.size() && text_[end] == '.' && digit_at(end + 1))
      for (++end; digit_at(end);) ++end;
    const bool goes_on =
        end < text_.size() && (is_word(text_[end]) || (text_[end] == '.' && digit_at(end + 1)));
    if (goes_on) return std::nullopt;
    const std::size_t start = std::exchange(at_, end);
    return std::string(text_.substr(start, end - start));
  }

  void word() {
    const std::size_t start = at_;
    const std::string_view name = name_at(at_);
    at_ += std::max<std::size_t>(name.size(), 1);
    if (name == "section" || name == "sections") return bare_section(start);
    if (name == "granted") return granted();
    if (const auto document = library_.documents.find(name); document != library_.documents.end())
      return numbered(start, document->first, document->second);
    if (const auto seed = library_.seeds.find(name); seed != library_.seeds.end())
      return items(start, seed->first, seed->second);
    if (name == "recording" || name == "recordings") return recordings(start);
    if (name == "bug" || name == "Bug") return bug_cases(start);
    if (name == "seed" || name == "seeds") return unnamed_seed(start, name);
    if (is_code(name))
      return expect(library_.bug_cases.contains(name), start,
                    fmt::format("there is no bug case {}", name));
    near_miss(start, name);
  }

  void near_miss(std::size_t start, std::string_view name) {
    if (name == "matrix-core") return;  // a matrix-core step is English
    if (name.size() < 8 || name.ends_with(".md") || name.ends_with(".txt")) return;
    std::string lower(name);
    for (char& c : lower)
      c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const auto compare = [&](const std::string& known) {
      if (known.size() < 8) return;
      if (distance(lower, known) <= (known.size() < 10 ? 1U : 2U) && !library_.seeds.contains(name))
        fail(start, fmt::format("'{}' is nearly '{}'", name, known));
    };
    for (const auto& document : library_.documents) compare(document.first);
    for (const auto& seed : library_.seeds) compare(seed.first);
  }

  void bare_section(std::size_t start) {
    if (!text_.substr(at_).starts_with(" ") || !digit_at(at_ + 1)) return;
    const auto document = library_.documents.find(home_);
    if (document == library_.documents.end())
      return fail(start, "a section of no document: name it, as in 'mono-decode section 3.5'");
    at_ = start;
    sections(document->first, document->second);
  }

  /// The word alone is English; with a section it is the document.
  void granted() {
    const std::string_view rest = text_.substr(at_);
    if (!rest.starts_with(" section ") && !rest.starts_with(" sections ")) return;
    const auto document = library_.documents.find("granted");
    numbered(at_, document->first, document->second);
  }

  void numbered(std::size_t start, const std::string& name, const Document& document) {
    if (alone(start)) return;
    if (!take(" ")) return fail(start, fmt::format("'{}' without a section", name));
    sections(name, document);
  }

  /// Whether a name is all that a string holds: it is the name itself then, not a citation.
  bool alone(std::size_t start) const {
    return start > 0 && text_[start - 1] == '\n' && (at_ == text_.size() || text_[at_] == '\n');
  }

  /// A list of sections from `at_` on, behind the name and a blank.
  void sections(const std::string& name, const Document& document) {
    const std::size_t start = at_;
    take_any({"sections ", "section "});
    std::optional<std::string> number = take_number();
    if (!number) return fail(start, fmt::format("'{}' is followed by no section's number", name));
    while (number) {
      section(start, name, document, *number);
      parts(start, name, document, *number);
      const std::size_t before = at_;
      const std::size_t remark = after_remark();
      at_ = remark;
      const bool range = take(" to ");
      if (!range && !take_any({", and ", ", ", " and "})) return static_cast<void>(at_ = before);
      take_any({"sections ", "section "});
      std::optional<std::string> next = take_number();
      if (!next) return static_cast<void>(at_ = before);
      if (range) between(start, name, document, *number, *next);
      // A remark is read again, for what it cites itself.
      if (remark != before) check_part(before, remark);
      number = next;
    }
  }

  void check_part(std::size_t begin, std::size_t end) {
    const std::size_t resume = std::exchange(at_, begin);
    while (at_ < end) {
      if (is_name(text_[at_]) && !is_name(text_[at_ - 1]))
        word();
      else
        ++at_;
    }
    at_ = resume;
  }

  /// Behind " (a remark)" at `at_`, if one stands there.
  std::size_t after_remark() const {
    if (!text_.substr(at_).starts_with(" (")) return at_;
    const std::size_t close = text_.find(')', at_);
    return close == std::string_view::npos ? at_ : close + 1;
  }

  void section(std::size_t start, const std::string& name, const Document& document,
               const std::string& number) {
    expect(document.has(number), start, fmt::format("{} has no section {}", name, number));
  }

  /// The sections between the ends of a range that counts up behind the same prefix.
  void between(std::size_t start, const std::string& name, const Document& document,
               const std::string& first, const std::string& last) {
    const std::size_t dot = first.find('.');
    const std::string prefix = dot == std::string::npos ? "" : first.substr(0, dot + 1);
    const bool counts =
        last.starts_with(prefix) && last.find('.', prefix.size()) == std::string::npos;
    const int low = std::stoi(first.substr(prefix.size()));
    const int high = counts ? std::stoi(last.substr(prefix.size())) : 0;
    if (low >= high)
      return fail(start, fmt::format("{} to {} is no range of sections", first, last));
    for (int i = low + 1; i < high; ++i)
      section(start, name, document, fmt::format("{}{}", prefix, i));
  }

  /// ", step 5", ", items 3 to 6" and ", \"words of the section\"".
  void parts(std::size_t start, const std::string& name, const Document& document,
             const std::string& number) {
    if (take(", \"")) {
      const std::size_t close = std::min(text_.find('"', at_), text_.size());
      const std::string_view quoted = text_.substr(at_, close - at_);
      at_ = std::min(close + 1, text_.size());
      return expect(document.says(number, quoted), start,
                    fmt::format("{} section {} does not say \"{}\"", name, number, quoted));
    }
    if (!take_any({", steps ", ", step ", ", items ", ", item "})) return;
    std::optional<std::string> part = take_number();
    if (!part)
      return fail(start, fmt::format("a step or item of section {} without its number", number));
    while (part) {
      section(start, name, document, fmt::format("{}.{}", number, *part));
      at_ = std::min(after_remark(), text_.size());
      const std::size_t resume = at_;
      if (!take_any({" to ", " and "}) || text_.substr(at_).starts_with("section")) {
        at_ = resume;
        break;
      }
      part = take_number();
      if (!part) at_ = resume;
    }
  }

  using Names = std::set<std::string, std::less<>>;

  /// Names of a list behind a colon, as long as they look like names or are known.
  void items(std::size_t start, const std::string& name, const Names& known) {
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with(" (") || rest.starts_with(", `") || rest.starts_with(" `")) {
      const std::size_t begin = at_ + rest.find_first_not_of(" ,(`");
      if (text_[begin - 1] == '`' || name_at(begin).find('_') != std::string_view::npos)
        return fail(start, fmt::format("write '{}: {}'", name, name_at(begin)));
    }
    if (!take(": ")) return static_cast<void>(++result_.resolved);
    names(start, name, known);
  }

  void names(std::size_t start, const std::string& where, const Names& known) {
    for (bool first = true;; first = false) {
      const std::size_t before = at_;
      if (!first && !take_any({", and ", ", ", " and "})) return;
      const std::string_view name = name_at(at_);
      const bool is_item = known.contains(name);
      if (!first && !is_item && !looks_like_item(name)) return static_cast<void>(at_ = before);
      expect(is_item, start, fmt::format("{} has nothing called '{}'", where, name));
      at_ += name.size();
      if (name.empty()) return;
    }
  }
  /// Whether a name in a list can only be meant as one more item: it has an underscore, begins no
  /// other citation and is no case of a recording.
  bool looks_like_item(std::string_view name) const {
    return name.find('_') != std::string_view::npos && !name.starts_with("case_") &&
           !library_.documents.contains(name) && !library_.seeds.contains(name);
  }

  void recordings(std::size_t start) {
    if (take(": ")) {
      const std::string_view name = name_at(at_);
      // "recordings: indexer_metadata", but also "recordings: every one of them".
      if (name.find('_') != std::string_view::npos || library_.recordings.contains(name))
        return names(start, "recordings", library_.recordings);
      return;
    }
    if (!text_.substr(at_).starts_with(" ")) return;
    const std::string_view name = name_at(at_ + 1);
    if (name.find('_') == std::string_view::npos || name.find('.') != std::string_view::npos)
      return;
    if (name.starts_with("case_")) return;  // a case of one
    ++at_;
    names(start, "recordings", library_.recordings);
  }

  void unnamed_seed(std::size_t start, std::string_view name) {
    const std::string_view rest = text_.substr(at_);
    if ((name == "seed" && rest.starts_with("'s ")) || (name == "seeds" && rest.starts_with("' ")))
      fail(start, "which seed? Name it, as in 'sparse-pa: insert_index_cache'");
  }

  /// "case P10", "cases P10, P11 and S12 to S17" behind "bug ".
  void bug_cases(std::size_t start) {
    if (!take_any({" cases", " case"})) {
      const bool code = text_.substr(at_).starts_with(" ") && is_code(name_at(at_ + 1));
      return code ? fail(start, fmt::format("write 'bug case {}'", name_at(at_ + 1))) : void();
    }
    const std::string_view name = text_.substr(at_).starts_with(" ") ? name_at(at_ + 1) : "";
    if (is_code(name)) return;  // this one and those behind it are looked at as words
    const bool nearly = name.size() >= 2 && name.size() <= 4 && digit_at(at_ + 2) &&
                        std::isalpha(static_cast<unsigned char>(name[0])) != 0;
    if (nearly) fail(start, fmt::format("'{}' is no code of a bug case", name));
  }

  std::string_view text_;
  const std::vector<int>& lines_;
  const Library& library_;
  std::string_view home_;
  std::size_t at_ = 0;
  Citations result_;
};

}  // namespace

Citations check_names(std::string_view code, const Library& library) {
  constexpr std::string_view kPrefix = "BugCase";
  Citations result;
  for (std::size_t at = code.find(kPrefix); at != std::string_view::npos;
       at = code.find(kPrefix, at)) {
    at += kPrefix.size();
    const std::string_view name = code.substr(at, 3);
    if (name.size() < 2 || !is_digit(name[1])) continue;  // of bug cases in general
    if (library.bug_cases.contains(name)) {
      ++result.resolved;
      continue;
    }
    const auto line =
        std::count(code.begin(), code.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    result.findings.push_back(
        {static_cast<int>(line) + 1, fmt::format("there is no bug case {}", name)});
  }
  return result;
}

Citations check_citations(const Prose& prose, const Library& library, std::string_view home) {
  return Checker(prose, library, home).check();
}

}  // namespace monoref::spec
