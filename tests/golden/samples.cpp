#include "tests/golden/samples.hpp"

#include <hdf5.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>

namespace monoref::testing {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "monoref-golden-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) {
  // Two rounds of a 64-bit finaliser over an odd-multiplied pair: every output bit depends on every
  // bit of both numbers.
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u ^ (counter + 1) * 0xd1342543de82ef95u;
  for (int round = 0; round < 2; ++round) {
    x ^= x >> 32;
    x *= 0xe9846af9b1a615du;
    x ^= x >> 29;
  }
  return x;
}

Tensor random_tensor(DType type, const Layout& layout, std::uint64_t seed) {
  Tensor tensor(type, layout);
  std::vector<std::byte> image(static_cast<std::size_t>(layout.stored()) * dtype_size(type));
  for (std::size_t i = 0; i < image.size(); ++i)
    image[i] = static_cast<std::byte>(random_bits(seed, i) & 0xff);
  tensor.set_image(image);
  return tensor;
}

std::vector<DType> all_types() {
  return {DType::kInt32,      DType::kInt64,          DType::kUInt8,        DType::kFloat32,
          DType::kFloat64,    DType::kBFloat16,       DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ,
          DType::kFloat8E5M2, DType::kFloat8E5M2FNUZ, DType::kFloat8E8M0};
}

