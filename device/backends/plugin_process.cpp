#include "device/backends/plugin_process.hpp"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include "device/backends/guarded_layout.hpp"
#include "device/backends/plugin_wire.hpp"
#include "device/plugin.h"

namespace monoref::device::plugin {
namespace {

constexpr std::size_t kMargin = std::size_t{16} << 20;  ///< without access around a region

void give_message(Header& header, std::string_view text) {
  const std::size_t length = std::min(text.size(), kMessageBytes - 1);
  text.copy(header.message, length);
  header.message[length] = '\0';
}

template <class Message>
bool receive(int socket, Message& message) {
  ssize_t got;
  do got = recv(socket, &message, sizeof message, 0);
  while (got < 0 && errno == EINTR);
  return got == sizeof message;
}

template <class Message>
bool send_message(int socket, const Message& message) {
  return send(socket, &message, sizeof message, MSG_NOSIGNAL) == sizeof message;
}

// ---- the server --------------------------------------------------------------------------------

Header* fault_header = nullptr;

/// Notes the fault where the harness can read it; the signal then kills the process.
void note_fault(int signal, siginfo_t* info, [[maybe_unused]] void* context) {
  fault_header->fault_signal = signal;
  fault_header->fault_address = reinterpret_cast<std::uintptr_t>(info->si_addr);
#if defined(__x86_64__)
  constexpr greg_t kPageFaultWrite = 2;
  const auto* machine = &static_cast<ucontext_t*>(context)->uc_mcontext;
  fault_header->fault_is_write = (machine->gregs[REG_ERR] & kPageFaultWrite) != 0 ? 1 : 0;
#endif
}

void watch_faults(Header& header) {
  fault_header = &header;
  static std::byte stack[64 * 1024];
  const stack_t alternate{stack, 0, sizeof stack};
  sigaltstack(&alternate, nullptr);
  struct sigaction action{};
  action.sa_sigaction = note_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(signal, &action, nullptr);
}

/// A tensor of the call, with the arrays that its C form points to.
struct ServedTensor {
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;
  std::vector<monoref_extent> extents;
  std::byte* region = nullptr;
  std::uint64_t region_bytes = 0;
};

class Server {
 public:
  Server(int socket, int memory_file) : socket_(socket), file_(memory_file) {
    header_ = static_cast<Header*>(map(kHeaderBytes));
    watch_faults(*header_);
  }

  [[noreturn]] void serve(const char* path) {
    const bool loaded = load(path);
    send_message(socket_, Reply{loaded ? Outcome::kReturned : Outcome::kNotLoaded, 0});
    Request request{};
    while (loaded && receive(socket_, request))
      if (!send_message(socket_, Reply{Outcome::kReturned, answer(request)})) break;
    _exit(0);
  }

 private:
  void* map(std::size_t bytes) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (memory == MAP_FAILED) _exit(70);
    return memory;
  }

  bool load(const char* path) {
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      give_message(*header_, dlerror());
      return false;
    }
    using Entry = const monoref_plugin* (*)();
    const auto entry = reinterpret_cast<Entry>(dlsym(library, "monoref_plugin_entry"));
    plugin_ = entry == nullptr ? nullptr : entry();
    if (plugin_ == nullptr) {
      give_message(*header_, "the library exports no monoref_plugin_entry, or it gives null");
      return false;
    }
    if (plugin_->version != MONOREF_PLUGIN_VERSION) {
      give_message(*header_,
                   fmt::format("the plugin speaks version {} of the interface, must be {}",
                               plugin_->version, MONOREF_PLUGIN_VERSION));
      return false;
    }
    if (plugin_->size < sizeof(monoref_plugin) || plugin_->run == nullptr) {
      give_message(*header_, "the plugin's struct is too small or has no run function");
      return false;
    }
    give_message(*header_, plugin_->name == nullptr ? "" : plugin_->name);
    return true;
  }

