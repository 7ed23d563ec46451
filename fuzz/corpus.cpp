#include "fuzz/corpus.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "fuzz/random.hpp"
#include "golden/case_file.hpp"

namespace monoref {

std::vector<std::filesystem::path> corpus_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::is_directory(folder)) return files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().extension() == ".h5") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::filesystem::path save_finding(const std::filesystem::path& folder, const Case& finding) {
  std::filesystem::create_directories(folder);
  const auto path =
      folder / fmt::format("{}-{:016x}.h5", finding.stage, CounterRandom::hash(finding.line));
  write_cases(path, {&finding, 1});
  return path;
}

}  // namespace monoref
