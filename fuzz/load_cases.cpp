#include "fuzz/load_cases.hpp"

#include "fuzz/stage.hpp"

namespace monoref {
namespace {

std::vector<Case> adopt_recording(const Recording& recording, const std::filesystem::path& file) {
  const Stage* stage = stage_for_recording(recording.stage);
  if (stage == nullptr)
    throw FileError(file.string(),
                    fmt::format("no stage here adopts recordings of '{}'", recording.stage));
  std::vector<Case> cases;
  for (const RecordedCase& recorded : recording.cases) {
    cases.push_back(stage->adopt(recording, recorded));
    cases.back().stage = stage->name;
    cases.back().title = recorded.title;
    cases.back().provenance = {"recorded",
                               fmt::format("{}, {}", recording.source, recording.device)};
  }
  return cases;
}

}  // namespace

const RecordingJudge* judge_of(const AnyFile& content) {
  const auto* recording = std::get_if<Recording>(&content);
  return recording == nullptr ? nullptr : find_judge(recording->stage);
}

bool has_cases(const AnyFile& content) {
  const auto* recording = std::get_if<Recording>(&content);
  return recording == nullptr || stage_for_recording(recording->stage) != nullptr;
}

std::vector<Case> cases_of(AnyFile content, const std::filesystem::path& file) {
  if (auto* recording = std::get_if<Recording>(&content)) return adopt_recording(*recording, file);
  return std::move(std::get<std::vector<Case>>(content));
}

std::vector<Case> load_cases(const std::filesystem::path& file) {
  return cases_of(read_any(file), file);
}

}  // namespace monoref
