#include "golden/any_file.hpp"

#include <array>

#include "golden/load.hpp"

namespace monoref {

AnyFile read_any(const std::filesystem::path& path, const ReadLimits& limits) {
  const std::array formats{kCaseFormat, kRecordingFormat};
  const TreeGroup tree = load_tree(path, formats, limits);
  try {
    const AttributeValue* format = tree.find_attribute("format");
    if (format != nullptr && *format == AttributeValue(std::string(kRecordingFormat)))
      return recording_from_tree(tree);
    return cases_from_tree(tree);
  } catch (const ContentError& error) {
    throw FileError(path.string(), error.what());
  }
}

}  // namespace monoref
