#include "fuzz/overnight.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <system_error>

#include "golden/disk.hpp"
#include "golden/file_error.hpp"
#include "reference/core/error.hpp"

namespace monoref {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kFormat = "monoref-overnight/1";
constexpr int kStopped = 75;
/// How often a round is tried, and how many rounds of a shard in a row may be lost.
constexpr int kTries = 3;
/// What a process may take to end after it was asked to.
constexpr double kGraceSeconds = 3;
/// The end of what a round printed: enough for its last lines.
constexpr std::size_t kTail = 4096;

/// Counts of cases in the order of the last line of `fuzz`.
using Counts = std::vector<std::pair<std::string, std::uint64_t>>;

void add(Counts& sum, const Counts& more) {
  for (const auto& [word, count] : more) {
    const auto known = std::find_if(sum.begin(), sum.end(),
                                    [&](const auto& entry) { return entry.first == word; });
    if (known == sum.end())
      sum.emplace_back(word, count);
    else
      known->second += count;
  }
}

std::string text_of(const Counts& counts) {
  std::string text;
  for (const auto& [word, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, word);
  return text;
}

/// The counts of `fuzz: 12 cases, 12 exact, ...`, which is the last line that begins so; none if
/// there is no such line, as of a process that ended before its last line.
Counts counts_in(const std::string& output) {
  constexpr std::string_view kStart = "fuzz: ";
  std::size_t at = output.rfind("\nfuzz: ");
  at = at == output.npos ? (output.starts_with(kStart) ? 0 : output.npos) : at + 1;
  const std::size_t end = output.find('\n', at);
  if (at == output.npos || end == output.npos) return {};
  Counts counts;
  const char* next = output.data() + at + kStart.size();
  const char* const stop = output.data() + end;
  while (next < stop) {
    std::uint64_t count = 0;
    const auto number = std::from_chars(next, stop, count);
    if (number.ec != std::errc{} || number.ptr == stop || *number.ptr != ' ') return {};
    const char* const word = number.ptr + 1;
    const char* const comma = std::find(word, stop, ',');
    counts.emplace_back(std::string(word, comma), count);
    next = comma == stop ? stop : std::min(comma + 2, stop);
  }
  return counts;
}

std::string last_line(std::string text) {
  text.resize(text.find_last_not_of('\n') + 1);
  return text.substr(text.rfind('\n') + 1);
}

// ---- what is kept ------------------------------------------------------------------------------

struct Round {
  std::uint64_t shard = 0;
  std::uint64_t number = 0;  ///< from 1 on
  int code = 0;
  Counts counts;
};

/// What a folder knows of its night.
struct State {
  std::uint64_t seed = 0;
  std::uint64_t shards = 0;
  std::vector<Round> rounds;

  std::string text() const {
    nlohmann::ordered_json all{{"format", kFormat}, {"seed", seed}, {"shards", shards}};
    all["rounds"] = nlohmann::ordered_json::array();
    for (const Round& round : rounds) {
      nlohmann::ordered_json counts = nlohmann::ordered_json::object();
      for (const auto& [word, count] : round.counts) counts[word] = count;
      all["rounds"].push_back({{"shard", round.shard},
                               {"round", round.number},
                               {"code", round.code},
                               {"counts", std::move(counts)}});
    }
    return all.dump(1) + "\n";
  }
};

State parse_state(const fs::path& file) {
  std::ifstream stream(file);
  try {
    const auto all = nlohmann::ordered_json::parse(stream);
    if (all.at("format") != kFormat)
      refuse("overnight: '{}' has the format {}, must be {}", file.string(),
             all.at("format").dump(), kFormat);
    State state{.seed = all.at("seed"), .shards = all.at("shards"), .rounds = {}};
    for (const auto& item : all.at("rounds")) {
      Round round{.shard = item.at("shard"),
                  .number = item.at("round"),
                  .code = item.at("code"),
                  .counts = {}};
      for (const auto& [word, count] : item.at("counts").items())
        round.counts.emplace_back(word, count.get<std::uint64_t>());
      state.rounds.push_back(std::move(round));
    }
    return state;
  } catch (const nlohmann::json::exception& error) {
    refuse("overnight: '{}' is damaged ({}); begin in another folder, or remove it", file.string(),
           error.what());
  }
}

std::uint64_t drawn_seed() {
  std::random_device source;
  return std::uint64_t{source()} << 32 | source();
}

/// Keeps a second night out of a folder for as long as it lives.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder)
      : file_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (file_ < 0)
      refuse("overnight: the folder '{}' cannot be opened: {}", folder.string(),
             std::generic_category().message(errno));
    if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
      close(file_);
      refuse("overnight: another run is at work in '{}'", folder.string());
    }
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() { close(file_); }