  int answer(const Request& request) {
    auto* const file = static_cast<std::byte*>(map(request.file_bytes));
    Reader call(file + kHeaderBytes);
    int code = 0;
    if (request.command == Command::kOffers) {
      const char* const stage = call.text();
      code = plugin_->offers == nullptr || plugin_->offers(stage) != 0 ? 1 : 0;
    } else if (request.command == Command::kRun) {
      code = run(call);
    }
    munmap(file, request.file_bytes);
    return code;
  }

  int run(Reader& wire) {
    monoref_call call{};
    call.version = MONOREF_PLUGIN_VERSION;
    call.size = sizeof call;
    call.stage = wire.text();
    call.contract = wire.text();
    std::vector<monoref_scalar> scalars(wire.number());
    for (monoref_scalar& scalar : scalars) read_scalar(wire, scalar);
    const std::uint64_t input_count = wire.number();
    std::vector<monoref_tensor> tensors(input_count + wire.number());
    std::vector<ServedTensor> served(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      read_tensor(wire, tensors[i], served[i], i < input_count);
      header_->regions[i] = reinterpret_cast<std::uintptr_t>(served[i].region);
    }
    call.scalars = scalars.data();
    call.scalar_count = scalars.size();
    call.inputs = tensors.data();
    call.input_count = input_count;
    call.outputs = tensors.data() + input_count;
    call.output_count = tensors.size() - input_count;
    call.message = header_->message;
    call.message_capacity = kMessageBytes;
    const int code = plugin_->run(&call);
    header_->message[kMessageBytes - 1] = '\0';
    for (const ServedTensor& tensor : served)
      munmap(tensor.region - kMargin, tensor.region_bytes + 2 * kMargin);
    return code;
  }

  static void read_scalar(Reader& wire, monoref_scalar& scalar) {
    scalar = {};
    scalar.name = wire.text();
    scalar.kind = static_cast<std::int32_t>(wire.number());
    switch (scalar.kind) {
      case MONOREF_INT64:
        scalar.integer = wire.signed_number();
        break;
      case MONOREF_DOUBLE:
        scalar.real = wire.real();
        break;
      default:
        scalar.text = wire.text();
    }
  }

  void read_tensor(Reader& wire, monoref_tensor& tensor, ServedTensor& served, bool read_only) {
    tensor = {};
    tensor.name = wire.text();
    tensor.dtype = wire.text();
    const std::uint64_t rank = wire.number();
    for (std::uint64_t i = 0; i < rank; ++i) served.dims.push_back(wire.signed_number());
    for (std::uint64_t i = 0; i < rank; ++i) served.strides.push_back(wire.signed_number());
    const std::uint64_t extents = wire.number();
    for (std::uint64_t i = 0; i < extents; ++i) {
      const std::int64_t offset = wire.signed_number();
      served.extents.push_back({offset, wire.signed_number()});
    }
    served.region_bytes = wire.number();
    const std::uint64_t base = wire.number();
    served.region = reserve(served.region_bytes);
    const std::uint64_t runs = wire.number();
    for (std::uint64_t i = 0; i < runs; ++i) {
      FileRun run{};
      run.region = wire.number();
      run.bytes = wire.number();
      run.file = wire.number();
      if (mmap(served.region + run.region, run.bytes,
               read_only ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
               static_cast<off_t>(run.file)) == MAP_FAILED)
        _exit(70);
    }
    tensor.rank = static_cast<std::int32_t>(rank);
    tensor.dims = served.dims.data();
    tensor.strides = served.strides.data();
    tensor.data = served.region + base;
    tensor.extent_count = static_cast<std::int32_t>(extents);
    tensor.extents = served.extents.data();
  }

  static std::byte* reserve(std::uint64_t bytes) {
    void* const memory = mmap(nullptr, bytes + 2 * kMargin, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) _exit(70);
    return static_cast<std::byte*>(memory) + kMargin;
  }

  int socket_;
  int file_;
  Header* header_ = nullptr;
  const monoref_plugin* plugin_ = nullptr;
};

