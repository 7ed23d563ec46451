#include "device/backends/code_objects.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace monoref::device {

std::filesystem::path code_object_directory() {
  const char* const elsewhere = std::getenv("MONOREF_CODE_OBJECTS");
  return elsewhere != nullptr ? elsewhere : MONOREF_CODE_OBJECT_DIRECTORY;
}

std::vector<std::filesystem::path> code_objects_of(std::string_view chip) {
  const std::string suffix = fmt::format(".{}.co", chip);
  std::vector<std::filesystem::path> files;
  std::error_code no_directory;
  for (const auto& entry :
       std::filesystem::directory_iterator(code_object_directory(), no_directory))
    if (entry.path().filename().string().ends_with(suffix)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace monoref::device