 private:
  int file_;
};

// ---- signals -----------------------------------------------------------------------------------

volatile sig_atomic_t stop_signal = 0;

void remember_signal(int signal) {
  stop_signal = signal;
}

/// SIGINT and SIGTERM are remembered; a full disk and a closed pipe are errors of the write.
class Signals {
 public:
  Signals() {
    stop_signal = 0;
    struct sigaction action{};
    action.sa_handler = remember_signal;
    for (const int number : {SIGINT, SIGTERM}) replace(number, action);
    action.sa_handler = SIG_IGN;
    for (const int number : {SIGXFSZ, SIGPIPE}) replace(number, action);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals() {
    for (const auto& [number, action] : before_) sigaction(number, &action, nullptr);
  }

 private:
  void replace(int number, const struct sigaction& action) {
    sigaction(number, &action, &before_[number]);
  }
  std::map<int, struct sigaction> before_;
};

// ---- a shard -----------------------------------------------------------------------------------

/// A process that runs one round, in a process group of its own, heard through a pipe: what it
/// says is known also where no log can be written.
struct RoundProcess {
  pid_t process = -1;
  int pipe = -1;
  std::string tail;
};

struct Shard {
  std::uint64_t number = 0;
  std::uint64_t round = 1;  ///< under way or next
  int tries = 0;            ///< of this round that came to nothing
  int lost_in_a_row = 0;    ///< rounds
  bool given_up = false;
  std::optional<RoundProcess> running;
};

[[noreturn]] void become(const std::vector<std::string>& command, int output) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int number : {SIGINT, SIGTERM, SIGPIPE}) signal(number, SIG_DFL);
  setenv("OMP_NUM_THREADS", "1", 1);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execv(words[0], words.data());
  fmt::print(stderr, "cannot run '{}': {}\n", command[0], std::strerror(errno));
  _exit(126);
}

RoundProcess start(const std::vector<std::string>& command) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw std::system_error(errno, std::generic_category(), "overnight: cannot make a pipe");
  const pid_t process = fork();
  if (process < 0) {
    const int error = errno;
    for (const int end : ends) close(end);
    throw std::system_error(error, std::generic_category(), "overnight: cannot make a process");
  }
  if (process == 0) become(command, ends[1]);
  setpgid(process, process);  // here too, so that the group exists when it is signalled
  close(ends[1]);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {process, ends[0], {}};
}

class Night {
 public:
  explicit Night(const OvernightOptions& options)
      : options_(options), lock_(made(options.folder)), state_(begin(options)) {
    for (const Round& round : state_.rounds) done_.insert({round.shard, round.number});
    for (std::uint64_t i = 0; i < options.shards; ++i) shards_.push_back({.number = i});
  }
  Night(const Night&) = delete;
  Night& operator=(const Night&) = delete;
  ~Night() {  // where an error ends the night
    for (Shard& shard : shards_)
      if (shard.running) kill(-shard.running->process, SIGKILL);
  }

  int run() {
    tell(fmt::format("overnight: seed {}, {} shards, {} hours, {} rounds done before, folder '{}'",
                     state_.seed, options_.shards, options_.hours, state_.rounds.size(),
                     options_.folder.string()));
    for (;;) {
      for (Shard& shard : shards_)
        if (!shard.running) start_next(shard);
      if (std::none_of(shards_.begin(), shards_.end(),
                       [](const Shard& shard) { return shard.running.has_value(); }))
        break;
      wait_for_news();
      if (stop_signal != 0) ask_to_stop();
      for (Shard& shard : shards_) look_after(shard);
    }
    return summary();
  }

 private:
  static fs::path made(fs::path folder) {
    fs::create_directories(folder);
    return folder;
  }

