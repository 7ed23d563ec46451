#include "fuzz/stop.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>

namespace monoref {
namespace {

/// When the first signal came, in milliseconds of the monotonic clock; 0 before.
std::atomic<std::int64_t> stopped_at{0};
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "signal handlers store it");

std::int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

void note_stop(int) {
  std::int64_t never = 0;
  stopped_at.compare_exchange_strong(never, now_ms());
}

}  // namespace

void note_stop_signals() {
  struct sigaction action{};
  action.sa_handler = note_stop;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
  struct sigaction old{};
  sigaction(SIGHUP, nullptr, &old);
  if (old.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // else nohup is meant
}

bool stop_requested() {
  return stopped_at != 0;
}

bool grace_is_over() {
  const std::int64_t since = stopped_at;
  return since != 0 && static_cast<double>(now_ms() - since) > 1e3 * kGraceSeconds;
}

GiveUpInTime::GiveUpInTime(std::function<void()> give_up)
    : thread_([this, give_up = std::move(give_up)] {
        std::unique_lock lock(mutex_);
        while (!ended_.wait_for(lock, std::chrono::milliseconds(100), [this] { return is_over_; }))
          if (grace_is_over()) return give_up();
      }) {}

GiveUpInTime::~GiveUpInTime() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

}  // namespace monoref
