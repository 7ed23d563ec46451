#include "fuzz/report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "reference/error.hpp"

namespace monoref {
namespace {

nlohmann::json difference_json(const Difference& difference) {
  nlohmann::json index = nlohmann::json::object();
  for (const auto& [axis, value] : difference.index) index[axis] = value;
  return {{"output", difference.output},
          {"index", index},
          {"expected", difference.expected},
          {"got", difference.got},
          {"bound", difference.bound.empty() ? nlohmann::json() : nlohmann::json(difference.bound)},
          {"made_by",
           difference.made_by.empty() ? nlohmann::json() : nlohmann::json(difference.made_by)}};
}

nlohmann::json run_json(const RunResult& run) {
  nlohmann::json object{{"backend", run.runner},
                        {"wave", run.wave},
                        {"verdict", verdict_name(run.verdict)},
                        {"outputs", nlohmann::json::object()},
                        {"first_difference", nullptr}};
  for (const OutputTally& tally : run.outputs) object["outputs"][tally.name] = tally_json(tally);
  if (run.first_difference) object["first_difference"] = difference_json(*run.first_difference);
  if (!run.message.empty()) object["message"] = run.message;
  return object;
}

/// Messages may quote bytes of a bad file: whatever is not UTF-8 becomes the replacement character.
std::string text_of(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string who(const RunResult& run) {
  return run.wave == 0 ? run.runner : fmt::format("{} (wave {})", run.runner, run.wave);
}

}  // namespace

nlohmann::json tally_json(const OutputTally& tally) {
  return {{"exact", tally.exact},
          {"allowed", tally.allowed},
          {"wrong", tally.wrong},
          {"elements", tally.elements},
          {"undecided", tally.undecided}};
}

std::string failure_text(const CaseResult& result) {
  std::string text =
      fmt::format("{} {}, {} under contract {}", verdict_name(result.verdict()), result.stage,
                  result.title.empty() ? "generated case" : result.title, result.contract);
  for (const RunResult& run : result.runs) {
    if (run.verdict == Verdict::kExact || run.verdict == Verdict::kAllowed) continue;
    text += fmt::format("\n  {}: {}", who(run), verdict_name(run.verdict));
    if (run.first_difference) text += ": " + run.first_difference->text();
    if (!run.message.empty()) text += ": " + run.message;
    for (const OutputTally& tally : run.outputs)
      if (tally.wrong > 0)
        text += fmt::format("\n    {}: {} of {} elements wrong", tally.name, tally.wrong,
                            tally.elements);
  }
  if (!result.repro.empty()) text += "\n  " + result.repro;
  return text;
}

nlohmann::json case_json(const CaseResult& result) {
  // The decisive run speaks for the case; all of them are listed under "runs".
  static const RunResult kNothing{.runner = "reference"};
  const RunResult& decisive = result.decisive() != nullptr ? *result.decisive() : kNothing;
  nlohmann::json object = run_json(decisive);
  object["stage"] = result.stage;
  object["case"] = result.title;
  object["contract"] = result.contract;
  object["verdict"] = verdict_name(result.verdict());
  object["repro"] = result.repro;
  object["runs"] = nlohmann::json::array();
  for (const RunResult& run : result.runs) object["runs"].push_back(run_json(run));
  return object;
}

nlohmann::json summary_json(const std::string& command, const Summary& summary) {
  return {{"command", command},
          {"cases", summary.cases()},
          {"exact", summary.of(Verdict::kExact)},
          {"allowed", summary.of(Verdict::kAllowed)},
          {"wrong", summary.of(Verdict::kWrong)},
          {"refused", summary.of(Verdict::kRefused)},
          {"crashed", summary.of(Verdict::kCrashed)},
          {"hung", summary.of(Verdict::kHung)},
          {"unexpected_refusals", summary.unexpected_refusals}};
}

struct JsonFile::State {
  std::filesystem::path path;
  std::filesystem::path temporary;
  std::ofstream stream;
  bool first = true;
  nlohmann::json extra = nlohmann::json::object();
};

JsonFile::JsonFile(std::filesystem::path path) {
  if (path.empty()) return;
  state_ = std::make_unique<State>();
  state_->temporary = path.string() + fmt::format(".{}.partial", getpid());
  state_->path = std::move(path);
  state_->stream.open(state_->temporary);
  if (!state_->stream) refuse("--json: cannot write '{}'", state_->path.string());
  state_->stream << "{\"cases\": [";
}

JsonFile::~JsonFile() {
  if (state_ == nullptr) return;
  std::error_code ignored;
  std::filesystem::remove(state_->temporary, ignored);
}

void JsonFile::add(const CaseResult& result) {
  if (state_ == nullptr) return;
  state_->stream << (state_->first ? "\n" : ",\n") << text_of(case_json(result));
  state_->first = false;
}

void JsonFile::set(const std::string& key, const nlohmann::json& value) {
  if (state_ != nullptr) state_->extra[key] = value;
}

void JsonFile::finish(const nlohmann::json& summary) {
  if (state_ == nullptr) return;
  state_->stream << "\n]";
  for (const auto& [key, value] : state_->extra.items())
    state_->stream << ",\n" << text_of(key) << ": " << text_of(value);
  state_->stream << ",\n\"summary\": " << text_of(summary) << "}\n";
  state_->stream.close();
  if (!state_->stream) refuse("--json: cannot write '{}'", state_->path.string());
  std::filesystem::rename(state_->temporary, state_->path);
  state_.reset();
}

}  // namespace monoref