  State begin(const OvernightOptions& options) {
    if (!fs::exists(state_file())) {
      State fresh{.seed = drawn_seed(), .shards = options.shards, .rounds = {}};
      write_state(fresh);
      return fresh;
    }
    State known = parse_state(state_file());
    if (known.shards != options.shards)
      refuse(
          "overnight: SHARDS is {}, but '{}' was begun with {}: go on with as many, or in "
          "another folder",
          options.shards, options.folder.string(), known.shards);
    return known;
  }

  fs::path state_file() const { return options_.folder / "state.json"; }

  void write_state(const State& state) const {
    replace_file(state_file(), [&](const fs::path& temporary) {
      std::ofstream stream(temporary);
      stream << state.text();
      stream.close();
      if (!stream)
        throw FileError(state_file().string(),
                        fmt::format("cannot be written: {}", std::strerror(errno)));
    });
  }

  /// Counts stay in memory where they cannot be kept, and are tried again with the next round.
  void keep() {
    try {
      write_state(state_);
      is_kept_ = true;
    } catch (const FileError& error) {
      if (is_kept_) tell(fmt::format("overnight: {}; going on without", error.what()));
      is_kept_ = false;
    }
  }

  void log(const Shard& shard, std::string_view text) {
    const fs::path path = options_.folder / fmt::format("shard-{}.log", shard.number);
    std::ofstream stream(path, std::ios::app);
    stream << text;
    stream.close();
    if (!stream && is_logged_)
      tell(fmt::format("overnight: '{}' cannot be written; going on without", path.string()));
    is_logged_ = is_logged_ && stream.good();
  }

  double seconds_left() const {
    const std::chrono::duration<double> spent = Clock::now() - start_;
    return options_.hours * 3600 - spent.count();
  }

  void start_next(Shard& shard) {
    while (done_.contains({shard.number, shard.round})) ++shard.round;
    const double left = std::min(seconds_left(), options_.round_seconds);
    if (stop_signal != 0 || shard.given_up || left <= 0 || shard.round > options_.most_rounds)
      return;
    std::vector<std::string> command = options_.program;
    const std::uint64_t seed = state_.seed + shard.round - 1;
    for (const std::string& word :
         {std::string("fuzz"), std::string("--wave"), std::string("both"), std::string("--quiet"),
          std::string("--seconds"), fmt::format("{:.3f}", std::max(left, 0.001)),
          std::string("--seed"), fmt::format("{}", seed), std::string("--shard"),
          fmt::format("{}/{}", shard.number, options_.shards), std::string("--corpus"),
          (options_.folder / "corpus").string()})
      command.push_back(word);
    shard.running = start(command);
    log(shard, fmt::format("--- round {}, seed {}\n", shard.round, seed));
  }

  void wait_for_news() const {
    constexpr int kGlance = 100;  // milliseconds between looks at processes and clock
    std::vector<pollfd> pipes;
    for (const Shard& shard : shards_)
      if (shard.running && shard.running->pipe >= 0)
        pipes.push_back({shard.running->pipe, POLLIN, 0});
    poll(pipes.data(), pipes.size(), kGlance);
  }

  void ask_to_stop() {
    if (!asked_at_) {
      asked_at_ = Clock::now();
      for (const Shard& shard : shards_)
        if (shard.running) kill(-shard.running->process, SIGTERM);
    }
    const std::chrono::duration<double> waited = Clock::now() - *asked_at_;
    if (waited.count() < kGraceSeconds) return;
    for (const Shard& shard : shards_)
      if (shard.running) kill(-shard.running->process, SIGKILL);
  }

  /// Takes what a round has said so far.
  void hear(const Shard& shard, RoundProcess& running) {
    std::array<char, 65536> piece{};
    for (;;) {
      const ssize_t size = running.pipe < 0 ? 0 : read(running.pipe, piece.data(), piece.size());
      if (size < 0 && errno == EINTR) continue;
      if (size == 0 && running.pipe >= 0) {
        close(running.pipe);
        running.pipe = -1;
      }
      if (size <= 0) return;
      const std::string_view said(piece.data(), static_cast<std::size_t>(size));
      log(shard, said);
      running.tail += said;
      if (running.tail.size() > kTail) running.tail.erase(0, running.tail.size() - kTail);
    }
  }

