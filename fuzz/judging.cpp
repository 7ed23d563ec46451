#include "fuzz/judging.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "fuzz/result_wire.hpp"
#include "fuzz/stop.hpp"
#include "golden/file_error.hpp"

namespace monoref {
namespace {

using nlohmann::json;

/// What the judging process says. The members of each message stand beside it.
enum class Word : std::uint8_t {
  kRunner,       ///< text: one of those that take part
  kUnavailable,  ///< text
  kLost,         ///< text: the backend is lost to this process, with the case under way
  kSecond,       ///< the same by a hang of that case, which is to be judged once more
  kReady,        ///< all runners have been made
  kFile,         ///< bytes: what the file holds; trusted: it needs no limits
  kCase,         ///< result: what is known of a case before it is judged
  kStep,         ///< text: who computes now; is_runner
  kResult,       ///< result, text
  kNote,         ///< text
  kBadInput,     ///< text
  kFileEnd,
};

void send(const Tell& tell, Word word, json members = json::object()) {
  members["word"] = word;
  tell(message_bytes(members));
}

/// A case that could not be judged to its end.
CaseResult broken(CaseResult so_far, const std::string& who, Verdict verdict,
                  const std::string& message) {
  so_far.runs.push_back({.runner = who, .verdict = verdict, .message = message});
  return so_far;
}

/// Where judging goes on after a death.
struct Position {
  std::size_t file = 0;
  std::uint64_t done = 0;  ///< cases of it that have been told
  bool operator==(const Position&) const = default;
};

/// Carries the loss of a backend out of a case.
struct Lost {};

/// The life of a judging process.
void judge_from(const Judging& judging, const Position& start, bool is_second, const Tell& tell) {
  std::vector<std::unique_ptr<Runner>> owned;
  std::vector<Runner*> runners;
  try {
    owned = judging.make_runners();
  } catch (const device::Unavailable& unavailable) {
    return send(tell, Word::kUnavailable, {{"text", unavailable.message}});
  }
  for (const auto& runner : owned) {
    runners.push_back(runner.get());
    send(tell, Word::kRunner, {{"text", runner_token(runner->name(), runner->wave())}});
  }
  send(tell, Word::kReady);
  for (std::size_t file = start.file; file < judging.files.size(); ++file) {
    const bool is_first = file == start.file;
    JudgeStream stream(tell, is_first ? start.done : 0, is_first && is_second);
    try {
      judging.judge(file, runners, stream);
    } catch (const Lost&) {
      return;
    } catch (const FileError& error) {  // names the file itself
      stream.bad_input(error.what());
    } catch (const std::exception& error) {
      stream.bad_input(fmt::format("{}: {}", judging.files[file], error.what()));
    }
    send(tell, Word::kFileEnd);
  }
}

/// The listening side.
class Judges {
 public:
  Judges(const Judging& judging, const JudgingListener& listener)
      : judging_(judging), listener_(listener) {}

  void run() {
    while (at_.file < judging_.files.size() && !is_unavailable_ && !stop_requested()) {
      is_ready_ = is_lost_ = false;
      under_way_.reset();
      file_bytes_.reset();
      const Position start = at_;
      const bool is_second = std::exchange(is_second_, false);
      const Ending ending = listen_isolated(
          [&](const Tell& tell) { judge_from(judging_, start, is_second, tell); }, limits_of(true),
          {[&](std::span<const std::byte> message) { return hear(message_from(message)); },
           [&] { return grace_is_over() || (stop_requested() && !under_way_); }});
      if (is_lost_) continue;
      if (ending.kind == Ending::Kind::kFinished || ending.kind == Ending::Kind::kGivenUp) return;
      bury(ending);
    }
  }

 private:
  SilenceLimits limits_of(bool is_runner) const {
    if (is_trusted_ || !file_bytes_) return JudgeLimits::none();  // reading has limits of its own
    return is_runner ? judging_.limits.of_runner(*file_bytes_)
                     : judging_.limits.of_step(*file_bytes_);
  }

  SilenceLimits hear(const json& message) {
    switch (message.at("word").get<Word>()) {
      case Word::kRunner:
        listener_.on_runner(message.at("text"));
        break;
      case Word::kUnavailable:
        is_unavailable_ = true;
        listener_.on_unavailable(message.at("text"));
        break;
      case Word::kLost:
        lose(message.at("text"));
        break;
      case Word::kSecond:
        is_lost_ = is_second_ = true;
        break;
      case Word::kReady:
        is_ready_ = true;
        break;
      case Word::kFile:
        file_bytes_ = message.at("bytes").get<std::size_t>();
        is_trusted_ = message.at("trusted");
        break;
      case Word::kCase:
        under_way_ = result_from_wire(message.at("result"));
        who_ = "reference";
        return limits_of(false);
      case Word::kStep:
        who_ = message.at("text");
        return limits_of(message.at("is_runner"));
      case Word::kResult:
        end_case({result_from_wire(message.at("result")), message.at("text")});
        break;
      case Word::kNote:
        listener_.on_note(at_.file, message.at("text"));
        break;
      case Word::kBadInput:
        listener_.on_bad_input(message.at("text"));
        break;
      case Word::kFileEnd:
        end_file();
    }
    return limits_of(true);
  }

