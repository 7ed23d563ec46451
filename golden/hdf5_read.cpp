// HDF5 to tree. Runs in a process that may die; see golden/isolation.hpp.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "golden/hdf5_handle.hpp"
#include "golden/tree.hpp"
#include "reference/core/excerpt.hpp"

namespace monoref {

namespace {

constexpr std::string_view kSignature("\x89HDF\r\n\x1a\n", 8);

/// Deflate makes at most 1032 bytes of one.
constexpr std::size_t kMostInflation = 1032;

/// Names met by an iteration of the library. It is C: nothing may be thrown through it.
struct NameList {
  std::vector<std::string> names;
  bool too_many = false;
  bool not_hard = false;
  std::string odd_name;

  herr_t add(const char* name) noexcept {
    if (names.size() >= file_limits::kObjects) {
      too_many = true;
      return 1;
    }
    try {
      names.emplace_back(name);
    } catch (...) {
      too_many = true;
      return 1;
    }
    return 0;
  }
};

class HdfReader {
 public:
  explicit HdfReader(std::span<const std::byte> file) : file_bytes_(file.size()) {
    // No filter that this file may name is searched for in shared libraries.
    H5PLset_loading_state(0);
    Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    // The file is opened from memory: the library gets no path, and so nothing to lock or follow.
    if (!access.valid() || H5Pset_fapl_core(access.get(), 1 << 16, 0) < 0 ||
        H5Pset_file_image(access.get(), const_cast<std::byte*>(file.data()), file.size()) < 0)
      library_error({}, "cannot prepare to read it");
    file_ = {H5Fopen("case-file", H5F_ACC_RDONLY, access.get()), H5Fclose};
    if (!file_.valid()) library_error({}, "is not a readable HDF5 file");
  }

  TreeGroup read(std::span<const std::string_view> formats) {
    Handle root(H5Gopen2(file_.get(), "/", H5P_DEFAULT), H5Gclose);
    if (!root.valid()) library_error({}, "its root group cannot be opened");
    TreeGroup tree;
    require_format(root.get(), formats);
    fill(root.get(), tree, "", 0);
    return tree;
  }

 private:
  [[noreturn]] static void library_error(FilePlace place, std::string_view what) {
    throw ContentError(std::move(place), fmt::format("{} (HDF5: {})", what, hdf5_error_text()));
  }

  static void require_format(hid_t root, std::span<const std::string_view> formats) {
    const std::string known = fmt::format("{}", fmt::join(formats, " or "));
    if (H5Aexists(root, "format") <= 0)
      content_error({},
                    "is an HDF5 file but no case file: it has no attribute 'format', which must "
                    "be {}",
                    known);
    const AttributeValue value = attribute_value(root, "format", {});
    const auto* format = std::get_if<std::string>(&value);
    if (format == nullptr) content_error({}, "attribute 'format' is not text; must be {}", known);
    if (std::find(formats.begin(), formats.end(), *format) == formats.end())
      content_error({}, "format is '{}', must be {}", excerpt(*format), known);
  }

  void count_object(const FilePlace& place) {
    if (++objects_ > file_limits::kObjects)
      content_error(place, "the file holds more than {} objects, the limit", file_limits::kObjects);
  }

  void fill(hid_t group, TreeGroup& tree, const std::string& path, std::size_t depth) {
    const FilePlace place{path, ""};
    tree.attributes = attributes(group, place);
    for (const std::string& name : member_names(group, place)) {
      count_object(place);
      const std::string below = path.empty() ? name : path + "/" + name;
      Handle object(H5Oopen(group, name.c_str(), H5P_DEFAULT), H5Oclose);
      if (!object.valid()) library_error({path, name}, "cannot be opened");
      switch (H5Iget_type(object.get())) {
        case H5I_GROUP:
          if (depth == file_limits::kDepth)
            content_error({below, ""}, "groups are nested deeper than {}, the limit",
                          file_limits::kDepth);
          tree.groups.emplace_back().name = name;
          fill(object.get(), tree.groups.back(), below, depth + 1);
          break;
        case H5I_DATASET:
          tree.datasets.push_back(dataset(object.get(), {path, name}));
          break;
        default:
          content_error({path, name}, "is neither a group nor a dataset");
      }
    }
  }

