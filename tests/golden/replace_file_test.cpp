// Writing as one step: whoever looks, also after a kill, finds the old file or the new one, whole.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "golden/case_file.hpp"
#include "golden/compare.hpp"
#include "golden/isolation.hpp"
#include "tests/golden/samples.hpp"

namespace monoref::testing {
namespace {

namespace fs = std::filesystem;

std::vector<Case> version(std::uint64_t number) {
  std::vector<Case> cases = small_cases();
  cases[0].seed = number;
  return cases;
}

/// Files of the folder but `kept`; each must be recognisable as unfinished.
std::size_t unfinished_files(const TemporaryFolder& folder, const std::string& kept) {
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (entry.path().filename() == kept) continue;
    EXPECT_TRUE(is_unfinished_file(entry.path())) << entry.path();
    ++count;
  }
  return count;
}

TEST(ReplaceFile, RecognisesUnfinishedFiles) {
  EXPECT_TRUE(is_unfinished_file("/golden/.cases.h5.123-0.unfinished"));
  EXPECT_FALSE(is_unfinished_file("/golden/cases.h5"));
  EXPECT_FALSE(is_unfinished_file("/golden/.cases.h5"));
  EXPECT_FALSE(is_unfinished_file("/golden/cases.unfinished"));
}

TEST(ReplaceFile, AWriterKilledAfterAnyStepLeavesAWholeFile) {
  for (const WriteStep last :
       {WriteStep::kCreated, WriteStep::kWritten, WriteStep::kSynced, WriteStep::kRenamed}) {
    const TemporaryFolder folder;
    write_cases(folder / "cases.h5", version(1));
    const IsolatedResult result = run_isolated(
        [&] {
          write_cases(folder / "cases.h5", version(2), [=](WriteStep step) {
            if (step == last) raise(SIGKILL);
          });
          return std::vector<std::byte>{};
        },
        {});
    ASSERT_EQ(result.failure, "crashed (signal 9)");
    const bool renamed = last == WriteStep::kRenamed;
    EXPECT_EQ(read_cases(folder / "cases.h5")[0].seed, renamed ? 2u : 1u);
    EXPECT_EQ(unfinished_files(folder, "cases.h5"), renamed ? 0u : 1u);
    write_cases(folder / "cases.h5", version(3));  // what the dead left does not matter
    EXPECT_EQ(read_cases(folder / "cases.h5")[0].seed, 3u);
  }
}

TEST(ReplaceFile, AWriterKilledInTheMiddleOfWritingLeavesTheOldFile) {
  const TemporaryFolder folder;
  put_text(folder / "file", "old");
  const IsolatedResult result = run_isolated(
      [&] {
        replace_file(folder / "file", [](const fs::path& temporary) {
          std::ofstream file(temporary);
          file << "half of the n" << std::flush;
          raise(SIGKILL);
        });
        return std::vector<std::byte>{};
      },
      {});
  ASSERT_EQ(result.failure, "crashed (signal 9)");
  const std::vector<std::byte> left = read_whole_file(folder / "file");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(left.data()), left.size()), "old");
  EXPECT_EQ(unfinished_files(folder, "file"), 1u);
}

TEST(ReplaceFile, AWriterKilledAtAnyMomentLeavesAWholeFile) {
  const TemporaryFolder folder;
  write_cases(folder / "cases.h5", version(0));
  for (std::uint64_t round = 0; round < 20; ++round) {
    const pid_t writer = fork();
    ASSERT_GE(writer, 0);
    if (writer == 0)
      for (std::uint64_t number = 0;; ++number) write_cases(folder / "cases.h5", version(number));
    usleep(static_cast<useconds_t>(1000 + random_bits(5, round) % 20'000));
    kill(writer, SIGKILL);
    ASSERT_EQ(waitpid(writer, nullptr, 0), writer);
    const std::vector<Case> read = read_cases(folder / "cases.h5");
    ASSERT_EQ(read.size(), 2u);
    EXPECT_EQ(case_difference(read[0], version(read[0].seed)[0]), "");
  }
  unfinished_files(folder, "cases.h5");
}

TEST(ReplaceFile, AWriterThatFailsLeavesNothing) {
  const TemporaryFolder folder;
  put_text(folder / "file", "old");
  EXPECT_THROW(
      replace_file(folder / "file", [](const fs::path&) { throw std::runtime_error("disk full"); }),
      std::runtime_error);
  EXPECT_EQ(read_whole_file(folder / "file").size(), 3u);
  EXPECT_EQ(unfinished_files(folder, "file"), 0u);
}

std::string complaint(const fs::path& path) {
  try {
    write_cases(path, small_cases());
  } catch (const FileError& error) {
    return error.what();
  }
  return "written";
}

TEST(ReplaceFile, NamesWhatCannotBeWritten) {
  const TemporaryFolder folder;
  const std::string root = folder.path().string();
  EXPECT_EQ(complaint(folder / "none/cases.h5"),
            "file '" + root +
                "/none/cases.h5': no file can be created beside it: No such file or "
                "directory");
  fs::create_directory(folder / "taken");
  EXPECT_EQ(complaint(folder / "taken"),
            "file '" + root + "/taken': cannot be replaced: Is a directory");
  EXPECT_EQ(unfinished_files(folder, "taken"), 0u);
}

}  // namespace
}  // namespace monoref::testing