  /// A GPU is lost to a process whose kernel crashed; a new process has it again. One that loses it
  /// at its first case has no GPU.
  void lose(const std::string& text) {
    is_lost_ = true;
    if (std::exchange(lost_at_, at_) != at_) return;
    is_unavailable_ = true;
    listener_.on_unavailable(text);
  }

  void end_case(const JudgeStream::Judged& judged) {
    under_way_.reset();
    ++at_.done;
    listener_.on_case(at_.file, judged);
  }

  void end_file() {
    listener_.on_file(at_.file);
    file_bytes_.reset();
    at_ = {at_.file + 1, 0};
  }

  static Verdict verdict_on(Ending::Kind kind) {
    if (kind == Ending::Kind::kOverTime) return Verdict::kHung;
    return kind == Ending::Kind::kOverMemory ? Verdict::kRefused : Verdict::kCrashed;
  }

  /// A death belongs to the case under way; without one, to the file, which is then passed over.
  void bury(const Ending& ending) {
    if (under_way_) {
      end_case({broken(*under_way_, who_, verdict_on(ending.kind),
                       fmt::format("the process that judged it {}", ending.failure)),
                {}});
    } else if (!is_ready_) {
      is_unavailable_ = true;
      listener_.on_unavailable(
          fmt::format("the process that was to make the backend {}", ending.failure));
    } else {
      listener_.on_bad_input(
          fmt::format("{}: the process that read it {}", judging_.files[at_.file], ending.failure));
      end_file();
    }
  }

  const Judging& judging_;
  const JudgingListener& listener_;
  Position at_;
  bool is_ready_ = false;
  bool is_unavailable_ = false;
  bool is_lost_ = false;
  bool is_second_ = false;  ///< the next process begins with a case that hung
  std::optional<Position> lost_at_;
  std::optional<std::size_t> file_bytes_;  ///< of the file under way, once it has been read
  bool is_trusted_ = false;
  std::optional<CaseResult> under_way_;
  std::string who_;  ///< computes the case under way
};

}  // namespace

SilenceLimits JudgeLimits::of_step(std::size_t file_bytes) const {
  const double mebibytes = static_cast<double>(file_bytes) / (1 << 20);
  SilenceLimits limits = of_runner(file_bytes);
  limits.processor_seconds =
      (seconds + seconds_per_mebibyte * mebibytes) * (is_sanitized() ? sanitized_factor : 1);
  return limits;
}

SilenceLimits JudgeLimits::of_runner(std::size_t file_bytes) const {
  SilenceLimits limits = none();
  limits.wall_seconds = wall_seconds;
  if (!is_sanitized())
    limits.memory_bytes = bytes + bytes_per_byte * file_bytes +
                          bytes_per_processor * std::thread::hardware_concurrency();
  return limits;
}

SilenceLimits JudgeLimits::none() {
  constexpr double kForever = 1e9;  // seconds
  return {std::numeric_limits<double>::infinity(), kForever,
          std::numeric_limits<std::size_t>::max()};
}

JudgeStream::JudgeStream(const Tell& tell, std::uint64_t done, bool is_second)
    : tell_(tell), left_to_pass_(done), is_second_(is_second) {}

void JudgeStream::has_read(std::size_t bytes) {
  send(tell_, Word::kFile, {{"bytes", bytes}, {"trusted", false}});
}

void JudgeStream::trust() {
  send(tell_, Word::kFile, {{"bytes", 0}, {"trusted", true}});
}

JudgeSteps JudgeStream::steps() {
  return [this](const std::string& who, bool is_runner) { step(who, is_runner); };
}

void JudgeStream::judge(const CaseResult& so_far, const std::function<Judged()>& judge) {
  if (left_to_pass_ > 0) {
    --left_to_pass_;
    return;
  }
  who_ = "reference";
  send(tell_, Word::kCase, {{"result", wire_json(so_far)}});
  Judged judged;
  try {
    judged = judge();
  } catch (const device::Unavailable& lost) {
    send(tell_, Word::kLost, {{"text", lost.message}});
    throw Lost{};
  } catch (const std::bad_alloc&) {
    judged.result = broken(so_far, who_, Verdict::kRefused,
                           "the case needs more memory than the limit, what the process can get");
  } catch (const std::exception& error) {
    judged.result = broken(so_far, who_, Verdict::kRefused, error.what());
  }
  const auto& runs = judged.result.runs;
  const bool is_lost =
      std::any_of(runs.begin(), runs.end(), [](const RunResult& run) { return run.is_lost; });
  if (is_lost && !std::exchange(is_second_, false)) {
    send(tell_, Word::kSecond);
    throw Lost{};
  }
  send(tell_, Word::kResult, {{"result", wire_json(judged.result)}, {"text", judged.text}});
}

void JudgeStream::step(const std::string& who, bool is_runner) {
  who_ = who;
  send(tell_, Word::kStep, {{"text", who}, {"is_runner", is_runner}});
}

void JudgeStream::note(const std::string& text) {
  if (left_to_pass_ == 0) send(tell_, Word::kNote, {{"text", text}});
}

void JudgeStream::bad_input(const std::string& text) {
  send(tell_, Word::kBadInput, {{"text", text}});
}

void judge_files(const Judging& judging, const JudgingListener& listener) {
  Judges(judging, listener).run();
}

}  // namespace monoref
