#include "device/backends/interrupt.hpp"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace monoref::device {
namespace {

constexpr std::size_t kAlternateStackBytes = std::size_t{64} << 10;
constexpr int kFaultSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
/// How often deadlines are looked at, and after how long without a launch the watchdog sleeps.
constexpr auto kPoll = std::chrono::milliseconds(2);
constexpr std::int64_t kIdleNs = 200'000'000;

int alarm_signal() {
  return SIGRTMIN + 3;
}

constinit thread_local InterruptGuard* current_guard [[gnu::tls_model("initial-exec")]] = nullptr;

struct sigaction previous_actions[64];

std::int64_t nanoseconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::int64_t now_ns() {
  return nanoseconds_of(CLOCK_MONOTONIC);
}

}  // namespace

/// The process's handlers, installed once.
struct SignalHandlers {
  static void install() {
    static const bool installed = [] {
      for (const int signal : kFaultSignals) install_one(signal, on_fault);
      install_one(alarm_signal(), on_alarm);
      return true;
    }();
    static_cast<void>(installed);
  }

  /// SA_NODEFER, since the handler may never return; SA_ONSTACK, since a fibre's stack may be full.
  static void install_one(int signal, void (*handler)(int, siginfo_t*, void*)) {
    struct sigaction action{};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (sigaction(signal, &action, &previous_actions[signal]) != 0)
      throw std::system_error(errno, std::generic_category(), "sigaction");
  }

  static void on_fault(int signal, siginfo_t* info, void* context) {
    InterruptGuard* const guard = current_guard;
    if (guard == nullptr || guard->inside_ == 0) return pass_on(signal, info, context);
    guard->inside_ = 0;
    guard->escape_({signal, reinterpret_cast<std::uintptr_t>(info->si_addr), was_write(context)});
  }

  static void on_alarm(int, siginfo_t*, void*) {
    InterruptGuard* const guard = current_guard;
    if (guard == nullptr) return;
    // A signal sent for an earlier launch may arrive in a later one.
    const std::int64_t deadline = guard->deadline_.load(std::memory_order_relaxed);
    if (deadline == 0 || nanoseconds_of(CLOCK_THREAD_CPUTIME_ID) < deadline) return;
    guard->expired_ = 1;
    if (guard->inside_ == 0) return;
    guard->inside_ = 0;
    guard->escape_({});
  }

  static bool was_write([[maybe_unused]] void* context) {
#if defined(__x86_64__)
    constexpr greg_t kPageFaultWrite = 2;
    const auto* machine = &static_cast<ucontext_t*>(context)->uc_mcontext;
    return (machine->gregs[REG_ERR] & kPageFaultWrite) != 0;
#else
    return false;
#endif
  }

  /// Gives a signal that is not ours to the previous handler; without one, lets it end the process.
  static void pass_on(int signal, siginfo_t* info, void* context) {
    const struct sigaction& previous = previous_actions[signal];
    if ((previous.sa_flags & SA_SIGINFO) != 0)
      previous.sa_sigaction(signal, info, context);
    else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
      previous.sa_handler(signal);
    else
      ::signal(signal, SIG_DFL);  // the instruction runs again and faults for good
  }
};

/// A thread that looks at the deadlines of all guards and signals those that have passed. It is
/// never destroyed: OS threads that still hold a guard may outlive static objects.
class Watchdog {
 public:
  static Watchdog& instance() {
    static auto* const watchdog = new Watchdog;
    return *watchdog;
  }

  /// On the guard's thread.
  void enter(InterruptGuard* guard) {
    if (const int error = pthread_getcpuclockid(guard->thread_, &guard->clock_); error != 0)
      throw std::system_error(error, std::generic_category(), "pthread_getcpuclockid");
    const std::lock_guard lock(mutex_);
    guards_.push_back(guard);
    guard->registration_ = generation_;
    start();
  }

  void leave(InterruptGuard* guard) {
    const std::lock_guard lock(mutex_);
    std::erase(guards_, guard);
  }

  void launched(InterruptGuard* guard) {
    if (guard->registration_ != generation_) enter(guard);  // the first launch after a fork
    if (!asleep_.load(std::memory_order_seq_cst)) return;
    const std::lock_guard lock(mutex_);
    asleep_ = false;
    wake_.notify_one();
  }

 private:
  Watchdog() { pthread_atfork(nullptr, nullptr, after_fork); }

  /// A child process has neither the watchdog's thread nor the other OS threads.
  static void after_fork() {
    Watchdog& self = instance();
    new (&self.mutex_) std::mutex;
    new (&self.wake_) std::condition_variable;
    self.guards_.clear();
    self.running_ = false;
    ++self.generation_;
  }

  void start() {
    if (running_) return;
    running_ = true;
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits a full mask
    std::thread([this] { watch(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  [[noreturn]] void watch() {
    std::unique_lock lock(mutex_);
    std::int64_t last_busy = now_ns();
    for (;;) {
      wake_.wait_for(lock, kPoll);
      const std::int64_t now = now_ns();
      if (signal_expired(now)) last_busy = now;
      if (now - last_busy < kIdleNs) continue;
      asleep_.store(true, std::memory_order_seq_cst);
      if (signal_expired(now)) asleep_ = false;  // armed while we decided to sleep
      wake_.wait(lock, [this] { return !asleep_; });
      last_busy = now_ns();
    }
  }

  /// Signals every OS thread over its deadline; true if any guard is armed.
  bool signal_expired(std::int64_t now) {
    bool armed = false;
    for (InterruptGuard* guard : guards_) {
      const std::int64_t deadline = guard->deadline_.load(std::memory_order_seq_cst);
      if (deadline == 0) continue;
      armed = true;
      if (now >= guard->earliest_.load(std::memory_order_relaxed) &&
          nanoseconds_of(guard->clock_) >= deadline)
        pthread_kill(guard->thread_, alarm_signal());
    }
    return armed;
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<InterruptGuard*> guards_;
  std::uint64_t generation_ = 1;  ///< counts forks; 0 is no guard's
  bool running_ = false;
  std::atomic<bool> asleep_{false};
};

InterruptGuard::InterruptGuard(Escape escape) : escape_(escape), thread_(pthread_self()) {
  SignalHandlers::install();
  stack_t existing{};
  sigaltstack(nullptr, &existing);
  if ((existing.ss_flags & SS_DISABLE) != 0) {
    void* const memory = mmap(nullptr, kAlternateStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    const stack_t stack{memory, 0, kAlternateStackBytes};
    sigaltstack(&stack, nullptr);
    alternate_stack_ = memory;
  }
  current_guard = this;
  Watchdog::instance().enter(this);
}

InterruptGuard::~InterruptGuard() {
  Watchdog::instance().leave(this);
  current_guard = nullptr;
  if (alternate_stack_ == nullptr) return;
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
  munmap(alternate_stack_, kAlternateStackBytes);
}

void InterruptGuard::arm(std::int64_t limit) {
  expired_ = 0;
  earliest_.store(now_ns() + limit, std::memory_order_relaxed);
  deadline_.store(nanoseconds_of(CLOCK_THREAD_CPUTIME_ID) + limit, std::memory_order_seq_cst);
  Watchdog::instance().launched(this);
}

void InterruptGuard::disarm() {
  inside_ = 0;
  deadline_.store(0, std::memory_order_seq_cst);
}

}  // namespace monoref::device
