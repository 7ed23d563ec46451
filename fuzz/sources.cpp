#include "fuzz/sources.hpp"

#include <algorithm>
#include <array>

namespace monoref {
namespace {

struct Cited {
  std::string_view name;
  std::string_view file;
};

constexpr std::array kCited = {
    Cited{"mono-decode", "reference/spec/mono-decode.md"},
    Cited{"upstream-semantics", "reference/spec/upstream-semantics.md"},
    Cited{"matrix-cores", "reference/spec/matrix-cores.md"},
    Cited{"granted", "reference/spec/granted.md"},
    Cited{"mono-runner", "reference/spec/seeds.md"},
    Cited{"sparse-pa", "reference/spec/seeds.md"},
    Cited{"deepseek-indexer-metadata", "reference/spec/seeds.md"},
    Cited{"glm5next-sparse-indexer", "reference/spec/seeds.md"},
    Cited{"recordings", "reference/spec/recordings.md"},
};

}  // namespace

std::vector<std::string_view> specification_files(std::string_view source) {
  std::vector<std::string_view> files;
  // Citations are separated by semicolons and begin with the name of what they cite.
  while (!source.empty()) {
    source.remove_prefix(std::min(source.find_first_not_of("; "), source.size()));
    for (const Cited& cited : kCited)
      if (source.starts_with(cited.name) &&
          std::find(files.begin(), files.end(), cited.file) == files.end())
        files.push_back(cited.file);
    source.remove_prefix(std::min(source.find(';'), source.size()));
  }
  return files;
}

}  // namespace monoref
