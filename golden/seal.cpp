#include "golden/seal.hpp"

#include <algorithm>
#include <bit>

#include "golden/sha256.hpp"

namespace monoref {
namespace {

constexpr std::string_view kSeal = "sha256";

constexpr std::string_view kTypeNames[] = {"int32",  "int64",   "uint8",
                                           "uint16", "float32", "float64"};

/// An attribute's kind and value. Reals are their bits, so that every NaN and zero counts.
struct ValueText {
  std::string operator()(std::int64_t value) const { return fmt::format("int64 {}", value); }
  std::string operator()(std::uint64_t value) const { return fmt::format("uint64 {}", value); }
  std::string operator()(double value) const {
    return fmt::format("float64 {:016x}", std::bit_cast<std::uint64_t>(value));
  }
  std::string operator()(bool value) const { return fmt::format("bool {}", value ? 1 : 0); }
  std::string operator()(const std::string& value) const {
    return fmt::format("text {} {}", value.size(), value);
  }
  std::string operator()(const std::vector<std::int64_t>& values) const {
    return fmt::format("list {}", fmt::join(values, " "));
  }
};

void add_attributes(Sha256& digest, const std::vector<TreeAttribute>& attributes) {
  for (const TreeAttribute& attribute : attributes)
    if (attribute.name != kSeal)
      digest.add(fmt::format("attribute {} {}\n", attribute.name,
                             std::visit(ValueText{}, attribute.value)));
}

std::string_view seal_of(const std::vector<TreeAttribute>& attributes) {
  for (const TreeAttribute& attribute : attributes)
    if (attribute.name == kSeal)
      if (const auto* text = std::get_if<std::string>(&attribute.value)) return *text;
  return {};
}

std::string digest_of(const TreeDataset& dataset) {
  Sha256 digest;
  digest.add(fmt::format("dataset {} [{}]\n", kTypeNames[static_cast<std::size_t>(dataset.type)],
                         fmt::join(dataset.dims, " ")));
  add_attributes(digest, dataset.attributes);
  digest.add(fmt::format("bytes {}\n", dataset.bytes.size()));
  return digest.add(dataset.bytes).hex();
}

std::string digest_of(const TreeGroup& group) {
  Sha256 digest;
  digest.add("group\n");
  add_attributes(digest, group.attributes);
  for (const TreeDataset& dataset : group.datasets)
    digest.add(fmt::format("dataset {} {}\n", dataset.name, seal_of(dataset.attributes)));
  for (const TreeGroup& below : group.groups)
    digest.add(fmt::format("group {} {}\n", below.name, seal_of(below.attributes)));
  return digest.hex();
}

template <class Object>
void seal_object(Object& object) {
  std::erase_if(object.attributes, [](const TreeAttribute& a) { return a.name == kSeal; });
  const auto by_name = [](const TreeAttribute& a, const TreeAttribute& b) {
    return a.name < b.name;
  };
  std::sort(object.attributes.begin(), object.attributes.end(), by_name);
  TreeAttribute own{std::string(kSeal), digest_of(object)};
  const auto at =
      std::lower_bound(object.attributes.begin(), object.attributes.end(), own, by_name);
  object.attributes.insert(at, std::move(own));
}

template <class Object>
void verify_object(const Object& object, const FilePlace& place) {
  const std::string_view stated = seal_of(object.attributes);
  if (stated.empty()) content_error(place, "has no attribute 'sha256'");
  const std::string actual = digest_of(object);
  if (stated != actual)
    content_error(place,
                  "has changed since it was written: attribute 'sha256' is {}, but must be {}",
                  stated, actual);
}

void verify_below(const TreeGroup& group, const std::string& path) {
  for (const TreeDataset& dataset : group.datasets) verify_object(dataset, {path, dataset.name});
  for (const TreeGroup& below : group.groups)
    verify_below(below, path.empty() ? below.name : path + "/" + below.name);
  verify_object(group, {path, ""});
}

}  // namespace

void seal(TreeGroup& root) {
  for (TreeDataset& dataset : root.datasets) seal_object(dataset);
  for (TreeGroup& below : root.groups) seal(below);
  seal_object(root);
}

void verify_seals(const TreeGroup& root) {
  verify_below(root, "");
}

}  // namespace monoref
