// Tree to HDF5.
#include <stdexcept>

#include "golden/hdf5_handle.hpp"
#include "golden/tree.hpp"

namespace monoref {
namespace {

/// Smaller datasets lie in their object's header, where an index and a deflate stream would cost
/// more than they save.
constexpr std::size_t kCompactBytes = 1024;
constexpr unsigned kDeflateLevel = 9;  // files are written rarely and kept for long

Handle checked(hid_t id, Handle::Close close) {
  Handle handle(id, close);
  if (!handle.valid())
    throw std::runtime_error(fmt::format("cannot be encoded (HDF5: {})", hdf5_error_text()));
  return handle;
}

void check(herr_t answer) {
  if (answer < 0)
    throw std::runtime_error(fmt::format("cannot be encoded (HDF5: {})", hdf5_error_text()));
}

/// Creation properties that all objects share: no times, or equal trees would give unequal files;
/// and attributes always in the object's header, which has a checksum of its own.
Handle object_properties(hid_t kind) {
  constexpr unsigned kMostAttributes = 65535;
  Handle properties = checked(H5Pcreate(kind), H5Pclose);
  check(H5Pset_obj_track_times(properties.get(), false));
  check(H5Pset_attr_phase_change(properties.get(), kMostAttributes, 0));
  return properties;
}

void write_attribute(hid_t object, const std::string& name, hid_t stored, hid_t held,
                     const Handle& space, const void* data) {
  const Handle attribute = checked(
      H5Acreate2(object, name.c_str(), stored, space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (data != nullptr) check(H5Awrite(attribute.get(), held, data));
}

/// Writes the alternative that an attribute holds.
struct AttributeWriter {
  hid_t object;
  const std::string& name;
  Handle scalar = checked(H5Screate(H5S_SCALAR), H5Sclose);

  void operator()(std::int64_t value) const {
    write_attribute(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, scalar, &value);
  }
  void operator()(std::uint64_t value) const {
    write_attribute(object, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, scalar, &value);
  }
  void operator()(double value) const {
    write_attribute(object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, scalar, &value);
  }
  void operator()(bool value) const {
    const Handle type = checked(H5Tenum_create(H5T_STD_I8LE), H5Tclose);
    const std::int8_t truths[] = {0, 1};
    check(H5Tenum_insert(type.get(), "FALSE", &truths[0]));
    check(H5Tenum_insert(type.get(), "TRUE", &truths[1]));
    write_attribute(object, name, type.get(), type.get(), scalar, &truths[value ? 1 : 0]);
  }
  void operator()(const std::string& value) const {
    const Handle type = checked(H5Tcopy(H5T_C_S1), H5Tclose);
    check(H5Tset_size(type.get(), value.size() + 1));
    check(H5Tset_cset(type.get(), H5T_CSET_UTF8));
    write_attribute(object, name, type.get(), type.get(), scalar, value.c_str());
  }
  void operator()(const std::vector<std::int64_t>& values) const {
    const hsize_t count = values.size();
    const Handle space = checked(H5Screate_simple(1, &count, nullptr), H5Sclose);
    write_attribute(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, space,
                    values.empty() ? nullptr : values.data());
  }
};

void write_attributes(hid_t object, const std::vector<TreeAttribute>& attributes) {
  for (const TreeAttribute& attribute : attributes)
    std::visit(AttributeWriter{object, attribute.name}, attribute.value);
}

hid_t hdf5_type(StoredType type) {
  switch (type) {
    case StoredType::kInt32:
      return H5T_STD_I32LE;
    case StoredType::kInt64:
      return H5T_STD_I64LE;
    case StoredType::kUInt8:
      return H5T_STD_U8LE;
    case StoredType::kUInt16:
      return H5T_STD_U16LE;
    case StoredType::kFloat32:
      return H5T_IEEE_F32LE;
    case StoredType::kFloat64:
      return H5T_IEEE_F64LE;
  }
  throw std::runtime_error("a dataset has an unknown stored type");
}

/// Where a dataset's bytes go: its header, or one compressed chunk.
Handle storage_properties(const TreeDataset& dataset, const std::vector<hsize_t>& dims) {
  Handle properties = object_properties(H5P_DATASET_CREATE);
  if (dataset.bytes.empty()) return properties;
  if (dataset.bytes.size() <= kCompactBytes) {
    check(H5Pset_layout(properties.get(), H5D_COMPACT));
    return properties;
  }
  check(H5Pset_chunk(properties.get(), static_cast<int>(dims.size()), dims.data()));
  if (stored_size(dataset.type) > 1) check(H5Pset_shuffle(properties.get()));
  check(H5Pset_deflate(properties.get(), kDeflateLevel));
  return properties;
}

void write_dataset(hid_t group, const TreeDataset& dataset) {
  const std::vector<hsize_t> dims(dataset.dims.begin(), dataset.dims.end());
  const Handle space =
      dims.empty() ? checked(H5Screate(H5S_SCALAR), H5Sclose)
                   : checked(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr),
                             H5Sclose);
  const Handle storage = storage_properties(dataset, dims);
  const hid_t type = hdf5_type(dataset.type);
  const Handle written = checked(H5Dcreate2(group, dataset.name.c_str(), type, space.get(),
                                            H5P_DEFAULT, storage.get(), H5P_DEFAULT),
                                 H5Dclose);
  if (!dataset.bytes.empty())
    check(H5Dwrite(written.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, dataset.bytes.data()));
  write_attributes(written.get(), dataset.attributes);
}

void write_members(hid_t group, const TreeGroup& tree) {
  write_attributes(group, tree.attributes);
  for (const TreeDataset& dataset : tree.datasets) write_dataset(group, dataset);
  for (const TreeGroup& below : tree.groups) {
    const Handle properties = object_properties(H5P_GROUP_CREATE);
    const Handle written =
        checked(H5Gcreate2(group, below.name.c_str(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
                H5Gclose);
    write_members(written.get(), below);
  }
}

Handle create_file(const std::filesystem::path& path) {
  const Handle access = checked(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  // The format of 1.10 is small for small groups and single chunks, and its structures carry
  // checksums. The file is nobody else's yet, and not every file system can lock.
  check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110));
  check(H5Pset_file_locking(access.get(), false, true));
  const Handle properties = object_properties(H5P_FILE_CREATE);
  return checked(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, properties.get(), access.get()), H5Fclose);
}

}  // namespace

void write_hdf5(const std::filesystem::path& path, const TreeGroup& root) {
  const std::lock_guard lock(hdf5_mutex());
  const QuietHdf5 quiet;
  Handle file = create_file(path);
  {
    const Handle top = checked(H5Gopen2(file.get(), "/", H5P_DEFAULT), H5Gclose);
    write_members(top.get(), root);
  }
  check(file.close());  // writes what is still in memory, and may fail
}

}  // namespace monoref
