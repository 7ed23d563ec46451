// The processes of a plugin, and the memory that they share with the harness.
//
//   harness  --socket-->  supervisor  --socket-->  server, which has loaded the library
//
// The supervisor is forked once and has nothing to do but wait with a time limit, pass on what the
// library prints, and start a new server when one has died. The case travels in a file in memory
// that all three know: a header page, the call in serial form, and the tensors' storage, which the
// server maps between pages without access.
//
// Between supervisor and server stands the server's parent, which a library may kill without
// taking the supervisor along. It leads the process group of everything that the library starts.
// What leaves the group (setsid) or loses its parent stays below the supervisor, which all of them
// die with.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace monoref::device::plugin {

enum class Command : std::uint32_t { kLoad, kOffers, kRun };

enum class Outcome : std::uint32_t {
  kReturned,   ///< `code` is what the library returned
  kNotLoaded,  ///< the header's message says why
  kDied,       ///< `code` is the signal, or minus the exit status
  kOverTime,   ///< computed for longer than it may
  kAsleep,     ///< did nothing for kSleepFactor times as long
  kGone,       ///< there is no supervisor any more
};

/// What loading the library may take, in seconds of processor time.
constexpr double kLoadSeconds = 20;

/// How much longer than it may compute a library may wait for something else, a device say.
constexpr double kSleepFactor = 3;

struct Request {
  Command command;
  std::uint64_t file_bytes;
  double time_limit;  ///< seconds of processor time
};

struct Reply {
  Outcome outcome;
  std::int32_t code;
};

constexpr std::size_t kMessageBytes = 2048;
constexpr std::size_t kMaxTensors = 128;
constexpr std::size_t kHeaderBytes = 4096;

/// The first page of the shared file, written by the server; zero when a call begins.
struct Header {
  std::int32_t fault_signal;  ///< 0: none
  std::int32_t fault_is_write;
  std::uint64_t fault_address;
  std::uint64_t regions[kMaxTensors];  ///< where it mapped each tensor's region, inputs first
  char message[kMessageBytes];
};
static_assert(sizeof(Header) <= kHeaderBytes);

/// A piece of the shared file, `bytes` at `file`, mapped at `region` of a tensor's region.
struct FileRun {
  std::uint64_t region;
  std::uint64_t bytes;
  std::uint64_t file;
};

/// What `fork` gives the harness.
struct SupervisorHandle {
  pid_t process;
  int socket;
};

/// Forks the supervisor for the library at `path`; throws std::system_error.
SupervisorHandle start_supervisor(int memory_file, const std::string& path);

}  // namespace monoref::device::plugin
