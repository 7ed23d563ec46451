#include "golden/tree.hpp"

#include <cstring>
#include <type_traits>

namespace monoref {

const AttributeValue* TreeGroup::find_attribute(std::string_view key) const {
  for (const TreeAttribute& attribute : attributes)
    if (attribute.name == key) return &attribute.value;
  return nullptr;
}

namespace {

class Packer {
 public:
  template <class T>
    requires std::is_arithmetic_v<T>
  void put(T value) {
    append(&value, sizeof(value));
  }

  void put(const std::string& text) {
    put<std::uint64_t>(text.size());
    append(text.data(), text.size());
  }

  template <class T>
    requires std::is_trivially_copyable_v<T>
  void put(const std::vector<T>& values) {
    put<std::uint64_t>(values.size());
    append(values.data(), values.size() * sizeof(T));
  }

  template <class T>
  void put(const std::vector<T>& values) {
    put<std::uint64_t>(values.size());
    for (const T& value : values) put(value);
  }

  void put(const TreeAttribute& attribute) {
    put(attribute.name);
    put(static_cast<std::uint8_t>(attribute.value.index()));
    std::visit([this](const auto& value) { put(value); }, attribute.value);
  }

  void put(const TreeDataset& dataset) {
    put(dataset.name);
    put(static_cast<std::uint8_t>(dataset.type));
    put(dataset.dims);
    put(dataset.bytes);
    put(dataset.attributes);
  }

  void put(const TreeGroup& group) {
    put(group.name);
    put(group.attributes);
    put(group.datasets);
    put(group.groups);
  }

  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void append(const void* data, std::size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), first, first + size);
  }

  std::vector<std::byte> bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
    requires std::is_arithmetic_v<T>
  void get(T& value) {
    copy(&value, sizeof(value));
  }

  void get(bool& value) {
    std::uint8_t byte = 0;
    get(byte);
    value = byte != 0;  // any byte may arrive; a bool that is neither 0 nor 1 may not
  }

  void get(std::string& text) {
    text.resize(count(1));
    copy(text.data(), text.size());
  }

  template <class T>
    requires std::is_trivially_copyable_v<T>
  void get(std::vector<T>& values) {
    values.resize(count(sizeof(T)));
    copy(values.data(), values.size() * sizeof(T));
  }

  template <class T>
  void get(std::vector<T>& values) {
    const std::size_t size = count(sizeof(std::uint64_t));  // each begins with its name's length
    if (size > file_limits::kObjects) fail();
    values.resize(size);
    for (T& value : values) get(value);
  }

  void get(TreeAttribute& attribute) {
    get(attribute.name);
    std::uint8_t kind = 0;
    get(kind);
    get_alternative(attribute.value, kind, std::make_index_sequence<6>{});
  }

  void get(TreeDataset& dataset) {
    get(dataset.name);
    std::uint8_t type = 0;
    get(type);
    if (type > static_cast<std::uint8_t>(StoredType::kFloat64)) fail();
    dataset.type = static_cast<StoredType>(type);
    get(dataset.dims);
    get(dataset.bytes);
    get(dataset.attributes);
  }

  void get(TreeGroup& group) {
    if (++depth_ > file_limits::kDepth + 1) fail();
    get(group.name);
    get(group.attributes);
    get(group.datasets);
    get(group.groups);
    --depth_;
  }

  void finish() const {
    if (!rest_.empty()) fail();
  }

 private:
  [[noreturn]] static void fail() {
    content_error({}, "the process that read it gave a malformed answer; the file is malformed");
  }

  /// A count of items that take at least `size` bytes each, so at most what is left can hold.
  std::size_t count(std::size_t size) {
    std::uint64_t number = 0;
    get(number);
    if (number > rest_.size() / size) fail();
    return static_cast<std::size_t>(number);
  }

  void copy(void* to, std::size_t size) {
    if (size > rest_.size()) fail();
    if (size > 0) std::memcpy(to, rest_.data(), size);
    rest_ = rest_.subspan(size);
  }

  template <std::size_t... Kinds>
  void get_alternative(AttributeValue& value, std::size_t kind, std::index_sequence<Kinds...>) {
    static_assert(sizeof...(Kinds) == std::variant_size_v<AttributeValue>);
    const bool known = ((kind == Kinds && (get(value.emplace<Kinds>()), true)) || ...);
    if (!known) fail();
  }

  std::span<const std::byte> rest_;
  std::size_t depth_ = 0;
};

}  // namespace

std::vector<std::byte> pack_tree(const TreeGroup& root) {
  Packer packer;
  packer.put(root);
  return packer.take();
}

TreeGroup unpack_tree(std::span<const std::byte> packed) {
  Unpacker unpacker(packed);
  TreeGroup root;
  unpacker.get(root);
  unpacker.finish();
  return root;
}

}  // namespace monoref
