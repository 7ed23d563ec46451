#include "fuzz/judging.hpp"

#include <fmt/format.h>

#include <limits>
#include <new>
#include <optional>
#include <thread>

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
  kReady,        ///< all runners have been made
  kCase,         ///< result: what is known of a case before it is judged
  kStep,         ///< text: who computes now; seconds: of processor time, or null
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
};

/// The life of a judging process.
void judge_from(const Judging& judging, const Position& start, const Tell& tell) {
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
    limit_memory(std::nullopt);
    JudgeStream stream(tell, file == start.file ? start.done : 0, judging.limits);
    try {
      judging.judge(file, runners, stream);
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
      is_ready_ = false;
      under_way_.reset();
      const Position start = at_;
      const Ending ending = listen_isolated(
          [&](const Tell& tell) { judge_from(judging_, start, tell); }, limits_of(nullptr),
          {[&](std::span<const std::byte> message) { return hear(message_from(message)); },
           [&] { return grace_is_over() || (stop_requested() && !under_way_); }});
      if (ending.kind == Ending::Kind::kFinished || ending.kind == Ending::Kind::kGivenUp) return;
      bury(ending);
    }
  }

 private:
  /// Until the next message; null: all the processor time that it takes.
  SilenceLimits limits_of(const json& seconds) const {
    return {seconds.is_null() ? std::numeric_limits<double>::infinity() : seconds.get<double>(),
            judging_.limits.wall_seconds};
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
      case Word::kReady:
        is_ready_ = true;
        break;
      case Word::kCase:
        under_way_ = result_from_wire(message.at("result"));
        who_ = "reference";
        return limits_of(message.at("seconds"));
      case Word::kStep:
        who_ = message.at("text");
        return limits_of(message.at("seconds"));
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
    return limits_of(nullptr);
  }

  void end_case(const JudgeStream::Judged& judged) {
    under_way_.reset();
    ++at_.done;
    listener_.on_case(at_.file, judged);
  }

  void end_file() {
    listener_.on_file(at_.file);
    at_ = {at_.file + 1, 0};
  }

  /// A death belongs to the case under way; without one, to the file, which is then passed over.
  void bury(const Ending& ending) {
    const bool is_late = ending.kind == Ending::Kind::kOverTime;
    const std::string message = fmt::format("the process that judged it {}", ending.failure);
    if (under_way_) {
      end_case({broken(*under_way_, who_, is_late ? Verdict::kHung : Verdict::kCrashed, message),
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
  std::optional<CaseResult> under_way_;
  std::string who_;  ///< computes the case under way
};

}  // namespace

double JudgeLimits::step_seconds(std::size_t file_bytes) const {
  const double mebibytes = static_cast<double>(file_bytes) / (1 << 20);
  return (seconds + seconds_per_mebibyte * mebibytes) * (is_sanitized() ? sanitized_factor : 1);
}

std::size_t JudgeLimits::memory_bytes(std::size_t file_bytes) const {
  return bytes + bytes_per_byte * file_bytes +
         bytes_per_processor * std::thread::hardware_concurrency();
}

JudgeStream::JudgeStream(const Tell& tell, std::uint64_t done, const JudgeLimits& limits)
    : tell_(tell), left_to_pass_(done), limits_(limits) {}

void JudgeStream::has_read(std::size_t bytes) {
  file_bytes_ = bytes;
  if (limits_.memory) limit_memory(limits_.memory_bytes(bytes));
}

void JudgeStream::trust() {
  is_trusted_ = true;
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
  send(tell_, Word::kCase,
      {{"result", wire_json(so_far)},
        {"seconds", is_trusted_ ? json() : json(limits_.step_seconds(file_bytes_))}});
  Judged judged;
  try {
    judged = judge();
  } catch (const std::bad_alloc&) {
    judged.result =
        broken(so_far, who_, Verdict::kRefused,
               fmt::format("it needs more memory than the {} MiB that a file of its size may",
                           limits_.memory_bytes(file_bytes_) >> 20));
  } catch (const std::exception& error) {
    judged.result = broken(so_far, who_, Verdict::kRefused, error.what());
  }
  send(tell_, Word::kResult, {{"result", wire_json(judged.result)}, {"text", judged.text}});
}

void JudgeStream::step(const std::string& who, bool is_runner) {
  who_ = who;
  send(tell_, Word::kStep,
      {{"text", who}, {"seconds", is_runner ? json() : json(limits_.step_seconds(file_bytes_))}});
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
