#include "golden/isolation.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <span>
#include <stdexcept>
#include <system_error>

namespace monoref {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

/// A file descriptor that is closed when it goes.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  int get() const { return number_; }
  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

void set_limit(__rlimit_resource resource, rlim_t value) {
  rlimit limit{};
  getrlimit(resource, &limit);
  limit.rlim_cur = limit.rlim_max == RLIM_INFINITY ? value : std::min(value, limit.rlim_max);
  setrlimit(resource, &limit);
}

/// Bytes of address space that this process has mapped: the limit counts them all, and a harness
/// reserves far more than it uses.
rlim_t mapped_bytes() {
  unsigned long pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%lu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

void confine(const ReadLimits& limits) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int fatal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGALRM, SIGXCPU,
                          SIGPIPE, SIGTERM, SIGINT})
    signal(fatal, SIG_DFL);
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_CPU, limits.cpu_seconds);
  if (!kSanitized) {
    const rlim_t mapped = mapped_bytes();
    if (mapped > 0) set_limit(RLIMIT_AS, mapped + limits.memory_bytes);
  }
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  // A sanitizer's report must stay readable; what a library prints need not.
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (null >= 0 && !(kSanitized && stream == STDERR_FILENO)) dup2(null, stream);
}

bool write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

[[noreturn]] void run_child(const std::function<std::vector<std::byte>()>& work,
                            const ReadLimits& limits, int descriptor) {
  confine(limits);
  const std::vector<std::byte> answer = work();
  _exit(write_all(descriptor, answer) ? 0
                                      : 1);  // no destructors, no exit handlers: not ours to run
}

/// True once the child has ended; it stays to be waited for.
bool has_ended(pid_t child) {
  siginfo_t facts{};
  return waitid(P_PID, static_cast<id_t>(child), &facts, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         facts.si_pid == child;
}

/// Reads to the end; empty text, or why the reading was given up. The end is that of the pipe or,
/// where another child of this process holds a copy of the pipe, that of the child.
std::string receive(int descriptor, pid_t child, const ReadLimits& limits,
                    std::vector<std::byte>& answer) {
  using Clock = std::chrono::steady_clock;
  constexpr int kGlance = 50;  // milliseconds between looks at clock and child
  const auto deadline = Clock::now() + std::chrono::duration<double>(limits.wall_seconds);
  std::vector<std::byte> piece(std::size_t{1} << 18);
  bool ended = false;
  while (Clock::now() < deadline) {
    pollfd wait{descriptor, POLLIN, 0};
    const int ready = poll(&wait, 1, ended ? 0 : kGlance);
    if (ready == 0 && ended) return {};
    if (ready <= 0) {
      ended = has_ended(child);
      continue;
    }
    const ssize_t size = read(descriptor, piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return fmt::format("could not be heard: {}", std::strerror(errno));
    if (size == 0) return {};
    if (answer.size() + static_cast<std::size_t>(size) > limits.answer_bytes)
      return fmt::format("answered with more than {} bytes", limits.answer_bytes);
    answer.insert(answer.end(), piece.begin(), piece.begin() + size);
  }
  return fmt::format("took more than {} seconds", limits.wall_seconds);
}

std::string describe_end(int status, const ReadLimits& limits) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
    return fmt::format("took more than {} seconds of processor time", limits.cpu_seconds);
  if (WIFSIGNALED(status)) return fmt::format("crashed (signal {})", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return fmt::format("failed (exit {})", WEXITSTATUS(status));
  return {};
}

}  // namespace

IsolatedResult run_isolated(const std::function<std::vector<std::byte>()>& work,
                            const ReadLimits& limits) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw std::system_error(errno, std::generic_category(), "cannot make a pipe");
  Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "cannot make a process");
  if (child == 0) run_child(work, limits, writing.get());
  writing.close();
  IsolatedResult result;
  result.failure = receive(reading.get(), child, limits, result.answer);
  if (!result.failure.empty()) kill(child, SIGKILL);
  int status = 0;
  pid_t ended = 0;
  do {
    ended = waitpid(child, &status, 0);
  } while (ended < 0 && errno == EINTR);
  // A caller that ignores SIGCHLD has no status to give; the answer must then speak for itself.
  if (result.failure.empty() && ended == child) result.failure = describe_end(status, limits);
  result.finished = result.failure.empty();
  if (!result.finished) result.answer.clear();
  return result;
}

}  // namespace monoref
