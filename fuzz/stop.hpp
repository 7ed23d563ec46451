// Being asked to stop: SIGINT, SIGTERM and SIGHUP.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace monoref {

/// What is under way when the program is asked to stop may take so long to end, in seconds; then it
/// is given up.
constexpr double kGraceSeconds = 4;

/// From now on these signals are noted and do nothing else, also in a process with number 1.
void note_stop_signals();
/// Whether one has come.
bool stop_requested();
/// Whether one has come and the time to end is over.
bool grace_is_over();

/// While this lives, `give_up` is called in a thread of its own once the grace is over. It must end
/// the process.
class GiveUpInTime {
 public:
  explicit GiveUpInTime(std::function<void()> give_up);
  ~GiveUpInTime();
  GiveUpInTime(const GiveUpInTime&) = delete;
  GiveUpInTime& operator=(const GiveUpInTime&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace monoref
