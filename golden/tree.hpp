// The content of an HDF5 file as plain values. Everything that this project knows about HDF5 itself
// lies behind `tree_from_hdf5` and `write_hdf5`; what a file means is decided on trees alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "golden/file_error.hpp"

namespace monoref {

/// What an attribute can hold: integers and reals widened to 64 bits, a boolean, text, or a list.
using AttributeValue =
    std::variant<std::int64_t, std::uint64_t, double, bool, std::string, std::vector<std::int64_t>>;

struct TreeAttribute {
  std::string name;
  AttributeValue value;
};

/// How the elements of a dataset are stored; little-endian.
enum class StoredType : std::uint8_t { kInt32, kInt64, kUInt8, kUInt16, kFloat32, kFloat64 };

constexpr std::size_t stored_size(StoredType type) {
  constexpr std::size_t kSizes[] = {4, 8, 1, 2, 4, 8};
  return kSizes[static_cast<std::size_t>(type)];
}

struct TreeDataset {
  std::string name;
  StoredType type = StoredType::kUInt8;
  std::vector<std::int64_t> dims;
  std::vector<std::byte> bytes;  ///< row-major; product of dims times the element size
  std::vector<TreeAttribute> attributes;
};

/// A group. Members of each kind are in ascending order of their names.
struct TreeGroup {
  std::string name;
  std::vector<TreeAttribute> attributes;
  std::vector<TreeDataset> datasets;
  std::vector<TreeGroup> groups;

  const AttributeValue* find_attribute(std::string_view key) const;
};

/// Bounds on what is read, far above every legitimate file of this project. They keep a malformed
/// number from turning into an allocation or a loop of that size.
namespace file_limits {
constexpr std::size_t kFileBytes = std::size_t{1} << 30;
constexpr std::size_t kDatasetBytes = std::size_t{1} << 28;
constexpr std::size_t kContentBytes = std::size_t{1} << 30;  ///< all datasets of a file
constexpr std::size_t kObjects = 1'000'000;                  ///< groups, datasets and attributes
constexpr std::size_t kTextBytes = 60'000;  ///< an HDF5 attribute holds less than 64 KiB
constexpr std::size_t kNameBytes = 256;
constexpr std::size_t kRank = 16;
constexpr std::size_t kDepth = 2;  ///< groups below the root group
}  // namespace file_limits

/// Decodes an HDF5 file held in memory, if the attribute `format` of its root group is one of
/// `formats`. Throws ContentError. The library may also crash or loop on malformed bytes: call it
/// in a process that may die (golden/isolation.hpp).
TreeGroup tree_from_hdf5(std::span<const std::byte> file,
                         std::span<const std::string_view> formats);

/// Writes a tree as an HDF5 file: datasets above 1 KiB are compressed (shuffle, then deflate); no
/// times are stored, so equal trees give equal bytes with one version of the library. Takes
/// `hdf5_mutex`. Throws std::runtime_error if the library declines; what is at `path` is then
/// meaningless.
void write_hdf5(const std::filesystem::path& path, const TreeGroup& root);

/// Held while the library works, and while a process forks to use it in the child: a fork in the
/// middle of another thread's call would copy the library half changed.
std::mutex& hdf5_mutex();

/// A flat form of a tree, to hand it from one process to another; and back, which throws
/// ContentError if the bytes are not such a form.
std::vector<std::byte> pack_tree(const TreeGroup& root);
TreeGroup unpack_tree(std::span<const std::byte> packed);

}  // namespace monoref
