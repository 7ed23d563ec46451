// Telling results: text for people, JSON for machines.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "fuzz/verdict.hpp"

namespace monoref {

/// One paragraph about a failed or refused case: verdict, who, where, both values, repro.
std::string failure_text(const CaseResult& result);

/// The object of one case, as the command line's documentation describes it.
nlohmann::json case_json(const CaseResult& result);
/// How many elements of an output were decided, and how.
nlohmann::json tally_json(const OutputTally& tally);
nlohmann::json summary_json(const std::string& command, const Summary& summary);

/// Collects a run's objects and writes `{"cases": [...], "summary": {...}}` in one step at the end:
/// readers never see half a file. Does nothing if the path is empty.
class JsonFile {
 public:
  explicit JsonFile(std::filesystem::path path);
  ~JsonFile();
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;

  void add(const CaseResult& result);
  /// Adds a member beside "cases" and "summary".
  void set(const std::string& key, const nlohmann::json& value);
  void finish(const nlohmann::json& summary);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace monoref
