// What README shows is what the program prints: every block that begins with `$ build/monoref` is
// run from the source folder and its output compared. A line of dots stands for any lines, dots in
// a line for any text, and times are numbers that differ from machine to machine.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <regex>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace monoref {
namespace {

/// A command of README, and what is shown below it.
struct Example {
  std::string command;
  std::vector<std::string> shown;
};

/// For messages of the test framework.
void PrintTo(const Example& example, std::ostream* stream) {
  *stream << example.command;
}

std::vector<std::string> lines_of(std::istream& stream) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<Example> examples_of(const std::vector<std::string>& readme) {
  std::vector<Example> examples;
  bool in_block = false;
  bool in_example = false;
  for (const std::string& line : readme) {
    if (line.starts_with("```")) {
      in_block = !in_block;
      in_example = false;
    } else if (in_block && line.starts_with("$ ")) {
      examples.push_back({line.substr(2), {}});
      in_example = true;
    } else if (in_example) {
      examples.back().shown.push_back(line);
    }
  }
  return examples;
}

bool is_any_lines(const std::string& line) {
  return line.find_first_not_of(' ') != line.npos &&
         line.substr(line.find_first_not_of(' ')) == "...";
}

/// Whether a printed line is the one shown.
bool line_matches(const std::string& shown, const std::string& printed) {
  static const std::regex special(R"([.^$|()\[\]{}*+?\\])");
  static const std::regex any(R"(\\\.\\\.\\\.)");
  static const std::regex seconds(R"([0-9]+(\\\.[0-9]+)? (s|a second)\b)");
  std::string pattern = std::regex_replace(shown, special, R"(\$&)");
  pattern = std::regex_replace(pattern, any, ".*");
  pattern = std::regex_replace(pattern, seconds, R"([0-9]+(\.[0-9]+)? $2)");
  return std::regex_match(printed, std::regex(pattern));
}

bool lines_match(std::span<const std::string> shown, std::span<const std::string> printed) {
  if (shown.empty()) return printed.empty();
  if (is_any_lines(shown.front())) {
    for (std::size_t skipped = 0; skipped <= printed.size(); ++skipped)
      if (lines_match(shown.subspan(1), printed.subspan(skipped))) return true;
    return false;
  }
  return !printed.empty() && line_matches(shown.front(), printed.front()) &&
         lines_match(shown.subspan(1), printed.subspan(1));
}

std::vector<std::string> printed_by(std::string command) {
  const std::string name = "build/monoref";
  command.replace(0, name.size(), MONOREF_PROGRAM);
  command = fmt::format("cd '{}' && {} 2>/dev/null", MONOREF_SOURCE_FOLDER, command);
  FILE* pipe = popen(command.c_str(), "r");
  std::string out;
  char buffer[4096];
  while (const std::size_t count = fread(buffer, 1, sizeof(buffer), pipe))
    out.append(buffer, count);
  pclose(pipe);
  std::istringstream stream(out);
  return lines_of(stream);
}

std::vector<Example> examples() {
  std::ifstream readme(MONOREF_SOURCE_FOLDER "/README.md");
  return examples_of(lines_of(readme));
}

class ReadmeExample : public testing::TestWithParam<Example> {};

TEST_P(ReadmeExample, PrintsWhatIsShown) {
  const Example& example = GetParam();
  ASSERT_EQ(example.command.rfind("build/monoref ", 0), 0u) << example.command;
  const std::vector<std::string> printed = printed_by(example.command);
  EXPECT_TRUE(lines_match(example.shown, printed))
      << "$ " << example.command << "\nREADME shows\n"
      << fmt::format("{}", fmt::join(example.shown, "\n")) << "\nand the program prints\n"
      << fmt::format("{}", fmt::join(printed, "\n"));
}

INSTANTIATE_TEST_SUITE_P(Readme, ReadmeExample, testing::ValuesIn(examples()), [](const auto& one) {
  const std::string& command = one.param.command;  // build/monoref NAME ...
  const std::size_t at = command.find(' ') + 1;
  return fmt::format("{}_{}", one.index, command.substr(at, command.find(' ', at) - at));
});

TEST(Readme, HasExamplesOfTheCommandsThatItTeaches) {
  const std::vector<Example> all = examples();
  for (const char* command : {"check", "fuzz", "replay", "mutants"})
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const Example& example) {
      return example.command.find(fmt::format(" {} ", command)) != std::string::npos;
    })) << command;
  for (const Example& example : all) EXPECT_FALSE(example.shown.empty()) << example.command;
}

TEST(Readme, WhatIsComparedIsEverythingButTimesAndDots) {
  EXPECT_TRUE(
      line_matches("a: 3 cases in 0.3 s (10 a second)", "a: 3 cases in 12.0 s (9 a second)"));
  EXPECT_FALSE(line_matches("a: 3 cases in 0.3 s", "a: 4 cases in 0.3 s"));
  EXPECT_FALSE(line_matches("a: 3 cases in 0.3 s", "a: 3 cases in no s"));
  EXPECT_TRUE(line_matches("x;contract=mono;...", "x;contract=mono;keys=(2)"));
  EXPECT_FALSE(line_matches("x;contract=mono;...", "x;contract=monx;keys=2"));
  const std::vector<std::string> shown{"a", "  ...", "b"};
  EXPECT_TRUE(lines_match(shown, std::vector<std::string>{"a", "x", "y", "b"}));
  EXPECT_TRUE(lines_match(shown, std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(lines_match(shown, std::vector<std::string>{"a", "x", "b", "c"}));
  EXPECT_FALSE(lines_match(shown, std::vector<std::string>{"a"}));
}

}  // namespace
}  // namespace monoref
