#include "tests/fuzz/watched_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>

namespace monoref::testing {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::size_t kMostOutput = 64 << 10;

[[noreturn]] void become(const std::vector<std::string>& command, const fs::path& output) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  setenv("OMP_NUM_THREADS", "1", 1);
  const int file = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  const int null = open("/dev/null", O_RDONLY);
  if (file < 0 || null < 0) _exit(126);
  dup2(null, STDIN_FILENO);
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  _exit(127);
}

struct Usage {
  double cpu_seconds = 0;
  std::size_t bytes = 0;
};

/// What the processes of a group use now; those that were waited for count with their parents.
Usage usage_of_group(pid_t group) {
  static const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  Usage usage;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    std::ifstream file(entry.path() / "stat");
    std::string line;
    std::getline(file, line);  // gone in between: empty
    const std::size_t behind_name = line.rfind(')');
    if (behind_name == line.npos) continue;
    std::istringstream fields(line.substr(behind_name + 3));  // and behind the state
    std::vector<std::int64_t> field;
    for (std::int64_t number = 0; field.size() < 21 && fields >> number;) field.push_back(number);
    if (field.size() < 21 || field[1] != group) continue;
    for (std::size_t time = 10; time <= 13; ++time)  // user, system, and both of its children
      usage.cpu_seconds += static_cast<double>(field[time]) / ticks;
    usage.bytes += static_cast<std::size_t>(field[20]) * page;
  }
  return usage;
}

std::string passed_limit(const Usage& usage, double wall_seconds, const ProcessLimits& limits) {
  if (usage.cpu_seconds > limits.cpu_seconds)
    return fmt::format("took more than {} s of processor time", limits.cpu_seconds);
  if (usage.bytes > limits.memory_bytes)
    return fmt::format("held more than {} MiB", limits.memory_bytes >> 20);
  if (wall_seconds > limits.wall_seconds)
    return fmt::format("was not done after {} s", limits.wall_seconds);
  return {};
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

std::string beginning_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostOutput, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace

ProcessRun run_watched(const std::vector<std::string>& command, const fs::path& output,
                       const ProcessLimits& limits) {
  ProcessRun run;
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "cannot make a process");
  if (child == 0) become(command, output);
  int status = 0;
  rusage used{};
  auto pause = 1ms;
  for (;;) {
    const pid_t ended = wait4(child, &status, WNOHANG, &used);
    if (ended == child) break;
    if (elapsed() > 0.3) {  // most are done by then, and looking around costs
      pause = 100ms;
      run.ended = passed_limit(usage_of_group(child), elapsed(), limits);
      if (!run.ended.empty()) {
        kill(-child, SIGKILL);
        wait4(child, &status, 0, &used);
        break;
      }
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, 100ms);
  }
  kill(-child, SIGKILL);
  run.wall_seconds = elapsed();
  run.cpu_seconds = seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
  run.peak_bytes = static_cast<std::size_t>(used.ru_maxrss) << 10;
  if (run.ended.empty() && WIFSIGNALED(status)) run.signal = WTERMSIG(status);
  if (WIFEXITED(status)) run.exit_code = WEXITSTATUS(status);
  run.output = beginning_of(output);
  return run;
}

}  // namespace monoref::testing