  static std::vector<std::string> member_names(hid_t group, const FilePlace& place) {
    NameList list;
    const auto visit = [](hid_t, const char* name, const H5L_info_t* info, void* out) -> herr_t {
      auto& found = *static_cast<NameList*>(out);
      if (info->type != H5L_TYPE_HARD) {  // a link may lead to another file, or nowhere
        found.not_hard = true;
        found.add(name);
        return 1;
      }
      return found.add(name);
    };
    const herr_t answer = H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, nullptr, visit, &list);
    if (list.not_hard)
      content_error(place, "member '{}' is a soft or external link; only hard links are read",
                    list.names.back());
    check_names(list, answer, place, "members");
    return std::move(list.names);
  }

  static void check_names(const NameList& list, herr_t answer, const FilePlace& place,
                          std::string_view what) {
    if (list.too_many)
      content_error(place, "has more than {} {}, the limit", file_limits::kObjects, what);
    if (answer < 0) library_error(place, fmt::format("its {} cannot be listed", what));
    for (const std::string& name : list.names)
      if (name.empty() || name.size() > file_limits::kNameBytes)
        content_error(place, "a name among its {} has {} bytes, must be 1 to {}", what, name.size(),
                      file_limits::kNameBytes);
  }

  std::vector<TreeAttribute> attributes(hid_t object, const FilePlace& place) {
    NameList list;
    hsize_t position = 0;
    const auto visit = [](hid_t, const char* name, const H5A_info_t*, void* out) -> herr_t {
      return static_cast<NameList*>(out)->add(name);
    };
    const herr_t answer = H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, &position, visit, &list);
    check_names(list, answer, place, "attributes");
    std::vector<TreeAttribute> found;
    for (const std::string& name : list.names) {
      count_object(place);
      found.push_back({name, attribute_value(object, name, place)});
    }
    return found;
  }

