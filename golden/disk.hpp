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

/// The steps of `write_whole_file`, reported as they are completed.
enum class WriteStep { kCreated, kPartlyWritten, kWritten, kSynced, kRenamed };
using WriteObserver = std::function<void(WriteStep)>;

/// Replaces the file at `path` as one step: at every moment, also if this process is killed or the
/// machine stops, the name leads to the old content or to the new one, whole. The new content first
/// gets a temporary name in the same folder, which a killed writer leaves behind. Throws FileError,
/// with the old file untouched and the temporary one removed. `observer` is for tests.
void write_whole_file(const std::filesystem::path& path, std::span<const std::byte> bytes,
                      const WriteObserver& observer = {});

/// True for the temporary names of `write_whole_file`: ".NAME.PID-N.unfinished". Whoever collects
/// files of a folder passes these over; they may be deleted if no process PID is writing.
bool is_unfinished_file(const std::filesystem::path& path);

}  // namespace monoref
