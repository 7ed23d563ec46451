#include "fuzz/report.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

namespace monoref {
namespace {

nlohmann::json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::json() : nlohmann::json(text);
}

nlohmann::json difference_json(const Difference& difference) {
  nlohmann::json index = nlohmann::json::object();
  for (const auto& [axis, value] : difference.index) index[axis] = value;
  return {{"output", difference.output},
          {"index", index},
          {"expected", difference.expected},
          {"got", difference.got},
          {"bound", text_or_null(difference.bound)},
          {"low", text_or_null(difference.low)},
          {"high", text_or_null(difference.high)},
          {"made_by", text_or_null(difference.made_by)}};
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
  nlohmann::json runs = nlohmann::json::object();
  for (const auto& [runner, count] : summary.runs) runs[runner] = count;
  return {{"command", command},
          {"runs", runs},
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
  std::filesystem::path target;     ///< what the path leads to
  std::filesystem::path temporary;  ///< beside the target; empty where it is written as it is
  int file = -1;
  std::string text;  ///< not yet written
  std::string failure;
  bool first = true;
  nlohmann::json extra = nlohmann::json::object();

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (file >= 0) close(file);
  }
};

namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 16;

/// Standard output and standard error have been opened already, whatever they lead to.
bool is_standard_stream(const struct stat& facts) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat other{};
    if (fstat(stream, &other) == 0 && other.st_dev == facts.st_dev && other.st_ino == facts.st_ino)
      return true;
  }
  return false;
}

/// Where the symlinks of a path end, also if nothing is there yet.
std::filesystem::path end_of_links(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as many as the system follows
  std::error_code failed;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, failed); ++i) {
    const auto next = std::filesystem::read_symlink(path, failed);
    if (failed) break;
    path = path.parent_path() / next;  // an absolute one replaces the whole
  }
  return path;
}

}  // namespace

JsonFile::JsonFile(std::filesystem::path path) {
  if (path.empty()) return;
  state_ = std::make_unique<State>();
  state_->path = std::move(path);
  struct stat facts{};
  const bool exists = stat(state_->path.c_str(), &facts) == 0;
  if (exists && (!S_ISREG(facts.st_mode) || is_standard_stream(facts))) {
    state_->file = open(state_->path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  } else {
    state_->target = end_of_links(state_->path);
    state_->temporary = state_->target.parent_path() /
                        fmt::format(".{}.{}.partial", state_->target.filename().string(), getpid());
    state_->file = open(state_->temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  }
  if (state_->file < 0) fail(std::generic_category().message(errno));
  state_->text = "{\"cases\": [";
}

JsonFile::~JsonFile() {
  if (state_ != nullptr && !state_->temporary.empty()) unlink(state_->temporary.c_str());
}

void JsonFile::fail(const std::string& why) {
  if (state_->failure.empty())
    fmt::print(stderr, "--json: cannot write '{}': {}\n", state_->path.string(), why);
  state_->failure = why;
  state_->text.clear();
}

void JsonFile::write(const std::string& text) {
  if (!state_->failure.empty()) return;
  state_->text += text;
  if (state_->text.size() >= kPieceBytes) flush();
}

void JsonFile::flush() {
  std::string_view rest = state_->text;
  while (!rest.empty()) {
    const ssize_t written = ::write(state_->file, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail(std::generic_category().message(errno));
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  state_->text.clear();
}

/// The whole text gets its name, or nothing stays of it.
void JsonFile::replace_target() {
  if (state_->failure.empty() && fsync(state_->file) != 0 && errno != EINVAL)
    fail(std::generic_category().message(errno));
  if (state_->failure.empty() && rename(state_->temporary.c_str(), state_->target.c_str()) != 0)
    fail(std::generic_category().message(errno));
  if (!state_->failure.empty()) unlink(state_->temporary.c_str());
}

void JsonFile::add(const CaseResult& result) {
  if (state_ == nullptr) return;
  write((state_->first ? "\n" : ",\n") + text_of(case_json(result)));
  state_->first = false;
}

void JsonFile::set(const std::string& key, const nlohmann::json& value) {
  if (state_ != nullptr) state_->extra[key] = value;
}

bool JsonFile::finish(const nlohmann::json& summary) {
  if (state_ == nullptr) return true;
  std::string end = "\n]";
  for (const auto& [key, value] : state_->extra.items())
    end += ",\n" + text_of(key) + ": " + text_of(value);
  end += ",\n\"summary\": " + text_of(summary) + "}\n";
  write(end);
  flush();
  if (!state_->temporary.empty()) replace_target();
  const bool written = state_->failure.empty();
  state_.reset();
  return written;
}

}  // namespace monoref
