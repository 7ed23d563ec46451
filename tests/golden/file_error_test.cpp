// Files that are not what they should be: each gets one message that names file, group, dataset and
// reason.
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>

#include "golden/any_file.hpp"
#include "golden/compare.hpp"
#include "golden/load.hpp"
#include "golden/seal.hpp"
#include "tests/golden/samples.hpp"

namespace monoref::testing {
namespace {

namespace fs = std::filesystem;

/// What `read_any` says of a file after its name; "accepted" if nothing.
std::string complaint(const fs::path& path) {
  const std::string start = fmt::format("file '{}': ", path.string());
  try {
    read_any(path);
  } catch (const FileError& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with(start)) << message;
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    return message.substr(std::min(start.size(), message.size()));
  }
  return "accepted";
}

std::string complaint_about(const TreeGroup& tree) {
  const TemporaryFolder folder;
  write_hdf5(folder / "tree.h5", tree);
  return complaint(folder / "tree.h5");
}

TreeGroup good_tree() {
  return tree_from_cases(small_cases());
}

/// What is said of a good file of cases after a change that its writer sealed.
std::string complaint_after(const std::function<void(TreeGroup&)>& change) {
  TreeGroup tree = good_tree();
  change(tree);
  seal(tree);
  return complaint_about(tree);
}

AttributeValue& attribute(std::vector<TreeAttribute>& attributes, std::string_view name) {
  for (TreeAttribute& item : attributes)
    if (item.name == name) return item.value;
  throw std::logic_error("no such attribute in this test");
}

void erase_attribute(std::vector<TreeAttribute>& attributes, std::string_view name) {
  std::erase_if(attributes, [&](const TreeAttribute& item) { return item.name == name; });
}

/// The dataset /case_000000/inputs/seq_lens: 24 elements of int32.
TreeDataset& seq_lens(TreeGroup& root) {
  return root.groups[0].groups[1].datasets[0];
}

// ---- the file as a whole
// -------------------------------------------------------------------------

TEST(FileError, NamesWhatIsNoFileOfCases) {
  const TemporaryFolder folder;
  EXPECT_EQ(complaint(folder / "missing.h5"), "cannot be opened: No such file or directory");
  EXPECT_EQ(complaint(folder.path()), "is a directory");
  put_text(folder / "empty.h5", "");
  EXPECT_EQ(complaint(folder / "empty.h5"), "is empty");
  put_text(folder / "text.h5", "stage,title\ntoken_rows,first\n");
  EXPECT_EQ(complaint(folder / "text.h5"), "is not an HDF5 file");
  put_text(folder / "signature.h5", "\x89HDF\r\n\x1a\n");
  EXPECT_EQ(complaint(folder / "signature.h5").substr(0, 33), "is not a readable HDF5 file (HDF5");
  ASSERT_EQ(mkfifo((folder / "pipe.h5").c_str(), 0600), 0);
  EXPECT_EQ(complaint(folder / "pipe.h5"), "is not a regular file");
  put_text(folder / "huge.h5", "x");
  fs::resize_file(folder / "huge.h5", (std::uintmax_t{1} << 30) + 1);
  EXPECT_EQ(complaint(folder / "huge.h5"), "has 1073741825 bytes, the limit is 1073741824");
}

TEST(FileError, NamesAFileWithoutPermission) {
  const TemporaryFolder folder;
  write_cases(folder / "secret.h5", small_cases());
  fs::permissions(folder.path(), fs::perms::all);
  fs::permissions(folder / "secret.h5", fs::perms::none);
  // The superuser may read everything: ask as somebody else.
  const auto ask = [&] {
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0)
      return std::vector<std::byte>{};
    const std::string said = complaint(folder / "secret.h5");
    const auto bytes = std::as_bytes(std::span(said));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const IsolatedResult result = run_isolated(ask, {});
  const std::string said(reinterpret_cast<const char*>(result.answer.data()), result.answer.size());
  EXPECT_EQ(said, "cannot be opened: Permission denied");
}

TEST(FileError, NamesTruncationAtEveryLength) {
  const TemporaryFolder folder;
  write_cases(folder / "whole.h5", small_cases());
  const std::vector<std::byte> whole = read_whole_file(folder / "whole.h5");
  for (std::size_t size = 8; size < whole.size(); size += 1 + whole.size() / 100) {
    put_file(folder / "cut.h5", std::span(whole).first(size));
    EXPECT_TRUE(complaint(folder / "cut.h5").starts_with("is not a readable HDF5 file (HDF5: "))
        << "cut after " << size << " bytes: " << complaint(folder / "cut.h5");
  }
}

TEST(FileError, NamesHdf5FilesOfOtherPrograms) {
  TreeGroup foreign;
  EXPECT_EQ(complaint_about(foreign),
            "is an HDF5 file but no case file: it has no attribute 'format', which must be "
            "monoref-cases/1 or recorded-cases/1");
  foreign.attributes = {{"format", std::string("weights/3")}};
  EXPECT_EQ(complaint_about(foreign),
            "format is 'weights/3', must be monoref-cases/1 or recorded-cases/1");
  foreign.attributes = {{"format", std::int64_t{1}}};
  EXPECT_EQ(complaint_about(foreign),
            "attribute 'format' is not text; must be monoref-cases/1 or recorded-cases/1");
}

TEST(FileError, NamesTheOtherFormat) {
  const TemporaryFolder folder;
  write_cases(folder / "cases.h5", small_cases());
  write_small_recording(folder / "recording.h5");
  EXPECT_THROW(
      try { read_cases(folder / "recording.h5"); } catch (const FileError& error) {
        EXPECT_EQ(error.what(),
                  fmt::format("file '{}': format is 'recorded-cases/1', must be monoref-cases/1",
                              (folder / "recording.h5").string()));
        throw;
      },
      FileError);
  EXPECT_THROW(
      try { read_recording(folder / "cases.h5"); } catch (const FileError& error) {
        EXPECT_EQ(error.what(),
                  fmt::format("file '{}': format is 'monoref-cases/1', must be recorded-cases/1",
                              (folder / "cases.h5").string()));
        throw;
      },
      FileError);
}

// ---- damage ----------------------------------------------------------------------------------

/// Flips one bit of each byte of `text` in turn, where it lies in the file, and returns how many of
/// these files were accepted.
std::size_t accepted_flips(const fs::path& whole, std::string_view text) {
  const TemporaryFolder folder;
  std::vector<std::byte> bytes = read_whole_file(whole);
  const std::string_view content(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t at = content.find(text);
  if (at == content.npos) throw std::logic_error("the text does not occur in the file");
  std::size_t accepted = 0;
  for (std::size_t i = at; i < at + text.size(); ++i) {
    const std::byte flip = std::byte{1} << (i % 8);
    bytes[i] ^= flip;
    put_file(folder / "flipped.h5", bytes);
    bytes[i] ^= flip;
    if (complaint(folder / "flipped.h5") == "accepted") ++accepted;
  }
  return accepted;
}

TEST(Damage, EveryFlippedBitOfDataOrAttributesIsNoticed) {
  const TemporaryFolder folder;
  const std::vector<Case> cases = small_cases();
  write_cases(folder / "whole.h5", cases);
  ASSERT_EQ(complaint(folder / "whole.h5"), "accepted");
  const std::vector<std::byte> image = cases[0].input("seq_lens").image();
  EXPECT_EQ(accepted_flips(folder / "whole.h5",
                           {reinterpret_cast<const char*>(image.data()), image.size()}),
            0u);
  for (const std::string_view text :
       {"monoref-cases/1", "token_rows", "distinct-provenance-text", "mono", "first", "ragged",
        "q_len scale kind", "stage=token_rows;seed=1;q_len=3", "generated", "int32", "uint8",
        "seq_lens", "\xef\xcd\xab\x89\x67\x45\x23\x01" /* the seed */})
    EXPECT_EQ(accepted_flips(folder / "whole.h5", text), 0u) << text;
}

/// The digests notice what the library's own checksums do not: the same on trees, where there are
/// none.
TEST(Damage, DigestsNoticeEveryFlippedBitOfADataset) {
  TreeGroup tree = good_tree();
  for (std::size_t i = 0; i < seq_lens(tree).bytes.size() * 8; ++i) {
    std::byte& byte = seq_lens(tree).bytes[i / 8];
    byte ^= std::byte{1} << (i % 8);
    EXPECT_THROW(cases_from_tree(tree), ContentError) << "bit " << i;
    byte ^= std::byte{1} << (i % 8);
  }
  EXPECT_EQ(cases_from_tree(tree).size(), 2u);
}

TEST(Damage, IsNamedByItsPlace) {
  TreeGroup tree = good_tree();
  const std::string stated = std::get<std::string>(attribute(seq_lens(tree).attributes, "sha256"));
  seq_lens(tree).bytes[5] ^= std::byte{16};
  EXPECT_TRUE(complaint_about(tree).starts_with(
      "group 'case_000000/inputs', dataset 'seq_lens': has changed since it was written: "
      "attribute 'sha256' is " +
      stated + ", but must be "))
      << complaint_about(tree);

  const std::vector<std::pair<std::string, AttributeValue>> changes{
      {"title", std::string("frist")},
      {"stage", std::string("token_row")},
      {"contract", std::string("mono,kv_layout=dense")},
      {"seed", std::uint64_t{5}},
      {"generator_version", std::int64_t{2}},
      {"line", std::string()},
      {"origin", std::string("x")},
      {"source", std::string("x")}};
  for (const auto& [name, value] : changes) {
    tree = good_tree();
    attribute(tree.groups[1].attributes, name) = value;
    EXPECT_TRUE(complaint_about(tree).starts_with(
        "group 'case_000001': has changed since it was written: "))
        << name;
  }
  tree = good_tree();
  attribute(tree.groups[0].groups[2].attributes, "scale") = -2.5;
  EXPECT_TRUE(complaint_about(tree).starts_with(
      "group 'case_000000/scalars': has changed since it was written: "));
  tree = good_tree();
  std::swap(tree.groups[0].name, tree.groups[1].name);
  std::swap(tree.groups[0], tree.groups[1]);
  EXPECT_TRUE(complaint_about(tree).starts_with("has changed since it was written: "));
}

TEST(Damage, ToCompressedDataIsNamedByItsDataset) {
  const TemporaryFolder folder;
  std::vector<Case> cases = small_cases();
  cases.resize(1);
  // Nothing of this size fits a header, and random bytes stay almost as they are when deflated.
  cases[0].inputs = {{"big", random_tensor(DType::kUInt8, Layout::dense({60'000}), 3)}};
  cases[0].expected.clear();
  write_cases(folder / "cases.h5", cases);
  std::vector<std::byte> bytes = read_whole_file(folder / "cases.h5");
  bytes[bytes.size() / 2] ^= std::byte{1};
  put_file(folder / "cases.h5", bytes);
  EXPECT_TRUE(
      complaint(folder / "cases.h5").starts_with("group 'case_000000/inputs', dataset 'big': "))
      << complaint(folder / "cases.h5");
}

// ---- content that a writer sealed --------------------------------------------------------------

TEST(Content, MustHaveAllAttributesAndNoOthers) {
  EXPECT_EQ(complaint_after([](TreeGroup& root) { erase_attribute(root.attributes, "count"); }),
            "has no attribute 'count'");
  EXPECT_EQ(complaint_after([](TreeGroup& root) { root.attributes.push_back({"x", 1.0}); }),
            "has an attribute 'x', which this format does not know");
  EXPECT_EQ(
      complaint_after([](TreeGroup& root) { erase_attribute(root.groups[1].attributes, "line"); }),
      "group 'case_000001': has no attribute 'line'");
  EXPECT_EQ(
      complaint_after([](TreeGroup& root) { root.groups[0].attributes.push_back({"x", 1.0}); }),
      "group 'case_000000': has an attribute 'x', which this format does not know");
  EXPECT_EQ(
      complaint_after([](TreeGroup& root) { erase_attribute(seq_lens(root).attributes, "dims"); }),
      "group 'case_000000/inputs', dataset 'seq_lens': has no attribute 'dims'");
  EXPECT_EQ(
      complaint_after([](TreeGroup& root) { seq_lens(root).attributes.push_back({"x", 1.0}); }),
      "group 'case_000000/inputs', dataset 'seq_lens': has an attribute 'x', which this format "
      "does not know");
  EXPECT_EQ(complaint_after([](TreeGroup& root) {
              attribute(root.groups[0].attributes, "seed") = std::int64_t{1};
            }),
            "group 'case_000000': attribute 'seed' must be an integer of 64 bits without sign");
  TreeGroup unsealed = good_tree();
  erase_attribute(unsealed.groups[0].attributes, "sha256");
  EXPECT_EQ(complaint_about(unsealed), "group 'case_000000': has no attribute 'sha256'");
}

TEST(Content, MustKeepItsNumbers) {
  EXPECT_EQ(complaint_after(
                [](TreeGroup& root) { attribute(root.attributes, "schema") = std::int64_t{2}; }),
            "attribute 'schema' is 2, must be 1");
  EXPECT_EQ(complaint_after(
                [](TreeGroup& root) { attribute(root.attributes, "count") = std::int64_t{3}; }),
            "attribute 'count' is 3, there are 2 groups, and the limit is 100000");
  EXPECT_EQ(complaint_after([](TreeGroup& root) {
              attribute(root.groups[0].attributes, "generator_version") = std::int64_t{-1};
            }),
            "group 'case_000000': attribute 'generator_version' is -1, must be 0 to 4294967295");
  EXPECT_EQ(complaint_after([](TreeGroup& root) { root.groups[1].name = "case_000002"; }),
            "group 'case_000002': must be named 'case_000001'");
}

TEST(Content, MustNameAContractAndATitleOfItsOwn) {
  EXPECT_EQ(complaint_after([](TreeGroup& root) {
              attribute(root.groups[0].attributes, "contract") = std::string("stereo");
            }).substr(0, 100),
            "group 'case_000000': attribute 'contract' is 'stereo': contract: preset is 'stereo', "
            "must be one of ");
  EXPECT_EQ(complaint_after([](TreeGroup& root) {
              attribute(root.groups[1].attributes, "title") = std::string("first");
            }),
            "group 'case_000001': the title 'first' is used by an earlier case");
}

TEST(Content, MustListItsMembers) {
  EXPECT_EQ(complaint_after([](TreeGroup& root) { root.groups[0].groups[1].datasets.clear(); }),
            "group 'case_000000/inputs', dataset 'seq_lens': is missing, but listed by the case");
  EXPECT_EQ(complaint_after([](TreeGroup& root) { seq_lens(root).name = "lens"; }),
            "group 'case_000000/inputs', dataset 'seq_lens': is missing, but listed by the case");
  EXPECT_EQ(complaint_after([](TreeGroup& root) {
              attribute(root.groups[0].attributes, "inputs") = std::string();
            }),
            "group 'case_000000/inputs', dataset 'seq_lens': is not listed by the case");
  EXPECT_EQ(complaint_after([](TreeGroup& root) {
              attribute(root.groups[0].attributes, "scalars") = std::string("q_len scale");
            }),
            "group 'case_000000/scalars': has 3 attributes, must have 2, one for each scalar of "
            "the case");
  EXPECT_EQ(
      complaint_after([](TreeGroup& root) { root.groups[0].groups[1].name = "ins"; }),
      "group 'case_000000/ins': is not a part of a case, must be one of expected, inputs, scalars, "
      "specified");
  EXPECT_EQ(complaint_after(
                [](TreeGroup& root) { root.groups[0].groups[3].datasets[0].name = "others"; }),
            "group 'case_000000/specified', dataset 'others': is not listed by the case");
}

/// What is said after a change of the dataset /case_000000/inputs/seq_lens, without its place.
std::string tensor_complaint(const std::function<void(TreeDataset&)>& change) {
  const std::string place = "group 'case_000000/inputs', dataset 'seq_lens': ";
  const std::string said = complaint_after([&](TreeGroup& root) { change(seq_lens(root)); });
  EXPECT_TRUE(said.starts_with(place)) << said;
  return said.substr(std::min(place.size(), said.size()));
}

TEST(Content, MustHaveTheTypeThatItNames) {
  const auto named = [](const std::string& name) {
    return tensor_complaint([&](TreeDataset& d) { attribute(d.attributes, "dtype") = name; });
  };
  EXPECT_EQ(named("int33"), "attribute 'dtype' is 'int33', must be a known type");
  EXPECT_EQ(named("float32"),
            "attribute 'dtype' is 'float32', must be one that the stored elements have");
  EXPECT_EQ(named("bfloat16"),
            "attribute 'dtype' is 'bfloat16', must be one that the stored elements have");
}

TEST(Content, MustFitItsLayout) {
  using List = std::vector<std::int64_t>;
  const auto with = [](List dims, List strides, List extents) {
    return tensor_complaint([&](TreeDataset& d) {
      attribute(d.attributes, "dims") = dims;
      attribute(d.attributes, "strides") = strides;
      attribute(d.attributes, "extents") = extents;
    });
  };
  const std::int64_t most = std::int64_t{1} << 62;
  EXPECT_EQ(with({25}, {1}, {0, 25}), "has the shape [24], must have [25] as its layout needs");
  EXPECT_EQ(with({4, 5}, {5, 1}, {0, 20}),
            "has the shape [24], must have [4, 5] as its layout needs");
  EXPECT_EQ(with({24}, {1, 1}, {0, 24}), "has 1 dims, must have as many as strides, 2");
  EXPECT_EQ(with({24}, {1}, {0, 24, 30}), "attribute 'extents' lists 3 numbers, must be pairs");
  EXPECT_EQ(with({-24}, {1}, {0, 24}),
            "axis 0 has dim -24 and stride 1, which must be 0 to 1099511627776");
  EXPECT_EQ(with({24}, {most}, {0, 24}),
            "axis 0 has dim 24 and stride 4611686018427387904, which must be 0 to 1099511627776");
  EXPECT_EQ(with({most, most}, {0, 0}, {0, 24}),
            "its dims address more than 1099511627776 elements, the limit");
  EXPECT_EQ(with({0, most, most}, {0, 0, 0}, {0, 24}),
            "its dims address more than 1099511627776 elements, the limit");
  EXPECT_EQ(with({24}, {2}, {0, 24}),
            "layout: dims and strides address 47 elements, must be at most those stored, 24");
  EXPECT_EQ(with({24}, {1}, {0, 12, 11, 12}).substr(0, 56),
            "layout: storage runs must ascend, be disjoint and end be");
  EXPECT_EQ(with({24}, {1}, {std::int64_t{1} << 27, 24}),
            "its storage ends at element 134217752, the limit is 67108864");
  EXPECT_EQ(with({24}, {1}, {0, 12, std::int64_t{1} << 39, 12}),
            "its storage ends at element 549755813900, the limit is 274877906944");
}

// ---- recordings
// ----------------------------------------------------------------------------------

/// A valid recording of one case with one input, as a tree.
TreeGroup recording_tree() {
  TreeGroup root;
  for (const std::string name : {"device", "source", "stage", "torch", "triton"})
    root.attributes.push_back({name, std::string("x")});
  root.attributes.push_back({"format", std::string("recorded-cases/1")});
  root.attributes.push_back({"cases", std::int64_t{1}});
  TreeDataset keys{"keys",
                   StoredType::kUInt16,
                   {3},
                   std::vector<std::byte>(6),
                   {{"dtype", std::string("bfloat16")}}};
  TreeGroup in{"in", {}, {keys}, {}};
  TreeGroup out{"out", {}, {}, {}};
  root.groups.push_back({"case_0000", {{"n", std::int64_t{1}}}, {}, {in, out}});
  return root;
}

std::string recording_complaint(const std::function<void(TreeGroup&)>& change) {
  TreeGroup tree = recording_tree();
  change(tree);
  return complaint_about(tree);
}

TEST(RecordingContent, MustBeComplete) {
  EXPECT_EQ(recording_complaint([](TreeGroup&) {}), "accepted");
  EXPECT_EQ(recording_complaint([](TreeGroup& root) { erase_attribute(root.attributes, "stage"); }),
            "has no attribute 'stage'");
  EXPECT_EQ(recording_complaint([](TreeGroup& root) { root.attributes.push_back({"x", 1.0}); }),
            "has an attribute 'x', which this format does not know");
  EXPECT_EQ(recording_complaint(
                [](TreeGroup& root) { attribute(root.attributes, "cases") = std::int64_t{2}; }),
            "attribute 'cases' is 2, must be 1, the number of groups");
  EXPECT_EQ(recording_complaint([](TreeGroup& root) { root.groups[0].groups.pop_back(); }),
            "group 'case_0000': must hold the groups 'in' and 'out', and no others");
  EXPECT_EQ(recording_complaint(
                [](TreeGroup& root) { root.groups[0].attributes[0].value = std::uint64_t{1}; }),
            "group 'case_0000': attribute 'n' must be an integer of 64 bits with sign, a real "
            "number, a boolean or a text");
  EXPECT_EQ(recording_complaint(
                [](TreeGroup& root) { root.groups[0].groups[0].datasets[0].attributes.clear(); }),
            "group 'case_0000/in', dataset 'keys': has no attribute 'dtype'");
  EXPECT_EQ(recording_complaint([](TreeGroup& root) {
              root.groups[0].groups[0].datasets[0].attributes[0].value = std::string("int32");
            }),
            "group 'case_0000/in', dataset 'keys': attribute 'dtype' is 'int32', must be one that "
            "the stored elements have");
  EXPECT_EQ(recording_complaint([](TreeGroup& root) {
              root.groups[0].groups[0].groups.push_back({"deep", {}, {}, {}});
            }),
            "group 'case_0000/in/deep': groups are nested deeper than 2, the limit");
}

// ---- what HDF5 can do and case files do not
// ------------------------------------------------------

/// What is said of a recording into whose group case_0000/in `add` put something.
std::string complaint_with(const std::function<void(hid_t)>& add) {
  const TemporaryFolder folder;
  write_hdf5(folder / "tree.h5", recording_tree());
  const hid_t file = H5Fopen((folder / "tree.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  const hid_t group = H5Gopen2(file, "case_0000/in", H5P_DEFAULT);
  add(group);
  H5Gclose(group);
  H5Fclose(file);
  return complaint(folder / "tree.h5");
}

void add_dataset(hid_t group, hid_t type, const std::vector<hsize_t>& dims,
                 const std::function<void(hid_t)>& set = {}) {
  const hid_t space = H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr);
  const hid_t storage = H5Pcreate(H5P_DATASET_CREATE);
  if (set) set(storage);
  H5Dclose(H5Dcreate2(group, "odd", type, space, H5P_DEFAULT, storage, H5P_DEFAULT));
  H5Pclose(storage);
  H5Sclose(space);
}

TEST(ForeignFeatures, LinksElsewhereAreNotFollowed) {
  EXPECT_EQ(complaint_with([](hid_t group) {
              H5Lcreate_soft("/case_0000", group, "soft", H5P_DEFAULT, H5P_DEFAULT);
            }),
            "group 'case_0000/in': member 'soft' is a soft or external link; only hard links are "
            "read");
  EXPECT_EQ(complaint_with([](hid_t group) {
              H5Lcreate_external("/etc/hostname", "/", group, "out", H5P_DEFAULT, H5P_DEFAULT);
            }),
            "group 'case_0000/in': member 'out' is a soft or external link; only hard links are "
            "read");
  EXPECT_EQ(complaint_with([](hid_t group) {
              H5Lcreate_hard(group, "/", group, "circle", H5P_DEFAULT, H5P_DEFAULT);
            }),
            "group 'case_0000/in/circle': groups are nested deeper than 2, the limit");
}

TEST(ForeignFeatures, DataElsewhereIsNotRead) {
  EXPECT_EQ(complaint_with([](hid_t group) {
              add_dataset(group, H5T_STD_U8LE, {8},
                          [](hid_t storage) { H5Pset_external(storage, "/etc/hostname", 0, 8); });
            }),
            "group 'case_0000/in', dataset 'odd': its data lies in another file");
  EXPECT_EQ(complaint_with([](hid_t group) {
              add_dataset(group, H5T_STD_U8LE, {8}, [](hid_t storage) {
                const hsize_t size = 8;
                const hid_t space = H5Screate_simple(1, &size, nullptr);
                H5Pset_virtual(storage, space, "/etc/hostname", "x", space);
                H5Sclose(space);
              });
            }),
            "group 'case_0000/in', dataset 'odd': is stored in a way that case files do not use");
}

TEST(ForeignFeatures, OtherTypesAndSizesAreNamed) {
  const std::string place = "group 'case_0000/in', dataset 'odd': ";
  const std::string types =
      "its elements must be stored as little-endian int32, int64, uint8, uint16, float32 or "
      "float64";
  for (const hid_t type : {H5T_STD_I32BE, H5T_STD_I16LE, H5T_IEEE_F64BE, H5T_C_S1})
    EXPECT_EQ(complaint_with([&](hid_t group) { add_dataset(group, type, {2}); }), place + types);
  EXPECT_EQ(complaint_with(
                [](hid_t group) { add_dataset(group, H5T_STD_U8LE, {std::uint64_t{1} << 40}); }),
            place + "dimension 0 is 1099511627776, the limit is 268435456");
  EXPECT_EQ(
      complaint_with([](hid_t group) { add_dataset(group, H5T_STD_I64LE, {1 << 20, 1 << 20}); }),
      place + "is larger than 268435456 bytes, the limit");
  EXPECT_EQ(complaint_with(
                [](hid_t group) { add_dataset(group, H5T_STD_U8LE, std::vector<hsize_t>(17, 1)); }),
            place + "its shape must be a plain one of rank 0 to 16");
  EXPECT_EQ(
      complaint_with([](hid_t group) {
        add_dataset(group, H5T_STD_U8LE, {8}, [](hid_t storage) {
          const hsize_t chunk = 8;
          H5Pset_chunk(storage, 1, &chunk);
          H5Pset_nbit(storage);
        });
      }),
      place + "is stored through filter 5; case files use shuffle, deflate and fletcher32 only");
}

}  // namespace
}  // namespace monoref::testing
