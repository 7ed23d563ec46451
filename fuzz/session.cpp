#include "fuzz/session.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "fuzz/stop.hpp"

namespace monoref {
namespace {

constexpr int kStopped = 75;  // EX_TEMPFAIL

}  // namespace

Session::Session(std::string command, std::filesystem::path json, bool must_run)
    : command_(std::move(command)), json_(std::move(json)), must_run_(must_run) {}

void Session::runner(const std::string& token) {
  const std::lock_guard lock(mutex_);
  summary_.add_runs(token, 0);
}

void Session::add(const CaseResult& result) {
  const std::lock_guard lock(mutex_);
  summary_.add(result);
  json_.add(result);
}

void Session::add_json(const std::string& key, const nlohmann::json& value) {
  const std::lock_guard lock(mutex_);
  json_.set(key, value);
}

void Session::note(int code, const std::string& text) {
  const std::lock_guard lock(mutex_);
  fmt::print(stderr, "monoref: {}\n", text);
  code_ = worse_code(code_, code);
}

void Session::failure(const std::string& text) {
  note(1, text);
}

void Session::bad_input(const std::string& text) {
  note(2, text);
}

void Session::unavailable(const std::string& text) {
  note(3, text);
}

int Session::verdict_on_runs() {
  int code = 0;
  if (summary_.cases() == 0) {
    fmt::print(stderr, "monoref: {}: no case was judged\n", command_);
    code = 2;
  }
  for (const auto& [runner, count] : summary_.runs)
    if (must_run_ && count == 0) {
      fmt::print(stderr, "monoref: {}: {}, which --backend asks for, ran no case\n", command_,
                 runner);
      code = worse_code(code, 3);
    }
  return code;
}

int Session::finish() {
  const std::lock_guard lock(mutex_);
  const bool stopped = stop_requested();
  int code = worse_code(code_, summary_.exit_code());
  if (stopped && code != 1)
    code = kStopped;
  else if (code == 0)
    code = verdict_on_runs();
  nlohmann::json summary = summary_json(command_, summary_);
  summary["stopped"] = stopped;
  if (!json_.finish(summary)) code = worse_code(code, code == kStopped ? kStopped : 2);
  say("{}\n{}\n", summary_.runs_line(), summary_.line(command_));
  return code;
}

void print_unless_right(const CaseResult& result) {
  if (!is_failure(result.verdict()) && result.verdict() != Verdict::kRefused) return;
  say("{}\n", failure_text(result));
  std::fflush(stdout);  // whoever waits reads it now
}

JudgingListener listener_for(Session& session) {
  return {.on_runner = [&](const std::string& runner) { session.runner(runner); },
          .on_case =
              [&](std::size_t, const JudgeStream::Judged& judged) {
                session.add(judged.result);
                print_unless_right(judged.result);
              },
          .on_file = [](std::size_t) {},
          .on_note = [](std::size_t, const std::string& text) { say("{}\n", text); },
          .on_bad_input = [&](const std::string& text) { session.bad_input(text); },
          .on_unavailable = [&](const std::string& text) { session.unavailable(text); }};
}

}  // namespace monoref