Layout sparse_layout() {
  const std::int64_t far = std::int64_t{1} << 32;
  return {{far, 8}, {8, 1}, {{0, 8}, {8 * 70'000, 8}, {8 * (far - 1), 8}}};
}

Case full_case(const std::string& title, std::uint64_t seed) {
  Case item;
  item.stage = "index_cache_insert";
  item.title = title;
  item.contract = Contract::parse("mono,kv_layout=dense,out_of_range_slot=drop");
  item.seed = ~seed;
  item.generator_version = 4'000'000'000u;
  item.line = "stage=index_cache_insert;contract=mono;seed=7";
  item.provenance = {"bug case P10", "a test, \xc3\xa9 and a \"quote\""};
  item.scalars = {{"zeta", std::numeric_limits<std::int64_t>::min()},
                  {"alpha", 0.1},
                  {"negative_zero", -0.0},
                  {"word", std::string("two words\nand a line")},
                  {"nothing", std::string()}};
  item.inputs = {
      {"slots", random_tensor(DType::kInt64, Layout::dense({7}), seed + 1)},
      {"cache", random_tensor(DType::kBFloat16, Layout::strided({5, 16}, {24, 1}), seed + 2)},
      {"far", random_tensor(DType::kUInt8, sparse_layout(), seed + 3)},
      {"empty", Tensor(DType::kFloat32, Layout::dense({0, 3}))},
      {"scalar", random_tensor(DType::kFloat64, Layout::dense({}), seed + 4)},
      {"big", random_tensor(DType::kInt32, Layout::dense({3, 500}), seed + 5)}};
  Tensor mask(DType::kUInt8, Layout::dense({2, 3}));
  mask.view<std::uint8_t, 2>()(1, 2) = 1;
  item.expected = {
      {"rows", random_tensor(DType::kInt32, Layout::dense({2, 3}), seed + 6), mask},
      {"cache", random_tensor(DType::kFloat8E4M3FN, Layout::dense({4, 4}), seed + 7), {}}};
  return item;
}

std::vector<Case> small_cases() {
  std::vector<Case> cases;
  for (const std::string title : {"first", "second"}) {
    Case& item = cases.emplace_back();
    item.stage = "token_rows";
    item.title = title;
    item.seed = 0x0123456789abcdef;
    item.generator_version = 1;
    item.line = "stage=token_rows;seed=1;q_len=3";
    item.provenance = {"generated", "distinct-provenance-text"};
    item.scalars = {{"q_len", std::int64_t{3}}, {"scale", 2.5}, {"kind", std::string("ragged")}};
    item.inputs = {{"seq_lens", random_tensor(DType::kInt32, Layout::dense({24}), 11)}};
    item.expected = {{"rows", random_tensor(DType::kInt32, Layout::dense({600}), 12),
                      Tensor(DType::kUInt8, Layout::dense({600}))}};
  }
  return cases;
}

void put_file(const fs::path& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

void put_text(const fs::path& path, const std::string& text) {
  put_file(path, std::as_bytes(std::span(text)));
}

namespace {

/// HDF5 in as few words as a test needs; every failure is a failed test.
hid_t ok(hid_t id) {
  if (id < 0) throw std::runtime_error("HDF5 declines in a test");
  return id;
}

void put_attribute(hid_t object, const char* name, hid_t type, const void* value) {
  const hid_t space = ok(H5Screate(H5S_SCALAR));
  const hid_t attribute = ok(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT));
  ok(H5Awrite(attribute, type, value));
  H5Aclose(attribute);
  H5Sclose(space);
}

void put_text_attribute(hid_t object, const char* name, const char* value) {
  const hid_t type = ok(H5Tcopy(H5T_C_S1));
  ok(H5Tset_size(type, H5T_VARIABLE));
  ok(H5Tset_cset(type, H5T_CSET_UTF8));
  put_attribute(object, name, type, &value);
  H5Tclose(type);
}

void put_boolean_attribute(hid_t object, const char* name, bool value) {
  const hid_t type = ok(H5Tenum_create(H5T_STD_I8LE));
  const std::int8_t truths[] = {0, 1};
  ok(H5Tenum_insert(type, "FALSE", &truths[0]));
  ok(H5Tenum_insert(type, "TRUE", &truths[1]));
  put_attribute(object, name, type, &truths[value ? 1 : 0]);
  H5Tclose(type);
}

hid_t hdf5_type(DType type) {
  switch (type) {
    case DType::kInt32:
      return H5T_STD_I32LE;
    case DType::kInt64:
      return H5T_STD_I64LE;
    case DType::kFloat32:
      return H5T_IEEE_F32LE;
    case DType::kFloat64:
      return H5T_IEEE_F64LE;
    case DType::kBFloat16:
      return H5T_STD_U16LE;
    default:
      return H5T_STD_U8LE;
  }
}

void put_tensor(hid_t group, const NamedTensor& item) {
  const std::vector<hsize_t> dims(item.tensor.dims().begin(), item.tensor.dims().end());
  const hid_t space = ok(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
  const hid_t storage = ok(H5Pcreate(H5P_DATASET_CREATE));
  const std::vector<std::byte> image = item.tensor.image();
  if (image.size() > 1000) {
    ok(H5Pset_chunk(storage, static_cast<int>(dims.size()), dims.data()));
    ok(H5Pset_shuffle(storage));
    ok(H5Pset_deflate(storage, 4));
  }
  const hid_t type = hdf5_type(item.tensor.type());
  const hid_t dataset =
      ok(H5Dcreate2(group, item.name.c_str(), type, space, H5P_DEFAULT, storage, H5P_DEFAULT));
  ok(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, image.data()));
  put_text_attribute(dataset, "dtype", std::string(dtype_name(item.tensor.type())).c_str());
  H5Dclose(dataset);
  H5Pclose(storage);
  H5Sclose(space);
}

void put_scalar(hid_t group, const NamedScalar& item) {
  if (item.name.starts_with("is_"))
    put_boolean_attribute(group, item.name.c_str(), std::get<std::int64_t>(item.value) != 0);
  else if (const auto* integer = std::get_if<std::int64_t>(&item.value))
    put_attribute(group, item.name.c_str(), H5T_NATIVE_INT64, integer);
  else if (const auto* real = std::get_if<double>(&item.value))
    put_attribute(group, item.name.c_str(), H5T_NATIVE_DOUBLE, real);
  else
    put_text_attribute(group, item.name.c_str(), std::get<std::string>(item.value).c_str());
}

void put_tensors(hid_t group, const char* name, const std::vector<NamedTensor>& tensors) {
  const hid_t below = ok(H5Gcreate2(group, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  for (const NamedTensor& tensor : tensors) put_tensor(below, tensor);
  H5Gclose(below);
}

}  // namespace

Recording small_recording() {
  Recording recording{"token_rows", "a test", "no device", "0.0", "0.0", {}};
  for (const std::string title : {"case_0000", "case_0001"}) {
    RecordedCase& item = recording.cases.emplace_back();
    item.title = title;
    item.scalars = {{"is_native", std::int64_t{1}},
                    {"mode", std::string("fp8")},
                    {"next_n", std::int64_t{-3}},
                    {"scale", 0.3}};
    item.inputs = {{"keys", random_tensor(DType::kBFloat16, Layout::dense({6, 8}), 21)},
                   {"slots", random_tensor(DType::kInt64, Layout::dense({6}), 22)}};
    item.outputs = {{"cache", random_tensor(DType::kFloat8E4M3FN, Layout::dense({5, 9}), 23)},
                    {"rows", random_tensor(DType::kInt32, Layout::dense({20, 20}), 24)}};
  }
  return recording;
}

void write_small_recording(const fs::path& path) {
  const Recording recording = small_recording();
  const hid_t file = ok(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  put_text_attribute(file, "format", "recorded-cases/1");
  put_text_attribute(file, "stage", recording.stage.c_str());
  put_text_attribute(file, "source", recording.source.c_str());
  put_text_attribute(file, "device", recording.device.c_str());
  put_text_attribute(file, "torch", recording.torch.c_str());
  put_text_attribute(file, "triton", recording.triton.c_str());
  const auto count = static_cast<std::int64_t>(recording.cases.size());
  put_attribute(file, "cases", H5T_NATIVE_INT64, &count);
  for (const RecordedCase& item : recording.cases) {
    const hid_t group =
        ok(H5Gcreate2(file, item.title.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    for (const NamedScalar& scalar : item.scalars) put_scalar(group, scalar);
    put_tensors(group, "in", item.inputs);
    put_tensors(group, "out", item.outputs);
    H5Gclose(group);
  }
  ok(H5Fclose(file));
}

}  // namespace monoref::testing