  static AttributeValue attribute_value(hid_t object, const std::string& name,
                                        const FilePlace& place) {
    Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose);
    Handle type(attribute.valid() ? H5Aget_type(attribute.get()) : H5I_INVALID_HID, H5Tclose);
    Handle space(attribute.valid() ? H5Aget_space(attribute.get()) : H5I_INVALID_HID, H5Sclose);
    if (!type.valid() || !space.valid())
      library_error(place, fmt::format("attribute '{}' cannot be opened", name));
    const H5S_class_t shape = H5Sget_simple_extent_type(space.get());
    std::optional<AttributeValue> value;
    if (shape == H5S_SCALAR) value = scalar_value(attribute.get(), type.get(), name, place);
    if (shape == H5S_SIMPLE && H5Sget_simple_extent_ndims(space.get()) == 1)
      value = list_value(attribute.get(), type.get(), space.get(), name, place);
    if (!value)
      content_error(place, "attribute '{}' has a type or shape that case files do not use", name);
    return *std::move(value);
  }

  static std::optional<AttributeValue> scalar_value(hid_t attribute, hid_t type,
                                                    const std::string& name,
                                                    const FilePlace& place) {
    const std::size_t size = H5Tget_size(type);
    const H5T_class_t kind = H5Tget_class(type);
    if (kind == H5T_STRING) return text_value(attribute, type, name, place);
    if (kind == H5T_ENUM && is_boolean(type)) {
      std::int8_t value = 0;
      read_attribute(attribute, type, &value, name, place);
      if (value != 0 && value != 1)
        content_error(place, "attribute '{}' is a boolean of value {}", name, value);
      return AttributeValue(value == 1);
    }
    if (kind == H5T_INTEGER && size <= sizeof(std::int64_t)) {
      if (size == sizeof(std::uint64_t) && H5Tget_sign(type) == H5T_SGN_NONE)
        return number<std::uint64_t>(attribute, H5T_NATIVE_UINT64, name, place);
      return number<std::int64_t>(attribute, H5T_NATIVE_INT64, name, place);
    }
    if (kind == H5T_FLOAT && size <= sizeof(double))
      return number<double>(attribute, H5T_NATIVE_DOUBLE, name, place);
    return std::nullopt;
  }

  template <class T>
  static AttributeValue number(hid_t attribute, hid_t type, const std::string& name,
                               const FilePlace& place) {
    T value{};
    read_attribute(attribute, type, &value, name, place);
    return value;
  }

  static void read_attribute(hid_t attribute, hid_t type, void* to, const std::string& name,
                             const FilePlace& place) {
    if (H5Aread(attribute, type, to) < 0)
      library_error(place, fmt::format("attribute '{}' cannot be read", name));
  }

  /// The boolean of h5py and PyTables: an 8-bit enumeration of FALSE = 0 and TRUE = 1.
  static bool is_boolean(hid_t type) {
    Handle base(H5Tget_super(type), H5Tclose);
    if (!base.valid() || H5Tequal(base.get(), H5T_STD_I8LE) <= 0 || H5Tget_nmembers(type) != 2)
      return false;
    for (unsigned member = 0; member < 2; ++member) {
      char* name = H5Tget_member_name(type, member);
      std::int8_t value = -1;
      const bool matches = name != nullptr && H5Tget_member_value(type, member, &value) >= 0 &&
                           value == static_cast<std::int8_t>(member) &&
                           std::strcmp(name, member == 0 ? "FALSE" : "TRUE") == 0;
      H5free_memory(name);
      if (!matches) return false;
    }
    return true;
  }

  static AttributeValue text_value(hid_t attribute, hid_t type, const std::string& name,
                                   const FilePlace& place) {
    std::string text;
    if (H5Tis_variable_str(type) > 0) {
      char* found = nullptr;
      read_attribute(attribute, type, &found, name, place);
      if (found != nullptr) text.assign(found, strnlen(found, file_limits::kTextBytes + 1));
      H5free_memory(found);
    } else {
      const std::size_t size = H5Tget_size(type);
      text.resize(std::min(size, file_limits::kTextBytes + 1));
      if (size <= file_limits::kTextBytes + 1) {
        read_attribute(attribute, type, text.data(), name, place);
        text.resize(std::min(text.size(), text.find('\0')));  // end of text, or padding
      }
    }
    if (text.size() > file_limits::kTextBytes)
      content_error(place, "attribute '{}' is a text above {} bytes, the limit", name,
                    file_limits::kTextBytes);
    return text;
  }

  static std::optional<AttributeValue> list_value(hid_t attribute, hid_t type, hid_t space,
                                                  const std::string& name, const FilePlace& place) {
    if (H5Tequal(type, H5T_STD_I64LE) <= 0) return std::nullopt;
    const hssize_t count = H5Sget_simple_extent_npoints(space);
    if (count < 0 || static_cast<std::size_t>(count) > file_limits::kTextBytes / 8)
      content_error(place, "attribute '{}' lists {} numbers, the limit is {}", name, count,
                    file_limits::kTextBytes / 8);
    std::vector<std::int64_t> values(static_cast<std::size_t>(count));
    if (count > 0) read_attribute(attribute, H5T_NATIVE_INT64, values.data(), name, place);
    return values;
  }

  TreeDataset dataset(hid_t id, const FilePlace& place) {
    TreeDataset found;
    found.name = place.dataset;
    found.attributes = attributes(id, place);
    Handle type(H5Dget_type(id), H5Tclose);
    Handle space(H5Dget_space(id), H5Sclose);
    if (!type.valid() || !space.valid()) library_error(place, "its type or shape cannot be read");
    found.type = stored_type(type.get(), place);
    found.dims = dims(space.get(), place);
    check_storage(id, place);
    std::size_t size = stored_size(found.type);
    for (const std::int64_t dim : found.dims) {
      if (dim != 0 && size > file_limits::kDatasetBytes / static_cast<std::size_t>(dim))
        content_error(place, "is larger than {} bytes, the limit", file_limits::kDatasetBytes);
      size *= static_cast<std::size_t>(dim);
    }
    content_bytes_ += size;
    if (content_bytes_ > file_limits::kContentBytes)
      content_error(place, "the file's datasets exceed {} bytes, the limit",
                    file_limits::kContentBytes);
    check_stored(id, size, place);
    found.bytes.resize(size);
    if (size > 0 && H5Dread(id, type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, found.bytes.data()) < 0)
      library_error(place, "cannot be read");
    return found;
  }

  static StoredType stored_type(hid_t type, const FilePlace& place) {
    const std::array<std::pair<hid_t, StoredType>, 6> known{{
        {H5T_STD_I32LE, StoredType::kInt32},
        {H5T_STD_I64LE, StoredType::kInt64},
        {H5T_STD_U8LE, StoredType::kUInt8},
        {H5T_STD_U16LE, StoredType::kUInt16},
        {H5T_IEEE_F32LE, StoredType::kFloat32},
        {H5T_IEEE_F64LE, StoredType::kFloat64},
    }};
    for (const auto& [id, name] : known)
      if (H5Tequal(type, id) > 0) return name;
    content_error(place,
                  "its elements must be stored as little-endian int32, int64, uint8, uint16, "
                  "float32 or float64");
  }

  static std::vector<std::int64_t> dims(hid_t space, const FilePlace& place) {
    const H5S_class_t shape = H5Sget_simple_extent_type(space);
    const int rank = H5Sget_simple_extent_ndims(space);
    if ((shape != H5S_SCALAR && shape != H5S_SIMPLE) || rank < 0 ||
        rank > static_cast<int>(file_limits::kRank))
      content_error(place, "its shape must be a plain one of rank 0 to {}", file_limits::kRank);
    std::array<hsize_t, H5S_MAX_RANK> sizes{};
    if (H5Sget_simple_extent_dims(space, sizes.data(), nullptr) != rank)
      library_error(place, "its shape cannot be read");
    std::vector<std::int64_t> list;
    for (int axis = 0; axis < rank; ++axis) {
      const hsize_t size = sizes[static_cast<std::size_t>(axis)];
      if (size > file_limits::kDatasetBytes)
        content_error(place, "dimension {} is {}, the limit is {}", axis, size,
                      file_limits::kDatasetBytes);
      list.push_back(static_cast<std::int64_t>(size));
    }
    return list;
  }

  /// Data that the file does not hold, or a chunk that it cannot hold, is not read: the library
  /// would allocate it all, and fill it.
  void check_stored(hid_t id, std::size_t size, const FilePlace& place) const {
    if (size == 0) return;
    const auto stored = std::min<std::size_t>(H5Dget_storage_size(id), file_bytes_);
    const std::size_t most = stored * kMostInflation;
    if (size > most)
      content_error(place, "has {} bytes, of which the file stores {}; the limit is {}", size,
                    stored, most);
    Handle creation(H5Dget_create_plist(id), H5Pclose);
    if (!creation.valid()) library_error(place, "its storage cannot be described");
    if (H5Pget_layout(creation.get()) != H5D_CHUNKED) return;
    std::array<hsize_t, H5S_MAX_RANK> chunk{};
    const int rank = H5Pget_chunk(creation.get(), H5S_MAX_RANK, chunk.data());
    if (rank < 0) library_error(place, "its chunks cannot be described");
    Handle type(H5Dget_type(id), H5Tclose);
    std::size_t bytes = H5Tget_size(type.get());
    for (int axis = 0; axis < rank; ++axis)
      if (__builtin_mul_overflow(bytes, chunk[static_cast<std::size_t>(axis)], &bytes) ||
          bytes > most)
        content_error(place, "has chunks of more than {} bytes, the limit for the {} stored", most,
                      stored);
  }

  /// The data must lie in this file, plain or through the filters that case files use.
  static void check_storage(hid_t id, const FilePlace& place) {
    Handle creation(H5Dget_create_plist(id), H5Pclose);
    if (!creation.valid()) library_error(place, "its storage cannot be described");
    const H5D_layout_t layout = H5Pget_layout(creation.get());
    if (layout != H5D_COMPACT && layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED)
      content_error(place, "is stored in a way that case files do not use");
    if (H5Pget_external_count(creation.get()) != 0)
      content_error(place, "its data lies in another file");
    const int filters = H5Pget_nfilters(creation.get());
    if (filters < 0) library_error(place, "its filters cannot be listed");
    for (int i = 0; i < filters; ++i) {
      unsigned flags = 0;
      unsigned settings = 0;
      std::size_t values = 0;
      const H5Z_filter_t filter = H5Pget_filter2(creation.get(), static_cast<unsigned>(i), &flags,
                                                 &values, nullptr, 0, nullptr, &settings);
      if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE &&
          filter != H5Z_FILTER_FLETCHER32)
        content_error(place,
                      "is stored through filter {}; case files use shuffle, deflate and "
                      "fletcher32 only",
                      filter);
    }
  }

  Handle file_;
  std::size_t file_bytes_ = 0;
  std::size_t objects_ = 0;
  std::size_t content_bytes_ = 0;
};

}  // namespace

TreeGroup tree_from_hdf5(std::span<const std::byte> file,
                         std::span<const std::string_view> formats) {
  if (file.size() < kSignature.size() ||
      std::memcmp(file.data(), kSignature.data(), kSignature.size()) != 0)
    content_error({}, "is not an HDF5 file");
  const QuietHdf5 quiet;
  return HdfReader(file).read(formats);
}

}  // namespace monoref
