// One run of the program: what was judged, what went wrong around it, and how it ends.
#pragma once

#include <filesystem>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "fuzz/judging.hpp"
#include "fuzz/report.hpp"
#include "fuzz/verdict.hpp"

namespace monoref {

/// Collects the results of a command. However the run goes on, `finish` prints the line of the
/// runs and the last line, writes the JSON, and gives the exit code. Any thread may use it.
class Session {
 public:
  /// `must_run`: the backend was asked for, so that a run without it is not right.
  Session(std::string command, std::filesystem::path json, bool must_run);

  /// A runner that takes part: named also if it runs nothing.
  void runner(const std::string& token);
  void add(const CaseResult& result);
  void add_json(const std::string& key, const nlohmann::json& value);

  /// Each prints its text on standard error and has its say in the exit code: 1 for what is wrong
  /// beside the cases, 2 for a bad file or option, 3 for a backend that is not there.
  void failure(const std::string& text);
  void bad_input(const std::string& text);
  void unavailable(const std::string& text);

  /// The exit code. 75 if the program was asked to stop and nothing wrong was found by then. Says
  /// in words why a run that judged nothing, or not with the backend it was to, is not right.
  int finish();

 private:
  void note(int code, const std::string& text);
  int verdict_on_runs();

  std::mutex mutex_;
  std::string command_;
  JsonFile json_;
  bool must_run_;
  Summary summary_;
  int code_ = 0;
};

/// Tells a session of what judging processes say: runners, results, bad files. Results that are not
/// right are printed.
JudgingListener listener_for(Session& session);
/// Prints a failed or refused case; nothing for others.
void print_unless_right(const CaseResult& result);

}  // namespace monoref