// ---- all that a library starts ------------------------------------------------------------------

/// What /proc says of a process.
struct ProcessFacts {
  pid_t process = 0;
  pid_t parent = 0;
  char state = ' ';
  double seconds = 0;  ///< of processor time, with that of children that were waited for
};

/// The numbers of /proc/N/stat from the parent on: `text` begins behind the process's state.
std::optional<ProcessFacts> facts_from(std::string_view text) {
  static const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  constexpr std::size_t kUser = 10;  // and behind it: system, the children's user and system
  std::array<std::int64_t, kUser + 4> numbers{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::int64_t& number : numbers) {
    at = std::find_if(at, end, [](char c) { return c != ' '; });
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc{}) return std::nullopt;
    at = next;
  }
  ProcessFacts facts;
  facts.parent = static_cast<pid_t>(numbers[0]);
  for (std::size_t i = kUser; i < numbers.size(); ++i)
    facts.seconds += tick * static_cast<double>(numbers[i]);
  return facts;
}

std::optional<ProcessFacts> facts_of(const char* process) {
  char text[512];
  const int file = open(fmt::format("/proc/{}/stat", process).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  const ssize_t got = read(file, text, sizeof text);
  close(file);
  const std::string_view all(text, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  // The name in parentheses may hold anything, also parentheses.
  const std::size_t name_end = all.rfind(')');
  if (name_end == all.npos || name_end + 3 > all.size()) return std::nullopt;
  auto facts = facts_from(all.substr(name_end + 3));
  if (!facts) return std::nullopt;
  facts->state = all[name_end + 2];
  facts->process = static_cast<pid_t>(std::strtol(process, nullptr, 10));
  return facts;
}

/// All processes below this one, whatever session or group they went to: an orphan is handed to the
/// nearest process above it that asked for that (PR_SET_CHILD_SUBREAPER), which this one must have.
std::vector<ProcessFacts> descendants() {
  std::vector<ProcessFacts> others;
  std::vector<ProcessFacts> found;
  DIR* const processes = opendir("/proc");
  if (processes == nullptr) return found;
  while (const dirent* const entry = readdir(processes))
    if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9')
      if (const auto facts = facts_of(entry->d_name)) others.push_back(*facts);
  closedir(processes);
  std::set<pid_t> family{getpid()};
  for (bool grows = true; grows;) {
    const auto behind = std::partition(others.begin(), others.end(), [&](const ProcessFacts& one) {
      return !family.contains(one.parent);
    });
    grows = behind != others.end();
    for (auto one = behind; one != others.end(); ++one) family.insert(one->process);
    found.insert(found.end(), behind, others.end());
    others.erase(behind, others.end());
  }
  return found;
}

/// Kills everything below this process, also what is started meanwhile.
void end_descendants() {
  constexpr int kTries = 10'000;  // ten seconds: what a driver holds back for longer is left to it
  for (int i = 0; i < kTries; ++i) {
    bool is_any = false;
    for (const ProcessFacts& one : descendants()) {
      if (one.state == 'Z') continue;
      kill(one.process, SIGKILL);
      is_any = true;
    }
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (!is_any) return;
    usleep(1000);
  }
}

// ---- the server's parent ----------------------------------------------------------------------

/// The signals that the server's parent waits for: the death of the supervisor, and of the server.
sigset_t parent_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGCHLD);
  return signals;
}

/// Ends as the server did. Signals that the harness handles mean here what they mean elsewhere.
[[noreturn]] void stand_between(pid_t server) {
  const sigset_t signals = parent_signals();
  int status = 0;
  while (waitpid(server, &status, WNOHANG) == 0) {
    int which = 0;
    sigwait(&signals, &which);
    if (which != SIGTERM) continue;
    end_descendants();
    _exit(71);
  }
  if (WIFSIGNALED(status)) {
    signal(WTERMSIG(status), SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    raise(WTERMSIG(status));
  }
  _exit(WEXITSTATUS(status));
}

/// In a process that was just forked: forgets the harness's handlers, and leads a group.
void begin_group() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD})
    signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  setpgid(0, 0);
}

