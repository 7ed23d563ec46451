// How an OS thread gets out of kernel code that faults or does not end.
//
// Kernel code runs on fibres of an OS thread. When it touches memory that is not there, or when its
// time is over, a signal handler on an alternate stack calls the thread's `escape`, which never
// returns: it continues the thread on its own stack and abandons the fibres. Signals that arrive
// outside kernel code go to whoever handled them before.
//
// A thread's time is the processor time that it took itself: kernel code never sleeps, so that it
// makes progress exactly while it has a processor, and a busy machine takes none of its time away.
#pragma once

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <csignal>
#include <cstdint>

namespace monoref::device {

/// Why kernel code was interrupted.
struct Interruption {
  int signal = 0;  ///< SIGSEGV, SIGBUS, SIGFPE, SIGILL; 0 when the time limit was reached
  std::uintptr_t address = 0;
  bool is_write = false;  ///< known on x86-64 only
};

/// One OS thread that runs kernels. Exactly one may exist per OS thread, and it is created and
/// destroyed on that thread.
class InterruptGuard {
 public:
  using Escape = void (*)(const Interruption&);

  /// `escape` is called in a signal handler and must not return.
  explicit InterruptGuard(Escape escape);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// Kernel code may be interrupted between `arm` and `disarm`, and is when this thread has taken
  /// `limit` nanoseconds of processor time.
  void arm(std::int64_t limit);
  void disarm();
  /// Whether the code that follows may be interrupted; false while the executor allocates.
  void set_inside(bool inside) {
    inside_ = inside ? 1 : 0;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  /// The time was over while the code could not be interrupted.
  bool expired() const { return expired_ != 0; }

 private:
  friend struct SignalHandlers;
  friend class Watchdog;

  Escape escape_;
  pthread_t thread_;
  clockid_t clock_{};  ///< the thread's processor time
  volatile std::sig_atomic_t inside_ = 0;
  volatile std::sig_atomic_t expired_ = 0;
  std::atomic<std::int64_t> deadline_{0};  ///< on the thread's clock; 0: not armed
  /// On the monotonic clock: before this the thread cannot have taken its time.
  std::atomic<std::int64_t> earliest_{0};
  void* alternate_stack_ = nullptr;  ///< null where the thread already had one
  std::uint64_t registration_ = 0;
};

}  // namespace monoref::device
