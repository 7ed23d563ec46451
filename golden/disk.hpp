// Whole files, read and written: the only place where case files touch the disk.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace monoref {

/// The bytes of a regular file of 1 to `file_limits::kFileBytes` bytes. Throws FileError for
/// anything else: missing, unreadable, a directory or device, empty, too large.
std::vector<std::byte> read_whole_file(const std::filesystem::path& path);

/// The steps of `replace_file`, reported as they are completed.
enum class WriteStep { kCreated, kWritten, kSynced, kRenamed };
using WriteObserver = std::function<void(WriteStep)>;

/// Replaces the file at `path` as one step: at every moment, also if this process is killed or the
/// machine stops, the name leads to the old content or to the new one, whole. `write` gets the name
/// of an empty file in the same folder and fills it; it then gets its real name. A killed writer
/// leaves the temporary file behind. Throws FileError, or what `write` throws, with the old file
/// untouched and the temporary one removed. `observer` is for tests.
void replace_file(const std::filesystem::path& path,
                  const std::function<void(const std::filesystem::path& temporary)>& write,
                  const WriteObserver& observer = {});

/// True for the temporary names of `replace_file`: ".NAME.PID-N.unfinished". Whoever collects
/// files of a folder passes these over; they may be deleted if no process PID is writing.
bool is_unfinished_file(const std::filesystem::path& path);

}  // namespace monoref
