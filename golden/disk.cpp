#include "golden/disk.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "golden/file_error.hpp"
#include "golden/tree.hpp"

namespace monoref {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUnfinished = ".unfinished";

[[noreturn]] void system_failure(const fs::path& path, std::string_view what, int error) {
  throw FileError(path.string(),
                  fmt::format("{}: {}", what, std::generic_category().message(error)));
}

/// An open file that is closed when it goes.
class OpenFile {
 public:
  OpenFile(const fs::path& path, int flags)
      : number_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (valid()) close(number_);
  }
  bool valid() const { return number_ >= 0; }
  int number() const { return number_; }

 private:
  int number_;
};

/// Removes a temporary file unless it has been given its real name.
class TemporaryFile {
 public:
  explicit TemporaryFile(const fs::path& target) {
    static std::atomic<unsigned> counter{0};
    name_ = target.parent_path() / fmt::format(".{}.{}-{}{}", target.filename().string(), getpid(),
                                               counter++, kUnfinished);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!renamed_) unlink(name_.c_str());
  }
  const fs::path& name() const { return name_; }
  void rename_to(const fs::path& target) {
    if (rename(name_.c_str(), target.c_str()) != 0)
      system_failure(target, "cannot be replaced", errno);
    renamed_ = true;
  }

 private:
  fs::path name_;
  bool renamed_ = false;
};

/// Makes a rename in this folder survive a stop of the machine.
void sync_folder(const fs::path& target) {
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  const OpenFile file(folder, O_RDONLY | O_DIRECTORY);
  if (!file.valid()) system_failure(target, "its folder cannot be opened", errno);
  // Some file systems cannot sync a folder and say so with EINVAL; the new name stands anyway.
  if (fsync(file.number()) != 0 && errno != EINVAL)
    system_failure(target, "its folder cannot be synced", errno);
}

}  // namespace

std::vector<std::byte> read_whole_file(const fs::path& path) {
  const OpenFile file(path, O_RDONLY | O_NONBLOCK);  // a pipe must not make us wait for a writer
  if (!file.valid()) system_failure(path, "cannot be opened", errno);
  struct stat facts{};
  if (fstat(file.number(), &facts) != 0) system_failure(path, "cannot be examined", errno);
  if (S_ISDIR(facts.st_mode)) throw FileError(path.string(), "is a directory");
  if (!S_ISREG(facts.st_mode)) throw FileError(path.string(), "is not a regular file");
  const auto size = static_cast<std::size_t>(facts.st_size);
  if (size == 0) throw FileError(path.string(), "is empty");
  if (size > file_limits::kFileBytes)
    throw FileError(path.string(),
                    fmt::format("has {} bytes, the limit is {}", size, file_limits::kFileBytes));
  std::vector<std::byte> bytes(size);
  std::size_t at = 0;
  while (at < size) {
    const ssize_t got = read(file.number(), bytes.data() + at, size - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) system_failure(path, "cannot be read", errno);
    if (got == 0) throw FileError(path.string(), "became shorter while it was read");
    at += static_cast<std::size_t>(got);
  }
  return bytes;
}

void replace_file(const fs::path& path, const std::function<void(const fs::path&)>& write,
                  const WriteObserver& observer) {
  const auto report = [&](WriteStep step) {
    if (observer) observer(step);
  };
  TemporaryFile temporary(path);
  if (!OpenFile(temporary.name(), O_WRONLY | O_CREAT | O_EXCL).valid())
    system_failure(path, "no file can be created beside it", errno);
  report(WriteStep::kCreated);
  write(temporary.name());
  report(WriteStep::kWritten);
  const OpenFile file(temporary.name(), O_RDONLY);
  if (!file.valid() || fsync(file.number()) != 0) system_failure(path, "cannot be synced", errno);
  report(WriteStep::kSynced);
  temporary.rename_to(path);
  report(WriteStep::kRenamed);
  sync_folder(path);
}

bool is_unfinished_file(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with('.') && name.ends_with(kUnfinished);
}

}  // namespace monoref
