// Files of cases: what is written comes back bit for bit, twice the same, and nothing else is
// accepted for writing.
#include "golden/case_file.hpp"

#include <gtest/gtest.h>
#include <time.h>

#include <bit>
#include <cmath>
#include <limits>

#include "golden/any_file.hpp"
#include "golden/compare.hpp"
#include "golden/seal.hpp"
#include "golden/sha256.hpp"
#include "tests/golden/samples.hpp"

namespace monoref::testing {
namespace {

/// Writes the cases, reads them back and requires that they are the same in everything.
void expect_round_trip(const std::vector<Case>& cases) {
  const TemporaryFolder folder;
  write_cases(folder / "cases.h5", cases);
  const std::vector<Case> read = read_cases(folder / "cases.h5");
  ASSERT_EQ(read.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(case_difference(cases[i], read[i]), "");
}

Case case_of(std::string title, Tensor input) {
  Case item;
  item.stage = "any_stage";
  item.title = std::move(title);
  item.inputs.push_back({"tensor", std::move(input)});
  return item;
}

/// The message with which writing is declined, without the path.
std::string declined(const std::vector<Case>& cases) {
  const TemporaryFolder folder;
  const std::string start =
      fmt::format("file '{}': cannot be written: ", (folder / "cases.h5").string());
  try {
    write_cases(folder / "cases.h5", cases);
  } catch (const FileError& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with(start)) << message;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    return message.substr(std::min(start.size(), message.size()));
  }
  return "accepted";
}

TEST(Sha256, GivesTheDigestsOfThePublishedExamples) {
  // FIPS 180-2, appendix B.1 and B.2; and the empty message.
  EXPECT_EQ(Sha256().hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256().add(std::string_view("abc")).hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256()
                .add(std::string_view("abcdbcdecdefdefgefghfghighij"))
                .add(std::string_view("hijkijkljklmklmnlmnomnopnopq"))
                .hex(),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(CaseFile, KeepsEveryTypeAndLayout) {
  const std::vector<Layout> layouts{Layout::dense({}),
                                    Layout::dense({5}),
                                    Layout::dense({3, 1, 4, 1, 5}),
                                    Layout::dense({40, 50}),  // more than a header holds
                                    Layout::strided({4, 6}, {9, 1}),
                                    Layout::strided({3, 4}, {1, 3}),
                                    Layout::strided({40, 50}, {64, 1}),
                                    Layout::strided({7, 3}, {0, 1}),
                                    Layout{{2, 2}, {2, 1}, {{0, 9}}},
                                    Layout{{2, 2}, {2, 1}, {{5, 4}}},
                                    sparse_layout(),
                                    Layout::dense({0}),
                                    Layout::dense({4, 0, 3})};
  std::vector<Case> cases;
  for (const DType type : all_types()) {
    for (std::size_t i = 0; i < layouts.size(); ++i)
      cases.push_back(
          case_of(fmt::format("{} {}", dtype_name(type), i), random_tensor(type, layouts[i], i)));
  }
  expect_round_trip(cases);
}

TEST(CaseFile, KeepsEveryPartOfACase) {
  expect_round_trip({full_case("one", 1), full_case("two", 2)});
}

TEST(CaseFile, KeepsNoCasesAndBareCases) {
  expect_round_trip({});
  Case bare;
  bare.stage = "s";
  bare.title = "t";
  expect_round_trip({bare});
}

TEST(CaseFile, KeepsManyCasesInOrder) {
  std::vector<Case> cases;
  for (int i = 0; i < 300; ++i)
    cases.push_back(case_of(fmt::format("case {}", 1000 - i),
                            random_tensor(DType::kInt32, Layout::dense({3}), 5)));
  expect_round_trip(cases);
}

TEST(CaseFile, KeepsSpecialReals) {
  using Limits = std::numeric_limits<double>;
  Case item = case_of("reals", Tensor(DType::kUInt8, Layout::dense({1})));
  const std::vector<double> values{0.0,
                                   -0.0,
                                   Limits::infinity(),
                                   -Limits::infinity(),
                                   Limits::quiet_NaN(),
                                   -Limits::quiet_NaN(),
                                   std::bit_cast<double>(0x7ff0000000000001u),  // signalling
                                   std::bit_cast<double>(0xfff8dead0000beefu),
                                   Limits::denorm_min(),
                                   Limits::min(),
                                   Limits::max(),
                                   0.1};
  for (std::size_t i = 0; i < values.size(); ++i)
    item.scalars.push_back({fmt::format("x{}", i), values[i]});
  const std::int64_t smallest = std::numeric_limits<std::int64_t>::min();
  item.scalars.push_back({"smallest", smallest});
  item.scalars.push_back({"largest", ~smallest});
  expect_round_trip({item});
}

TEST(CaseFile, KeepsLongTexts) {
  Case item = case_of("long", Tensor(DType::kUInt8, Layout::dense({1})));
  item.line = std::string(60'000, 'l');
  item.provenance.source = "line\nbreak, tab\t, \xe2\x82\xac";
  item.scalars.push_back({"word", std::string(60'000, 'w')});
  item.scalars.push_back({"empty", std::string()});
  expect_round_trip({item});
}

TEST(CaseFile, KeepsASparseTensorWithoutItsGaps) {
  const TemporaryFolder folder;
  write_cases(folder / "cases.h5",
              std::vector{case_of("far", random_tensor(DType::kUInt8, sparse_layout(), 1))});
  EXPECT_LT(std::filesystem::file_size(folder / "cases.h5"), 10'000u);
}

TEST(CaseFile, EqualCasesGiveEqualBytesAtAnyTime) {
  const TemporaryFolder folder;
  const std::vector<Case> cases{full_case("one", 1), full_case("two", 2)};
  write_cases(folder / "a.h5", cases);
  const timespec wait{1, 100'000'000};  // the library's times count seconds
  nanosleep(&wait, nullptr);
  write_cases(folder / "b.h5", read_cases(folder / "a.h5"));
  EXPECT_EQ(read_whole_file(folder / "a.h5"), read_whole_file(folder / "b.h5"));
}

TEST(CaseFile, TellsItsFormatsApart) {
  const TemporaryFolder folder;
  write_cases(folder / "cases.h5", small_cases());
  write_small_recording(folder / "recording.h5");
  const AnyFile cases = read_any(folder / "cases.h5");
  const AnyFile recording = read_any(folder / "recording.h5");
  EXPECT_EQ(std::get<std::vector<Case>>(cases).size(), 2u);
  EXPECT_EQ(recording_difference(std::get<Recording>(recording), small_recording()), "");
}

TEST(CaseFile, DeclinesToWriteWhatCouldNotBeRead) {
  const Case good = case_of("t", Tensor(DType::kUInt8, Layout::dense({2})));
  EXPECT_EQ(declined({good, good}),
            "group 'case_000001': the title 't' is used by an earlier case");
  Case bad = good;
  bad.title.clear();
  EXPECT_EQ(declined({bad}), "group 'case_000000': attribute 'title' is empty, must be a name");
  bad = good;
  bad.line = std::string(60'001, 'x');
  EXPECT_EQ(declined({bad}),
            "group 'case_000000': line is a text of 60001 bytes, the limit is 60000");
  bad = good;
  bad.provenance.origin = std::string("a\0b", 3);
  EXPECT_EQ(declined({bad}), "group 'case_000000': origin is a text with a zero byte in it");
  for (const std::string name : {"", "a b", "a/b", "..", "sha256", "\xc3\xa9"}) {
    bad = good;
    bad.inputs[0].name = name;
    EXPECT_EQ(declined({bad}),
              fmt::format("group 'case_000000': '{}' cannot be a name: it must be 1 to 128 of A-Z "
                          "a-z 0-9 _ . + -, not dots alone and not sha256",
                          name));
  }
  bad = good;
  bad.inputs.push_back(bad.inputs[0]);
  EXPECT_EQ(declined({bad}), "group 'case_000000': the name 'tensor' is used twice");
}

TEST(CaseFile, DeclinesMasksThatDoNotFitTheirOutput) {
  const std::string place = "group 'case_000000/specified', dataset 'out': ";
  Case item = case_of("t", Tensor(DType::kUInt8, Layout::dense({2})));
  item.expected.push_back({"out", Tensor(DType::kInt32, Layout::dense({2, 3})),
                           Tensor(DType::kUInt8, Layout::dense({3, 2}))});
  EXPECT_EQ(declined({item}), place + "must be dense uint8 of the output's dims [2, 3]");
  item.expected[0].specified = Tensor(DType::kInt32, Layout::dense({2, 3}));
  EXPECT_EQ(declined({item}), place + "must be dense uint8 of the output's dims [2, 3]");
  item.expected[0].specified = Tensor(DType::kUInt8, Layout::dense({2, 3}));
  item.expected[0].specified->fill_bytes(std::byte{2});
  EXPECT_EQ(declined({item}), place + "holds the value 2, must be 0 or 1");
}

TEST(CaseFile, DeclinesTensorsBeyondTheLimits) {
  const auto of = [](Layout layout) {
    return case_of("t", Tensor(DType::kUInt8, std::move(layout)));
  };
  const std::string place = "group 'case_000000/inputs', dataset 'tensor': ";
  EXPECT_EQ(declined({of(Layout::dense(std::vector<std::int64_t>(17, 1)))}),
            place + "has 17 dims, the limit is 16");
  EXPECT_EQ(declined({of(Layout::strided({1 << 21, 1 << 21}, {0, 0}))}),
            place + "its dims address more than 1099511627776 elements, the limit");
  EXPECT_EQ(declined({of(Layout{{1}, {1}, {{1 << 28, 1}}})}),
            place + "its storage ends at element 268435457, the limit is 268435456");
  Layout crumbs{{1}, {1}, {}};
  for (std::int64_t i = 0; i < 3751; ++i) crumbs.extents.push_back({2 * i, 1});
  EXPECT_EQ(declined({of(crumbs)}), place + "has 3751 runs of storage, the limit is 3750");
}

}  // namespace
}  // namespace monoref::testing