// ---- the supervisor ----------------------------------------------------------------------------

/// What the library's processes have done.
struct WorkDone {
  double seconds = 0;  ///< of processor time
  bool busy = false;   ///< one of them runs, or waits for a processor
};

WorkDone work_done() {
  WorkDone done;
  for (const ProcessFacts& one : descendants()) {
    done.seconds += one.seconds;
    done.busy = done.busy || one.state == 'R';
  }
  return done;
}

/// What the library prints, on its way to the standard error of the harness. Ends in a whole line
/// whenever a call does.
class PrintedText {
 public:
  PrintedText() {
    if (pipe2(ends_, O_CLOEXEC) != 0) _exit(71);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  int from() const { return ends_[0]; }
  /// In the server: both of its streams.
  void become_output() const {
    dup2(ends_[1], STDOUT_FILENO);
    dup2(ends_[1], STDERR_FILENO);
  }
  /// As much as a pipe holds, not more: the library may print for ever.
  void pass_on() {
    static char text[64 * 1024];
    const ssize_t got = read(ends_[0], text, sizeof text);
    if (got <= 0) return;
    write_all(text, static_cast<std::size_t>(got));
    last_ = text[got - 1];
  }
  void end_line() {
    pass_on();
    if (last_ != '\n') write_all("\n", 1);
    last_ = '\n';
  }

 private:
  static void write_all(const char* text, std::size_t bytes) {
    while (bytes > 0) {
      const ssize_t done = write(STDERR_FILENO, text, bytes);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return;  // nobody reads it
      text += done;
      bytes -= static_cast<std::size_t>(done);
    }
  }

  int ends_[2];
  char last_ = '\n';
};

/// The time that the library's processes have for a call. A machine that is busy with other things
/// does not count: only processor time does, and looks at which all of them were asleep.
class Allowance {
 public:
  explicit Allowance(double seconds) : seconds_(seconds), interval_(std::min(kInterval, seconds)) {}

  /// Until the next look, in milliseconds.
  int wait_ms() const {
    return std::max(0, static_cast<int>(std::ceil((next_ - seconds_since_start()) * 1000)));
  }
  bool due() const { return seconds_since_start() >= next_; }

  /// Looks at them: kReturned while they may go on.
  Outcome look() {
    const WorkDone done = work_done();
    if (before_ < 0) before_ = done.seconds;
    if (!done.busy) asleep_ += interval_;
    next_ = seconds_since_start() + interval_;
    if (done.seconds - before_ >= seconds_) return Outcome::kOverTime;
    return asleep_ >= kSleepFactor * seconds_ ? Outcome::kAsleep : Outcome::kReturned;
  }

 private:
  static constexpr double kInterval = 0.1;

  double seconds_since_start() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double seconds_;
  double interval_;
  double next_ = interval_;
  double before_ = -1;  ///< processor time at the first look
  double asleep_ = 0;
};

class Watcher {
 public:
  Watcher(int harness, int memory_file, const std::string& path)
      : harness_(harness), file_(memory_file), path_(path) {}

  /// Until the harness closes its end.
  [[noreturn]] void watch() {
    Request request{};
    while (receive(harness_, request)) {
      Reply reply{Outcome::kReturned, 0};
      if (group_ < 0) reply = start();
      if (reply.outcome == Outcome::kReturned && request.command != Command::kLoad) {
        send_message(server_socket_, request);
        reply = await(request.time_limit);
      }
      printed_.end_line();
      if (!send_message(harness_, reply)) break;
    }
    if (group_ >= 0) kill_group();
    _exit(0);
  }

