// What a source file says in words: its comments and string literals, or all of a text file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace monoref::spec {

/// Words in the order of the file. Comments that follow each other are one text, with a space where
/// a line ends, and so are the pieces of a string literal; code and empty lines between are '\n',
/// which no sentence crosses.
struct Prose {
  std::string text;
  std::vector<int> lines;  ///< the line, from 1, of every character of `text`
};

/// Of C++, C and HIP.
Prose prose_of_code(std::string_view source);

/// All of a Markdown file. Headings and rows of tables stand alone.
Prose prose_of_markdown(std::string_view source);

/// All of a file whose comments begin with '#': CMake, shell, Python.
Prose prose_of_script(std::string_view source);

}  // namespace monoref::spec
