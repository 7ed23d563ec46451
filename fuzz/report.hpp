// Telling results: text for people, JSON for machines.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

#include "fuzz/verdict.hpp"

namespace monoref {

/// One paragraph about a failed or refused case: verdict, who, where, both values, repro.
std::string failure_text(const CaseResult& result);

/// The object of one case, as the command line's documentation describes it.
nlohmann::json case_json(const CaseResult& result);
/// How many elements of an output were decided, and how.
nlohmann::json tally_json(const OutputTally& tally);
nlohmann::json summary_json(const std::string& command, const Summary& summary);

/// Prints to standard output. What cannot be written is known at the end (ferror), and stops nobody
/// from reporting the rest.
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stdout);
}

/// Collects a run's objects as `{"cases": [...], "summary": {...}}`. A regular file, also one that
/// a symlink leads to, is replaced in one step at the end, so that readers never see half of it;
/// anything else (a pipe, a device) is written as the objects come. Does nothing if the path is
/// empty. What cannot be written is one message on standard error, and the answer of `finish`.
class JsonFile {
 public:
  explicit JsonFile(std::filesystem::path path);
  ~JsonFile();
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;

  void add(const CaseResult& result);
  /// Adds a member beside "cases" and "summary".
  void set(const std::string& key, const nlohmann::json& value);
  /// False if it could not be written: 2 is then the exit code of a run that is right otherwise.
  bool finish(const nlohmann::json& summary);

 private:
  struct State;
  void write(const std::string& text);
  void flush();
  void fail(const std::string& why);
  void replace_target();
  std::unique_ptr<State> state_;
};

}  // namespace monoref