 private:
  Reply start() {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) _exit(71);
    group_ = fork();
    if (group_ < 0) _exit(71);
    if (group_ == 0) {
      close(sockets[0]);
      close(harness_);
      serve_in_group(sockets[1]);
    }
    setpgid(group_, group_);  // whoever comes first
    close(sockets[1]);
    server_socket_ = sockets[0];
    const Reply reply = await(kLoadSeconds);
    if (reply.outcome == Outcome::kNotLoaded) bury_group();
    return reply;
  }

  [[noreturn]] void serve_in_group(int socket) {
    begin_group();
    const sigset_t signals = parent_signals();
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    const pid_t parent = getpid();
    const pid_t server = fork();
    if (server < 0) _exit(71);
    if (server != 0) {
      close(socket);
      stand_between(server);
    }
    sigprocmask(SIG_UNBLOCK, &signals, nullptr);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(71);
    printed_.become_output();
    Server(socket, file_).serve(path_.c_str());
  }

  /// The server's reply, or what became of it.
  Reply await(double seconds) {
    Allowance allowance(seconds);
    for (;;) {
      pollfd waiting[]{
          {server_socket_, POLLIN, 0}, {printed_.from(), POLLIN, 0}, {harness_, POLLIN, 0}};
      if (poll(waiting, 3, allowance.wait_ms()) < 0) continue;
      if (waiting[2].revents != 0) {  // it asks nothing before the reply: it is gone
        kill_group();
        _exit(0);
      }
      if (waiting[1].revents != 0) printed_.pass_on();
      if (waiting[0].revents != 0) break;
      if (!allowance.due()) continue;
      if (has_ended()) return burial();  // a child of it keeps the socket open
      if (const Outcome outcome = allowance.look(); outcome != Outcome::kReturned) {
        kill_group();
        return {outcome, 0};
      }
    }
    Reply reply{};
    return receive(server_socket_, reply) ? reply : burial();
  }

  void kill_group() {
    kill(-group_, SIGKILL);
    wait_for_end();
  }

  bool has_ended() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(group_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid != 0;
  }

  Reply burial() {
    const int status = bury_group();
    return {Outcome::kDied, WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status)};
  }

  /// The wait status of a server whose socket has closed. It is dying, and may take a moment; one
  /// that only closed its descriptors is killed. What it started dies with it.
  int bury_group() {
    constexpr int kTries = 10000;
    for (int i = 0; i < kTries && !has_ended(); ++i) usleep(1000);
    kill(-group_, SIGKILL);
    return wait_for_end();
  }

  int wait_for_end() {
    int status = 0;
    while (waitpid(group_, &status, 0) < 0 && errno == EINTR) {
    }
    end_descendants();  // that have left the group
    close(server_socket_);
    group_ = -1;
    return status;
  }

  int harness_;
  int file_;
  const std::string& path_;
  pid_t group_ = -1;  ///< the server's parent and all that the library starts
  int server_socket_ = -1;
  PrintedText printed_;
};

}  // namespace

SupervisorHandle start_supervisor(int memory_file, const std::string& path) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
    throw std::system_error(errno, std::generic_category(), "socketpair");
  const pid_t process = fork();
  if (process < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (process == 0) {
    // Only the descriptors that this process needs: others' ends must be able to close.
    constexpr int kSocket = 3;
    constexpr int kFile = 4;
    const int socket_copy = fcntl(sockets[1], F_DUPFD, kFile + 1);
    const int file_copy = fcntl(memory_file, F_DUPFD, kFile + 1);
    const int nothing = fcntl(open("/dev/null", O_RDWR), F_DUPFD, kFile + 1);
    dup2(nothing, STDIN_FILENO);
    dup2(nothing, STDOUT_FILENO);
    dup2(socket_copy, kSocket);
    dup2(file_copy, kFile);
    close_range(kFile + 1, ~0U, 0);
    begin_group();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGPIPE, SIG_IGN);
    Watcher(kSocket, kFile, path).watch();
  }
  close(sockets[1]);
  return {process, sockets[0]};
}

}  // namespace monoref::device::plugin