  void look_after(Shard& shard) {
    if (!shard.running) return;
    RoundProcess& running = *shard.running;
    hear(shard, running);
    int status = 0;
    if (waitpid(running.process, &status, WNOHANG) != running.process) return;
    kill(-running.process, SIGKILL);  // whatever it left behind
    hear(shard, running);
    if (running.pipe >= 0) close(running.pipe);
    const std::string tail = std::move(running.tail);
    shard.running.reset();
    finish(shard, status, tail);
  }

  void finish(Shard& shard, int status, const std::string& tail) {
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (stop_signal != 0) {  // not done, but what it found counts
      found_ = found_ || code == 1;
      return;
    }
    const Counts counts = counts_in(tail);
    const bool is_done = WIFEXITED(status) && code <= 3 && !counts.empty() &&
                         (counts.front().second > 0 || code == 0);
    if (!is_done) return fail(shard, code, tail);
    shard.tries = 0;
    shard.lost_in_a_row = 0;
    state_.rounds.push_back({shard.number, shard.round, code, counts});
    done_.insert({shard.number, shard.round});
    keep();
    tell(fmt::format("shard {}, round {}: {}", shard.number, shard.round, text_of(counts)));
  }

  /// A round that was killed or judged nothing.
  void fail(Shard& shard, int code, const std::string& tail) {
    const bool again = ++shard.tries < kTries;
    tell(fmt::format("shard {}, round {}: {} ({}); {}", shard.number, shard.round,
                     code > 128 ? fmt::format("killed by signal {}", code - 128)
                                : fmt::format("exit code {}", code),
                     last_line(tail), again ? "again" : "lost"));
    if (again) return;
    ++lost_;
    // Death is a fault of the program; an end without a case is bad input, whatever it said.
    lost_codes_.insert(code > 3 ? 1 : code == 0 ? 2 : code);
    shard.tries = 0;
    ++shard.round;  // not kept as done: the next start tries it again
    shard.given_up = ++shard.lost_in_a_row >= kTries;
    if (shard.given_up)
      tell(fmt::format("shard {}: given up after {} lost rounds in a row", shard.number, kTries));
  }

  /// A line of standard output, which may lie on a full disk or lead to nobody: the night goes on.
  void tell(std::string line) {
    line += '\n';
    const bool is_out =
        std::fwrite(line.data(), 1, line.size(), stdout) == line.size() && std::fflush(stdout) == 0;
    is_told_ = is_told_ && is_out;
  }

  std::size_t findings_kept() const {
    std::size_t count = 0;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(options_.folder / "corpus", none))
      count += entry.path().extension() == ".h5" ? 1 : 0;
    return count;
  }

  int summary() {
    Counts sum{{"cases", 0},   {"exact", 0},   {"allowed", 0}, {"wrong", 0},
               {"refused", 0}, {"crashed", 0}, {"hung", 0}};
    for (const Round& round : state_.rounds) add(sum, round.counts);
    tell(fmt::format("overnight: {} rounds done, {} lost, {} findings in '{}', seed {}{}{}",
                     state_.rounds.size(), lost_, findings_kept(),
                     (options_.folder / "corpus").string(), state_.seed,
                     is_kept_ ? "" : ", not kept", stop_signal != 0 ? ", stopped early" : ""));
    tell(fmt::format("overnight: {}", text_of(sum)));
    return exit_code();
  }

  int exit_code() const {
    std::set<int> codes = lost_codes_;
    for (const Round& round : state_.rounds) codes.insert(round.code);
    if (codes.contains(1) || found_) return 1;
    if (stop_signal != 0) return kStopped;
    if (codes.contains(2) || !is_kept_ || !is_told_) return 2;
    return codes.contains(3) ? 3 : 0;
  }

  const OvernightOptions& options_;
  Signals signals_;
  FolderLock lock_;
  State state_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> done_;
  std::vector<Shard> shards_;
  const Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> asked_at_;
  std::uint64_t lost_ = 0;
  std::set<int> lost_codes_;
  bool found_ = false;
  bool is_kept_ = true;
  bool is_logged_ = true;
  bool is_told_ = true;
};

}  // namespace

int run_overnight(const OvernightOptions& options) {
  return Night(options).run();
}

}  // namespace monoref
