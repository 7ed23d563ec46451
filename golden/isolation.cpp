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
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <optional>
#include <span>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "golden/listening.hpp"

namespace monoref {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
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
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
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

/// What /proc says of the memory of a process, in bytes; 0 where it says nothing.
struct MemoryUse {
  std::size_t mapped = 0;  ///< a harness reserves far more than it uses
  std::size_t resident = 0;
};

MemoryUse memory_of(pid_t process) {
  std::array<unsigned long, 2> pages{};
  if (std::FILE* file = std::fopen(fmt::format("/proc/{}/statm", process).c_str(), "re")) {
    if (std::fscanf(file, "%lu %lu", &pages[0], &pages[1]) != 2) pages = {};
    std::fclose(file);
  }
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return {pages[0] * page_bytes, pages[1] * page_bytes};
}

/// The child dies with its parent and by its own faults, and leaves no core.
void die_plainly() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int fatal :
       {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGALRM, SIGXCPU, SIGPIPE})
    signal(fatal, SIG_DFL);
  // An interrupt from a terminal comes to all: it is the parent's to act upon.
  for (const int interrupt : {SIGINT, SIGTERM, SIGHUP}) signal(interrupt, SIG_IGN);
  set_limit(RLIMIT_CORE, 0);
}

void confine(const ReadLimits& limits) {
  die_plainly();
  set_limit(RLIMIT_CPU, limits.cpu_seconds);
  if (!kSanitized) {
    const std::size_t mapped = memory_of(getpid()).mapped;
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

void run_child(const std::function<std::vector<std::byte>()>& work, const ReadLimits& limits,
               int descriptor) {
  confine(limits);
  const std::vector<std::byte> answer = work();
  if (!write_all(descriptor, answer)) _exit(1);
}

/// True once the child has ended; it stays to be waited for.
bool has_ended(pid_t child) {
  siginfo_t facts{};
  return waitid(P_PID, static_cast<id_t>(child), &facts, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         facts.si_pid == child;
}

using Clock = std::chrono::steady_clock;

/// Reads until the end, or until `take` or `glance` give a reason to give up, which is returned.
/// The end is that of the pipe or, where another process holds a copy of the pipe, that of the
/// child.
std::string receive(int descriptor, pid_t child,
                    const std::function<std::string(std::span<const std::byte>)>& take,
                    const std::function<std::string()>& glance) {
  constexpr int kGlance = 50;  // milliseconds between looks at clock and child
  std::vector<std::byte> piece(std::size_t{1} << 18);
  bool ended = false;
  while (true) {
    if (std::string reason = glance(); !reason.empty()) return reason;
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
    std::string reason = take(std::span(piece).first(static_cast<std::size_t>(size)));
    if (!reason.empty()) return reason;
  }
}

/// The answer of isolated work; the text is empty, or says why the reading was given up.
std::string receive_answer(int descriptor, pid_t child, const ReadLimits& limits,
                           std::vector<std::byte>& answer) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(limits.wall_seconds);
  return receive(
      descriptor, child,
      [&](std::span<const std::byte> piece) -> std::string {
        if (answer.size() + piece.size() > limits.answer_bytes)
          return fmt::format("answered with more than {} bytes", limits.answer_bytes);
        answer.insert(answer.end(), piece.begin(), piece.end());
        return {};
      },
      [&]() -> std::string {
        if (Clock::now() < deadline) return {};
        return fmt::format("took more than {} seconds", limits.wall_seconds);
      });
}

std::string describe_end(int status, const ReadLimits& limits) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
    return fmt::format("took more than {} seconds of processor time", limits.cpu_seconds);
  if (WIFSIGNALED(status)) return fmt::format("crashed (signal {})", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return fmt::format("failed (exit {})", WEXITSTATUS(status));
  return {};
}

/// A child with a pipe from it.
struct Child {
  pid_t process;
  Descriptor reading;
};

/// Forks; `run` is the child's life.
Child fork_child(const std::function<void(int descriptor)>& run) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw std::system_error(errno, std::generic_category(), "cannot make a pipe");
  Descriptor reading(ends[0]);
  Descriptor writing(ends[1]);
  std::fflush(nullptr);  // what is not yet written is the parent's to write
  const pid_t process = fork();
  if (process < 0) throw std::system_error(errno, std::generic_category(), "cannot make a process");
  if (process == 0) {
    run(writing.get());
    _exit(0);  // no destructors, no exit handlers: not ours to run
  }
  return {process, std::move(reading)};
}

/// The status of a child that has ended or is made to; nothing for a caller that ignores SIGCHLD.
std::optional<int> bury(pid_t child, bool kill_it) {
  if (kill_it) kill(child, SIGKILL);
  int status = 0;
  pid_t ended = 0;
  do {
    ended = waitpid(child, &status, 0);
  } while (ended < 0 && errno == EINTR);
  return ended == child ? std::optional(status) : std::nullopt;
}

/// The processor time that all threads of a child have used, in seconds.
double processor_seconds(pid_t child) {
  clockid_t clock{};
  timespec used{};
  if (clock_getcpuclockid(child, &clock) != 0 || clock_gettime(clock, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

/// Messages out of the bytes of a pipe: each has its length before it.
class Messages {
 public:
  static constexpr std::uint32_t kMost = std::uint32_t{1} << 28;

  void add(std::span<const std::byte> piece) {
    bytes_.insert(bytes_.end(), piece.begin(), piece.end());
  }
  /// The next whole message; valid until `add`.
  std::optional<std::span<const std::byte>> next() {
    std::uint32_t length = 0;
    const std::span rest = std::span(bytes_).subspan(at_);
    if (rest.size() >= sizeof length) {
      std::memcpy(&length, rest.data(), sizeof length);
      if (length > kMost) throw std::length_error("a message of no sensible length");
      if (rest.size() - sizeof length >= length) {
        at_ += sizeof length + length;
        return rest.subspan(sizeof length, length);
      }
    }
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(at_));
    at_ = 0;
    return std::nullopt;
  }

 private:
  std::vector<std::byte> bytes_;
  std::size_t at_ = 0;
};

bool tell_all(int descriptor, std::span<const std::byte> message) {
  const auto length = static_cast<std::uint32_t>(message.size());
  return write_all(descriptor, std::as_bytes(std::span(&length, 1))) &&
         write_all(descriptor, message);
}

/// The life of a child that is listened to.
void run_and_tell(const std::function<void(const Tell&)>& work, int descriptor) {
  die_plainly();
  if (const int null = open("/dev/null", O_RDWR | O_CLOEXEC); null >= 0) dup2(null, STDIN_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  work([descriptor](std::span<const std::byte> message) {
    if (!tell_all(descriptor, message)) _exit(1);
  });
}

/// Watches over what a child uses between two messages.
class SilenceWatch {
 public:
  SilenceWatch(pid_t child, SilenceLimits first) : child_(child) { allow(first); }
  void allow(SilenceLimits limits) {
    limits_ = limits;
    wall_end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(limits.wall_seconds));
    processor_end_ = std::isinf(limits.processor_seconds)
                         ? limits.processor_seconds
                         : processor_seconds(child_) + limits.processor_seconds;
  }
  /// How the child ends, if it has used more than it may.
  std::optional<Ending> broken() const {
    if (Clock::now() > wall_end_)
      return Ending{Ending::Kind::kOverTime,
                    fmt::format("gave no sign for {:.0f} seconds", limits_.wall_seconds)};
    if (!std::isinf(processor_end_) && processor_seconds(child_) > processor_end_)
      return Ending{Ending::Kind::kOverTime,
                    fmt::format("took more than {:.0f} seconds of processor time",
                                limits_.processor_seconds)};
    if (memory_of(child_).resident > limits_.memory_bytes)
      return Ending{Ending::Kind::kOverMemory,
                    fmt::format("used more than {} MiB of memory", limits_.memory_bytes >> 20)};
    return std::nullopt;
  }

 private:
  pid_t child_;
  SilenceLimits limits_{};
  Clock::time_point wall_end_;
  double processor_end_ = 0;
};

Ending ending_of(const std::optional<int>& status) {
  if (!status || (WIFEXITED(*status) && WEXITSTATUS(*status) == 0)) return {};
  if (WIFSIGNALED(*status))
    return {Ending::Kind::kDied,
            fmt::format("died of signal {} ({})", WTERMSIG(*status), strsignal(WTERMSIG(*status)))};
  return {Ending::Kind::kDied, fmt::format("ended with exit code {}", WEXITSTATUS(*status))};
}

}  // namespace

bool is_sanitized() {
  return kSanitized;
}

IsolatedResult run_isolated(const std::function<std::vector<std::byte>()>& work,
                            const ReadLimits& limits) {
  Child child = fork_child([&](int descriptor) { run_child(work, limits, descriptor); });
  IsolatedResult result;
  result.failure = receive_answer(child.reading.get(), child.process, limits, result.answer);
  const auto status = bury(child.process, !result.failure.empty());
  // A caller that ignores SIGCHLD has no status to give; the answer must then speak for itself.
  if (result.failure.empty() && status) result.failure = describe_end(*status, limits);
  result.finished = result.failure.empty();
  if (!result.finished) result.answer.clear();
  return result;
}

Ending listen_isolated(const std::function<void(const Tell&)>& work, SilenceLimits first,
                       const Listener& listener) {
  Child child = fork_child([&](int descriptor) { run_and_tell(work, descriptor); });
  SilenceWatch watch(child.process, first);
  Messages messages;
  std::optional<Ending> broken;
  const auto take = [&](std::span<const std::byte> piece) -> std::string {
    try {
      messages.add(piece);
      while (const auto message = messages.next()) watch.allow(listener.hear(*message));
      return {};
    } catch (const std::exception& error) {
      return fmt::format("said what nobody understands: {}", error.what());
    }
  };
  const auto glance = [&]() -> std::string {
    broken = watch.broken();
    if (listener.give_up()) broken = Ending{Ending::Kind::kGivenUp, "was given up"};
    return broken ? broken->failure : "";
  };
  std::string failure = receive(child.reading.get(), child.process, take, glance);
  const auto status = bury(child.process, !failure.empty());
  if (broken) return *broken;
  if (failure.empty()) return ending_of(status);
  return {Ending::Kind::kDied, std::move(failure)};
}

}  // namespace monoref
