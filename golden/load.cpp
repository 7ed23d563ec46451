#include "golden/load.hpp"

#include <algorithm>
#include <new>
#include <system_error>

#include "golden/disk.hpp"
#include "golden/file_error.hpp"

namespace monoref {
namespace {

/// The first byte of what the reading process answers.
enum class Answer : unsigned char { kTree, kComplaint };

std::vector<std::byte> tagged(Answer answer, std::span<const std::byte> rest) {
  std::vector<std::byte> bytes(rest.size() + 1, static_cast<std::byte>(answer));
  std::copy(rest.begin(), rest.end(), bytes.begin() + 1);
  return bytes;
}

std::vector<std::byte> complaint(std::string_view text) {
  return tagged(Answer::kComplaint, std::as_bytes(std::span(text)));
}

/// What runs in the child.
std::vector<std::byte> decode(std::span<const std::byte> file,
                              std::span<const std::string_view> formats) noexcept {
  try {
    return tagged(Answer::kTree, pack_tree(tree_from_hdf5(file, formats)));
  } catch (const std::bad_alloc&) {
    return complaint("reading it needs more memory than the limit");
  } catch (const std::exception& error) {
    return complaint(error.what());
  }
}

}  // namespace

TreeGroup load_tree(const std::filesystem::path& path, std::span<const std::string_view> formats,
                    const ReadLimits& limits) {
  const std::vector<std::byte> file = read_whole_file(path);
  IsolatedResult result;
  try {
    const std::lock_guard lock(hdf5_mutex());
    result = run_isolated([&] { return decode(file, formats); }, limits);
  } catch (const std::system_error& error) {
    throw FileError(path.string(), error.what());
  }
  if (!result.finished)
    throw FileError(
        path.string(),
        fmt::format("the HDF5 library {} reading it; the file is malformed", result.failure));
  const std::span<const std::byte> answer(result.answer);
  if (answer.empty()) throw FileError(path.string(), "the process that read it gave no answer");
  if (answer[0] != static_cast<std::byte>(Answer::kTree))
    throw FileError(path.string(), std::string(reinterpret_cast<const char*>(answer.data()) + 1,
                                               answer.size() - 1));
  try {
    return unpack_tree(answer.subspan(1));
  } catch (const ContentError& error) {
    throw FileError(path.string(), error.what());
  }
}

}  // namespace monoref
