// Recordings: one that this test writes as h5py would, those that are in this repository, and those
// of a folder given at configuration.
#include "golden/recording.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "golden/any_file.hpp"
#include "golden/compare.hpp"
#include "tests/golden/samples.hpp"

namespace monoref::testing {
namespace {

namespace fs = std::filesystem;

TEST(Recording, ComesBackAsItWasWritten) {
  const TemporaryFolder folder;
  write_small_recording(folder / "recording.h5");
  const Recording read = read_recording(folder / "recording.h5");
  EXPECT_EQ(recording_difference(read, small_recording()), "");
}

TEST(Recording, IsLookedUpByName) {
  const RecordedCase item = small_recording().cases[0];
  EXPECT_EQ(item.integer("next_n"), -3);
  EXPECT_EQ(item.integer("is_native"), 1);
  EXPECT_EQ(item.real("scale"), 0.3);
  EXPECT_EQ(item.word("mode"), "fp8");
  EXPECT_EQ(item.input("slots").type(), DType::kInt64);
  EXPECT_EQ(item.output("cache").type(), DType::kFloat8E4M3FN);
  EXPECT_EQ(item.find_input("cache"), nullptr);
  EXPECT_EQ(item.find_output("slots"), nullptr);
  EXPECT_EQ(item.find_scalar("slots"), nullptr);
  EXPECT_THROW(item.integer("scale"), Refusal);
  EXPECT_THROW(item.real("next_n"), Refusal);
  EXPECT_THROW(item.word("absent"), Refusal);
  EXPECT_THROW(item.input("cache"), Refusal);
  EXPECT_THROW(item.output("slots"), Refusal);
}

/// The files of a folder that are recordings by their name.
std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(folder, absent))
    if (entry.path().extension() == ".h5") files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

class RecordedFile : public ::testing::TestWithParam<std::string> {};

TEST_P(RecordedFile, IsReadWhole) {
  const Recording recording = read_recording(GetParam());
  // A recording may be split into files, whose names begin with its stage and whose cases keep
  // their titles.
  EXPECT_TRUE(fs::path(GetParam()).stem().string().starts_with(recording.stage)) << recording.stage;
  ASSERT_FALSE(recording.cases.empty());
  for (std::size_t i = 0; i < recording.cases.size(); ++i) {
    EXPECT_TRUE(recording.cases[i].title.starts_with("case_")) << recording.cases[i].title;
    if (i > 0) {
      EXPECT_LT(recording.cases[i - 1].title, recording.cases[i].title);
    }
    EXPECT_FALSE(recording.cases[i].inputs.empty() && recording.cases[i].scalars.empty());
    EXPECT_FALSE(recording.cases[i].outputs.empty() && recording.cases[i].scalars.empty());
  }
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  return fs::path(info.param).stem().string();
}

// A clone may have neither folder; then there are no such tests.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RecordedFile);
INSTANTIATE_TEST_SUITE_P(InRepository, RecordedFile,
                         ::testing::ValuesIn(files_of(MONOREF_REPOSITORY_RECORDINGS)), test_name);
INSTANTIATE_TEST_SUITE_P(InFolder, RecordedFile, ::testing::ValuesIn(files_of(MONOREF_RECORDINGS)),
                         test_name);

}  // namespace
}  // namespace monoref::testing
